"""Messages of PostgreSQL's replication, types and places, without a server."""

from __future__ import annotations

import struct
from decimal import Decimal

import pyarrow as pa
import pytest

from holdfast.inputs.change_position import SNAPSHOT, ChangePosition, Place
from holdfast.inputs.change_rows import ChangeRows, Placed, stream_schema
from holdfast.inputs.first_rows import FirstRows, Head
from holdfast.inputs.pgoutput import (
    EPOCH_US,
    UNCHANGED,
    Alive,
    Begin,
    Change,
    Column,
    Commit,
    Piece,
    Relation,
    Truncate,
    decode,
    status,
    unwrap,
)
from holdfast.inputs.postgres_changes import postgres_changes
from holdfast.inputs.postgres_client import place_of, refusal
from holdfast.inputs.postgres_types import array_values, copied_row, reads, type_of
from holdfast.model.errors import PeerError, UsageError

TEXT, INT, NUMERIC = 25, 23, 1700
ORDERS = Relation(7, "public", "orders", "d", (Column("id", INT, -1, True), Column("word", TEXT, -1, False)))


def text(value: str) -> bytes:
    return b"t" + struct.pack(">i", len(value.encode())) + value.encode()


def row(*values: bytes) -> bytes:
    return struct.pack(">H", len(values)) + b"".join(values)


WORDS = {
    b"B" + struct.pack(">qqi", 16, 5, 9): Begin(16, EPOCH_US + 5, 9),
    b"C" + struct.pack(">Bqqq", 0, 16, 24, 5): Commit(16, 24, EPOCH_US + 5),
    b"R" + struct.pack(">I", 7) + b"public\0orders\0d" + struct.pack(">H", 2)
    + b"\1id\0" + struct.pack(">Ii", INT, -1) + b"\0word\0" + struct.pack(">Ii", TEXT, -1): ORDERS,
    b"I" + struct.pack(">I", 7) + b"N" + row(text("1"), b"n"): Change("insert", 7, ("1", None)),
    b"U" + struct.pack(">I", 7) + b"N" + row(text("1"), b"u"): Change("update", 7, ("1", UNCHANGED)),
    b"U" + struct.pack(">I", 7) + b"K" + row(text("1"), b"n") + b"N" + row(text("2"), text("ä")):
        Change("update", 7, ("2", "ä"), ("1", None)),
    b"U" + struct.pack(">I", 7) + b"O" + row(text("1"), text("a")) + b"N" + row(text("1"), b"u"):
        Change("update", 7, ("1", UNCHANGED), ("1", "a"), True),
    b"D" + struct.pack(">I", 7) + b"K" + row(text("1"), b"n"): Change("delete", 7, None, ("1", None)),
    b"D" + struct.pack(">I", 7) + b"O" + row(text("1"), b"n"): Change("delete", 7, None, ("1", None), True),
    b"T" + struct.pack(">IBII", 2, 0, 7, 8): Truncate((7, 8)),
}  # fmt: skip


@pytest.mark.parametrize("message", WORDS)
def test_messages_are_read_and_cut_short_they_are_an_error(message: bytes) -> None:
    assert decode(message) == WORDS[message]
    for size in range(len(message)):
        with pytest.raises(PeerError, match="must send whole messages"):
            decode(message[:size])


def test_messages_that_say_nothing_to_us_are_passed_over_and_unknown_ones_are_not() -> None:
    assert decode(b"Y\0\0\0\1public\0mood\0") is None
    assert decode(b"O\0\0\0\0\0\0\0\1there\0") is None
    with pytest.raises(PeerError):
        decode(b"S\0\0\0\1\1")


def test_the_outer_layer_is_a_piece_of_the_log_or_a_sign_of_life() -> None:
    assert unwrap(b"w" + bytes(24) + b"B...") == Piece(b"B...")
    assert unwrap(b"k" + struct.pack(">qqB", 77, 1, 1)) == Alive(77, True)
    assert struct.unpack(">cqqqqB", status(5, EPOCH_US + 9, answer=True)) == (b"r", 5, 5, 5, 9, 1)
    for wrong in (b"", b"w123", b"x"):
        with pytest.raises(PeerError):
            unwrap(wrong)


# -- types -----------------------------------------------------------------------------------------------------------


def modifier(precision: int, scale: int) -> int:
    return (precision << 16 | scale & 0x7FF) + 4


@pytest.mark.parametrize(
    ("type", "declared", "kind"),
    [
        (NUMERIC, -1, pa.string()), (NUMERIC, modifier(12, 3), pa.decimal128(12, 3)),
        (NUMERIC, modifier(39, 3), pa.string()), (NUMERIC, modifier(3, -2), pa.string()),
        (1231, modifier(4, 1), pa.list_(pa.decimal128(4, 1))), (1009, -1, pa.list_(pa.string())),
        (1184, -1, pa.timestamp("us", tz="UTC")), (99_999, -1, pa.string()),
    ],
)  # fmt: skip
def test_a_type_becomes_one_that_keeps_every_value(type: int, declared: int, kind: pa.DataType) -> None:
    column = Column("c", type, declared, False)
    assert type_of(column) == kind
    assert reads(column, kind) is not None
    assert reads(column, pa.string()) is str
    assert reads(column, pa.date32()) is None


def test_a_wider_decimal_is_taken_and_a_narrower_is_not() -> None:
    column = Column("c", NUMERIC, modifier(12, 3), False)
    assert reads(column, pa.decimal128(14, 4)) is Decimal
    assert reads(column, pa.decimal128(12, 4)) is None
    assert reads(Column("c", NUMERIC, -1, False), pa.decimal128(38, 9)) is Decimal


def test_arrays_and_copied_rows_are_read_as_postgresql_writes_them() -> None:
    assert array_values("{}") == []
    assert array_values(r'{a,"b,c","d\"e\\",NULL,"NULL"}') == ["a", "b,c", 'd"e\\', None, "NULL"]
    for wrong in ("{{1},{2}}", "[2:3]={1,2}", "{a,{b}}", "1"):
        with pytest.raises(ValueError, match="an array must have one dimension"):
            array_values(wrong)
    assert copied_row(b"1\t\\N\ta\\tb\\\\n\\nc\t\n") == ("1", None, "a\tb\\n\nc", "")


# -- places ----------------------------------------------------------------------------------------------------------


def taken(position: ChangePosition, commit: int, changes: int) -> list[bool]:
    position.begin(commit)
    return [position.take() for _ in range(changes)]


def test_a_transaction_that_is_sent_again_goes_on_behind_what_the_log_has_k1() -> None:
    log: dict[str, int] = {}
    first = ChangePosition("p", log)
    first.pass_to(100)
    assert taken(first, 150, 3) == [True] * 3
    log |= first.numbers()
    assert log == {"p-lsn": 100, "p-commit": 150, "p-rows": 3}
    second = ChangePosition("p", log)
    assert second.done == 100
    assert taken(second, 150, 5) == [False, False, False, True, True]
    second.end(160)
    log |= second.numbers()
    third = ChangePosition("p", log)
    assert taken(third, 150, 2) == [False, False]
    third.end(160)
    assert taken(third, 160, 1) == [True]


def test_first_rows_are_not_taken_for_a_transaction_at_the_same_place_k1() -> None:
    position = ChangePosition("p", {})
    assert taken(position, SNAPSHOT, 2) == [True, True]
    position.end(100)
    again = ChangePosition("p", position.numbers())
    assert taken(again, 100, 1) == [True]


def test_nothing_is_passed_while_a_transaction_is_open() -> None:
    position = ChangePosition("p", {"p-lsn": 100})
    position.begin(150)
    position.pass_to(500)
    assert position.done == 100
    position.end(160)
    position.committed(position.numbers())
    assert position.logged == 160
    assert position.numbers() == {}


# -- rows ------------------------------------------------------------------------------------------------------------


def test_an_update_that_changes_the_key_says_the_old_one() -> None:
    schema = stream_schema(ORDERS, None)
    rows = ChangeRows(schema, "s", "orders", columns=None, stime=None, stime_unit="us")
    rows.use(ORDERS)
    position = ChangePosition("p", {})
    changes = [
        Change("update", 7, ("2", "b"), ("1", None)), Change("update", 7, ("2", "c")), Change("truncate", 7),
        Change("update", 7, ("2", UNCHANGED), ("1", None)),
    ]  # fmt: skip
    batch, good, refused = rows.batch([Placed(one, position.place, 1, 5) for one in changes], 0)
    assert [one.change for one in good] == changes[:3]
    assert batch.drop_columns(["stime"]).to_pylist() == [
        {"change": "update", "id": 2, "word": "b", "old": {"id": 1}},
        {"change": "update", "id": 2, "word": "c", "old": {"id": 2}},
        {"change": "truncate", "id": None, "word": None, "old": None},
    ]
    assert "column word must come with every change" in refused[0].why


def test_a_row_that_lacks_a_column_of_its_table_is_an_error() -> None:
    rows = ChangeRows(stream_schema(ORDERS, None), "s", "orders", columns=None, stime=None, stime_unit="us")
    rows.use(ORDERS)
    for change in (Change("insert", 7, ("1",)), Change("update", 7, ("1", "a"), ("1", "a", "b"))):
        with pytest.raises(PeerError, match="with its 2 columns"):
            rows.batch([Placed(change, Place(1, 1, 1), 1, 5)], 0)


def test_first_rows_are_there_whole_or_not_at_all(tmp_path: object) -> None:
    from pathlib import Path

    assert isinstance(tmp_path, Path)
    first = FirstRows(tmp_path / "home" / "s.first-rows")
    head = Head("slot", 5, 6, ORDERS)

    def breaks() -> object:
        yield b"1\ta\n"
        raise PeerError("gone")

    with pytest.raises(PeerError):
        first.write(head, breaks())  # type: ignore[arg-type]
    assert first.head() is None
    first.write(head, [b"1\ta\n", b"2\tb\n"])
    assert first.head() == head
    assert list(first.lines()) == [b"1\ta\n", b"2\tb\n"]
    first.path.write_bytes(b'{"version": 9}\n')
    with pytest.raises(UsageError, match="must hold first rows of version 1"):
        first.head()


# -- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "state", "kind", "why"),
    [
        ("logical decoding requires wal_level >= logical", "55000", UsageError, "must have wal_level = logical"),
        ("all replication slots are in use", "53400", UsageError, "raise max_replication_slots"),
        ('FATAL:  password authentication failed for user "x"', "", UsageError, "must accept our name, password"),
        ('cannot read from logical replication slot "x"', "55000", UsageError, "a new id begins anew"),
        ('replication slot "x" is active for PID 5', "55006", PeerError, "trying again"),
        ("the database system is starting up", "57P03", PeerError, "trying again"),
        ("Connection refused", "", PeerError, "trying again"),
        ('publication "p" does not exist', "42704", UsageError, "must have the publication"),
    ],
)
def test_an_error_that_no_retry_can_mend_says_what_to_do(said: str, state: str, kind: type, why: str) -> None:
    error = refusal(said, state, "PostgreSQL at db")
    assert type(error) is kind
    assert why in str(error)


def test_a_description_is_checked_where_it_is_written_and_hides_its_password() -> None:
    for words, why in (
        ({"table": "a.b.c"}, "a name, or schema.name"), ({"table": ""}, "a name, or schema.name"),
        ({"table": "t", "late": "x"}, "late must be one of"), ({"table": "t", "idle": "1s"}, "idle goes with stime"),
        ({"table": "t", "columns": "id"}, "columns must be a list"), ({"table": "t", "slack": "x"}, "a duration must"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=why):
            postgres_changes("postgresql://db", **words)  # type: ignore[arg-type]
    source = postgres_changes("postgresql://ann:hush@db:7/shop", table="orders")
    assert "hush" not in repr(source)
    assert source.text() == "changes of table orders of PostgreSQL at db:7/shop"
    assert place_of("host=db password=hush") == "PostgreSQL"
