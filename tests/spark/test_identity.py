"""What a query computes, told from its plan: the same at every start, another when it is another (C12)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

import holdfast
from holdfast.model.errors import UsageError
from holdfast.operators.functions import count, sum_
from holdfast.operators.udop import UserOperator, decode, encode
from holdfast.operators.windows import count_window
from holdfast.spark import flow, read_stream
from holdfast.spark.keyed import udop
from holdfast.spark.plan_identity import identity, plan_lines, settings_line, state_differences
from holdfast.stream.identity import Identity, changed, differences, note_identity, read_identity
from tests.spark.conftest import fill, tuples

Build = Callable[[DataFrame], DataFrame]


@pytest.fixture(scope="module")
def rows(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Callable[[], DataFrame]:
    """The same stream, read anew each time, from other places."""
    roots = iter(range(1000))

    def read() -> DataFrame:
        root = tmp_path_factory.mktemp(f"root{next(roots)}")
        holdfast.open(root).create("s", "k bigint, v double, a array<int>", bucket="1s")
        return read_stream(spark, "s", root=root)

    return read


def plus(step: int) -> Any:
    @F.udf("long")
    def added(x: int) -> int:
        return x + step

    return added


def mapped(by: int) -> Any:
    def map_all(parts: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for part in parts:
            yield part[["stime", "k"]].assign(k=part.k * by)

    return map_all


class Numbering(UserOperator):
    def __init__(self) -> None:
        self.n = 0

    def process(self, row: dict[str, Any]) -> list[dict[str, Any]]:
        self.n += 1
        return [{"stime": row["stime"], "n": self.n}]

    def checkpoint(self) -> bytes:
        return encode(self.n)

    def restore(self, saved: bytes) -> None:
        self.n = decode(saved)


class Doubling(Numbering):
    def process(self, row: dict[str, Any]) -> list[dict[str, Any]]:
        self.n += 2
        return [{"stime": row["stime"], "n": self.n}]


def windowed(size: str) -> Build:
    return lambda rows: rows.groupBy(F.window("stime", size), "k").agg(F.sum("v").alias("x"))


def joined(seconds: int) -> Build:
    near = f"l.k = r.k and r.stime >= l.stime - interval {seconds} seconds"
    return lambda rows: rows.alias("l").join(rows.alias("r"), F.expr(near)).select("l.stime", "l.k")


def operated(kind: type[UserOperator], scratch: str) -> Build:
    made = udop("numbering", kind, key="k", schema="stime timestamp, n bigint", scratch=scratch)
    return lambda rows: rows.transform(made)


class Counting(StatefulProcessor):
    def __init__(self, step: int) -> None:
        self.step = step

    def init(self, handle: Any) -> None:
        self.handle = handle

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[pd.DataFrame]:
        yield pd.DataFrame({"k": [key[0]], "n": [sum(map(len, rows)) * self.step]})

    def close(self) -> None:
        pass


def counted(step: int) -> Build:
    return lambda rows: rows.groupBy("k").transformWithStateInPandas(Counting(step), "k long, n long", "append", "none")


def with_table(*table: tuple[int, str]) -> Build:
    return lambda rows: rows.join(rows.sparkSession.createDataFrame(list(table), "k bigint, name string"), "k")


def typed(kind: str) -> Build:
    return lambda rows: rows.select("stime", F.udf(lambda v: v, kind)("v").cast("string").alias("q"))


def repeated(times: int) -> Build:
    @F.udtf(returnType="n bigint")
    class Repeated:
        def eval(self, k: int) -> Iterator[tuple[int]]:
            yield from ((k,) for _ in range(times))

    return lambda rows: rows.lateralJoin(Repeated(F.col("k").outer())).select("stime", "n")


def by_sql(body: str) -> Build:
    def build(rows: DataFrame) -> DataFrame:
        session = rows.sparkSession
        session.sql(f"create or replace temporary function inner_one(x bigint) returns bigint return {body}")
        session.sql("create or replace temporary function outer_one(x bigint) returns bigint return inner_one(x) + 1")
        return rows.select("stime", F.expr("outer_one(k) as q"))

    return build


QUERIES: dict[str, tuple[Build, Build]] = {
    "a window": (windowed("10 seconds"), windowed("20 seconds")),
    "a filter": (lambda rows: rows.filter("k > 3"), lambda rows: rows.filter("k > 4")),
    "a column": (lambda rows: rows.select("stime", "k"), lambda rows: rows.select("stime", F.col("v").alias("k"))),
    "the reach of a join": (joined(1), joined(2)),
    "keys of deduplication": (lambda r: r.dropDuplicates(["k"]), lambda r: r.dropDuplicates(["k", "v"])),
    "a constant that a function closes over": (
        lambda rows: rows.withColumn("q", plus(1)("k")), lambda rows: rows.withColumn("q", plus(2)("k")),
    ),
    "a function over frames": (
        lambda rows: rows.mapInPandas(mapped(2), "stime timestamp, k long"),
        lambda rows: rows.mapInPandas(mapped(3), "stime timestamp, k long"),
    ),
    "an operator of the user's": (operated(Numbering, "/tmp/x"), operated(Doubling, "/tmp/x")),
    "a processor with state": (counted(1), counted(2)),
    "a function that gives tables": (repeated(1), repeated(2)),
    "a function of SQL that another one calls": (by_sql("x * 2"), by_sql("x * 3")),
    "what a function gives": (typed("double"), typed("string")),
    "the rows of a table in the program": (with_table((1, "a"), (2, "b")), with_table((1, "a"), (2, "c"))),
    "a text that looks like the number of a column": (
        lambda rows: rows.withColumn("q", F.lit("ticket #12")), lambda rows: rows.withColumn("q", F.lit("ticket #13")),
    ),
    "a text that looks like an object": (
        lambda rows: rows.filter(F.lit("a@abcde1") != "b"), lambda rows: rows.filter(F.lit("a@abcde2") != "b"),
    ),
    "what is done to the members of a list": (
        lambda rows: rows.select("stime", F.transform("a", lambda x: x + 1).alias("b")),
        lambda rows: rows.select("stime", F.transform("a", lambda x: x + 2).alias("b")),
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", QUERIES)
def test_a_query_is_known_again_and_a_change_of_it_is_told(rows: Callable[[], DataFrame], what: str) -> None:
    """C12. The second look comes from another place, with other ids of expressions."""
    same, other = QUERIES[what]
    before, again, now = (identity(plan_lines(build(rows()))) for build in (same, same, other))
    assert differences(before, again) == []
    told = differences(before, now)
    assert {line[0] for line in told} == {"-", "+"}
    assert all(len(line) < 400 for line in told)


def test_another_file_or_one_that_has_grown_is_another_table(rows: Callable[[], DataFrame], tmp_path: Path) -> None:
    def query(folder: str, file: str, text: str) -> Identity:
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / file).write_text(text)
        table = rows().sparkSession.read.csv(str(tmp_path / folder / file), schema="k bigint, name string")
        return identity(plan_lines(rows().join(table, "k")))

    before = query("here", "owners-11.csv", "1,a\n")
    assert differences(before, query("there", "owners-11.csv", "1,a\n")) == []
    assert "owners-12.csv" in str(differences(before, query("here", "owners-12.csv", "1,a\n")))
    assert "8 bytes" in str(differences(before, query("here", "owners-11.csv", "1,a\n2,b\n")))


def test_settings_that_change_results_are_told(spark: SparkSession) -> None:
    before = settings_line(spark)
    spark.conf.set("spark.sql.ansi.enabled", "false")
    try:
        assert settings_line(spark) != before
    finally:
        spark.conf.unset("spark.sql.ansi.enabled")
    assert settings_line(spark) == before


def test_what_only_a_session_knows_is_no_part_of_a_query(spark: SparkSession, rows: Callable[[], DataFrame]) -> None:
    def query(view: str, partitions: int, scratch: str) -> DataFrame:
        rows().createOrReplaceTempView(view)
        read = spark.sql(f"select stime, k, uuid() as u, rand() as r from {view}").alias(view)
        return operated(Numbering, scratch)(read.repartition(partitions, "k"))

    first, second = query("one", 2, "/tmp/a"), query("two", 3, "/tmp/b")
    assert plan_lines(first) == plan_lines(second)


def test_the_window_that_changed_stands_in_the_sentence(rows: Callable[[], DataFrame]) -> None:
    before, now = (identity(plan_lines(windowed(size)(rows()))) for size in ("10 seconds", "20 seconds"))
    told = " ".join(differences(before, now))
    assert "10s" in told
    assert "20s" in told


def test_notes_of_another_spark_or_python_are_not_compared(rows: Callable[[], DataFrame], tmp_path: Path) -> None:
    same, other = QUERIES["a constant that a function closes over"]
    before, now = (identity(plan_lines(build(rows()))) for build in (same, other))
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "0").touch()
    assert changed(tmp_path, now) == [], "a checkpoint from before there were notes"
    note_identity(tmp_path, before)
    assert read_identity(tmp_path) == before
    assert changed(tmp_path, now)
    note_identity(tmp_path, msgspec.structs.replace(before, python="cpython-300"))
    assert changed(tmp_path, now) == []
    note_identity(tmp_path, msgspec.structs.replace(before, spark="3.0"))
    assert changed(tmp_path, now) == []


@pytest.mark.slow
def test_a_flow_with_another_window_function_or_key_is_refused_and_with_other_partitions_it_goes_on(
    spark: SparkSession, store: holdfast.StreamStore, tmp_path: Path
) -> None:
    """C12: before the query starts; the state is as before, and the same flow goes on with it, C13 however divided."""
    fill(store, "s", [(i, "ab"[i % 2], i) for i in range(12)], end=False, until=12)
    root = store.root

    def started(partitions: int = 2, **given: Any) -> None:
        settings: dict[str, Any] = {"window": count_window(10), "by": "key", "functions": [count()], **given}
        functions = settings.pop("functions")
        made = flow(spark, "s", root=root, partitions=partitions).aggregate(*functions, **settings)
        query = made.write("out", checkpoint_location=tmp_path / "c", trigger={"availableNow": True})
        query.awaitTermination()

    started()
    for given in (
        {"window": count_window(5)}, {"window": count_window(10, 5)}, {"functions": [sum_("value").alias("count")]},
        {"by": F.upper("key").alias("key")},
    ):  # fmt: skip
        with pytest.raises(UsageError, match=r"must compute what the state in .* was made by; it has changed: - "):
            started(**given)
    note = tmp_path / "c" / "identity"
    before = read_identity(tmp_path / "c")
    assert before is not None
    note_identity(tmp_path / "c", msgspec.structs.replace(before, lines=("partitions: 2", *before.lines)))
    fill(store, "s", [(12 + i, "ab"[i % 2], i) for i in range(12)])
    started(partitions=1)
    assert b"partitions" not in note.read_bytes(), "an older note said their number"
    assert sorted(row[-1] for row in tuples(store.open("out"))) == [10, 10]


def _windowed(frame: DataFrame, length: str = "10 seconds", *keys: str) -> Any:
    return frame.groupBy(F.window("stime", length), *(keys or ("k",)))


FITTING: dict[str, Build] = {
    "a filter before it": lambda f: _windowed(f.filter("v > 1")).count(),
    "a column before it": lambda f: _windowed(f.withColumn("w", F.col("v") * 2)).count(),
    "a column behind it": lambda f: _windowed(f).count().withColumn("rate", F.col("count") / 10),
    "a filter behind it": lambda f: _windowed(f).count().filter("count > 1"),
    "a function before it": lambda f: _windowed(f.withColumn("w", F.udf(lambda v: v, "double")("v"))).count(),
}
MISFITS: dict[str, Build] = {
    "a longer window": lambda f: _windowed(f, "20 seconds").count(),
    "a sliding window": lambda f: f.groupBy(F.window("stime", "10 seconds", "5 seconds"), "k").count(),
    "another key": lambda f: _windowed(f, "10 seconds", "v").count(),
    "a key more": lambda f: _windowed(f, "10 seconds", "k", "v").count(),
    "another function": lambda f: _windowed(f).agg(F.sum("v").alias("count")),
    "an aggregate more": lambda f: _windowed(f).agg(F.count("*").alias("count"), F.sum("v").alias("s")),
    "duplicates dropped": lambda f: _windowed(f.dropDuplicates(["stime", "k"])).count(),
    "a second window": lambda f: _windowed(f).count().groupBy(F.window("window", "1 minute")).count(),
}


@pytest.mark.parametrize("change", [*FITTING, *MISFITS])
def test_a_state_fits_a_plan_whose_operators_with_state_are_what_they_were(
    rows: Callable[[], DataFrame], change: str
) -> None:
    """C12: what `holdfast try` may carry over, and what not."""
    before = identity(plan_lines(_windowed(rows()).count()))
    now = identity(plan_lines((FITTING | MISFITS)[change](rows())))
    assert differences(before, now)
    assert bool(state_differences(before, now)) == (change in MISFITS)


def _keyed(frame: DataFrame, key: Any) -> DataFrame:
    return _windowed(frame.withColumn("key", key), "10 seconds", "key").count()


KEYS: dict[str, tuple[Build, Build, bool]] = {
    "a key that is computed in another way": (
        lambda f: _keyed(f, F.substring(F.col("k").cast("string"), 1, 3)),
        lambda f: _keyed(f, F.substring(F.col("k").cast("string"), 1, 7)), True,
    ),
    "a column that a key comes from": (
        lambda f: _keyed(f.withColumn("half", F.col("k") / 2), F.col("half") + 1),
        lambda f: _keyed(f.withColumn("half", F.col("k") / 3), F.col("half") + 1), True,
    ),
    "the code of a key": (lambda f: _keyed(f, plus(1)("k")), lambda f: _keyed(f, plus(2)("k")), True),
    "a computed key of deduplication": (
        lambda f: f.withColumn("key", F.col("k") % 3).dropDuplicates(["key"]),
        lambda f: f.withColumn("key", F.col("k") % 4).dropDuplicates(["key"]), True,
    ),
    "the time of a window": (
        lambda f: f.select("k", (F.col("stime") + F.expr("interval 1 second")).alias("at"))
        .groupBy(F.window("at", "10 seconds"), "k").count(),
        lambda f: f.select("k", (F.col("stime") + F.expr("interval 2 seconds")).alias("at"))
        .groupBy(F.window("at", "10 seconds"), "k").count(), True,
    ),
    "a column beside a computed key": (
        lambda f: _keyed(f, F.col("k") % 3), lambda f: _keyed(f.withColumn("w", F.col("v") * 2), F.col("k") % 3), False,
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", KEYS)
def test_a_state_fits_only_keys_that_are_made_as_they_were(rows: Callable[[], DataFrame], what: str) -> None:
    """A state by keys of the old kind would never be found by those of the new one."""
    old, new, misfit = KEYS[what]
    before, now = (identity(plan_lines(build(rows()))) for build in (old, new))
    assert differences(before, now)
    assert bool(state_differences(before, now)) == misfit, before.lines
