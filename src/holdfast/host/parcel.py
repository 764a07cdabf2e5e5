"""What travels when a task moves, and when a replica is rebuilt from its twin: where a query stands, its unfiled
results, and how its output is declared.

    prefix  mark, version, length and checksum of the head
    head    lease, definition, boundary, the output's definition, names, lengths and checksums of all that follows
    bodies  results that wait for their bucket to close, then the files of the checkpoint

Rules:
1. Names, parameters and state: never code (X3). The receiver has the definition already, or refuses.
2. The version comes first, the schema is closed, lengths are bounded before anything is stored (X4).
3. A file name is a path below the checkpoint and nothing else (X2), one that a checkpoint has, and the file looks like
   what Spark writes there (`parcel_files`).
4. Nothing counts before the last checksum was compared and all of it is durable.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import google_crc32c
import msgspec
from msgspec import Meta

from holdfast.host.envelope import UNREADABLE, one_line
from holdfast.host.parcel_files import check_named, check_stored, is_operator_state
from holdfast.host.wire import DEFINITION_BYTES_MAX, decode_definition, encode_definition
from holdfast.model.errors import PeerError, UsageError
from holdfast.stream.definition import Definition
from holdfast.stream.disk import Disk
from holdfast.stream.frame import crc32c
from holdfast.stream.untrusted import check_waiting
from holdfast.stream.waiting import Waiting

#: 2: the checkpoint holds states of operators beside Spark's; a host that does not know of them would go on without.
PARCEL_VERSION, _PLAIN_VERSION = 2, 1
PARCEL_TYPE = "application/vnd.holdfast.parcel"
#: State beyond this is better rebuilt from its inputs than moved; it also bounds what a partner can fill our disk with.
PARCEL_BYTES_MAX = 4 << 30
#: Thousands of state stores with a dozen files each.
FILES_MAX = 65_536
_HEAD_BYTES_MAX = 16 << 20
_PENDING_BYTES_MAX = 256 << 20
_CHUNK = 1 << 20

_PREFIX = struct.Struct("<8sHHII")
_MAGIC = b"HOLDPARC"
_STEP = re.compile(r"[A-Za-z0-9._-]{1,200}")

_Length = Annotated[int, Meta(ge=0, le=PARCEL_BYTES_MAX)]
_U32 = Annotated[int, Meta(ge=0, le=2**32 - 1)]
_I64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Name = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9._:#-]{0,255}\Z")]


class File(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    path: Annotated[str, Meta(min_length=1, max_length=1024)]
    length: _Length
    crc: _U32


class Head(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    lease_id: Name
    """Under which it moves; of a rebuilding, the node and the twin's host."""
    definition: Name
    """What the task is an instance of; of a rebuilding, the node."""
    boundary_us: _I64
    """The output promised this when the copy was made."""
    output: Annotated[bytes, Meta(max_length=DEFINITION_BYTES_MAX)]
    pending_rows: Annotated[int, Meta(ge=0, le=2**40)]
    pending_length: Annotated[int, Meta(ge=0, le=_PENDING_BYTES_MAX)]
    pending_crc: _U32
    files: Annotated[tuple[File, ...], Meta(max_length=FILES_MAX)]
    next_tuple_id: Annotated[int, Meta(ge=1, le=2**63 - 1)] = 1
    """The output went on with this id; told to twins, whose output has the same ids. Other owners' guests have ids of
    their own, and hosts of earlier versions do not know the word."""

    @property
    def bytes_total(self) -> int:
        return self.pending_length + sum(file.length for file in self.files)


_head = msgspec.msgpack.Decoder(Head)


def pack(
    lease_id: str, definition: str, output: Definition, waiting: Waiting, checkpoint: Path, *, ids: bool = False
) -> Iterator[bytes]:
    """The bytes of a parcel, file by file, so that a large state is never in memory whole. `ids`: for a twin."""
    paths = sorted(p for p in checkpoint.rglob("*") if p.is_file())
    files = tuple(File(p.relative_to(checkpoint).as_posix(), p.stat().st_size, _sum(p)) for p in paths)
    head = Head(lease_id, definition, waiting.boundary_us, encode_definition(output), waiting.rows, len(waiting.body),
                crc32c(waiting.body), files, waiting.next_tuple_id if ids else 1)  # fmt: skip
    if head.bytes_total > PARCEL_BYTES_MAX or len(files) > FILES_MAX:
        raise UsageError(
            f"the state of {definition} must have {PARCEL_BYTES_MAX} bytes in {FILES_MAX} files at most to be moved; "
            f"it has {head.bytes_total} in {len(files)}"
        )
    encoded = msgspec.msgpack.encode(head)
    version = PARCEL_VERSION if any(is_operator_state(file.path) for file in files) else _PLAIN_VERSION
    yield _PREFIX.pack(_MAGIC, version, 0, len(encoded), crc32c(encoded)) + encoded + waiting.body
    for path in paths:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                yield chunk


def _sum(path: Path) -> int:
    crc = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            crc = google_crc32c.extend(crc, chunk)
    return crc


def parcel_version(path: Path) -> int:
    """Of a parcel that is kept; that of a plain one if there is none."""
    try:
        with path.open("rb") as file:
            prefix = file.read(_PREFIX.size)
    except FileNotFoundError:
        return _PLAIN_VERSION
    return int(_PREFIX.unpack(prefix)[1]) if len(prefix) == _PREFIX.size else _PLAIN_VERSION


class Unpacking:
    """Takes a parcel in, chunk by chunk, into `folder/checkpoint`; `finish` says what came."""

    def __init__(self, folder: Path, disk: Disk | None = None) -> None:
        self.folder, self._disk = folder, disk or Disk()
        self.head: Head | None = None
        self.version = _PLAIN_VERSION
        """`PARCEL_VERSION` if states of operators came with it."""
        self.output: Definition | None = None
        self._buffer = bytearray()
        self._pending = b""
        self._left: list[File] = []
        self._fd = -1
        self._at = self._crc = 0

    def feed(self, chunk: bytes) -> None:
        self._buffer += chunk
        if self.head is None and not self._begin():
            return
        assert self.head is not None
        if len(self._pending) < self.head.pending_length:
            if len(self._buffer) < self.head.pending_length:
                return
            self._pending = bytes(self._buffer[: self.head.pending_length])
            del self._buffer[: self.head.pending_length]
            if crc32c(self._pending) != self.head.pending_crc:
                raise PeerError("the waiting results of a parcel do not match their checksum; send it again")
            assert self.output is not None
            check_waiting(self.head.pending_rows, self._pending, self.head.boundary_us, self.output)
        while self._left and (self._buffer or not self._left[0].length):
            self._store()
        if self._buffer and not self._left:
            raise PeerError("a parcel must end where its head says; more came; send it again")

    def _begin(self) -> bool:
        if len(self._buffer) < _PREFIX.size:
            return False
        magic, version, reserved, length, crc = _PREFIX.unpack_from(self._buffer)
        if magic != _MAGIC:
            raise PeerError("a parcel must begin with its mark; something else came; check the address of the partner")
        if version not in (_PLAIN_VERSION, PARCEL_VERSION) or reserved:
            raise PeerError(f"a parcel must be of version {PARCEL_VERSION} or before; got {version}; upgrade this host")
        if length > _HEAD_BYTES_MAX:
            raise PeerError(f"the head of a parcel may have {_HEAD_BYTES_MAX} bytes at most; got {length}")
        if len(self._buffer) < _PREFIX.size + length:
            return False
        raw = bytes(self._buffer[_PREFIX.size : _PREFIX.size + length])
        if crc32c(raw) != crc:
            raise PeerError("the head of a parcel does not match its checksum; send it again")
        try:
            head = _head.decode(raw)
        except UNREADABLE as error:
            raise PeerError(
                f"the head of a parcel cannot be read ({one_line(error)}); upgrade the older host"
            ) from None
        if head.bytes_total > PARCEL_BYTES_MAX:
            raise PeerError(f"a parcel may have {PARCEL_BYTES_MAX} bytes at most; got {head.bytes_total}")
        _check_paths([file.path for file in head.files])
        for file in head.files:
            check_named(file.path, file.length)
        self.output = decode_definition(head.output)
        del self._buffer[: _PREFIX.size + length]
        self.head, self.version, self._left = head, version, list(head.files)
        return True

    def _store(self) -> None:
        file = self._left[0]
        path = self.folder / "checkpoint" / file.path
        if self._fd < 0:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._fd, self._at, self._crc = self._disk.create(path), 0, 0
        part = bytes(self._buffer[: file.length - self._at])
        del self._buffer[: len(part)]
        self._at += self._disk.write(self._fd, path, self._at, [part])
        self._crc = google_crc32c.extend(self._crc, part)
        if self._at < file.length:
            return
        if self._crc != file.crc:
            raise PeerError(f"the file {file.path} of a parcel does not match its checksum; send it again")
        self._disk.sync(self._fd, path)
        os.close(self._fd)
        self._fd = -1
        self._left.pop(0)

    def finish(self) -> tuple[Head, Definition, Waiting]:
        """What came, all of it durable; `PeerError` if it did not come whole."""
        self.close()
        whole = self.head is not None and not self._left and len(self._pending) == self.head.pending_length
        if not whole or self._buffer:
            raise PeerError("a parcel did not come whole; send it again")
        assert self.head is not None
        assert self.output is not None
        (self.folder / "checkpoint").mkdir(parents=True, exist_ok=True)
        for folder, _, _ in os.walk(self.folder):
            self._disk.sync_dir(Path(folder))
        head = self.head
        for file in head.files:
            check_stored(self.folder / "checkpoint", file.path)
        return head, self.output, Waiting({}, head.pending_rows, self._pending, head.boundary_us, head.next_tuple_id)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _check_paths(paths: Sequence[str]) -> None:
    """Rule 3."""
    folders: set[str] = set()
    for path in paths:
        steps = path.split("/")
        if not all(_STEP.fullmatch(step) and step.strip(".") for step in steps) or len(steps) > 16:
            raise PeerError(f"a parcel must name files below its checkpoint; got {path[:80]!r}; it was refused")
        folders.update("/".join(steps[:n]) for n in range(1, len(steps)))
    if len(set(paths)) != len(paths) or not folders.isdisjoint(paths):
        raise PeerError("a parcel must name each file once, and none that is a folder of another; it was refused")
