"""Who is there, and what do they say of their streams? (003 §4.5.3, figure 4-10)

Rules:
1. Every keepalive interval each upstream replica is asked. `MISSED_MAX` requests in a row without an answer make all
   its streams FAILURE.
2. A failed replica is still asked: figure 4-10, taken literally, stops asking and could never hear of its return.
3. An answer is believed at once and until the next one.
"""

from __future__ import annotations

from holdfast.protocol.dpc.messages import StreamReport
from holdfast.protocol.dpc.plan import MISSED_MAX


class Monitor:
    """The last word of each upstream replica about each of its streams."""

    __slots__ = ("_missed", "_reports", "replicas")

    def __init__(self, replicas: tuple[str, ...]) -> None:
        self.replicas = replicas
        #: A replica that was never heard has, until it answers, failed.
        self._missed = dict.fromkeys(replicas, MISSED_MAX)
        self._reports: dict[tuple[str, str], StreamReport] = {}

    def ask(self) -> tuple[str, ...]:
        """One round of requests has just gone unanswered so far; returns who failed by that."""
        failed = []
        for replica in self.replicas:
            self._missed[replica] += 1
            if self._missed[replica] == MISSED_MAX + 1:
                failed.append(replica)
        return tuple(failed)

    def answer(self, replica: str, reports: tuple[StreamReport, ...]) -> bool:
        """Take in an answer. True if the replica came back or a stream changed state; mere progress is no news."""
        if replica not in self._missed:
            return False
        changed = self._missed[replica] > MISSED_MAX
        self._missed[replica] = 0
        for report in reports:
            key = (replica, report.stream)
            known = self._reports.get(key)
            if known is None or known.state != report.state or known.fresh != report.fresh:
                changed = True
            self._reports[key] = report
        return changed

    def alive(self, replica: str) -> bool:
        """Whether the replica answered lately."""
        return self._missed[replica] <= MISSED_MAX

    def report(self, replica: str, stream: str) -> StreamReport | None:
        """Its last word about the stream, or None if it has failed or never spoke of it."""
        return self._reports.get((replica, stream)) if self._missed[replica] <= MISSED_MAX else None
