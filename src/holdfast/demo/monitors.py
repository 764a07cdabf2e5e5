"""Three network monitors: the data sources of the demonstration."""

from __future__ import annotations

import threading

import numpy as np
import pyarrow as pa

import holdfast
from holdfast.clock import pause

MONITORS = ("monitor1", "monitor2", "monitor3")
COLUMNS = "source string, destination string, bytes bigint"
_ROWS = 40
_EVERY_US = 100_000


class Monitor(threading.Thread):
    """Connections as a network monitor reports them, a few sources much busier than the rest, until `end`."""

    def __init__(self, stream: holdfast.Stream, seed: int) -> None:
        super().__init__(name=stream.name, daemon=True)
        self._stream, self._random, self._end = stream, np.random.default_rng(seed), threading.Event()
        self.sent = 0

    def run(self) -> None:
        with self._stream.producer(id=self.name) as producer:
            while not self._end.is_set():
                producer.send_batch(self._batch())
                self.sent += _ROWS
                pause(_EVERY_US)

    def _batch(self) -> pa.RecordBatch:
        hosts = self._random.zipf(1.4, _ROWS) % 12
        return pa.record_batch({
            "source": [f"10.0.0.{h}" for h in hosts],
            "destination": [f"192.0.2.{h}" for h in self._random.integers(0, 200, _ROWS)],
            "bytes": self._random.integers(40, 1500, _ROWS),
        })  # fmt: skip

    def end(self) -> None:
        """Send no more and end the stream."""
        self._end.set()
        self.join()
