"""Three producers feed three streams; Spark counts connections per source over all of them; then the past is queried.

Everything happens in a temporary folder and ends by itself.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import shutil
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.live import Live
from rich.table import Table

import holdfast
from holdfast.clock import monotonic_us, now_us, pause
from holdfast.model.time import SECOND_US, instant_text
from holdfast.stream.subscriber import Row

MONITORS = ("monitor1", "monitor2", "monitor3")
COLUMNS = "source string, destination string, bytes bigint"
RESULT = "window struct<start:timestamp,end:timestamp>, source string, count bigint, bytes bigint"
WINDOW = "5 seconds"
ROWS_PER_BATCH = 500
BATCH_EVERY_US = 250_000

console = Console()


class Monitor(threading.Thread):
    """A data source: connections as a network monitor reports them, a few sources much busier than the rest."""

    def __init__(self, stream: holdfast.Stream, seed: int, seconds: float) -> None:
        super().__init__(name=stream.name, daemon=True)
        self._stream, self._random, self._seconds = stream, np.random.default_rng(seed), seconds
        self.sent = 0
        self.by_source: Counter[str] = Counter()

    def run(self) -> None:
        until = now_us() + round(self._seconds * SECOND_US)
        with self._stream.producer(id=self.name) as producer:
            while now_us() < until:
                batch = self._batch()
                producer.send_batch(batch)
                self.sent += batch.num_rows
                self.by_source.update(batch.column("source").to_pylist())
                pause(BATCH_EVERY_US)

    def _batch(self) -> pa.RecordBatch:
        hosts = self._random.zipf(1.4, ROWS_PER_BATCH) % 50
        return pa.record_batch({
            "source": [f"10.0.0.{h}" for h in hosts],
            "destination": [f"192.0.2.{h}" for h in self._random.integers(0, 200, ROWS_PER_BATCH)],
            "bytes": self._random.integers(40, 1500, ROWS_PER_BATCH),
        })  # fmt: skip


def live_table(rows: list[Row], sent: int, seconds_left: float) -> Table:
    title = f"connections per source and {WINDOW}, as the windows close   ·   {sent:,} tuples sent"
    table = Table(
        title=title, caption=f"producers run for another {max(0, seconds_left):.0f} s" if seconds_left > 0 else None
    )
    table.add_column("window")
    table.add_column("source")
    table.add_column("connections", justify="right")
    table.add_column("bytes", justify="right")
    for row in rows[-12:]:
        v = row.values
        table.add_row(f"{v['window']['start']:%H:%M:%S} – {v['window']['end']:%H:%M:%S}", v["source"],
                      f"{v['count']:,}", f"{v['bytes']:,}", style="green")  # fmt: skip
    return table


def run(root: Path, seconds: float, stack: contextlib.ExitStack) -> bool:
    from pyspark.sql import functions as F

    from holdfast.spark import read_stream, session

    store = holdfast.open(root)
    streams = [store.create(name, COLUMNS, bucket="500ms") for name in MONITORS]
    results = store.create("busy_sources", RESULT, bucket="1s")

    console.print("starting Spark …")
    began = monotonic_us()
    spark = session("holdfast-demo")
    stack.callback(spark.stop)
    spark.sparkContext.setLogLevel("ERROR")
    console.print(f"Spark {spark.version} is up after {(monotonic_us() - began) / 1e6:.1f} s")
    monitors = [Monitor(stream, seed, seconds) for seed, stream in enumerate(streams)]
    for monitor in monitors:
        monitor.start()

    connections = read_stream(spark, *MONITORS, root=root, boundaries="exact")
    busy = (
        connections.groupBy(F.window("stime", WINDOW), "source")
        .agg(F.count("*").alias("count"), F.sum("bytes").alias("bytes"))
    )  # fmt: skip
    query = (
        busy.writeStream.format("holdfast").option("root", str(root))
        .option("checkpointLocation", str(root / ".checkpoint")).start("busy_sources")
    )  # fmt: skip
    stack.callback(query.stop)
    ended_at = now_us() + round(seconds * SECOND_US)
    rows: list[Row] = []
    with results.subscribe() as subscriber, Live(console=console, refresh_per_second=4) as live:
        for batch_rows in _by_poll(subscriber, query):
            rows += [r for r in batch_rows if r.values["count"] >= 100]
            sent = sum(m.sent for m in monitors)
            live.update(live_table(rows, sent, (ended_at - now_us()) / SECOND_US))
    for monitor in monitors:
        monitor.join()
    return history(spark, root, monitors)


def _by_poll(subscriber: holdfast.Subscriber, query: Any) -> Iterator[list[Row]]:
    """Rows as they become visible, until the results are complete; an error of the query ends it too."""
    while not subscriber.finished:
        yield list(subscriber.rows(timeout="250ms"))
        if query.exception() is not None:
            raise query.exception()


def history(spark: Any, root: Path, monitors: list[Monitor]) -> bool:
    """The same streams as plain DataFrames."""
    from pyspark.sql import functions as F

    def read(name: str, **options: str) -> Any:
        return spark.read.format("holdfast").options(root=str(root), **options).load(name)

    past = read(",".join(MONITORS))
    first, last = past.agg(F.min("stime"), F.max("stime")).first()
    until = first + (last - first) / 2
    console.print(
        f"\n[bold]History[/]: the busiest sources from {first:%H:%M:%S} to {until:%H:%M:%S}, from the same streams"
    )
    window = read(",".join(MONITORS), start=first.astimezone().isoformat(), end=until.astimezone().isoformat())
    top = window.groupBy("source").count().orderBy(F.desc("count"), "source").limit(5).collect()
    table = Table("source", "connections")
    for row in top:
        table.add_row(row["source"], f"{row['count']:,}")
    console.print(table)
    sent: Counter[str] = Counter()
    for monitor in monitors:
        sent.update(monitor.by_source)
    windowed = read("busy_sources").groupBy("source").agg(F.sum("count").alias("count")).collect()
    checks = {
        "every tuple sent is in the streams": past.count() == sum(sent.values()),
        "the windows add up to what was sent": {r["source"]: r["count"] for r in windowed} == dict(sent),
        "the results end where the inputs end": holdfast.open(root).open("busy_sources").reader().closed,
    }
    for claim, holds in checks.items():
        console.print(f"[{'green' if holds else 'red'}]{'✔' if holds else '✘'} {claim}[/]")
    return all(checks.values())


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m holdfast.demo", description=__doc__)
    parser.add_argument("--seconds", type=float, default=20, help="how long the producers run (default 20)")
    parser.add_argument("--keep", type=Path, help="keep the streams in this folder instead of a temporary one")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    root = arguments.keep or Path(tempfile.mkdtemp(prefix="holdfast-demo-"))
    console.print(f"streams live in {root} from {instant_text(now_us())[:19]} UTC")
    with contextlib.ExitStack() as stack:
        if arguments.keep is None:
            stack.callback(shutil.rmtree, root, ignore_errors=True)
        good = run(root, arguments.seconds, stack)
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
