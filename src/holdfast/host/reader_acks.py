"""How far the replicas that read a stream have come, noted beside it: retention waits for them (D14, 003 §4.9.3).

Rules:
1. Every replica of the deployment that reads the stream counts, up or not: the note is what the slowest has
   acknowledged. It exists from the beginning, so that nobody's word makes up for one who never spoke.
2. The note never goes back, also not after a restart, when the replicas have not spoken again yet.
3. Where retention is by acknowledgement, what all readers have is removed; other policies merely wait for them (L8).
"""

from __future__ import annotations

from holdfast.clock import monotonic_us, now_us
from holdfast.model.time import BEGINNING_US, SECOND_US
from holdfast.stream.acks import REPLICAS, acknowledge
from holdfast.stream.disk import Disk
from holdfast.stream.store import Stream

#: A note is durable and so costs a sync; what it frees are whole segments, for which a second is soon enough.
_EVERY_US = SECOND_US


class ReaderAcks:
    """The note of one stream. Make it only where some node reads the stream."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._upto_us = self._noted_us = BEGINNING_US
        self._due_us = 0
        acknowledge(stream.folder, REPLICAS, BEGINNING_US, now_us(), Disk())

    def note(self, upto_us: int | None = None) -> None:
        """All readers have acknowledged everything before `upto_us`, if that is news; durable within a second or so."""
        if upto_us is not None:
            self._upto_us = max(self._upto_us, upto_us)
        now = monotonic_us()
        if self._upto_us > self._noted_us and now >= self._due_us:
            self._due_us, self._noted_us = now + _EVERY_US, self._upto_us
            acknowledge(self._stream.folder, REPLICAS, self._upto_us, now_us(), Disk())
            if self._stream.definition.retention.acknowledged:
                self._stream.retain()
