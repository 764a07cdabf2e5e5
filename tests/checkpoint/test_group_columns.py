"""Groups as stretches of columns (C11, X3): what was saved comes back, and what does not fit is refused."""

from __future__ import annotations

import datetime as dt
import random
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from holdfast.checkpoint.group_columns import Columns, read_stretch
from holdfast.checkpoint.stores.memory import MemoryStore
from holdfast.checkpoint.window_groups import Dirty, WindowGroups, decode_group, encode_group
from holdfast.model.errors import CorruptLog, UsageError
from holdfast.operators.window_rows import GroupRows

PLAIN = pa.schema([
    ("i", pa.int64()), ("small", pa.int8()), ("f", pa.float32()), ("when", pa.timestamp("us", "UTC")),
    ("day", pa.date32()), ("text", pa.string()), ("raw", pa.binary()),
])  # fmt: skip
ODD = pa.schema([
    ("flag", pa.bool_()), ("list", pa.list_(pa.int32())), ("long", pa.large_string()), ("exact", pa.decimal128(9, 2)),
    ("fixed", pa.binary(3)),
])  # fmt: skip


def _row(chance: random.Random) -> dict[str, Any]:
    text = "".join(chance.choice("aäß€😀") for _ in range(chance.randrange(4)))
    return {
        "i": chance.getrandbits(62), "small": chance.randrange(-9, 9), "f": float(chance.randrange(99)),
        "when": dt.datetime(2026, 1, 1, tzinfo=dt.UTC), "day": dt.date(2026, 1, 1 + chance.randrange(9)), "text": text,
        "raw": chance.randbytes(chance.randrange(5)), "flag": chance.random() < 0.5, "list": [1, 2][: len(text)],
        "long": text, "exact": chance.randrange(99), "fixed": chance.randbytes(3),
    }  # fmt: skip


def _rows(count: int, schema: pa.Schema, missing: float = 0.0) -> pa.RecordBatch:
    chance = random.Random(count)
    rows = [{k: v for k, v in _row(chance).items() if chance.random() >= missing} for _ in range(count)]
    return pa.RecordBatch.from_pylist(rows, schema=schema)


def _read(batch: pa.RecordBatch, first: int, end: int) -> tuple[pa.RecordBatch, bool]:
    stretch = Columns(batch).stretch(first, end)
    return read_stretch(b"".join(stretch.pieces), stretch.rows, stretch.lengths, batch.schema), bool(stretch.lengths)


@pytest.mark.parametrize("schema", [PLAIN, *(pa.schema([PLAIN.field("i"), field]) for field in ODD)])
@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_any_stretch_of_any_rows_comes_back(schema: pa.Schema, missing: float) -> None:
    whole = _rows(60, schema, missing)
    for batch in (whole, whole.slice(7), whole.slice(13, 21), whole.take(pa.array(range(59, -1, -1)))):
        for first, end in ((0, 1), (0, len(batch)), (3, 19), (len(batch) - 1, len(batch))):
            found, plain = _read(batch, first, end)
            assert found == batch.slice(first, end - first)
            assert plain == (schema is PLAIN and not missing)


def test_texts_that_are_all_empty_come_back() -> None:
    batch = pa.RecordBatch.from_pylist([{"x": ""}] * 3, schema=pa.schema([("x", pa.string())]))
    assert _read(batch, 0, 3) == (batch, True)


def test_a_stretch_is_the_memory_of_its_rows_and_no_copy() -> None:
    batch = _rows(1000, PLAIN)
    before = pa.total_allocated_bytes()
    kept = [Columns(batch).stretch(i, i + 10) for i in range(0, 1000, 10)]
    assert pa.total_allocated_bytes() == before
    assert sum(map(sum, (s.lengths for s in kept))) > 1000 * 8


def test_groups_of_earlier_versions_are_read_and_go_on_beside_new_ones() -> None:
    """Their heads have no lengths and often no position, their tuples are one Arrow message."""
    letters = pa.schema([("x", pa.string())])
    store = MemoryStore()
    for group, first in enumerate((0, 5, 10)):
        rows = pa.RecordBatch.from_pylist([{"x": str(i)} for i in range(first, first + 5)], schema=letters)
        head = msgspec.msgpack.encode([group, first, 5, 5, 1_000_000, 2.0, first + 5, 0][: 6 + group])
        store.put(b"w/2a/%06d" % group, first + 5, len(head).to_bytes(2, "little") + head + bytes(rows.serialize()))
    groups = WindowGroups(b"w", 15, 5)
    restored = groups.restore(store, letters)[b"*"]
    assert restored.rows.column(0).to_pylist() == [str(i) for i in range(15)]
    groups.advance(b"*", 17)
    for dirty in groups.dirty(2):
        rows = pa.RecordBatch.from_pylist([{"x": str(i)} for i in range(dirty.first, dirty.end)], schema=letters)
        assert store.put(*groups.entry(dirty, rows, 2, 17))
    again = WindowGroups(b"w", 15, 5).restore(store, letters)[b"*"]
    assert again.rows.column(0).to_pylist() == [str(i) for i in range(2, 17)]
    assert (again.lost, again.problems) == (0, [])


def test_bytes_that_do_not_fit_are_refused_before_anything_uses_them() -> None:
    batch = _rows(20, PLAIN)
    stretch = Columns(batch).stretch(0, 20)
    body, lengths = b"".join(stretch.pieces), stretch.lengths
    shifted = (lengths[0] - 1, lengths[1] + 1, *lengths[2:])
    wrong: list[tuple[bytes, int, tuple[int, ...]]] = [
        (body[:-1], 20, lengths), (body + b"x", 20, lengths), (body, 19, lengths), (body, 20, lengths[:-1]),
        (body, 20, shifted), (body, 0, lengths), (body, -1, lengths), (body, 20, (*lengths[:-1], lengths[-1] + 8)),
    ]  # fmt: skip
    for raw, rows, sizes in wrong:
        with pytest.raises(CorruptLog, match="do not fit its schema"):
            read_stretch(raw, rows, sizes, PLAIN)
    ends_at = sum(lengths[:5])
    for at, byte in ((ends_at + 7, 127), (ends_at + 3, 128), (ends_at + 80, 255)):
        raw = body[:at] + bytes([byte]) + body[at + 1 :]
        with pytest.raises(CorruptLog, match="do not end"):
            read_stretch(raw, 20, lengths, PLAIN)
    text, raw = pa.schema([("x", pa.string())]), (0).to_bytes(4, "little") + (1).to_bytes(4, "little") + b"\xff"
    with pytest.raises(pa.ArrowInvalid, match="UTF8"):
        read_stretch(raw, 1, (8, 1), text)


def test_a_flipped_bit_in_a_group_never_becomes_another_number_of_tuples() -> None:
    """The store's checksum finds it first; this is for stores of one's own."""
    groups = WindowGroups(b"w", 15, 5)
    groups.advance(b"*", 5)
    (dirty,) = groups.dirty(1)
    value = b"".join(encode_group(dirty, Columns(_rows(5, PLAIN)).stretch(0, 5), 5, 1, 0.0, 5))
    for at in range(len(value)):
        for bit in (1, 128):
            raw = value[:at] + bytes([value[at] ^ bit]) + value[at + 1 :]
            try:
                head, rows = decode_group(raw, PLAIN)
            except (CorruptLog, UsageError, msgspec.MsgspecError, pa.ArrowInvalid):
                continue
            assert rows.num_rows == head.rows == 5
            rows.validate(full=True)


@pytest.mark.parametrize("texts", [["ab", "cd", "ef"], ["a", "bcd", ""], ["", "", ""], ["x", None, "y"]])
def test_gathered_groups_hold_their_tuples_whatever_the_lengths_of_texts(texts: list[str | None]) -> None:
    """Two windows whose tuples came in turns; the columns are the end of longer ones."""
    whole = pa.table({"x": ["longer", *texts], "raw": pa.array([b"??", *(b"%02d" % i for i in range(3))])})
    window, number = np.array([0, 1, 0]), np.array([7, 3, 8])
    wanted = [Dirty(b"b", 0, 3, 4), Dirty(b"a", 1, 7, 9)]
    rows = GroupRows(whole.slice(1), np.array([10, 11, 12]), window, number, (b"a", b"b"), wanted)
    schema = whole.schema.append(pa.field("_at", pa.int64()))
    found = [
        decode_group(b"".join(rows.encoded(i, lambda d, r: encode_group(d, r, 5, 1, 0.0, 5))), schema)[1].to_pylist()
        for i in range(2)
    ]
    expected = [{"x": text, "raw": b"%02d" % i, "_at": 10 + i} for i, text in enumerate(texts)]
    assert found == [[expected[1]], [expected[0], expected[2]]]
