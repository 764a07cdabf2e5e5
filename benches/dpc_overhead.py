"""What it costs to be able to survive a failure, while there is none: a Spark query under Holdfast beside itself alone.

The query is a windowed count over three streams, written to a stream. "Plain" is `read_stream` of the three into the
query and the format "holdfast" behind it; "node" is the same function as a node of an App in the same process: with
its inputs watched, buckets decided on by the protocol, and, since X is a second, a fork that is kept ready. Same
session, same (default) trigger; they take turns, so that the machine's moods weigh on both.

- Throughput: a backlog that lies ready is read to its end. Rows per second from the first trigger that reads until
  the output is complete. With the start counted in, it is `throughput_ratio_with_start`: the query's, and the node's,
  which runs an empty batch first, because a fork needs a committed one. Java as it comes.
- Latency: live producers at a modest rate; from the end of a window (its result's stime) until a subscriber has the
  result. Java with `-XX:TieredStopAtLevel=1 -XX:+UseSerialGC`, because a short run is over before the second compiler
  has earned what it costs.

With `--metrics` a third takes its turns, "metered": the node with its numbers served and asked for every five seconds
(Prometheus asks every fifteen). `metrics_…` are its figures over the node's: rows per second, latency, and processor
time of all processes together, which others on the machine disturb least.

    python -m benches.dpc_overhead [--rows 8000000] [--rounds 3] [--seconds 20] [--metrics]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import holdfast
from benches.bystanders import Bystanders, our_seconds
from benches.report import console, finish, table
from holdfast.clock import now_us
from holdfast.demo.failure import JAVA_OPTIONS
from holdfast.demo.monitors import COLUMNS, MONITORS, Monitor
from holdfast.spark import read_stream
from holdfast.spark.engine import node_session

ROWS_PER_EVENT = 16_384
#: stime of the backlog: so many seconds in buckets of one second.
BACKLOG_S = 100
BACKLOG_FROM_US = 1_700_000_000_000_000
LIVE_BUCKET, LIVE_WINDOW = "100ms", "500 milliseconds"
#: The first batches of a query are slower than the rest.
WARM_UP_S = 6.0
NAMES = ("plain", "node")
METERED = "metered"
_SCRAPE_S = 5.0
#: So short that the node keeps a fork ready: the dearest there is.
MAX_DELAY = "1s"


def counted(window: str) -> Callable[[DataFrame], DataFrame]:
    def count(connections: DataFrame) -> DataFrame:
        return connections.groupBy(F.window("stime", window), "source").agg(
            F.count("*").alias("connections"), F.sum("bytes").alias("bytes")
        )

    return count


@contextmanager
def running(spark: SparkSession, name: str, root: Path, window: str, bucket: str) -> Iterator[Callable[[], object]]:
    """The query in one of its two forms, at work; its results are the stream `name`. Yields what raises if it died."""
    if not name.startswith("plain"):
        app = holdfast.App("bench", root=root)
        app.node(inputs=MONITORS, name=name, max_delay=MAX_DELAY)(counted(window))
        metered = name.startswith(METERED)
        with (
            app.start(spark=spark, metrics_port=0 if metered else None) as started,
            scraped(started.metrics_port) if metered else nullcontext(),
        ):
            yield started.status
        return
    results = counted(window)(read_stream(spark, *MONITORS, root=root, boundaries="exact"))
    writer = results.writeStream.format("holdfast").option("root", str(root)).option("create", "true")
    query = writer.option("bucket", bucket).option("checkpointLocation", str(root / f".{name}")).start(name)

    def check() -> None:
        if (error := query.exception()) is not None:
            raise error

    try:
        yield check
    finally:
        query.stop()


@contextmanager
def scraped(port: int | None) -> Iterator[None]:
    """Somebody asks for the numbers, as Prometheus would; each time they must be there."""
    over, troubles = threading.Event(), list[Exception]()

    def scrape() -> None:
        try:
            while not over.is_set():
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
                    assert b"holdfast_replica_state" in answer.read()
                over.wait(_SCRAPE_S)
        except Exception as error:
            troubles.append(error)

    thread = threading.Thread(target=scrape, name="scrape")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    if troubles:
        raise troubles[0]


def awaited(root: Path, name: str, check: Callable[[], object]) -> holdfast.Stream:
    """The output, once it is there."""
    while name not in holdfast.open(root).names():
        check()
        time.sleep(0.005)
    return holdfast.open(root).open(name)


# Throughput -----------------------------------------------------------------------------------------------------------


def prepare(root: Path, rows: int) -> int:
    """Three streams that have ended; how many rows they hold together."""
    events = max(1, rows // (3 * ROWS_PER_EVENT))
    width_us = BACKLOG_S * 1_000_000 // events
    for seed, monitor in enumerate(MONITORS):
        random = np.random.default_rng(seed)
        batches = [_connections(random) for _ in range(8)]
        stream = holdfast.open(root).create(monitor, COLUMNS, bucket="1s")
        with stream.producer(stime="stime") as producer:
            for n in range(events):
                first = BACKLOG_FROM_US + n * width_us
                stimes = np.linspace(first, first + width_us, ROWS_PER_EVENT, endpoint=False).astype(np.int64)
                batch = batches[n % len(batches)]
                column = pa.array(stimes, pa.timestamp("us", "UTC"))
                producer.send_batch(batch.add_column(0, "stime", column))
    return 3 * events * ROWS_PER_EVENT


def _connections(random: np.random.Generator) -> pa.RecordBatch:
    sources, destinations = random.integers(0, 1000, ROWS_PER_EVENT), random.integers(0, 256, ROWS_PER_EVENT)
    return pa.record_batch({
        "source": [f"10.0.{h // 256}.{h % 256}" for h in sources],
        "destination": [f"192.0.2.{h}" for h in destinations],
        "bytes": random.integers(40, 1500, ROWS_PER_EVENT),
    })  # fmt: skip


def catch_up(spark: SparkSession, name: str, root: Path) -> dict[str, Any]:
    """Seconds from the first trigger that reads, and from the start, until the output is complete."""
    began_us = now_us()
    with running(spark, name, root, "10 seconds", "1s") as check:
        reader = awaited(root, name, check).reader()
        while not reader.closed:
            check()
            time.sleep(0.02)
            reader.refresh()
        done_us = now_us()
        (query,) = spark.streams.active
        while not (read := [p for p in query.recentProgress if p.numInputRows]):
            time.sleep(0.01)
        first = datetime.fromisoformat(read[0].timestamp)
        batches = [p.durationMs["triggerExecution"] for p in read]
    reader.close()
    return {"s": done_us / 1e6 - first.timestamp(), "s_with_start": (done_us - began_us) / 1e6, "batches_ms": batches}


def throughput(scratch: Path, names: Sequence[str], rows: int, rounds: int) -> dict[str, Any]:
    spark = node_session("bench-dpc-throughput")
    spark.sparkContext.setLogLevel("OFF")
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    count = prepare(scratch, rows)
    for n in range(rounds + 1):
        for name in names if n % 2 else names[::-1]:
            before_s = our_seconds()
            took = catch_up(spark, f"{name}{n}", scratch)
            took["processor_s"] = our_seconds() - before_s
            if n:  # The first round warms the JVM and the page cache.
                found[name].append(took)
    spark.stop()
    return {"rows": count, "found": found}


# Latency --------------------------------------------------------------------------------------------------------------


def listen(spark: SparkSession, name: str, root: Path, seconds: float) -> list[float]:
    """Milliseconds from the end of each window until a subscriber had its results."""
    store = holdfast.open(root)
    monitors = [Monitor(store.create(m, COLUMNS, bucket=LIVE_BUCKET), seed) for seed, m in enumerate(MONITORS)]
    for monitor in monitors:
        monitor.start()
    found: list[float] = []
    try:
        with (
            running(spark, name, root, LIVE_WINDOW, LIVE_BUCKET) as check,
            awaited(root, name, check).subscribe() as subscriber,
        ):
            begin = time.monotonic() + WARM_UP_S
            while time.monotonic() < begin + seconds:
                for batch in subscriber.poll():
                    stimes = set(batch.column("stime").cast(pa.int64()).to_pylist())
                    if time.monotonic() >= begin:
                        found += [(now_us() - stime) / 1000 for stime in stimes]
                time.sleep(0.002)
    finally:
        for monitor in monitors:
            monitor.end()
    return found


def latency(scratch: Path, names: Sequence[str], rounds: int, seconds: float) -> dict[str, Any]:
    spark = node_session("bench-dpc-latency", spark_driver_extraJavaOptions=JAVA_OPTIONS)
    spark.sparkContext.setLogLevel("OFF")
    found: dict[str, list[list[float]]] = {name: [] for name in names}
    processor_s: dict[str, list[float]] = {name: [] for name in names}
    for n in range(rounds + 1):
        for name in names if n % 2 else names[::-1]:
            before_s = our_seconds()
            waits = listen(spark, name, scratch / f"{name}{n}", seconds if n else 2.0)
            if n:
                found[name].append(waits)
                processor_s[name].append(our_seconds() - before_s)
    spark.stop()
    return {"found": found, "processor_s": processor_s}


# Both -----------------------------------------------------------------------------------------------------------------


def measured(part: str, *options: str) -> dict[str, Any]:
    """One part in a process of its own: its JVM has options of its own."""
    with tempfile.TemporaryDirectory(dir=".", prefix=".bench-") as scratch:
        command = [sys.executable, "-m", "benches.dpc_overhead", "--part", part, "--scratch", scratch, *options]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=os.environ)
        found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
        return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benches.dpc_overhead", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--rows", type=int, default=8_000_000, help="of the backlog")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20, help="how long latency is measured, each time")
    parser.add_argument("--metrics", action="store_true", help="and what it costs to be asked for numbers meanwhile")
    parser.add_argument("--part", choices=["throughput", "latency"], help=argparse.SUPPRESS)
    parser.add_argument("--scratch", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    names = (*NAMES, METERED) if given.metrics else NAMES
    if given.part is not None:
        scratch = given.scratch.absolute()
        found = (throughput(scratch, names, given.rows, given.rounds) if given.part == "throughput"
                 else latency(scratch, names, given.rounds, given.seconds))  # fmt: skip
        print(json.dumps(found), flush=True)
        return
    rounds = ["--rounds", str(given.rounds), *(["--metrics"] if given.metrics else [])]
    bystanders = Bystanders()
    caught = measured("throughput", "--rows", str(given.rows), *rounds)
    heard = measured("latency", "--seconds", str(given.seconds), *rounds)
    report(names, caught, heard, bystanders.share())


def report(names: Sequence[str], caught: dict[str, Any], heard: dict[str, Any], others: float) -> None:
    rate = {kind: {n: [caught["rows"] / one[kind] for one in caught["found"][n]] for n in names}
            for kind in ("s", "s_with_start")}  # fmt: skip
    waits = {n: [statistics.median(one) for one in heard["found"][n]] for n in names}
    every = {n: sorted(w for one in heard["found"][n] for w in one) for n in names}
    processor = {n: [one["processor_s"] + s for one, s in
                     zip(caught["found"][n], heard["processor_s"][n], strict=True)] for n in names}  # fmt: skip
    table(f"{caught['rows']:,} rows of backlog", ["", "rows/s", "rows/s with the start"],
          [[n, *(round(statistics.median(rate[k][n])) for k in rate)] for n in names])  # fmt: skip
    table("window end to subscriber, ms", ["", "median", "p95", "samples"],
          [[n, statistics.median(every[n]), every[n][round(0.95 * (len(every[n]) - 1))], len(every[n])]
           for n in names])  # fmt: skip
    console.print(f"throughput: Java as it comes; latency: {JAVA_OPTIONS}")
    finish(
        "dpc_overhead",
        throughput_ratio=_ratio(rate["s"]),
        latency_ratio=_ratio(waits),
        throughput_ratio_with_start=_ratio(rate["s_with_start"]),
        rows_per_s={n: round(statistics.median(rate["s"][n])) for n in names},
        others=others,
        latency_ms_p50={n: round(statistics.median(every[n])) for n in names},
        rounds={"rows_per_s": {n: [round(r) for r in rate["s"][n]] for n in names},
                "latency_ms_p50": {n: [round(w) for w in waits[n]] for n in names},
                "processor_s": {n: [round(s, 1) for s in processor[n]] for n in names}},
        **({} if METERED not in names else {
            "metrics_throughput_ratio": _ratio(rate["s"], METERED, "node"),
            "metrics_latency_ratio": _ratio(waits, METERED, "node"),
            "metrics_processor_ratio": _ratio(processor, METERED, "node"),
        }),
    )  # fmt: skip


def _ratio(of: dict[str, list[float]], name: str = "node", beside: str = "plain") -> float:
    """Median of the ratios within a round."""
    return round(statistics.median(a / b for a, b in zip(of[name], of[beside], strict=True)), 3)


if __name__ == "__main__":
    main()
