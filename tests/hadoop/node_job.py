"""A node with windows, whose checkpoint lies where its session puts it. As a process of its own, to be killed, it says
the state of its replica when that changes."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import holdfast
from holdfast.host.embedded import Running
from holdfast.model.tuples import TupleType
from holdfast.spark.engine import node_session
from tests.spark.processes import say, wait_for

INPUTS = ("left", "right")
T0, SECOND = 1_700_000_000, 1_000_000
_PER_SECOND = 4
Results = Counter[tuple[int, int, int, int]]


class Inputs(threading.Thread):
    """Two streams that grow by a second four times a second, until they end; `k` counts up in each."""

    def __init__(self, store: holdfast.StreamStore) -> None:
        super().__init__(daemon=True)
        self._producers = {
            name: store.create(name, "k bigint", bucket="1s").producer(stime="stime", slack="0s") for name in INPUTS
        }
        self._sent = dict.fromkeys(INPUTS, 0)
        self._over, self._lock = threading.Event(), threading.Lock()
        self._held = ""
        self.seconds = 0
        self.start()

    def run(self) -> None:
        while not self._over.wait(0.25):
            with self._lock:
                self.seconds += 1
                self._fill()

    def _fill(self) -> None:
        for name in INPUTS:
            if name != self._held:
                numbers = range(self._sent[name] * _PER_SECOND, self.seconds * _PER_SECOND)
                rows = [{"stime": datetime.fromtimestamp(T0 + k / _PER_SECOND, UTC), "k": k} for k in numbers]
                self._producers[name].send_many(rows)
                self._producers[name].advance((T0 + self.seconds) * SECOND)
                self._sent[name] = self.seconds

    def hold(self, name: str) -> None:
        """Nothing comes from this one until another is named, or none."""
        with self._lock:
            self._held = name

    def end(self) -> None:
        self.hold("")
        self._over.set()
        self.join()
        self._fill()
        for producer in self._producers.values():
            producer.close()


def counted(rows: DataFrame) -> DataFrame:
    windows = rows.groupBy(F.window("stime", "2 seconds"), (F.col("k") % 2).alias("parity"))
    sums = windows.agg(F.count("*").alias("n"), F.sum("k").alias("sum"))
    return sums.select(F.col("window.end").alias("stime"), "parity", "n", "sum")


def expected(seconds: int) -> Results:
    """Both inputs, by plain Python."""
    found: dict[tuple[int, int], list[int]] = {}
    for k in range(seconds * _PER_SECOND):
        end = T0 + k // _PER_SECOND // 2 * 2 + 2
        found.setdefault((end, k % 2), []).extend([k] * len(INPUTS))
    return Counter((end, parity, len(ks), sum(ks)) for (end, parity), ks in found.items())


def stable(stream: holdfast.Stream) -> Results:
    rows = [row for batch in stream.subscribe().poll() for row in batch.to_pylist()]
    return Counter((round(row["stime"].timestamp()), row["parity"], row["n"], row["sum"]) for row in rows)


def application(root: Path, function: Callable[[DataFrame], Any] = counted) -> holdfast.App:
    app = holdfast.App("elsewhere", root=root)
    app.node(inputs=INPUTS, max_delay="4s", name="counted")(function)
    return app


def standing(running: Running) -> str:
    (replica,) = running.status()["replicas"]
    return str(replica["state"])


def reached(stream: holdfast.Stream, second: int) -> Callable[[], bool]:
    return lambda: stream.reader().closed_until_us >= (T0 + second) * SECOND


def gives_tentative(stream: holdfast.Stream) -> Callable[[], bool]:
    """From whoever runs the node now."""
    subscriber = stream.subscribe(tentative=True)

    def looked() -> bool:
        kinds = [kind for batch in subscriber.poll() for kind in batch.column("tuple_type").to_pylist()]
        return TupleType.TENTATIVE in kinds

    return looked


def cut_and_heal(running: Running) -> None:
    """An input is away for as long as it takes to give tentative results."""
    output = running.streams.open("counted")
    tentative = gives_tentative(output)
    running.fail(INPUTS[1])
    wait_for(tentative, "tentative results", 120)
    running.heal(INPUTS[1])
    wait_for(lambda: standing(running) == "STABLE" and output.branch() is None, "corrections", 120)


def main() -> None:
    """ROOT, and the settings of the session as JSON."""
    root, settings = Path(sys.argv[1]), {name.replace(".", "_"): v for name, v in json.loads(sys.argv[2]).items()}
    spark = node_session("holdfast-hadoop-node", master="local[2,4]", **settings)
    spark.sparkContext.setLogLevel("OFF")
    with application(root).start(spark=spark) as running:
        told = ""
        while True:
            if (now := standing(running)) != told:
                say(told := now)
            time.sleep(0.1)


if __name__ == "__main__":
    main()
