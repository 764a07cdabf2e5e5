"""Tasks of a query append to the stripes of a stream themselves: each batch once, seen when all stripes have it."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import holdfast
from holdfast.model.errors import Fenced, StorageError, UsageError
from holdfast.spark import flow, flow_of, read_stream, to_stripes
from holdfast.spark.grants import VARIABLE
from holdfast.spark.striped_sink import Prepared, StripedSink, StripeTarget
from holdfast.stream.manifest import load_manifest
from holdfast.stream.store import StripedStream
from holdfast.stream.writer import LogWriter
from tests.spark.conftest import T0, at, fill, layout, tuples
from tests.spark.processes import REPOSITORY, environment, kill_tree, wait_for, wait_for_end
from tests.stream.archive_process import KilledDisk, Steps

ROWS = [(i * 0.2, f"k{i % 7}", i) for i in range(150)]
WINDOWED = "window struct<start:timestamp,end:timestamp>, key string, count bigint"
KILLS = int(os.environ.get("HOLDFAST_STRIPE_KILLS", "0")) or 3
at_length = pytest.mark.skipif("HOLDFAST_STRIPE_KILLS" not in os.environ, reason="HOLDFAST_STRIPE_KILLS=50: a minute")

Query = Callable[[SparkSession, holdfast.StreamStore, dict[str, Any]], DataFrame]


def windows(spark: SparkSession, store: holdfast.StreamStore, options: dict[str, Any]) -> DataFrame:
    frame = read_stream(spark, "a", root=store.root, boundaries="exact", **options)
    return frame.groupBy(F.window("stime", "4 seconds"), "key").count()


def stateless(spark: SparkSession, store: holdfast.StreamStore, options: dict[str, Any]) -> DataFrame:
    return read_stream(spark, "a", root=store.root, **options).filter("value % 3 != 0").select("stime", "key", "value")


QUERIES = {"windows": (windows, WINDOWED), "stateless": (stateless, "key string, value bigint")}


def run(frame: DataFrame, store: holdfast.StreamStore, checkpoint: Path, name: str, **options: str) -> None:
    writer = to_stripes(frame, name, root=store.root).option("checkpointLocation", str(checkpoint)).options(**options)
    writer.trigger(availableNow=True).start().awaitTermination()


def layouts(stream: StripedStream) -> list[list[tuple[Any, ...]]]:
    return [layout(stripe) for stripe in stream.stripes]


@pytest.fixture
def inputs(store: holdfast.StreamStore) -> holdfast.StreamStore:
    fill(store, "a", ROWS)
    return store


@pytest.mark.slow
@pytest.mark.parametrize(("name", "by"), [pytest.param("windows", "key", marks=at_length), ("stateless", None)])
def test_stripes_hold_what_one_stream_would_however_spark_cut_the_batches(
    spark: SparkSession, inputs: holdfast.StreamStore, tmp_path: Path, name: str, by: str | None
) -> None:
    """D9 in each stripe."""
    query, columns = QUERIES[name]
    plain = inputs.create("plain", columns, bucket="2s")
    options = {"root": str(inputs.root), "checkpointLocation": str(tmp_path / "one")}
    writer = query(spark, inputs, {}).writeStream.format("holdfast").options(**options)
    writer.trigger(availableNow=True).start("plain").awaitTermination()
    seen = []
    for cut, limit in enumerate(({}, {"maxRowsPerBatch": 80})):
        out = inputs.create_striped(f"out{cut}", columns, stripes=3, stripe_by=by, bucket="2s")
        run(query(spark, inputs, limit), inputs, tmp_path / f"ckpt{cut}", out.name)
        seen.append(layouts(out))
        found = [(row.stime, str(row.values)) for row in out.subscribe().rows()]
        expected = [(row.stime, str(row.values)) for row in plain.subscribe().rows()]
        assert Counter(found) == Counter(expected)
        assert len(expected) > 20
    assert seen[0] == seen[1]
    if by is not None:  # As producers deal.
        sent = inputs.create_striped("sent", "key string", stripes=3, stripe_by="key", bucket="100ms")
        with sent.producer() as producer:
            producer.send_many([(key,) for _, key, _ in ROWS])
        for one, other in zip(out.stripes, sent.stripes, strict=True):
            keys = {row.values["key"] for row in one.subscribe().rows()}
            assert keys == {row.values["key"] for row in other.subscribe().rows()}


def test_a_striped_stream_is_read_as_any_inputs(
    spark: SparkSession, store: holdfast.StreamStore, tmp_path: Path
) -> None:
    stream = store.create_striped("s", "key string, value bigint", stripes=3, stripe_by="key", bucket="1s")
    with stream.producer(stime="stime") as producer:
        producer.send_many([{"stime": at(t), "key": k, "value": v} for t, k, v in ROWS])
    rows = spark.read.format("holdfast").option("root", str(store.root)).load("s").collect()
    assert Counter(row.value for row in rows) == Counter(range(150))
    assert {row.stream for row in rows} <= {"s.s0", "s.s1", "s.s2"}
    order = [(int(row.stime.timestamp()), row.stream, row.tuple_id) for row in rows]
    assert order == sorted(order)
    found: list[int] = []
    frame = read_stream(spark, "s", root=store.root, subscriber="q")
    query = frame.writeStream.foreachBatch(lambda batch, _: found.extend(r.value for r in batch.collect()))
    query.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start().awaitTermination()
    assert Counter(found) == Counter(range(150))
    for made in (flow(spark, "s", root=store.root), flow_of(read_stream(spark, "s", root=store.root))):
        assert made.streams == ("s.s0", "s.s1", "s.s2")


@pytest.mark.parametrize("name", [pytest.param("windows", marks=at_length), "stateless"])
def test_a_batch_that_is_executed_again_adds_nothing(
    spark: SparkSession, inputs: holdfast.StreamStore, tmp_path: Path, name: str
) -> None:
    """S2: Spark's log says that the last batch was never committed, so it runs again."""
    query = QUERIES[name][0]
    out = inputs.create_striped("out", QUERIES[name][1], stripes=3, stripe_by="key", bucket="1s")
    run(query(spark, inputs, {"maxRowsPerBatch": 80}), inputs, tmp_path / "ckpt", "out")
    before = layouts(out)
    last = max((p for p in (tmp_path / "ckpt" / "commits").iterdir() if p.name.isdigit()), key=lambda p: int(p.name))
    last.unlink()
    last.with_name(f".{last.name}.crc").unlink(missing_ok=True)
    run(query(spark, inputs, {"maxRowsPerBatch": 80}), inputs, tmp_path / "ckpt", "out")
    assert layouts(out) == before


def test_a_batch_that_some_stripes_have_is_seen_when_all_have_it(
    spark: SparkSession, inputs: holdfast.StreamStore, tmp_path: Path
) -> None:
    """A stripe that cannot be written stops the query; when it can again, the result is that of a run without."""
    whole = inputs.create_striped("whole", "key string, value bigint", stripes=3, stripe_by="key", bucket="1s")
    run(stateless(spark, inputs, {"maxRowsPerBatch": 60}), inputs, tmp_path / "w", "whole")
    out = inputs.create_striped("out", "key string, value bigint", stripes=3, stripe_by="key", bucket="1s")
    away = out.stripes[1].folder / "main"
    away.rename(away.with_name("away"))
    away.write_text("not a folder")
    with pytest.raises(PySparkException):
        run(stateless(spark, inputs, {"maxRowsPerBatch": 60}), inputs, tmp_path / "c", "out")
    assert any(out.stripes[i].reader().rows for i in (0, 2)), "others had prepared it"
    assert [out.stripes[i].reader().boundary_us for i in (0, 2)] == [-(2**62)] * 2
    away.unlink()
    away.with_name("away").rename(away)
    assert not list(out.subscribe().poll())
    run(stateless(spark, inputs, {"maxRowsPerBatch": 60}), inputs, tmp_path / "c", "out")
    assert layouts(out) == layouts(whole)


def test_what_cannot_be_written_by_stripes_is_said(
    spark: SparkSession, inputs: holdfast.StreamStore, tmp_path: Path
) -> None:
    out = inputs.create_striped("out", "key string, value bigint", stripes=2, stripe_by="key", bucket="1s")
    frame = stateless(spark, inputs, {})

    def start(writer: Any) -> None:
        writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start().awaitTermination()

    plain = frame.writeStream.format("holdfast").option("root", str(inputs.root)).option("stream", "out")
    with pytest.raises(PySparkException, match=r"must be dealt to tasks; write holdfast\.spark\.to_stripes"):
        start(plain)
    with pytest.raises(PySparkException, match="rows of several stripes in one task"):
        start(frame.withColumn("holdfast_stripe", F.pmod("value", F.lit(2)).cast("int")).coalesce(1).writeStream
              .format("holdfast").option("root", str(inputs.root)).option("stream", "out"))  # fmt: skip
    with pytest.raises(PySparkException, match="goes without the options"):
        start(to_stripes(frame, "out", root=inputs.root).option("late", "lift"))
    with pytest.raises(PySparkException, match="its boundary cannot follow"):
        start(to_stripes(frame, "out", root=inputs.root).option("boundary", "data"))
    rows = spark.range(1).selectExpr("current_timestamp() stime", "'a' key", "id value")
    with pytest.raises(PySparkException, match=r"out is striped .*, and this takes a stream with one log"):
        rows.write.format("holdfast").option("root", str(inputs.root)).mode("append").save("out")
    with pytest.raises(holdfast.SchemaError, match="gives none of the name value"):
        to_stripes(frame.drop("value"), "out", root=inputs.root)
    assert layouts(out) == [[], []]


# -- kill -9 ----------------------------------------------------------------------------------------------------

BATCHES, STRIPES = 5, 3


def batch_of(number: int, stripe: int, schema: pa.Schema) -> list[pa.RecordBatch]:
    """What a task is given: rows of this second and some of the next one, which wait for it."""
    numbers = [n for n in range(20 * number, 20 * number + 20) if n % STRIPES == stripe]
    times = pa.array([(T0 * 20 + n + n % 2 * 10) * 50_000 for n in numbers], pa.timestamp("us", "UTC"))
    return [pa.record_batch([times, pa.array([f"k{n}" for n in numbers]), pa.array(numbers)], schema=schema)]


def execute(root: Path, at_step: int) -> int:
    """What Spark does with these batches, from the first that it has not committed; killed at a step of a disk."""
    os.environ.pop(VARIABLE, None)
    steps = Steps(at_step)
    from holdfast.stream import store as module

    module.Disk = lambda: KilledDisk(steps)  # type: ignore[misc, assignment]
    given = {"root": str(root), "stime": "stime"}
    schema = pa.schema([("stime", pa.timestamp("us", "UTC")), ("key", pa.string()), ("value", pa.int64())])
    targets = [StripeTarget({**given, "stream": f"out.s{i}"}, schema) for i in range(STRIPES)]
    committed, run_id = root / "committed", f"run-{os.getpid()}"
    for number in range(len(committed.read_bytes()) if committed.exists() else 0, BATCHES):
        boundary = (T0 + number + 1) * 1_000_000
        for i, target in enumerate(targets):
            rows = batch_of(number, i, target.stream.definition.stored)
            target.prepare(rows, boundary, "query", run_id, number)
        for target in targets:
            target.promise(boundary, "query", run_id, number)
        with committed.open("ab") as commits:
            commits.write(b".")
    return steps.count


def forked(root: Path, at_step: int) -> int | None:
    """Steps that it took; None if it was killed."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(write, str(execute(root, at_step)).encode())
        finally:
            os._exit(0)
    os.close(write)
    _, status = os.waitpid(pid, 0)
    with open(read) as said:
        text = said.read()
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    assert killed or text, "it failed instead of being killed"
    return int(text) if text else None


# -- without Spark ----------------------------------------------------------------------------------------------

ROW_SCHEMA = pa.schema([("stime", pa.timestamp("us", "UTC")), ("key", pa.string()), ("value", pa.int64())])


def targets_of(root: Path, **options: str) -> list[StripeTarget]:
    """The stripes of `out`, as tasks and driver of a query have them."""
    os.environ.pop(VARIABLE, None)
    given = {"root": str(root), "stime": "stime", **options}
    return [StripeTarget({**given, "stream": f"out.s{i}"}, ROW_SCHEMA) for i in range(STRIPES)]


def until(second: int) -> int:
    return (T0 + second) * 1_000_000


def prepare(target: StripeTarget, number: int, second: int, query: str = "q", run: str = "r") -> None:
    stripe = int(target.stream.name[-1])
    target.prepare(batch_of(number, stripe, target.stream.definition.stored), until(second), query, run, number)


def read_up_to(checkpoint: Path, batch: int, second: int, query: str = "q") -> None:
    """What Spark writes before it executes a batch."""
    (checkpoint / "offsets").mkdir(parents=True, exist_ok=True)
    (checkpoint / "metadata").write_text(json.dumps({"id": query}))
    ends = json.dumps({"until_us": until(second)})
    (checkpoint / "offsets" / str(batch)).write_text(f'v1\n{{"batchWatermarkMs":0}}\n{ends}')


def sink_of(out: StripedStream, checkpoint: Path) -> StripedSink:
    given = {"root": str(out.stripes[0].folder.parent), "stime": "stime", "checkpointlocation": str(checkpoint)}
    return StripedSink(out.dealing, given, ROW_SCHEMA.append(pa.field("holdfast_stripe", pa.int32())))


def test_a_batch_that_is_prepared_is_not_completed_as_another_one(tmp_path: Path) -> None:
    """S2: its record was lost and planned anew, with more input than a stripe has of it already."""
    out = made(tmp_path)
    first, *others = targets_of(tmp_path)
    prepare(first, 0, 1)
    before = layouts(out)
    with pytest.raises(StorageError, match=r"prepared in it up to .* it goes up to .* nothing was added or promised"):
        prepare(first, 0, 2)
    for target in others:
        prepare(target, 0, 2)
    with pytest.raises(StorageError, match="bring back the checkpoint and the query as they were"):
        first.promise(until(2), "q", "r", 0)
    assert layouts(out)[0] == before[0]
    assert not _seen(out)


def test_a_batch_that_is_prepared_is_not_completed_with_other_input_up_to_the_same_end(tmp_path: Path) -> None:
    """S2: the boundary follows the input that is behind; another one may have gone on."""
    made(tmp_path)
    checkpoint = tmp_path / "c"
    read_up_to(checkpoint, 0, 1)
    first = targets_of(tmp_path, checkpointLocation=str(checkpoint))[0]
    prepare(first, 0, 1)
    record = checkpoint / "offsets" / "0"
    text = record.read_text()
    record.write_text(text.replace("v1\n{", 'v1\n{"batchTimestampMs":7,'))
    prepare(first, 0, 1)  # Planned at another time, and the same.
    record.write_text(text + "\n" + json.dumps({"until_us": until(9)}))
    with pytest.raises(StorageError, match="or reads other input"):
        prepare(first, 0, 1)


def test_a_task_that_sees_another_checkpoint_is_refused(tmp_path: Path) -> None:
    """A folder that was left at its path on an executor: the query keeps no state, and its boundary comes from it."""
    out = made(tmp_path / "streams")
    read_up_to(tmp_path / "driver", 0, 2)
    read_up_to(tmp_path / "stale", 0, 1)
    stale = targets_of(tmp_path / "streams", checkpointLocation=str(tmp_path / "stale"))[0]
    done = Prepared("q", "r", 0, 0, stale._record("0"))
    with pytest.raises(UsageError, match="needs a checkpoint in a folder that executors and driver share"):
        sink_of(out, tmp_path / "driver").commit([done], 0)
    assert [stripe.reader().boundary_us for stripe in out.stripes] == [-(2**62)] * STRIPES


def test_a_batch_without_tasks_is_the_querys_own(tmp_path: Path) -> None:
    """S2: of two queries that had such a batch, the second files what waits before its boundary goes on."""
    out = made(tmp_path / "streams")
    for query, batch, second in (("a", 50, 0), ("b", 1, 3)):
        if query == "b":
            for target in targets_of(tmp_path / "streams"):
                prepare(target, 0, 0, "b")  # What it brought waits for its boundary.
        read_up_to(tmp_path / query, batch, second, query)
        sink_of(out, tmp_path / query).commit([], batch)
    assert sorted(v for _, _, _, v in _seen(out)) == list(range(20))


def test_a_batch_that_another_query_left_half_prepared_is_not_mixed_with_its_own(tmp_path: Path) -> None:
    """The driver was killed, and the query is started with a new checkpoint: the rest of the batch would never come."""
    out = made(tmp_path / "streams")
    targets = targets_of(tmp_path / "streams")
    prepare(targets[0], 0, 2)
    read_up_to(tmp_path / "new", 0, 2, "new")
    with pytest.raises(UsageError, match="holds batch 0 of query q, prepared and not complete; start that query again"):
        sink_of(out, tmp_path / "new")
    with pytest.raises(UsageError, match="start that query again with its checkpoint"):
        prepare(targets[0], 0, 2, "new")
    read_up_to(tmp_path / "old", 0, 2)
    sink_of(out, tmp_path / "old")
    for target in targets:
        prepare(target, 0, 2)
    for target in targets:
        target.promise(until(2), "q", "r", 0)
    sink_of(out, tmp_path / "new")
    assert sorted(v for _, _, _, v in _seen(out)) == list(range(20))


def test_a_half_prepared_batch_that_completes_no_bucket_is_found_as_well(tmp_path: Path) -> None:
    """Its rows only wait, in one stripe."""
    out = made(tmp_path / "streams")
    target = targets_of(tmp_path / "streams")[1]
    target.prepare(batch_of(0, 1, target.stream.definition.stored), -(2**62), "q", "r", 0)
    read_up_to(tmp_path / "new", 0, 2, "new")
    with pytest.raises(UsageError, match="holds batch 0 of query q in some of its stripes only"):
        sink_of(out, tmp_path / "new")


def test_nobody_else_writes_while_a_batch_is_prepared(tmp_path: Path) -> None:
    """A boundary of anybody's would show the half of it that is there, and end the query."""
    out = made(tmp_path)
    targets = targets_of(tmp_path)
    for target in targets:
        prepare(target, 0, 2)
    for open_it in (out.producer, out.stripes[1].producer):
        with pytest.raises(UsageError, match="of query q, prepared and not complete"):
            open_it()
    assert not _seen(out)
    for target in targets:
        target.promise(until(2), "q", "r", 0)
    out.producer().close(end=False)
    assert len(_seen(out)) == 20


def test_an_attempt_at_a_task_that_comes_late_ends_no_query(tmp_path: Path) -> None:
    """L7: it does not take a stripe that has the batch, and where it took it before, the driver takes it once more."""
    out = made(tmp_path)
    (first, *others), main = targets_of(tmp_path), out.stripes[0].folder / "main"
    for target in (first, *others):
        prepare(target, 0, 1)
    before = load_manifest(main)
    prepare(first, 0, 1)
    assert load_manifest(main) == before

    class Overtaken(StripeTarget):
        times = 2

        def _writer(self, owner: str) -> LogWriter:
            writer = super()._writer(owner)
            if self.times:
                self.times -= 1
                super()._writer("late").release(until(2))
            return writer

    given = {"root": str(tmp_path), "stime": "stime", "stream": "out.s0"}
    for target in (Overtaken(given, ROW_SCHEMA), *others):
        target.promise(until(1), "q", "r", 0)
    assert len(_seen(out)) == 15
    for target in (first, *others):
        prepare(target, 1, 2, run="later")
    with pytest.raises(Fenced, match="a later run of this query"):
        first.promise(until(2), "q", "r", 1)


def made(root: Path) -> StripedStream:
    return holdfast.open(root).create_striped("out", "key string, value bigint", stripes=STRIPES, bucket="1s")


def test_a_striped_commit_is_killed_at_every_step(tmp_path: Path) -> None:
    """L3, S2: HOLDFAST_STRIPE_KILLS=50 of them; readers see whole batches at every moment, and each once at the end."""
    whole = made(tmp_path / "whole")
    steps = forked(tmp_path / "whole", -1)
    assert steps is not None
    assert sorted(v for _, _, _, v in _seen(whole)) == [n for n in range(20 * BATCHES) if n % 2 == 0 or n < 90]
    for at_step in sorted(random.SystemRandom().sample(range(steps), min(KILLS, steps))):
        root = tmp_path / "killed"
        out = made(root)
        while forked(root, at_step) is None:
            seen = [v for _, _, _, v in _seen(out)]
            reached = {(n + n % 2 * 10) // 20 for n in seen}
            expected = [n for n in range(20 * BATCHES) if (n + n % 2 * 10) // 20 in reached]
            assert sorted(seen) == expected, f"half a batch was seen, killed at {at_step} of {steps}"
            at_step += 11
        assert layouts(out) == layouts(whole), f"killed at {at_step} of {steps}"
        shutil.rmtree(root)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.skipif(KILLS < 10, reason="HOLDFAST_STRIPE_KILLS=50: takes half a minute for each of five")
def test_a_query_that_writes_stripes_is_killed_with_its_tasks(
    spark: SparkSession, store: holdfast.StreamStore, tmp_path: Path
) -> None:
    """L3, S2: the driver, its workers and its tasks at once, at any moment; then it is started again."""
    fill(store, "a", [(i * 0.2, f"k{i % 7}", i) for i in range(1500)])
    whole = store.create_striped("whole", "key string, value bigint", stripes=STRIPES, stripe_by="key", bucket="1s")
    run(read_stream(spark, "a", root=store.root).select("stime", "key", "value"), store, tmp_path / "w", "whole")
    out = store.create_striped("out", "key string, value bigint", stripes=STRIPES, stripe_by="key", bucket="1s")
    chance, log = random.Random(), (tmp_path / "log").open("w")
    command = [sys.executable, "-m", "tests.spark.striped_job", str(store.root), str(tmp_path / "c")]
    killed = 0

    def started() -> subprocess.Popen[str]:
        return subprocess.Popen(command, cwd=REPOSITORY, env=environment(), stdout=log, stderr=log, text=True)

    def rows() -> int:
        return sum(stripe.reader().rows for stripe in out.stripes)

    def grown(job: subprocess.Popen[str], there: int) -> bool:
        return job.poll() is not None or rows() > there

    job, there = started(), rows()
    while killed < KILLS // 10:
        wait_for(partial(grown, job, there), "rows of this run", 240)
        signal.sigtimedwait([], chance.random() * 0.5)
        if job.poll() is not None:
            break
        kill_tree(job)
        killed += 1
        there, job = rows(), started()
    wait_for_end(job, "the last run")
    assert killed, "it was done before it could be killed"
    assert job.returncode == 0, (tmp_path / "log").read_text()[-3000:]
    assert layouts(out) == layouts(whole), f"after {killed} kills"


def _seen(stream: StripedStream) -> list[tuple[Any, ...]]:
    return [tuple(row.values())[1:] for batch in stream.subscribe().poll() for row in batch.to_pylist()]


def test_the_stripes_of_a_query_are_streams_like_any(
    spark: SparkSession, inputs: holdfast.StreamStore, tmp_path: Path
) -> None:
    out = inputs.create_striped("out", "key string, value bigint", stripes=2, stripe_by="key", bucket="1s")
    run(stateless(spark, inputs, {}), inputs, tmp_path / "c", "out")
    assert sum(len(tuples(stripe)) for stripe in out.stripes) == 100
    assert all(stripe.reader().closed for stripe in out.stripes), "the input has ended"
