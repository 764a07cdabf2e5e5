"""What checkers see: facts about the run, told by the simulated hosts, never by the cores' own reasoning.

Rules:
1. An observer changes nothing and asks the cores nothing; the run is the same without it.
2. A violation is a value with the label of the invariant; the first of each label is kept in full.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.sim.faults import Fault


@dataclass(frozen=True, slots=True)
class Violation:
    """Something that must never happen did."""

    label: str
    time_us: int
    text: str


class Observer:
    """Base of all checkers: every hook does nothing. A checker overrides the facts it cares about."""

    label = ""
    #: Whose steps it wants to hear of.
    readers: tuple[str, ...] = ("client",)

    def __init__(self) -> None:
        self.violations: list[Violation] = []
        self.checked = 0

    def fail(self, time_us: int, text: str) -> None:
        """Record a violation."""
        self.violations.append(Violation(self.label, time_us, text))

    def on_fault(self, now_us: int, fault: Fault, begins: bool) -> None:
        """A fault takes hold or is healed."""

    def on_state(self, now_us: int, host: str, before: str, after: str) -> None:
        """A replica's state changed; `before` is 'DOWN' at a start."""

    def on_commit(self, now_us: int, host: str, bucket: int, inputs: list[Any], rows: Any, state: Any) -> None:
        """A stable query committed one bucket."""

    def on_message(self, now_us: int, sender: str, to: str, message: Any, sender_state: str) -> None:
        """An answer, or a word about authorisation, was sent."""

    def on_heard(self, now_us: int, host: str, sender: str, message: Any) -> None:
        """A replica took in that its promise is no longer needed."""

    def on_push(self, now_us: int, sender: str, to: str, push: Any, sender_state: str) -> None:
        """Tuples were sent."""

    def on_fork(self, now_us: int, host: str, what: str, detail: Any) -> None:
        """A fork was to be prepared, is ready, was extended, stopped."""

    def on_truncate(self, now_us: int, host: str, upto_us: int, lost_us: int) -> None:
        """Output was removed."""

    def on_hole(self, now_us: int, host: str, first: int, upto: int) -> None:
        """Buckets that will never be stable were declared as such."""

    def on_member(self, now_us: int, host: str, here: bool) -> None:
        """A replica was taken out of the deployment, or is part of it again."""

    def on_rebuilt(self, now_us: int, host: str, bucket: int) -> None:
        """A replica that had lost its disk goes on from where its twin stands: with this bucket."""

    def on_deliver(self, now_us: int, reader: str, kind: str, bucket: int, rows: Any) -> None:
        """One of `readers` received one step."""

    def on_branch(self, now_us: int, host: str, fork: int, bucket: int, inputs: list[Any], rows: Any) -> None:
        """A fork wrote one bucket of its branch."""

    def on_produce(self, now_us: int, host: str, bucket: int, head: int, kept: int) -> None:
        """A source took one bucket in from outside, or had no room for it (bucket == -1)."""

    def finish(self, now_us: int) -> None:
        """The run is over."""


_HOOKS = ("fault", "state", "commit", "message", "heard", "push", "fork", "branch", "truncate", "hole", "produce",
          "rebuilt", "member")  # fmt: skip


class Observers:
    """Hands each fact to the observers that override its hook."""

    def __init__(self, observers: list[Observer]) -> None:
        self.all = observers
        for hook in _HOOKS:
            name = f"on_{hook}"
            takers = [getattr(o, name) for o in observers if getattr(type(o), name) is not getattr(Observer, name)]
            setattr(self, hook, takers)
        self._deliver: dict[str, list[Any]] = {}
        for observer in observers:
            if type(observer).on_deliver is not Observer.on_deliver:
                for reader in observer.readers:
                    self._deliver.setdefault(reader, []).append(observer.on_deliver)

    fault: list[Any]
    state: list[Any]
    commit: list[Any]
    message: list[Any]
    heard: list[Any]
    push: list[Any]
    fork: list[Any]
    truncate: list[Any]
    hole: list[Any]
    branch: list[Any]
    produce: list[Any]
    rebuilt: list[Any]
    member: list[Any]

    def delivered(self, now_us: int, reader: str, kind: str, first: int, end: int, rows: Mapping[int, Any]) -> None:
        """A reader received the buckets in [first, end), or an UNDO or REC_DONE that names `first`."""
        takers = self._deliver.get(reader, ())
        buckets = range(first, end) if kind in ("INSERTION", "TENTATIVE") else (first,)
        for bucket in buckets:
            found = rows.get(bucket) if end > first else None
            for hook in takers:
                hook(now_us, reader, kind, bucket, found)

    def violations(self) -> list[Violation]:
        """All violations, in the order of time."""
        return sorted((v for o in self.all for v in o.violations), key=lambda v: (v.time_us, v.label))
