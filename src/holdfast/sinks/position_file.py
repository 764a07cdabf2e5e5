"""A reader's position in a file of its own, for targets that have no place for it.

Rules:
1. It says which stream it is of, and of which target: a position that another target has come to is refused, since rows
   before it would be missing here.
2. One sink at a time: it holds a lock beside the file for as long as it is open or its process lives.
3. Before a target gets tentative rows, the file says that they may be on their way. Whoever was killed behind that
   begins with an UNDO, though what was tentative may be gone from the stream by then.
4. A file of an earlier version names no target. It is that of the first one that opens it, and says so from then on.
"""

from __future__ import annotations

import fcntl
import logging
import os
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import msgspec

from holdfast.model.errors import UsageError
from holdfast.sinks.sink import Changes
from holdfast.stream.disk import Disk, storage_error
from holdfast.stream.frame import FORMAT_VERSION
from holdfast.stream.position import holding_more
from holdfast.stream.sealed import seal, unseal

log = logging.getLogger(__name__)


class _Kept(msgspec.Struct, frozen=True):
    stream: str
    position: str
    """Empty: there is none yet, but tentative rows may have been on their way."""
    target: str = ""
    digest: str = ""
    """Of the target; empty: of an earlier version, or of a target that has no name."""
    format: int = FORMAT_VERSION


class Target(NamedTuple):
    """Whose position it is."""

    text: str
    """For people, without secrets."""
    digest: str
    """Of all that tells it from others; empty if nothing does."""


class PositionFile:
    """One file, from `open` to `close`. One that is refused is closed."""

    def __init__(self, path: Path, target: Target) -> None:
        self._path, self._target, self._disk = path, target, Disk()
        self._lock = -1
        self._stream = self._position = ""
        self._undo = False
        """The first rows of all were tentative, and it is not known whether the target has them."""

    def open(self, stream: str, earlier: Path | None = None) -> str | None:
        """The position that is kept. `earlier` is where an earlier version kept that of any target."""
        self.close()
        self._path = self._path.absolute()
        self._stream, self._position, self._undo = stream, "", False
        self._lock = _locked(self._path)
        if self._lock < 0:
            raise UsageError(f"another sink keeps its position in {self._path}; stop it, or name another file")
        try:
            return self._found(earlier)
        except BaseException:
            self.close()
            raise

    def _found(self, earlier: Path | None) -> str | None:
        kept = self._read(self._path)
        if kept is None and earlier is not None:
            kept = self._adopt(earlier.absolute())
        if kept is None:
            return None
        if self._target.digest and not kept.digest:
            self._put(kept.position)  # Rule 4.
        self._position, self._undo = kept.position, not kept.position
        return kept.position or None

    def _read(self, path: Path) -> _Kept | None:
        try:
            kept = unseal(path.read_bytes(), _Kept, str(path))
        except FileNotFoundError:
            return None
        if kept.stream != self._stream:
            raise UsageError(f"{path} holds a position of stream {kept.stream}; got {self._stream}; name another file")
        if kept.digest and kept.digest != self._target.digest:  # Rule 1.
            query = " with another query" if self._target.text == kept.target else ""
            raise UsageError(
                f"{path} holds the position of {kept.target}; got {self._target.text}{query}, which lacks "
                "the rows before it; name another file, and say where to begin if that is not the first row"
            )
        return kept

    def _adopt(self, earlier: Path) -> _Kept | None:
        """Take over the file of an earlier version, unless several targets of this one have files here: then nobody
        knows whose it is, and to begin anew loses nothing."""
        stem, _, _ = self._path.name.rpartition("-")
        if any(self._path.parent.glob(f"{stem}-*{self._path.suffix}")) or not earlier.exists():
            return None
        lock = _locked(earlier)
        if lock < 0:
            return None
        try:
            kept = self._read(earlier)
            if kept is not None:
                self._put(kept.position)
                self._disk.unlink(earlier)
                log.warning(
                    "%s goes on where %s was, which named no target; if others kept their position there as well, "
                    "remove %s, and all rows are sent again", self._target.text, earlier, self._path,
                )  # fmt: skip
            return kept
        finally:
            os.close(lock)

    def begin(self, changes: Changes, position: str) -> Changes:
        """Rule 3: before the target gets the changes; what it is to get."""
        if changes.tentative.num_rows and not self._undo:
            holding = holding_more(self._position, position) if self._position else ""
            if not holding or holding != self._position:
                self._put(holding)
        return replace(changes, undo=True) if self._undo else changes

    def write(self, position: str) -> None:
        """The target has all up to there."""
        self._put(position)
        self._position, self._undo = position, False

    def _put(self, position: str) -> None:
        self._disk.replace_file(self._path, seal(_Kept(self._stream, position, *self._target)))

    def close(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _locked(path: Path) -> int:
    """A lock beside the file, which is replaced as a whole at each change; -1 if somebody holds it."""
    lock = path.with_name(f".{path.name}.lock")
    try:
        fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:
        raise UsageError(f"the folder of {path} must be there; make it, or name another file") from None
    except OSError as error:
        raise storage_error("open", lock, error) from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return -1
    except OSError as error:
        os.close(fd)
        raise storage_error("lock", lock, error) from error
    return fd
