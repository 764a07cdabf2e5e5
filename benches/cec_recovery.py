"""How long until an operator is back after kill -9: from the start of the query to its first new result.

The query keeps N windows of an hour open (one per key) and is killed, driver and all, after a batch that chance chose.
Then the tuple comes that closes the hour. Holdfast has lost its scratch space as well, as if the machine were gone: it
reads the output's log backwards and replays. Spark has its checkpoint, with either of its state stores: RocksDB with
changelog, and the one in memory, which reads its snapshots and deltas. Beside the better of them. Every result is
compared with counts made by numpy.

    python -m benches.cec_recovery [--windows 10000 100000 1000000]
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from tests.spark.processes import REPOSITORY, environment, kill_tree, wait_for

import holdfast
from benches.report import console, finish, table

T0 = 1_699_999_200_000_000  # A full hour.
HOUR_US = 3_600_000_000
BATCHES = 6
_STATE = "org.apache.spark.sql.execution.streaming.state"
#: Spark's state stores; ours leaves them alone.
PROVIDERS = {
    "holdfast": f"{_STATE}.RocksDBStateStoreProvider", "spark": f"{_STATE}.RocksDBStateStoreProvider",
    "spark-memory": f"{_STATE}.HDFSBackedStateStoreProvider",
}  # fmt: skip


def rows_of(windows: int) -> int:
    return max(windows // 2, 20_000)


def fill(root: Path, windows: int) -> None:
    stream = holdfast.open(root).create("in", "key bigint, value bigint", bucket="1s")
    producer = stream.producer(stime="stime", slack="0s")
    rows = rows_of(windows)
    for b in range(BATCHES):
        keys = (np.arange(rows) + b * rows) % windows
        send(producer, T0 + b * 10_000_000 + np.arange(rows) * 9_000_000 // rows, keys)
    producer.advance(T0 + BATCHES * 10_000_000)
    producer.close(end=False)


def send(producer: Any, stimes: np.ndarray, keys: np.ndarray) -> None:
    times = pa.array(stimes, pa.timestamp("us", "UTC"))
    producer.send_batch(pa.table({"stime": times, "key": keys, "value": keys * 7 % 1000}))


def close_the_hour(root: Path) -> None:
    producer = holdfast.open(root).open("in").producer(stime="stime", slack="0s")
    send(producer, np.asarray([T0 + HOUR_US + 1]), np.asarray([0]))
    producer.advance(T0 + HOUR_US + 10_000_000)
    producer.close(end=False)


def child(kind: str, root: Path, windows: int, period: str, scratch: Path, live: bool) -> None:
    """The query, in a process of its own. `live` runs until killed; else until the hour's results are there."""
    from pyspark.sql import functions as F

    from holdfast.operators.functions import count, sum_
    from holdfast.operators.windows import time_window
    from holdfast.protocol.cec.policy import continuous
    from holdfast.spark import read_stream, session
    from holdfast.spark.flow import flow

    spark = session("bench-recovery", spark_sql_streaming_stateStore_providerClass=PROVIDERS[kind],
                    spark_driver_memory="3g")  # fmt: skip
    spark.conf.set("spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled", "true")
    spark.sparkContext.setLogLevel("OFF")
    rows, place = rows_of(windows), str(root / ".checkpoint")
    began = time.perf_counter()
    if kind == "holdfast":
        flowing = flow(spark, "in", root=root, maxRowsPerBatch=rows)
        flowing = flowing.aggregate(count(), sum_("value"), window=time_window("1h"), by="key",
                                    checkpoint=continuous(period=period, slow=0, budget=1, at_most=10**7))  # fmt: skip
        query = flowing.write("out", checkpoint_location=place, scratch=scratch, bucket="1s")
    else:
        frame = read_stream(spark, "in", root=root, boundaries="exact", maxRowsPerBatch=rows)
        made = frame.groupBy(F.window("stime", "1 hour"), "key").agg(
            F.count("*").alias("count"), F.sum("value").alias("sum_value")
        )
        query = made.writeStream.format("holdfast").options(
            root=str(root), checkpointLocation=place, create="true", bucket="1s"
        ).start("out")  # fmt: skip
    if live:
        query.awaitTermination()
    store = holdfast.open(root)
    while not (store.root / "out").exists() or not store.open("out").reader().rows:
        if query.exception() is not None:
            raise query.exception()
        time.sleep(0.02)
    print(json.dumps({"seconds": time.perf_counter() - began}), flush=True)


def differences(root: Path, windows: int) -> int:
    """Results that are not those of an undisturbed run."""
    rows = rows_of(windows)
    keys = np.concatenate([(np.arange(rows) + b * rows) % windows for b in range(BATCHES)])
    counts = np.bincount(keys, minlength=windows)
    got: dict[int, list[tuple[int, int]]] = {}
    for batch in holdfast.open(root).open("out").subscribe().poll():
        for key, n, total in zip(*(batch.column(c).to_pylist() for c in ("key", "count", "sum_value")), strict=True):
            got.setdefault(key, []).append((n, total))
    want = {k: [(int(n), int(n) * (k * 7 % 1000))] for k, n in enumerate(counts) if n}
    return sum(got.get(k) != v for k, v in want.items()) + sum(k not in want for k in got)


def trial(kind: str, windows: int, period: str, kill_after: int) -> tuple[float, int]:
    with tempfile.TemporaryDirectory(dir=".", prefix=".bench-") as folder:
        root = Path(folder).absolute()
        fill(root, windows)
        command = [sys.executable, "-m", "benches.cec_recovery", "--child", kind, "--root", str(root), "--windows",
                   str(windows), "--period", period]  # fmt: skip
        log = root / "log"
        with log.open("w") as out:
            first = subprocess.Popen([*command, "--live", "--scratch", str(root / ".scratch1")], cwd=REPOSITORY,
                                     env=environment(), stdout=out, stderr=out, text=True)  # fmt: skip
        try:
            commits = root / ".checkpoint" / "commits"
            wait_for(lambda: first.poll() is not None or (commits.is_dir()
                     and sum(p.name.isdigit() for p in commits.iterdir()) >= kill_after), "batches", 100)  # fmt: skip
            assert first.poll() is None, log.read_text()[-2000:]
        finally:
            kill_tree(first)
        shutil.rmtree(root / ".scratch1", ignore_errors=True)
        close_the_hour(root)
        done = subprocess.Popen([*command, "--scratch", str(root / ".scratch2")], cwd=REPOSITORY, env=environment(),
                                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)  # fmt: skip
        try:
            assert done.stdout is not None
            seconds = json.loads(done.stdout.readline())["seconds"]
        finally:
            kill_tree(done)
        return seconds, differences(root, windows)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benches.cec_recovery", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--windows", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument(
        "--periods", nargs="*", default=["10s", "1h"], help="of 100,000 windows, besides the usual 20 s"
    )
    for hidden in ("--child", "--root", "--scratch"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    parser.add_argument("--period", default="20s", help=argparse.SUPPRESS)
    parser.add_argument("--live", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        child(given.child, Path(given.root), given.windows[0], given.period, Path(given.scratch or "."), given.live)
        return
    chance = random.Random(2)
    rows, ratios, seconds_of, wrong, by_period = [], {}, {}, 0, {}
    for windows in given.windows:
        at = chance.randrange(3, BATCHES)
        (ours, bad), (rocks, bad_rocks), (memory, bad_memory) = (trial(kind, windows, "20s", at) for kind in PROVIDERS)
        wrong += bad
        ratios[windows] = round(min(rocks, memory) / ours, 2)
        seconds_of[windows] = [round(s, 2) for s in (ours, rocks, memory)]
        rows.append([windows, at, ours, rocks, memory, ratios[windows], bad, bad_rocks + bad_memory])
        console.print(rows[-1])
    for period in given.periods:
        seconds, bad = trial("holdfast", 100_000, period, 5)
        wrong += bad
        by_period[period] = round(seconds, 2)
        console.print(f"T = {period}: {seconds:.2f} s, {bad} differences")
    table("seconds from the start of the query to the first new result",
          ["windows", "killed after batch", "Holdfast", "Spark", "Spark, in memory", "of the better", "different",
           "Spark's"], rows)  # fmt: skip
    finish("cec_recovery", ratio_spark=min(ratios.values(), default=None), ratios=ratios, differences=wrong,
           seconds=seconds_of, peers=["RocksDB", "in memory"], by_period=by_period)  # fmt: skip


if __name__ == "__main__":
    main()
