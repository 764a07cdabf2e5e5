"""Availability against consistency: the experiments of 003 §5.4 to §5.6 on Holdfast, drawn beside what the seeds found.

One of three inputs is cut off, and comes back. Measured at a client that wants news and corrections:

- Proc_new: the largest latency of a new tuple, from the cut until everything is corrected; what it has above the
  normal latency is what the failure added, and must stay below X.
- N_tentative, in seconds of output (tentative tuples divided by the normal output rate), so that 400 tuples per second
  here and 4,500 there can stand in one figure.

Single node: a windowed count (state, as the seeds' SJoin), X = D = 2.7 s. Chain: four nodes that pass tuples on, each
its own query, D = 2 s, or the whole X = 8 s for each. `x`: short X, with forks that are kept ready. One node with X =
1 s (`x:1s`), ten failures of 2 to 30 s; a chain of four, each node with the whole X = 2 s (`x:chain`); X = 2 s and
`delay` (`x:delay`); and what the fork costs in quiet times, as a share of all cores (`x:cost`). Whoever asks for `x` by
name gets all of it; the short look has some of these failures. A failure during which others took more than a part of
the machine is made once more; if it was disturbed again, no figure rests on it, and the last line says so. Inputs of
250 ms buckets; all on one SparkSession, one application after the other; Java with `-XX:TieredStopAtLevel=1
-XX:+UseSerialGC`, because a short run is over before the second compiler has earned what it costs.

    python -m benches.dpc_tradeoff                                 a short look, under six minutes
    python -m benches.dpc_tradeoff --full --report tradeoff.html   all policies and durations, under an hour
    python -m benches.dpc_tradeoff --only x                        X of a second, in a quarter of an hour
    python -m benches.dpc_tradeoff --full --only 5-8 --points p.jsonl --report tradeoff.html

`--points` keeps what was measured, adds to it and draws all of it, so that a full run can be had in portions.
"""

from __future__ import annotations

import argparse
import itertools
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import holdfast
from benches.bystanders import Bystanders, our_seconds
from benches.dpc_figures import OTHERS_MAX, draw, summary
from benches.report import console, table
from holdfast.clock import monotonic_us, now_us, pause
from holdfast.console.recording import Recording
from holdfast.demo.failure import JAVA_OPTIONS
from holdfast.demo.monitors import COLUMNS, MONITORS, Monitor
from holdfast.host.embedded import Running
from holdfast.model.time import SECOND_US
from holdfast.model.tuples import TupleType
from holdfast.protocol.dpc.plan import WARM_SHARE
from holdfast.spark.engine import node_session
from holdfast.spark.fork import fork_checkpoint

BUCKET = "250ms"
WARM_UP_US, CALM_US = 5 * SECOND_US, 2 * SECOND_US
#: What a warm query on a quiet machine stays well below, and how long it is waited for.
SETTLED_US, SETTLED_US_MAX = 1_500_000, 30 * SECOND_US
#: A fork that was just started is slow for its first batches.
REST_US = 3 * SECOND_US
#: A failure that is not corrected after so long is reported as such.
CORRECTED_US_MAX = 60 * SECOND_US
_POLL_US = 20_000
#: How often a failure is made until one is not disturbed.
TRIES = 2
#: Over how long the cost of a fork that is kept ready is measured: it takes some steps meanwhile.
_COST_US = 30 * SECOND_US
#: Nodes of a chain, the first of them next to the monitors.
NODES = ("first", "second", "third", "fourth")
#: Medians are exact to this; table 5.2 has steps of 50 ms.
_SLOT_US = 10_000


class Trial(NamedTuple):
    """One application and the failures it goes through."""

    figure: str
    policy: tuple[str, str]
    delay: str
    failures_s: tuple[float, ...]
    nodes: int = 1
    bucket: str = BUCKET
    warm: float = WARM_SHARE

    @property
    def judged(self) -> bool:
        """Whether each of its failures has to keep X, rather than to give a dot of a figure."""
        return self.figure.startswith("x:")


class Point(msgspec.Struct, frozen=True):
    """What one failure did to one output (`depth` nodes behind the sources)."""

    figure: str
    policy: str
    delay_s: float
    failure_s: float
    depth: int
    bucket_ms: float
    normal_s: float
    normal_max_s: float
    proc_new_s: float
    tentative: int
    tentative_s: float
    correct_s: float | None
    fork_ms: float
    fork_files: int
    others: float = 0.0
    """The part of the machine that other processes had meanwhile."""
    latest: str = ""
    """Which of the new tuples was the latest: stable or tentative, and how long after the cut it came."""

    @property
    def added_s(self) -> float:
        return round(max(0.0, self.proc_new_s - self.normal_max_s), 3)


#: Figure 5-8: the six combinations of the seeds, and the one that Spark has anyway: wait.
COMBINATIONS = [(a, b) for a in ("process", "delay") for b in ("process", "delay", "suspend")]
TABLE_52 = ("50ms", "100ms", "150ms", "200ms", "250ms", "300ms")


BOTH = (("process", "process"), ("delay", "delay"))
#: Short X: what is measured when it is asked for by name, and the failures of the short look.
SHORT_DELAYS = (
    (Trial("x:1s", BOTH[0], "1s", (2, 2, 3, 3, 5, 5, 10, 10, 20, 30)), (2.0, 5.0)),
    (Trial("x:chain", BOTH[0], "2s", (3, 5, 10, 20), nodes=4), (5.0,)),
    (Trial("x:delay", BOTH[1], "2s", (3, 5, 10)), (5.0,)),
)


def trials(full: bool, only: Sequence[str] = ()) -> list[Trial]:
    """`only`: figures, tables or parts of them; all, if none is named."""

    def named(figure: str) -> bool:
        return not only or any(f"{figure}:".startswith(f"{one}:") for one in only)

    short = [whole if full or only else whole._replace(failures_s=few) for whole, few in SHORT_DELAYS]
    return [trial for trial in (*of_the_text(full), *short) if named(trial.figure)]


def of_the_text(full: bool) -> list[Trial]:
    """The figures and the table of the seeds' text."""
    if not full:
        chosen = [Trial("5-8", policy, "2.7s", (2, 10)) for policy in (*BOTH, ("process", "suspend"))]
        chosen += [Trial("5-10", policy, "2s", (10,), nodes=2) for policy in BOTH]
        chosen += [Trial("5-14", BOTH[0], "4s", (3, 5), nodes=2)]
        return [*chosen, *(Trial("5.2", BOTH[0], "2s", (), bucket=size) for size in TABLE_52[1::2])]
    durations = (2, 5, 10, 30, 60)
    chosen = [Trial("5-7", policy, f"{d}s", (5,)) for policy in BOTH for d in (1, 2, 3, 4, 6)]
    chosen += [Trial("5-8", policy, "2.7s", durations) for policy in COMBINATIONS]
    chosen += [Trial("5-8", ("suspend", "suspend"), "2.7s", (2, 10, 30))]
    chosen += [Trial("5-10", policy, "2s", (5, 10, 30, 60), nodes=4) for policy in BOTH]
    chosen += [Trial("5-14", BOTH[0], "8s", (3, 5, 10, 30, 60), nodes=4)]
    return [*chosen, *(Trial("5.2", BOTH[0], "2s", (), bucket=size) for size in TABLE_52)]


# The application ------------------------------------------------------------------------------------------------------


def counted(connections: DataFrame) -> DataFrame:
    return connections.groupBy(F.window("stime", "500 milliseconds"), "source").agg(F.sum("bytes").alias("bytes"))


def passed_on(connections: DataFrame) -> DataFrame:
    return connections.select("stime", "source", "bytes")


class Watched(threading.Thread):
    """A client, and its recording, which is asked about single failures."""

    def __init__(self, stream: holdfast.Stream) -> None:
        super().__init__(name=f"client-{stream.name}", daemon=True)
        self._subscriber = stream.subscribe(start="live", tentative=True)
        self._end = threading.Event()
        self.recording = Recording(bucket_us=stream.definition.bucket_us, slot_us=_SLOT_US)
        self.trouble: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            while not self._end.wait(_POLL_US / 1e6):
                for batch in self._subscriber.poll():
                    self.recording.take(batch, now_us())
        except BaseException as error:
            self.trouble = error
        finally:
            self._subscriber.close()

    def end(self) -> None:
        self._end.set()
        self.join()

    def normal(self, since_us: int) -> tuple[float, float, float]:
        """Median and largest latency without a failure in seconds, and stable tuples per second."""
        latency = self.recording.latency(since_us)
        assert latency is not None, "nothing came out of the node: it is not running"
        return latency.us_median / 1e6, latency.us_max / 1e6, latency.tuples / ((now_us() - since_us) / 1e6)


def build(root: Path, trial: Trial) -> tuple[holdfast.App, tuple[str, ...]]:
    """The application, and its outputs by depth."""
    app = holdfast.App("tradeoff", root=root)
    options: dict[str, Any] = {"max_delay": trial.delay, "during_failure": trial.policy[0],
                               "during_stabilisation": trial.policy[1], "warm": trial.warm}  # fmt: skip
    first = passed_on if trial.nodes > 1 or trial.figure == "5.2" else counted
    app.node(inputs=MONITORS, name=NODES[0], **options)(first)
    for above, node in itertools.pairwise(NODES[: trial.nodes]):
        app.node(inputs=above, name=node, **options)(passed_on)
    return app, NODES[: trial.nodes]


@contextmanager
def at_work(spark: SparkSession, root: Path, trial: Trial) -> Iterator[tuple[Running, list[Watched]]]:
    """The application between live monitors and one client per output, warm."""
    store = holdfast.open(root)
    monitors = [Monitor(store.create(name, COLUMNS, bucket=trial.bucket), n) for n, name in enumerate(MONITORS)]
    for monitor in monitors:
        monitor.start()
    app, outputs = build(root, trial)
    try:
        with app.start(spark=spark) as running:
            running.wait_until_stable("90s")
            clients = [Watched(store.open(output)) for output in outputs]
            try:
                settle(clients)
                yield running, clients
            finally:
                for client in clients:
                    client.end()
    finally:
        for monitor in monitors:
            monitor.end()


def settle(clients: Sequence[Watched]) -> None:
    """Wait until the queries are warm and have caught up with what came while they started."""
    deadline = monotonic_us() + SETTLED_US_MAX
    while monotonic_us() < deadline:
        pause(WARM_UP_US)
        latencies = [client.recording.latency(now_us() - CALM_US) for client in clients]
        if all(latency is not None and latency.us_max < SETTLED_US for latency in latencies):
            return


# A failure ------------------------------------------------------------------------------------------------------------


def run(spark: SparkSession, root: Path, trial: Trial) -> list[Point]:
    """All failures of one trial; without any, its normal latency alone."""
    with at_work(spark, root, trial) as (running, clients):
        since_us, bystanders = now_us(), Bystanders()
        pause(2 * WARM_UP_US if not trial.failures_s else WARM_UP_US)
        normals = [client.normal(since_us) for client in clients]
        fork = time_to_fork(root)
        found: list[Point] = []

        def add(failure_s: float, cut_us: int, others: float) -> None:
            for depth, (client, normal) in enumerate(zip(clients, normals, strict=True), 1):
                found.append(point(trial, failure_s, depth, client.recording, cut_us, normal, fork, others))

        if not trial.failures_s:
            add(0.0, since_us, bystanders.share())
        for failure_s in trial.failures_s:
            for _ in range(TRIES if trial.judged else 1):
                if trial.judged:
                    rest(running)
                bystanders, cut_us = Bystanders(), now_us()
                fail(running, clients, failure_s)
                add(failure_s, cut_us, others := bystanders.share())
                if others <= OTHERS_MAX:
                    break
    return found


def rest(running: Running) -> None:
    """Wait until the forks that are kept ready are there again, and have taken their first steps."""
    deadline = monotonic_us() + SETTLED_US_MAX
    while monotonic_us() < deadline:
        if all(replica["fork"]["state"] == "ready" for replica in running.status()["replicas"]):
            break
        pause(_POLL_US)
    pause(REST_US)


def fail(running: Running, clients: Sequence[Watched], failure_s: float) -> None:
    """Cut one input off, heal it, and wait until everything is corrected and calm."""
    for client in clients:
        client.recording.mark(now_us(), f"cut {MONITORS[-1]}")
    running.fail(MONITORS[-1])
    pause(round(failure_s * SECOND_US))
    for client in clients:
        client.recording.mark(now_us(), f"healed {MONITORS[-1]}")
    running.heal(MONITORS[-1])
    deadline = monotonic_us() + CORRECTED_US_MAX
    calm_since = monotonic_us()
    while monotonic_us() < min(deadline, calm_since + CALM_US):
        for client in clients:
            if client.trouble is not None:
                raise client.trouble
        states = [replica["state"] for replica in running.status()["replicas"]]
        if any(state != "STABLE" for state in states) or any(c.recording.state != "STABLE" for c in clients):
            calm_since = monotonic_us()
        pause(_POLL_US)


def point(trial: Trial, failure_s: float, depth: int, recording: Recording, cut_us: int,
          normal: tuple[float, float, float], fork: tuple[float, int], others: float) -> Point:  # fmt: skip
    median_s, max_s, rate = normal
    latency = recording.latency(cut_us) if failure_s else None
    last = recording.failures()[-1] if failure_s else None
    tentative = last.tentative if last else 0
    correct_us = last.to_correct_us if last else None
    return Point(
        trial.figure, " & ".join(trial.policy), float(trial.delay.rstrip("s")), failure_s, depth,
        float(trial.bucket.rstrip("ms")), round(median_s, 3), round(max_s, 3),
        round(latency.us_max / 1e6, 3) if latency else round(max_s, 3), tentative, round(tentative / rate, 2),
        None if correct_us is None else round(correct_us / 1e6, 3), *fork, others,
        latest(recording, cut_us) if failure_s else "",
    )  # fmt: skip


def latest(recording: Recording, since_us: int) -> str:
    cells = [cell for cell in recording.cells() if cell.new and cell.wall_us >= since_us]
    if not cells:
        return ""
    cell = max(cells, key=lambda cell: cell.latency_us_max)
    kind = "tentative" if cell.type == TupleType.TENTATIVE else "stable"
    return f"{kind} at {(cell.wall_us - since_us) / SECOND_US:.1f} s"


def time_to_fork(root: Path) -> tuple[float, int]:
    """Table 5.1's S·p_copy: milliseconds to link the checkpoint of the running node, and how many files that were."""
    checkpoint = root / ".holdfast" / "nodes" / "first" / "checkpoint"
    began = monotonic_us()
    forked = fork_checkpoint(checkpoint, root / "forked")
    return round((monotonic_us() - began) / 1000, 1), forked.files


def warm_cost(spark: SparkSession, root: Path) -> tuple[float, float]:
    """What a fork that is kept ready costs in quiet times, as a share of all cores: with one, less without. Without one
    it is measured before and after, since Java gets quicker with time. And the largest share that others had."""
    shares, others = [], 0.0
    for number, warm in enumerate((0.0, WARM_SHARE, 0.0)):
        trial = Trial("x:cost", ("process", "process"), "1s", (), warm=warm)
        with at_work(spark, root / str(number), trial):
            pause(WARM_UP_US)
            before, began, bystanders = our_seconds(), monotonic_us(), Bystanders()
            pause(_COST_US)
            used = our_seconds() - before
            others = max(others, bystanders.share())
            shares.append(used / (len(os.sched_getaffinity(0)) * (monotonic_us() - began) / SECOND_US))
    return round(shares[1] - (shares[0] + shares[2]) / 2, 4), others


# All of them ----------------------------------------------------------------------------------------------------------


def measure(spark: SparkSession, chosen: Sequence[Trial], seen: Callable[[Point], None]) -> None:
    for trial in chosen:
        console.print(
            f"figure {trial.figure}: {' & '.join(trial.policy)}, D = {trial.delay}, failures of {trial.failures_s} s, "
            f"{trial.nodes} node(s), buckets of {trial.bucket} …"
        )
        with tempfile.TemporaryDirectory(dir=".", prefix=".bench-") as scratch:
            for found in run(spark, Path(scratch).absolute(), trial):
                seen(found)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benches.dpc_tradeoff", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="a few durations, the default")
    size.add_argument("--full", action="store_true", help="failures of 2 to 60 s, all policies")
    parser.add_argument("--only", help="figures or tables, separated by commas: 5-7, 5-8, 5-10, 5-14, 5.2, x, or a "
                        "part of x: x:1s, x:chain, x:delay, x:cost")  # fmt: skip
    parser.add_argument("--warm", type=float, default=WARM_SHARE,
                        help=f"the share of time of forks that are kept ready: {WARM_SHARE}")  # fmt: skip
    parser.add_argument("--policy", help="only this one, such as 'delay & delay'")
    parser.add_argument("--points", type=Path, help="file of JSON lines to add to, and to draw all of")
    parser.add_argument("--report", type=Path, help="where to write the figures (HTML)")
    parser.add_argument("--draw", action="store_true", help="measure nothing: draw what --points holds")
    given = parser.parse_args()
    points: list[Point] = []
    if given.points is not None and given.points.exists():
        points = [msgspec.json.decode(line, type=Point) for line in given.points.read_bytes().splitlines()]

    def seen(found: Point) -> None:
        points.append(found)
        if given.points is not None:
            with given.points.open("ab") as file:
                file.write(msgspec.json.encode(found) + b"\n")

    only = given.only.split(",") if given.only else []
    chosen = [t for t in trials(given.full, only) if given.policy in (None, " & ".join(t.policy))]
    chosen = [t._replace(warm=given.warm) for t in chosen]
    cost: tuple[float, float] | None = None
    if not given.draw:
        spark = node_session("bench-dpc-tradeoff", spark_driver_extraJavaOptions=JAVA_OPTIONS)
        spark.sparkContext.setLogLevel("OFF")
        measure(spark, chosen, seen)
        if not only or {"x", "x:cost"} & set(only):
            console.print("what a fork that is kept ready costs …")
            with tempfile.TemporaryDirectory(dir=".", prefix=".bench-") as scratch:
                cost = warm_cost(spark, Path(scratch).absolute())
        spark.stop()
    table(
        "what failures did (D, failure, latencies and correction in s, bucket in ms)",
        ["policy, figure", "D", "failure", "nodes", "bucket", "normal", "Proc_new", "added", "tentative", "corrected",
         "others", "latest"],
        [[f"{p.policy}, {p.figure}", f"{p.delay_s:g}", f"{p.failure_s:g}", p.depth, f"{p.bucket_ms:g}", p.normal_s,
          p.proc_new_s, p.added_s, p.tentative, "–" if p.correct_s is None else p.correct_s,
          f"{p.others:.0%}", p.latest] for p in points],
    )  # fmt: skip
    if given.report is not None:
        draw(given.report, points)
        console.print(f"figures: {given.report}")
    summary(points, {trial.figure: len(trial.failures_s) for trial in chosen}, cost)


if __name__ == "__main__":
    main()
