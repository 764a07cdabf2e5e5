"""The flushed index: a file from which the index comes back without reading the log from its beginning.

It is replaced as a whole and names the place in the log up to which it knows everything, and the segments that it
refers to. Losing it costs time, never data (L5): the log says the same.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from holdfast.checkpoint.stores.log_index import COLUMNS, Base
from holdfast.checkpoint.stores.log_unit import KIND_INDEX
from holdfast.model.errors import CorruptLog, StorageError
from holdfast.stream.disk import Disk, storage_error
from holdfast.stream.frame import HEADER_SIZE, Header, crc32c, decode_header, encode_frame, padded

INDEX_NAME = "index"


class Position(NamedTuple):
    """An end of a unit in the log."""

    segment: int
    offset: int
    seq: int


class _Meta(msgspec.Struct, array_like=True, frozen=True):
    store_id: bytes
    position: tuple[int, int, int]
    keys: int
    segments: list[int]


class Flushed(NamedTuple):
    base: Base
    position: Position
    segments: list[int]
    """Those that must be there: some key's newest record is in them."""


def write_flush(folder: Path, disk: Disk, store_id: bytes, base: Base, position: Position) -> list[int]:
    """Make the index durable; return the segments it needs."""
    segments = base.segments()
    meta = msgspec.msgpack.encode(
        _Meta(store_id, (position.segment, position.offset, position.seq), len(base), segments)
    )
    parts = encode_frame(Header(KIND_INDEX, 0), meta)
    for name, kind in COLUMNS:
        parts += encode_frame(Header(KIND_INDEX, 0), base.columns[name].astype(kind, copy=False).tobytes())
    disk.replace_file(folder / INDEX_NAME, b"".join(parts))
    return segments


def read_flush(folder: Path, store_id: bytes) -> Flushed | None:
    """The index as it was flushed; None if there is none; `CorruptLog` if it cannot be trusted."""
    path = folder / INDEX_NAME
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise storage_error("read", path, error) from error
    bodies: list[tuple[int, int]] = []
    offset = 0
    for _ in range(1 + len(COLUMNS)):
        header = decode_header(raw, offset, str(path)) if offset + HEADER_SIZE <= len(raw) else None
        if header is None or header.kind != KIND_INDEX or offset + header.size > len(raw):
            raise CorruptLog(f"{path}: the flushed index is cut short; remove it, it will be rebuilt from the log")
        body = np.frombuffer(raw, np.uint8, padded(header.length), offset + HEADER_SIZE)
        if crc32c(body) != header.body_crc:  # type: ignore[arg-type]
            raise CorruptLog(f"{path}: the flushed index does not match its checksum; remove it, it will be rebuilt")
        bodies.append((offset + HEADER_SIZE, header.length))
        offset += header.size
    try:
        at, length = bodies[0]
        meta = msgspec.msgpack.decode(raw[at : at + length], type=_Meta)
        columns = {
            name: np.frombuffer(raw, kind, meta.keys, at)
            for (name, kind), (at, _) in zip(COLUMNS, bodies[1:], strict=True)
        }
    except (msgspec.MsgspecError, ValueError) as error:
        raise CorruptLog(f"{path}: unreadable index ({error}); remove it, it will be rebuilt from the log") from error
    if meta.store_id != store_id:
        raise StorageError(f"{path}: the index belongs to another store; put back the one of this folder or remove it")
    return Flushed(Base(columns), Position(*meta.position), meta.segments)
