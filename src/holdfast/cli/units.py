"""Sizes and ages as people write and read them."""

from __future__ import annotations

import re

from holdfast.model.errors import UsageError

_UNITS = {"": 1, "b": 1, "kb": 1000, "mb": 1000**2, "gb": 1000**3, "tb": 1000**4,
          "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40}  # fmt: skip
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", re.IGNORECASE)


def size_bytes(text: str) -> int:
    """
    >>> size_bytes("64MiB"), size_bytes("1.5 GB")
    (67108864, 1500000000)
    """
    match = _SIZE.fullmatch(text)
    if match is None or match[2].lower() not in _UNITS:
        raise UsageError(f"a size must look like '64MiB', '2GB' or '4096'; got {text!r}")
    return round(float(match[1]) * _UNITS[match[2].lower()])


def size_text(size: float) -> str:
    """
    >>> size_text(1536), size_text(12)
    ('1.5 KiB', '12 B')
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError


def age_text(us: int) -> str:
    """
    >>> age_text(2_340_000), age_text(7_200_000_000)
    ('2.3 s', '2.0 h')
    """
    seconds = us / 1e6
    for limit, size, unit in ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if abs(seconds) < limit:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds / 86400:.1f} d"


def counted(number: int, noun: str) -> str:
    """
    >>> counted(1, "tuple"), counted(2, "tuple")
    ('1 tuple', '2 tuples')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
