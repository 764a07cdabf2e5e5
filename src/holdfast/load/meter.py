"""What each task uses, measured from what its query says of its batches (003 §7.2.2).

Rules:
1. CPU is the share of time that batches take (`busy`), or rows times what a row costs (`rows`), in cores; bandwidth is
   what the output grows by, in MB/s; memory is what the engine says its state holds, in GiB.
2. CPU is counted per second of input, not of the clock: a task that has just moved makes up for lost time, and would
   else look like an overload, and be sent back.
3. Averages are exponential: a spike shorter than the time constant moves nothing.
4. What has not been watched for long enough is not known yet: it counts with what its bargain was about, or with what
   it used when it last ran here.
5. What runs here is what the disk says: own nodes without a note that they are away, and guests with a folder.
6. A host that starts tells nothing before its own nodes were measured: one that seems idle would take in too much.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from holdfast.clock import monotonic_us
from holdfast.engine import Query, Reading
from holdfast.load.contract_file import Terms
from holdfast.load.remote_task import read_note
from holdfast.load.tasks import HeldTask, OwnTask
from holdfast.model.errors import HoldfastError
from holdfast.model.time import SECOND_US
from holdfast.protocol.load.leases import Lease
from holdfast.protocol.load.usage import NOTHING, Task, Usage, together
from holdfast.stream.reader import LogReader

log = logging.getLogger(__name__)

#: Shorter follows noise, longer comes too late for a spike. The seeds look every ten seconds at larger loads.
SMOOTHING_S = 4.0
#: Before this the first batches, which compile, would be taken for the rule.
_KNOWN_AFTER_US = 4 * SECOND_US
#: A query without a batch for so long is not between two batches: it does nothing.
_QUIET_S = 20.0
#: A node that has no data at all is not waited for any longer (rule 6).
_FIRST_US = 45 * SECOND_US


@dataclass(slots=True)
class _Average:
    begun_us: int
    at_us: int
    batch_id: int
    out_bytes: int
    busy: float = 0.0
    rows: float = 0.0
    bytes: float = 0.0
    memory: float = 0.0


class Meter:
    """Averages of all tasks of one host."""

    def __init__(self, measure: Literal["busy", "rows"], us_per_row: float) -> None:
        self._measure, self._us_per_row = measure, us_per_row
        self._tasks: dict[str, _Average] = {}

    def take(self, task_id: str, reading: Reading, out_bytes: int, now_us: int) -> None:
        """One more look; `out_bytes` counts what the output has grown by since it was first looked at."""
        known = self._tasks.get(task_id)
        if known is None or reading.batch_id < known.batch_id:
            self._tasks[task_id] = _Average(now_us, now_us, reading.batch_id, out_bytes)
            return
        dt = (now_us - known.at_us) / SECOND_US
        # Only the last batch is told; those between two looks are taken to be like it.
        batches = reading.batch_id - known.batch_id
        if dt <= 0 or (batches == 0 and dt < _QUIET_S):
            return
        share = 1.0 - math.exp(-dt / SMOOTHING_S)
        if reading.span_us != 0 or batches == 0:
            a_second = batches / dt if reading.span_us is None else bool(batches) * SECOND_US / reading.span_us
            known.busy += share * (reading.busy_ms / 1000 * a_second - known.busy)
            known.rows += share * (reading.rows * a_second - known.rows)
        known.bytes += share * (max(0, out_bytes - known.out_bytes) / dt - known.bytes)
        known.memory = reading.state_bytes / (1 << 30)
        known.at_us, known.batch_id, known.out_bytes = now_us, reading.batch_id, out_bytes

    def forget(self, task_id: str) -> None:
        """It does not run here any more."""
        self._tasks.pop(task_id, None)

    def rows_per_s(self, task_id: str) -> float:
        known = self._tasks.get(task_id)
        return 0.0 if known is None else known.rows

    def usage(self, task_id: str, now_us: int) -> Usage | None:
        """Rule 4."""
        known = self._tasks.get(task_id)
        if known is None or now_us - known.begun_us < _KNOWN_AFTER_US:
            return None
        cpu = known.busy if self._measure == "busy" else known.rows * self._us_per_row / SECOND_US
        return Usage(cpu, known.bytes / 1e6, known.memory)


class Census:
    """`lease_of` says under which lease a task is here or away."""

    def __init__(self, tasks: Mapping[str, HeldTask], terms: Terms, lease_of: Callable[[str], Lease | None]) -> None:
        self._tasks, self._terms, self._lease_of = tasks, terms, lease_of
        self.meter = Meter(terms.measure, terms.us_per_row)
        self._known: dict[str, Usage] = {}
        self._outputs: dict[str, tuple[LogReader, int, int]] = {}
        self._begun_us = monotonic_us()

    async def look(self) -> bool:
        """Measure everything once; False as long as too little is known (rule 6)."""
        loop = asyncio.get_running_loop()
        for task_id, held in list(self._tasks.items()):
            controller = held.controller
            query = None if controller is None else controller.query
            if query is None:
                continue
            reading = await loop.run_in_executor(None, _quietly, query)
            if reading is not None and task_id in self._tasks:
                with contextlib.suppress(HoldfastError, OSError):  # Whoever reads or writes it will say so.
                    self.meter.take(task_id, reading, self._out_bytes(task_id, held), monotonic_us())
        own = [task for task in self.running() if isinstance(self._tasks[task.task_id], OwnTask)]
        known = all(task.task_id in self._known for task in own)
        return known or monotonic_us() - self._begun_us >= _FIRST_US

    def _out_bytes(self, task_id: str, held: HeldTask) -> int:
        """What the output has grown by since we look at it."""
        if task_id not in self._outputs:
            reader = held.output.reader()
            self._outputs[task_id] = (reader, reader.closed_until_us, 0)
        reader, since_us, total = self._outputs[task_id]
        reader.refresh()
        upto_us = reader.closed_until_us
        if upto_us > since_us:
            total += int(reader.entries(since_us, upto_us)["length"].sum())
            self._outputs[task_id] = (reader, upto_us, total)
        return total

    def forget(self, task_id: str) -> None:
        """It does not run here any more."""
        self.meter.forget(task_id)
        if task_id in self._outputs:
            self._outputs.pop(task_id)[0].close()

    def running(self) -> tuple[Task, ...]:
        """Rule 5, with what each uses."""
        return tuple(
            Task(task_id, self.usage(task_id), held.definition, self._terms.migration)
            for task_id, held in self._tasks.items()
            if read_note(held.home) is None
        )

    def movable(self) -> tuple[str, ...]:
        """Those of them that could go."""
        found = [self._tasks[task.task_id] for task in self.running()]
        return tuple(held.task_id for held in found
                     if held.bound_by is None and (c := held.controller) is not None and c.movable)  # fmt: skip

    def usage(self, task_id: str) -> Usage:
        """Rule 4."""
        measured = self.meter.usage(task_id, monotonic_us())
        if measured is not None:
            self._known[task_id] = measured
            return measured
        lease = self._lease_of(task_id)
        return self._known.get(task_id, NOTHING) if lease is None else lease.task.usage

    @property
    def load(self) -> Usage:
        """All that runs here."""
        return together(task.usage for task in self.running())


def _quietly(query: Query) -> Reading | None:
    """A query that is just being stopped has no progress."""
    try:
        return query.reading()
    except Exception as error:
        log.debug("no progress: %s", error)
        return None
