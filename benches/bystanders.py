"""How much of the machine others took away while a bench ran: a number beside which every other one has to be read.

Only those count that the scheduler does not put behind us: whoever runs a bench with real-time priority is not held up
by ordinary processes. What started and ended in between is not seen.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


class Bystanders:
    """Everybody who is neither this process nor started by it, and runs with a priority like ours or a higher one."""

    def __init__(self) -> None:
        self._at, self._before = time.monotonic(), _rivals()

    def share(self) -> float:
        """The part of all cores' time since the beginning that they had: 0 on a quiet machine."""
        used = sum(max(0.0, seconds - self._before.get(pid, 0.0)) for pid, seconds in _rivals().items())
        cores = len(os.sched_getaffinity(0))
        return round(used / max(0.001, cores * (time.monotonic() - self._at)), 3)


def our_seconds() -> float:
    """Processor seconds of this process and all that it started, those that ended included."""
    parent, _, used, ended = _processes()
    return sum(used[pid] + ended[pid] for pid in used if _ours(pid, parent))


def _rivals() -> dict[int, float]:
    """Processor seconds by process. Not those of children that ended: they come all at once, however old they are."""
    parent, rank, used, _ = _processes()
    # The kernel's own number: below zero for real time, 20 plus nice for everybody else.
    own = rank[os.getpid()]
    return {pid: seconds for pid, seconds in used.items() if rank[pid] <= own and not _ours(pid, parent)}


def _processes() -> tuple[dict[int, int], dict[int, int], dict[int, float], dict[int, float]]:
    """Parent, rank, processor seconds, and those of children that ended, by process."""
    parent: dict[int, int] = {}
    used: dict[int, float] = {}
    ended: dict[int, float] = {}
    rank: dict[int, int] = {}
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                fields = (path / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # It ended meanwhile.
            pid = int(path.name)
            parent[pid], rank[pid] = int(fields[1]), int(fields[15])
            used[pid] = sum(map(int, fields[11:13])) / _TICKS
            ended[pid] = sum(map(int, fields[13:15])) / _TICKS
    return parent, rank, used, ended


def _ours(pid: int, parent: dict[int, int]) -> bool:
    while pid > 1:
        if pid == os.getpid():
            return True
        pid = parent.get(pid, 0)
    return False
