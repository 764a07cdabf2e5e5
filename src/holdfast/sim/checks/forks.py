"""D17: what a fork gives does not depend on when it was started."""

from __future__ import annotations

from typing import Any

from holdfast.sim.diagram import Truth
from holdfast.sim.observe import Observer
from holdfast.sim.query import State


class D17(Observer):
    """A fork that was started earlier and runs forward gives the same branch as one started now: with the state of the
    undisturbed run at the place where its branch begins, and from there on what its buckets make of it, those included
    that main is about to publish and nobody sees of the fork."""

    label = "D17"

    def __init__(self, truth: Truth) -> None:
        super().__init__()
        self._truth = truth
        #: Where each fork stands that nobody has seen anything of: its root, or the end of its last step.
        self._silent: dict[tuple[str, int], int] = {}
        self._stepped: set[tuple[str, int]] = set()
        #: The state that each fork at work ought to have, and complete buckets that it was given since.
        self._states: dict[tuple[str, int], State] = {}
        self._unseen: dict[tuple[str, int], list[int]] = {}
        #: Whose stable query has left something out: its forks begin with a state that is not the undisturbed run's.
        self._holes: set[str] = set()

    def on_hole(self, now_us: int, host: str, first: int, upto: int) -> None:
        """From here on there is nothing to compare with."""
        self._holes.add(host)

    def on_fork(self, now_us: int, host: str, what: str, detail: Any) -> None:
        """How far it was led before anything of it was seen."""
        key = (host, detail.fork)
        if what == "ready":
            self._silent[key] = detail.root
        elif what == "extend":
            quiet = [item.bucket for item in detail.buckets if not item.emit]
            if key not in self._silent:
                self._unseen.setdefault(key, []).extend(quiet)
                return
            if quiet:
                self._silent[key] = quiet[-1] + 1
            if len(quiet) == len(detail.buckets):
                self._stepped.add(key)

    def on_branch(self, now_us: int, host: str, fork: int, bucket: int, inputs: list[Any], rows: Any) -> None:
        """Compare with one that would have been started just now."""
        key = (host, fork)
        if host in self._holes:
            return
        expected = self._truth.of(host)
        if key in self._silent:
            root = self._silent.pop(key)
            expected.upto(root)
            self._states[key] = expected.states[root]
        for missed in [unseen for unseen in self._unseen.get(key, ()) if unseen < bucket]:
            given = [stream[missed] for stream in expected.inputs]
            self._states[key], _ = expected.query.apply(self._states[key], missed, given)
            self._unseen[key].remove(missed)
        self._states[key], wanted = expected.query.apply(self._states[key], bucket, inputs)
        self.checked += key in self._stepped
        if rows != wanted:
            self.fail(now_us, f"fork {fork} of {host} gave another bucket {bucket} than one started when it was needed")
