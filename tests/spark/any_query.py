"""Runs kinds of query as nodes, in a process that can be killed.

    python -m tests.spark.any_query ROOT end:KIND… cut:KIND…

Nothing is run before a line comes on the standard input, so that a JVM can be started in good time.
`cut` runs a node, cuts an input and heals it; `end`, in a later process, starts it again, ends its inputs and compares
its results with the oracle. Each line of the output is JSON about one kind; the last one is `{"done": true}`. Then the
process waits to be killed.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQueryListener

import holdfast
from holdfast.clock import monotonic_us, pause
from holdfast.host.embedded import Running
from holdfast.model.tuples import TupleType
from holdfast.spark.engine import node_session
from tests.spark.query_kinds import BUCKET_S, KINDS

T0 = datetime(2026, 1, 1, tzinfo=UTC)
SECOND = 1_000_000
#: X of every node here: queries in Python start slowly on two busy cores.
MAX_DELAY_S = 4.0
#: Rows of each input in a second of stime.
RATE = 10
#: Rows of its last bucket that an input has brought when it is cut, of RATE * BUCKET_S. Cut between two buckets, it
#: would leave an inner join nothing to pair with the other one's rows, and a fork of it would rightly say nothing.
CUT_ROWS = 7
#: How long a feeder pauses. A node begins a batch with whatever has come; three that never pause leave no core free.
PAUSE_S = 0.5
#: How long it pauses for a case that has been cut and healed, and only waits to be killed: well within X.
RESTING_S = 3.0
#: Places for cases at work at the same time: two cores are busy then, and nothing is late for want of them.
ABREAST = 4
#: Results come so often before the pause between them counts as the usual one.
_USUAL = 3


def row(stream: str, i: int) -> dict[str, Any]:
    """The i-th row of an input. The two overlap in `v`, with gaps on either side."""
    first = stream == "a"
    stime = T0 + timedelta(seconds=i / RATE, milliseconds=0 if first else 7)
    return {
        "stime": stime,
        "k": i * (3 if first else 1) % 5,
        "v": i if first else i - i % 3,
        "name": f"{stream}{i % 3}",
    }


def _boundary_us(rows: int) -> int:
    """What an input has promised that has so many rows."""
    return round(T0.timestamp()) * SECOND + rows * SECOND // RATE


class Feeder(threading.Thread):
    """Fills both inputs from where they are, a second of stime in a second of the clock, until it is told to end."""

    def __init__(self, store: holdfast.StreamStore) -> None:
        super().__init__(daemon=True)
        self._producers = {s: store.open(s).producer(stime="stime", slack="0s") for s in ("a", "b")}
        self._next = {s: store.open(s).reader().rows for s in self._producers}
        self._over = threading.Event()
        self._sending = threading.Lock()
        self.pause_s = PAUSE_S

    def run(self) -> None:
        began, first = monotonic_us(), max(self._next.values())
        while not self._over.wait(self.pause_s):
            with self._sending:
                self._send(first + (monotonic_us() - began) * RATE // SECOND)
        for producer in self._producers.values():
            producer.close()

    def _send(self, upto: int) -> None:
        for stream, producer in self._producers.items():
            producer.send_many([row(stream, i) for i in range(self._next[stream], upto)])
            self._next[stream] = max(upto, self._next[stream])
            producer.advance(_boundary_us(self._next[stream]))

    @contextlib.contextmanager
    def standing(self, rows: int) -> Iterator[int]:
        """Let both inputs stand still so many rows into a bucket, ahead of the clock; up to where they are, in us."""
        with self._sending:
            bucket = RATE * BUCKET_S
            self._send((max(self._next.values()) // bucket + 1) * bucket + rows)
            yield _boundary_us(self._next["b"])

    def end(self) -> None:
        self._over.set()
        self.join()


def until(condition: Callable[[], Any], what: str, seconds: float = 240) -> None:
    """Patient: what has to be on time is measured (`silence_s`), not given up."""
    deadline = monotonic_us() + round(seconds * SECOND)
    while not condition():
        if monotonic_us() > deadline:
            raise TimeoutError(f"not within {seconds} s: {what}")
        pause(20_000)


class Case:
    """One kind as an application of its own."""

    def __init__(self, root: Path, name: str, spark: SparkSession, heard: set[str]) -> None:
        """`heard` has the names of all metrics that a listener has been told."""
        self.name, self.kind, self._spark, self._heard = name, KINDS[name], spark, heard
        self.root = root / name
        self.store = holdfast.open(self.root)
        for stream in ("a", "b"):
            self.store.create(stream, "k bigint, v bigint, name string", bucket=f"{BUCKET_S}s", exist_ok=True)
        self.app = holdfast.App("any", root=self.root)
        options = {"output": "out", **dict(self.kind.options)}
        self.outputs = options.get("outputs", ("out",))
        if "outputs" in options:
            del options["output"]
        self.app.node(inputs=["a", "b"], name=name.replace("_", "-"), max_delay=MAX_DELAY_S, **options)(
            self.kind.function
        )
        self.running: Running | None = None
        self.feeder = Feeder(self.store)
        self.feeder.start()

    def cut(self) -> dict[str, Any]:
        """Run it, cut one input until tentative results come, let it heal."""
        self.running = running = self.app.start(spark=self._spark)
        running.wait_until_stable("240s")
        out = self.store.open("out")
        subscriber = out.subscribe(tentative=True, worth=True)
        seen: Counter[TupleType] = Counter()
        last, silence, arrivals, valued = monotonic_us(), 0, 0, 0

        def look() -> Counter[TupleType]:
            nonlocal last, silence, arrivals, valued
            for batch in subscriber.poll():
                seen.update(TupleType(t) for t in batch.column("tuple_type").to_pylist())
                valued += batch.num_rows - batch.column("worth_least").null_count
                silence, last, arrivals = max(silence, monotonic_us() - last), monotonic_us(), arrivals + 1
            return seen

        until(lambda: look()[TupleType.INSERTION] > 0, "stable results")
        silence, last, arrivals = 0, monotonic_us(), 0
        until(lambda: look() and arrivals >= _USUAL, "more stable results")
        usual, silence, last = silence, 0, monotonic_us()
        with self.feeder.standing(CUT_ROWS) as boundary_us:
            until(
                lambda: all(node["inputs"][1]["boundary_us"] == boundary_us for node in self.status()),
                "the rows that b has brought",
            )
            running.fail("b")
        until(lambda: all(node["fork"]["state"] == "running" for node in self.status()), "a fork that runs")
        until(lambda: look()[TupleType.TENTATIVE] > 0, "tentative results")
        running.heal("b")
        until(
            lambda: all(node["state"] == "STABLE" and node["fork"]["state"] == "none" for node in self.status()),
            "STABLE again",
        )
        until(lambda: look()[TupleType.UNDO] == look()[TupleType.REC_DONE] > 0, "REC_DONE")
        until(lambda: self._heard.issuperset(self.kind.metrics), f"the metrics {', '.join(self.kind.metrics)}")
        self.feeder.pause_s = RESTING_S
        return {
            "usual_s": usual / SECOND, "silence_s": silence / SECOND, "tentative": look()[TupleType.TENTATIVE],
            "undo": look()[TupleType.UNDO], "valued": valued,
        }  # fmt: skip

    def status(self) -> list[dict[str, Any]]:
        """Of its nodes: one for each output."""
        assert self.running is not None
        return [{"fork": {"state": "none"}, **node} for node in self.running.status()["replicas"]]

    def end(self) -> dict[str, Any]:
        """Start it again, end its inputs, compare."""
        with self.app.start(spark=self._spark) as self.running:
            self.running.wait_until_stable("240s")
            self.feeder.end()
            outputs = [self.store.open(output) for output in self.outputs]
            until(lambda: all(out.reader().closed for out in outputs), "the end of the output")
        got, wanted = Counter(self.got()), Counter(self.wanted())
        return {
            "rows": sum(wanted.values()), "missing": [str(r) for r in list((wanted - got).elements())[:3]],
            "extra": [str(r) for r in list((got - wanted).elements())[:3]], "equal": got == wanted,
        }  # fmt: skip

    def got(self) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = []
        for output in self.outputs:
            frame = self._spark.read.format("holdfast").option("root", str(self.root)).load(output)
            found += _tuples(self._compared(frame))
        return found

    def wanted(self) -> list[tuple[Any, ...]]:
        if self.kind.expected is not None:
            rows = [r.asDict() for r in self._read("a,b").collect()]
            return [_plain(r) for r in self.kind.expected(rows)]
        inputs = ("a", "b") if self.kind.function.__code__.co_argcount == 2 else ("a,b",)
        made = self.kind.function(*map(self._read, inputs))
        frames = [made[output] for output in self.outputs] if isinstance(made, dict) else [made]
        return [row for frame in frames for row in _tuples(self._compared(frame))]

    def _compared(self, frame: DataFrame) -> DataFrame:
        if self.kind.columns is not None:
            return frame.select(*self.kind.columns)
        return frame.drop("tuple_type", "tuple_id", "stime", "stream")

    def _read(self, names: str) -> DataFrame:
        return self._spark.read.format("holdfast").option("root", str(self.root)).load(names)


def _tuples(frame: DataFrame) -> list[tuple[Any, ...]]:
    return [_plain(tuple(row)) for row in frame.collect()]


def _plain(value: Any) -> Any:
    """What can be counted: rows and lists as tuples, times without a zone."""
    if isinstance(value, tuple | list):
        return tuple(_plain(v) for v in value)
    return value.replace(tzinfo=None) if isinstance(value, datetime) else value


class Metrics(StreamingQueryListener):
    """A listener such as a user adds to the session."""

    def __init__(self) -> None:
        self.heard: set[str] = set()

    def onQueryStarted(self, event: Any) -> None:
        pass

    def onQueryProgress(self, event: Any) -> None:
        self.heard.update(name for name, values in event.progress.observedMetrics.items() if values is not None)

    def onQueryTerminated(self, event: Any) -> None:
        pass


def run(root: Path, name: str, phase: str, spark: SparkSession, heard: set[str]) -> None:
    began = monotonic_us()
    case = None
    try:
        case = Case(root, name, spark, heard)
        found: dict[str, Any] = case.cut() if phase == "cut" else case.end()
    except BaseException as error:
        found = {"error": "".join(traceback.format_exception_only(error)).strip()[:1500]}
        if case is not None and case.running is not None:
            with contextlib.suppress(Exception):
                found["status"] = str(case.status())[:800]
                case.running.stop()
    took_s = round((monotonic_us() - began) / SECOND, 1)
    # Whole lines, in one piece: others are run abreast.
    sys.stdout.write(json.dumps({"kind": name, "phase": phase, **found, "took_s": took_s}) + "\n")
    sys.stdout.flush()


def main(root: str, *tasks: str) -> None:
    spark = node_session(
        "any-query", master="local[2,4]", spark_sql_shuffle_partitions="1",
        spark_driver_extraJavaOptions="-XX:ReservedCodeCacheSize=200m",
    )  # fmt: skip
    spark.sparkContext.setLogLevel("OFF")
    metrics = Metrics()
    spark.streams.addListener(metrics)
    sys.stdin.readline()
    places = threading.Semaphore(ABREAST)

    def work(phase: str, name: str) -> None:
        run(Path(root), name, phase, spark, metrics.heard)
        places.release(KINDS[name].places)

    with ThreadPoolExecutor(ABREAST) as pool:
        for phase, _, name in (task.partition(":") for task in tasks):
            for _place in range(KINDS[name].places):
                places.acquire()
            pool.submit(work, phase, name)
    print(json.dumps({"done": True}), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
