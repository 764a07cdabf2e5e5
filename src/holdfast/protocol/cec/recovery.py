"""Finding the eventual checkpoint: the log read backwards (001 §II.B).

Rules:
1. The newest record says how many windows were open (N). Reading backwards, the first record of a window decides: an R
   says that it is closed and its older records do not count; a Gopen or Gcheck is its footprint (C2).
2. The scan is over when N windows are found; it never reads further.
3. T = min p_i. Replay begins behind T, and window i takes only what lies behind its own p_i (C3).
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.model.errors import CorruptLog
from holdfast.protocol.cec.ledger import Record, RecordKind


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
