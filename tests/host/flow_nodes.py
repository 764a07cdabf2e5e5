"""An application whose nodes are made of Holdfast's own operators, and sources that always say the same.

As a process of its own, to be killed: python -m tests.host.flow_nodes ROOT [STORE]
"""

from __future__ import annotations

import sys
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import holdfast
from holdfast.clock import pause
from holdfast.operators import count, every, keep_time, sum_, time_window
from holdfast.spark import Flow, flow_of
from holdfast.spark.engine import node_session

T0 = 1_700_000_000
SECOND = 1_000_000
#: Tuples of each source: ten of them are a second of stime.
TUPLES = 3_000
OUTPUTS = ("counts", "pairs", "busy")


def application(root: Path, far: str | None = None) -> holdfast.App:
    """With `far`, the operators save to that store instead of the logs of their results."""
    app = holdfast.App("flows", root=root)
    saved: dict[str, Any] = {} if far is None else {"checkpoint": every("500ms"), "store": far}

    @app.node(inputs=["left", "right"], max_delay="2s")
    def counts(rows: DataFrame) -> Flow:
        return flow_of(rows).aggregate(count(), sum_("k"), window=time_window("2s"), by="g", **saved)

    @app.node(inputs=["left", "right"], max_delay="2s")
    def pairs(left: DataFrame, right: DataFrame) -> Flow:
        both = flow_of(left, right)
        return both.join(
            "left", "right", by="g", window=keep_time("1s"), take_left={"l": "k"}, take_right={"r": "k"}, **saved
        )

    @app.node(inputs=["counts"], max_delay="2s")
    def busy(rows: DataFrame) -> Flow:
        return flow_of(rows).filter("count > 1").map(g="g", count="count")

    return app


class Source:
    """A stream of TUPLES tuples. What it says does not depend on when it says it."""

    def __init__(self, root: Path, name: str) -> None:
        self.stream = holdfast.open(root).create(name, "g bigint, k bigint", bucket="500ms", exist_ok=True)
        self._producer = self.stream.producer(stime="stime", slack="0s")
        self._step = 1 if name == "left" else 2
        self.sent = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def fill(self, upto: int) -> None:
        if upto > self.sent:
            self._producer.send_many([self._row(n) for n in range(self.sent, upto)])
            self._producer.advance(T0 * SECOND + upto * SECOND // 10)
            self.sent = upto

    def _row(self, n: int) -> dict[str, Any]:
        return {"stime": datetime.fromtimestamp(T0 + n / 10, UTC), "g": n % 3, "k": n * self._step}

    def live(self) -> Source:
        """Ten tuples a second until `end`."""
        self._thread.start()
        return self

    def _run(self) -> None:
        while not self._over.is_set():
            self.fill(min(self.sent + 1, TUPLES))
            pause(100_000)

    def end(self) -> None:
        """All that is left, and the end of the stream."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()
        self.fill(TUPLES)
        self._producer.close()

    def leave(self) -> None:
        self._producer.close(end=False)


def spark_session() -> SparkSession:
    spark = node_session("holdfast-flows", OUTPUTS, master="local[2,4]", spark_sql_shuffle_partitions="1")
    spark.sparkContext.setLogLevel("OFF")
    return spark


def finished(root: Path) -> bool:
    store = holdfast.open(root)
    return all(name in store.names() and store.open(name).reader().closed for name in OUTPUTS)


def main(root: Path, far: str | None = None) -> None:
    with application(root, far).start(spark=spark_session()):
        while not finished(root):
            pause(50_000)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
