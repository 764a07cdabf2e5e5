"""How long output must be kept, and what happens when there is no room left (003 §4.9).

Rules:
1. Output may go once every replica of every reader has acknowledged it (§4.9.3). Readers acknowledge what they have
   *committed*, not what they received: after a crash they replay from their checkpoint.
2. Only stable output is kept (§4.9.2): a branch is never replayed, it is replaced.
3. A full buffer blocks its writer, or, for convergent-capable queries, lets the oldest go and says how much of it was
   not acknowledged (D14: never silently).
"""

from __future__ import annotations

from holdfast.model.time import BEGINNING_US
from holdfast.protocol.dpc.effects import Truncate
from holdfast.protocol.dpc.plan import Full, OutputPlan


class Buffer:
    """The bookkeeping for one output stream."""

    __slots__ = ("_acked", "_plan", "kept_us")

    def __init__(self, plan: OutputPlan, kept_us: int) -> None:
        self._plan = plan
        #: Everything from here on is kept.
        self.kept_us = kept_us
        self._acked = dict.fromkeys(plan.readers, BEGINNING_US)

    def replan(self, plan: OutputPlan) -> None:
        """Others read it. One that is new has acknowledged nothing, so that nothing goes before it has spoken; one that
        is gone is waited for no more."""
        self._plan = plan
        self._acked = {reader: self._acked.get(reader, BEGINNING_US) for reader in plan.readers}

    def ack(self, reader: str, upto_us: int) -> None:
        """A reader has committed everything before `upto_us`. An unknown reader's word does not count."""
        if reader in self._acked and upto_us > self._acked[reader]:
            self._acked[reader] = upto_us

    def slowest(self) -> str | None:
        """The reader that has acknowledged least since the start; None if nobody reads."""
        return min(self._acked, key=lambda reader: self._acked[reader], default=None)

    def limit_us(self) -> int | None:
        """How far output may go before it must block; None if it need not."""
        if self._plan.capacity_us is None or self._plan.full is not Full.BLOCK or not self._plan.readers:
            return None  # Without readers there is nobody to wait for.
        return self.kept_us + self._plan.capacity_us

    def truncate(self, head_us: int) -> Truncate | None:
        """What may go now that output has reached `head_us`."""
        acked = min(self._acked.values(), default=head_us)
        upto, lost = min(acked, head_us), 0
        if self._plan.full is Full.KEEP_LAST and self._plan.capacity_us is not None:
            oldest = head_us - self._plan.capacity_us
            if oldest > upto:
                lost = oldest - max(upto, self.kept_us)
                upto = oldest
        if upto <= self.kept_us:
            return None
        self.kept_us = upto
        return Truncate(self._plan.stream, upto, lost)
