"""Who is there, and what do they say of their streams? (003 §4.5.3, figure 4-10)

Rules:
1. Every keepalive interval each upstream replica is asked. `MISSED_MAX` requests in a row without an answer make all
   its streams FAILURE.
2. A failed replica is still asked: figure 4-10, taken literally, stops asking and could never hear of its return.
3. An answer is believed at once and until the next one.
4. From the answers a reader learns how often a boundary moves: a source moves it with every bucket, a query with every
   batch that it commits, a second or more apart. Only steps between two answers that say STABLE count, and a single
   long one counts no more than twice the next: it was a failure rather than a habit. The producer could say it
   itself, but would know no better, and not after a start of its own.
"""

from __future__ import annotations

from collections import deque

from holdfast.protocol.dpc.messages import StreamReport
from holdfast.protocol.dpc.plan import MISSED_MAX
from holdfast.protocol.dpc.states import StreamState

#: Steps that are remembered: half a minute and more of a query with small batches. Fewer would forget how long a batch
#: takes now and then, more would stay patient long after a time of heavy load.
STEPS_KEPT = 64


class Cadence:
    """How often one boundary of one producer moves (rule 4)."""

    __slots__ = ("_gaps", "_stepped_us", "us")

    def __init__(self) -> None:
        self._gaps: deque[int] = deque(maxlen=STEPS_KEPT)
        self._stepped_us: int | None = None
        #: What it takes from one step to the next, at most; None while fewer than three were seen.
        self.us: int | None = None

    def stepped(self, now_us: int) -> None:
        """The boundary has moved."""
        if self._stepped_us is not None:
            self._gaps.append(now_us - self._stepped_us)
            if len(self._gaps) > 1:
                second, first = sorted(self._gaps)[-2:]
                self.us = min(first, 2 * second)
        self._stepped_us = now_us

    def interrupted(self) -> None:
        """How long it stands still from here on says nothing about quiet times."""
        self._stepped_us = None


class Monitor:
    """The last word of each upstream replica about each of its streams."""

    __slots__ = ("_cadences", "_missed", "_reports", "replicas")

    def __init__(self, replicas: tuple[str, ...]) -> None:
        self.replicas = replicas
        #: A replica that was never heard has, until it answers, failed.
        self._missed = dict.fromkeys(replicas, MISSED_MAX)
        self._reports: dict[tuple[str, str], StreamReport] = {}
        self._cadences: dict[tuple[str, str], Cadence] = {}

    def watch(self, replicas: tuple[str, ...]) -> None:
        """From now on these; of those that stay, what is known stays known."""
        self.replicas = replicas
        self._missed = {replica: self._missed.get(replica, MISSED_MAX + 1) for replica in replicas}

    def ask(self) -> tuple[str, ...]:
        """One round of requests has just gone unanswered so far; returns who failed by that."""
        failed = []
        for replica in self.replicas:
            self._missed[replica] += 1
            if self._missed[replica] == MISSED_MAX + 1:
                failed.append(replica)
        return tuple(failed)

    def answer(self, replica: str, reports: tuple[StreamReport, ...], now_us: int) -> bool:
        """Take in an answer. True if the replica came back or a stream changed state; mere progress is no news."""
        if replica not in self._missed:
            return False
        changed = back = self._missed[replica] > MISSED_MAX
        self._missed[replica] = 0
        for report in reports:
            key = (replica, report.stream)
            known = self._reports.get(key)
            if known is None or known.state != report.state or known.fresh != report.fresh:
                changed = True
            self._reports[key] = report
            cadence = self._cadences.get(key)
            if cadence is None:
                cadence = self._cadences[key] = Cadence()
            if back or report.state != StreamState.STABLE or known is None or known.state != StreamState.STABLE:
                cadence.interrupted()
            if known is None or report.main_us > known.main_us:
                cadence.stepped(now_us)
        return changed

    def cadence_us(self, replica: str, stream: str) -> int | None:
        """How long the boundary of its stream stands still between two steps, as far as known."""
        cadence = self._cadences.get((replica, stream))
        return None if cadence is None else cadence.us

    def alive(self, replica: str) -> bool:
        """Whether the replica answered lately."""
        return self._missed.get(replica, MISSED_MAX + 1) <= MISSED_MAX

    def report(self, replica: str, stream: str) -> StreamReport | None:
        """Its last word about the stream, or None if it has failed or never spoke of it."""
        return self._reports.get((replica, stream)) if self.alive(replica) else None
