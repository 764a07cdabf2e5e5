"""What Spark's plan says of a query, and what is refused before it runs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

import holdfast
from holdfast.engine import Coverage
from holdfast.model.errors import SchemaError, UsageError
from holdfast.spark import read_stream
from holdfast.spark.event_time import boundaries_instead_of_watermarks
from holdfast.spark.frames import reading_of
from holdfast.spark.plan_identity import plan_lines
from holdfast.spark.plan_tree import each, kind_of, nodes
from holdfast.spark.query_plan import QueryPlan, plan_of
from holdfast.spark.time_column import DELAY, time_path

NEAR = "l.key = r.key and r.stime between l.stime - interval 2 seconds and l.stime + interval 5 seconds"


@pytest.fixture(scope="module")
def rows(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> DataFrame:
    """One for all: nothing is read, and to ask a source for its columns takes most of a test's time."""
    store = holdfast.open(tmp_path_factory.mktemp("streams"))
    store.create("in", "key string, value bigint", bucket="1s")
    return read_stream(spark, "in", root=store.root, decision=str(store.root / "decision"))


def plan(function: Callable[..., DataFrame], rows: DataFrame, stime: str | None = None) -> QueryPlan:
    with boundaries_instead_of_watermarks("n"):
        frame = function(rows)
    return plan_of(frame, time_path(frame.schema, stime, "node n"), "node n")


def joined(rows: DataFrame, how: str) -> DataFrame:
    return rows.alias("l").join(rows.alias("r"), F.expr(NEAR), how)


def by_key(rows: DataFrame, *bounds: str) -> DataFrame:
    """A join that lets a row wait for its partner for ever, at least on one side."""
    return rows.alias("l").join(rows.alias("r"), F.expr(" and ".join(("l.key = r.key", *bounds))))


def latest(*times: str) -> Callable[[DataFrame], DataFrame]:
    """A join by the latest of these times, as they are named behind it."""

    def function(rows: DataFrame) -> DataFrame:
        pairs = joined(rows, "inner").selectExpr(*times)
        return pairs.select(F.greatest(*pairs.columns).alias("stime"))

    return function


@pytest.mark.parametrize(
    ("function", "lag_ms", "keeps_rows"),
    [
        (lambda rows: by_key(rows).select(F.greatest("l.stime", "r.stime").alias("stime")), 0, False),
        (lambda rows: by_key(rows, "r.stime >= l.stime").select("r.stime", "l.key"), 1, True),
        (lambda rows: by_key(rows, "r.stime >= l.stime").groupBy(F.window("r.stime", "1 second")).count(), 1, True),
        (lambda rows: rows.filter("value > 1"), 0, False),
        (lambda rows: rows.groupBy(F.window("stime", "2 seconds")).count(), 0, True),
        (lambda rows: rows.dropDuplicates(["key"]), 0, False),
        (lambda rows: joined(rows, "inner").select("l.stime", "l.key"), 5001, True),
        (lambda rows: joined(rows, "left").select("l.stime", "l.key"), 5001, True),
        (lambda rows: joined(rows, "inner").groupBy(F.window("l.stime", "1 second")).count(), 5001, True),
        (lambda rows: joined(rows, "inner").select(F.greatest("l.stime", "r.stime").alias("stime")), 5001, False),
        (lambda rows: joined(rows, "left").select(F.greatest("l.stime", "r.stime").alias("stime")), 5001, True),
        (latest("l.stime AS a", "l.stime AS b"), 5001, True),
        (latest("r.stime AS a", "l.stime AS b"), 5001, False),
        (latest("l.stime AS a", "l.stime AS b", "r.stime AS c"), 5001, False),
    ],
)  # fmt: skip
def test_results_lie_behind_by_what_the_last_operator_keeps_back(
    function: Callable[..., DataFrame], lag_ms: int, keeps_rows: bool, rows: DataFrame
) -> None:
    found = plan(function, rows)
    assert (found.lag_us, found.keeps_rows) == (lag_ms * 1000, keeps_rows)


def windowed(rows: DataFrame, *size: str) -> DataFrame:
    return rows.groupBy(F.window("stime", *size)).count()


@pytest.mark.parametrize(
    ("function", "stime", "older_ms", "keeps_rows"),
    [
        (lambda rows: windowed(rows, "2 seconds"), "window", 0, True),
        (lambda rows: windowed(rows, "2 seconds"), "window.start", 2_000, True),
        (lambda rows: windowed(rows, "2 seconds").select(F.col("window.start").alias("at")), "at", 2_000, True),
        (lambda rows: windowed(rows, "3 seconds", "1 second").selectExpr("window.start AS at"), "at", 3_000, True),
        (lambda rows: windowed(rows, "3 seconds", "1 second").selectExpr("window.end AS at"), "at", 0, True),
        (lambda rows: windowed(rows, "1 second").groupBy(F.window("window", "4 seconds")).count()
         .selectExpr("window.start AS at"), "at", 4_000, True),
        (lambda rows: rows.select(F.date_trunc("minute", "stime").alias("at")), "at", 60_000, False),
        (lambda rows: rows.selectExpr("cast(cast(stime AS date) AS timestamp) AS at"), "at", 90_000_000, False),
        (lambda rows: rows.selectExpr("stime - interval 5 seconds AS at"), "at", 5_000, False),
        (lambda rows: rows.selectExpr("stime - interval '1 00:00:01' day to second AS at"), "at", 86_401_000, False),
        (lambda rows: windowed(rows, "2 seconds").select(F.window_time("window").alias("at")), "at", 0, True),
        (lambda rows: rows.selectExpr("stime + interval 5 seconds AS at"), "at", 0, False),
        (lambda rows: rows.selectExpr("coalesce(date_trunc('second', stime), stime) AS at"), "at", 1_000, False),
    ],
)  # fmt: skip
def test_results_are_as_old_as_the_expression_of_their_time_makes_them(
    function: Callable[..., DataFrame], stime: str, older_ms: int, keeps_rows: bool, rows: DataFrame
) -> None:
    found = plan(function, rows, stime)
    assert (found.older_us, found.keeps_rows) == (older_ms * 1000, keeps_rows)
    assert not found.may_be_late


@pytest.mark.parametrize(
    "function",
    [
        lambda rows: rows.selectExpr("timestamp_seconds(value) AS at"),
        lambda rows: rows.selectExpr("stime + make_interval(0, 0, 0, 0, 0, 0, -value) AS at"),
        lambda rows: rows.withColumn("at", F.udf(lambda at: at, "timestamp")("stime")),
        lambda rows: rows.mapInPandas(lambda frames: frames, "at timestamp"),
    ],
    ids=["data", "interval from data", "udf", "mapInPandas"],
)
def test_a_result_time_of_which_the_plan_does_not_say_how_old_it_is_may_be_late(
    function: Callable[..., DataFrame], rows: DataFrame
) -> None:
    found = plan(function, rows, "at")
    assert (found.may_be_late, found.older_us) == (True, 0)


def test_what_a_function_with_a_state_of_its_own_gives_is_lifted_and_never_late(rows: DataFrame) -> None:
    def function(rows: DataFrame) -> DataFrame:
        return rows.groupBy("value").applyInPandasWithState(
            never, "at timestamp", "n bigint", "append", GroupStateTimeout.NoTimeout
        )

    assert not plan(function, rows, "at").may_be_late


def picked(*columns: str) -> Callable[[DataFrame], DataFrame]:
    """An aggregation over windows of two seconds that picks times from their rows."""
    return lambda rows: rows.groupBy(F.window("stime", "2 seconds"), "key").agg(*map(F.expr, columns))


def in_sql(text: str) -> Callable[[DataFrame], DataFrame]:
    def function(rows: DataFrame) -> DataFrame:
        rows.createOrReplaceTempView("picked_rows")
        return rows.sparkSession.sql(text)

    return function


@pytest.mark.parametrize(
    ("function", "stime", "older_ms"),
    [
        (picked("min(stime) AS stime"), None, 2_000),
        (picked("max(stime) AS stime"), None, 2_000),
        (picked("first(stime) AS stime"), None, 2_000),
        (picked("last(stime) AS at"), "at", 2_000),
        (picked("any_value(stime) AS at"), "at", 2_000),
        (picked("max_by(stime, value) AS at"), "at", 2_000),
        (picked("min(stime) AS at"), None, 0),
        (picked("min(stime) AS at"), "window.start", 2_000),
        (picked("min(struct(stime, value)).stime AS stime"), None, 2_000),
        (picked("max_by(struct(value, stime), value) AS best"), "best.stime", 2_000),
        (picked("max_by(struct(value, struct(stime) AS inner), value) AS best"), "best.inner.stime", 2_000),
        (picked("array_min(collect_list(stime)) AS stime"), None, 2_000),
        (picked("sort_array(collect_set(stime))[0] AS stime"), None, 2_000),
        (picked("min(stime) - interval 1 second AS stime"), None, 3_000),
        (picked("min(date_trunc('minute', stime)) AS stime"), None, 62_000),
        (picked("greatest(min(stime), max(stime)) AS stime"), None, 2_000),
        (picked("least(min(stime), max(date_trunc('second', stime))) AS stime"), None, 3_000),
        (lambda rows: picked("min(stime) AS early")(rows)
         .selectExpr("greatest(early, window_time(window)) AS stime"), None, 0),
        (lambda rows: picked("min(stime) AS early", "max(stime) AS late")(rows)
         .selectExpr("CASE WHEN key > 'k' THEN early ELSE late END AS stime"), None, 2_000),
        (lambda rows: rows.groupBy(F.window("stime", "6 seconds", "2 seconds")).agg(F.min("stime").alias("stime")),
         None, 6_000),
        (lambda rows: rows.select("stime", F.window("stime", "2 seconds").alias("w")).groupBy("w")
         .agg(F.min("stime").alias("stime")), None, 2_000),
        (lambda rows: rows.groupBy("stime", "key").agg(F.max("stime").alias("at")), "at", 0),
        (lambda rows: picked("min(stime) AS early")(rows).groupBy("window").agg(F.min("early").alias("stime")), None,
         2_000),
        (lambda rows: picked("min(stime) AS early")(rows).groupBy(F.window("window", "4 seconds"))
         .agg(F.min("early").alias("stime")), None, 6_000),
        (lambda rows: picked("min(stime) AS early")(rows).groupBy(F.window(F.window_time("window"), "4 seconds"))
         .agg(F.min("early").alias("stime")), None, 6_000),
        (lambda rows: picked("count(*) AS n")(rows).groupBy(F.window("window", "4 seconds").alias("whole"))
         .agg(F.expr("max_by(window, n).start AS stime")), None, 6_000),
        (lambda rows: joined(rows, "inner").groupBy(F.window("l.stime", "1 second"))
         .agg(F.max("r.stime").alias("stime")), None, 6_001),
        (lambda rows: rows.groupBy(F.window("stime", "2 seconds")).pivot("key", ["stime", "b"]).agg(F.min("stime")),
         None, 2_000),
        (in_sql("SELECT min(stime) AS stime FROM picked_rows GROUP BY window(stime, '2 seconds')"), None, 2_000),
        (in_sql("SELECT window.end AS until, max_by(stime, value) AS stime, key FROM picked_rows "
                "GROUP BY window(stime, '2 seconds'), key HAVING count(*) > 1"), None, 2_000),
        (lambda rows: windowed(rows, "1 second").union(windowed(rows, "5 seconds")).select("window.start"), "start",
         5_000),
        (lambda rows: rows.select("stime").union(rows.selectExpr("stime - interval 3 seconds")), None, 3_000),
    ],
)  # fmt: skip
def test_a_time_that_an_aggregation_picks_lies_back_by_its_window(
    function: Callable[[DataFrame], DataFrame], stime: str | None, older_ms: int, rows: DataFrame
) -> None:
    assert plan(function, rows, stime).older_us == older_ms * 1000


def never(key: Any, frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    yield from ()


class Answers(StatefulProcessor):
    """Without a timer."""

    def init(self, handle: Any) -> None:
        pass

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        yield from ()

    def close(self) -> None:
        pass


class Timed(Answers):
    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:
        yield from ()


def transformed(rows: DataFrame, processor: StatefulProcessor, time: str, mode: str = "Append") -> DataFrame:
    return rows.groupBy("key").transformWithState(processor, "stime timestamp, n bigint", mode, time)


def with_state(rows: DataFrame, timeout: str, mode: str = "append") -> DataFrame:
    return rows.groupBy("key").applyInPandasWithState(never, "stime timestamp, n bigint", "n bigint", mode, timeout)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda rows: rows.withColumn("x", F.rand()), "must give the same results for the same rows; got rand"),
        (lambda rows: rows.where(F.col("value") > F.rand()), "must give the same results"),
        (lambda rows: rows.withColumn("x", F.udf(len).asNondeterministic()("key")), "must give the same results"),
        (lambda rows: rows.limit(5), "got a limit on a stream, by which those rows count that come first"),
        (lambda rows: windowed(rows, "1 second").limit(5), "got a limit on a stream"),
        (lambda rows: rows.offset(5), "got a limit on a stream"),
        (lambda rows: transformed(rows, Timed(), "ProcessingTime"), "must not use processing-time timers"),
        (lambda rows: rows.groupBy("key").transformWithStateInPandas(Timed(), "stime timestamp", "Append",
            "ProcessingTime"), "must not use processing-time timers"),
        (lambda rows: windowed(rows, "1 second").orderBy("count"), "must be a query that Spark streams; .*[Ss]ort"),
        (lambda rows: with_state(rows, GroupStateTimeout.ProcessingTimeTimeout), "processing-time timeouts"),
        (lambda rows: with_state(rows, "NoTimeout", "update"), "in append mode.*got outputMode='Update'; say"),
        (lambda rows: transformed(rows, Answers(), "None", "Update"), "must give results in append mode"),
        (lambda rows: transformed(rows, Timed(), "EventTime", "Complete"), "got outputMode='Complete'; say "),
        (lambda rows: by_key(rows).select("l.stime"), "got that of a row which may wait for its partner"),
        (lambda rows: by_key(rows, "r.stime >= l.stime").select("l.stime"), "r.stime between l.stime - interval"),
        (lambda rows: by_key(rows, "r.stime >= l.stime").groupBy(F.window("l.stime", "1 second")).count(),
         "must give results a time that advances; got that of a row"),
        (lambda rows: by_key(rows, "r.stime >= l.stime").groupBy(F.window("r.stime", "1 second"))
         .agg(F.min("l.stime").alias("stime")), "must give results a time that advances; got that of a row"),
        (lambda rows: rows.groupBy("key").transformWithStateInPandas(Answers(), "stime timestamp", "Update", "None"),
         "must give results in append mode"),
        (lambda rows: rows.withColumn("t", F.date_trunc("minute", "stime")).groupBy(F.window("t", "1 minute")).count(),
         "must be a query that Spark streams; .*without watermark.*; group by a window of stime itself"),
        (lambda rows: joined(rows.withColumn("copy", F.col("stime")), "inner")
         .select(F.greatest("l.stime", "l.copy").alias("stime")), "More than one event time columns.* select one of"),
        (lambda rows: joined(rows, "left_anti").select("stime"), "must be a query that Spark streams; .*LeftAnti"),
        (lambda rows: rows.withColumn("t", F.expr("stime + interval 1 second")).withWatermark("t", "1 second"),
         r"withWatermark must be on the time of the inputs.*got 't'.*producer\(stime='t'"),
        (lambda rows: rows.dropDuplicatesWithinWatermark(["key"]), "must be told within which time"),
        (lambda rows: rows.withWatermark("stime", "1 hour").alias("l").join(
            rows.dropDuplicatesWithinWatermark(["key"]).alias("r"), F.expr(NEAR)),
         "got a frame without withWatermark; write .withWatermark.* on this frame itself where there are several"),
        (lambda rows: rows.groupBy(F.session_window("stime", "1 second"), "key").count()
         .selectExpr("session_window.start AS stime"), "got the start of a session"),
        (lambda rows: rows.groupBy(F.session_window("stime", "1 second"), "key").agg(F.min("stime").alias("stime")),
         r"got min\(.*stime\) over a session, which may lie back.*give this column another name than stime, or name "),
        (lambda rows: rows.groupBy(F.session_window("stime", "1 second"), "key")
         .agg(F.max_by(F.struct("stime"), "value")["stime"].alias("stime")), "over a session, which may lie back"),
        (lambda rows: rows.groupBy(F.session_window("stime", "1 second")).count(),
         "must be a query that Spark streams; .*Global aggregation with session window"),
    ],
)  # fmt: skip
def test_what_cannot_be_right_is_refused_with_the_way_out(
    function: Callable[..., DataFrame], said: str, rows: DataFrame
) -> None:
    with pytest.raises(UsageError, match=said):
        plan(function, rows)


def test_a_watermark_on_the_time_of_the_inputs_is_taken_and_does_not_wait(
    rows: DataFrame, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.spark.event_time._told", set())
    for _ in range(2):  # As a fork describes the query once more.
        found = plan(
            lambda r: r.withWatermark("stime", "10 minutes").groupBy(F.window("stime", "1 second")).count(), rows
        )
    assert (found.operators, found.lag_us) == (("StateStoreSaveExec",), 0)
    assert [r.levelno for r in caplog.records if "does not wait 10m" in r.message] == [logging.WARNING]
    assert rows.withWatermark("stime", "1 second").schema["stime"].metadata == {"spark.watermarkDelayMs": 1000}, (
        "outside a node's function withWatermark must be Spark's own"
    )


def test_each_side_of_a_join_deduplicates_within_the_time_that_was_written_for_it(rows: DataFrame) -> None:
    def function(rows: DataFrame) -> DataFrame:
        left = rows.withWatermark("stime", "10 minutes").dropDuplicatesWithinWatermark(["key"])
        right = rows.withWatermark("stime", "1 hour").select("stime", "key").dropDuplicatesWithinWatermark(["key"])
        return left.alias("l").join(right.alias("r"), F.expr(NEAR)).select("l.stime", "l.key")

    found = plan(function, rows)
    within = "StreamingDeduplicateWithinWatermarkExec"
    assert sorted(found.operators) == [within, within, "StreamingSymmetricHashJoinExec"]
    with boundaries_instead_of_watermarks("n"):
        analysed = function(rows)._jdf.queryExecution().analyzed()
    sides = [node.child().output() for node in nodes(analysed) if kind_of(node) == "DeduplicateWithinWatermark"]
    noted = [column.metadata() for side in sides for column in each(side) if column.name() == "stime"]
    assert [note.getLong(DELAY) for note in noted] == [600_000, 3_600_000]


def test_the_delay_of_a_watermark_stays_with_the_time_under_another_name_and_in_its_windows(rows: DataFrame) -> None:
    def function(rows: DataFrame) -> DataFrame:
        marked = rows.withWatermark("stime", "10 minutes").select(F.col("stime").alias("at"), "key")
        counts = marked.groupBy(F.window("at", "1 second")).count()
        return counts.dropDuplicatesWithinWatermark(["count"])

    assert plan(function, rows).operators == ("StateStoreSaveExec", "StreamingDeduplicateWithinWatermarkExec")


def test_a_frame_with_a_watermark_has_the_columns_and_the_identity_of_the_one_before(rows: DataFrame) -> None:
    """A node that had one before is not taken for a changed one, and `rows["stime"]` still means its time."""
    with boundaries_instead_of_watermarks("n"):
        marked = rows.alias("l").withWatermark("stime", "10 minutes").where("value > 1")
        again = rows.withWatermark("stime", "10 minutes")
    assert plan_lines(marked) == plan_lines(rows.alias("l").where("value > 1"))
    assert again.select(rows["stime"], "key").columns == marked.select("l.stime", "key").columns == ["stime", "key"]
    assert reading_of(again) is reading_of(rows) is not None


@pytest.mark.parametrize(
    ("function", "stime", "before_s", "after_s", "step_s"),
    [
        (lambda rows: rows.filter("value > 1"), None, 0, 0, 0),
        (lambda rows: rows.dropDuplicates(["key"]), None, 0, 0, 0),
        (lambda rows: rows.selectExpr("stime - interval 5 seconds AS at"), "at", -5, 5, 0),
        (lambda rows: rows.selectExpr("stime + interval 5 seconds AS at"), "at", 5, 0, 0),
        (lambda rows: windowed(rows, "1 minute"), None, 60, 0, 60),
        (lambda rows: windowed(rows, "1 minute"), "window.start", 0, 60, 60),
        (lambda rows: windowed(rows, "1 minute", "1 minute", "15 seconds"), None, 60, 0, 15),
        (lambda rows: windowed(rows, "1 minute", "10 seconds"), None, 60, 0, 10),
        (lambda rows: windowed(rows, "1 minute").select(F.window_time("window").alias("at")), "at", 60, 0, 0),
        (lambda rows: picked("min(stime) AS stime")(rows), None, 2, 2, 0),
        (lambda rows: windowed(rows, "10 seconds").groupBy(F.window("window", "1 minute")).count(), None, 70, 0, 60),
        (lambda rows: windowed(rows, "10 seconds").groupBy(F.window("window", "1 minute")).count(), "window.start",
         10, 60, 60),
        (lambda rows: joined(rows, "inner").select("l.stime", "l.key"), None, 5.001, 5.001, 0),
        (lambda rows: joined(rows, "inner").select(F.greatest("l.stime", "r.stime").alias("stime")), None, 5.001, 0, 0),
        (lambda rows: joined(rows, "left").groupBy(F.window("l.stime", "1 second")).count(), None, 6.001, 5.001, 1),
        (lambda rows: by_key(rows).select(F.greatest("l.stime", "r.stime").alias("stime")), None, None, 0, 0),
        (lambda rows: rows.groupBy(F.session_window("stime", "10 seconds"), "key").count(), None, None, 0, 0),
    ],
)  # fmt: skip
def test_which_input_goes_into_a_result_is_read_off_the_plan(
    function: Callable[..., DataFrame],
    stime: str | None,
    before_s: float | None,
    after_s: float,
    step_s: int,
    rows: DataFrame,
) -> None:
    """003 §5.8.3: what a tentative result is worth covers all of it."""
    before_us = None if before_s is None else round(before_s * 1_000_000)
    found = plan(function, rows, stime).coverage(None)
    assert found == Coverage(before_us, round(after_s * 1_000_000), step_s * 1_000_000)


def test_how_much_input_goes_into_a_result_is_less_where_the_user_says_so(rows: DataFrame) -> None:
    session = plan(lambda r: r.groupBy(F.session_window("stime", "10 seconds"), "key").count(), rows)
    assert session.coverage(30_000_000) == Coverage(30_000_000, 0, 0)
    window = plan(lambda r: windowed(r, "1 minute"), rows)
    assert window.coverage(30_000_000) == Coverage(30_000_000, 0, 60_000_000)
    assert window.coverage(90_000_000) == Coverage(60_000_000, 0, 60_000_000)


def test_functions_with_a_state_run_bucket_by_bucket_and_those_with_timers_keep_results(rows: DataFrame) -> None:
    without, timed = (plan(lambda r, t=t: with_state(r, t), rows) for t in ("NoTimeout", "EventTimeTimeout"))
    assert (without.bucket_by_bucket, without.settles, without.keeps_rows) == (True, False, False)
    assert (timed.bucket_by_bucket, timed.settles, timed.keeps_rows) == (True, True, True)
    assert not plan(lambda r: r.dropDuplicates(["key"]), rows).bucket_by_bucket


def test_a_state_s_function_gives_the_time_of_a_window_behind_it(rows: DataFrame) -> None:
    """`eventTimeColumnName`: Spark marks the column, under any name."""

    def timed(rows: DataFrame, mode: str) -> DataFrame:
        return rows.groupBy("key").transformWithStateInPandas(
            Answers(), "key string, at timestamp", "Append", mode, eventTimeColumnName="at"
        )

    with boundaries_instead_of_watermarks("n"):
        assert time_path(timed(rows, "None").schema, None, "node n") == ("at",)
    alone = plan(lambda r: timed(r, "None"), rows)
    assert (alone.bucket_by_bucket, alone.settles, alone.keeps_rows, alone.time_is_known) == (True, False, False, True)
    windows = plan(lambda r: timed(r, "EventTime").groupBy(F.window("at", "2 seconds")).count(), rows)
    assert windows.operators == ("TransformWithStateInPySparkExec", "StateStoreSaveExec")
    assert (windows.bucket_by_bucket, windows.settles, windows.keeps_rows, windows.lag_us) == (True, True, True, 0)


def test_a_state_may_begin_with_a_table_and_not_with_a_stream(rows: DataFrame, spark: SparkSession) -> None:
    def begun(initial: DataFrame) -> Callable[[DataFrame], DataFrame]:
        return lambda rows: rows.groupBy("key").transformWithStateInPandas(
            Answers(), "stime timestamp, key string", "Append", "None", initialState=initial.groupBy("key")
        )

    table = spark.range(3).selectExpr("cast(id AS string) AS key", "id AS total")
    found = plan(begun(table), rows)
    assert (found.operators, found.keeps_rows) == (("TransformWithStateInPySparkExec",), False)
    with pytest.raises(UsageError, match="must begin a state with a table; got a stream as initialState"):
        plan(begun(rows.select("key", "value")), rows)


def test_an_aggregation_by_the_time_itself_drops_rows_at_the_watermark_and_one_by_windows_does_not(
    rows: DataFrame,
) -> None:
    assert plan(lambda r: r.groupBy("stime", "key").count(), rows).drops_at_watermark
    assert not plan(lambda r: r.groupBy(F.window("stime", "1 second"), "key").count(), rows).drops_at_watermark


def test_a_function_of_groups_sees_a_bucket_at_a_time_and_windows_in_front_of_it_are_released(rows: DataFrame) -> None:
    """Spark would hand it whatever part of a group a batch happens to have."""

    def same(frame: pd.DataFrame) -> pd.DataFrame:
        return frame

    columns = "stime timestamp, key string, value bigint"
    alone = plan(lambda r: r.select("stime", "key", "value").groupBy("key").applyInPandas(same, columns), rows)
    assert (alone.bucket_by_bucket, alone.settles, alone.keeps_rows) == (True, False, False)
    counts = "window struct<start timestamp, end timestamp>, count bigint"
    windows = plan(
        lambda r: r.groupBy(F.window("stime", "1 second")).count().groupBy("window").applyInPandas(same, counts), rows
    )
    assert (windows.bucket_by_bucket, windows.settles, windows.keeps_rows) == (True, True, True)


def test_a_time_to_live_is_warned_of_where_no_timer_is_handled(
    rows: DataFrame, caplog: pytest.LogCaptureFixture
) -> None:
    plan(lambda r: transformed(r, Timed(), "EventTime"), rows)
    plan(lambda r: transformed(r, Answers(), "None"), rows)
    assert "time to live" not in caplog.text
    plan(lambda r: transformed(r, Answers(), "ProcessingTime"), rows)
    plan(lambda r: r.groupBy("key").transformWithStateInPandas(Answers(), "stime timestamp", "Append",
                                                               "ProcessingTime"), rows)  # fmt: skip
    assert caplog.text.count("results that depend on a time to live differ between replicas") == 2


@pytest.mark.parametrize(
    ("function", "in_order", "mixed"),
    [
        (lambda rows: rows.dropDuplicates(["key"]), True, None),
        (lambda rows: rows.where("value > 1").withColumn("n", F.explode(F.array("value"))).dropDuplicates(["key"]),
         True, None),
        (lambda rows: rows.dropDuplicates(["stime", "key"]), True, None),
        (lambda rows: rows.withWatermark("stime", "1 second").dropDuplicatesWithinWatermark(["key"]), True, None),
        (lambda rows: rows.dropDuplicates(["stime", "key", "value"]), False, None),
        (lambda rows: rows.select("stime", "key").dropDuplicates(), False, None),
        (lambda rows: rows.select("stime", "key").distinct(), False, None),
        (lambda rows: rows.union(rows).select("stime", "key").dropDuplicates(["stime", "key"]), False, None),
        (lambda rows: rows.union(rows).dropDuplicates(["key"]), True, "Union"),
        (lambda rows: joined(rows, "inner").select("l.stime", "l.key", "l.value").dropDuplicates(["stime", "key"]),
         True, "Join"),
        (lambda rows: rows.repartition(2).dropDuplicates(["key"]), True, "Repartition"),
        (lambda rows: windowed(rows, "1 second").dropDuplicates(["count"]), True, "Aggregate"),
    ],
)  # fmt: skip
def test_a_deduplication_by_some_columns_takes_rows_in_the_order_of_the_inputs_or_says_that_it_cannot(
    function: Callable[[DataFrame], DataFrame], in_order: bool, mixed: str | None, rows: DataFrame,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """D9: the first row of a key stays, however the inputs are cut into batches."""
    assert plan(function, rows).in_order == in_order
    said = [r.message for r in caplog.records if "stays depends on the order in which Spark brings rows" in r.message]
    assert len(said) == (mixed is not None)
    assert all(f"there is a {mixed} in front of dropDuplicates; put dropDuplicates into a node of" in m for m in said)


def test_functions_that_give_tables_are_taken_and_what_they_are_given_is_looked_at(
    rows: DataFrame, spark: SparkSession
) -> None:
    """Spark takes a Python function that gives tables for nondeterministic unless it is marked otherwise."""

    @F.udtf(returnType="part string")
    class Parts:
        def eval(self, text: str) -> Iterator[tuple[str]]:
            yield from ((letter,) for letter in text)

    def parts(of: str) -> Callable[[DataFrame], DataFrame]:
        def function(given: DataFrame) -> DataFrame:
            spark.udtf.register("parts", Parts)
            given.createOrReplaceTempView("with_parts")
            return spark.sql(f"SELECT stime, part FROM with_parts, LATERAL parts({of})")

        return function

    assert not plan(parts("key"), rows).keeps_rows
    with pytest.raises(UsageError, match="must not look at the clock"):
        plan(parts("concat(key, cast(current_timestamp() AS string))"), rows)


def test_a_table_may_be_limited(rows: DataFrame, spark: SparkSession) -> None:
    """Which rows of it count is the table's affair, not that of the arrival of a stream."""
    table = spark.range(10).withColumnRenamed("id", "value").orderBy("value").limit(3)
    assert not plan(lambda r: r.join(table, "value"), rows).keeps_rows


def test_the_time_of_a_result_is_the_one_that_spark_marks(rows: DataFrame) -> None:
    def path(frame: DataFrame, named: str | None = None) -> tuple[str, ...]:
        return time_path(frame.schema, named, "node n")

    counts = rows.groupBy(F.window("stime", "1 second").alias("span"), "key").count()
    assert path(rows) == ("stime",)
    assert path(counts) == ("span", "end")
    assert path(counts.select(F.window_time("span").alias("t"))) == ("t",)
    assert path(rows.groupBy(F.session_window("stime", "1 second")).count()) == ("session_window", "end")
    assert path(counts.select(F.col("span.end").alias("until")), "until") == ("until",)
    with pytest.raises(SchemaError, match="gives several columns with event time: a, b"):
        path(rows.select(F.col("stime").alias("a"), F.col("stime").alias("b")))
    with pytest.raises(SchemaError, match="a result needs an stime"):
        path(rows.select("key"))
    with pytest.raises(SchemaError, match=r"until was named for it; node n gives .*; name a column that is there, for"):
        path(rows, "until")
    with pytest.raises(SchemaError, match="must be a timestamp or a window; key of node n is string"):
        path(rows, "key")
