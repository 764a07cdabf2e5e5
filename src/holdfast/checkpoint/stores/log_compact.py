"""Which records of a log are current, and which segments are worth emptying."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Mapping

import numpy as np

from holdfast.checkpoint.stores.log_index import Index
from holdfast.checkpoint.stores.log_segments import Segments
from holdfast.checkpoint.stores.log_unit import GONE, Place, Unit, Walk, Write
from holdfast.model.errors import CorruptLog
from holdfast.stream.frame import FILE_HEADER_SIZE, crc32c, decode_file_header

#: Bytes copied with one sync: enough to be worth it, little enough that writers do not wait for it.
_COPY_BYTES = 4 << 20


def worst_segments(segments: Segments, references: Mapping[int, int], live: Mapping[int, int]) -> list[int]:
    """Sealed segments that are less than half current, the emptiest first, at most eight at a time."""
    sealed = [n for n in segments.sizes if n != segments.number and references.get(n)]
    ratio = {n: live.get(n, 0) / max(1, segments.sizes[n]) for n in sealed}
    return [n for n in sorted(sealed, key=lambda n: (ratio[n], n)) if ratio[n] < 0.5][:8]


def copies_of(segments: Segments, index: Index, chosen: list[int]) -> Iterator[list[Write]]:
    """The current records of these segments, as writes that are taken only while still current."""
    copies: list[Write] = []
    size = 0
    for number in chosen:
        for data, unit in _units(segments, number):
            for digest, key, place in _current(data, unit, index, number):
                value = None
                if place.value_len != GONE:
                    begin = place.at + len(key)
                    value = data[begin : begin + place.value_len]
                if crc32c(key + (value or b"")) != place.crc:
                    continue  # Damaged: it stays where it is, so that reading it says so.
                copies.append(Write(digest, key, place.version, value, place))
                size += len(key) + len(value or b"")
                if size >= _COPY_BYTES:
                    yield copies
                    copies, size = [], 0
    if copies:
        yield copies


def current_keys(segments: Segments, index: Index, prefix: bytes) -> list[tuple[bytes, int]]:
    """All keys with a value that begin with `prefix`, from the log itself."""
    found = []
    for number in list(segments.sizes):
        for data, unit in _units(segments, number):
            for _, key, place in _current(data, unit, index, number):
                if place.value_len != GONE and key.startswith(prefix):
                    found.append((key, place.version))
    return sorted(found)


def _current(data: mmap.mmap, unit: Unit, index: Index, number: int) -> Iterator[tuple[bytes, bytes, Place]]:
    rows = unit.rows
    raw = rows.tobytes()
    step = rows.dtype.itemsize
    digests = [raw[i : i + 16] for i in range(0, len(raw), step)]
    ats = (rows["at"].astype(np.int64) + unit.body_at).tolist()
    for digest, at, key_len, place in zip(
        digests, ats, rows["key_len"].tolist(), index.find_many(digests), strict=True
    ):
        if place is not None and place.segment == number and place.at == at:
            yield digest, data[at : at + key_len], place


def _units(segments: Segments, number: int) -> Iterator[tuple[mmap.mmap, Unit]]:
    """Units of a segment up to where it can be read; a damaged one keeps its records where they are."""
    reading = segments.reading(number)
    end = segments.sizes[number]
    size = min(end, os.fstat(reading.fd).st_size)
    if size <= FILE_HEADER_SIZE:
        return
    data = mmap.mmap(reading.fd, size, access=mmap.ACCESS_READ)
    try:
        seq = decode_file_header(data[:FILE_HEADER_SIZE], str(reading.path)).base_seq
    except CorruptLog:
        return
    for unit in Walk(data, reading.path, FILE_HEADER_SIZE, seq):
        yield data, unit
