"""Planted bugs: at least one per invariant, to prove that its checker sees.

Rules:
1. A bug is planted from outside, by replacing one method while a context is open; the cores know nothing of it.
2. Each one is a mistake that somebody could make, not an explosion.
3. `python -m holdfast.sim --plant NAME` lets one loose; `tests/sim/test_sim_planted.py` demands that each is caught.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from holdfast.model.tuples import TupleType
from holdfast.protocol.dpc import buffers, fork, local, monitor, node, sequence, stagger, sunion, switch, upstream
from holdfast.protocol.dpc.states import StreamState
from holdfast.sim import replica


@dataclass(frozen=True, slots=True)
class Bug:
    """One mistake: which invariant it breaks, where, and in which kind of schedule it shows soonest."""

    label: str
    text: str
    owner: Any
    name: str
    make: Callable[[Any], Any]
    """From the right method to the wrong one."""
    profile: str = "mixed"


def _resends_last(right: Any) -> Any:
    def caught_up(self: Any) -> Any:
        done = right(self)
        if done:
            self.next -= 1
        return done

    return caught_up


def _undo_too_far(right: Any) -> Any:
    def stable(self: Any, upto: int) -> Any:
        return tuple(_earlier(step) if step.kind is TupleType.UNDO else step for step in right(self, upto))

    return stable


def _earlier(step: Any) -> Any:
    return replace(step, bucket=step.bucket - 1, end=step.end - 1)


def _undo_always(right: Any) -> Any:
    def stable(self: Any, upto: int) -> Any:
        self._low = self.next if self._low is None else self._low
        return right(self, upto)

    return stable


def _local_sees(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A local reader that sees something else than what is there."""
    return lambda right: lambda self, view, now_us: right(self, change(view), now_us)


def _reported(state: StreamState) -> Callable[[Any], Any]:
    def change(view: Any) -> Any:
        return view if view.report is None else replace(view, report=replace(view.report, state=state))

    return change


def _local_forgets_undo(right: Any) -> Any:
    def look(self: Any, view: Any, now_us: int) -> Any:
        return tuple(step for step in right(self, view, now_us) if step.kind is not TupleType.UNDO)

    return look


def _local_tells_once(right: Any) -> Any:
    def news(self: Any, branch: Any, report: Any) -> Any:
        known = branch.id == self._branch
        return right(self, replace(branch, first=max(branch.first, self._told)) if known else branch, report)

    return news


def _releases_at_once(right: Any) -> Any:
    def due_us(self: Any, bucket: int, stable: int, union: Any, state: Any, live: Any, failing: bool) -> int:
        since = union.waiting_since(bucket)
        return int(fork.NEVER_US if since is None else since)

    return due_us


def _never_switches(right: Any) -> Any:
    def choose(curr: Any, bck: Any, states: Any, advance: Any) -> Any:
        return right(curr, bck, states, advance) if curr is None else (switch.Choice(1, curr, None), (1,))

    return choose


def _largest_frontier(right: Any) -> Any:
    def advance(self: Any, intake: Any, signal: Any, now_us: int) -> Any:
        moved = right(self, intake, signal, now_us)
        self.frontier = max(other.closed for other in self.inputs.values())
        return moved

    return advance


def _fork_shares_state(right: Any) -> Any:
    def forked(self: Any, branch: Any, count: int, life: int) -> None:
        right(self, branch, count, life)
        if life == self.life and branch is self.branch:
            self.query_state = branch.state

    return forked


def _promises_too_much(right: Any) -> Any:
    def report(self: Any) -> Any:
        known = right(self)
        return replace(known, main_us=known.main_us + self.plan.bucket_us)

    return report


def _waits_for_all_to_heal(right: Any) -> Any:
    def read_stable(self: Any) -> Any:
        return None if self.inputs.failing else right(self)

    return read_stable


def _first_reader_decides(right: Any) -> Any:
    def truncate(self: Any, head_us: int) -> Any:
        kept = self._acked
        self._acked = dict.fromkeys(kept, max(kept.values()))
        try:
            return right(self, head_us)
        finally:
            self._acked = kept

    return truncate


def _drops_silently(right: Any) -> Any:
    def truncate(self: Any, head_us: int) -> Any:
        order = right(self, head_us)
        return None if order is None else replace(order, lost_us=0)

    return truncate


def _steps_over(right: Any) -> Any:
    def step(self: Any, quiet: int, union: Any, now_us: int) -> Any:
        self.next += quiet - self.next > 1
        return right(self, quiet, union, now_us)

    return step


def _rebuilt_without_state(right: Any) -> Any:
    def take_over(self: Any, twin: Any) -> None:
        right(self, twin)
        self.query_state = self.query.empty

    return take_over


def _forgets_new_readers(right: Any) -> Any:
    def replan(self: Any, plan: Any) -> None:
        self._acked = {reader: acked for reader, acked in self._acked.items() if reader in plan.readers}

    return replan


def _constant(value: Any) -> Callable[[Any], Any]:
    return lambda right: lambda *args: value


BUGS = {
    "resends-last": Bug("D1", "after corrections the last stable bucket is sent again", sequence.Sequence, "caught_up",
                        _resends_last),
    "undo-too-far": Bug("D2", "UNDO names the bucket before the last stable one", sequence.Sequence, "stable",
                        _undo_too_far),
    "undo-always": Bug("D2", "UNDO is sent though nothing tentative was", sequence.Sequence, "stable", _undo_always),
    "no-rec-done": Bug("D3", "corrections are never closed", sequence.Sequence, "caught_up", _constant(())),
    "never-renews": Bug("D3", "a subscription that brings nothing is never renewed", upstream.Upstream, "_find_silent",
                        _constant([])),
    "no-forced-rec-done": Bug("D4", "a failure during recovery does not close the corrections", sequence.Sequence,
                              "stop_short", _constant(()), "relapse"),
    "never-releases": Bug("D5", "the fork never gets a bucket", fork.Fork, "due_us", _constant(fork.NEVER_US)),
    "releases-at-once": Bug("D6", "the fork does not wait out the delay", fork.Fork, "due_us", _releases_at_once,
                            "short"),
    "never-switches": Bug("D7", "a reader stays with its first replica", upstream, "choose", _never_switches, "static"),
    "largest-frontier": Bug("D8", "a bucket counts as complete when one input has it", sunion.SUnion, "_advance_main",
                            _largest_frontier),
    "fork-shares-state": Bug("D9", "the fork writes into the checkpoint of the stable query", replica.ReplicaHost,
                             "_forked", _fork_shares_state),
    "rebuilt-without-state": Bug("D9", "a rebuilt replica gets its twin's output and position, and an empty state",
                                 replica.ReplicaHost, "_take_over", _rebuilt_without_state),
    "promises-too-much": Bug("D10", "the reported boundary is one bucket ahead", node.NodeCore, "report",
                             _promises_too_much),
    "does-not-ask": Bug("D11", "a replica stabilises without asking, whatever it promised", stagger.Stagger, "may",
                        _constant(True)),
    "answers-early": Bug("D12", "a restarted replica answers before it is STABLE", node.NodeCore, "answers",
                         lambda right: property(lambda self: True)),
    "waits-for-all": Bug("D13", "main stands still until every input is healed", node.NodeCore, "_read_stable",
                         _waits_for_all_to_heal, "rotating"),
    "first-reader-decides": Bug("D14", "output goes when one reader has it", buffers.Buffer, "truncate",
                                _first_reader_decides),
    "forgets-new-readers": Bug("D14", "a reader that was added to the deployment is not waited for", buffers.Buffer,
                               "replan", _forgets_new_readers),
    "drops-silently": Bug("D14", "a full buffer drops without saying so", buffers.Buffer, "truncate", _drops_silently,
                          "overflow"),
    "knows-no-cadence": Bug("D16", "a producer that moves seldom is doubted like one that moves with every bucket",
                            monitor.Monitor, "cadence_us", _constant(0), "calm"),
    "steps-over": Bug("D17", "a fork that follows main leaves out the first bucket of a step", fork.Fork, "step",
                      _steps_over),
    "local-reads-ahead": Bug("D1", "a local reader takes the open bucket for a closed one", local.LocalReader, "look",
                             _local_sees(lambda view: replace(view, main=view.main + 1))),
    "local-forgets-undo": Bug("D2", "a local reader gets corrections without UNDO", local.LocalReader, "look",
                              _local_forgets_undo),
    "local-never-closes": Bug("D3", "a local reader does not notice that its producer is STABLE", local.LocalReader,
                              "look", _local_sees(_reported(StreamState.STABILIZATION))),
    "local-goes-on": Bug("D4", "a local reader does not notice a failure during recovery", local.LocalReader, "_news",
                         lambda right: lambda self, branch, report: right(
                             self, branch, replace(report, state=StreamState.STABILIZATION)), "relapse"),
    "local-takes-branch-for-over": Bug("D15", "a local reader ends with a branch once it was corrected, whatever is "
                                       "reported", local.LocalReader, "look",
                                       _local_sees(lambda view: replace(view, report=None)), "relapse"),
    "local-tells-once": Bug("D15", "a local reader does not get again what an UNDO took back", local.LocalReader,
                            "_news", _local_tells_once, "relapse"),
    "local-follows-the-dead": Bug("D15", "a local reader follows the branch of a dead replica", local.LocalReader,
                                  "_lives", _constant(True), "orphan"),
}  # fmt: skip


@contextmanager
def planted(name: str) -> Iterator[Bug]:
    """Let one bug loose while the context is open."""
    bug = BUGS[name]
    right = bug.owner.__dict__[bug.name]
    setattr(bug.owner, bug.name, bug.make(right))
    try:
        yield bug
    finally:
        setattr(bug.owner, bug.name, right)
