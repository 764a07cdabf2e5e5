"""Frames: the unit that is written, checksummed and skipped over.

A segment is a 64-byte file header followed by frames; a frame is a 64-byte header, a body, and zeros up to the next
multiple of 64. Rules:

1. Every byte is covered: the header by its own CRC32C, body and padding by `body_crc`. No flipped bit passes (L4).
2. The header alone tells what a frame is and where the next one begins, so indexes are built without reading bodies.
3. 64 is the alignment that Arrow likes: a body can be used from a memory map without a copy.
4. All-zero bytes where a header should be mean "nothing was written here yet".
5. The version stands in every frame. A reader refuses a version it does not know instead of guessing.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import NamedTuple

import google_crc32c

from holdfast.model.errors import CorruptLog

FORMAT_VERSION = 1
#: Version of the frames that an older Holdfast does not know; it refuses them by this number instead of skipping them.
CONTROL_VERSION = 2
ALIGNMENT = 64
MAGIC = b"HOLDFAST"
#: A body longer than this is refused, by writer and reader alike: a damaged length must not allocate memory (X4).
BODY_MAX = 1 << 30

_HEADER = struct.Struct("<IIBBHIqqqqIIQ")
_FILE_HEADER = struct.Struct("<8sHHIqQ16s12xI")
_pack: Callable[..., bytes] = _HEADER.pack
HEADER_SIZE = _HEADER.size
FILE_HEADER_SIZE = _FILE_HEADER.size
assert HEADER_SIZE == FILE_HEADER_SIZE == ALIGNMENT
_ZEROS = bytes(ALIGNMENT)
#: A body below this is copied to stand beside its padding: cheaper than to checksum and to write the two apart.
_JOIN_MAX = 16 << 10

crc32c: Callable[[bytes], int] = google_crc32c.value
#: The checksum of what `crc` is that of, followed by more bytes.
crc32c_on: Callable[[int, bytes], int] = google_crc32c.extend


class Kind(IntEnum):
    """What a frame holds. The numbers are on disk; never renumber them."""

    EVENT = 1
    """Tuples of one bucket and one partition, as an Arrow record batch."""
    COMMIT = 2
    """Everything since the previous commit is one unit: visible together or not at all."""
    STATE = 3
    """What a writer must know to go on; first frame of every segment, so that older ones can be removed."""
    PENDING = 4
    """Tuples of buckets that are still open, kept by a writer that files whole buckets only."""
    CONTROL = 5
    """Checkpoints of an operator's windows (Gopen, Gcheck, R), in the unit of the results that they belong to."""


#: To ask an enumeration takes as long as to pack a header.
_CONTROL = int(Kind.CONTROL)


class Header(NamedTuple):
    """A frame's header without its checksum."""

    kind: int
    length: int
    partition: int = 0
    rows: int = 0
    bucket: int = 0
    first_tuple_id: int = 0
    stime_min_us: int = 0
    stime_max_us: int = 0
    body_crc: int = 0
    epoch: int = 0
    commit_seq: int = 0

    @property
    def size(self) -> int:
        """Bytes from this header to the next."""
        return HEADER_SIZE + padded(self.length)


class FileHeader(NamedTuple):
    epoch: int
    created_us: int
    base_seq: int
    stream_id: bytes


def padded(length: int) -> int:
    return -(-length // ALIGNMENT) * ALIGNMENT


def checksum(body: bytes) -> int:
    """What `body_crc` says: that of the body with its padding."""
    padding = _ZEROS[: -len(body) % ALIGNMENT]
    return crc32c(body) if not padding else crc32c_on(crc32c(body), padding)


def encode_frame(header: Header, body: bytes) -> list[bytes]:
    """The parts to write for one frame; `length` and `body_crc` of the given header are filled in here."""
    length = _checked(len(body))
    padding = _ZEROS[: -length % ALIGNMENT]
    if padding and length < _JOIN_MAX:
        body, padding = b"".join((body, padding)), b""
    if not padding:
        return [_encoded(header, length, crc32c(body)), body]
    return [_encoded(header, length, crc32c_on(crc32c(body), padding)), body, padding]


def encode_frame_of(header: Header, pieces: Sequence[bytes]) -> list[bytes]:
    """Like `encode_frame`, of a body in pieces, which are not copied: for large ones that is most of the work."""
    length = _checked(sum(map(len, pieces)))
    padding = _ZEROS[: -length % ALIGNMENT]
    body_crc = functools.reduce(crc32c_on, pieces, 0)
    if padding:
        body_crc = crc32c_on(body_crc, padding)
    head = _encoded(header, length, body_crc)
    return [head, *pieces, padding] if padding else [head, *pieces]


def _checked(length: int) -> int:
    if length > BODY_MAX:
        raise CorruptLog(f"a frame may hold {BODY_MAX} bytes at most; got {length}; send smaller batches")
    return length


def encode_header(header: Header) -> bytes:
    """A header with its checksum, for a body that stands elsewhere."""
    return _encoded(header, header.length, header.body_crc)


def _encoded(header: Header, length: int, body_crc: int) -> bytes:
    kind, _, partition, rows, bucket, first_id, low, high, _, epoch, seq = header
    version = CONTROL_VERSION if kind == _CONTROL else FORMAT_VERSION
    # Packed twice: that takes half as long as to cut the first and put it together again.
    crc = crc32c(_pack(length, 0, version, kind, partition, rows, bucket, first_id, low, high, body_crc, epoch, seq))
    return _pack(length, crc, version, kind, partition, rows, bucket, first_id, low, high, body_crc, epoch, seq)


def decode_header(data: bytes, offset: int, where: str) -> Header | None:
    """The header at `offset` of `data`; None where nothing was written yet; `CorruptLog` where bits are wrong."""
    raw = data[offset : offset + HEADER_SIZE]
    (length, crc, version, kind, partition, rows, bucket, first_id, low, high, body_crc, epoch,
     seq) = _HEADER.unpack(raw)  # fmt: skip
    if crc32c(raw[:4] + b"\0\0\0\0" + raw[8:]) != crc:
        if raw == _ZEROS:
            return None
        raise CorruptLog(f"{where}: the frame header does not match its checksum; run `holdfast repair`")
    if version != FORMAT_VERSION and (version, kind) != (CONTROL_VERSION, Kind.CONTROL):
        raise CorruptLog(f"{where}: the frame has format {version}, this Holdfast reads {FORMAT_VERSION}; upgrade it")
    if length > BODY_MAX:
        raise CorruptLog(f"{where}: a body of {length} bytes exceeds the limit of {BODY_MAX}; run `holdfast repair`")
    return Header(kind, length, partition, rows, bucket, first_id, low, high, body_crc, epoch, seq)


def encode_file_header(h: FileHeader) -> bytes:
    raw = _FILE_HEADER.pack(MAGIC, FORMAT_VERSION, 0, h.epoch, h.created_us, h.base_seq, h.stream_id, 0)
    return raw[:-4] + crc32c(raw[:-4]).to_bytes(4, "little")


def decode_file_header(raw: bytes, where: str) -> FileHeader:
    if len(raw) != FILE_HEADER_SIZE:
        raise CorruptLog(f"{where}: a segment begins with {FILE_HEADER_SIZE} bytes of header; got {len(raw)}")
    magic, version, _, epoch, created, base_seq, stream_id, crc = _FILE_HEADER.unpack(raw)
    if magic != MAGIC or crc32c(raw[:-4]) != crc:
        raise CorruptLog(f"{where}: the segment header does not match its checksum; run `holdfast repair`")
    if version != FORMAT_VERSION:
        raise CorruptLog(f"{where}: the segment has format {version}, this Holdfast reads {FORMAT_VERSION}; upgrade it")
    return FileHeader(epoch, created, base_seq, stream_id)
