"""D15: a reader on the machine of a replica sees the sequence that a client of it sees, up to when it comes."""

from __future__ import annotations

from typing import Any

from holdfast.sim.local import LOOK_US_MAX, PART_US_MAX, PATIENCE_US
from holdfast.sim.observe import Observer

#: By then a look has been made, and the one that was under way is over.
_SEEN_US = 2 * (LOOK_US_MAX + 2 * PART_US_MAX)


class D15(Observer):
    """What the replica serves to clients its local readers have by their next look: stable, or tentative as its branch
    has it, all of the branch as long as the failure lasts; and nothing tentative of a replica that is long dead."""

    label = "D15"

    def __init__(self, reader: str, replica: str) -> None:
        super().__init__()
        self.readers, self._replica = (reader,), replica
        self._began_us: int | None = None
        self._next = 0
        self._tentative: set[int] = set()
        #: What the forks of the replica wrote, and of the newest one when.
        self._written: dict[int, list[Any]] = {}
        self._fork = 0
        self._branch: dict[int, int] = {}
        self._failing_us: int | None = None
        self._down_us: int | None = None

    def on_hole(self, now_us: int, host: str, first: int, upto: int) -> None:
        """Where the reader begins, or what it passes."""
        if host in self.readers:
            self._began_us = now_us if self._began_us is None else self._began_us
            self._next = max(self._next, upto)

    def on_state(self, now_us: int, host: str, before: str, after: str) -> None:
        """Since when the failure lasts, and since when the replica is dead. A start drops the branch."""
        if host == self._replica:
            self._failing_us = now_us if after == "UP_FAILURE" else None
            self._down_us = now_us if after == "DOWN" else None
            if after in ("DOWN", "RECOVERING"):
                self._branch.clear()

    def on_fork(self, now_us: int, host: str, what: str, detail: Any) -> None:
        """A branch that is dropped needs not be seen."""
        if host == self._replica and what == "stop" and detail.drop_branch:
            self._branch.clear()

    def on_branch(self, now_us: int, host: str, fork: int, bucket: int, inputs: list[Any], rows: Any) -> None:
        """The branch grows; by now the reader has what it held a while ago."""
        if host != self._replica:
            return
        if fork != self._fork:
            self._fork = fork
            self._branch.clear()
        self._check_seen(now_us)
        self._written.setdefault(bucket, []).append(rows)
        self._branch[bucket] = now_us

    def _check_seen(self, now_us: int) -> None:
        if self._began_us is None or self._failing_us is None:
            return
        if now_us - max(self._began_us, self._failing_us) < _SEEN_US:
            return
        for bucket, written_us in self._branch.items():
            if bucket >= self._next and now_us - written_us > _SEEN_US:
                self.checked += 1
                if bucket not in self._tentative:
                    age = (now_us - written_us) / 1e6
                    self.fail(now_us, f"{self.readers[0]} does not have tentative bucket {bucket}, {age:.2f} s old")

    def on_deliver(self, now_us: int, reader: str, kind: str, bucket: int, rows: Any) -> None:
        """Follow the reader's view, and look where each tentative bucket comes from."""
        if kind == "INSERTION":
            self._next = bucket + 1
        elif kind == "UNDO":
            self._tentative.clear()
        elif kind == "TENTATIVE":
            self._tentative.add(bucket)
            if rows is not None and rows not in self._written.get(bucket, ()):
                self.fail(now_us, f"{reader} got a tentative bucket {bucket} that {self._replica} never wrote")
            if self._down_us is not None and now_us - self._down_us > PATIENCE_US + _SEEN_US:
                dead = (now_us - self._down_us) / 1e6
                self.fail(now_us, f"{reader} got tentative bucket {bucket} of {self._replica}, {dead:.2f} s dead")
