"""Holdfast: three streams, the same windowed count as a node with X = 3 s, and a subscriber to tentative rows, too."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from sys import argv
from typing import Any

import holdfast
from benches.compare.contender import ready, result, undo
from benches.compare.workload import CHUNK_MS, DISORDER_MS, INPUTS, WINDOW_MS, new_lines

MAX_DELAY = "3s"
BUCKET = f"{CHUNK_MS}ms"
_POLL_S = 0.02


def counted(rows: Any) -> Any:
    from pyspark.sql import functions as F

    return rows.groupBy(F.window("stime", f"{WINDOW_MS} milliseconds"), "key").count()


class Follower(threading.Thread):
    """Sends what appears in a folder to a stream, in event time."""

    def __init__(self, folder: Path, stream: holdfast.Stream) -> None:
        super().__init__(name=folder.name, daemon=True)
        self._folder, self._stream = folder, stream

    def run(self) -> None:
        seen: set[str] = set()
        with self._stream.producer(stime="ts", stime_unit="ms", slack=f"{DISORDER_MS}ms") as producer:
            while True:
                if rows := new_lines(self._folder, seen):
                    producer.send_many(rows)
                time.sleep(_POLL_S)


def main() -> None:
    root = Path(argv[1])
    store = holdfast.open(root / "streams")
    streams = [store.create(name, "ts bigint, key string", bucket=BUCKET) for name in INPUTS]
    app = holdfast.App("compare", root=root / "streams")
    app.node(inputs=INPUTS, output="counts", max_delay=MAX_DELAY)(counted)
    with app.start(master="local[2,4]", spark_log_level="OFF"):
        for stream in streams:
            Follower(root / stream.name, stream).start()
        ready(holdfast.__version__)
        while "counts" not in store.names():
            time.sleep(_POLL_S)
        with store.open("counts").subscribe(tentative=True) as client:
            while True:
                for batch in client.poll():
                    show(client, batch)
                time.sleep(_POLL_S)


def show(client: Any, batch: Any) -> None:
    for row in client.rows_of(batch):
        if row.type is holdfast.TupleType.UNDO:
            undo()
        elif row.values:
            end_ms = round(row.stime.timestamp() * 1000)
            tentative = row.type is holdfast.TupleType.TENTATIVE
            result(end_ms - WINDOW_MS, row.values["key"], row.values["count"], tentative)


if __name__ == "__main__":
    main()
