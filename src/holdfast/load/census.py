"""What runs on a host and what each task uses, looked at once a second.

Rules:
1. What runs here is what the disk says: own nodes without a note that they are away, and guests with a folder.
2. What was not watched long enough counts with what its bargain was about, or with what it used when it last ran here.
3. A host that starts tells nothing before its own nodes were measured: one that seems idle would take in too much.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping

from holdfast.clock import monotonic_us
from holdfast.engine import Query, Reading
from holdfast.load.contract_file import Terms
from holdfast.load.meter import Meter
from holdfast.load.remote_task import read_note
from holdfast.load.tasks import HeldTask, OwnTask
from holdfast.model.errors import HoldfastError
from holdfast.model.time import SECOND_US
from holdfast.protocol.load.leases import Lease
from holdfast.protocol.load.usage import NOTHING, Task, Usage, together
from holdfast.stream.reader import LogReader

log = logging.getLogger(__name__)

#: A node that has no data at all is not waited for any longer (rule 3).
_FIRST_US = 45 * SECOND_US


class Census:
    """`lease_of` says under which lease a task is here or away."""

    def __init__(self, tasks: Mapping[str, HeldTask], terms: Terms, lease_of: Callable[[str], Lease | None]) -> None:
        self._tasks, self._terms, self._lease_of = tasks, terms, lease_of
        self.meter = Meter(terms.measure, terms.us_per_row)
        self._known: dict[str, Usage] = {}
        self._outputs: dict[str, tuple[LogReader, int, int]] = {}
        self._begun_us = monotonic_us()

    async def look(self) -> bool:
        """Measure everything once; False as long as too little is known (rule 3)."""
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
        """Rule 1, with what each uses."""
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
        """Rule 2."""
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
