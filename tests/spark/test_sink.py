"""Results become streams: once, in order, and the same however Spark cut the batches."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import holdfast
from holdfast.spark import read_stream
from holdfast.spark.failure import is_permanent, sentence
from holdfast.spark.sink import RUNS_KEPT, Rows, StreamSink, Target
from holdfast.stream.disk import Disk
from tests.spark.conftest import at, fill, layout, tuples

ROWS = [(i * 0.2, f"k{i % 7}", i) for i in range(150)]
OTHER = [(i * 0.5, f"k{i % 5}", 1000 + i) for i in range(60)]
WINDOWED = "window struct<start:timestamp,end:timestamp>, key string, count bigint"

Query = Callable[[SparkSession, holdfast.StreamStore, dict[str, Any]], DataFrame]


def windows(spark: SparkSession, store: holdfast.StreamStore, options: dict[str, Any]) -> DataFrame:
    frame = read_stream(spark, "a", "b", root=store.root, boundaries="exact", **options)
    return frame.groupBy(F.window("stime", "4 seconds"), "key").count()


def stateless(spark: SparkSession, store: holdfast.StreamStore, options: dict[str, Any]) -> DataFrame:
    return (
        read_stream(spark, "a", "b", root=store.root, **options)
        .filter("value % 3 != 0")
        .select("stime", "key", "value")
    )


def deduplicated(spark: SparkSession, store: holdfast.StreamStore, options: dict[str, Any]) -> DataFrame:
    frame = read_stream(spark, "a", "b", root=store.root, **options)
    return frame.dropDuplicates(["stime", "key"]).select("stime", "key")


def joined(spark: SparkSession, store: holdfast.StreamStore, options: dict[str, Any]) -> DataFrame:
    frame = read_stream(spark, "a", "b", root=store.root, **options)
    left = frame.filter("stream = 'a'").select(
        F.col("stime").alias("t1"), F.col("key").alias("key1"), F.col("value").alias("v1")
    )
    right = frame.filter("stream = 'b'").select(
        F.col("stime").alias("t2"), F.col("key").alias("key2"), F.col("value").alias("v2")
    )
    near = F.expr("key1 = key2 and t2 >= t1 - interval 2 seconds and t2 <= t1 + interval 2 seconds")
    pairs = left.join(right, near)
    return pairs.select(F.greatest("t1", "t2").alias("stime"), "key1", "v1", "v2")


def outer(spark: SparkSession, store: holdfast.StreamStore, options: dict[str, Any]) -> DataFrame:
    """Rows without a partner come out late, when the watermark gives them up: their stime is the end of the search."""
    frame = read_stream(spark, "a", "b", root=store.root, **options)
    left = frame.filter("stream = 'a'").select(
        F.col("stime").alias("t1"), F.col("key").alias("key1"), F.col("value").alias("v1")
    )
    right = frame.filter("stream = 'b'").select(
        F.col("stime").alias("t2"), F.col("key").alias("key2"), F.col("value").alias("v2")
    )
    near = F.expr("key1 = key2 and t2 >= t1 and t2 <= t1 + interval 2 seconds")
    pairs = left.join(right, near, "leftOuter")
    return pairs.select((F.col("t1") + F.expr("interval 10 seconds")).alias("stime"), "key1", "v1", "v2")


QUERIES = {
    "windows": (windows, WINDOWED),
    "stateless": (stateless, "key string, value bigint"),
    "deduplicated": (deduplicated, "key string"),
    "joined": (joined, "key1 string, v1 bigint, v2 bigint"),
    "outer": (outer, "key1 string, v1 bigint, v2 bigint"),
}


def run(frame: DataFrame, store: holdfast.StreamStore, checkpoint: Path, name: str, **options: str) -> None:
    writer = frame.writeStream.format("holdfast").options(
        root=str(store.root), checkpointLocation=str(checkpoint), **options
    )
    writer.trigger(availableNow=True).start(name).awaitTermination()


@pytest.fixture
def inputs(store: holdfast.StreamStore) -> holdfast.StreamStore:
    fill(store, "a", ROWS)
    fill(store, "b", OTHER)
    return store


@pytest.mark.parametrize("name", QUERIES)
def test_a_stream_does_not_depend_on_how_spark_cut_the_batches(
    spark: SparkSession, inputs: holdfast.StreamStore, tmp_path: Path, name: str
) -> None:
    """D9: whole buckets in one order, whatever the portions."""
    query, columns = QUERIES[name]
    seen = []
    for cut, limit in enumerate(({}, {"maxRowsPerBatch": 40})):
        stream = inputs.create(f"out{cut}", columns, bucket="2s")
        run(query(spark, inputs, limit), inputs, tmp_path / f"ckpt{cut}", stream.name)
        seen.append(layout(stream))
    assert seen[0] == seen[1]
    assert len(seen[0]) > 5


def test_windows_hold_what_a_plain_count_gives(
    spark: SparkSession, inputs: holdfast.StreamStore, tmp_path: Path
) -> None:
    out = inputs.create("out", WINDOWED, bucket="1s")
    run(windows(spark, inputs, {"maxRowsPerBatch": 30}), inputs, tmp_path / "ckpt", "out")
    expected: dict[tuple[int, str], int] = {}
    for t, key, _ in ROWS + OTHER:
        window = (int(at(t).timestamp()) // 4 * 4, key)
        expected[window] = expected.get(window, 0) + 1
    got = {(int(w["start"].timestamp()), key): n for _, _, w, key, n in tuples(out)}
    assert got == expected
    assert out.reader().closed


def test_tuple_ids_count_up_from_one(spark: SparkSession, inputs: holdfast.StreamStore, tmp_path: Path) -> None:
    out = inputs.create("out", "key string, value bigint", bucket="1s")
    run(stateless(spark, inputs, {"maxRowsPerBatch": 30}), inputs, tmp_path / "ckpt", "out")
    ids = [t[0] for t in tuples(out)]
    assert ids == list(range(1, len(ids) + 1))


def test_a_batch_that_is_executed_again_adds_nothing(
    spark: SparkSession, inputs: holdfast.StreamStore, tmp_path: Path
) -> None:
    """S2: Spark's log says the last batches were never committed, so they run again."""
    out = inputs.create("out", WINDOWED, bucket="1s")
    run(windows(spark, inputs, {"maxRowsPerBatch": 30}), inputs, tmp_path / "ckpt", "out")
    before = layout(out)
    commits = sorted((tmp_path / "ckpt" / "commits").iterdir(), key=lambda p: int(p.name) if p.name.isdigit() else -1)
    for commit in commits[-1:]:
        commit.unlink()
        commit.with_name(f".{commit.name}.crc").unlink(missing_ok=True)
    run(windows(spark, inputs, {"maxRowsPerBatch": 30}), inputs, tmp_path / "ckpt", "out")
    assert layout(out) == before


def test_a_new_query_over_finished_results_is_refused_and_loses_nothing(
    spark: SparkSession, inputs: holdfast.StreamStore, tmp_path: Path
) -> None:
    out = inputs.create("out", WINDOWED, bucket="1s")
    run(windows(spark, inputs, {}), inputs, tmp_path / "ckpt", "out")
    before = layout(out)
    shutil.rmtree(tmp_path / "ckpt")
    with pytest.raises(PySparkException, match="comes after its boundary"):
        run(windows(spark, inputs, {}), inputs, tmp_path / "ckpt", "out")
    assert layout(out) == before


def test_large_results_go_by_file_and_leave_none_behind(
    spark: SparkSession, store: holdfast.StreamStore, tmp_path: Path
) -> None:
    out = store.create("out", "text string", bucket="1s")
    frame = spark.range(40_000).selectExpr(
        f"timestamp'{at(0)}' + make_dt_interval(0, 0, 0, id / 10000) as stime", "repeat(cast(id as string), 60) as text"
    )
    frame.coalesce(1).write.format("holdfast").option("root", str(store.root)).mode("append").save("out")
    assert out.reader().rows == 40_000
    assert list((out.folder / "staging").iterdir()) == []


def test_a_frame_that_lies_years_ahead_is_refused_and_makes_nobody_late(
    spark: SparkSession, store: holdfast.StreamStore
) -> None:
    """D19: the next frame begins where this one ends."""
    out = store.create("out", "n bigint", bucket="1s")

    def write(when: str, **options: str) -> None:
        frame = spark.sql(f"select 1L n, timestamp '{when}' stime").write.format("holdfast").options(**options)
        frame.option("root", str(store.root)).mode("append").save("out")

    with pytest.raises(Exception, match="ahead of the clock, and every tuple after it would be late"):
        write("9998-01-01 00:00:00Z")
    write("2026-01-01 00:00:00Z")
    write("9998-01-01 00:00:00Z", maxAhead="none")
    assert out.reader().rows == 2


def test_the_sink_creates_a_stream_when_told_to(
    spark: SparkSession, inputs: holdfast.StreamStore, tmp_path: Path
) -> None:
    run(windows(spark, inputs, {}), inputs, tmp_path / "ckpt", "fresh", create="true", bucket="2s")
    assert inputs.open("fresh").definition.bucket_us == 2_000_000
    assert inputs.open("fresh").reader().rows > 0


@pytest.mark.parametrize(
    ("columns", "options", "sentence"),
    [
        (None, {}, "no stream 'out' below"),
        ("key string, count int, window struct<start:timestamp,end:timestamp>", {}, "select and cast to fit"),
        (WINDOWED, {"stime": "nosuch"}, "a result needs an stime"),
        (WINDOWED, {"stime": "key"}, "must be a timestamp or a window; key of"),
        (WINDOWED, {"boundary": "guess"}, "option boundary must be one of"),
    ],
)
def test_bad_input_gets_one_clear_sentence(
    spark: SparkSession, inputs: holdfast.StreamStore, tmp_path: Path, columns: str | None, options: dict[str, str],
    sentence: str,
) -> None:  # fmt: skip
    if columns is not None:
        inputs.create("out", columns)
    with pytest.raises(PySparkException, match=sentence):
        run(windows(spark, inputs, {}), inputs, tmp_path / "ckpt", "out", **options)


def test_text_that_is_none_ends_the_query_and_not_its_readers(
    spark: SparkSession, inputs: holdfast.StreamStore, tmp_path: Path
) -> None:
    """X5: such a cast was committed, and nobody could read the stream from there on."""
    out = inputs.create("out", "text string, day date", bucket="1s")
    frame = read_stream(spark, "a", root=inputs.root)
    for text, day, column in (
        ("cast(X'ff' as string)", "date'2026-01-01'", "text"),
        ("'a'", "date'+20000-01-01'", "day"),
    ):
        rows = frame.selectExpr("stime", f"{text} as text", f"{day} as day")
        with pytest.raises(StreamingQueryException) as died:
            run(rows, inputs, tmp_path / column, "out")
        assert sentence(died.value).startswith(f"stream out: column '{column}' must be")
        assert is_permanent(died.value)
    run(frame.selectExpr("stime", "'a' as text", "current_date() as day"), inputs, tmp_path / "ckpt", "out")
    assert {text for _, _, text, _ in tuples(out)} == {"a"}


def test_a_living_producer_on_the_output_is_fenced(
    spark: SparkSession, inputs: holdfast.StreamStore, tmp_path: Path
) -> None:
    """L7: one lineage writes; the later one wins."""
    out = inputs.create("out", WINDOWED, bucket="1s")
    old = out.producer(stime="stime", boundary_every="1h")
    run(windows(spark, inputs, {}), inputs, tmp_path / "ckpt", "out")
    with pytest.raises(holdfast.Fenced, match="was superseded by spark:"):
        old.send({"stime": at(500), "window": None, "key": "x", "count": 1})
    old.close(end=False)


@pytest.mark.parametrize(("mode", "sentence"), [("complete", "takes results once, in append mode")])
def test_a_stream_takes_no_results_twice(
    spark: SparkSession, inputs: holdfast.StreamStore, tmp_path: Path, mode: str, sentence: str
) -> None:
    inputs.create("out", WINDOWED)
    writer = windows(spark, inputs, {}).writeStream.outputMode(mode).format("holdfast")
    writer = writer.options(root=str(inputs.root), checkpointLocation=str(tmp_path / "ckpt"))
    with pytest.raises(PySparkException, match=sentence):
        writer.trigger(availableNow=True).start("out").awaitTermination()


def test_a_stream_is_never_overwritten(spark: SparkSession, inputs: holdfast.StreamStore) -> None:
    frame = spark.sql(f"select timestamp'{at(900)}' stime, 'k' key, 1L value")
    with pytest.raises(PySparkException, match="never overwritten"):
        frame.write.format("holdfast").option("root", str(inputs.root)).mode("overwrite").save("a")


def test_a_query_may_have_a_name(spark: SparkSession, inputs: holdfast.StreamStore, tmp_path: Path) -> None:
    inputs.create("out", WINDOWED)
    writer = windows(spark, inputs, {}).writeStream.queryName("named").format("holdfast")
    writer = writer.options(root=str(inputs.root), checkpointLocation=str(tmp_path / "ckpt"))
    writer.trigger(availableNow=True).start("out").awaitTermination()
    assert inputs.open("out").reader().closed


def test_a_query_that_was_started_a_hundred_times_leaves_the_names_of_its_last_runs_only(
    store: holdfast.StreamStore,
) -> None:
    out = store.create("out", "key string", bucket="1s")
    schema = pa.schema([("stime", pa.timestamp("us", "UTC")), ("key", pa.string())])
    for n in range(100):
        target = Target({"root": str(store.root), "path": "out"}, schema)
        target.append([], round(at(n + 1).timestamp() * 1e6), "q", f"run{n}", n)
    writer = out.writer()
    tokens = writer.state.tokens
    writer.release(1)
    runs = {id: n for id, n in tokens.items() if id.startswith("run-")}
    assert sorted(runs.values()) == list(range(100 - RUNS_KEPT, 101))
    assert tokens["spark-q"] == 99
    with pytest.raises(holdfast.Fenced, match="a later run"):
        target.append([], round(at(200).timestamp() * 1e6), "q", "run98", 100)


def test_a_query_that_began_anew_a_hundred_times_leaves_the_names_of_the_last_only(store: holdfast.StreamStore) -> None:
    """While an input is away, a convergent node begins anew again and again; producers of others stay known."""
    out = store.create("out", "key string", bucket="1s")
    writer = out.writer()
    writer.commit([], now_us=1, boundary_us=1, tokens={"other": 7})
    writer.release(1)
    schema = pa.schema([("stime", pa.timestamp("us", "UTC")), ("key", pa.string())])
    for n in range(100):
        options = {"root": str(store.root), "path": "out", "from": at(n).isoformat()}
        Target(options, schema).append([], round(at(n + 1).timestamp() * 1e6), f"q{n:02}", "r", 0)
    writer = out.writer()
    tokens = writer.state.tokens
    writer.release(1)
    assert len(tokens) <= 1 + RUNS_KEPT + 2
    assert {"other", "spark-q99", "run-q99-r", "spark-q98"} <= set(tokens)


def test_an_earlier_run_that_wakes_up_is_refused_and_the_later_one_goes_on(store: holdfast.StreamStore) -> None:
    """L7: two drivers on one checkpoint, the first one asleep while the second took over."""
    out = store.create("out", "value bigint", bucket="1s")
    schema = pa.schema([pa.field("stime", pa.timestamp("us", "UTC")), pa.field("value", pa.int64())])
    target = Target({"root": str(store.root), "path": "out"}, schema)

    def rows(second: int) -> list[Rows]:
        batch = pa.record_batch([pa.array([at(second)], schema.field(0).type), pa.array([second])], schema=schema)
        return [target.take(iter([batch]), "q", "", "0")]

    def until(second: int) -> int:
        return round(at(second).timestamp() * 1e6)

    target.append(rows(1), until(2), "q", "first", 0)
    target.append(rows(2), until(3), "q", "second", 1)
    with pytest.raises(holdfast.Fenced, match="a later run of this query"):
        target.append(rows(3), until(4), "q", "first", 2)
    target.append(rows(3), until(4), "q", "second", 2)
    target.append(rows(3), until(4), "q", "second", 2)
    assert [t[2] for t in tuples(out)] == [1, 2, 3]


def test_a_query_whose_checkpoint_went_back_is_refused_instead_of_leaving_tuples_out(
    store: holdfast.StreamStore,
) -> None:
    """A batch of an old number that takes in more than the one before it must not pass for a repetition (D1)."""
    out = store.create("out", "value bigint", bucket="1s")
    schema = pa.schema([pa.field("stime", pa.timestamp("us", "UTC")), pa.field("value", pa.int64())])
    target = Target({"root": str(store.root), "path": "out"}, schema)
    for number in range(3):
        target.append([], round(at(number + 1).timestamp() * 1e6), "q", "first", number)
    with pytest.raises(holdfast.StorageError, match="has gone back"):
        target.append([], round(at(9).timestamp() * 1e6), "q", "second", 1)
    assert out.reader().boundary_us == round(at(3).timestamp() * 1e6)


def test_what_a_batch_stands_for_is_durable_before_the_batch_is(
    store: holdfast.StreamStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark does not sync its log: a power cut would lose which input a batch of the stream came from."""
    store.create("out", "value bigint", bucket="1s")
    schema = pa.schema([pa.field("stime", pa.timestamp("us", "UTC")), pa.field("value", pa.int64())])
    offsets = tmp_path / "checkpoint" / "offsets"
    offsets.mkdir(parents=True)
    (offsets / "0").write_text('v1\n{}\n{"format": 1, "until_us": 5000000}\n')
    given = {"root": str(store.root), "path": "out", "checkpointLocation": str(offsets.parent)}
    sink, done = StreamSink(given, schema), []
    real, real_dir = Disk.sync, Disk.sync_dir
    monkeypatch.setattr(Disk, "sync", lambda self, fd, path: (done.append(path), real(self, fd, path)))
    monkeypatch.setattr(Disk, "sync_dir", lambda self, path: (done.append(path), real_dir(self, path)))
    sink.commit([Rows("q", "r", 0, 0)], 0)
    unit = next(i for i, path in enumerate(done) if path.suffix == ".seg")
    assert done.index(offsets / "0") < done.index(offsets) < unit
    assert store.open("out").reader().boundary_us == 5_000_000


def test_what_killed_tasks_staged_is_gone_after_the_next_commit(store: holdfast.StreamStore) -> None:
    store.create("out", "value bigint", bucket="1s")
    schema = pa.schema([pa.field("stime", pa.timestamp("us", "UTC")), pa.field("value", pa.int64())])
    target = Target({"root": str(store.root), "path": "out"}, schema)
    target.staging.mkdir()
    for name in ("q.3.left.arrow", "q.5.under-way.arrow", "other.1.x.arrow"):
        (target.staging / name).write_bytes(b"")
    target.discard("q", "4")
    assert sorted(p.name for p in target.staging.iterdir()) == ["other.1.x.arrow", "q.5.under-way.arrow"]
