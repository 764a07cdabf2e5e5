"""Whether a batch takes longer the more the stream that it writes to holds already.

Streams are filled with 100, 10,000 and 100,000 units, each in one segment, and then get small batches in turn, so that
whatever the machine does meanwhile strikes all of them alike.

`commit`: the sink's own part, as Spark's commit worker does it: open the stream, file the rows, append, let go.
`batch`: the whole micro-batch of a stateless query in Spark, as a node runs it, from a stream to a stream.

    python -m benches.batch_growth [--commits 60] [--batches 40]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa

import holdfast
from benches.report import finish, table
from holdfast.clock import now_us
from holdfast.model.schema import result_columns
from holdfast.spark.sink import Rows, StreamSink
from holdfast.stream.disk import VolatileDisk
from holdfast.stream.pack import pack
from holdfast.stream.writer import LogWriter

UNITS = (100, 10_000, 100_000)
COLUMNS = "key string, value bigint"
BUCKET_US = 200_000
#: Where the measured batches begin; what fills the streams lies before.
T0_US = 1_700_000_000_000_000
#: Where those of Spark begin, behind them.
T1_US = 1_700_001_000_000_000
ROWS = 20
#: The first batches start workers and warm caches.
WARM = 5

#: By the units that they were filled with.
Streams = dict[int, holdfast.Stream]


def in_turn(n: int) -> tuple[int, ...]:
    """Whoever comes first or last does so one time in three."""
    return UNITS[n % len(UNITS) :] + UNITS[: n % len(UNITS)]


def rows_at(stream: holdfast.Stream, stime_us: int, rows: int) -> pa.RecordBatch:
    columns = [pa.array([stime_us] * rows, pa.timestamp("us", "UTC")), pa.array([f"k{i}" for i in range(rows)]),
               pa.array(range(rows), pa.int64())]  # fmt: skip
    return pa.RecordBatch.from_arrays(columns, schema=stream.definition.stored)


def filled(store: holdfast.StreamStore, name: str, units: int) -> holdfast.Stream:
    """A stream with so many units in one segment, as a query's batches leave them."""
    stream = store.create(name, COLUMNS, bucket=f"{BUCKET_US}us")
    writer = LogWriter.open(stream.folder / "main", stream.definition.id_bytes, now_us=now_us(), disk=VolatileDisk(),
                            segment_bytes=stream.definition.segment_bytes)  # fmt: skip
    for n in range(units):
        end = T0_US - (units - 1 - n) * BUCKET_US
        events = pack(rows_at(stream, end - BUCKET_US, 3), stream.definition)
        writer.commit(events, now_us=now_us(), boundary_us=end, pending=(0, b""))
    assert len(writer.segments) == 1, "the units must fit into one segment"
    writer.release(now_us())
    return stream


def commits_ms(store: holdfast.StreamStore, streams: Streams, count: int) -> dict[int, float]:
    """Median time of the sink's commit, by the units that were there before."""
    taken: dict[int, list[float]] = {units: [] for units in UNITS}
    for n in range(WARM + count):
        for units in in_turn(n):
            began = time.perf_counter()
            commit(streams[units], store.root, n)
            if n >= WARM:
                taken[units].append((time.perf_counter() - began) * 1e3)
    return {units: statistics.median(found) for units, found in taken.items()}


def commit(stream: holdfast.Stream, root: Path, batch: int) -> None:
    """What Spark's worker does: the writer is made anew for each batch."""
    stored = stream.definition.stored
    schema = pa.schema([stored.field(0), *result_columns(stored, "the bench")])
    sink = StreamSink({"root": str(root), "path": stream.name, "boundary": "data"}, schema)
    buffer = pa.BufferOutputStream()
    stime = T0_US + batch * BUCKET_US
    with pa.ipc.new_stream(buffer, stored) as writer:
        writer.write_batch(rows_at(stream, stime, ROWS))
    sink.commit([Rows("query", "run", ROWS, stime, inline=buffer.getvalue().to_pybytes())], batch)


def batches_ms(store: holdfast.StreamStore, streams: Streams, count: int) -> dict[int, float]:
    """Median time of a whole batch of a query in Spark, by the units that were there before."""
    from holdfast.spark import read_stream, session

    spark = session("bench-batch-growth")
    spark.sparkContext.setLogLevel("OFF")
    producers, queries = {}, {}
    for units in UNITS:
        source = store.create(f"in-{units}", COLUMNS, bucket=f"{BUCKET_US}us")
        producers[units] = source.producer(stime="stime", slack="0s")
        frame = read_stream(spark, source.name, root=store.root).select("stime", "key", "value")
        options = {"root": str(store.root), "checkpointLocation": str(store.root / f".checkpoint-{units}")}
        queries[units] = frame.writeStream.format("holdfast").options(**options).start(streams[units].name)
    for n in range(WARM + count):
        stime_us = T1_US + n * BUCKET_US
        when = datetime.fromtimestamp(stime_us / 1e6, UTC)
        for units in in_turn(n):
            producers[units].send_many([{"stime": when, "key": f"k{i}", "value": i} for i in range(ROWS)])
            producers[units].advance(stime_us + BUCKET_US)
            queries[units].processAllAvailable()
    found = {}
    for units, query in queries.items():
        taken = [float(p.durationMs["triggerExecution"]) for p in query.recentProgress if p.numInputRows]
        found[units] = statistics.median(taken[WARM:])
        query.stop()
        producers[units].close()
    spark.stop()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benches.batch_growth", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--commits", type=int, default=60)
    parser.add_argument("--batches", type=int, default=40)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=".", prefix=".bench-") as scratch:
        store = holdfast.open(Path(scratch).absolute())
        streams = {units: filled(store, f"out-{units}", units) for units in UNITS}
        found = {
            "commit": commits_ms(store, streams, given.commits),
            "batch": batches_ms(store, streams, given.batches),
        }
    table("median by units that the stream held before, ms", ["units", *found],
          [[f"{units:,}", *(ms[units] for ms in found.values())] for units in UNITS])  # fmt: skip
    ratio = {name: {n: round(ms[n] / ms[UNITS[0]], 2) for n in UNITS} for name, ms in found.items()}
    finish("batch_growth", ratio_10k=ratio["commit"][10_000], ratio_100k=ratio["commit"][100_000],
           spark_ratio_10k=ratio["batch"][10_000], spark_ratio_100k=ratio["batch"][100_000],
           ms={name: {str(n): round(t, 1) for n, t in ms.items()} for name, ms in found.items()})  # fmt: skip


if __name__ == "__main__":
    main()
