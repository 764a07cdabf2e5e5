"""The rows that a table has when its stream begins, on this machine before the first is in the stream.

A snapshot of the server's lasts as long as the connection that made it. So the rows are first copied into a file beside
the stream, and from there into the log, where the place goes with them. Killed before the file is whole, everything
begins anew, with a new slot, and the stream has nothing yet; killed afterwards, it goes on where the log is. So no row
is missing and none comes twice (K1).

The file: a line of JSON (version, slot, place, clock, table), then the rows as COPY writes them as text.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from holdfast.inputs.pgoutput import Relation
from holdfast.model.errors import UsageError
from holdfast.stream.disk import Disk, storage_error

_VERSION = 1
#: Rows written at once.
_LINES = 4096


class Head(msgspec.Struct, frozen=True):
    slot: str
    lsn: int
    """Where the changes begin that are not in these rows."""
    time_us: int
    relation: Relation
    version: int = _VERSION


class FirstRows:
    """`path` exists when the rows are whole."""

    def __init__(self, path: Path, disk: Disk | None = None) -> None:
        self.path, self._disk = path, disk or Disk()

    def write(self, head: Head, lines: Iterable[bytes]) -> None:
        """Returns when they are durable."""
        self._disk.make_dir(self.path.parent)
        part = self.path.with_name(f".{self.path.name}.tmp")
        self._disk.unlink(part)
        fd = self._disk.create(part)
        try:
            size = self._disk.write(fd, part, 0, [msgspec.json.encode(head), b"\n"])
            rows = iter(lines)
            while some := list(itertools.islice(rows, _LINES)):
                size += self._disk.write(fd, part, size, [b"".join(some)])
            self._disk.sync(fd, part)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(part)
            raise
        finally:
            os.close(fd)
        self._disk.rename(part, self.path)
        self._disk.sync_dir(self.path.parent)

    def head(self) -> Head | None:
        """None if there are none."""
        try:
            with self.path.open("rb") as file:
                first = file.readline()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise storage_error("read", self.path, error) from error
        try:
            found = msgspec.json.decode(first, type=Head)
        except msgspec.DecodeError:
            found = None
        if found is None or found.version != _VERSION:
            raise UsageError(f"{self.path} must hold first rows of version {_VERSION}; it does not; remove it")
        return found

    def lines(self) -> Iterator[bytes]:
        with self.path.open("rb") as file:
            file.readline()
            yield from file

    def remove(self) -> None:
        self._disk.unlink(self.path)
