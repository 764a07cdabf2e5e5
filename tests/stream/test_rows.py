"""Rows and tables become batches of the stored schema, and batches become events."""

from __future__ import annotations

import sys
import types
from decimal import Decimal
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.errors import SchemaError
from holdfast.model.schema import parse_schema
from holdfast.stream import pack as packing
from holdfast.stream.definition import Definition, define
from holdfast.stream.pack import pack
from holdfast.stream.rows import Columns, stimes_of
from holdfast.stream.tables import table_batch

SCHEMA = parse_schema("n bigint, text string")


def definition(schema: str = "n bigint", **options: object) -> Definition:
    return define("s", schema, id=bytes(16).hex(), now_us=0, **{"bucket": "1s", **options})


def stored_batch(of: Definition, stimes: list[int], **columns: list[object]) -> pa.RecordBatch:
    arrays = [pa.array(stimes, pa.timestamp("us", tz="UTC"))]
    arrays += [pa.array(columns[f.name], f.type) for f in of.schema]
    return pa.record_batch(arrays, schema=of.stored)


@pytest.mark.parametrize(
    "row",
    [{"n": "one"}, {"n": 1.5}, {"n": float("nan")}, {"n": Decimal("1.5")}, {"n": 2**63}, {"n": 1, "text": 5},
     {"n": 1, "texd": "a"}, [1], [1, "a", 2], "ab", b"ab", 7, None, {"n": object()}, {"text": b"\xff"},
     {"text": "\ud800"}, {"n": [1]}, {"n": True}],
)  # fmt: skip
def test_a_row_that_does_not_fit_is_refused_by_name(row: object) -> None:
    with pytest.raises(SchemaError, match="stream s"):
        Columns(SCHEMA, "stream s").batch([row])  # type: ignore[list-item]


def test_rows_are_mappings_or_sequences_in_column_order() -> None:
    n, text = Columns(SCHEMA, "s").batch([{"text": "a", "n": 1}, (2, "b"), [3.0, None], {"n": None}]).columns
    assert (n.to_pylist(), text.to_pylist()) == ([1, 2, 3, None], ["a", "b", None, None])


def test_a_time_is_not_guessed_from_a_number_with_a_fraction() -> None:
    with pytest.raises(SchemaError, match=r"got 1\.7"):
        Columns(parse_schema("at timestamp"), "stream s").batch([{"at": 1.7}])


def test_a_column_that_must_not_be_null_is_held_to_it() -> None:
    schema = pa.schema([pa.field("n", pa.int64(), nullable=False)])
    with pytest.raises(SchemaError, match="must not be null"):
        Columns(schema, "stream s").batch([{"n": None}])
    with pytest.raises(SchemaError, match="must not be null"):
        table_batch(pa.table({"n": pa.array([None], pa.int64())}), schema, "s")


@pytest.mark.parametrize(
    "data",
    [pa.table({"n": [1]}), pa.table({"n": ["x"], "text": ["a"]}), pa.table({"n": [1.5], "text": ["a"]}),
     pd.DataFrame({"n": [1], "text": ["a"], "more": [1]}), pd.DataFrame({"n": [1], "text": [object()]}), [1, 2], None,
     pa.table([[1], [2], ["a"]], names=["n", "n", "text"]), pa.table({"n": [1], "text": [[1]]}),
     pa.table({"n": [1], "text": pa.array([b"\xff"])}), pd.DataFrame({"n": [2**63], "text": ["a"]})],
)  # fmt: skip
def test_a_table_that_does_not_fit_is_refused_by_name(data: object) -> None:
    with pytest.raises(SchemaError, match="stream s"):
        table_batch(data, SCHEMA, "s")


def test_a_table_with_text_that_nobody_can_read_is_refused() -> None:
    """X5: a writer of Parquet that puts Latin-1 into text columns; every reader would fail on it for ever."""
    text = pa.array([b"caf\xe9"]).view(pa.string())
    for data in (
        pa.record_batch([pa.array([1]), text], schema=SCHEMA),
        pa.table({"n": [1], "text": text.cast(pa.large_string())}),
    ):
        with pytest.raises(SchemaError, match="column 'text' must be string; got text that is not UTF-8; decode"):
            table_batch(data, SCHEMA, "s")
    inner = pa.ListArray.from_arrays([0, 1], text)
    with pytest.raises(SchemaError, match="text that is not UTF-8"):
        table_batch(pa.table({"l": inner}), pa.schema([("l", inner.type)]), "s")


def test_a_table_is_cast_and_its_columns_put_in_order() -> None:
    table = pa.concat_tables([pa.table({"text": ["a"], "n": pa.array([1], pa.int8())})] * 2)
    assert table_batch(table, SCHEMA, "s").to_pylist() == [{"n": 1, "text": "a"}] * 2
    assert table_batch(table.slice(0, 0), SCHEMA, "s").num_rows == 0


def test_a_column_gives_stime_in_its_unit_and_nothing_else_does() -> None:
    assert stimes_of(pa.array([3]), "s", "s").tolist() == [3_000_000]
    assert stimes_of(pa.array([3], pa.int16()), "ms", "s").tolist() == [3_000]
    assert stimes_of(pa.array([3], pa.timestamp("us")), "s", "s").tolist() == [3]
    for column in (pa.array([None], pa.int64()), pa.array(["3"]), pa.array([3.0])):
        with pytest.raises(SchemaError, match="gives stime"):
            stimes_of(column, "s", "s")


@given(st.lists(st.tuples(st.integers(-5_000_000, 5_000_000), st.sampled_from("abcde")), max_size=60),
       st.integers(1, 5), st.booleans())  # fmt: skip
def test_events_hold_one_bucket_and_partition_each_and_all_tuples_in_order(
    tuples: list[tuple[int, str]], partitions: int, keyed: bool
) -> None:
    of = definition("n bigint, key string", partitions=partitions, partition_by="key" if keyed else None)
    stimes = [stime for stime, _ in tuples]
    batch = stored_batch(of, stimes, n=list(range(len(tuples))), key=[key for _, key in tuples])
    events = pack(batch, of)
    keys_of: dict[int, set[str]] = {}
    seen: dict[tuple[int, int], list[int]] = {}
    for event in events:
        part = pa.ipc.read_record_batch(pa.py_buffer(event.body), of.stored)
        times = part.column(0).cast(pa.int64()).to_pylist()
        assert {t // 1_000_000 for t in times} == {event.bucket}
        assert (event.rows, event.stime_min_us, event.stime_max_us) == (len(times), min(times), max(times))
        assert 0 <= event.partition < partitions
        if not keyed:
            assert event.partition == event.bucket % partitions
        keys_of.setdefault(event.partition, set()).update(part.column("key").to_pylist())
        seen.setdefault((event.bucket, event.partition), []).extend(part.column("n").to_pylist())
    assert [(e.bucket, e.partition) for e in events] == sorted((e.bucket, e.partition) for e in events)
    assert all(numbers == sorted(numbers) for numbers in seen.values())
    assert sorted(n for numbers in seen.values() for n in numbers) == list(range(len(tuples)))
    if keyed:
        assert sum(len(keys) for keys in keys_of.values()) == len({key for _, key in tuples})


def test_a_large_batch_is_cut_into_events_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "EVENT_ROWS_MAX", 10)
    of = definition()
    events = pack(stored_batch(of, [5] * 25, n=list(range(25))), of)
    assert [e.rows for e in events] == [10, 10, 5]
    bodies = [pa.ipc.read_record_batch(pa.py_buffer(e.body), of.stored) for e in events]
    assert [n for b in bodies for n in b.column("n").to_pylist()] == list(range(25))


def test_equal_keys_lie_in_equal_partitions_in_every_version(tmp_path: Path) -> None:
    """D9: these numbers are on disks; they may not change."""
    of = definition("key string", partitions=7, partition_by="key")
    events = pack(stored_batch(of, [1] * 4, key=["a", "b", None, "10.0.0.1"]), of)
    where = {}
    for event in events:
        part = pa.ipc.read_record_batch(pa.py_buffer(event.body), of.stored)
        where.update(dict.fromkeys(part.column("key").to_pylist(), event.partition))
    assert where == {key: crc_by_hand(repr(key).encode()) % 7 for key in ("a", "b", None, "10.0.0.1")}


def crc_by_hand(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def test_a_pandas_that_another_thread_is_about_to_load_is_in_nobodys_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its module is there before its classes are."""
    monkeypatch.setitem(sys.modules, "pandas", types.ModuleType("pandas"))
    schema = pa.schema([("n", pa.int64())])
    assert table_batch(pa.table({"n": [1, 2]}), schema, "s").num_rows == 2
