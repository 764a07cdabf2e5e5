"""What hosts send each other, as bytes."""

from __future__ import annotations

import random
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.host.wire import (
    DEFINITION_BYTES_MAX,
    EVENTS_MAX,
    INPUTS_VERSION,
    MESSAGE_BYTES_MAX,
    SPANS_VERSION,
    Cursor,
    Portion,
    Span,
    decode_definition,
    decode_message,
    decode_portion,
    encode_definition,
    encode_message,
    encode_portion,
    parse_cursor,
)
from holdfast.model.errors import PeerError, UsageError
from holdfast.protocol.dpc.messages import (
    Ack,
    AuthorisationDone,
    AuthorisationReply,
    AuthorisationRequest,
    KeepaliveReply,
    KeepaliveRequest,
    StreamReport,
)
from holdfast.protocol.dpc.signals import Lane
from holdfast.protocol.dpc.states import StreamState
from holdfast.stream.definition import define
from holdfast.stream.writer import Event

I64 = st.integers(-(2**63), 2**63 - 1)
NAME = st.from_regex(r"[a-z0-9][a-z0-9._-]{0,20}@[a-z0-9]{1,5}", fullmatch=True)
REPORT = st.builds(StreamReport, NAME, st.sampled_from(StreamState), I64, st.booleans())
MESSAGE = st.one_of(
    st.just(KeepaliveRequest()), st.builds(KeepaliveReply, st.lists(REPORT, max_size=3).map(tuple)),
    st.builds(AuthorisationRequest, I64), st.builds(AuthorisationReply, st.booleans(), I64),
    st.builds(AuthorisationDone, I64), st.builds(Ack, NAME, I64),
)  # fmt: skip
EVENT = st.builds(
    Event, I64, st.integers(0, 1023), st.integers(1, 65_536), I64, I64, st.binary(max_size=200),
    st.integers(0, 2**63 - 1),
)  # fmt: skip
HEX = st.from_regex(r"[0-9a-f]{16}", fullmatch=True)
PORTION = st.builds(
    Portion, st.just("s"), st.sampled_from(Lane), HEX, st.integers(0, 2**32 - 1), st.just("1.ab.0.0.0"), I64,
    st.booleans(), I64, st.lists(EVENT, max_size=4).map(tuple), st.none() | I64, st.none() | HEX, I64,
    st.lists(st.tuples(I64, st.floats(0, 1)), max_size=3).map(tuple),
)  # fmt: skip


@given(NAME, NAME, MESSAGE)
def test_every_message_arrives_as_it_was_said(sender: str, to: str, message: object) -> None:
    assert decode_message(encode_message(sender, to, message)) == (sender, to, message)  # type: ignore[arg-type]


@given(PORTION)
def test_every_portion_arrives_as_it_was_cut(portion: Portion) -> None:
    assert decode_portion(b"".join(encode_portion(portion))) == portion
    told = replace(portion, spans=(Span(4, 0.25, ("monitor3",), ("monitor1",)), Span(5, 1.0, (), ("monitor1",))))
    assert decode_portion(b"".join(encode_portion(told, INPUTS_VERSION))) == told
    assert encode_portion(told) == encode_portion(portion), "who does not ask for more gets what it knows"
    before = decode_portion(b"".join(encode_portion(told, SPANS_VERSION)))
    assert before == replace(portion, spans=(Span(4, 0.25, ("monitor3",)),)), "what a host of the version before sends"


@settings(max_examples=300)
@given(PORTION, st.data())
def test_a_flipped_bit_anywhere_is_refused(portion: Portion, data: st.DataObject) -> None:
    """L4"""
    whole = bytearray(b"".join(encode_portion(portion)))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(PeerError):
        decode_portion(bytes(whole))


@given(PORTION, st.integers(1, 400))
def test_a_portion_that_was_cut_off_is_refused(portion: Portion, less: int) -> None:
    whole = b"".join(encode_portion(portion))
    with pytest.raises(PeerError):
        decode_portion(whole[: max(0, len(whole) - less)])


@given(st.binary(max_size=300))
def test_noise_is_refused(noise: bytes) -> None:
    for decode in (decode_portion, decode_message, decode_definition):
        with pytest.raises(PeerError):
            decode(noise)


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"extra": 1},
        {"sender": "../x"},
        {"sender": "a@b\n"},
        {"to": ""},
        {"message": {"kind": "ack", "stream": "s", "upto_us": 1, "more": 1}},
        {"message": {"kind": "ack", "stream": "s", "upto_us": 2**63}},
        {"message": {"kind": "ack", "stream": "s", "upto_us": 1.5}},
        {"message": {"kind": "shutdown"}},
        {"message": {"kind": "keepalive_reply", "reports": [{"stream": "s", "state": 9, "main_us": 0, "fresh": True}]}},
    ],
)
def test_a_message_outside_the_schema_is_refused(change: dict[str, object]) -> None:
    good = msgspec.json.decode(encode_message("a@b", "c@d", Ack("s", 1)))
    assert decode_message(msgspec.json.encode(good))
    with pytest.raises(PeerError, match="must follow version 1"):
        decode_message(msgspec.json.encode({**good, **change}))


def test_what_is_too_large_is_refused_before_it_is_read() -> None:
    """X4"""
    with pytest.raises(PeerError, match="at most"):
        decode_message(b" " * (MESSAGE_BYTES_MAX + 1))
    with pytest.raises(PeerError, match="at most"):
        decode_definition(b" " * (DEFINITION_BYTES_MAX + 1))
    many = Portion("s", Lane.MAIN, "ab", 0, "", events=(Event(0, 0, 1, 0, 0, b"", 1),) * (EVENTS_MAX + 1))
    with pytest.raises(PeerError, match="cannot be read"):
        decode_portion(b"".join(encode_portion(many)))


@pytest.mark.parametrize(
    "text", ["", "1", "2.ab.0.0.0", "1.ab.0.0", "1.ab.x.0.0", "1.ab.0.0.0.0", "1.a.1e3.0.0", "9" * 999]
)
def test_a_cursor_that_nobody_gave_out_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="a cursor must be"):
        parse_cursor(text)


def test_a_cursor_comes_back_as_it_was_given() -> None:
    for cursor in (Cursor("ab12", -(2**62), 0, -5), Cursor("", 5, 2**62, 2**62)):
        assert parse_cursor(cursor.text) == cursor


def test_a_definition_is_checked_before_it_is_used() -> None:
    """X2, X3"""
    good = define("s", "n bigint, word string", id="ab" * 16, now_us=1)
    assert decode_definition(encode_definition(good)) == good
    plain = msgspec.json.decode(encode_definition(good))
    for change in ({"name": "../up"}, {"id": "zz"}, {"id": "ab"}, {"bucket_us": 0}, {"format": 9}, {"partitions": 0},
                   {"arrow": "AAAA"}, {"arrow": "!"}):  # fmt: skip
        with pytest.raises(PeerError, match="definition"):
            decode_definition(msgspec.json.encode({**plain, **change}))


def test_random_damage_never_gets_through() -> None:
    """L4, many bits at once"""
    chance = random.Random(4)
    events = tuple(Event(b, 0, 1, b, b, chance.randbytes(300), b) for b in range(20))
    whole = b"".join(encode_portion(Portion("s", Lane.MAIN, "ab", 0, "c", events=events)))
    for _ in range(300):
        wrong = bytearray(whole)
        for _ in range(chance.randrange(1, 6)):
            wrong[chance.randrange(12, len(whole))] ^= chance.randrange(1, 256)
        if bytes(wrong) != whole:
            with pytest.raises(PeerError):
                decode_portion(bytes(wrong))
