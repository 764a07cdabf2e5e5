"""Rows per second from a stream into Spark, beside the limit of Spark's own Python data source API.

The limit is a source that yields the very same Arrow batches (header columns included) from memory, split into the
same tasks: what it does not do is read, check and decode. Both feed the same query (sum of two columns, noop sink)
through `readStream` and availableNow. They take turns; the median of the ratios counts. Then: how long after `send`
returned a tuple is visible to a query.

    python -m benches.spark_read [--rows 4000000] [--rounds 5]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import holdfast
from benches.memory_source import COLUMNS, ROWS_PER_EVENT, Memory, example
from benches.report import finish, table
from holdfast.clock import now_us
from holdfast.spark import session
from holdfast.spark.source import TASK_BYTES


def seconds_of(frame: DataFrame, checkpoint: Path) -> float:
    """Time of the one data batch, as Spark itself reports it."""
    summed = frame.select((F.col("bytes") + F.col("tuple_id")).alias("x")).agg(F.sum("x"))
    query = summed.writeStream.outputMode("complete").format("noop").option("checkpointLocation", str(checkpoint))
    running = query.trigger(availableNow=True).start()
    running.awaitTermination()
    return sum(p.durationMs["addBatch"] for p in running.recentProgress if p.numInputRows) / 1000


def latency(spark: SparkSession, root: Path, samples: int) -> list[float]:
    """Milliseconds from the return of `send` until foreachBatch has the row; bucket and trigger included."""
    stream = holdfast.open(root).create("live", "sent bigint", bucket="50ms")
    seen: list[tuple[int, int]] = []

    def keep(batch: DataFrame, _: int) -> None:
        seen.extend((r["sent"], now_us()) for r in batch.select("sent").collect())

    with stream.producer() as producer:
        frame = spark.readStream.format("holdfast").options(root=str(root)).load("live")
        query = frame.writeStream.foreachBatch(keep).option("checkpointLocation", str(root / ".live")).start()
        producer.send((now_us(),))
        while not seen:
            time.sleep(0.01)
        for n in range(samples):
            producer.send((now_us(),))
            while len(seen) < n + 2:
                time.sleep(0.001)
        query.stop()
    return [(got - sent) / 1000 for sent, got in seen[1:]]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benches.spark_read", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    spark = session("bench-spark-read")
    spark.sparkContext.setLogLevel("OFF")
    spark.dataSource.register(Memory)
    events = -(-given.rows // ROWS_PER_EVENT)
    rows = events * ROWS_PER_EVENT
    with tempfile.TemporaryDirectory(dir=".", prefix=".bench-") as scratch:
        root = Path(scratch).absolute()
        stream = holdfast.open(root).create("bench", COLUMNS, bucket="1s")
        with stream.producer() as producer:
            for n in range(events):
                producer.send_batch(example(ROWS_PER_EVENT, n % 8))
        tasks = min(32, -(-stream.reader().size_bytes // TASK_BYTES))
        ours = {"root": str(root), "maxBytesPerBatch": str(1 << 40)}
        limit = {"root": str(root), "events": str(events), "tasks": str(tasks)}
        found: dict[str, list[float]] = {"Holdfast": [], "from memory": []}
        for n in range(given.rounds + 1):
            for name, source, options in (("from memory", "memory_limit", limit), ("Holdfast", "holdfast", ours)):
                reader = spark.readStream.format(source).options(**options)
                took = seconds_of(
                    reader.load("bench") if source == "holdfast" else reader.load(), root / f".{source}{n}"
                )
                if n:  # The first round warms the JVM and the page cache.
                    found[name].append(rows / took)
        delays = latency(spark, root, 30)
    spark.stop()
    median = {name: statistics.median(values) for name, values in found.items()}
    table(f"{rows:,} rows into Spark, {tasks} tasks", ["", "rows/s"], [[n, round(v)] for n, v in median.items()])
    table("append to visible, ms (bucket 50 ms)", ["p50", "p95"],
          [[statistics.median(delays), sorted(delays)[round(0.95 * (len(delays) - 1))]]])  # fmt: skip
    finish(
        "spark_read",
        ratio=round(statistics.median(a / b for a, b in zip(found["Holdfast"], found["from memory"], strict=True)), 3),
        rows_per_s=round(median["Holdfast"]),
        rows_per_s_limit=round(median["from memory"]),
        visible_ms_p50=round(statistics.median(delays)),
    )


if __name__ == "__main__":
    main()
