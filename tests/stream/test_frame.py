"""Frames, sealed files and indexes: every byte is covered (L4), and what is written can be read elsewhere."""

from __future__ import annotations

import struct

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.errors import CorruptLog
from holdfast.stream.frame import (
    BODY_MAX,
    FileHeader,
    Header,
    Kind,
    crc32c,
    decode_file_header,
    decode_header,
    encode_file_header,
    encode_frame,
)
from holdfast.stream.head import Head
from holdfast.stream.index import ENTRY, decode_index, encode_index
from holdfast.stream.record import Commit, State, decode_commit, decode_state, encode
from holdfast.stream.sealed import seal, unseal


def crc_by_hand(data: bytes) -> int:
    """CRC-32C from its definition (reflected polynomial 0x82F63B78), bit by bit."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def test_a_frame_lies_on_disk_byte_for_byte_as_documented() -> None:
    header = Header(Kind.EVENT, 0, 3, 2, 77, 9, 100, 200, 0, 5, 11)
    raw = b"".join(encode_frame(header, b"hello"))
    assert len(raw) == 128
    body_crc = crc_by_hand(raw[64:])
    expected = struct.pack("<IIBBHIqqqqIIQ", 5, 0, 1, 1, 3, 2, 77, 9, 100, 200, body_crc, 5, 11)
    crc = crc_by_hand(expected)
    assert raw[:64] == expected[:4] + struct.pack("<I", crc) + expected[8:]
    assert raw[64:] == b"hello" + bytes(59)
    assert decode_header(raw, 0, "here") == header._replace(length=5, body_crc=body_crc)


@given(st.binary(max_size=300))
def test_the_checksum_is_crc32c(data: bytes) -> None:
    assert crc32c(data) == crc_by_hand(data)


@given(st.binary(max_size=200), st.data())
def test_no_flipped_bit_of_a_frame_goes_unnoticed(body: bytes, data: st.DataObject) -> None:
    """L4: header by its own checksum, body and padding by the other."""
    raw = bytearray(b"".join(encode_frame(Header(Kind.EVENT, 0, rows=1), body)))
    bit = data.draw(st.integers(0, len(raw) * 8 - 1))
    raw[bit // 8] ^= 1 << bit % 8
    try:
        header = decode_header(bytes(raw), 0, "here")
    except CorruptLog:
        return
    assert header is not None
    assert bit >= 64 * 8
    assert crc32c(bytes(raw[64:])) != header.body_crc


def test_zeros_mean_that_nothing_was_written() -> None:
    assert decode_header(bytes(64), 0, "here") is None


@pytest.mark.parametrize(("at", "value", "why"), [(8, 2, "format 2"), (0, BODY_MAX + 1, "exceeds the limit")])
def test_a_sound_header_of_another_format_or_with_a_mad_length_is_refused(at: int, value: int, why: str) -> None:
    raw = bytearray(encode_frame(Header(Kind.EVENT, 0), b"")[0])
    raw[at : at + (1 if at else 4)] = value.to_bytes(1 if at else 4, "little")
    raw[4:8] = bytes(4)
    raw[4:8] = struct.pack("<I", crc_by_hand(bytes(raw)))
    with pytest.raises(CorruptLog, match=why):
        decode_header(bytes(raw), 0, "here")


def test_a_file_header_says_whose_segment_it_is_and_notices_every_flip() -> None:
    header = FileHeader(3, 1_000, 17, bytes(range(16)))
    raw = encode_file_header(header)
    assert raw[:8] == b"HOLDFAST"
    assert decode_file_header(raw, "here") == header
    for bit in range(len(raw) * 8):
        wrong = bytearray(raw)
        wrong[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptLog):
            decode_file_header(bytes(wrong), "here")
    with pytest.raises(CorruptLog, match="64 bytes"):
        decode_file_header(raw[:63], "here")


def test_a_sealed_file_is_json_for_people_and_notices_every_flip() -> None:
    raw = seal(Head(first_base_seq=4, removed_rows=9))
    text, crc, end = raw.rsplit(b"\n", 2)
    assert msgspec.json.decode(text)["removed_rows"] == 9
    assert (int(crc, 16), end) == (crc_by_hand(text), b"")
    assert unseal(raw, Head, "here") == Head(first_base_seq=4, removed_rows=9)
    for bit in range(len(raw) * 8):
        wrong = bytearray(raw)
        wrong[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptLog):
            unseal(bytes(wrong), Head, "here")
    for length in range(len(raw)):
        with pytest.raises(CorruptLog):
            unseal(raw[:length], Head, "here")


def test_a_sealed_file_of_another_format_or_shape_is_refused() -> None:
    with pytest.raises(CorruptLog, match="another format"):
        unseal(seal(Head(format=2)), Head, "here")
    text = b'{"first_base_seq": "four"}'
    with pytest.raises(CorruptLog, match="unreadable"):
        unseal(text + b"\n%08x\n" % crc_by_hand(text), Head, "here")


def test_an_index_that_is_wrong_in_any_way_is_no_index() -> None:
    """L5: None means that the segment itself is asked."""
    entries = np.zeros(2, ENTRY)
    entries["bucket"] = [4, 5]
    raw = encode_index(entries, 640)
    found = decode_index(raw, 640)
    assert found is not None
    assert found.tobytes() == entries.tobytes()
    assert decode_index(raw, 641) is None
    assert decode_index(b"", 640) is None
    assert decode_index(raw + b"x", 640) is None
    for bit in range(len(raw) * 8):
        wrong = bytearray(raw)
        wrong[bit // 8] ^= 1 << bit % 8
        assert decode_index(bytes(wrong), 640) is None


def test_records_of_a_later_version_with_more_fields_are_still_read() -> None:
    later = msgspec.msgpack.encode([5, 6, 7, 8, False, {"p": 1}, "something new"])
    assert decode_commit(later, "here") == Commit(5, 6, 7, 8, False, {"p": 1})
    assert decode_state(encode(State(3, tokens={"q": 2})), "here") == State(3, tokens={"q": 2})
    for junk in (b"", b"\xc1", msgspec.msgpack.encode([1]), msgspec.msgpack.encode({"a": 1})):
        with pytest.raises(CorruptLog):
            decode_commit(junk, "here")
        with pytest.raises(CorruptLog):
            decode_state(b"\xc1", "here")


def test_a_state_keeps_the_last_number_of_every_producer() -> None:
    state = (
        State().after(1, Commit(10, 0, 5, 0, tokens={"p": 1, "q": 7})).after(2, Commit(20, 0, 6, 0, tokens={"p": 2}))
    )
    assert (state.commit_seq, state.boundary_us, state.next_tuple_id) == (2, 20, 6)
    assert state.tokens == {"p": 2, "q": 7}
