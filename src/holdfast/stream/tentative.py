"""What a fork is to read: buckets that are not complete, each with exactly the events that go into it.

Rules:
1. The controller appends buckets, in order, to a file; the fork's source follows it. A line names files, places and
   numbers of rows, so a batch that is repeated reads the same tuples although more of them have arrived since.
2. A line counts once it ends. The file lives as long as the fork: a host that restarts begins with none.
3. A fork may follow main for weeks. Once it has read all that the file holds, a long file is replaced by a new one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import pyarrow as pa

from holdfast.model.time import BEGINNING_US
from holdfast.stream.disk import VolatileDisk, file_mode
from holdfast.stream.index import Fields
from holdfast.stream.merge import PieceReader

_FORMAT = 1
ALL_ROWS = -1
#: A longer file is replaced when it can be: a hundred buckets, so that one of a few seconds each is as long after the
#: first quarter of an hour as after a week. It takes a rename.
PLAN_BYTES = 1 << 14


class PlannedPiece(NamedTuple):
    """Tuples of one event: all of them, or the first `rows`."""

    source: int
    path: str
    fields: Fields
    rows: int = ALL_ROWS


class PlannedBucket(msgspec.Struct, array_like=True, frozen=True):
    """One bucket for the fork; it ends at `end_us`."""

    format: int
    end_us: int
    pieces: tuple[PlannedPiece, ...]


_decoder = msgspec.json.Decoder(PlannedBucket)


class PlanWriter:
    """The controller's side."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = self._open(path)
        self._bytes, self._until_us = 0, BEGINNING_US

    @staticmethod
    def _open(path: Path) -> int:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, file_mode())

    def append(self, buckets: Sequence[tuple[int, tuple[PlannedPiece, ...]]], done_us: int = BEGINNING_US) -> None:
        """Buckets as (end, pieces), in order. The fork has committed what ends at `done_us` or before."""
        lines = [msgspec.json.encode(PlannedBucket(_FORMAT, end, pieces)) + b"\n" for end, pieces in buckets]
        data = b"".join(lines)
        if self._bytes > PLAN_BYTES and self._until_us <= done_us:
            self._replace(data)
        else:
            self._write(data)
        self._bytes += len(data)
        self._until_us = max([self._until_us, *(end for end, _ in buckets)])

    def _write(self, data: bytes) -> None:
        while data:
            data = data[os.write(self._fd, data) :]

    def _replace(self, data: bytes) -> None:
        """Rule 3. The old file is there until the new one is: the reader tells them apart by their inodes."""
        VolatileDisk().replace_file(self.path, data)
        self.close()
        self._fd, self._bytes = self._open(self.path), 0

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class PlanReader:
    """The fork's side."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._inode, self._offset = 0, 0
        self._until_us: int | None = None
        self._buckets: list[PlannedBucket] = []

    def refresh(self) -> None:
        try:
            found = os.stat(self._path)
        except FileNotFoundError:
            return
        if found.st_ino != self._inode:
            self._inode, self._offset = found.st_ino, 0
        if found.st_size <= self._offset:
            return
        with open(self._path, "rb") as file:
            file.seek(self._offset)
            whole, _, _ = file.read().rpartition(b"\n")
        if whole:
            self._offset += len(whole) + 1
            self._buckets += [_decoder.decode(line) for line in whole.split(b"\n")]
            self._until_us = self._buckets[-1].end_us

    @property
    def until_us(self) -> int | None:
        """The end of the last bucket; None before the first."""
        return self._until_us

    def next_end(self, after_us: int) -> int | None:
        """The end of the first bucket that ends behind `after_us`."""
        return next((bucket.end_us for bucket in self._buckets if bucket.end_us > after_us), None)

    def forget(self, until_us: int) -> None:
        """What ends here or before was read and committed: a failure may last for days."""
        self._buckets = [bucket for bucket in self._buckets if bucket.end_us > until_us]

    def pieces(self, start_us: int, end_us: int) -> list[PlannedPiece]:
        """The pieces of the buckets that end within (start, end]."""
        return [piece for bucket in self._buckets if start_us < bucket.end_us <= end_us for piece in bucket.pieces]


class PlannedReader(PieceReader):
    """Reads planned pieces."""

    def planned(self, pieces: Sequence[PlannedPiece]) -> Iterator[pa.RecordBatch]:
        self._bodies.expect([(Path(piece.path), piece.fields) for piece in pieces])
        for piece in pieces:
            batch = self._bodies.read(Path(piece.path), piece.fields, self._stored[piece.source])
            if piece.rows != ALL_ROWS:
                batch = batch.slice(0, piece.rows)
            yield self._shaped(piece.source, piece.fields, batch)
