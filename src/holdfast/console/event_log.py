"""A log of what happened, for people: failures, forks, corrections, movements. Bounded, in memory.

It is made of the difference between two looks, so what came and went between them is not told; UNDO and REC_DONE are
told by the pictures, each as it came. Each names the stream whose picture shows it: the results that it concerns. Which
failure of that stream it belongs to is for the page to find, by the time: a link is cut before anything is tentative.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import msgspec

from holdfast.model.tuples import TupleType

#: Some failures of every node of a large application; 100 kB for a page that opens.
EVENTS_MAX = 500
Kind = Literal["failure", "fork", "correction", "stable", "cut", "heal", "movement", "source", "sink", "state"]
_KINDS: Mapping[str, Kind] = {
    "STABLE": "stable", "UP_FAILURE": "failure", "FAILURE": "failure", "FAILED": "failure",
    "STABILIZATION": "correction",
}  # fmt: skip
_TOLD: Mapping[TupleType, tuple[Kind, str]] = {
    TupleType.TENTATIVE: ("failure", "tentative results begin"),
    TupleType.UNDO: ("correction", "UNDO: what was tentative is taken back"),
    TupleType.REC_DONE: ("stable", "REC_DONE: everything is corrected"),
}
Document = Mapping[str, Any]


class Happened(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of the log."""

    id: int
    at_ms: int
    kind: Kind
    text: str
    stream: str | None = None
    """Whose picture shows it."""
    episode: int | None = None
    """The failure of that stream, where the stream itself has said so."""


class EventLog:
    """The last so many events."""

    def __init__(self, events_max: int = EVENTS_MAX) -> None:
        self.events: deque[Happened] = deque(maxlen=events_max)
        self._count = 0

    def compare(self, before: Document, after: Document) -> list[Happened]:
        """Note what has changed from one look to the next."""
        at_ms = int(after["at_ms"])
        return [self._add(at_ms, *told) for told in _changes(before, after)]

    def control(self, at_ms: int, stream: str, kind: TupleType, episode: int) -> Happened:
        """A stream has said something about itself."""
        sort, text = _TOLD[kind]
        return self._add(at_ms, sort, f"{stream}: {text}", stream, episode or None)

    def take_over(self, event: Happened, episode: int | None) -> Happened:
        """An event of another log, under a number of ours."""
        return self._add(event.at_ms, event.kind, event.text, event.stream, episode)

    def _add(
        self, at_ms: int, kind: Kind, text: str, stream: str | None = None, episode: int | None = None
    ) -> Happened:
        self._count += 1
        event = Happened(self._count, at_ms, kind, text, stream, episode)
        self.events.append(event)
        return event


Told = tuple[Kind, str, str | None]


def _changes(before: Document, after: Document) -> Iterator[Told]:
    for cut in after["cuts"]:
        if cut not in before["cuts"]:
            yield "cut", f"{cut} was cut", _results_behind(cut, after)
    for cut in before["cuts"]:
        if cut not in after["cuts"]:
            yield "heal", f"{cut} was healed", _results_behind(cut, after)
    for name, now in after["replicas"].items():
        yield from _replica(name, before["replicas"].get(name) or {}, now)
    for sort in ("sources", "sinks"):
        for name, now in after[sort].items():
            then = (before[sort].get(name) or {}).get("state")
            if then is not None and then != now.get("state"):
                because = f": {now['why']}" if now.get("why") else ""
                yield "source" if sort == "sources" else "sink", f"{name} is {now['state']}{because}", now.get("stream")
    for participant, load in (after.get("loads") or {}).items():
        yield from _movements((before.get("loads") or {}).get(participant) or {}, load, after.get("nodes") or {})


def _results_behind(cut: str, after: Document) -> str | None:
    """The first results that a link which was cut keeps inputs from; else the stream that it is named after."""
    stream, arrow, reader = cut.partition(">")
    ends = {reader} if arrow else set(cut.split("-"))
    for node in (after.get("nodes") or {}).values():
        here = {replica.rpartition("@")[2] for replica in node["replicas"]}
        if here & ends and (not arrow or stream in node["inputs"]):
            return str(node["output"])
    return stream if stream in after["streams"] else None


def _replica(name: str, then: Document, now: Document) -> Iterator[Told]:
    stream = (now.get("output") or {}).get("stream")
    if then.get("state") is not None and then["state"] != now["state"]:
        because = f": {now['why']}" if now.get("why") else ""
        yield _KINDS.get(now["state"], "state"), f"{name} is {now['state']}{because}", stream
    fork, forked = now.get("fork") or {}, then.get("fork") or {}
    if forked and fork.get("state") != forked.get("state"):
        now_is = "is over" if fork.get("state") == "none" else f"is {fork.get('state')}"
        yield "fork", f"{name}: fork {fork.get('id')} {now_is}", stream
    for source, state in now["inputs"].items():
        known = (then.get("inputs") or {}).get(source)
        if known is not None and bool(known.get("failing")) != bool(state.get("failing")):
            missing = state.get("failing")
            told = f"{name}: {source} {'is missing' if missing else 'is back'}"
            yield "failure" if missing else "heal", told, stream or source


def _movements(then: Document, now: Document, nodes: Document) -> Iterator[Told]:
    for task, facts in (now.get("tasks") or {}).items():
        known = (then.get("tasks") or {}).get(task)
        if known is not None and known.get("at") != facts.get("at"):
            told = f"{task} moved from {known.get('at')} to {facts.get('at')}"
            yield "movement", told, nodes.get(task, {}).get("output")
