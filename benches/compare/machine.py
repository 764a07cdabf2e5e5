"""The machine beside a contender: how much of it others took, and which processes are the contender's own.

A run on a machine that others keep busy says nothing about the contender, so each run carries the share that was not
its own, and one with too much of it is made again.

A contender's own are all processes of the sessions that were begun by one of its own: servers and hosts begin sessions
of their own, and stay what they are when whoever started them has gone.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

#: Of all cores. Beside more than this, batches take visibly longer.
BUSY_MAX = 0.25
#: Who had less than half of the machine, and was slow when nothing failed, was not measured: no figures are shown.
CROWDED, CALM_MIN = 0.5, 0.9
_LOOK_S = 3.0
_END_S = 0.02
_TICKS = os.sysconf("SC_CLK_TCK")
#: Places in /proc/PID/stat, behind the name.
_STATE, _PARENT, _SESSION = 0, 1, 3


class Usage(NamedTuple):
    """Seconds of processor time so far."""

    total_s: float
    idle_s: float
    own_s: float


class Own:
    """The processes of a contender, from the session that it was started in. Look often: a session whose leader came
    and went between two looks is not known."""

    def __init__(self, session: int) -> None:
        self._sessions = {session}
        #: Seconds of those that are nobody's child any more: nobody else has them once such a one has ended.
        self._orphans: dict[int, float] = {}

    def processes(self) -> Mapping[int, list[str]]:
        """Those that there are, with the fields of /proc/PID/stat behind the name."""
        every = _processes()
        found = {pid for pid, fields in every.items() if int(fields[_SESSION]) in self._sessions}
        while more := {pid for pid, fields in every.items() if int(fields[_PARENT]) in found} - found:
            sessions = {int(every[pid][_SESSION]) for pid in more}
            self._sessions |= sessions
            found |= more | {pid for pid, fields in every.items() if int(fields[_SESSION]) in sessions}
        return {pid: every[pid] for pid in found}

    def seconds(self) -> float:
        """Of processor time so far."""
        own = self.processes()
        # Time of processes that have ended is their parents' (the last two).
        spent = {pid: sum(map(int, fields[11:15])) / _TICKS for pid, fields in own.items()}
        self._orphans |= {pid: spent[pid] for pid, fields in own.items() if int(fields[_PARENT]) not in own}
        return sum(spent.values()) + sum(seconds for pid, seconds in self._orphans.items() if pid not in spent)

    def end(self) -> None:
        """All of them; also those that are started meanwhile."""
        while own := [pid for pid, fields in self.processes().items() if fields[_STATE] != "Z"]:
            for pid in own:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            time.sleep(_END_S)


def usage(own: Own | None = None) -> Usage:
    """Of the machine, and of a contender."""
    cpu = [int(word) / _TICKS for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return Usage(sum(cpu), cpu[3] + cpu[4], own.seconds() if own is not None else 0.0)


def elsewhere(before: Usage, after: Usage) -> float:
    """The share of the machine between two looks that was neither idle nor the contender's."""
    total = after.total_s - before.total_s
    busy = total - (after.idle_s - before.idle_s) - (after.own_s - before.own_s)
    return round(max(0.0, busy / total), 2) if total else 0.0


def wait_until_quiet(patience_s: float) -> None:
    until = time.monotonic() + patience_s
    while time.monotonic() < until:
        before = usage()
        time.sleep(_LOOK_S)
        if elsewhere(before, usage()) < BUSY_MAX:
            return


def _processes() -> dict[int, list[str]]:
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                found[int(folder.name)] = (folder / "stat").read_text().rsplit(")", 1)[1].split()
            except (OSError, IndexError):  # It has just ended.
                continue
    return found
