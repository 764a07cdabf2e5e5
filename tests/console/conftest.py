"""A scripted failure, batch by batch, as a subscriber would yield it: three sources, one of them cut.

The script knows nothing of the code under test but `take` and `mark`; what must come out is counted here by hand.
"""

from __future__ import annotations

from functools import cache

import pyarrow as pa
import pytest

from holdfast.console.recording import Recording
from holdfast.model.schema import parse_schema, reader_schema
from holdfast.model.tuples import TupleType

SECOND = 1_000_000
BUCKET = 250_000
X = 3 * SECOND
#: Every source sends so many tuples per bucket.
RATE = 4
#: From the end of a bucket to its arrival at the client.
TRANSIT = 100_000
START = 1_700_000_000 * SECOND
SCHEMA = reader_schema(parse_schema("source int, n bigint"))


@cache
def tuples(kind: TupleType, bucket: int, sources: tuple[int, ...] = (1, 2, 3)) -> pa.RecordBatch:
    """What a bucket holds from these sources."""
    rows = [
        {"tuple_type": int(kind), "tuple_id": bucket * 3 * RATE + n * 3 + source, "source": source, "n": n,
         "stime": START + bucket * BUCKET + n * BUCKET // RATE}
        for n in range(RATE) for source in sources
    ]  # fmt: skip
    return pa.RecordBatch.from_pylist(rows, SCHEMA)


def control(kind: TupleType) -> pa.RecordBatch:
    row = {"tuple_type": int(kind), "tuple_id": 0, "stime": None, "source": None, "n": None}
    return pa.RecordBatch.from_pylist([row], SCHEMA)


class Script:
    """Plays a run into a recording, one bucket of stime after the other."""

    def __init__(self, recording: Recording | None = None) -> None:
        self.recording = recording or Recording(bucket_us=BUCKET)
        self.next = 0
        self.stable_next = 0

    @property
    def now(self) -> int:
        """When the bucket before `next` arrives normally."""
        return START + self.next * BUCKET + TRANSIT

    def normal(self, seconds: float) -> Script:
        """Buckets as they are complete; what a short failure held back comes first."""
        for _ in range(int(seconds * SECOND) // BUCKET):
            self.next += 1
            for bucket in range(self.stable_next, self.next):
                self.recording.take(tuples(TupleType.INSERTION, bucket), self.now)
            self.stable_next = self.next
        return self

    def fail(self, seconds: float, heal: bool = True, link: str = "monitor3") -> Script:
        """Cut one source: nothing for X, then two thirds tentatively; what waited comes at once."""
        self.recording.mark(self.now, f"cut {link}")
        began, end = self.next, self.next + int(seconds * SECOND) // BUCKET
        waiting = [*range(began, min(end, began + (X - SECOND // 2) // BUCKET))]
        self.next += len(waiting)
        if self.next < end:
            for bucket in waiting:
                self.recording.take(tuples(TupleType.TENTATIVE, bucket, (1, 2)), self.now)
        while self.next < end:
            self.next += 1
            self.recording.take(tuples(TupleType.TENTATIVE, self.next - 1, (1, 2)), self.now)
        if heal:
            self.recording.mark(self.now, f"healed {link}")
        return self

    def correct(self, seconds: float = 2.0) -> Script:
        """New tentative tuples go on while the corrections are made; then UNDO, corrections, REC_DONE."""
        for _ in range(int(seconds * SECOND) // BUCKET):
            self.next += 1
            self.recording.take(tuples(TupleType.TENTATIVE, self.next - 1), self.now)
        self.recording.take(control(TupleType.UNDO), self.now)
        for bucket in range(self.stable_next, self.next):
            self.recording.take(tuples(TupleType.INSERTION, bucket), self.now + 50_000)
        self.stable_next = self.next
        self.recording.take(control(TupleType.REC_DONE), self.now + 60_000)
        return self


def reference(buckets: int) -> pa.Table:
    """What the same input gives without a failure."""
    return pa.Table.from_batches([tuples(TupleType.INSERTION, bucket) for bucket in range(buckets)], SCHEMA)


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def figure_5_4() -> Script:
    """15 s as usual, one of three links cut for 20 s, healed, corrected, 10 s as usual."""
    return Script().normal(15).fail(20).correct(2).normal(10)
