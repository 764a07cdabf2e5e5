"""When a process began: with its number, that tells it from a later one."""

from __future__ import annotations

import os
from pathlib import Path


def own_process() -> tuple[int, int]:
    """Number and beginning of this process."""
    pid = os.getpid()
    return pid, begun(pid) or 0


def begun(pid: int) -> int | None:
    """When a process of this machine began, in the kernel's own units; None if there is none of that number."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return None
    words = text.rpartition(")")[2].split()
    return None if words[0] in "ZX" else int(words[19])
