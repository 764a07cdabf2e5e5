"""What the session settings are worth: the time of a tiny micro-batch, with Spark's defaults and with Holdfast's.

Each contender is a JVM of its own (one of the settings is fixed when the JVM starts). Shuffle partitions are as many as
cores for all; with Spark's 200 a batch takes seconds. The query is a windowed count over a stream with a few rows per
batch, written to a stream: the smallest stateful job there is, so overhead is all one sees.

    python -m benches.microbatch [--batches 20]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benches.report import console, finish, table

#: Contender: which of the settings it takes back to Spark's default.
CONTENDERS = {
    "Spark's defaults": ("checkpoint", "socket"),
    "without the checkpoint manager": ("checkpoint",),
    "without Unix sockets": ("socket",),
    "Holdfast": (),
}
DEFAULTS = {
    "checkpoint": ("spark.sql.streaming.checkpointFileManagerClass",
                   "org.apache.spark.sql.execution.streaming.checkpointing.FileContextBasedCheckpointFileManager"),
    "socket": ("spark.python.unix.domain.socket.enabled", "false"),
}  # fmt: skip


def child(root: Path, batches: int, taken_back: list[str]) -> None:
    """Runs in a process of its own; prints the median duration of a batch and its parts."""
    from datetime import UTC, datetime

    from pyspark.sql import functions as F

    import holdfast
    from holdfast.spark import read_stream, session

    store = holdfast.open(root)
    stream = store.create("in", "key string", bucket="1s")
    store.create("out", "window struct<start:timestamp,end:timestamp>, key string, count bigint", bucket="1s")
    with stream.producer(stime="stime") as producer:
        for second in range(batches + 10):
            when = datetime.fromtimestamp(1_700_000_000 + second, UTC)
            producer.send_many([{"stime": when, "key": f"k{i}"} for i in range(20)])
    settings = {DEFAULTS[name][0].replace(".", "_"): DEFAULTS[name][1] for name in taken_back}
    spark = session("bench-microbatch", **settings)
    spark.sparkContext.setLogLevel("OFF")
    frame = read_stream(spark, "in", root=root, boundaries="exact", maxRowsPerBatch=20)
    counted = frame.groupBy(F.window("stime", "5 seconds"), "key").count()
    writer = counted.writeStream.format("holdfast").options(
        root=str(root), checkpointLocation=str(root / ".checkpoint")
    )
    query = writer.trigger(availableNow=True).start("out")
    query.awaitTermination()
    progress = [p.durationMs for p in query.recentProgress if p.numInputRows][8:]
    spark.stop()
    parts = ("triggerExecution", "addBatch", "walCommit", "commitOffsets", "queryPlanning")
    print(json.dumps({part: statistics.median(p.get(part, 0) for p in progress) for part in parts}))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benches.microbatch", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--child", nargs="*", help=argparse.SUPPRESS)
    parser.add_argument("--root", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child is not None:
        child(given.root, given.batches, given.child)
        return
    found: dict[str, dict[str, float]] = {}
    for name, taken_back in CONTENDERS.items():
        with tempfile.TemporaryDirectory(dir=".", prefix=".bench-") as scratch:
            command = [sys.executable, "-m", "benches.microbatch", "--root", str(Path(scratch).absolute())]
            command += ["--batches", str(given.batches), "--child", *taken_back]
            done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ)
            found[name] = json.loads(done.stdout.strip().splitlines()[-1])
            console.print(f"{name}: {found[name]['triggerExecution']:.0f} ms")
    parts = list(found["Holdfast"])
    table(
        "median of a tiny stateful batch, ms",
        ["", *parts],
        [[n, *(round(f[p]) for p in parts)] for n, f in found.items()],
    )
    default, ours = found["Spark's defaults"]["triggerExecution"], found["Holdfast"]["triggerExecution"]
    batch_ms = {name: round(parts["triggerExecution"]) for name, parts in found.items()}
    finish("microbatch", ratio=round(default / ours, 2), batch_ms=batch_ms)


if __name__ == "__main__":
    main()
