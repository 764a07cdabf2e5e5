"""D1–D4: what a reader receives, in what order, and how it ends: the client, and each reader on a replica's machine."""

from __future__ import annotations

from typing import Any

from holdfast.sim.checks.health import Health
from holdfast.sim.diagram import Truth
from holdfast.sim.faults import BUCKET_US, CLIENT, HEAL_US, REPLICAS, SECOND, Plan
from holdfast.sim.observe import Observer

#: Stable output lags behind the sources by so many buckets in normal operation, at most, if they move with every bucket
#: and batches are short.
LAG_BUCKETS = 6


class D1(Observer):
    """The stable tuples are those of the run without faults: none lost, doubled, reordered, taken back."""

    label = "D1"

    def __init__(self, truth: Truth, reader: str = CLIENT) -> None:
        super().__init__()
        self.readers = (reader,)
        self._expected = truth.second
        self.next = 0

    def on_hole(self, now_us: int, host: str, first: int, upto: int) -> None:
        """A declared hole may be jumped."""
        if host in self.readers:
            self.next = max(self.next, upto)

    def on_deliver(self, now_us: int, reader: str, kind: str, bucket: int, rows: Any) -> None:
        """Compare with the oracle."""
        if kind == "UNDO" and bucket < self.next:
            self.fail(now_us, f"UNDO takes back stable bucket {bucket}; stable up to {self.next}")
        if kind != "INSERTION":
            return
        if bucket != self.next:
            self.fail(now_us, f"stable bucket {bucket} came where {self.next} was due")
        elif rows != self._expected.upto(bucket + 1)[bucket]:
            self.fail(now_us, f"stable bucket {bucket} differs from the run without faults")
        self.checked += len(rows or ())
        self.next = bucket + 1


class D2(Observer):
    """UNDO names the last stable tuple, takes back only tentative ones, and comes only if there are some."""

    label = "D2"

    def __init__(self, reader: str = CLIENT) -> None:
        super().__init__()
        self.readers = (reader,)
        self._next = 0
        self._tentative: set[int] = set()

    def on_hole(self, now_us: int, host: str, first: int, upto: int) -> None:
        """A declared hole may be jumped."""
        if host in self.readers:
            self._next = max(self._next, upto)

    def on_deliver(self, now_us: int, reader: str, kind: str, bucket: int, rows: Any) -> None:
        """Follow the reader's view."""
        if kind == "INSERTION":
            if any(held <= bucket for held in self._tentative):
                self.fail(now_us, f"stable bucket {bucket} came beside tentative ones that were not taken back")
            self._next = bucket + 1
        elif kind == "TENTATIVE":
            if bucket < self._next or bucket in self._tentative:
                self.fail(now_us, f"tentative bucket {bucket} came although the reader has it; stable: {self._next}")
            self._tentative.add(bucket)
        elif kind == "UNDO":
            if not self._tentative:
                self.fail(now_us, f"UNDO before bucket {bucket} although nothing tentative was sent")
            if bucket != self._next:
                self.fail(now_us, f"UNDO names bucket {bucket}; the first bucket that is not stable is {self._next}")
            self._tentative.clear()


class D3(Observer):
    """After healing, in bounded time, everything tentative is replaced and the corrections are closed."""

    label = "D3"

    def __init__(self, plan: Plan, reader: str = CLIENT) -> None:
        super().__init__()
        self.readers = (reader,)
        self._next = 0
        self._tentative: set[int] = set()
        self._open = False
        self._states: dict[str, str] = {}
        self._produced = 0
        setting = plan.setting
        self._lag = LAG_BUCKETS + max(setting.promises) - 1 + 4 * setting.batch_us // BUCKET_US

    def on_state(self, now_us: int, host: str, before: str, after: str) -> None:
        """Remember."""
        self._states[host] = after

    def on_produce(self, now_us: int, host: str, bucket: int, head: int, kept: int) -> None:
        """Remember how far the world has come."""
        self._produced = max(self._produced, head)

    def on_deliver(self, now_us: int, reader: str, kind: str, bucket: int, rows: Any) -> None:
        """Follow the reader's view."""
        if kind == "INSERTION":
            self._next = bucket + 1
        elif kind == "TENTATIVE":
            self._tentative.add(bucket)
        elif kind == "UNDO":
            self._tentative.clear()
            self._open = True
        else:
            self._open = False

    def settled(self, now_us: int) -> bool:
        """Whether the world is as if nothing had happened."""
        return (
            now_us > HEAL_US
            and not self._tentative
            and not self._open
            and self._next >= self._produced - self._lag
            and all(self._states.get(host) == "STABLE" for host in REPLICAS)
        )

    def finish(self, now_us: int) -> None:
        """It must have settled by now."""
        if not self.settled(now_us):
            self.fail(
                now_us,
                f"{self.readers[0]} not settled {(now_us - HEAL_US) / 1e6:.1f} s after healing: stable up to "
                f"{self._next} of {self._produced}, {len(self._tentative)} tentative, "
                f"corrections open: {self._open}, {self._states}",
            )


class D4(Observer):
    """No tentative tuple after REC_DONE unless something failed; corrections that stop are closed first."""

    label = "D4"
    #: If for so long nobody whom the reader reads was able to correct anything, corrections have stopped.
    PAUSE_US = 1_000_000

    def __init__(self, plan: Plan, health: Health, reader: str = CLIENT, producers: tuple[str, ...] = SECOND) -> None:
        super().__init__()
        self.readers, self._producers = (reader,), producers
        self._health = health
        self._learned_us = plan.setting.learned_us
        self._done_us: int | None = None
        self._correcting = False
        self._able: set[str] = set()
        self._able_us = 0
        self._undone = 0
        self._tentative = 0
        self._forced = False

    def on_state(self, now_us: int, host: str, before: str, after: str) -> None:
        """Who could bring corrections."""
        if host in self._producers:
            if after in ("STABLE", "STABILIZATION"):
                self._able.add(host)
            elif host in self._able:
                self._able.discard(host)
                self._able_us = now_us

    def on_deliver(self, now_us: int, reader: str, kind: str, bucket: int, rows: Any) -> None:
        """Follow the corrections."""
        if self._forced and kind != "TENTATIVE":
            self.fail(now_us, "REC_DONE came while tentative tuples were left, and no new failure followed")
        self._forced = False
        if kind == "TENTATIVE":
            self._tentative += 1
            if self._correcting and not self._able and now_us - self._able_us > self.PAUSE_US:
                self.fail(now_us, f"tentative bucket {bucket} while corrections have stopped; no REC_DONE was sent")
            known = now_us >= self._learned_us
            if known and self._done_us is not None and not self._health.failure_near(self._done_us - BUCKET_US, now_us):
                self.fail(now_us, f"tentative bucket {bucket} after REC_DONE although nothing failed")
        elif kind == "UNDO":
            if bucket < self._undone:
                self.fail(now_us, f"UNDO before bucket {bucket} reaches back before an earlier one at {self._undone}")
            self._correcting, self._undone, self._tentative = True, bucket, 0
        elif kind == "REC_DONE":
            if not self._correcting:
                self.fail(now_us, "REC_DONE without corrections before it")
            self._correcting, self._done_us = False, now_us
            self._forced = self._tentative > 0
