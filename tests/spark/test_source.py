"""Streams as DataFrames: ranges, order, admission, restarts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import holdfast
from holdfast.spark import read_stream
from holdfast.spark.session import with_format
from holdfast.spark.source import BucketReader, RangeReader
from holdfast.stream.merge import FOREVER_US
from tests.spark.conftest import at, fill, tuples

ROWS_A = [(i * 0.25, f"k{i % 3}", i) for i in range(40)]
ROWS_B = [(i * 0.5 + 0.1, f"k{i % 2}", 100 + i) for i in range(20)]


def read(spark: SparkSession, store: holdfast.StreamStore, names: str, **options: Any) -> DataFrame:
    return spark.read.format("holdfast").options(root=str(store.root), **options).load(names)


def collect(frame: DataFrame) -> list[tuple[Any, ...]]:
    return [tuple(r) for r in frame.select("stream", "key", "value").collect()]


@pytest.fixture
def two(store: holdfast.StreamStore) -> holdfast.StreamStore:
    fill(store, "a", ROWS_A)
    fill(store, "b", ROWS_B)
    return store


def merged() -> list[tuple[str, str, int]]:
    """The order of rule 2 of `merge`, worked out the plain way."""
    rows = [(int(t), 0, i, "a", k, v) for i, (t, k, v) in enumerate(ROWS_A)]
    rows += [(int(t), 1, i, "b", k, v) for i, (t, k, v) in enumerate(ROWS_B)]
    return [(s, k, v) for _, _, _, s, k, v in sorted(rows)]


def test_past_data_is_a_plain_frame_in_merged_order(spark: SparkSession, two: holdfast.StreamStore) -> None:
    frame = read(spark, two, "a,b")
    assert frame.columns == ["tuple_type", "tuple_id", "stime", "key", "value", "stream"]
    assert collect(frame) == merged()


def test_a_range_of_time_returns_exactly_its_tuples(spark: SparkSession, two: holdfast.StreamStore) -> None:
    frame = read(spark, two, "a", start=at(2).isoformat(), end=at(4.5).isoformat(), streamColumn="true")
    assert [v for _, _, v in collect(frame)] == [v for t, _, v in ROWS_A if 2 <= t < 4.5]


def test_a_range_of_buckets_returns_exactly_its_tuples(spark: SparkSession, two: holdfast.StreamStore) -> None:
    first = int(at(0).timestamp())
    frame = read(spark, two, "a", startBucket=str(first + 3), endBucket=str(first + 5), streamColumn="true")
    assert [v for _, _, v in collect(frame)] == [v for t, _, v in ROWS_A if 3 <= t < 5]


def test_a_filter_on_stime_opens_only_the_segments_it_needs(spark: SparkSession, store: holdfast.StreamStore) -> None:
    stream = store.create("a", "key string, value bigint", bucket="1s", segment_bytes=4096)
    with stream.producer(stime="stime") as producer:
        for second in range(40):
            producer.send_many([{"stime": at(second), "key": "x" * 200, "value": i} for i in range(10)])
    segments = stream.reader().segments
    assert len(segments) > 5
    frame = read(spark, store, "a").filter(f"stime >= timestamp'{at(30)}' and stime < timestamp'{at(31)}'")
    for segment in segments[:3]:
        (stream.folder / "main" / segment.name).unlink()
        (stream.folder / "main" / segment.name).with_suffix(".idx").unlink()
    assert frame.count() == 10


def test_incomplete_buckets_are_not_shown(spark: SparkSession, store: holdfast.StreamStore) -> None:
    fill(store, "a", ROWS_A, end=False)
    assert read(spark, store, "a").count() == sum(1 for t, _, _ in ROWS_A if t < 9)


@pytest.mark.parametrize("limit", [{}, {"maxRowsPerBatch": "7"}, {"maxBytesPerBatch": "2000"}])
def test_the_order_does_not_depend_on_how_batches_were_cut(
    spark: SparkSession, two: holdfast.StreamStore, tmp_path: Path, limit: dict[str, str]
) -> None:
    frame = spark.readStream.format("holdfast").options(root=str(two.root), **limit).load("a,b")
    got, batches = run_now(frame, tmp_path / "ckpt")
    assert got == merged()
    assert (batches > 1) == bool(limit)


def run_now(frame: DataFrame, checkpoint: Path) -> tuple[list[tuple[Any, ...]], int]:
    """Everything available, through a query that keeps what each batch gave; and the number of batches with data."""
    got: dict[int, list[tuple[Any, ...]]] = {}

    def keep(batch: DataFrame, number: int) -> None:
        got[number] = [tuple(r) for r in batch.select("stream", "key", "value").collect()]

    query = frame.writeStream.foreachBatch(keep).option("checkpointLocation", str(checkpoint))
    query.trigger(availableNow=True).start().awaitTermination()
    return [row for number in sorted(got) for row in got[number]], sum(map(bool, got.values()))


def test_a_restarted_query_goes_on_where_it_was(
    spark: SparkSession, store: holdfast.StreamStore, tmp_path: Path
) -> None:
    fill(store, "a", ROWS_A[:20], end=False, until=5)
    frame = spark.readStream.format("holdfast").options(root=str(store.root), streamColumn="true").load("a")
    first, _ = run_now(frame, tmp_path / "ckpt")
    fill(store, "a", ROWS_A[20:])
    second, _ = run_now(frame, tmp_path / "ckpt")
    assert [v for _, _, v in first + second] == [v for _, _, v in ROWS_A]


def test_queries_that_start_add_nothing_to_what_all_of_them_share(
    spark: SparkSession, two: holdfast.StreamStore, tmp_path: Path
) -> None:
    """Spark serialises this map in one thread while another extends it."""
    reading = iter(spark.sparkContext.environment.items())
    with_format(spark)  # With a map that no query has used yet.
    assert list(reading), "whoever plans in another thread goes through it just then"
    given = set(spark.sparkContext.environment)
    shared = spark._jsparkSession.sessionState().dataSourceManager().lookupDataSource("holdfast").dataSourceCls()
    before = set(shared.envVars())
    frame = spark.readStream.format("holdfast").option("root", str(two.root)).load("a")
    query = frame.writeStream.format("noop").trigger(availableNow=True).start(str(tmp_path / "nothing"))
    query.awaitTermination()
    assert query.lastProgress is not None
    assert set(shared.envVars()) == before
    assert before > given
    assert set(spark.sparkContext.environment) == given, "other functions of the session are left alone"


def test_a_live_start_skips_the_past(spark: SparkSession, store: holdfast.StreamStore, tmp_path: Path) -> None:
    fill(store, "a", ROWS_A[:20], end=False, until=5)
    options = {"root": str(store.root), "start": "live", "streamColumn": "true"}
    frame = spark.readStream.format("holdfast").options(**options).load("a")
    first, _ = run_now(frame, tmp_path / "ckpt")
    fill(store, "a", ROWS_A[20:])
    second, _ = run_now(frame, tmp_path / "ckpt")
    assert (first, [v for _, _, v in second]) == ([], [v for _, _, v in ROWS_A[20:]])


def test_a_silent_input_holds_the_merge_and_a_boundary_lets_it_go(
    spark: SparkSession, store: holdfast.StreamStore, tmp_path: Path
) -> None:
    fill(store, "a", ROWS_A)
    fill(store, "b", [], end=False, until=4)
    frame = spark.readStream.format("holdfast").options(root=str(store.root)).load("a,b")
    first, _ = run_now(frame, tmp_path / "ckpt")
    assert [v for _, _, v in first] == [v for t, _, v in ROWS_A if t < 4]
    fill(store, "b", [])
    second, _ = run_now(frame, tmp_path / "ckpt")
    assert [v for _, _, v in first + second] == [v for _, _, v in ROWS_A]


def test_finished_batches_are_acknowledged_to_retention(
    spark: SparkSession, store: holdfast.StreamStore, tmp_path: Path
) -> None:
    stream = fill(store, "a", ROWS_A)
    options = {"root": str(store.root), "subscriber": "q", "maxRowsPerBatch": "8", "streamColumn": "true"}
    run_now(spark.readStream.format("holdfast").options(**options).load("a"), tmp_path / "ckpt")
    acks = stream.acks()
    assert list(acks) == ["q"]
    assert acks["q"].until_us > at(0).timestamp() * 1e6


@pytest.mark.parametrize(
    ("names", "options", "sentence"),
    [
        ("nosuch", {}, "no stream 'nosuch' below"),
        ("../a", {}, "a stream name must be"),
        ("", {}, "name at least one stream"),
        ("a", {"start": "yesterday"}, "a time must look like"),
        ("a", {"maxRows": "5"}, "knows the options"),
        ("a", {"tasks": "many"}, "option tasks must be a whole number"),
    ],
)
def test_bad_input_gets_one_clear_sentence(
    spark: SparkSession, two: holdfast.StreamStore, names: str, options: dict[str, str], sentence: str
) -> None:
    with pytest.raises(PySparkException, match=sentence):
        read(spark, two, names, **options).count()


def test_streams_that_disagree_on_a_column_are_refused(spark: SparkSession, two: holdfast.StreamStore) -> None:
    two.create("c", "key bigint, value bigint")
    with pytest.raises(PySparkException, match="must agree on their columns; 'key' is int64 on c and string elsewhere"):
        read(spark, two, "a,c")


def test_a_corrupt_segment_is_reported_and_not_returned(spark: SparkSession, store: holdfast.StreamStore) -> None:
    stream = fill(store, "a", ROWS_A)
    segment = stream.folder / "main" / stream.reader().segments[0].name
    data = bytearray(segment.read_bytes())
    data[stream.reader().extents(0, 2**62)[3].fields.offset + 64 + 200] ^= 1
    segment.write_bytes(data)
    with pytest.raises(PySparkException, match="does not match its checksum"):
        read(spark, store, "a").collect()


def test_the_schema_of_all_spark_types_survives_a_round_trip(spark: SparkSession, store: holdfast.StreamStore) -> None:
    columns = ("b boolean, i8 tinyint, i16 smallint, i32 int, i64 bigint, f float, d double, s string, bin binary, "
               "day date, ts timestamp, ntz timestamp_ntz, dec decimal(10,2), list array<int>, m map<string,int>, "
               "st struct<x:int,y:string>")  # fmt: skip
    store.create("t", columns, bucket="1s")
    frame = spark.sql(
        "select timestamp'2026-01-01 00:00:00Z' stime, true b, 1Y i8, 2S i16, 3 i32, 4L i64, 1.5f f, 2.5d d, 's' s, "
        "X'01' bin, date'2026-01-01' day, timestamp'2026-01-02 00:00:00Z' ts, timestamp_ntz'2026-01-03 00:00:00' ntz, "
        "cast(1.25 as decimal(10,2)) dec, array(1,2) list, map('a',1) m, named_struct('x',1,'y','z') st"
    )
    frame.write.format("holdfast").option("root", str(store.root)).mode("append").save("t")
    back = read(spark, store, "t").drop("tuple_type", "tuple_id")
    assert back.collect() == frame.collect()


def test_read_stream_needs_no_more_than_names(spark: SparkSession, two: holdfast.StreamStore, tmp_path: Path) -> None:
    got, _ = run_now(read_stream(spark, "a", "b", root=two.root), tmp_path / "ckpt")
    assert got == merged()


def test_a_bucket_numbered_zero_is_a_bucket(spark: SparkSession, store: holdfast.StreamStore) -> None:
    stream = store.create("z", "value bigint", bucket="1s")
    with stream.producer(stime="value", stime_unit="s") as producer:
        producer.send_many([(n,) for n in range(-3, 3)])
    assert [r["value"] for r in read(spark, store, "z", endBucket="0").collect()] == [-3, -2, -1]
    assert [r["value"] for r in read(spark, store, "z", startBucket="0").collect()] == [0, 1, 2]


def test_a_checkpoint_that_is_ahead_of_its_streams_is_refused(store: holdfast.StreamStore) -> None:
    fill(store, "a", ROWS_A[:20], end=False, until=5)
    reader = BucketReader({"root": str(store.root), "path": "a"})
    ahead = {"format": 1, "until_us": round(at(9).timestamp() * 1e6)}
    with pytest.raises(holdfast.StorageError, match="the streams reach only to"):
        reader.partitions(reader.initialOffset(), ahead)


def test_a_query_may_begin_ahead_of_an_input_that_is_away(store: holdfast.StreamStore) -> None:
    """Behind a gap (D14): its first batch is empty, and the next one comes when the input does."""
    fill(store, "a", ROWS_A[:20], end=False, until=5)
    reader = BucketReader({"root": str(store.root), "path": "a", "start": at(9).isoformat()})
    begins = reader.initialOffset()
    assert reader.partitions(begins, begins)
    assert reader.latestOffset(begins, reader.getDefaultReadLimit()) == begins


def test_a_range_that_retention_took_since_it_was_planned_is_refused(store: holdfast.StreamStore) -> None:
    """L6."""
    stream = store.create("a", "key string, value bigint", bucket="1s", segment_bytes=4096)
    with stream.producer(stime="stime") as producer:
        for second in range(40):
            producer.send_many([{"stime": at(second), "key": "x" * 200, "value": i} for i in range(10)])
    reader = RangeReader({"root": str(store.root), "path": "a", "start": at(1).isoformat()})
    assert stream.retain(holdfast.Retention(size_bytes=1)).segments
    with pytest.raises(holdfast.UsageError, match="were removed by retention"):
        reader.partitions()


@pytest.mark.slow
def test_a_join_of_two_sources_goes_on_after_a_restart_though_one_of_them_had_ended_before(
    spark: SparkSession, store: holdfast.StreamStore, tmp_path: Path
) -> None:
    """C1: Spark forgets how far each source's watermark was (SPARK-50046). Nobody moved that of the ended one again:
    no later result came out, and the query ended as if it had none."""
    fill(store, "a", ROWS_A[:20], end=False, until=5)
    fill(store, "b", ROWS_B[:8])

    def run() -> None:
        left, right = (read_stream(spark, name, root=store.root).alias(name) for name in "ab")
        near = "a.key = b.key and b.stime between a.stime - interval 3 seconds and a.stime + interval 3 seconds"
        pairs = left.join(right, F.expr(near), "leftOuter").select(
            "a.stime", "a.value", F.col("b.value").alias("other")
        )
        writer = pairs.writeStream.format("holdfast").option("root", str(store.root)).option("create", "true")
        writer = writer.option("lag", "3s").option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.trigger(availableNow=True).start("pairs")
        assert query.awaitTermination(120)

    run()
    fill(store, "a", ROWS_A[20:])
    run()
    found = [(value, other) for _, _, value, other in tuples(store.open("pairs"))]
    wanted = []
    for t, key, value in ROWS_A:
        others = [other for u, k, other in ROWS_B[:8] if k == key and abs(t - u) <= 3]
        wanted += [(value, other) for other in others or [None]]
    assert sorted(found, key=str) == sorted(wanted, key=str)


def test_a_reader_tells_once_in_its_life_of_an_end_that_was_read_before(two: holdfast.StreamStore) -> None:
    ended = {"format": 1, "until_us": FOREVER_US, "settled": 1}
    for given in ({}, {"boundaries": "before"}):
        reader = BucketReader({"root": str(two.root), "path": "a", **given})
        told = reader.latestOffset(ended, reader.getDefaultReadLimit())
        if not given:
            assert told == ended
            continue
        assert told == {**ended, "settled": 2}
        (task,) = reader.partitions(ended, told)
        assert (task.pieces, task.boundary_us) == ([], FOREVER_US)
        assert reader.latestOffset(told, reader.getDefaultReadLimit()) == told
