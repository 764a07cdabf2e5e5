"""Comparisons of `stime` with a constant, turned into a range of stime so that segments outside it are not opened."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual

from holdfast.model.time import instant_us


def narrowed(filters: Iterable[Filter], start_us: int, end_us: int) -> tuple[int, int]:
    """The part of [start, end) that can satisfy all filters."""
    for one in filters:
        attribute, value = getattr(one, "attribute", None), getattr(one, "value", None)
        if attribute != ("stime",) or not isinstance(value, datetime):
            continue
        at = instant_us(value)
        match one:
            case GreaterThanOrEqual():
                start_us = max(start_us, at)
            case GreaterThan():
                start_us = max(start_us, at + 1)
            case LessThan():
                end_us = min(end_us, at)
            case LessThanOrEqual():
                end_us = min(end_us, at + 1)
            case EqualTo():
                start_us, end_us = max(start_us, at), min(end_us, at + 1)
    return start_us, end_us
