"""When a stream is made durable: `persist` of its definition (000 §3.1).

`always`: before `send` returns. `on_demand`: while a known reader is away or behind, and until it has caught up; the
rest of the time its tuples stay in memory. `never`: not until its producer lets go; readers that fall behind lose.

Known are the subscribers with a name. What they have not acknowledged is kept, in memory or in the log: which of the
two changes nothing for them. A stream that nobody is known to read is persisted, for whoever comes.
"""

from __future__ import annotations

from pathlib import Path

from holdfast.model.time import closed_until
from holdfast.stream.acks import read_acks
from holdfast.stream.definition import Definition
from holdfast.stream.presence import is_present
from holdfast.stream.writer import LogWriter, Persistence

#: How often it is looked whether the readers are there. What they have not acknowledged is kept whatever happens to
#: them, so being late costs nothing but what a machine loses that stops within the same moment.
_LOOK_US = 50_000


class OnDemand:
    """In memory while every known reader is there and no further behind than memory holds."""

    def __init__(self, stream_folder: Path, definition: Definition) -> None:
        self.bucket_us, self._memory_bytes = definition.bucket_us, definition.memory_bytes
        self._folder = stream_folder
        self._looked_us: int | None = None
        self._memory = False
        #: While it is persisted and all readers are there: what was complete when they were first seen so.
        self._goal_us: int | None = None

    def in_memory(self, writer: LogWriter, now_us: int) -> bool:
        if self._looked_us is None or abs(now_us - self._looked_us) >= _LOOK_US:
            self._looked_us, self._memory = now_us, self._look(writer, now_us)
        return self._memory

    def _look(self, writer: LogWriter, now_us: int) -> bool:
        acks, goal_us = read_acks(self._folder), self._goal_us
        self._goal_us = None
        if not acks or not all(is_present(self._folder, name, ack, now_us) for name, ack in acks.items()):
            return False
        until_us = min(ack.until_us for ack in acks.values())
        behind = writer.bytes_since(until_us)
        if self._memory:
            return behind <= self._memory_bytes
        # Caught up is who has all that was there when he came, and is well within memory: one at its edge would make
        # the stream change with every look.
        self._goal_us = closed_until(writer.state.boundary_us, self.bucket_us) if goal_us is None else goal_us
        return until_us >= self._goal_us and behind <= self._memory_bytes // 2


class Never:
    """In memory as long as its producer has it; retention drops what is too much."""

    def __init__(self, definition: Definition) -> None:
        self.bucket_us = definition.bucket_us

    def in_memory(self, writer: LogWriter, now_us: int) -> bool:
        return True


def persistence_of(stream_folder: Path, definition: Definition) -> Persistence | None:
    """None: every unit is made durable."""
    if definition.persist == "always":
        return None
    return OnDemand(stream_folder, definition) if definition.persist == "on_demand" else Never(definition)
