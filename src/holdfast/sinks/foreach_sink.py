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
3. Whoever was killed behind a call with tentative rows, before the file said that it was through, begins with an UNDO
   (rule 3 of `position_file`).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from holdfast.model.errors import UsageError
from holdfast.sinks.position_file import PositionFile, Target
from holdfast.sinks.sink import Changes, Promise, Sink, Source


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
        # Without a digest: a function has no name that others could not have as well.
        self._note = None if position is None else PositionFile(Path(position), Target(self.target, ""))
        self.tentative = tentative
        self.promise: Promise = "exactly once" if position is None else "at least once"

    @property
    def target(self) -> str:
        return f"function {getattr(self._function, '__name__', type(self._function).__name__)}"

    def resume(self, source: Source) -> str | None:
        if self._note is not None:
            return self._note.open(source.stream)
        assert self._resume is not None
        return self._resume()

    def apply(self, changes: Changes, position: str) -> None:
        if self._note is None:
            self._function(changes, position)
        else:
            self._function(self._note.begin(changes, position), position)
            self._note.write(position)

    def close(self) -> None:
        if self._note is not None:
            self._note.close()
