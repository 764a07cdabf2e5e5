"""D5, D6, D7, D13, D16: how late, how often tentative, and whether things move at all."""

from __future__ import annotations

from typing import Any

from holdfast.protocol.dpc.plan import Full
from holdfast.sim.checks.health import Health, well
from holdfast.sim.faults import BUCKET_US, CALM_US, CLIENT, FIRST, HEAL_US, SECOND, SOURCES, Fault, Plan
from holdfast.sim.observe import Observer
from holdfast.sim.replica import BATCH_MAX

#: proc(t): the most that a bucket takes from its end to the client when nothing fails, apart from what the queries
#: cost. `tests/sim` measures it anew.
PROC_US = 150_000
#: SUnions on the longest path.
DEPTH = 2
#: What the grain of timers adds.
_SLACK_US = 100_000


class D5(Observer):
    """While a tree exists, every new tuple comes within depth × delay of its latency without faults."""

    label = "D5"

    def __init__(self, plan: Plan, health: Health) -> None:
        super().__init__()
        self._plan = plan
        self._health = health
        self._first_us: dict[int, int] = {}
        self._end_us = 0

    def on_deliver(self, now_us: int, reader: str, kind: str, bucket: int, rows: Any) -> None:
        """When a bucket first came, in whatever form."""
        if kind in ("INSERTION", "TENTATIVE"):
            self._first_us.setdefault(bucket, now_us)

    def finish(self, now_us: int) -> None:
        """Judge every bucket whose time was up before the end."""
        setting = self._plan.setting
        if setting.capacity_us is not None:
            return
        # A bucket may wait in line behind one whole batch on each node; that is load, not the failure's doing.
        batch_us = setting.batch_us + max(BATCH_MAX, 2 * setting.batch_us // BUCKET_US) * setting.bucket_cost_us
        bound_us = PROC_US + DEPTH * (batch_us + setting.delay_us) + _SLACK_US
        # Nor is it the failure's doing how seldom boundaries move.
        bound_us += DEPTH * setting.batch_us + max(setting.promises) * BUCKET_US
        paths = self._paths()
        for bucket in range(max(CALM_US, setting.learned_us) // BUCKET_US, (now_us - bound_us) // BUCKET_US):
            end_us = (bucket + 1) * BUCKET_US
            if not any(well(ill, end_us - BUCKET_US, end_us + bound_us) for ill in paths):
                continue
            self.checked += 1
            first_us = self._first_us.get(bucket)
            if first_us is None or first_us - end_us > bound_us:
                when = "never" if first_us is None else f"{(first_us - end_us) / 1e6:.2f} s after its end"
                self.fail(end_us + bound_us, f"bucket {bucket} came {when}; {bound_us / 1e6:.2f} s are allowed")

    def _paths(self) -> list[list[tuple[int, int]]]:
        """A join needs its side: then only paths together with that source count."""
        found = []
        for first in FIRST:
            for second in SECOND:
                for source in SOURCES:
                    ill = self._health.path(source, first, second)
                    if self._plan.setting.blocking:
                        ill = ill + self._health.path("s1", first, second)
                    found.append(ill)
        return found


class D6(Observer):
    """Failures shorter than the delay, or masked by a stable replica, leave no tentative tuple."""

    label = "D6"

    def __init__(self, plan: Plan, health: Health) -> None:
        super().__init__()
        self._plan = plan
        self._health = health
        self._tentative: list[tuple[int, int]] = []

    def on_deliver(self, now_us: int, reader: str, kind: str, bucket: int, rows: Any) -> None:
        """Note every tentative bucket."""
        if kind == "TENTATIVE" and now_us >= self._plan.setting.learned_us:
            self._tentative.append((now_us, bucket))

    def finish(self, now_us: int) -> None:
        """Each one must have had a reason."""
        if self._plan.profile in ("short", "masked"):
            for time_us, bucket in self._tentative[:1]:
                self.fail(time_us, f"tentative bucket {bucket} although every failure was {self._plan.profile}")
        trees = self._health.trees().items()
        for time_us, bucket in self._tentative:
            for (first, second), ill in trees:
                if well(ill, time_us - self._plan.setting.delay_us, time_us):
                    self.fail(time_us, f"tentative bucket {bucket} although {first} and {second} were stable all along")
                    return
        self.checked += len(self._tentative)


class D7(Observer):
    """If faults stay as they are: a stable tree gives stable output, else a tentative tree gives tentative output."""

    label = "D7"

    def __init__(self, plan: Plan, health: Health) -> None:
        super().__init__()
        self._plan = plan
        self._kinds: set[str] = set()
        self._broken: set[str] = set()
        self._silent: set[str] = set()
        self._wanted: str | None = None

    def on_fault(self, now_us: int, fault: Fault, begins: bool) -> None:
        """What is broken until the end."""
        if self._plan.profile != "static" or not begins:
            return
        if fault.kind == "silent":
            self._silent.add(fault.targets[0])
        elif fault.kind == "crash":
            self._broken.add(fault.targets[0])
        elif fault.kind == "partition":
            group = set(fault.targets)
            everyone = (*SOURCES, *FIRST, *SECOND, CLIENT)
            self._broken |= {f"{a}-{b}" for a in everyone for b in everyone if (a in group) != (b in group)}
        else:
            a, b = fault.targets
            self._broken |= {f"{a}-{b}", f"{b}-{a}"}

    def _reaches(self, source: str, first: str, second: str) -> bool:
        path = (source, first, second, f"{source}-{first}", f"{first}-{second}", f"{second}-{CLIENT}")
        return not any(part in self._broken for part in path)

    def _tree(self) -> str:
        pairs = [(first, second) for first in FIRST for second in SECOND]
        for first, second in pairs:
            if not self._silent and all(self._reaches(s, first, second) for s in SOURCES):
                return "INSERTION"
        for first, second in pairs:
            reached = [s for s in SOURCES if self._reaches(s, first, second)]
            if reached and not (self._plan.setting.blocking and "s1" not in reached):
                return "TENTATIVE"
        return ""

    def on_deliver(self, now_us: int, reader: str, kind: str, bucket: int, rows: Any) -> None:
        """What comes near the end of the static time."""
        recent = HEAL_US - 2 * self._plan.setting.delay_us - 1_200_000
        if HEAL_US - 1_000_000 < now_us < HEAL_US and (bucket + 1) * BUCKET_US > recent:
            self._kinds.add(kind)

    def finish(self, now_us: int) -> None:
        """Compare with what the trees allow."""
        if self._plan.profile != "static":
            return
        self.checked += 1
        tree = self._tree()
        if tree and tree not in self._kinds:
            self.fail(HEAL_US, f"the best tree gives {tree}, the client received {sorted(self._kinds)}")
        if tree == "INSERTION" and "TENTATIVE" in self._kinds:
            self.fail(HEAL_US, "a stable tree exists, but the client received tentative tuples")


class D13(Observer):
    """If each input recovers between its failures, stable output keeps advancing, though one is always down."""

    label = "D13"

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self._plan = plan
        self._next = 0
        self._at_heal = 0

    def on_deliver(self, now_us: int, reader: str, kind: str, bucket: int, rows: Any) -> None:
        """How far stable output got before all was healed."""
        if kind == "INSERTION" and now_us < HEAL_US:
            self._at_heal = bucket + 1

    def finish(self, now_us: int) -> None:
        """It must have got on."""
        if self._plan.profile == "rotating" and self._plan.setting.full is Full.BLOCK:
            self.checked += 1
            if self._at_heal < CALM_US // BUCKET_US + 10:
                self.fail(HEAL_US, f"stable output stood at bucket {self._at_heal} when all was healed")


class D16(Observer):
    """Without a failure no replica leaves STABLE and no fork is released, however seldom its inputs move."""

    label = "D16"

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        #: Who has just started knows nothing of its inputs yet, and may be wrong.
        self._from_us = plan.setting.learned_us
        self._failed = False

    def on_fault(self, now_us: int, fault: Fault, begins: bool) -> None:
        """From here on suspicions may have a reason."""
        self._failed = True

    def on_commit(self, now_us: int, host: str, bucket: int, inputs: list[Any], rows: Any, state: Any) -> None:
        """Something went well."""
        if not self._failed and now_us >= self._from_us:
            self.checked += 1

    def on_state(self, now_us: int, host: str, before: str, after: str) -> None:
        """Nobody may leave STABLE."""
        if not self._failed and now_us >= self._from_us and before == "STABLE" and after != "DOWN":
            self.fail(now_us, f"{host} went from STABLE to {after} although nothing had failed")

    def on_fork(self, now_us: int, host: str, what: str, detail: Any) -> None:
        """No fork may get anything to do that is seen."""
        released = what == "extend" and any(item.emit for item in detail.buckets)
        if not self._failed and now_us >= self._from_us and released:
            self.fail(now_us, f"{host} released its fork although nothing had failed")
