"""A function of the user's that is called with changes: for whatever has no sink of its own.

    def store(changes, position):
        with database:
            if changes.undo:
                database.execute("delete from totals where tentative")
            ...
            database.execute("update place set position = ?", (position,))

Rules:
1. The function is called with `Changes` and the position behind them, one call after another. If it raises, it is
   called again later, with the same changes or more.
2. Exactly once is in the function's hands: it stores the position with what it does, and `resume` gives it back.
   Without `resume`, the position is kept in a file after each call, and what a call did just before a kill is done
   again (T3).
3. That file says before a call that tentative rows may be on their way. So whoever was killed behind such a call begins
   with an UNDO, though what was tentative may be gone from the stream by then.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec

from holdfast.model.errors import UsageError
from holdfast.sinks.sink import Changes, Promise, Sink, Source
from holdfast.stream.disk import Disk
from holdfast.stream.frame import FORMAT_VERSION
from holdfast.stream.position import holding_more
from holdfast.stream.sealed import seal, unseal


def foreach(
    function: Callable[[Changes, str], None],
    *,
    resume: Callable[[], str | None] | None = None,
    position: str | os.PathLike[str] | None = None,
    tentative: bool = False,
) -> ForeachSink:
    """Call a function with changes, in order. Either `resume` gives back the position that the function has stored
    itself, in its own transaction; or `position` is a file to keep it in."""
    return ForeachSink(function, resume, position, tentative)


class ForeachSink(Sink):
    kind = "foreach"

    def __init__(
        self,
        function: Callable[[Changes, str], None],
        resume: Callable[[], str | None] | None,
        position: str | os.PathLike[str] | None,
        tentative: bool,
    ) -> None:
        if (resume is None) == (position is None):
            raise UsageError(
                "foreach needs to know where it was: give resume=, which returns the position that your function "
                "stored, or position=, a file to keep it in; got " + ("neither" if resume is None else "both")
            )
        self._function, self._resume = function, resume
        self._note = None if position is None else PositionFile(Path(position))
        self.tentative = tentative
        self.promise: Promise = "exactly once" if position is None else "at least once"

    @property
    def target(self) -> str:
        return f"function {getattr(self._function, '__name__', type(self._function).__name__)}"

    def resume(self, source: Source) -> str | None:
        if self._note is not None:
            return self._note.read(source.stream)
        assert self._resume is not None
        return self._resume()

    def apply(self, changes: Changes, position: str) -> None:
        if self._note is None:
            self._function(changes, position)
        else:
            self._function(self._note.begin(changes, position), position)
            self._note.write(position)

    def close(self) -> None:
        pass


class _Kept(msgspec.Struct, frozen=True):
    stream: str
    position: str
    """Empty: there is none yet, but tentative rows may have been on their way."""
    format: int = FORMAT_VERSION


class PositionFile:
    """A position in a file of its own, for targets that have no place for it."""

    def __init__(self, path: Path) -> None:
        self._path, self._disk, self._stream, self._position = path, Disk(), "", ""
        self._undo = False
        """The first rows of all were tentative, and it is not known whether the target has them."""

    def read(self, stream: str) -> str | None:
        self._stream, self._position, self._undo = stream, "", False
        try:
            kept = unseal(self._path.read_bytes(), _Kept, str(self._path))
        except FileNotFoundError:
            if not self._path.absolute().parent.is_dir():
                raise UsageError(f"the folder of {self._path} must be there; make it, or name another file") from None
            return None
        if kept.stream != stream:
            raise UsageError(f"{self._path} holds a position of stream {kept.stream}; got {stream}; name another file")
        self._position, self._undo = kept.position, not kept.position
        return kept.position or None

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
        self._disk.replace_file(self._path.absolute(), seal(_Kept(self._stream, position)))
