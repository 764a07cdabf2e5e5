"""Columns that are added to a stream while it is written and read."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import holdfast
from holdfast.host.wire import decode_definition, encode_definition, shape_of
from holdfast.model.errors import CorruptLog, UsageError
from holdfast.stream.filing import file_results
from holdfast.stream.reader import LogReader
from holdfast.stream.untrusted import check_events
from holdfast.stream.writer import Event

SECOND = 1_000_000
WIDER = "n bigint, tags array<string>, rate double, part struct<a:int,b:map<string,int>>"


def append(stream: holdfast.Stream, second: int, **columns: list[object]) -> None:
    writer, stored = stream.writer(takeover=True), stream.definition.stored
    rows = len(columns["n"])
    batch = pa.RecordBatch.from_arrays(
        [pa.array([second * SECOND] * rows, stored.field(0).type)]
        + [pa.array(columns.get(field.name, [None] * rows), field.type) for field in list(stored)[1:]], schema=stored,
    )  # fmt: skip
    event = Event(second, 0, rows, second * SECOND, second * SECOND, batch.serialize().to_pybytes())
    writer.commit([event], now_us=1, boundary_us=(second + 1) * SECOND)
    writer.release(1)


def rows(reader: LogReader) -> list[dict[str, object]]:
    reader.refresh()
    return [row for _, batch in reader.scan(0, 100 * SECOND) for row in batch.to_pylist()]


def test_events_from_before_have_nulls_and_who_reads_goes_on_with_the_columns_it_knew(tmp_path: Path) -> None:
    store = holdfast.open(tmp_path)
    before = store.create("s", "n bigint, tags array<string>", bucket="1s")
    append(before, 1, n=[1, 2], tags=[["a"], None])
    reading = before.reader()
    after = store.add_columns("s", WIDER)
    append(after, 2, n=[3], tags=[["b"]], rate=[0.5], part=[{"a": 1, "b": [("k", 2)]}])
    again = store.add_columns("s", WIDER + ", last string")
    append(again, 3, n=[4], last=["x"])
    assert [(row["n"], row["tags"]) for row in rows(reading)] == [(1, ["a"]), (2, None), (3, ["b"]), (4, None)]
    assert "rate" not in rows(reading)[0]
    found = rows(store.open("s").reader())
    assert [(row["n"], row["rate"], row["last"]) for row in found] == [
        (1, None, None), (2, None, None), (3, 0.5, None), (4, None, "x")
    ]  # fmt: skip
    assert found[2]["part"] == {"a": 1, "b": [("k", 2)]}
    assert shape_of(before.definition) == shape_of(again.definition), "mirrors of it go on"
    assert shape_of(decode_definition(encode_definition(again.definition))) == shape_of(before.definition)


def test_columns_that_are_there_stay_and_the_sentence_says_so(tmp_path: Path) -> None:
    store = holdfast.open(tmp_path)
    stream = store.create("s", "n bigint, name string", bucket="1s")
    for wanted in ("n bigint", "n int, name string, more int"):
        with pytest.raises(UsageError, match="keeps the columns that it has"):
            store.add_columns("s", wanted)
    assert store.add_columns("s", "name string, n bigint").definition == stream.definition


def test_an_event_that_lacks_a_column_which_was_always_there_is_damaged(tmp_path: Path) -> None:
    store = holdfast.open(tmp_path)
    append(store.create("s", "n bigint", bucket="1s"), 1, n=[1])
    reader = LogReader(tmp_path / "s" / "main", pa.schema([("n", pa.int64()), ("m", pa.int64())]), SECOND)
    with pytest.raises(CorruptLog, match="cannot be decoded"):
        rows(reader)


def test_results_that_wait_are_filed_with_nulls_and_a_peer_may_send_events_from_before(tmp_path: Path) -> None:
    store = holdfast.open(tmp_path)
    narrow = store.create("s", "n bigint", bucket="1s").definition
    stored = narrow.stored
    old = pa.RecordBatch.from_arrays([pa.array([SECOND], stored.field(0).type), pa.array([7])], schema=stored)
    waiting = file_results([old], b"", narrow, 0, SECOND)
    assert waiting.pending_rows == 1
    wide = store.add_columns("s", "n bigint, rate double").definition
    filed = file_results([], waiting.pending, wide, 0, 2 * SECOND)
    (event,) = filed.events
    assert pa.ipc.read_record_batch(pa.py_buffer(event.body), wide.stored).to_pylist()[0]["rate"] is None
    check_events([Event(1, 0, 1, SECOND, SECOND, old.serialize().to_pybytes())], wide)
