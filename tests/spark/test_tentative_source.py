"""Option `tentative`: Spark is told what a subscriber is told, and after a restart goes on as it would."""

from __future__ import annotations

import json
import pickle
import sqlite3
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

import holdfast
from holdfast.model.errors import UsageError
from holdfast.model.tuples import TupleType
from holdfast.spark.ending import _at_the_end
from holdfast.spark.tentative_source import SequenceRangeReader, SequenceReader
from holdfast.spark.wal import _parsed
from holdfast.stream import sequence_plan
from holdfast.stream.merge import FOREVER_US
from holdfast.stream.sequence_plan import SequenceOffset, SequencePlan, Step
from tests.docs.test_connect import SPARK
from tests.docs.test_consuming import Totals
from tests.stream.test_subscriber import SECOND, filled, send, tentative

Tuple = tuple[str, int, int | None]


def tuples(records: list[dict[str, Any]]) -> list[Tuple]:
    return [(TupleType(r["tuple_type"]).name, r["tuple_id"], r["n"]) for r in records]


def heard(subscriber: holdfast.Subscriber) -> list[Tuple]:
    return tuples([r for batch in subscriber.poll() for r in batch.to_pylist()])


def options(stream: holdfast.Stream, **more: str) -> dict[str, str]:
    return {"root": str(stream.folder.parent), "path": stream.name, "tentative": "true", **more}


def rows_of(reader: Any, tasks: Any) -> list[Tuple]:
    """As executors read them: with copies."""
    executor = pickle.loads(pickle.dumps(reader))
    return tuples([r for task in tasks for b in executor.read(pickle.loads(pickle.dumps(task))) for r in b.to_pylist()])


def test_batches_of_a_reader_are_the_subscribers_sequence(tmp_path: Path) -> None:
    stream = filled(tmp_path, 3)
    reader, got = SequenceReader(options(stream)), []
    offset = reader.initialOffset()
    assert rows_of(reader, reader.partitions(offset, offset)) == []
    with stream.subscribe(tentative=True) as subscriber:
        for act in (
            lambda: None,
            lambda: stream.create_branch(3 * SECOND) and tentative(stream, range(3, 6)),
            lambda: send(stream, range(3, 8)),
            lambda: stream.drop_branch(),
            lambda: send(stream, range(8, 9), end=True),
        ):
            act()
            expected = heard(subscriber)
            end = reader.latestOffset(offset, ReadAllAvailable())
            got = rows_of(reader, reader.partitions(offset, end)) if end is not offset else []
            assert got == expected
            offset = end
    assert reader.latestOffset(offset, ReadMaxRows(1)) is offset


def test_rows_carry_the_name_of_their_stream_where_that_is_asked_for(tmp_path: Path) -> None:
    stream = filled(tmp_path, 1)
    stream.create_branch(SECOND)
    tentative(stream, range(1, 2))
    reader = SequenceRangeReader(options(stream, streamcolumn="true"))
    assert [r["stream"] for t in reader.partitions() for b in reader.read(t) for r in b.to_pylist()] == ["s", "s"]


def test_a_range_has_the_stable_prefix_and_what_is_tentative_behind_it(tmp_path: Path) -> None:
    stream = filled(tmp_path, 4)
    stream.create_branch(3 * SECOND)
    tentative(stream, range(3, 7))
    for given, numbers in (
        ({}, [0, 1, 2, 3, 4, 5, 6]),
        ({"start": "1970-01-01T00:00:02", "end": "1970-01-01T00:00:06"}, [2, 3, 4, 5]),
        ({"startBucket": "5"}, [5, 6]),
        ({"endBucket": "2"}, [0, 1]),
    ):
        reader = SequenceRangeReader(options(stream, **given))
        found = rows_of(reader, reader.partitions())
        assert [n for _, _, n in found] == numbers
        assert [kind for kind, _, n in found if n is not None and n > 3] == ["TENTATIVE"] * sum(n > 3 for n in numbers)
    assert rows_of(reader, SequenceRangeReader(options(filled(tmp_path / "empty", 0))).partitions()) == []


def test_a_range_has_all_that_is_tentative_however_much_fits_into_a_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = filled(tmp_path, 3)
    stream.create_branch(3 * SECOND)
    tentative(stream, range(3, 7))
    monkeypatch.setattr(sequence_plan, "TENTATIVE_BYTES_MAX", 1)
    reader = SequenceRangeReader(options(stream))
    assert [n for _, _, n in rows_of(reader, reader.partitions())] == [0, 1, 2, 3, 4, 5, 6]


def test_a_range_whose_branch_is_dropped_while_it_is_planned_has_nothing_tentative(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the first half of it, and no UNDO among its rows."""
    stream = filled(tmp_path, 3)
    stream.create_branch(3 * SECOND)
    tentative(stream, range(3, 7))
    monkeypatch.setattr(sequence_plan, "TENTATIVE_BYTES_MAX", 1)
    others = SequencePlan.others

    def dropped_behind(plan: SequencePlan, step: Step, offset: SequenceOffset) -> list[pa.RecordBatch]:
        found = others(plan, step, offset)
        stream.drop_branch()
        return found

    monkeypatch.setattr(SequencePlan, "others", dropped_behind)
    reader = SequenceRangeReader(options(stream))
    assert [n for _, _, n in rows_of(reader, reader.partitions())] == [0, 1, 2]


def test_a_streaming_query_refuses_a_stream_that_is_not_always_persisted(tmp_path: Path) -> None:
    stream = filled(tmp_path, 1, persist="on_demand")
    with pytest.raises(UsageError, match="create it with persist='always'"):
        SequenceReader(options(stream))


def test_the_offset_behind_a_stream_that_has_ended_is_the_end_of_time(tmp_path: Path) -> None:
    """So that a query over it is stopped; not before, since a sink would take it for a promise."""
    stream = filled(tmp_path, 2)
    stream.create_branch(2 * SECOND)
    tentative(stream, range(2, 4))
    reader = SequenceReader(options(stream))
    offset = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    assert not _at_the_end(json.dumps(offset))
    assert _parsed(["v1", "{}", json.dumps(offset)], tmp_path) == (0, None)
    send(stream, range(2, 3), end=True)
    offset = reader.latestOffset(offset, ReadAllAvailable())
    assert _at_the_end(json.dumps(offset))
    assert _parsed(["v1", "{}", json.dumps(offset)], tmp_path) == (0, [FOREVER_US])
    assert reader.latestOffset(offset, ReadAllAvailable()) is offset


def test_finished_batches_are_acknowledged_with_their_position(tmp_path: Path) -> None:
    stream = filled(tmp_path, 3)
    reader = SequenceReader(options(stream, subscriber="dash"))
    reader.commit(reader.latestOffset(reader.initialOffset(), ReadAllAvailable()))
    assert stream.acks()["dash"].until_us == 3 * SECOND
    with stream.subscribe(name="dash", resume=True) as subscriber:
        send(stream, range(3, 4))
        assert [n for _, _, n in heard(subscriber)] == [3]


def test_what_does_not_go_with_the_branch_is_refused_with_a_sentence(tmp_path: Path) -> None:
    stream = filled(tmp_path, 1)
    filled(tmp_path / "b", 1)
    with pytest.raises(UsageError, match="got also boundaries"):
        SequenceReader(options(stream, boundaries="exact"))
    holdfast.open(tmp_path).create("t", "n bigint", bucket="1s")
    with pytest.raises(UsageError, match="got s, t; read them apart"):
        SequenceReader(options(stream, path="s,t"))


@pytest.mark.slow
def test_for_each_batch_gets_the_subscribers_sequence_through_a_restart(spark: SparkSession, tmp_path: Path) -> None:
    """D15 with Spark itself: a batch that failed is run again, with the same rows; later without its branch."""
    stream = filled(tmp_path / "streams", 3)
    batches: dict[int, list[Tuple]] = {}
    fails = False

    def keep(frame: DataFrame, number: int) -> None:
        found = tuples([r.asDict() for r in frame.collect()])
        assert batches.setdefault(number, found) == found or fails
        batches[number] = found
        if fails:
            raise RuntimeError("the target is away")

    frame = spark.readStream.format("holdfast").options(**options(stream)).load()

    def run() -> list[Tuple]:
        """What batches brought that were not there before."""
        known = set(batches)
        where = str(tmp_path / "checkpoint")
        query = frame.writeStream.foreachBatch(keep).option("checkpointLocation", where).trigger(availableNow=True)
        query.start().awaitTermination()
        return [row for number in sorted(set(batches) - known) for row in batches[number]]

    with stream.subscribe(tentative=True) as subscriber:
        assert run() == heard(subscriber)
        stream.create_branch(3 * SECOND)
        tentative(stream, range(3, 5))
        fails = True
        with pytest.raises(PySparkException, match="away"):
            run()
        fails = False
        failed = batches[max(batches)]
        tentative(stream, range(5, 6))
        expected = heard(subscriber)
        assert failed + run() == expected  # Run again, and then the rest.
        past = spark.read.format("holdfast").options(**options(stream)).load()
        assert tuples([r.asDict() for r in past.orderBy("stime").collect()]) == [
            *(("INSERTION", n + 1, n) for n in range(3)), *(("TENTATIVE", n - 2, n) for n in range(3, 6))
        ]  # fmt: skip
        send(stream, range(3, 7))
        stream.drop_branch()
        assert run() == heard(subscriber)
    stream.create_branch(7 * SECOND)
    tentative(stream, range(7, 9))
    fails = True
    with pytest.raises(PySparkException, match="away"):
        run()
    fails = False
    stream.drop_branch()
    last = max(batches)
    del batches[last]
    assert run() == [("UNDO", 7, None)]
    send(stream, range(7, 9), end=True)
    assert run() == [("INSERTION", 8, 7), ("INSERTION", 9, 8), ("REC_DONE", 0, None)]


@pytest.mark.slow
def test_the_example_of_the_page_keeps_a_table_that_is_corrected(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/connect.md."""
    monkeypatch.chdir(tmp_path)
    totals = Totals(tmp_path / "streams")
    example = SPARK.replace('"spark.checkpoint"', repr(str(tmp_path / "c"))).replace(
        'root="streams"', f'root="{tmp_path}/streams"'
    )

    def table() -> list[tuple[int, int]]:
        exec(example, {"spark": spark})
        return sqlite3.connect("spark.db").execute("select total, tentative from totals order by total").fetchall()

    totals.stable(0, 2)
    totals.tentative(2, 3)
    assert table() == [(0, 0), (1, 0), (1002, 1)]
    totals.corrected()
    totals.stable(2, 4, end=True)
    assert table() == [(0, 0), (1, 0), (2, 0), (3, 0)]
