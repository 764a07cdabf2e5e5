"""What PostgreSQL says over a replication connection, from bytes to values and back. No connection, no clock.

Two layers: the messages of a replication stream (a piece of the log, or a sign of life), and inside a piece those of
the plugin `pgoutput` in its version 1, which every server since 10 speaks: a transaction comes whole, after its commit,
transactions in the order of their commits.

Rules:
1. Values come as PostgreSQL writes them as text; nothing is interpreted here.
2. A value that an update left alone and that is stored apart (TOAST) is not sent. It is `UNCHANGED`, never null.
3. A message that is cut short or unknown is a `PeerError`: nothing is guessed. Text that is none is a `UsageError`.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from holdfast.model.errors import PeerError, UsageError

#: PostgreSQL counts microseconds from the year 2000.
EPOCH_US: Final = 946_684_800_000_000
#: A piece of the log: where it begins, where the log ends, the server's clock.
_PIECE = struct.Struct(">qqq")
_ALIVE = struct.Struct(">qqB")
_STATUS = struct.Struct(">cqqqqB")
_BEGIN = struct.Struct(">qqi")
_COMMIT = struct.Struct(">Bqqq")
_I32 = struct.Struct(">i")
_U32 = struct.Struct(">I")
_U16 = struct.Struct(">H")
_COLUMN = struct.Struct(">Ii")


class Unchanged:
    """Rule 2."""

    def __repr__(self) -> str:
        return "UNCHANGED"


UNCHANGED: Final = Unchanged()
Value = str | None | Unchanged
Row = tuple[Value, ...]


class Alive(NamedTuple):
    """A sign of life: every transaction whose commit lies before `end` was sent."""

    end: int
    answer: bool
    """Whether the server wants to hear from us at once."""


class Piece(NamedTuple):
    """A piece of the log."""

    message: bytes


class Column(NamedTuple):
    name: str
    type: int
    """PostgreSQL's number for it."""
    modifier: int
    """Digits of a numeric, length of a varchar; -1: none."""
    key: bool
    """Whether the replica identity has it: old rows are told by these columns."""


class Relation(NamedTuple):
    """A table as it was when what follows was written."""

    id: int
    schema: str
    name: str
    identity: str
    """d: its primary key, i: an index, f: all columns, n: nothing."""
    columns: tuple[Column, ...]


class Begin(NamedTuple):
    lsn: int
    """Where its commit lies: transactions come in this order."""
    time_us: int
    xid: int


class Commit(NamedTuple):
    lsn: int
    end: int
    """Where reading goes on behind it."""
    time_us: int


class Change(NamedTuple):
    kind: str
    relation: int
    new: Row | None = None
    old: Row | None = None
    """The key before, or the whole row, as far as the server sends it."""
    whole: bool = False
    """Whether `old` is the whole row. Where it is the key, its other columns are null, which says nothing of them."""


class Truncate(NamedTuple):
    relations: tuple[int, ...]


Message = Begin | Commit | Relation | Change | Truncate


def unwrap(message: bytes) -> Alive | Piece:
    """The outer layer."""
    try:
        if message[:1] == b"w":
            _PIECE.unpack_from(message, 1)
            return Piece(message[25:])
        if message[:1] == b"k":
            end, _, answer = _ALIVE.unpack_from(message, 1)
            return Alive(end, bool(answer))
    except struct.error:
        pass
    raise PeerError(f"PostgreSQL must send pieces of its log, or signs of life; got {message[:20]!r}")


def status(flushed: int, now_us: int, *, answer: bool) -> bytes:
    """Our word to the server: everything before `flushed` is durable here and may be forgotten there."""
    return _STATUS.pack(b"r", flushed, flushed, flushed, now_us - EPOCH_US, answer)


def decode(message: bytes) -> Message | None:
    """The inner layer; None where it says nothing to us (origins, types, messages of applications)."""
    try:
        return _decode(message)
    except UnicodeDecodeError as error:
        raise not_text(error) from None
    except (struct.error, IndexError, ValueError):
        raise PeerError(f"PostgreSQL must send whole messages of pgoutput; got {message[:20]!r}") from None


def not_text(error: UnicodeDecodeError) -> UsageError:
    """No retry mends what is stored there."""
    at = error.object[max(0, error.start - 20) : error.end + 20]
    return UsageError(
        f"PostgreSQL must have text that can be written in UTF-8; got {at!r}; correct that value, or leave its column "
        "out (columns=…)"
    )


def _decode(message: bytes) -> Message | None:
    kind, at = message[:1], 1
    if kind == b"I":
        (relation,), (new, _) = _U32.unpack_from(message, at), _row_behind(message, 5, b"N")
        return Change("insert", relation, new)
    if kind == b"U":
        (relation,), old, at = _U32.unpack_from(message, at), None, 5
        if message[at : at + 1] != b"N":
            old, at = _row_behind(message, at, b"KO")
        new, _ = _row_behind(message, at, b"N")
        return Change("update", relation, new, old, message[5:6] == b"O")
    if kind == b"D":
        (relation,), (old, _) = _U32.unpack_from(message, at), _row_behind(message, 5, b"KO")
        return Change("delete", relation, None, old, message[5:6] == b"O")
    if kind == b"B":
        lsn, time_us, xid = _BEGIN.unpack_from(message, at)
        return Begin(lsn, time_us + EPOCH_US, xid & 0xFFFFFFFF)
    if kind == b"C":
        _, lsn, end, time_us = _COMMIT.unpack_from(message, at)
        return Commit(lsn, end, time_us + EPOCH_US)
    if kind == b"R":
        return _relation(message, at)
    if kind == b"T":
        (count,) = _U32.unpack_from(message, at)
        return Truncate(struct.unpack_from(f">{count}I", message, at + 5))
    if kind in b"OYM" and kind:
        return None
    raise ValueError


def _relation(message: bytes, at: int) -> Relation:
    (id,) = _U32.unpack_from(message, at)
    schema, at = _text(message, at + 4)
    name, at = _text(message, at)
    identity = message[at : at + 1].decode()
    (count,) = _U16.unpack_from(message, at + 1)
    at += 3
    columns = []
    for _ in range(count):
        key = bool(message[at] & 1)
        column, at = _text(message, at + 1)
        type, modifier = _COLUMN.unpack_from(message, at)
        at += 8
        columns.append(Column(column, type, modifier, key))
    return Relation(id, schema or "pg_catalog", name, identity, tuple(columns))


def _row_behind(message: bytes, at: int, marks: bytes) -> tuple[Row, int]:
    if message[at] not in marks:
        raise ValueError
    (count,) = _U16.unpack_from(message, at + 1)
    at += 3
    values: list[Value] = []
    for _ in range(count):
        kind = message[at]
        at += 1
        if kind == 0x74:  # t: text
            (size,) = _I32.unpack_from(message, at)
            at += 4
            if size < 0 or at + size > len(message):
                raise ValueError
            values.append(message[at : at + size].decode())
            at += size
        elif kind == 0x6E:  # n: null
            values.append(None)
        elif kind == 0x75:  # u: unchanged
            values.append(UNCHANGED)
        else:
            raise ValueError
    return tuple(values), at


def _text(message: bytes, at: int) -> tuple[str, int]:
    end = message.index(0, at)
    return message[at:end].decode(), end + 1


def lsn_text(lsn: int) -> str:
    """A place in the log as PostgreSQL writes it.

    >>> lsn_text(0x16B374D848)
    '16/B374D848'
    """
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def lsn_number(text: str) -> int:
    """
    >>> lsn_number('16/B374D848') == 0x16B374D848
    True
    """
    high, _, low = text.partition("/")
    return (int(high, 16) << 32) + int(low, 16)
