"""Sizes as people write them."""

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
