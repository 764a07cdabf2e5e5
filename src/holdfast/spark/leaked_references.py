"""Lets go of what Python still holds of Spark's queries that have stopped, and of the frames that they were made of.

An object of the JVM stays there for as long as Python refers to it, and py4j's references refer to themselves: each to
the methods that were called on it. So they go when Python's collector looks for cycles, and those that have lived for a
while only when it looks through everything. A host makes so little that it hardly ever does.

1. A query that was stopped, and its session, are a megabyte of plans and progress: those references are cut from
   themselves, and go with whoever holds them.
2. To look through everything takes a tenth of a second, in which no other thread of Python runs. So it is done for the
   rest, which is small, when there is a lot more of it than was left the last time.
"""

from __future__ import annotations

import gc
import threading
from typing import Any

from py4j.finalizer import ThreadSafeFinalizer  # type: ignore[import-untyped]

#: Rule 2: those of ten starts or more.
REFERENCES_MORE = 500

_collecting = threading.Lock()
_left = 0
"""How many there were after the last look."""


def let_go(*references: Any) -> None:
    """Rule 1. Who calls a method on one again makes another cycle, and nothing worse."""
    for reference in references:
        vars(reference)["_methods"].clear()


def collect_references() -> int:
    """Rule 2. How many went."""
    global _left
    with _collecting:
        seen = count_references()
        if seen <= _left + REFERENCES_MORE:
            _left = min(_left, seen)
            return 0
        gc.collect()
        _left = count_references()
        return seen - _left


def count_references() -> int:
    return len(ThreadSafeFinalizer.finalizers)
