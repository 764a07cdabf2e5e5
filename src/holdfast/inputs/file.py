"""A file that somebody appends to, followed like `tail -F`, resumed at the right byte after any crash.

Rules:
1. The sequence number of a unit is the byte at which its last line ends, under an id made from the file's inode and
   its first line. It is committed with the tuples, so there is no position to lose or to get ahead of them.
2. A file that was renamed and replaced is read to its end first, then the new one from its beginning. At the start,
   files beside it whose names begin with its own are looked through for one that was not finished.
3. A file that became shorter was truncated and begins anew. One that was truncated and grew beyond the last position
   while nobody looked, with the same first line, cannot be told from one that merely grew: rotate by renaming.
4. While it is followed, a line counts when its newline is there; at the end of a file that is over, also without.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from pathlib import Path

from holdfast.inputs.feed import LINE_BYTES_MAX, LINES_MAX, Feed, Line, Sent
from holdfast.model.errors import SchemaError
from holdfast.model.time import duration_us
from holdfast.stream.disk import storage_error
from holdfast.stream.frame import crc32c

_READ_BYTES = 1 << 20
#: Of the first line, what the id is made of: enough to tell log files apart, little enough to be there soon.
_FIRST_BYTES = 1024
#: Rotated files that are looked through at the start; more are the affair of whoever keeps so many.
_ROTATED_MAX = 100

Progress = Callable[[int, int], None]


class FileInput:
    """Feeds the lines of one file."""

    def __init__(
        self, path: str | os.PathLike[str], feed: Feed, *, follow: bool = True, id: str = "file", poll: str = "50ms"
    ) -> None:
        self.path, self._feed, self._follow, self._id = Path(path), feed, follow, id
        self._poll_s = duration_us(poll) / 1e6
        self._stop = threading.Event()
        self.resumed = False
        """Whether the file that is not followed had been sent, in part at least."""

    def stop(self) -> None:
        """Let `run` return soon; from any thread or signal handler."""
        self._stop.set()

    def run(self, progress: Progress | None = None) -> Sent:
        """Send what is there and, if the file is followed, what comes, until `stop`."""
        if self._follow:
            for old in self._unfinished():
                with contextlib.suppress(FileNotFoundError), _Reading(old, self._feed, self._id) as reading:
                    reading.read(self._stop, over=True)
        while not self._stop.is_set():
            try:
                reading = _Reading(self.path, self._feed, self._id)
            except FileNotFoundError as error:
                if not self._follow:
                    raise storage_error("open", self.path, error) from error
                self._stop.wait(self._poll_s)
                continue
            except OSError as error:
                raise storage_error("open", self.path, error) from error
            with reading:
                if not self._follow:
                    reading.read(self._stop, over=True, progress=progress)
                    self.resumed = reading.resumes
                    break
                self._tail(reading)
        return self._feed.total

    def _tail(self, reading: _Reading) -> None:
        """Follow one file until another takes its name."""
        while not self._stop.is_set():
            if reading.read(self._stop):
                continue
            if reading.shrunk():
                return  # The same name and inode, from the beginning.
            if reading.replaced(self.path):
                reading.read(self._stop, over=True)
                return
            self._stop.wait(self._poll_s)

    def _unfinished(self) -> list[Path]:
        """Rule 2: rotated files of which a part was sent and a part was not, oldest first."""
        with contextlib.suppress(OSError):
            beside = [p for p in self.path.parent.iterdir() if p.name.startswith(self.path.name) and p != self.path]
            beside = sorted((p for p in beside if p.is_file()), key=lambda p: p.stat().st_mtime)[-_ROTATED_MAX:]
            return [p for p in beside if self._begun(p)]
        return []

    def _begun(self, path: Path) -> bool:
        with contextlib.suppress(OSError), _Reading(path, self._feed, self._id) as reading:
            return reading.resumes and reading.offset < path.stat().st_size
        return False


class _Reading:
    """One open file and the position in it."""

    def __init__(self, path: Path, feed: Feed, prefix: str) -> None:
        self._path, self._feed, self._prefix = path, feed, prefix
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._inode = os.fstat(self._fd).st_ino
        self._id: str | None = None
        self.offset = 0
        self._line = 0
        self.resumes = False
        """A part of the file was sent before, so its lines are not counted from its beginning."""
        self._identify()

    def _identify(self, *, over: bool = False) -> bool:
        """Rule 1: who this file is; not known before its first line is whole."""
        if self._id is not None:
            return True
        first = os.pread(self._fd, _FIRST_BYTES, 0)
        head, newline, _ = first.partition(b"\n")
        if not newline and len(first) < _FIRST_BYTES and not (over and first):
            return False
        producer, stem = self._feed.producer, f"{self._prefix}-{self._inode:x}-{crc32c(head):08x}"
        generation = 0
        while producer.last_seq_of(f"{stem}-{generation + 1}") >= 0:
            generation += 1
        if os.fstat(self._fd).st_size < producer.last_seq_of(f"{stem}-{generation}"):
            generation += 1
        self._id = f"{stem}-{generation}"
        self.offset = max(0, producer.last_seq_of(self._id))
        self.resumes = self.offset > 0
        if self._feed.decoder.header_in_text:
            self._feed.decoder.header(head, f"{self._path} line 1")
            if not self.resumes:
                self.offset, self._line = min(len(head) + 1, os.fstat(self._fd).st_size), 1
        return True

    def read(self, stop: threading.Event, *, over: bool = False, progress: Progress | None = None) -> bool:
        """Send all whole lines that are there now, and with `over` the rest as well. True if there were any."""
        if not self._identify(over=over):
            return False
        some = False
        while not stop.is_set():
            lines = self._lines(over)
            if not lines:
                break
            self._feed.send(lines, self._id)
            some = True
            self.offset = lines[-1].seq or self.offset
            if progress is not None:
                progress(self.offset, max(os.fstat(self._fd).st_size, 1))
        return some

    def _lines(self, over: bool) -> list[Line]:
        data = os.pread(self._fd, _READ_BYTES, self.offset)
        while b"\n" not in data and len(data) >= _READ_BYTES:
            if len(data) > LINE_BYTES_MAX:
                raise SchemaError(f"{self._path} at byte {self.offset}: a line must end within {LINE_BYTES_MAX} bytes")
            more = os.pread(self._fd, _READ_BYTES, self.offset + len(data))
            if not more:
                break
            data += more
        lines: list[Line] = []
        at = 0
        while len(lines) < LINES_MAX and at < len(data):
            newline = data.find(b"\n", at)
            if newline < 0 and not (over and self.offset + len(data) >= os.fstat(self._fd).st_size):
                break
            end = newline + 1 if newline >= 0 else len(data)
            self._line += 1
            place = f"at byte {self.offset + at}" if self.resumes else f"line {self._line}"
            lines.append(Line(data[at:end], f"{self._path} {place}", self.offset + end))
            at = end
        return lines

    def shrunk(self) -> bool:
        return os.fstat(self._fd).st_size < self.offset

    def replaced(self, path: Path) -> bool:
        try:
            return os.stat(path).st_ino != self._inode
        except FileNotFoundError:
            return True

    def __enter__(self) -> _Reading:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)
