"""The books of one operator: which windows are open, when each was saved last, and what to write.

Rules:
1. One door: `handle(signal, now_us)` returns the records to append, in order. `now_us` is the position of the tuple
   that is being processed (virtual time); positions never go back.
2. A window that opens is recorded at once (Gopen), with the state after its first tuple. One that closes is recorded as
   R. Every record carries N, the number of open windows after it (C4).
3. A slow window is one that has been open for H. The slow windows are saved (Gcheck) once per T, in S = N/M shots of M,
   one shot every T/S, the least recently saved first (000 §4.2).
4. The ledger never sees a window's state: it asks for it by name, and the host puts it into the record.
5. Read backwards, the records give the eventual checkpoint (`BackwardScan`, 001 §II.B). The newest record says how many
   windows were open (N); of each, the first record that is met decides: an R says that it is closed, a Gopen or Gcheck
   is its footprint (C2). The scan is over when N windows are found. Replay begins behind T = min p_i, and window i
   takes only what lies behind its own p_i (C3).

It is the texts' own account, tuple by tuple: what the paper test and a bench count by. Spark keeps the same books for
whole columns of windows at a time (`holdfast.operators.footprints`).
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from enum import IntEnum

from holdfast.model.errors import CorruptLog, UsageError
from holdfast.protocol.cec.policy import Continuous


class RecordKind(IntEnum):
    """The numbers are in the log; never renumber them."""

    GOPEN = 1
    GCHECK = 2
    R = 3


@dataclass(frozen=True)
class Record:
    """What goes into the log; the host adds the window's state to a Gopen or a Gcheck."""

    kind: RecordKind
    window: int
    position_us: int
    windows: int


@dataclass(frozen=True)
class Opened:
    window: int


@dataclass(frozen=True)
class Closed:
    window: int


@dataclass(frozen=True)
class Tick:
    """A tuple was processed that neither opened nor closed a window, or time has passed."""


Signal = Opened | Closed | Tick


class Ledger:
    def __init__(self, policy: Continuous) -> None:
        self._policy = policy
        self._opened: dict[int, int] = {}
        self._saved: OrderedDict[int, int] = OrderedDict()
        """Position of each open window's last footprint, the least recent first."""
        self._next_shot_us: int | None = None

    @property
    def windows(self) -> int:
        return len(self._opened)

    @property
    def oldest_us(self) -> int | None:
        """T of the eventual checkpoint: where recovery begins to replay."""
        return next(iter(self._saved.values()), None)

    def handle(self, signal: Signal, now_us: int) -> tuple[Record, ...]:
        records: list[Record] = []
        if isinstance(signal, Opened):
            if signal.window in self._opened:
                raise UsageError(f"window {signal.window} is open already; close it before it opens again")
            self._opened[signal.window] = self._saved[signal.window] = now_us
            records.append(Record(RecordKind.GOPEN, signal.window, now_us, self.windows))
        elif isinstance(signal, Closed):
            if signal.window not in self._opened:
                raise UsageError(f"window {signal.window} is not open; only open windows close")
            del self._opened[signal.window], self._saved[signal.window]
            records.append(Record(RecordKind.R, signal.window, now_us, self.windows))
        return (*records, *self._shot(now_us))

    def _shot(self, now_us: int) -> list[Record]:
        """Rule 3."""
        if self._next_shot_us is None:
            self._next_shot_us = now_us + self._policy.period_us
            return []
        if now_us < self._next_shot_us:
            return []
        slow: list[int] = []
        for window, saved_us in self._saved.items():
            if len(slow) == self._policy.at_most or now_us - saved_us < self._policy.period_us:
                break
            if now_us - self._opened[window] >= self._policy.slow_us:
                slow.append(window)
        shots = max(1, -(-self.windows // max(1, self._policy.at_most)))
        self._next_shot_us = now_us + self._policy.period_us // shots
        for window in slow:
            self._saved[window] = now_us
            self._saved.move_to_end(window)
        return [Record(RecordKind.GCHECK, window, now_us, self.windows) for window in slow]


@dataclass(frozen=True)
class EventualCheckpoint:
    positions: tuple[tuple[int, int], ...]
    """(window, p_i) in the order in which they were found."""
    extent: int
    """Records that the scan went through."""

    @property
    def since_us(self) -> int | None:
        return min((p for _, p in self.positions), default=None)

    def applies(self, window: int, position_us: int) -> bool:
        """Does a tuple at this position still have to be applied to the window?"""
        return any(w == window and position_us > p for w, p in self.positions)


class BackwardScan:
    """Give it records, the newest first, until `done`."""

    def __init__(self) -> None:
        self._wanted: int | None = None
        self._found: dict[int, int] = {}
        self._closed: dict[int, bool] = {}
        self._extent = 0

    @property
    def done(self) -> bool:
        return self._wanted is not None and len(self._found) == self._wanted

    def take(self, record: Record) -> None:
        if self.done:
            return
        if self._wanted is None:
            self._wanted = record.windows
            if self.done:
                return
        self._extent += 1
        if record.window in self._found or record.window in self._closed:
            return
        if record.kind == RecordKind.R:
            self._closed[record.window] = True
        else:
            self._found[record.window] = record.position_us

    def finish(self) -> EventualCheckpoint:
        """The checkpoint; refused if the log ended before all windows were found."""
        if self._wanted is not None and not self.done:
            raise CorruptLog(
                f"{self._wanted} windows were open, the log has {len(self._found)} of them; nothing is restored"
            )
        return EventualCheckpoint(tuple(self._found.items()), self._extent)
