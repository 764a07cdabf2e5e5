"""Sizes, ages and counts as people read them."""

from __future__ import annotations


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
