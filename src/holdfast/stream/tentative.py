"""What a fork is to read: buckets that are not complete, each with exactly the events that go into it.

Rules:
1. The controller appends buckets, in order, to a file; the fork's source follows it. A line names files, places and
   numbers of rows, so a batch that is repeated reads the same tuples although more of them have arrived since.
2. A line counts once it ends. The file lives as long as the fork: a host that restarts begins with none.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import pyarrow as pa

from holdfast.stream.disk import file_mode
from holdfast.stream.index import Fields
from holdfast.stream.merge import PieceReader
from holdfast.stream.reader import read_extent

_FORMAT = 1
ALL_ROWS = -1


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
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, file_mode())

    def append(self, buckets: Sequence[tuple[int, tuple[PlannedPiece, ...]]]) -> None:
        """Buckets as (end, pieces), in order."""
        lines = [msgspec.json.encode(PlannedBucket(_FORMAT, end, pieces)) + b"\n" for end, pieces in buckets]
        data = b"".join(lines)
        while data:
            data = data[os.write(self._fd, data) :]

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class PlanReader:
    """The fork's side."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._until_us: int | None = None
        self._buckets: list[PlannedBucket] = []

    def refresh(self) -> None:
        try:
            if os.path.getsize(self._path) <= self._offset:
                return
        except FileNotFoundError:
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
    """Reads planned pieces where their files are mounted."""

    def planned(self, pieces: Sequence[PlannedPiece]) -> Iterator[pa.RecordBatch]:
        for piece in pieces:
            batch = read_extent(self._files, Path(piece.path), piece.fields, self._stored[piece.source])
            if piece.rows != ALL_ROWS:
                batch = batch.slice(0, piece.rows)
            yield self._shaped(piece.source, piece.fields, batch)
