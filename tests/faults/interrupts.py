"""Ctrl-C at a chosen line: the signal can come between any two of them."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def run_interrupted(act: Callable[[], object], at: int, files: tuple[str, ...]) -> bool:
    """Run `act`; raise KeyboardInterrupt in front of the at-th line of `files`. False if there are not so many."""
    seen = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal seen
        if not frame.f_code.co_filename.endswith(files):
            return None
        if event == "line" and not _leaves_a_lock(frame):
            seen += 1
            if seen == at:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    previous = sys.gettrace()
    sys.settrace(trace)
    try:
        act()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(previous)
    return seen >= at


def _leaves_a_lock(frame: FrameType) -> bool:
    """The end of a `with` is reported as a line, but no signal is handled between it and the release of the lock."""
    return linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip().startswith("with ")
