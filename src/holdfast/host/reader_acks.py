"""How far the replicas that read a stream have come, noted beside it: retention waits for them (D14, 003 §4.9.3).

Rules:
1. Every replica of the deployment that reads the stream counts, up or not: the note is what the slowest has
   acknowledged. It exists from the beginning, so that nobody's word makes up for one who never spoke.
2. The note never goes back, also not after a restart, when the replicas have not spoken again yet.
3. Where retention is by acknowledgement, what all readers have is removed; other policies merely wait for them (L8).
4. Removing takes as long as there are files: so it happens in a thread, once for all who asked meanwhile.
"""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from holdfast.clock import monotonic_us, now_us
from holdfast.model.time import BEGINNING_US, SECOND_US
from holdfast.stream.acks import REPLICAS, acknowledge
from holdfast.stream.disk import Disk
from holdfast.stream.store import Stream

#: A note is durable and so costs a sync; what it frees are whole segments, for which a second is soon enough.
_EVERY_US = SECOND_US

log = logging.getLogger(__name__)

#: It is made when it is first needed.
_thread = ThreadPoolExecutor(1, "retention")
_mutex = threading.Lock()
#: Streams that wait for their turn or have it, and whether somebody asked since that began.
_asked: dict[Path, bool] = {}


def retain_soon(stream: Stream) -> None:
    """Rule 4. What goes wrong is said; whoever acknowledges next asks again."""
    with _mutex:
        waits = stream.folder in _asked
        _asked[stream.folder] = waits
    if not waits:
        _thread.submit(_retain, stream)


def _retain(stream: Stream) -> None:
    again = True
    while again:
        with _mutex:
            _asked[stream.folder] = False
        try:
            stream.retain()
        except Exception as error:
            log.warning("stream %s: what its readers have acknowledged stays for now: %s", stream.name, error)
        with _mutex:
            again = _asked[stream.folder]
            if not again:
                del _asked[stream.folder]


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
                retain_soon(self._stream)
