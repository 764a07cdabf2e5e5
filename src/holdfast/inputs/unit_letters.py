"""Dead letters of an input whose places go into the log with the rows: each of them once, whoever is killed.

Rules:
1. Letters wait in memory for the next unit. Its numbers say how far the input has read then, letters included: the log
   has it if it has these numbers (`letter_note`).
2. Before the unit they are noted, behind it they are appended to the dead letters.
3. A start settles what the last run has left: letters of a unit that the log has are appended, as far as they are not
   there, to the file that they were meant for. Others are forgotten: their records are read and judged again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from holdfast.inputs.feed import DeadLetters, letter_lines
from holdfast.inputs.letter_note import FORMAT, LetterNote

#: So much may wait in memory for the next unit. Beyond it one is due.
WAITING_BYTES_MAX = 8 << 20


class _Head(msgspec.Struct, frozen=True):
    format: int
    letters: str
    """The file that they are for."""
    at: int
    """How long it was before them."""
    numbers: dict[str, int]
    """Those of the unit that settles them."""


class UnitLetters:
    """Those of one stream. `letters`: the file; None where the first refused record stops the input."""

    def __init__(self, note: Path, letters: Path | None) -> None:
        self._note, self._letters = LetterNote(note, _Head), letters
        self._waiting = bytearray()
        self._at = 0

    def begin(self, numbers: Mapping[str, int]) -> None:
        """Rule 3. `numbers`: those that the log has. A file that cannot be written is said now."""
        if self._letters is not None:
            _complete(self._letters, 0, b"")
        found = self._note.read()
        if found is None:
            return
        head, text = found
        if all(numbers.get(name, -1) >= number for name, number in head.numbers.items()):
            _complete(Path(head.letters), head.at, text)
        self._note.remove()

    @property
    def is_wanted(self) -> bool:
        """Whether refused records are put aside at all."""
        return self._letters is not None

    @property
    def is_full(self) -> bool:
        return len(self._waiting) > WAITING_BYTES_MAX

    def put(self, entries: Sequence[Mapping[str, Any]]) -> None:
        """They wait for the next unit."""
        self._waiting += letter_lines(entries)

    def before_unit(self, numbers: Mapping[str, int]) -> None:
        """Rule 2. Called by whoever has the log."""
        if not self._waiting:
            return
        assert self._letters is not None
        self._at = self._letters.stat().st_size if self._letters.exists() else 0
        self._note.write(_Head(FORMAT, str(self._letters.absolute()), self._at, dict(numbers)), self._waiting)

    def behind_unit(self) -> None:
        """Rule 2. The unit is durable."""
        if not self._waiting:
            return
        assert self._letters is not None
        _complete(self._letters, self._at, bytes(self._waiting))
        self._note.remove()
        self._waiting.clear()


def _complete(path: Path, at: int, text: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with DeadLetters(path) as letters:
        letters.complete(at, text)
