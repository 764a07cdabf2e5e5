"""Applications in one process, on real Spark: nodes whose inputs fail, end, or lose their beginning."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import holdfast
import holdfast.host.controller as controllers
from holdfast.checkpoint.policy import every
from holdfast.clock import monotonic_us, pause
from holdfast.host.catalog import Catalog
from holdfast.host.deployment import load_deployment
from holdfast.host.embedded import Running
from holdfast.host.host import Host
from holdfast.model.errors import UsageError
from holdfast.model.tuples import TupleType
from holdfast.operators.udop import UserOperator, decode, encode
from holdfast.sinks import sqlite
from holdfast.spark.engine import SparkEngine, node_session
from holdfast.spark.fork import last_commit
from holdfast.spark.keyed import udop
from holdfast.stream.checking.boundary_mend import mend_boundary
from holdfast.stream.holes import read_holes
from holdfast.stream.store import StripedStream
from tests.checkpoint.servers import RedisServer
from tests.host.conftest import until as soon

T0 = 1_700_000_000
SECOND = 1_000_000
#: How long quiet times are watched.
CALM_S = float(os.environ.get("HOLDFAST_CALM_S", "10"))
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    spark = node_session("holdfast-tests", ["watched"], master="local[2,4]", spark_sql_shuffle_partitions="1")
    spark.sparkContext.setLogLevel("OFF")
    yield spark
    spark.stop()


def test_the_pools_of_a_node_are_known_to_spark_before_its_queries_name_them(spark: SparkSession) -> None:
    context = spark.sparkContext._jsc.sc()
    found = [context.getPoolForName(name).isDefined() for name in ("watched", "watched-fork", "other")]
    assert found == [True, True, False]


class Source:
    """A stream whose tuples and boundaries come when the test says so. `k` counts up."""

    def __init__(self, store: holdfast.StreamStore, name: str, **options: Any) -> None:
        self.stream = store.create(name, "k bigint", bucket="1s", **options)
        self._producer = self.stream.producer(stime="stime", slack="0s")

    def fill(self, first: int, upto: int, per_second: int = 4) -> None:
        rows = [
            {"stime": datetime.fromtimestamp(T0 + s + i / per_second, UTC), "k": s * per_second + i}
            for s in range(first, upto)
            for i in range(per_second)
        ]
        self._producer.send_many(rows)
        self._producer.advance((T0 + upto) * SECOND)

    def end(self) -> None:
        self._producer.close()

    def leave(self) -> None:
        """Stop, without ending the stream."""
        self._producer.close(end=False)


def until(condition: Callable[[], Any], seconds: float = 240) -> None:
    deadline = monotonic_us() + round(seconds * SECOND)
    while not condition():
        assert monotonic_us() < deadline, "it did not come true"
        pause(20_000)


def stable(stream: holdfast.Stream) -> list[dict[str, Any]]:
    return [row for batch in stream.subscribe().poll() for row in batch.to_pylist()]


def state(running: Running, replica: str) -> dict[str, Any]:
    return next(r for r in running.status()["replicas"] if r["replica"] == replica)


def reached(stream: holdfast.Stream, second: int) -> Callable[[], bool]:
    return lambda: stream.reader().closed_until_us >= (T0 + second) * SECOND


class Live(threading.Thread):
    """A stream that grows with time until `end`, as a source does: `k` counts up, boundaries follow the clock."""

    def __init__(self, store: holdfast.StreamStore, name: str, stripes: int | None = None) -> None:
        super().__init__(daemon=True)
        self._stream: holdfast.Stream | StripedStream
        if stripes is None:
            self._stream = store.create(name, "k bigint", bucket="500ms")
        else:
            self._stream = store.create_striped(name, "k bigint", stripes=stripes, bucket="500ms")
        self._over = threading.Event()
        self.sent = 0
        self.start()

    def run(self) -> None:
        with self._stream.producer() as producer:
            while not self._over.is_set():
                producer.send({"k": self.sent})
                self.sent += 1
                pause(50_000)

    def end(self) -> None:
        self._over.set()
        self.join()


def _corrected(got: list[pa.RecordBatch]) -> bool:
    """Nothing tentative is left: REC_DONE has the last word. News between the corrections have UNDOs of their own."""
    kinds = [TupleType(kind) for batch in got for kind in batch.column("tuple_type").to_pylist()]
    return [k for k in kinds if k not in (TupleType.INSERTION, TupleType.BOUNDARY)][-1] is TupleType.REC_DONE


def test_a_fork_is_kept_ready_and_follows_main_and_is_used_when_an_input_is_cut(
    spark: SparkSession, tmp_path: Path
) -> None:
    """D1, D3, D5, D17: with an X of a second, as nobody has asked for it."""
    store = holdfast.open(tmp_path)
    left, right = Live(store, "left"), Live(store, "right")
    app = holdfast.App("warm", root=tmp_path)

    @app.node(inputs=["left", "right"], max_delay="1s")
    def sums(rows: DataFrame) -> DataFrame:
        origin = F.col("stream").alias("origin")
        return rows.groupBy(F.window("stime", "1 second"), origin).agg(F.sum("k").alias("k"), F.count("*").alias("n"))

    with app.start(spark=spark) as running:
        running.wait_until_stable("240s")
        output = store.open("sums")
        subscriber = output.subscribe(tentative=True)
        got: list[pa.RecordBatch] = []

        def seen(kind: TupleType) -> int:
            got.extend(subscriber.poll())
            return sum(batch.column("tuple_type").to_pylist().count(kind) for batch in got)

        def follows() -> bool:
            """A fork reads on with main and says nothing. A machine that stands still for an X needs it, rightly."""
            fork, tentative = state(running, "sums@here")["fork"], seen(TupleType.TENTATIVE)
            if fork["state"] != "ready":
                return False
            checkpoint = tmp_path / ".holdfast" / "nodes" / "sums" / "forks" / str(fork["id"]) / "checkpoint"
            started = last_commit(checkpoint)
            until(lambda: last_commit(checkpoint) > started + 2 or state(running, "sums@here")["fork"] != fork)
            now = state(running, "sums@here")
            return (now["fork"], now["state"], seen(TupleType.TENTATIVE)) == (fork, "STABLE", tentative)

        until(follows)
        before = seen(TupleType.TENTATIVE)
        running.fail("right")
        until(lambda: seen(TupleType.TENTATIVE) > before)
        running.heal("right")
        until(lambda: seen(TupleType.REC_DONE) > 0 and state(running, "sums@here")["state"] == "STABLE")
        until(lambda: state(running, "sums@here")["fork"]["state"] == "ready")
        left.end()
        right.end()
        until(lambda: output.reader().closed)
    rows = stable(output)
    for stream, live in (("left", left), ("right", right)):
        of = [row for row in rows if row["origin"] == stream]
        assert sum(row["n"] for row in of) == live.sent
        assert sum(row["k"] for row in of) == live.sent * (live.sent - 1) // 2


def test_a_cut_input_gives_tentative_results_that_are_replaced_and_a_restart_goes_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    """D1, D3, D8, T1, T2, through the public API, into a table."""
    store = holdfast.open(tmp_path)
    left, right = Live(store, "left"), Live(store, "right")
    app = holdfast.App("two", root=tmp_path)

    @app.node(inputs=["left", "right"], max_delay="2s")
    def both(rows: DataFrame) -> DataFrame:
        return rows.select("stime", "k", F.col("stream").alias("origin"))

    app.sink("both", sqlite(tmp_path / "both.db", "results", tentative=True))

    def in_table(what: str) -> list[Any]:
        return sqlite3.connect(tmp_path / "both.db").execute(f"select {what} from results").fetchall()

    with app.start(spark=spark) as running:
        running.wait_until_stable("240s")
        output = store.open("both")
        subscriber = output.subscribe(tentative=True)
        got: list[pa.RecordBatch] = []

        def seen(kind: TupleType) -> int:
            got.extend(subscriber.poll())
            return sum(batch.column("tuple_type").to_pylist().count(int(kind)) for batch in got)

        until(lambda: seen(TupleType.INSERTION))
        running.fail("right")
        until(lambda: seen(TupleType.TENTATIVE) > 20)
        until(lambda: in_table("sum(tentative)") > [(20,)])
        worth = subscriber.worth(got[-1].column("stime")[-1].as_py())
        assert worth is not None
        assert (worth.inputs, 0 < worth.worth < 1) == (("left",), True)
        running.heal("right")
        until(lambda: seen(TupleType.REC_DONE))
        until(lambda: state(running, "both@here")["fork"]["state"] != "running")
        assert output.branch() is None
        until(lambda: seen(TupleType.UNDO) and _corrected(got))
        until(lambda: in_table("sum(tentative)") == [(0,)])
        tentative = {r["origin"] for b in got for r in b.to_pylist() if r["tuple_type"] == TupleType.TENTATIVE}
        assert "left" in tentative
    for source in (left, right):
        source.end()
    with app.start(spark=spark) as running:
        until(lambda: output.reader().closed)
        until(lambda: running.status()["sinks"][0]["state"] == "ENDED")
    results = stable(output)
    expected = [(r["tuple_id"], r["k"], r["origin"], 0) for r in results]
    assert sorted(in_table("holdfast_id, k, origin, tentative")) == expected
    for name, source in (("left", left), ("right", right)):
        assert [r["k"] for r in results if r["origin"] == name] == list(range(source.sent))
    assert [r["stime"] for r in results] == sorted(r["stime"] for r in results)
    assert not list((tmp_path / ".holdfast" / "nodes" / "both").glob("forks/*"))


@pytest.mark.skipif("HOLDFAST_STRIPE_KILLS" not in os.environ, reason="HOLDFAST_STRIPE_KILLS=50: half a minute")
def test_a_stripe_that_is_cut_off_gives_tentative_results_and_then_the_right_ones(
    spark: SparkSession, tmp_path: Path
) -> None:
    """D1, D3, D8: the stripes are inputs of the node, and come to its function as one frame."""
    store = holdfast.open(tmp_path)
    orders, payments = Live(store, "orders", stripes=3), Live(store, "payments")
    app = holdfast.App("striped", root=tmp_path)
    app.striped("orders", 3)

    @app.node(inputs=["orders", "payments"], max_delay="2s")
    def both(orders: DataFrame, payments: DataFrame) -> DataFrame:
        of_orders, of_payments = (
            frame.select("stime", "k", F.lit(name).alias("origin"))
            for name, frame in (("orders", orders), ("payments", payments))
        )
        return of_orders.unionByName(of_payments)

    with app.start(spark=spark) as running:
        running.wait_until_stable("240s")
        output = store.open("both")
        subscriber = output.subscribe(tentative=True)
        got: list[pa.RecordBatch] = []

        def seen(kind: TupleType) -> int:
            got.extend(subscriber.poll())
            return sum(batch.column("tuple_type").to_pylist().count(int(kind)) for batch in got)

        until(lambda: seen(TupleType.INSERTION))
        running.fail("orders.s1")
        until(lambda: seen(TupleType.TENTATIVE) > 20)
        worth = subscriber.worth(got[-1].column("stime")[-1].as_py())
        assert worth is not None
        assert worth.inputs == ("orders.s0", "orders.s2", "payments")
        running.heal("orders.s1")
        until(lambda: seen(TupleType.REC_DONE))
        for source in (orders, payments):
            source.end()
        until(lambda: output.reader().closed)
    results = stable(output)
    for name, source in (("orders", orders), ("payments", payments)):
        assert sorted(r["k"] for r in results if r["origin"] == name) == list(range(source.sent))


def test_a_fork_goes_on_with_the_states_of_an_operator_of_the_users(spark: SparkSession, tmp_path: Path) -> None:
    """S1: what it computes begins where the stable results end, and is never seen there."""

    class Numbering(UserOperator):
        def __init__(self) -> None:
            self.n = 0

        def process(self, row: dict[str, Any]) -> list[dict[str, Any]]:
            self.n += 1
            return [{"stime": row["stime"], "origin": row["stream"], "n": self.n}]

        def checkpoint(self) -> bytes:
            return encode(self.n)

        def restore(self, saved: bytes) -> None:
            self.n = decode(saved)

    store = holdfast.open(tmp_path)
    left, right = Live(store, "left"), Live(store, "right")
    app = holdfast.App("numbers", root=tmp_path)
    numbering = udop("numbering", Numbering, key="stream", schema="stime timestamp, origin string, n bigint",
                     scratch=str(tmp_path / "scratch"))  # fmt: skip
    app.node(inputs=["left", "right"], name="numbered", max_delay="2s")(lambda rows: rows.transform(numbering))
    with app.start(spark=spark) as running:
        running.wait_until_stable("240s")
        (operator,) = state(running, "numbered@here")["operators"]
        assert (operator["name"], operator["kind"]) == ("numbering", "user-defined operator")
        output = store.open("numbered")
        subscriber = output.subscribe(tentative=True)
        got: list[dict[str, Any]] = []

        def seen(kind: TupleType) -> int:
            got.extend(row for batch in subscriber.poll() for row in batch.to_pylist())
            return sum(row["tuple_type"] == kind for row in got)

        until(lambda: seen(TupleType.INSERTION) > 40)
        running.fail("right")
        until(lambda: seen(TupleType.TENTATIVE) > 20)
        numbers = [row["n"] for row in got if row["origin"] == "left"]
        assert numbers == list(range(1, len(numbers) + 1)), "tentative ones go on where the stable ones end"
        running.heal("right")
        until(lambda: seen(TupleType.REC_DONE))
        for source in (left, right):
            source.end()
        until(lambda: output.reader().closed)
    results = stable(output)
    for name, source in (("left", left), ("right", right)):
        assert [r["n"] for r in results if r["origin"] == name] == list(range(1, source.sent + 1))


def test_nodes_join_and_follow_each_other_to_the_end_of_their_inputs(spark: SparkSession, tmp_path: Path) -> None:
    """Inputs as separate arguments, a chain of two nodes, and streams that end."""
    store = holdfast.open(tmp_path)
    left, right = Source(store, "left"), Source(store, "right")
    app = holdfast.App("joined", root=tmp_path)

    @app.node(inputs=["left", "right"], max_delay="2s")
    def pairs(left: DataFrame, right: DataFrame) -> DataFrame:
        near = F.expr("l.k = r.k and r.stime >= l.stime - interval 1 second and r.stime <= l.stime + interval 1 second")
        return left.alias("l").join(right.alias("r"), near).select("l.stime", "l.k")

    @app.node(inputs=["pairs"], max_delay="2s")
    def sums(pairs: DataFrame) -> DataFrame:
        return pairs.groupBy(F.window("stime", "2 seconds")).agg(F.sum("k").alias("total"))

    for source in (left, right):
        source.fill(0, 6)
        source.end()
    with app.start(spark=spark):
        until(lambda: "sums" in store.names() and store.open("sums").reader().closed)
    assert [r["k"] for r in stable(store.open("pairs"))] == list(range(24))
    assert [r["total"] for r in stable(store.open("sums"))] == [sum(range(w * 8, w * 8 + 8)) for w in range(3)]


@pytest.mark.alone
def test_a_chain_whose_first_node_commits_once_a_second_suspects_nobody_in_quiet_times(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """D16: a boundary moves once per commit, two buckets at a time. Judged by three keepalives and a bucket alone, that
    was a failure with every commit. HOLDFAST_CALM_S=180 watches for three minutes."""
    store = holdfast.open(tmp_path)
    live = Live(store, "left")
    app = holdfast.App("calm", root=tmp_path)

    def once_a_second(batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        time.sleep(0.85)
        yield from batches

    @app.node(inputs=["left"], max_delay="4s")
    def slow(rows: DataFrame) -> DataFrame:
        return rows.select("stime", "k").coalesce(1).mapInPandas(once_a_second, "stime timestamp, k bigint")

    @app.node(inputs=["slow"], max_delay="4s")
    def counts(rows: DataFrame) -> DataFrame:
        return rows.groupBy(F.window("stime", "1 second")).count()

    caplog.set_level(logging.INFO, "holdfast")
    with app.start(spark=spark) as running:
        running.wait_until_stable("240s")
        commits = tmp_path / ".holdfast" / "nodes" / "slow" / "checkpoint"
        settled = last_commit(commits) + 8  # Each boundary was seen to move, and the first batches are over.
        until(lambda: last_commit(commits) >= settled)
        until(lambda: all(replica["state"] == "STABLE" for replica in running.status()["replicas"]))

        def forks() -> dict[str, int]:
            return {replica["replica"]: replica["fork"]["id"] for replica in running.status()["replicas"]}

        caplog.clear()
        before, first, began = forks(), last_commit(commits), monotonic_us()
        pause(round(CALM_S * SECOND))
        seconds, steps = (monotonic_us() - began) / SECOND, last_commit(commits) - first
        entries = [r.getMessage() for r in caplog.records if "UP_FAILURE after" in r.getMessage()]
        started = {replica: fork - before[replica] for replica, fork in forks().items()}
        print(f"{seconds:.0f} s, {steps} commits, {len(entries)} entries into UP_FAILURE, forks started: {started}")
        live.end()
        assert 0.7 < seconds / steps < 2.0, "a commit a second or so is what this is about"
        assert entries == []
        assert set(started.values()) == {0}


def test_an_application_whose_inputs_have_ended_comes_to_its_end(spark: SparkSession, tmp_path: Path) -> None:
    """`app.run()` returns; what its nodes write has ended, too."""
    store = holdfast.open(tmp_path)
    source = Source(store, "s")
    app = holdfast.App("ending", root=tmp_path)
    app.node(inputs=["s"], name="sums")(lambda rows: rows.groupBy(F.window("stime", "2 seconds")).count())
    source.fill(0, 4)
    source.end()
    app.run(spark=spark)
    assert store.open("sums").reader().closed
    assert [r["count"] for r in stable(store.open("sums"))] == [8, 8]


def test_a_mistake_in_a_node_is_said_by_its_start_and_a_stream_that_is_not_there_by_who_waits(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Errors that no retry can mend are not retried; none of them shows a plan."""
    store = holdfast.open(tmp_path)
    source = Source(store, "s")
    source.fill(0, 2)

    def app(inputs: list[str], function: Callable[[DataFrame], DataFrame], name: str) -> holdfast.App:
        app = holdfast.App("mistaken", root=tmp_path)
        app.node(inputs=inputs, name=name)(function)
        return app

    with pytest.raises(UsageError, match="needs an stime"):
        app(["s"], lambda rows: rows.select("k"), "timeless").start(spark=spark)
    with pytest.raises(UsageError, match=r"column.*`ky` cannot be resolved") as told:
        app(["s"], lambda rows: rows.select("stime", "ky"), "typo").start(spark=spark)
    assert "\n" not in str(told.value)
    with pytest.raises(UsageError, match=r"(?i)append"):
        app(["s"], lambda rows: rows.groupBy("k").agg(F.max("stime").alias("stime")), "endless").start(spark=spark)
    with pytest.raises(UsageError, match="must not look at the clock"):
        app(["s"], lambda rows: rows.withColumn("at", F.current_timestamp()), "clocked").start(spark=spark)
    with pytest.raises(UsageError, match="got a limit on a stream"):
        app(["s"], lambda rows: rows.limit(3), "first").start(spark=spark)
    with pytest.raises(UsageError, match="got a readStream of its own"):
        app(["s"], lambda rows: spark.readStream.format("rate").load().withColumnRenamed("timestamp", "stime"),
            "own").start(spark=spark)  # fmt: skip
    with pytest.raises(UsageError, match="processing-time timeouts"):
        app(["s"], lambda rows: rows.groupBy("k").applyInPandasWithState(
            lambda key, frames, state: iter([]), "stime timestamp", "n bigint", "append", "ProcessingTimeTimeout"
        ), "timed").start(spark=spark)  # fmt: skip
    with pytest.raises(
        UsageError, match=r"node raises must .* it raised KeyError: 'ky' \(test_embedded\.py line \d+\)"
    ):
        app(["s"], lambda rows: rows.filter({"k": "k > 0"}["ky"]), "raises").start(spark=spark)
    running = app(["s", "o"], lambda rows: rows.select("stime", "k"), "waiting").start(spark=spark)
    with running, pytest.raises(TimeoutError, match="waiting@here is WAITING, because stream o is not there yet"):
        running.wait_until_stable("1s")
    assert any("stream o is not there yet" in r.message for r in caplog.records if r.levelname == "WARNING")
    source.leave()


def test_a_python_error_in_the_function_of_one_node_leaves_the_others_of_its_host_alone(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "two.py").write_text(
        "import holdfast\n\napp = holdfast.App('two')\n\n\n@app.node(inputs=['s'])\ndef raises(rows):\n"
        "    return rows.filter({'k': 'k > 0'}['ky'])\n\n\napp.node(inputs=['s'], name='copies')(lambda rows: rows)\n"
    )
    (tmp_path / "d.yaml").write_text(
        'app: two.py\nhosts: {a: {address: "127.0.0.1:7401", root: a/}}\nsources: {s: a}\n'
    )
    deployment = load_deployment(tmp_path / "d.yaml")
    source = Source(holdfast.open(tmp_path / "a"), "s")
    source.fill(0, 2)
    catalog = Catalog(deployment.load_app().diagram(), deployment)
    host = Host("a", catalog, tmp_path / "a", SparkEngine(lambda: spark))

    async def play() -> None:
        def states() -> dict[str, str]:
            return {r["node"]: r["state"] for r in host.status()["replicas"]}

        task = asyncio.ensure_future(host.run())
        await soon(lambda: task.done() or states() == {"raises": "FAILED", "copies": "STABLE"}, 240)
        (why,) = [r["why"] for r in host.status()["replicas"] if r["node"] == "raises"]
        assert "it raised KeyError: 'ky' (two.py line 8); correct the function" in why
        source.fill(2, 4)
        await soon(lambda: task.done() or reached(host.store.open("copies"), 4)(), 240)
        assert not task.done()
        assert states()["raises"] == "FAILED"
        host.stop()
        await task

    asyncio.run(play())
    source.leave()


def test_a_batch_that_dies_of_its_rows_every_time_fails_its_node_and_of_a_server_that_is_away_it_does_not(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_RESTART_US_MIN", "_RESTART_US_MAX"):
        monkeypatch.setattr(controllers, name, 1000)
    monkeypatch.setattr(controllers, "CAUSE_DEATHS_MAX", 2)
    source = Source(holdfast.open(tmp_path), "s")
    source.fill(0, 2)

    def inverse(k: int) -> int:
        return 1 // k

    def asked(k: int) -> int:
        raise ConnectionRefusedError("nobody listens")

    app = holdfast.App("dying", root=tmp_path)
    node = functools.partial(app.node, inputs=["s"], max_delay="1h")
    node(name="raised")(lambda rows: rows.withColumn("n", F.udf(inverse, "bigint")("k")))
    node(name="divided")(lambda rows: rows.withColumn("n", F.lit(1) / F.col("k")))
    node(name="away")(lambda rows: rows.withColumn("n", F.udf(asked, "bigint")("k")))
    with app.start(spark=spark) as running:
        until(lambda: state(running, "raised@here")["state"] == state(running, "divided@here")["state"] == "FAILED")
        whys = {r["node"]: r.get("why", "") for r in running.status()["replicas"]}
        assert whys["raised"].startswith("ZeroDivisionError: integer division or modulo by zero (test_embedded.py ")
        assert whys["divided"].startswith("[DIVIDE_BY_ZERO] Division by zero.")
        assert all("has died of this 2 times in the same batch (" in whys[node] for node in ("raised", "divided"))
        until(lambda: "3 times so far" in state(running, "away@here").get("why", ""))
        assert "ConnectionRefusedError: nobody listens (test_embedded.py " in state(running, "away@here")["why"]
        with pytest.raises(UsageError, match=r"@here does not run: .* has died of this 2 times in the same batch"):
            running.wait_until_stable("60s")
    source.leave()


@pytest.mark.parametrize("exact", [False, True], ids=["effort", "exact"])
def test_a_node_whose_store_refuses_us_fails_at_once_with_its_sentence(
    spark: SparkSession, tmp_path: Path, exact: bool
) -> None:
    """A wrong password is not retried, and best effort does not pass over it."""

    class Counting(UserOperator):
        def process(self, row: dict[str, Any]) -> list[dict[str, Any]]:
            return [{"stime": row["stime"], "n": 1}]

        def checkpoint(self) -> bytes:
            return encode(1)

        def restore(self, saved: bytes) -> None:
            decode(saved)

    pytest.importorskip("redis")
    (tmp_path / "redis").mkdir()
    server = RedisServer(tmp_path / "redis", password="right")
    source = Source(holdfast.open(tmp_path), "s")
    source.fill(0, 4)
    counting = udop("counting", Counting, key="k", schema="stime timestamp, n bigint", scratch=str(tmp_path / "near"),
                    checkpoint=every("1s", exact=exact), store=server.address_with("wrong"))  # fmt: skip
    app = holdfast.App("refused", root=tmp_path)
    app.node(inputs=["s"], name="counted")(lambda rows: rows.transform(counting))

    def run() -> None:
        with app.start(spark=spark) as running:
            until(lambda: state(running, "counted@here")["state"] == "FAILED")
            running.wait_until_stable("1s")

    try:
        with pytest.raises(UsageError, match="must let us in"):
            run()
    finally:
        server.stop()
        source.leave()


def test_a_node_that_had_read_beyond_a_mended_boundary_does_not_go_on_from_its_checkpoint(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Once it did when the stream had passed its position again, without the rows between (D19)."""
    source = Source(holdfast.open(tmp_path), "s")
    source.fill(0, 4)
    source.fill(5000, 5001)
    app = holdfast.App("mended", root=tmp_path)
    app.node(inputs=["s"], name="copied")(lambda rows: rows.select("stime", "k"))
    with app.start(spark=spark) as running:
        running.wait_until_stable("120s")
        until(reached(holdfast.open(tmp_path).open("copied"), 5000))
    source.leave()
    to_us = (T0 + 10) * SECOND
    assert mend_boundary(source.stream.folder, source.stream.definition, to_us, now_us=to_us, apply=True).moved == 4
    again = source.stream.producer(stime="stime", slack="0s")
    again.advance((T0 + 6000) * SECOND)
    again.close(end=False)

    def run() -> None:
        with app.start(spark=spark) as running:
            until(lambda: state(running, "copied@here")["state"] == "FAILED")
            running.wait_until_stable("1s")

    with pytest.raises(UsageError, match=r"its boundary was taken back to .* start it anew"):
        run()


def test_a_convergent_node_goes_on_behind_a_gap_and_says_what_is_missing(spark: SparkSession, tmp_path: Path) -> None:
    """D14, §4.9.4: what the input lost is a hole of the output, never silence."""
    store = holdfast.open(tmp_path)
    source = Source(store, "s", segment_bytes=4096)
    app = holdfast.App("gap", root=tmp_path)

    @app.node(inputs=["s"], max_delay="2s", convergent="2s")
    def windows(rows: DataFrame) -> DataFrame:
        return rows.groupBy(F.window("stime", "2 seconds", "1 second")).count()

    source.fill(0, 4)
    with app.start(spark=spark):
        until(lambda: "windows" in store.names() and reached(store.open("windows"), 3)())
    for second in range(4, 60):
        source.fill(second, second + 1)
    source.stream.forget("replicas")  # Retention waits for them otherwise.
    removed = source.stream.retain(holdfast.Retention(size_bytes=8192))
    assert removed.rows > 0
    kept_us = source.stream.reader().stime_min_us
    assert kept_us is not None
    with app.start(spark=spark):
        until(reached(store.open("windows"), 59))
    (hole,) = read_holes(store.open("windows").folder)
    assert hole.upto_us >= kept_us + 2 * SECOND
    behind = [r for r in stable(store.open("windows")) if r["stime"].timestamp() * SECOND >= hole.upto_us]
    assert behind
    assert {r["count"] for r in behind} == {8}, "a window whose input is incomplete was called stable"
    source.leave()


def test_a_node_that_is_not_convergent_stops_at_a_gap_with_the_reason(spark: SparkSession, tmp_path: Path) -> None:
    store = holdfast.open(tmp_path)
    source = Source(store, "s", segment_bytes=4096)
    other = Source(store, "o")
    app = holdfast.App("stop", root=tmp_path)

    @app.node(inputs=["s"], max_delay="2s")
    def copies(rows: DataFrame) -> DataFrame:
        return rows.select("stime", "k")

    @app.node(inputs=["o"], max_delay="2s")
    def others(rows: DataFrame) -> DataFrame:
        return rows.select("stime", "k")

    source.fill(0, 4)
    other.fill(0, 4)
    with app.start(spark=spark):
        until(lambda: "copies" in store.names() and reached(store.open("copies"), 4)())
    for second in range(4, 60):
        source.fill(second, second + 1)
    source.stream.forget("replicas")
    assert source.stream.retain(holdfast.Retention(size_bytes=8192)).rows > 0
    with app.start(spark=spark) as running:
        until(lambda: state(running, "copies@here")["state"] == "FAILED")
        assert "convergent" in state(running, "copies@here")["why"]
        other.fill(4, 9)
        until(reached(store.open("others"), 9))
    source.leave()
    other.leave()
