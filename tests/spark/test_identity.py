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

import holdfast
from holdfast.model.errors import UsageError
from holdfast.operators.functions import count, sum_
from holdfast.operators.udop import UserOperator, decode, encode
from holdfast.operators.windows import count_window
from holdfast.spark import flow, read_stream
from holdfast.spark.keyed import udop
from holdfast.spark.plan_identity import identity, plan_lines
from holdfast.stream.identity import changed, differences, note_identity, read_identity
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
