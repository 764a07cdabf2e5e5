"""One stream as it comes, for pages that are open: the picture of `recording`, kept small enough to run for months.

Rules:
1. A tuple is new, and has a latency, as `recording` says in its rules 1 and 2. Counts are exact from when the picture
   began; a point stands for the tuples of one bucket that were seen at one look.
2. The last `POINTS_MAX` points are kept. A failure is an *episode*: from some seconds before its first tentative tuple
   to some seconds after REC_DONE, kept beside them so that it can be looked at a day later. The last `EPISODES_MAX` are
   kept; one that grows beyond its room is thinned out, controls never.
3. Text is made once for all who look (`feed`): a page more costs a write to its socket.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

import msgspec

from holdfast.console.feed import Feed
from holdfast.model.time import BEGINNING_US, END_OF_TIME_US, SECOND_US
from holdfast.model.tuples import TupleType
from holdfast.stream.store import Stream
from holdfast.stream.watcher import Counted, Watcher

#: Ten minutes of a stream with two buckets a second, seen four times a second.
POINTS_MAX = 4_096
#: More at one look is a replay: neighbouring buckets share a point, so that it does not push everything else out.
_POINTS_PER_LOOK_MAX = 128
#: A point is some hundred bytes: two megabytes for each stream that fails all the time.
EPISODES_MAX, _EPISODE_POINTS_MAX = 16, 1_024
_BEFORE_US, _AFTER_US = 15 * SECOND_US, 8 * SECOND_US


class Point(NamedTuple):
    """Tuples of one kind that were seen together. Milliseconds: what a page draws needs no more."""

    wall_ms: int
    kind: int
    stime_ms: int | None
    tuples: int
    latency_ms: int | None
    """The largest, if they are new."""
    buckets: int = 1
    """How many it lies across: more than one in a replay, whose points are shared (`merged`)."""


class Episode:
    """One failure as readers of the stream saw it."""

    def __init__(self, number: int, points: list[Point], began_us: int) -> None:
        self.number, self.points, self.began_us = number, points, began_us
        self.done_us: int | None = None

    def span(self) -> tuple[int, int, int | None]:
        """Its number, and the milliseconds from its first point to its last; no end yet while it goes on."""
        until_us = None if self.done_us is None else self.done_us + _AFTER_US
        return self.number, (self.began_us - _BEFORE_US) // 1000, None if until_us is None else until_us // 1000

    def add(self, points: list[Point]) -> None:
        """Rule 2."""
        self.points += points
        while len(self.points) > _EPISODE_POINTS_MAX:
            data = [point for point in self.points if point.stime_ms is not None]
            if len(data) < 2:
                return
            dropped = set(map(id, data[1::2]))
            self.points = [point for point in self.points if id(point) not in dropped]


class LivePicture:
    """The picture of one stream of this machine."""

    def __init__(self, stream: Stream) -> None:
        self.name, self.bucket_us = stream.name, stream.definition.bucket_us
        self._watcher = Watcher(stream)
        self._points: deque[Point] = deque(maxlen=POINTS_MAX)
        self._new: list[Point] = []
        self.episodes: deque[Episode] = deque(maxlen=EPISODES_MAX)
        self._numbers = 0
        self._open: Episode | None = None
        self.stable = self.tentative = self.standing = self.undos = self.rec_dones = 0
        self._newest_us: int | None = None
        self._new_from_us = BEGINNING_US
        self._latency_ms: int | None = None
        self._correcting = False
        self.feed = Feed(self._whole)

    # What happens ---------------------------------------------------------------------------------------------------

    def look(self, wall_us: int) -> list[tuple[TupleType, int]]:
        """See what has come; tells the first tentative tuple, UNDO and REC_DONE, each with its episode."""
        happened: list[tuple[TupleType, int]] = []
        fresh: list[Point] = []
        for counted in merged(list(self._watcher.look())):
            point = self._point(counted, wall_us)
            fresh.append(point)
            if counted.kind is TupleType.TENTATIVE:
                if self._begin(wall_us) and self._open is not None:
                    happened.append((counted.kind, self._open.number))
            elif counted.kind in (TupleType.UNDO, TupleType.REC_DONE):
                happened.append((counted.kind, self._open.number if self._open is not None else 0))
                if counted.kind is TupleType.REC_DONE and self._open is not None:
                    self._open.done_us = wall_us
        self._points += fresh
        self._new += fresh
        if self._open is not None:
            self._open.add(fresh)
            if self._open.done_us is not None and wall_us - self._open.done_us > _AFTER_US:
                self._open = None
        return happened

    def _begin(self, wall_us: int) -> bool:
        """Whether a failure begins with this tentative tuple."""
        if self._open is not None and self._open.done_us is None:
            return False
        self._numbers += 1
        since_ms = (wall_us - _BEFORE_US) // 1000
        before = [point for point in self._points if point.wall_ms >= since_ms]
        self._open = Episode(self._numbers, before[-_EPISODE_POINTS_MAX // 2 :], wall_us)
        self.episodes.append(self._open)
        return True

    def _point(self, counted: Counted, wall_us: int) -> Point:
        kind, low, high = counted.kind, counted.stime_min_us, counted.stime_max_us
        if low is None or high is None:
            self._control(kind)
            return Point(wall_us // 1000, int(kind), None, 1, None)
        self._newest_us = high if self._newest_us is None else max(high, self._newest_us)
        if kind is TupleType.TENTATIVE:
            self.tentative += counted.tuples
            self.standing += counted.tuples
        else:
            self.stable += counted.tuples
        latency_ms = (wall_us - low) // 1000 if low >= self._new_from_us else None
        if latency_ms is not None:
            self._latency_ms = latency_ms
        buckets = high // self.bucket_us - low // self.bucket_us + 1
        return Point(wall_us // 1000, int(kind), low // 1000, counted.tuples, latency_ms, buckets)

    def _control(self, kind: TupleType) -> None:
        if kind is TupleType.UNDO:
            self.undos += 1
            self.standing, self._correcting = 0, True
            if self._newest_us is not None:
                self._new_from_us = (self._newest_us // self.bucket_us + 1) * self.bucket_us
        else:
            self.rec_dones += 1
            self._correcting = False

    # What there is to see -------------------------------------------------------------------------------------------

    @property
    def state(self) -> str:
        """As a reader sees the stream."""
        if self.standing:
            return "TENTATIVE"
        return "CORRECTING" if self._correcting else "STABLE"

    def facts(self) -> dict[str, Any]:
        """What the list of streams shows; leaves out what is not known."""
        boundary_us = self._watcher.boundary_us
        said: dict[str, Any] = {
            "state": self.state, "stable": self.stable, "tentative": self.tentative, "standing": self.standing,
            "undos": self.undos, "rec_dones": self.rec_dones, "episodes": [e.span() for e in self.episodes],
        }  # fmt: skip
        if self._watcher.begun_us > BEGINNING_US:
            said["from_ms"] = self._watcher.begun_us // 1000
        if BEGINNING_US < boundary_us < END_OF_TIME_US:
            said["boundary_ms"] = boundary_us // 1000
        if boundary_us >= END_OF_TIME_US:
            said["ended"] = True
        return said if self._latency_ms is None else {**said, "latency_ms": self._latency_ms}

    def tell(self) -> None:
        """Hand what is new to those who look, as one text."""
        if self._new:
            new, self._new = self._new, []
            self.feed.publish("points", lambda: msgspec.json.encode({**self.facts(), "points": new}))

    def _whole(self) -> tuple[str, bytes]:
        known = {**self.facts(), "stream": self.name, "bucket_ms": self.bucket_us / 1000, "points": list(self._points)}
        return "picture", msgspec.json.encode(known)

    def episode(self, number: int) -> bytes | None:
        """A failure of the past as JSON; None if it is not kept any more."""
        for known in self.episodes:
            if known.number == number:
                said = {"stream": self.name, "episode": number, "bucket_ms": self.bucket_us / 1000,
                        "began_ms": known.began_us // 1000, "points": known.points}  # fmt: skip
                return msgspec.json.encode(
                    said if known.done_us is None else {**said, "done_ms": known.done_us // 1000}
                )
        return None

    def close(self) -> None:
        self.feed.end()
        self._watcher.close()


def merged(counted: list[Counted]) -> list[Counted]:
    """The same in at most so many parts; counts stay exact and nothing moves past a control."""
    share = -(-len(counted) // _POINTS_PER_LOOK_MAX)
    if share < 2:
        return counted
    parts: list[Counted] = []
    room = 0
    for one in counted:
        last = parts[-1] if parts else None
        low, high = one.stime_min_us, one.stime_max_us
        joins = last is not None and last.kind is one.kind and low is not None and high is not None and room > 0
        if joins and last is not None and last.stime_min_us is not None and last.stime_max_us is not None:
            assert low is not None
            assert high is not None
            both = min(low, last.stime_min_us), max(high, last.stime_max_us)
            parts[-1] = Counted(one.kind, last.tuples + one.tuples, *both)
            room -= 1
        else:
            parts.append(one)
            room = share - 1
    return parts
