"""What time does to the keys of a partition that get no tuples: they are forgotten, or their output is due.

Rules:
1. Time is that of the tuples where the operator names a column: the greatest so far in the partition. Without one it is
   the clock's when a batch is executed first. That is noted with the state which the batch leaves, before its results
   leave the task, so whoever executes it again finds it and gives the same. In neither case does time go back.
2. A key without tuples for its operator's time to live begins anew with the next one. Whether its state is still there
   makes no difference to that, so it may be removed later than it could be.
3. All keys are looked at when an eighth of the shorter period has passed since the last look, at the end of a batch:
   states stay, and outputs by time of quiet keys come, that much later at most. A look reads every state of the
   partition, and its cost is spread over that time.
4. States that are to come back (`forget=False`) leave scratch instead, once the store has them. In memory they are for
   the length of a batch anyway. Where they are makes no difference to results, except that a key that has left has no
   outputs by time.
5. Of a partition that was restored lazily, all states come in with the first look.
6. Time passes with batches: a query without new tuples forgets nothing and gives no output.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from holdfast.checkpoint.slots import Slots
from holdfast.clock import now_us
from holdfast.operators.udop import Instances, UserOperator, directory_of, times_of

#: Looks per period (rule 3): with more, states of quiet keys are read more often than they are worth.
_LOOKS = 8
#: The mark, in scratch, of the key up to which the states of a lazy restore have come in.
CAME_TO = b"came_to"


class Passing:
    """How time passes in a partition during one batch."""

    def __init__(
        self, prototype: Callable[[], UserOperator], by_column: bool, batch: int, near: Slots, far: Slots | None,
        time_to_live_us: int | None = None,
    ) -> None:  # fmt: skip
        # A class says it without being instantiated, which may cost something.
        said = prototype if isinstance(prototype, type) else prototype()
        own = getattr(said, "time_to_live_us", None)
        self._lasts: int | None = own if time_to_live_us is None else time_to_live_us
        self._after: int | None = getattr(said, "output_after_us", None)
        self._periods = [period for period in (self._lasts, self._after) if period is not None]
        self._batch, self._near = batch, near
        self._noted_us, self._all_came = 0, False
        self.begin_us = 0
        """Where time stands when the batch begins."""
        if self._periods:
            self.begin_us = int(near.mark(b"now_us", batch) or 0)
            self._looked_us = int(near.mark(b"looked_us", batch) or 0)
            if not by_column:
                self.begin_us = max(self.begin_us, self._first_us(far))

    def _first_us(self, far: Slots | None) -> int:
        """Rule 1: when this batch was executed first."""
        for kept in (self._near, far):
            noted = _executed(kept, self._batch) if kept is not None else None
            if noted is not None:
                self._noted_us = int(noted.split()[1])
                return self._noted_us
        self._noted_us = now_us()
        return self._noted_us

    def look(self, instances: Instances) -> tuple[list[pa.Table], list[bytes]]:
        """After the tuples of the batch: outputs that are due, and the keys whose time to live is over."""
        if not self._periods:
            return [], []
        gone = [key for key in instances.touched if instances.expired(key)]
        if instances.now_us - self._looked_us < min(self._periods) // _LOOKS:
            return [], gone
        self._looked_us = instances.now_us
        tables: list[pa.Table] = []
        if self._near.mark(CAME_TO, self._batch) is not None:
            self._near.bring(self._batch, directory_of)
            self._all_came = True
        for states in self._near.here(self._batch):
            for key, saved in states.items():
                if key not in instances.touched:
                    tables += self._at(key, saved, instances, gone)
        return tables, gone

    def _at(self, key: bytes, saved: bytes, instances: Instances, gone: list[bytes]) -> list[pa.Table]:
        last_us, output_us = times_of(saved)
        ends_us = None if self._lasts is None else last_us + self._lasts
        due_us = None if self._after is None else output_us + self._after
        if ends_us is not None and instances.now_us >= ends_us:
            gone.append(key)
        if due_us is not None and instances.now_us >= due_us and (ends_us is None or due_us < ends_us):
            return instances.wake(key)
        return []

    @staticmethod
    def taken_over(kept: Slots, batch: int) -> dict[bytes, bytes]:
        """The marks that go with states which are taken over from elsewhere."""
        found = {name: kept.mark(name, batch) for name in (b"now_us", b"looked_us")}
        found[b"executed"] = _executed(kept, batch)
        return {name: value for name, value in found.items() if value is not None}

    def marks(self, now: int) -> dict[bytes, bytes]:
        """What the next batch must know, given where time stands at the end of this one."""
        if not self._periods:
            return {}
        found = {b"now_us": b"%d" % now, b"looked_us": b"%d" % self._looked_us}
        if self._all_came:
            found[CAME_TO] = b""
        return found | ({b"executed": b"%d %d" % (self._batch, self._noted_us)} if self._noted_us else {})


def _executed(kept: Slots, batch: int) -> bytes | None:
    """The mark that says when the batch was executed first."""
    noted = kept.mark(b"executed", batch + 1)
    return noted if noted is not None and noted.startswith(b"%d " % batch) else None
