"""How long we wait for a partner that runs a task of ours, and what for.

Rules:
1. Silence: a partner that has not answered for longer than our patience is taken for gone. So is one whose answers
   cannot be taken.
2. Standstill: one that answers is taken for unable to go on if the output has stood still for longer than that after
   every input had gone on. Where an input rests, so does the output, and nobody is to blame.
3. Refusal: when we want the task back, it is handed over within that time, or we do without.
4. What is in the way here (a full disk, an input that cannot be asked) is not the partner's fault: patience begins anew
   when that has passed.
5. To be wrong costs no result: what is computed twice is left out once (B7).
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.clock import monotonic_us
from holdfast.load.remote_task import Fault, RemoteTask
from holdfast.load.tasks import HeldTask
from holdfast.model.time import END_OF_TIME_US


@dataclass(slots=True)
class _Stand:
    """Where an output stands."""

    boundary_us: int
    inputs: tuple[int, ...] | None = None
    """Where the inputs stood soon after; looked at only when the output does not move."""
    since_us: int | None = None
    """Since when it should have moved: every input had gone on then."""


class Patience:
    """Of one participant, with all its partners."""

    def __init__(self, patience_us: int) -> None:
        self._patience_us = patience_us
        self._refused_us: dict[str, int] = {}
        self._stands: dict[str, _Stand] = {}

    def refused(self, lease_id: str) -> None:
        """The partner did not hand the task over."""
        self._refused_us.setdefault(lease_id, monotonic_us())

    def forget(self, lease_id: str) -> None:
        """The task is here again."""
        self._refused_us.pop(lease_id, None)
        self._stands.pop(lease_id, None)

    async def over(self, held: HeldTask, away: RemoteTask) -> str | None:
        """Why we wait no longer; None if we do."""
        lease_id, now, partner = away.note.lease_id, monotonic_us(), away.note.partner
        if away.ended:
            return None
        if away.fault is Fault.OURS:
            self.forget(lease_id)
            return None
        if now - away.heard_us > self._patience_us:
            if away.fault is Fault.UNFIT:
                return f"{partner} has sent nothing for too long that could be taken ({away.trouble})"
            return f"{partner} has been silent for too long" + (f" ({away.trouble})" if away.trouble else "")
        if now - self._refused_us.get(lease_id, now) > self._patience_us:
            return f"{partner} has not handed it over for too long"
        if await self._stands_still(held, away) and now - (self._stands[lease_id].since_us or now) > self._patience_us:
            return f"{partner} has brought no results for too long, although the inputs have gone on"
        return None

    async def _stands_still(self, held: HeldTask, away: RemoteTask) -> bool:
        """Rule 2."""
        stand = self._stands.get(away.note.lease_id)
        if stand is None or stand.boundary_us != away.boundary_us:
            stand = self._stands[away.note.lease_id] = _Stand(away.boundary_us)
        elif stand.inputs is None:
            stand.inputs = await held.input_boundaries()
        elif stand.since_us is None:
            # Output moves by whole buckets: what is within one does not show.
            enough = 2 * held.output.definition.bucket_us
            before, after = stand.inputs, await held.input_boundaries()
            if after is not None and all(
                new >= old + enough or new >= END_OF_TIME_US for old, new in zip(before, after, strict=True)
            ):
                stand.since_us = monotonic_us()
        return stand.since_us is not None
