"""What hosts send each other, as bytes: messages and portions of streams. No sockets here.

Rules:
1. The version comes first, and another one is refused instead of guessed.
2. The schema is closed: a field, kind or lane that is not known is refused, and so is whatever exceeds its bound (X4).
3. A body is compared with its CRC32C before anyone decodes it (L4). Bodies travel as they stand in the log, so that a
   copy holds the very bytes of the origin.
4. A cursor is the producer's own note of what it has sent; the reader hands it back and does not look into it.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta

from holdfast.host.envelope import UNREADABLE, Envelopes, one_line
from holdfast.model.errors import HoldfastError, PeerError, UsageError
from holdfast.model.names import check_name
from holdfast.model.schema import parse_schema
from holdfast.model.time import BEGINNING_US
from holdfast.protocol.dpc import messages
from holdfast.protocol.dpc.messages import Message
from holdfast.protocol.dpc.signals import Lane
from holdfast.protocol.dpc.states import StreamState
from holdfast.stream.definition import PARTITIONS_MAX, Definition
from holdfast.stream.frame import FORMAT_VERSION, crc32c
from holdfast.stream.pack import EVENT_ROWS_MAX
from holdfast.stream.sealed import decoder_of
from holdfast.stream.writer import Event

WIRE_VERSION: Literal[1] = 1
#: Of a portion that says what its results lack (`Span`), and of one that says it of every bucket, with the inputs that
#: went in: sent to readers that know them.
SPANS_VERSION, INPUTS_VERSION = 2, 3
PORTION_TYPE = "application/vnd.holdfast.portion"
#: What a reader asks for at a time: some milliseconds of a fast network, so that a long catch-up does not hold up the
#: event loop of either host.
PORTION_BYTES = 4 << 20
#: No portion is longer: it is held in memory whole. It bounds the size of a single event, too.
PORTION_BYTES_MAX = 256 << 20
#: Events of one portion. Their headers are decoded one by one, some microseconds each.
EVENTS_MAX = 16_384
#: Buckets whose worth is told in one portion: some hours of a branch.
WORTHS_MAX = 65_536
#: Of those, how many also say what is missing: whoever reads a branch is near its end.
SPANS_MAX = 4096
HEAD_BYTES_MAX = 4 << 20
MESSAGE_BYTES_MAX = 64 << 10
DEFINITION_BYTES_MAX = 1 << 20
_CURSOR_CHARS_MAX = 256
_REPORTS_MAX = 256

_PREFIX = struct.Struct("<8sHHII")
_MAGIC = b"HOLDPORT"

_I64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
_Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
_U32 = Annotated[int, Meta(ge=0, le=2**32 - 1)]
_Name = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9._@-]{0,255}\Z")]
_Names = Annotated[tuple[_Name, ...], Meta(max_length=256)]
_Hex = Annotated[str, Meta(pattern=r"^[0-9a-f]{1,64}\Z")]


# Messages -----------------------------------------------------------------------------------------------------------


class _Spoken(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind"):
    pass


class _Report(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    stream: _Name
    state: StreamState
    main_us: _I64
    fresh: bool


class _KeepaliveRequest(_Spoken, frozen=True, tag="keepalive_request"):
    pass


class _KeepaliveReply(_Spoken, frozen=True, tag="keepalive_reply"):
    reports: Annotated[tuple[_Report, ...], Meta(max_length=_REPORTS_MAX)]


class _AuthorisationRequest(_Spoken, frozen=True, tag="authorisation_request"):
    asked_us: _I64


class _AuthorisationReply(_Spoken, frozen=True, tag="authorisation_reply"):
    granted: bool
    asked_us: _I64


class _AuthorisationDone(_Spoken, frozen=True, tag="authorisation_done"):
    asked_us: _I64


class _Ack(_Spoken, frozen=True, tag="ack"):
    stream: _Name
    upto_us: _I64


#: Every message and the form in which it is sent; the fields of both have the same names.
_FORMS: Mapping[type[Any], type[Any]] = {
    messages.KeepaliveRequest: _KeepaliveRequest,
    messages.KeepaliveReply: _KeepaliveReply,
    messages.AuthorisationRequest: _AuthorisationRequest,
    messages.AuthorisationReply: _AuthorisationReply,
    messages.AuthorisationDone: _AuthorisationDone,
    messages.Ack: _Ack,
}


def _formed(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_Report(r.stream, r.state, r.main_us, r.fresh) for r in value)
    return value


def _meant(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(messages.StreamReport(r.stream, r.state, r.main_us, r.fresh) for r in value)
    return value


_envelopes = Envelopes(WIRE_VERSION, _Name, _FORMS, bytes_max=MESSAGE_BYTES_MAX, formed=_formed, meant=_meant)


def encode_message(sender: str, to: str, message: Message) -> bytes:
    """One message in its envelope, as JSON."""
    return _envelopes.encode(sender, to, message)


def decode_message(data: bytes) -> tuple[str, str, Message]:
    """Sender, receiver and message; `PeerError` if that is not what came."""
    return _envelopes.decode(data)


_report = msgspec.json.Decoder(_Report)


def encode_report(report: messages.StreamReport) -> bytes:
    """How a stream does, for a reader who asked: what a keepalive reply says, without an envelope."""
    return msgspec.json.encode(_Report(report.stream, report.state, report.main_us, report.fresh))


def decode_report(data: bytes) -> messages.StreamReport:
    """The report; `PeerError` if that is not what came."""
    try:
        said = _report.decode(data)
    except UNREADABLE as error:
        raise PeerError(f"the report of a stream must follow the schema; got one where {one_line(error)}") from None
    return messages.StreamReport(said.stream, said.state, said.main_us, said.fresh)


class _LastTuples(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    bucket: _I64
    skip: _Count


_last = msgspec.json.Decoder(_LastTuples)


def encode_last(bucket: int, skip: int) -> bytes:
    """In which bucket the last tuples of a stream begin, and how many of its tuples come before them."""
    return msgspec.json.encode(_LastTuples(bucket, skip))


def decode_last(data: bytes) -> tuple[int, int]:
    try:
        said = _last.decode(data)
    except UNREADABLE as error:
        raise PeerError(f"where the last tuples are must follow the schema; got one where {one_line(error)}") from None
    return said.bucket, said.skip


class AckOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A named reader needs nothing of the stream before `until_us` any more, and resumes at `position`."""

    reader: Annotated[str, Meta(max_length=128)]
    until_us: _I64
    position: Annotated[str, Meta(max_length=512)] | None = None


_ack: msgspec.json.Decoder[AckOrder | None] = msgspec.json.Decoder(AckOrder | None)


def encode_ack(reader: str, until_us: int, position: str | None) -> bytes:
    """The order, without a position where there is none: hosts of an earlier version know no such word."""
    order = AckOrder(reader, until_us, position)
    return msgspec.json.encode({k: v for k, v in msgspec.structs.asdict(order).items() if v is not None})


def decode_ack(data: bytes) -> AckOrder | None:
    """The answer to who asks where a named reader stands; None if nobody of that name acknowledged anything."""
    try:
        return _ack.decode(data)
    except UNREADABLE as error:
        raise PeerError(f"where a reader stands must follow the schema; got one where {one_line(error)}") from None


# Portions -----------------------------------------------------------------------------------------------------------


class Cursor(NamedTuple):
    """What a producer has sent a reader so far (rule 4)."""

    origin: str
    """Id of the stream, or of its branch."""
    from_us: int
    """Buckets before this were not asked for."""
    next_id: int
    """Events from this tuple id on were not sent yet."""
    boundary_us: int
    """The last boundary that was sent."""

    @property
    def text(self) -> str:
        return f"{WIRE_VERSION}.{self.origin or '-'}.{self.from_us}.{self.next_id}.{self.boundary_us}"


def parse_cursor(text: str) -> Cursor:
    parts = text[:_CURSOR_CHARS_MAX].split(".")
    try:
        version, origin, *numbers = parts
        from_us, next_id, boundary_us = map(int, numbers)
        if version != str(WIRE_VERSION) or max(map(abs, (from_us, next_id, boundary_us))) >= 2**63:
            raise ValueError
    except ValueError:
        raise UsageError(f"a cursor must be one that this host gave out; got {text[:80]!r}; start again") from None
    return Cursor("" if origin == "-" else origin, from_us, next_id, boundary_us)


class Since(NamedTuple):
    """A place for a pull by somebody who has read the stream before, and has no cursor."""

    from_us: int
    """The first bucket that is wanted."""
    mends: int
    """How often the boundary had been taken back when it last read (`mended`)."""
    reach_us: int
    """It holds tuples up to here, some perhaps of buckets that were not complete."""


Position = str | int | Since
"""Where a pull goes on: a cursor, or the stime (in microseconds) of the first bucket that is wanted: alone, of somebody
who holds nothing of the stream."""


def encode_position(position: Position) -> dict[str, str]:
    """As parameters of a pull."""
    if isinstance(position, str):
        return {"cursor": position}
    if isinstance(position, int):
        return {"from_us": str(position), "mends": "new"}
    from_us, mends, reach_us = map(str, position)
    return {"from_us": from_us, "mends": mends, "reach_us": reach_us}


def decode_position(given: Mapping[str, str]) -> Position:
    """The position in the parameters of a pull; `UsageError` if there is none. Whoever says nothing of mends is older
    than they are and knows none."""
    cursor, mends = given.get("cursor"), given.get("mends", "0")
    if cursor is not None:
        return cursor
    from_us = _time_of(given, "from_us", "")
    if mends == "new":
        return from_us
    if not (mends.isascii() and mends.isdigit()) or len(mends) > 9:
        raise UsageError(f"mends must be a number or 'new'; got {mends[:40]!r}")
    return Since(from_us, int(mends), _time_of(given, "reach_us", str(from_us)))


def _time_of(given: Mapping[str, str], name: str, default: str) -> int:
    text = given.get(name, default)
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 19 or int(digits) >= 2**63:
        raise UsageError(f"a pull needs a cursor or from_us in microseconds; got {text[:40]!r}")
    return int(text)


_ID_CHARS = 32


def origin_of(stream_id: str, mends: int) -> str:
    """Id of a producer's stream as portions and cursors name it: its own, and the number of mends if there were any."""
    return f"{stream_id}{mends:x}" if mends else stream_id


def mends_of(origin: str) -> int:
    return int(origin[_ID_CHARS:] or "0", 16)


class Span(NamedTuple):
    """What the results of a tentative bucket have and lack: the least of the buckets that they cover, the inputs that
    are missing and those that went in."""

    bucket: int
    least: float
    missing: tuple[str, ...]
    inputs: tuple[str, ...] = ()
    """Empty if nobody has said which."""


@dataclass(frozen=True, slots=True)
class Portion:
    """A stretch of one lane of one stream: events in commit order, and what they amount to."""

    stream: str
    lane: Lane
    origin: str
    """Id of the producer's stream (`origin_of`). Replicas have different ones; a stream made anew has a new one."""
    shape: int
    """`shape_of` the definition: what the bodies look like."""
    cursor: str
    """Where the next pull goes on."""
    boundary_us: int = BEGINNING_US
    """Nothing that is still to come has a smaller stime, whether it was written already or not."""
    closed: bool = False
    """The stream ended, and this is its end."""
    wall_us: int = 0
    """When the writer was last alive, by its own clock."""
    events: tuple[Event, ...] = ()
    gap_us: int | None = None
    """What lies between the position asked for and here is gone for ever."""
    branch: str | None = None
    """Id of the tentative branch; None: there is none now."""
    root_us: int = BEGINNING_US
    """Where the branch begins."""
    worth: tuple[tuple[int, float], ...] = ()
    """What buckets of the branch are worth, also those without a tuple."""
    spans: tuple[Span, ...] = ()
    """More of the same, for readers that know of it. Those of version 2 are told where something is missing."""


class _Head(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    stream: _Name
    lane: Lane
    origin: _Hex
    shape: _U32
    cursor: Annotated[str, Meta(max_length=_CURSOR_CHARS_MAX)]
    boundary_us: _I64
    closed: bool
    wall_us: _I64
    gap_us: _I64 | None
    branch: _Hex | None
    root_us: _I64
    worth: Annotated[tuple[tuple[_I64, float], ...], Meta(max_length=WORTHS_MAX)]
    events: Annotated[tuple[_Frame, ...], Meta(max_length=EVENTS_MAX)]


class _SpannedHead(_Head, frozen=True, array_like=True, forbid_unknown_fields=True):
    spans: Annotated[tuple[tuple[_I64, float, _Names], ...], Meta(max_length=SPANS_MAX)]


class _InputsHead(_Head, frozen=True, array_like=True, forbid_unknown_fields=True):
    spans: Annotated[tuple[tuple[_I64, float, _Names, _Names], ...], Meta(max_length=SPANS_MAX)]


class _Frame(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    bucket: _I64
    partition: Annotated[int, Meta(ge=0, lt=PARTITIONS_MAX)]
    rows: Annotated[int, Meta(ge=1, le=EVENT_ROWS_MAX)]
    first_tuple_id: _Count
    stime_min_us: _I64
    stime_max_us: _I64
    length: Annotated[int, Meta(ge=0, le=PORTION_BYTES_MAX)]
    crc: _U32


_heads: dict[int, msgspec.msgpack.Decoder[Any]] = {
    WIRE_VERSION: msgspec.msgpack.Decoder(_Head),
    SPANS_VERSION: msgspec.msgpack.Decoder(_SpannedHead),
    INPUTS_VERSION: msgspec.msgpack.Decoder(_InputsHead),
}


def shape_of(definition: Definition) -> int:
    """Equal for streams whose events can be told apart by nothing but their tuples."""
    columns = definition.first_arrow or definition.arrow
    text = f"{definition.bucket_us} {definition.partitions} {definition.partition_by} {columns}"
    return crc32c(text.encode())


def same_columns(one: Definition, other: Definition) -> bool:
    """Whether events of either can be read as the other's. One may have more columns than the other, behind those that
    both have: bodies say nothing of names, so the same ones in another order would be taken for each other."""
    pairs = zip(one.schema, other.schema, strict=False)
    alike = all((mine.name, mine.type) == (theirs.name, theirs.type) for mine, theirs in pairs)
    return alike and shape_of(one) == shape_of(other)


def encode_portion(portion: Portion, version: int = WIRE_VERSION) -> list[bytes]:
    """The parts of the body, in order, for a reader that knows portions up to this version."""
    p = portion
    frames = tuple(
        _Frame(e.bucket, e.partition, e.rows, e.first_tuple_id or 0, e.stime_min_us, e.stime_max_us, len(e.body),
               crc32c(e.body))
        for e in p.events
    )  # fmt: skip
    told = (p.stream, p.lane, p.origin, p.shape, p.cursor, p.boundary_us, p.closed, p.wall_us, p.gap_us, p.branch,
            p.root_us, p.worth, frames)  # fmt: skip
    lacking = tuple((s.bucket, s.least, s.missing) for s in p.spans if s.missing)
    if version >= INPUTS_VERSION and p.spans:
        version, head = INPUTS_VERSION, msgspec.msgpack.encode(_InputsHead(*told, p.spans))
    elif version >= SPANS_VERSION and lacking:
        version, head = SPANS_VERSION, msgspec.msgpack.encode(_SpannedHead(*told, lacking))
    else:
        version, head = WIRE_VERSION, msgspec.msgpack.encode(_Head(*told))
    return [_PREFIX.pack(_MAGIC, version, 0, len(head), crc32c(head)), head, *(e.body for e in p.events)]


def decode_portion(data: bytes) -> Portion:
    """The portion, every checksum compared (rule 3); `PeerError` if a bit or a length is wrong."""
    if len(data) < _PREFIX.size:
        raise PeerError(f"a portion must begin with {_PREFIX.size} bytes of prefix; got {len(data)}; pull again")
    magic, version, reserved, length, crc = _PREFIX.unpack_from(data)
    if magic != _MAGIC:
        raise PeerError("a portion must begin with its mark; something else came; check the address of the host")
    if version not in _heads or reserved:
        raise PeerError(f"a portion must be of version {INPUTS_VERSION} or before; got {version}; upgrade this host")
    body = memoryview(data)[_PREFIX.size + length :]
    raw = data[_PREFIX.size : _PREFIX.size + length]
    if length > HEAD_BYTES_MAX or len(raw) != length or crc32c(raw) != crc:
        raise PeerError("the head of a portion does not match its checksum; pull again")
    try:
        head = _heads[version].decode(raw)
    except UNREADABLE as error:
        raise PeerError(f"the head of a portion cannot be read ({one_line(error)}); upgrade the older host") from None
    if sum(f.length for f in head.events) != len(body):
        raise PeerError(f"a portion announced other bodies than the {len(body)} bytes that came; pull again")
    events, at = [], 0
    for f in head.events:
        content = bytes(body[at : at + f.length])
        at += f.length
        if crc32c(content) != f.crc:
            raise PeerError(
                f"stream {head.stream}: the event of bucket {f.bucket} does not match its checksum; pull again"
            )
        events.append(Event(f.bucket, f.partition, f.rows, f.stime_min_us, f.stime_max_us, content, f.first_tuple_id))
    spans = tuple(Span(*span) for span in getattr(head, "spans", ()))
    return Portion(head.stream, head.lane, head.origin, head.shape, head.cursor, head.boundary_us, head.closed,
                   head.wall_us, tuple(events), head.gap_us, head.branch, head.root_us, head.worth, spans)  # fmt: skip


# Definitions --------------------------------------------------------------------------------------------------------


def encode_definition(definition: Definition) -> bytes:
    return msgspec.json.encode(definition)


def decode_definition(data: bytes) -> Definition:
    """A definition that may be used to make a stream here; `PeerError` otherwise."""
    if len(data) > DEFINITION_BYTES_MAX:
        raise PeerError(f"a definition may have {DEFINITION_BYTES_MAX} bytes at most; got {len(data)}")
    try:
        definition = decoder_of(Definition).decode(data)
        base64.b64decode(definition.arrow, validate=True)
        check_name(definition.name)
        parse_schema(definition.schema)
        sound = (
            definition.format in Definition.FORMATS
            and len(definition.id_bytes) == 16
            and definition.bucket_us >= 1000
            and 1 <= definition.partitions <= PARTITIONS_MAX
        )
    except (*UNREADABLE, HoldfastError, ValueError) as error:
        raise PeerError(f"the definition of a stream cannot be used: {one_line(error)}") from None
    if not sound:
        raise PeerError(f"the definition of stream {definition.name} is not one of format {FORMAT_VERSION}")
    return definition
