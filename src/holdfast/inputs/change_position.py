"""How far a change log was taken into a stream: whole transactions, and how many changes of the one that is open.

Rules:
1. A place goes into the log with the rows that it stands for, in the same unit. After a crash the source sends the open
   transaction again, from its beginning and in the same order; the changes that the log has are passed over (K1).
2. `done` is where reading goes on, and all that the source is ever told: everything before it is in the log.
3. The first rows of a table count as a transaction before all others, with `SNAPSHOT` for its commit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

#: No transaction has its commit there.
SNAPSHOT = 0


class Place(NamedTuple):
    """Behind a change: where reading goes on, the commit of its transaction, and which change of it this was."""

    done: int | None
    commit: int
    number: int


class ChangePosition:
    """`id` names the source among the stream's producers, `numbers` are those that the log has."""

    def __init__(self, id: str, numbers: Mapping[str, int]) -> None:
        self._names = {word: f"{id}-{word}" for word in ("lsn", "commit", "rows")}
        self._logged = {word: numbers[name] for word, name in self._names.items() if name in numbers}
        self.done = self._logged.get("lsn")
        self.open: int | None = None
        """Commit of the transaction that is being read."""
        self._commit, self._rows = self._logged.get("commit", -1), self._logged.get("rows", 0)
        self._read = self._skip = 0

    def begin(self, commit: int) -> None:
        """A transaction begins."""
        self.open, self._read = commit, 0
        self._skip = self._rows if commit == self._commit else 0
        if self.done is not None and commit < self.done:
            self._skip = 1 << 62  # It was sent although it is known whole.

    @property
    def begun_before(self) -> bool:
        """Whether the log has changes of the open transaction from an earlier life."""
        return self._skip > 0

    def take(self) -> bool:
        """One change of it; False if the log has it."""
        self._read += 1
        if self._read <= self._skip:
            return False
        assert self.open is not None
        self._commit, self._rows = self.open, self._read
        return True

    @property
    def place(self) -> Place:
        """Behind the last change that was taken."""
        return Place(self.done, self._commit, self._rows)

    def end(self, end: int) -> None:
        """The transaction is whole; reading goes on at `end`."""
        self.open = None
        self.pass_to(end)

    def pass_to(self, lsn: int) -> None:
        """Between transactions: there is nothing for us before `lsn`."""
        if self.open is None and (self.done is None or lsn > self.done):
            self.done = lsn

    @property
    def reached(self) -> int:
        """Before it lies every transaction that the log has anything of."""
        return max(self.done or 0, self._commit + 1)

    @property
    def logged(self) -> int | None:
        """Rule 2: `done` as the log has it."""
        return self._logged.get("lsn")

    def numbers(self, place: Place | None = None) -> dict[str, int]:
        """What the unit must bring that ends here, or at `place`."""
        done, commit, rows = place or self.place
        now = {"commit": commit, "rows": rows, "lsn": -1 if done is None else done}
        return {self._names[word]: n for word, n in now.items() if n >= 0 and self._logged.get(word, -1) != n}

    def committed(self, numbers: Mapping[str, int]) -> None:
        """The unit is durable."""
        self._logged |= {word: numbers[name] for word, name in self._names.items() if name in numbers}
