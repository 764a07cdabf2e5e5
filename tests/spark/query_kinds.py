"""Kinds of query that people write with PySpark, each as a node over the streams `a` and `b`.

A kind is a function such as a user would write, and the rows that it must give. For most the oracle is batch Spark: the
same function over the same rows. Where Spark has no batch form, or leaves a choice (which of two duplicates stays), the
kind says what to compare or computes the rows itself.

Columns of both streams: `k bigint` (0 to 4), `v bigint`, `name string`.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
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
    heavy: bool = False
    """Whether Spark starts processes for it all the time: two cores have no room for two others beside it."""


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
    return rows.filter("k > 1").select(F.col("stime").alias("at"), "k", (F.col("v") * 2).alias("twice"))


@kind()
def exploded_and_nested(rows: DataFrame) -> DataFrame:
    nested = rows.select("stime", "v", F.struct("k", "name").alias("s"), F.array("k", F.col("k") + 10).alias("l"))
    return nested.select("*", F.explode("l").alias("each"))


@kind()
def python_pandas_and_arrow_udfs(rows: DataFrame) -> DataFrame:
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
    def shifted(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for frame in frames:
            yield frame.assign(v=frame["v"] + 1)

    def even(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch.filter(pc.equal(pc.bit_wise_and(batch.column("v"), 1), 0))

    columns = "stime timestamp, k bigint, v bigint"
    return rows.select("stime", "k", "v").mapInPandas(shifted, columns).mapInArrow(even, columns)


@kind()
def joined_with_a_table(rows: DataFrame) -> DataFrame:
    table = rows.sparkSession.createDataFrame([(k, f"group {k % 2}") for k in range(4)], "k bigint, kind string")
    return rows.join(F.broadcast(table), "k", "left").select("stime", "k", "v", "kind")


@kind()
def observed_union_of_parts(rows: DataFrame) -> DataFrame:
    low = rows.filter("k < 2").select("stime", "k", "v", F.lit("low").alias("part"))
    both = low.union(rows.filter("k > 2").select("stime", "k", "v", F.lit("high")))
    return both.observe("mine", F.count(F.lit(1)).alias("n"))


# -- windows -----------------------------------------------------------------------------------------------------------


@kind()
def sliding(rows: DataFrame) -> DataFrame:
    return rows.groupBy(F.window("stime", "3 seconds", "1 second")).agg(F.max("v").alias("v"))


@kind()
def watermarked_window(rows: DataFrame) -> DataFrame:
    return rows.withWatermark("stime", "1 second").groupBy(F.window("stime", "2 seconds"), "k").count()


@kind()
def watermark_on_a_renamed_time(rows: DataFrame) -> DataFrame:
    events = rows.select(F.col("stime").alias("event_time"), "k").withWatermark("event_time", "2 seconds")
    return events.groupBy(F.window("event_time", "2 seconds").alias("span"), "k").count()


@kind()
def session_window(rows: DataFrame) -> DataFrame:
    return rows.filter("v % 7 < 3").groupBy(F.session_window("stime", "700 milliseconds"), "k").count()


@kind(options={"stime": "until"})
def named_end_of_a_window(rows: DataFrame) -> DataFrame:
    counts = rows.groupBy(F.window("stime", "2 seconds"), "k").count()
    return counts.select(F.col("window.start").alias("since"), F.col("window.end").alias("until"), "k", "count")


@kind(options={"stime": "since"})
def named_start_of_a_window(rows: DataFrame) -> DataFrame:
    counts = rows.groupBy(F.window("stime", "2 seconds"), "k").count()
    return counts.select(F.col("window.start").alias("since"), "k", "count")


@kind()
def window_over_a_window(rows: DataFrame) -> DataFrame:
    counts = rows.groupBy(F.window("stime", "1 second"), "k").count()
    return counts.groupBy(F.window(F.window_time("window"), "4 seconds")).agg(F.max("count").alias("most"))


@kind()
def window_of_a_window(rows: DataFrame) -> DataFrame:
    counts = rows.groupBy(F.window("stime", "1 second"), "k").count()
    return counts.groupBy(F.window("window", "4 seconds"), "k").agg(F.sum("count").alias("n"))


@kind()
def window_time_of_a_decimal_sum_with_having(rows: DataFrame) -> DataFrame:
    price = (F.col("v") / F.lit(100)).cast("decimal(12,2)")
    kinds = F.size(F.collect_set("k")).cast("bigint")
    counts = rows.groupBy(F.window("stime", "2 seconds"), "name").agg(
        kinds.alias("kinds"), F.sum(price).alias("total")
    )  # fmt: skip
    return counts.where("kinds > 1").select(F.window_time("window").alias("t"), "name", "kinds", "total")


@kind()
def grouped_by_the_time_itself(rows: DataFrame) -> DataFrame:
    return rows.groupBy("stime", "k").count()


@kind()
def sql_with_a_common_table_expression(rows: DataFrame) -> DataFrame:
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
    return rows.select("stime", "k").dropDuplicates(["stime", "k"])


@kind(columns=("v",))
def duplicates_for_ever(rows: DataFrame) -> DataFrame:
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
    marked = rows.select("stime", "k", "v").withWatermark("stime", "2 seconds")
    return marked.dropDuplicatesWithinWatermark(["k"]).select("stime", "k")


# -- joins -------------------------------------------------------------------------------------------------------------


def _near(a: DataFrame, b: DataFrame, how: str) -> DataFrame:
    near = F.expr("l.v = r.v and r.stime between l.stime - interval 1 second and l.stime + interval 1 second")
    return a.alias("l").join(b.alias("r"), near, how)


@kind()
def inner_join(a: DataFrame, b: DataFrame) -> DataFrame:
    return _near(a, b, "inner").select(F.greatest("l.stime", "r.stime").alias("stime"), "l.v", "r.k")


@kind()
def inner_join_by_the_left_time(a: DataFrame, b: DataFrame) -> DataFrame:
    return _near(a, b, "inner").select("l.stime", "l.v", "r.k")


@kind()
def left_join(a: DataFrame, b: DataFrame) -> DataFrame:
    return _near(a, b, "left").select("l.stime", "l.v", F.col("r.k").alias("other"))


@kind()
def right_join(a: DataFrame, b: DataFrame) -> DataFrame:
    return _near(a, b, "right").select("r.stime", "r.v", F.col("l.k").alias("other"))


@kind()
def full_join(a: DataFrame, b: DataFrame) -> DataFrame:
    both = _near(a, b, "full")
    return both.select(F.coalesce("l.stime", "r.stime").alias("stime"), F.coalesce("l.v", "r.v").alias("v"), "l.k")


@kind()
def semi_join(a: DataFrame, b: DataFrame) -> DataFrame:
    return _near(a, b, "left_semi").select("stime", "v")


@kind()
def watermarked_join(a: DataFrame, b: DataFrame) -> DataFrame:
    left = a.withWatermark("stime", "1 second").select(F.col("stime").alias("left_time"), F.col("v").alias("lv"))
    right = b.withWatermark("stime", "3 seconds").select(F.col("stime").alias("right_time"), F.col("v").alias("rv"))
    near = F.expr("lv = rv and right_time between left_time and left_time + interval 1 second")
    return left.join(right, near).select(F.greatest("left_time", "right_time").alias("stime"), "lv")


@kind()
def join_then_window(a: DataFrame, b: DataFrame) -> DataFrame:
    pairs = _near(a, b, "inner").select("l.stime", "l.v")
    return pairs.groupBy(F.window("stime", "2 seconds")).agg(F.count("*").alias("n"))


@kind()
def join_then_deduplication(a: DataFrame, b: DataFrame) -> DataFrame:
    return _near(a, b, "inner").select("l.stime", "l.v").dropDuplicates(["stime", "v"])


@kind()
def window_then_join(a: DataFrame, b: DataFrame) -> DataFrame:
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
    def summed(frame: pd.DataFrame) -> pd.DataFrame:
        sums = {"k": frame["k"].iloc[0], "v": frame["v"].sum(), "n": len(frame)}
        return pd.DataFrame({"stime": [frame["stime"].max()], **{name: [value] for name, value in sums.items()}})

    return rows.groupBy("k").applyInPandas(summed, "stime timestamp, k bigint, v bigint, n bigint")


@kind(heavy=True)
def largest_of_each_window(rows: DataFrame) -> DataFrame:
    def largest(frame: pd.DataFrame) -> pd.DataFrame:
        return frame.sort_values(["v", "k"]).tail(2)

    sums = rows.groupBy(F.window("stime", "1 second"), "k").agg(F.sum("v").alias("v"))
    columns = "window struct<start timestamp, end timestamp>, k bigint, v bigint"
    return sums.groupBy("window").applyInPandas(largest, columns)


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
    return rows.groupBy("k").transformWithStateInPandas(
        Totals(), "stime timestamp, k bigint, n bigint, total bigint", "Append", "None"
    )


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
    few = rows.filter("v % 40 < 12").select("stime", "k", "v")
    return few.groupBy("k").transformWithStateInPandas(
        Silences(), "stime timestamp, k bigint, n bigint", "Append", "EventTime"
    )


# -- Holdfast's own operators ------------------------------------------------------------------------------------------


@kind(columns=("k", "count"), expected=lambda rows: [
    (k, 10) for k in range(5) for _ in range(sum(r["k"] == k for r in rows) // 10)])  # fmt: skip
def count_windows(rows: DataFrame) -> Any:
    return flow_of(rows).aggregate(count(), window=count_window(10), by="k")


def listed() -> str:
    """The kinds for people, as docs/queries.md lists them."""
    names = [name.replace("_", " ") for name in KINDS]
    return textwrap.fill(f"{len(names)} kinds: {', '.join(names)}.", 120)


if __name__ == "__main__":
    print(listed())
