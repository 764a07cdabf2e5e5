"""Kinds of query that people write with PySpark, each as a node over the streams `a` and `b`.

A kind is a function such as a user would write, and the rows that it must give. For most the oracle is batch Spark: the
same function over the same rows. Where Spark has no batch form, or leaves a choice (which of two duplicates stays), the
kind says what to compare or computes the rows itself.

Columns of both streams: `k bigint` (0 to 4), `v bigint`, `name string`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import Row as RowOfSpark
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

from holdfast.operators import count, count_window
from holdfast.spark import flow_of

BUCKET_S = 2
#: A row of an input, as the oracles of Python see it.
Row = dict[str, Any]


@dataclass(frozen=True)
class Kind:
    function: Callable[..., Any]
    columns: tuple[str, ...] | None = None
    """What is compared, where the rest is Spark's choice; None: everything."""
    expected: Callable[[list[Row]], list[tuple[Any, ...]]] | None = None
    """The oracle where batch Spark is none; gives `columns`."""
    options: tuple[tuple[str, Any], ...] = ()
    metrics: tuple[str, ...] = ()
    """Names of what `observe` gives, of which a listener of the user's must hear."""
    heavy: bool = False
    """Whether Spark starts processes for it all the time, so that it needs the room of two."""
    at_length: bool = False
    """Whether it puts together what other kinds show one by one, so that only `make test-faults` tries it."""

    @property
    def places(self) -> int:
        return 2 if self.heavy else 1


KINDS: dict[str, Kind] = {}


def kind(**given: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def declare(function: Callable[..., Any]) -> Callable[..., Any]:
        options = tuple(given.pop("options", {}).items())
        KINDS[function.__name__] = Kind(function, options=options, **given)
        return function

    return declare


# -- without state -----------------------------------------------------------------------------------------------------


@kind()
def filtered_with_a_renamed_time(rows: DataFrame) -> DataFrame:
    """A filter, and `stime` under another name."""
    return rows.filter("k > 1").select(F.col("stime").alias("at"), "k", (F.col("v") * 2).alias("twice"))


@kind()
def exploded_and_nested(rows: DataFrame) -> DataFrame:
    """Several results of a row; structs and arrays."""
    nested = rows.select("stime", "v", F.struct("k", "name").alias("s"), F.array("k", F.col("k") + 10).alias("l"))
    return nested.select("*", F.explode("l").alias("each"))


@kind()
def python_pandas_and_arrow_udfs(rows: DataFrame) -> DataFrame:
    """Python, pandas and Arrow UDFs."""

    def doubled(v: pd.Series) -> pd.Series:
        return v * 2

    def tripled(v: pa.Array) -> pa.Array:
        return pc.multiply(v, 3)

    longer = F.udf(lambda name, k: f"{name}-{k}", "string")
    return rows.select(
        "stime", "v", longer("name", "k").alias("label"), F.pandas_udf(doubled, "bigint")("v").alias("twice"),
        F.arrow_udf(tripled, "bigint")("v").alias("thrice"),
    )  # fmt: skip


@kind()
def map_in_pandas_and_in_arrow(rows: DataFrame) -> DataFrame:
    """`mapInPandas`, and `mapInArrow` behind it."""

    def shifted(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for frame in frames:
            yield frame.assign(v=frame["v"] + 1)

    def even(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch.filter(pc.equal(pc.bit_wise_and(batch.column("v"), 1), 0))

    columns = "stime timestamp, k bigint, v bigint"
    return rows.select("stime", "k", "v").mapInPandas(shifted, columns).mapInArrow(even, columns)


@kind()
def joined_with_tables(rows: DataFrame) -> DataFrame:
    """Left and left anti joins with tables, and a Python UDTF."""
    spark = rows.sparkSession
    named = spark.createDataFrame([(k, f"group {k % 2}") for k in range(4)], "k bigint, kind string")
    without = spark.createDataFrame([("a1",)], "name string")
    rows = rows.join(F.broadcast(named), "k", "left").join(without, "name", "left_anti")
    spark.udtf.register("both_digits", BothDigits)
    rows.createOrReplaceTempView("joined_rows")
    return spark.sql("SELECT stime, k, v, kind, digit FROM joined_rows, LATERAL both_digits(v)")


@F.udtf(returnType="digit bigint")
class BothDigits:
    def eval(self, v: int) -> Iterator[tuple[int]]:
        yield from ((v // 10 % 10,), (v % 10,))


@kind(at_length=True)
def union_of_inputs_of_different_shapes(a: DataFrame, b: DataFrame) -> DataFrame:
    """Both inputs apart, and together again with what each of them has."""
    small = a.where("k < 3").select("stime", "k")
    return small.unionByName(b.select("stime", F.upper("name").alias("label")), allowMissingColumns=True)


@kind(metrics=("mine",))
def observed_union_of_parts(rows: DataFrame) -> DataFrame:
    """A union of one input's parts, and `observe`, whose metrics a listener gets."""
    low = rows.filter("k < 2").select("stime", "k", "v", F.lit("low").alias("part"))
    both = low.union(rows.filter("k > 2").select("stime", "k", "v", F.lit("high")))
    return both.observe("mine", F.count(F.lit(1)).alias("n"))


# -- windows -----------------------------------------------------------------------------------------------------------


@kind()
def sliding(rows: DataFrame) -> DataFrame:
    """Overlapping windows."""
    return rows.groupBy(F.window("stime", "3 seconds", "1 second")).agg(F.max("v").alias("v"))


@kind(at_length=True)
def pivoted(rows: DataFrame) -> DataFrame:
    """`pivot` over a window: Spark makes two aggregations of it."""
    return rows.groupBy(F.window("stime", "2 seconds")).pivot("name", ["a0", "b0"]).agg(F.sum("v"))


@kind()
def watermarked_window(rows: DataFrame) -> DataFrame:
    """A watermark of the user's: taken, and its delay not waited for."""
    return rows.withWatermark("stime", "1 second").groupBy(F.window("stime", "2 seconds"), "k").count()


@kind(at_length=True)
def watermark_on_a_renamed_time(rows: DataFrame) -> DataFrame:
    """The same on `stime` under another name."""
    events = rows.select(F.col("stime").alias("event_time"), "k").withWatermark("event_time", "2 seconds")
    return events.groupBy(F.window("event_time", "2 seconds").alias("span"), "k").count()


@kind()
def session_window(rows: DataFrame) -> DataFrame:
    """Sessions."""
    return rows.filter("v % 7 < 3").groupBy(F.session_window("stime", "700 milliseconds"), "k").count()


@kind(at_length=True)
def sessions_of_a_dynamic_gap(rows: DataFrame) -> DataFrame:
    """Sessions whose gap each row says."""
    gap = F.when(F.col("k") < 2, "400 milliseconds").otherwise("900 milliseconds")
    return rows.filter("v % 7 < 3").groupBy(F.session_window("stime", gap), "k").count()


@kind(options={"stime": "until"}, at_length=True)
def named_end_of_a_window(rows: DataFrame) -> DataFrame:
    """The end of a window as a column of its own."""
    counts = rows.groupBy(F.window("stime", "2 seconds"), "k").count()
    return counts.select(F.col("window.start").alias("since"), F.col("window.end").alias("until"), "k", "count")


@kind(options={"stime": "since"})
def named_start_of_a_window(rows: DataFrame) -> DataFrame:
    """Its start: results older than the watermark by a window."""
    counts = rows.groupBy(F.window("stime", "2 seconds"), "k").count()
    return counts.select(F.col("window.start").alias("since"), "k", "count")


@kind()
def least_time_of_each_window(rows: DataFrame) -> DataFrame:
    """A time that an aggregation picks as that of the result: older than the watermark by a window."""
    # Longer than a bucket: the boundary has passed its first rows when it closes.
    times = rows.groupBy(F.window("stime", "3 seconds"), "k").agg(
        F.min("stime").alias("stime"), F.max("stime").alias("last")
    )
    return times.select("stime", "last", "k")


@kind()
def window_over_a_window(rows: DataFrame) -> DataFrame:
    """An aggregation over an aggregation, by `window_time`."""
    counts = rows.groupBy(F.window("stime", "1 second"), "k").count()
    return counts.groupBy(F.window(F.window_time("window"), "4 seconds")).agg(F.max("count").alias("most"))


@kind(at_length=True)
def window_of_a_window(rows: DataFrame) -> DataFrame:
    """The same by the window itself."""
    counts = rows.groupBy(F.window("stime", "1 second"), "k").count()
    return counts.groupBy(F.window("window", "4 seconds"), "k").agg(F.sum("count").alias("n"))


@kind()
def window_time_of_a_decimal_sum_with_having(rows: DataFrame) -> DataFrame:
    """Decimals, a filter behind an aggregation, `window_time`."""
    price = (F.col("v") / F.lit(100)).cast("decimal(12,2)")
    kinds = F.size(F.collect_set("k")).cast("bigint")
    counts = rows.groupBy(F.window("stime", "2 seconds"), "name").agg(
        kinds.alias("kinds"), F.sum(price).alias("total")
    )  # fmt: skip
    return counts.where("kinds > 1").select(F.window_time("window").alias("t"), "name", "kinds", "total")


@kind(at_length=True)
def grouped_by_the_time_itself(rows: DataFrame) -> DataFrame:
    """An aggregation without a window."""
    return rows.groupBy("stime", "k").count()


@kind()
def sql_with_a_common_table_expression(rows: DataFrame) -> DataFrame:
    """SQL over a temp view."""
    rows.createOrReplaceTempView("every_row")
    return rows.sparkSession.sql(
        "WITH big AS (SELECT * FROM every_row WHERE v > 5) "
        "SELECT window AS span, k, sum(v) AS v FROM big GROUP BY window(stime, '2 seconds'), k"
    )


def _bucket(at: datetime) -> datetime:
    """Where its bucket begins."""
    return at.replace(second=at.second // BUCKET_S * BUCKET_S, microsecond=0)


# -- duplicates --------------------------------------------------------------------------------------------------------


@kind()
def duplicates_by_time(rows: DataFrame) -> DataFrame:
    """`dropDuplicates` that forgets."""
    return rows.select("stime", "k").dropDuplicates(["stime", "k"])


@kind(at_length=True)
def duplicates_then_window(rows: DataFrame) -> DataFrame:
    """A deduplication in front of a window; approximate, exact and collected values."""
    once = rows.union(rows).dropDuplicates(["stime", "k"])
    return once.groupBy(F.window("stime", "2 seconds")).agg(
        F.count("*").alias("n"), F.approx_count_distinct("v").alias("around"), F.percentile("v", 0.5).alias("middle"),
        F.array_sort(F.collect_set("k")).alias("ks"), F.max(F.struct("v", "name")).alias("last"),
    )  # fmt: skip


@kind(columns=("v",), at_length=True)
def duplicates_for_ever(rows: DataFrame) -> DataFrame:
    """`dropDuplicates` that never forgets."""
    return rows.select("stime", "v").dropDuplicates(["v"])


def _within(rows: list[Row]) -> list[tuple[Any, ...]]:
    """Bucket by bucket, one input after the other. A key is forgotten behind the first bucket that began after it had
    expired."""
    found: list[tuple[Any, ...]] = []
    expiry: dict[int, datetime] = {}
    for start in sorted({_bucket(row["stime"]) for row in rows}):
        inside = [row for row in rows if _bucket(row["stime"]) == start]
        for row in sorted(inside, key=lambda r: (r["stream"], r["stime"])):
            if row["k"] not in expiry:
                found.append((row["stime"], row["k"]))
                expiry[row["k"]] = row["stime"] + timedelta(seconds=2)
        expiry = {k: end for k, end in expiry.items() if end >= start}
    return found


@kind(columns=("stime", "k"), expected=_within)
def duplicates_within_the_watermark(rows: DataFrame) -> DataFrame:
    """`dropDuplicatesWithinWatermark`, bucket by bucket."""
    marked = rows.select("stime", "k", "v").withWatermark("stime", "2 seconds")
    return marked.dropDuplicatesWithinWatermark(["k"]).select("stime", "k")


# -- joins -------------------------------------------------------------------------------------------------------------


def _near(a: DataFrame, b: DataFrame, how: str) -> DataFrame:
    near = F.expr("l.v = r.v and r.stime between l.stime - interval 1 second and l.stime + interval 1 second")
    return a.alias("l").join(b.alias("r"), near, how)


@kind()
def inner_join(a: DataFrame, b: DataFrame) -> DataFrame:
    """A live interval join, by the frames' own columns (`a.v == b.v`): pairs with the bucket of the later row."""
    second = F.expr("interval 1 second")
    near = (a.v == b.v) & b.stime.between(a.stime - second, a.stime + second)
    return a.join(b, near).select(F.greatest(a.stime, b.stime).alias("stime"), a.v, b.k)


@kind()
def inner_join_by_the_left_time(a: DataFrame, b: DataFrame) -> DataFrame:
    """The same by the time of one side: pairs behind by the reach."""
    return _near(a, b, "inner").select("l.stime", "l.v", "r.k")


@kind()
def left_join(a: DataFrame, b: DataFrame) -> DataFrame:
    """Rows without a partner, once none can come."""
    return _near(a, b, "left").select("l.stime", "l.v", F.col("r.k").alias("other"))


@kind(at_length=True)
def right_join(a: DataFrame, b: DataFrame) -> DataFrame:
    """The same from the right."""
    return _near(a, b, "right").select("r.stime", "r.v", F.col("l.k").alias("other"))


@kind()
def full_join(a: DataFrame, b: DataFrame) -> DataFrame:
    """The same from both."""
    both = _near(a, b, "full")
    return both.select(F.coalesce("l.stime", "r.stime").alias("stime"), F.coalesce("l.v", "r.v").alias("v"), "l.k")


@kind()
def semi_join(a: DataFrame, b: DataFrame) -> DataFrame:
    """Rows with a partner, once."""
    return _near(a, b, "left_semi").select("stime", "v")


@kind()
def watermarked_join(a: DataFrame, b: DataFrame) -> DataFrame:
    """Two watermarks of the user's with two delays."""
    left = a.withWatermark("stime", "1 second").select(F.col("stime").alias("left_time"), F.col("v").alias("lv"))
    right = b.withWatermark("stime", "3 seconds").select(F.col("stime").alias("right_time"), F.col("v").alias("rv"))
    near = F.expr("lv = rv and right_time between left_time and left_time + interval 1 second")
    return left.join(right, near).select(F.greatest("left_time", "right_time").alias("stime"), "lv")


@kind()
def join_then_window(a: DataFrame, b: DataFrame) -> DataFrame:
    """A join's watermark enters a window."""
    pairs = _near(a, b, "inner").select("l.stime", "l.v")
    return pairs.groupBy(F.window("stime", "2 seconds")).agg(F.count("*").alias("n"))


@kind(at_length=True)
def left_join_then_window(a: DataFrame, b: DataFrame) -> DataFrame:
    """An outer join's watermark enters a window."""
    pairs = _near(a, b, "left").select("l.stime", F.col("r.k").alias("other"))
    return pairs.groupBy(F.window("stime", "2 seconds")).agg(F.count("*").alias("n"), F.count("other").alias("pairs"))


@kind(at_length=True)
def three_way_join(a: DataFrame, b: DataFrame) -> DataFrame:
    """A join's watermark enters an outer join."""
    pairs = _near(a, b, "inner").select(F.col("l.stime").alias("at"), F.col("l.v").alias("v"))
    following = a.select(F.col("stime").alias("next_at"), F.col("v").alias("next_v"))
    soon = F.expr("v % 2 = 0 and next_v = v + 3 and next_at between at and at + interval 1 second")
    return pairs.join(following, soon, "left").select("at", "v", "next_v")


@kind(at_length=True)
def self_join(rows: DataFrame) -> DataFrame:
    """Rows of the inputs with others of the same."""
    soon = F.expr("l.v = r.v - 1 and r.stime between l.stime - interval 1 second and l.stime + interval 1 second")
    pairs = rows.alias("l").join(rows.alias("r"), soon)
    return pairs.select(F.greatest("l.stime", "r.stime").alias("stime"), "l.v", F.col("r.name").alias("other"))


@kind()
def join_then_deduplication(a: DataFrame, b: DataFrame) -> DataFrame:
    """A join's watermark enters a deduplication."""
    return _near(a, b, "inner").select("l.stime", "l.v").dropDuplicates(["stime", "v"])


@kind()
def window_then_join(a: DataFrame, b: DataFrame) -> DataFrame:
    """Windows of both inputs, joined."""
    counts = [
        side.groupBy(F.window("stime", "2 seconds")).agg(F.count("*").alias(n)) for side, n in ((a, "x"), (b, "y"))
    ]
    return counts[0].join(counts[1], "window").select("window", "x", "y")


# -- functions of groups -----------------------------------------------------------------------------------------------


def _bucket_sums(rows: list[Row]) -> list[tuple[Any, ...]]:
    """A group is what a bucket has of it."""
    found: dict[tuple[datetime, int], list[int]] = {}
    for row in rows:
        found.setdefault((_bucket(row["stime"]), row["k"]), []).append(row["v"])
    return [(k, sum(values), len(values)) for (_, k), values in found.items()]


@kind(columns=("k", "v", "n"), expected=_bucket_sums, heavy=True)
def apply_in_pandas(rows: DataFrame) -> DataFrame:
    """A function of groups: what a bucket has of each."""

    def summed(frame: pd.DataFrame) -> pd.DataFrame:
        sums = {"k": frame["k"].iloc[0], "v": frame["v"].sum(), "n": len(frame)}
        return pd.DataFrame({"stime": [frame["stime"].max()], **{name: [value] for name, value in sums.items()}})

    return rows.groupBy("k").applyInPandas(summed, "stime timestamp, k bigint, v bigint, n bigint")


@kind(heavy=True, at_length=True)
def largest_of_each_window(rows: DataFrame) -> DataFrame:
    """`applyInPandas` behind a windowed aggregation."""

    def largest(frame: pd.DataFrame) -> pd.DataFrame:
        return frame.sort_values(["v", "k"]).tail(2)

    sums = rows.groupBy(F.window("stime", "1 second"), "k").agg(F.sum("v").alias("v"))
    columns = "window struct<start timestamp, end timestamp>, k bigint, v bigint"
    return sums.groupBy("window").applyInPandas(largest, columns)


def _bucket_pairs(rows: list[Row]) -> list[tuple[Any, ...]]:
    """How much of a key a bucket has from each input."""
    found: dict[tuple[datetime, int], list[int]] = {}
    for row in rows:
        found.setdefault((_bucket(row["stime"]), row["k"]), [0, 0])[row["stream"] == "b"] += 1
    return [(k, *counts) for (_, k), counts in found.items()]


@kind(columns=("k", "a", "b"), expected=_bucket_pairs, heavy=True, at_length=True)
def cogrouped_and_applied_in_arrow(a: DataFrame, b: DataFrame) -> DataFrame:
    """`cogroup`, and `applyInArrow` behind it."""

    def counted(key: tuple[int], left: pd.DataFrame, right: pd.DataFrame) -> pd.DataFrame:
        last = pd.concat([left["stime"], right["stime"]]).max()
        return pd.DataFrame({"stime": [last], "k": [key[0]], "a": [len(left)], "b": [len(right)]})

    def same(table: pa.Table) -> pa.Table:
        return table

    columns = "stime timestamp, k bigint, a bigint, b bigint"
    counts = a.groupBy("k").cogroup(b.groupBy("k")).applyInPandas(counted, columns)
    return counts.groupBy("k").applyInArrow(same, columns)


# -- functions with a state of their own -------------------------------------------------------------------------------


def _running_counts(rows: list[Row]) -> list[tuple[Any, ...]]:
    """Each bucket's number of rows by key, and the number so far."""
    found, sofar = [], dict.fromkeys(range(5), 0)
    buckets: dict[datetime, dict[int, int]] = {}
    for row in rows:
        at = row["stime"].replace(tzinfo=None)
        counts = buckets.setdefault(_bucket(at), {})
        counts[row["k"]] = counts.get(row["k"], 0) + 1
    for start in sorted(buckets):
        for k, n in buckets[start].items():
            sofar[k] += n
            found.append((k, n, sofar[k]))
    return found


@kind(columns=("k", "n", "total"), expected=_running_counts)
def apply_in_pandas_with_state(rows: DataFrame) -> DataFrame:
    """A state by key, and answers with the bucket."""

    def counted(key: tuple[int], frames: Iterable[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        total = state.get[0] if state.exists else 0
        n, last = 0, None
        for frame in frames:
            n, last = n + len(frame), frame["stime"].max()
        if n:
            state.update((total + n,))
            yield pd.DataFrame({"stime": [last], "k": [key[0]], "n": [n], "total": [total + n]})

    return rows.groupBy("k").applyInPandasWithState(
        counted, "stime timestamp, k bigint, n bigint, total bigint", "total bigint", "append",
        GroupStateTimeout.NoTimeout,
    )  # fmt: skip


def _silences(rows: list[Row]) -> list[tuple[Any, ...]]:
    """How many rows of a key came before two seconds of silence; timers are called behind the bucket they lie in."""
    found: list[tuple[Any, ...]] = []
    counts: dict[int, int] = {}
    last: dict[int, datetime] = {}
    few = [row for row in rows if row["v"] % 40 < 12]
    start = _bucket(min(row["stime"] for row in rows))
    while start <= max(row["stime"] for row in rows):
        end = start + timedelta(seconds=BUCKET_S)
        for row in sorted((r for r in few if start <= r["stime"] < end), key=lambda r: r["stime"]):
            counts[row["k"]] = counts.get(row["k"], 0) + 1
            last[row["k"]] = row["stime"]
        for k in [k for k in counts if last[k] + timedelta(seconds=2) < end]:
            found.append((k, counts.pop(k)))
        start = end
    return [*found, *counts.items()]


@kind(columns=("k", "n"), expected=_silences, heavy=True, at_length=True)
def apply_in_pandas_with_timeouts(rows: DataFrame) -> DataFrame:
    """A state by key that ends with a timeout of event time."""

    def silent(key: tuple[int], frames: Iterable[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        if state.hasTimedOut:
            n, until_ms = state.get
            state.remove()
            yield pd.DataFrame({"stime": [pd.Timestamp(until_ms, unit="ms")], "k": [key[0]], "n": [n]})
            return
        n, until_ms = state.get if state.exists else (0, 0)
        for frame in frames:
            n, until_ms = n + len(frame), round(frame["stime"].max().timestamp() * 1000) + 2000
        state.update((n, until_ms))
        state.setTimeoutTimestamp(until_ms)

    few = rows.filter("v % 40 < 12").select("stime", "k", "v")
    return few.groupBy("k").applyInPandasWithState(
        silent, "stime timestamp, k bigint, n bigint", "n bigint, until_ms bigint", "append",
        GroupStateTimeout.EventTimeTimeout,
    )  # fmt: skip


class Totals(StatefulProcessor):
    def init(self, handle: Any) -> None:
        self._total = handle.getValueState("total", "n bigint")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        total = self._total.get()[0] if self._total.exists() else 0
        n, last = 0, None
        for frame in rows:
            n, last = n + len(frame), frame["stime"].max()
        self._total.update((total + n,))
        yield pd.DataFrame({"stime": [last], "k": [key[0]], "n": [n], "total": [total + n]})

    def close(self) -> None:
        pass


@kind(columns=("k", "n", "total"), expected=_running_counts, heavy=True)
def transform_with_state_in_pandas(rows: DataFrame) -> DataFrame:
    """The same with `transformWithStateInPandas` and RocksDB."""
    return rows.groupBy("k").transformWithStateInPandas(
        Totals(), "stime timestamp, k bigint, n bigint, total bigint", "Append", "None"
    )


class TotalsOfRows(StatefulProcessor):
    """Row by row, with a state that is forgotten when nobody has looked at it for an hour of the clock."""

    def init(self, handle: Any) -> None:
        self._total = handle.getMapState("total", "what string", "n bigint", ttlDurationMs=3_600_000)

    def handleInputRows(self, key: Any, rows: Iterator[RowOfSpark], timerValues: Any) -> Iterator[RowOfSpark]:
        total = self._total.getValue(("rows",))[0] if self._total.containsKey(("rows",)) else 0
        times = [row["stime"] for row in rows]
        self._total.updateValue(("rows",), (total + len(times),))
        yield RowOfSpark(stime=max(times), k=key[0], n=len(times), total=total + len(times))

    def close(self) -> None:
        pass


@kind(columns=("k", "n", "total"), expected=_running_counts, heavy=True, metrics=("totals",))
def transform_with_state_of_rows_with_time_to_live(rows: DataFrame) -> DataFrame:
    """`transformWithState` row by row, a time to live, and `observe` behind it."""
    totals = rows.groupBy("k").transformWithState(
        TotalsOfRows(), "stime timestamp, k bigint, n bigint, total bigint", "Append", "ProcessingTime"
    )
    return totals.observe("totals", F.max("total").alias("most"))


class Silences(StatefulProcessor):
    """Says how many rows a key had once it has been silent for two seconds of event time."""

    def init(self, handle: Any) -> None:
        self._handle = handle
        self._count = handle.getValueState("count", "n bigint")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        count, last = self._count.get()[0] if self._count.exists() else 0, None
        for frame in rows:
            count, last = count + len(frame), frame["stime"].max()
        self._count.update((count,))
        for timer in self._handle.listTimers():
            self._handle.deleteTimer(timer)
        self._handle.registerTimer(int(last.timestamp() * 1000) + 2000)
        yield pd.DataFrame({"stime": [], "k": [], "n": []}).astype(
            {"stime": "datetime64[us]", "k": "int64", "n": "int64"}
        )

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:
        at = pd.Timestamp(expiredTimerInfo.getExpiryTimeInMs(), unit="ms")
        n = self._count.get()[0]
        self._count.clear()
        yield pd.DataFrame({"stime": [at], "k": [key[0]], "n": [n]})

    def close(self) -> None:
        pass


@kind(columns=("k", "n"), expected=_silences, heavy=True)
def transform_with_state_and_timers(rows: DataFrame) -> DataFrame:
    """Timers of event time."""
    few = rows.filter("v % 40 < 12").select("stime", "k", "v")
    return few.groupBy("k").transformWithStateInPandas(
        Silences(), "stime timestamp, k bigint, n bigint", "Append", "EventTime"
    )


class SilencesOfRows(Silences):
    """The same row by row."""

    def handleInputRows(self, key: Any, rows: Iterator[RowOfSpark], timerValues: Any) -> Iterator[RowOfSpark]:
        times = [row["stime"] for row in rows]
        self._count.update(((self._count.get()[0] if self._count.exists() else 0) + len(times),))
        for timer in self._handle.listTimers():
            self._handle.deleteTimer(timer)
        self._handle.registerTimer(int(max(times).timestamp() * 1000) + 2000)
        yield from ()

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[RowOfSpark]:
        at = datetime.fromtimestamp(expiredTimerInfo.getExpiryTimeInMs() / 1000)
        n = self._count.get()[0]
        self._count.clear()
        yield RowOfSpark(stime=at, k=key[0], n=n)


@kind(columns=("k", "n"), expected=_silences, heavy=True, at_length=True)
def transform_with_state_of_rows_and_timers(rows: DataFrame) -> DataFrame:
    """The same row by row, with `transformWithState`."""
    few = rows.filter("v % 40 < 12").select("stime", "k", "v")
    return few.groupBy("k").transformWithState(
        SilencesOfRows(), "stime timestamp, k bigint, n bigint", "Append", "EventTime"
    )


def _totals_of_windows(rows: list[Row]) -> list[tuple[Any, ...]]:
    """Of each window of two buckets: how many rows it has, and the most that one of their keys had by its end."""
    found: list[tuple[Any, ...]] = []
    counts: dict[int, int] = {}
    windows: dict[datetime, list[int]] = {}
    for row in rows:
        at = row["stime"]
        windows.setdefault(at.replace(second=at.second // 4 * 4, microsecond=0), []).append(row["k"])
    for start in sorted(windows):
        for k in windows[start]:
            counts[k] = counts.get(k, 0) + 1
        found.append((len(windows[start]), max(counts[k] for k in windows[start])))
    return found


@kind(columns=("n", "most"), expected=_totals_of_windows, heavy=True, at_length=True)
def transform_with_state_then_window(rows: DataFrame) -> DataFrame:
    """A window behind a state, by the time that the state's function gives (`eventTimeColumnName`)."""
    totals = rows.groupBy("k").transformWithStateInPandas(
        Totals(), "stime timestamp, k bigint, n bigint, total bigint", "Append", "EventTime",
        eventTimeColumnName="stime",
    )  # fmt: skip
    return totals.groupBy(F.window("stime", "4 seconds")).agg(F.sum("n").alias("n"), F.max("total").alias("most"))


class TotalsFromTable(Totals):
    """Totals that begin with those of a table."""

    def handleInitialState(self, key: Any, initialState: pd.DataFrame, timerValues: Any) -> None:
        self._total.update((int(initialState["total"].iloc[0]),))


def _counts_from_table(rows: list[Row]) -> list[tuple[Any, ...]]:
    return [(k, n, total + (100 * k if k < 3 else 0)) for k, n, total in _running_counts(rows)]


@kind(columns=("k", "n", "total"), expected=_counts_from_table, heavy=True, at_length=True)
def transform_with_initial_state(rows: DataFrame) -> DataFrame:
    """`initialState`: a state that begins with a table."""
    before = rows.sparkSession.createDataFrame([(k, 100 * k) for k in range(3)], "k bigint, total bigint")
    return rows.groupBy("k").transformWithStateInPandas(
        TotalsFromTable(), "stime timestamp, k bigint, n bigint, total bigint", "Append", "None",
        initialState=before.groupBy("k"),
    )  # fmt: skip


# -- several outputs ---------------------------------------------------------------------------------------------------


@kind(options={"outputs": ("out", "rest")})
def several_outputs(rows: DataFrame) -> dict[str, DataFrame]:
    """A dict of DataFrames: a stream for each."""
    counts = rows.groupBy(F.window("stime", "2 seconds"), "k").count()
    return {"out": counts.where("k < 2"), "rest": rows.where("k > 1").select("stime", "v")}


# -- Holdfast's own operators ------------------------------------------------------------------------------------------


@kind(columns=("k", "count"), expected=lambda rows: [
    (k, 10) for k in range(5) for _ in range(sum(r["k"] == k for r in rows) // 10)])  # fmt: skip
def count_windows(rows: DataFrame) -> Any:
    """A flow of Holdfast's own operators."""
    return flow_of(rows).aggregate(count(), window=count_window(10), by="k")


def listed(silences: Mapping[str, float]) -> str:
    """The kinds for people, as docs/queries.md lists them; with the longest silence of each in seconds, if known."""
    columns = ["kind", "what it shows", *(["longest silence"] if silences else [])]
    rows = [
        [name.replace("_", " "), str(kind.function.__doc__), *([f"{silences[name]:.1f} s"] if silences else [])]
        for name, kind in KINDS.items()
    ]
    lines = [columns, ["---"] * len(columns), *rows]
    return f"{len(KINDS)} kinds:\n\n" + "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


if __name__ == "__main__":
    print(listed(json.loads(Path(sys.argv[1]).read_text()) if len(sys.argv) > 1 else {}))
