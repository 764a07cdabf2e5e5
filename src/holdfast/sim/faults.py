"""Faults, and the plan of a schedule: drawn up front from the seed, so that leaving one fault out shifts nothing else.

Rules:
1. A plan is a profile, a setting and a list of faults. Everything random in a run comes from the seed and a name.
2. Each seed enables a random subset of the kinds (swarm testing): rare combinations come up far sooner.
3. A fault strikes at its time, or, if it names a state, when the watched replica is next in that state: so failures
   during recovery and stabilisation are the rule, not the exception. If the state never comes it strikes all the same.
4. A crash may take the disk with it, of one replica of the first node: its twin has what it had. Half of those are
   taken out of the deployment, and added to it anew at the end.
5. All faults are healed at `HEAL_US`; what must hold then is liveness.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from holdfast.protocol.dpc.plan import Full, Policy, Stabilise

KINDS = ("crash", "pause", "cut", "oneway", "partition", "slow", "lose", "repeat", "silent", "hang")
SOURCES = ("s1", "s2", "s3")
FIRST = ("n1a", "n1b")
SECOND = ("n2a", "n2b")
CLIENT = "client"
#: Readers on the machine of a replica, and of which; the last one begins some time later than the others.
LOCAL = {"local-a": "n2a", "local-b": "n2b", "local-late": "n2a"}
REPLICAS = FIRST + SECOND
LINKS = (
    tuple((s, r) for s in SOURCES for r in FIRST)
    + tuple((a, b) for a in FIRST for b in SECOND)
    + tuple((r, CLIENT) for r in SECOND)
    + (FIRST, SECOND)
)

BUCKET_US = 100_000
#: Steps of the slowest input after which a suspicion is no longer one of the beginning.
LEARNED_STEPS = 4
#: Faults begin in this span and are all healed at its end.
CALM_US = 800_000
HEAL_US = 4_600_000
#: A run may take so long after the healing before it counts as stuck.
SETTLE_US = 14_000_000


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong."""

    kind: str
    targets: tuple[str, ...]
    start_us: int
    length_us: int
    noticed: bool = False
    """Whether the ends of a broken connection are told."""
    watch: str = ""
    when: str = ""
    """If set, the fault waits from `start_us` until replica `watch` is in this state."""
    disk: bool = False
    """Of a crash: the disk is gone as well."""
    left: bool = False
    """And the replica is taken out of the deployment until it comes back."""


#: What the start of a fork takes. With slow ones a suspicion is too late to begin, and one is kept ready.
_START_US = (50_000, 250_000)
_SLOW_START_US = (800_000, 1_100_000)


@dataclass(frozen=True, slots=True)
class Setting:
    """How the diagram is deployed in this schedule."""

    delay_us: int = 1_000_000
    stabilise: Stabilise = Stabilise.FORK
    during_failure: Policy = Policy.PROCESS
    during_stabilisation: Policy = Policy.PROCESS
    rows: int = 9
    """The most tuples of one bucket of one source."""
    capacity_us: int | None = None
    full: Full = Full.BLOCK
    window: int | None = None
    blocking: bool = False
    bucket_cost_us: int = 4_000
    """What a bucket costs a query: with 50,000 a replica that fell behind catches up at half the speed of time."""
    batch_us: int = 15_000
    """What a batch costs a query beside its buckets: long ones make boundaries move seldom and far."""
    start_us: tuple[int, int] = _START_US
    """The least and the most that the start of a fork takes."""
    warm: float = 0.0
    """The share of time for keeping a fork ready; 0: none is."""
    promises: tuple[int, ...] = (1, 1, 1)
    """Per source, after how many buckets it moves its boundary."""

    @property
    def learned_us(self) -> int:
        """By then who has just started knows how seldom its inputs move, and has the fork that it keeps ready."""
        return max(LEARNED_STEPS * max(BUCKET_US * max(self.promises), self.batch_us), self.start_us[1])


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything about one schedule."""

    seed: int
    profile: str
    setting: Setting
    faults: tuple[Fault, ...]


#: Profile → weight. All but the first make the precondition of one invariant hold on purpose.
PROFILES = {
    "mixed": 60,
    "short": 6,
    "masked": 6,
    "static": 7,
    "rotating": 5,
    "relapse": 6,
    "overflow": 6,
    "blackout": 4,
    "calm": 4,
    "orphan": 4,
}


def draw(seed: int, profile: str = "") -> Plan:
    """The plan that belongs to a seed; `profile` asks for a kind of plan instead of leaving it to chance."""
    rng = Random(f"{seed}/plan")
    drawn = rng.choices(tuple(PROFILES), tuple(PROFILES.values()))[0]
    profile = profile or drawn
    setting = _setting(rng, profile)
    faults = _on_disk(Random(f"{seed}/disk"), _DRAW[profile](rng, setting))
    return Plan(seed, profile, setting, tuple(faults))


def _on_disk(rng: Random, faults: list[Fault]) -> list[Fault]:
    """Rule 4. Of the first node, because readers of the second look at its disks."""
    victim, drawn = rng.choice(FIRST), []
    for fault in faults:
        lost = (fault.kind, fault.targets) == ("crash", (victim,)) and rng.random() < 0.8
        drawn.append(replace(fault, disk=True, left=rng.random() < 0.5) if lost else fault)
    return drawn


#: Cadences of a calm schedule: from ten batches a second to one in two seconds, twice the delay and more; sources that
#: move with every bucket, and some whose first step, of which nobody can know, comes just before the delay is over.
_BATCH_US = (15_000, 150_000, 400_000, 900_000, 2_000_000)
_PROMISES = (1, 2, 3, 5, 7)


def _setting(rng: Random, profile: str) -> Setting:
    stabilise = Stabilise.STAGGER if rng.random() < 0.45 else Stabilise.FORK
    policies = (Policy.PROCESS, Policy.PROCESS, Policy.DELAY)
    failure, stabilising = rng.choice(policies), rng.choice(policies)
    delay_us = rng.choice((800_000, 1_000_000, 1_200_000))
    cost_us = rng.choices((4_000, 20_000, 45_000), (60, 25, 15))[0]
    # Who starts slowly must keep a fork ready, and what that has to catch up on must not cost the delay; some keep one
    # all the same, however much a bucket costs.
    slow = cost_us == 4_000 and rng.random() < 0.4
    start_us, warm = _SLOW_START_US if slow else _START_US, 0.5 if slow or rng.random() < 0.3 else 0.0
    usual = Setting(delay_us, stabilise, failure, stabilising, start_us=start_us, warm=warm)
    if profile == "relapse":
        cost_us = 20_000
    if profile == "calm":
        promises = tuple(rng.choice(_PROMISES) for _ in SOURCES)
        return replace(usual, batch_us=rng.choice(_BATCH_US), promises=promises)
    if profile != "overflow":
        return replace(usual, blocking=rng.random() < 0.08, bucket_cost_us=cost_us)
    if rng.random() < 0.5:
        return replace(usual, rows=16, capacity_us=2_000_000)
    return replace(usual, capacity_us=2_500_000, full=Full.KEEP_LAST, window=5)


def _one(rng: Random, kind: str, start_us: int, length_us: int, hosts: tuple[str, ...] = ()) -> Fault:
    """One fault of a kind, aimed at random or at `hosts`."""
    noticed = rng.random() < 0.5
    if kind in ("crash", "pause", "hang"):
        target = rng.choice(hosts or (REPLICAS * 3 + SOURCES if kind != "hang" else REPLICAS))
        return Fault(kind, (target,), start_us, length_us, noticed)
    if kind == "silent":
        return Fault(kind, (rng.choice(SOURCES),), start_us, length_us, noticed)
    if kind == "partition":
        pool = list(hosts or (SOURCES + REPLICAS))
        group = tuple(sorted(rng.sample(pool, rng.randint(1, min(3, len(pool))))))
        return Fault(kind, group, start_us, length_us, noticed)
    link = rng.choice([pair for pair in LINKS if not hosts or pair[0] in hosts or pair[1] in hosts])
    if kind == "oneway" and rng.random() < 0.5:
        link = (link[1], link[0])
    return Fault(kind, link, start_us, length_us, noticed)


def _mixed(rng: Random, setting: Setting) -> list[Fault]:
    kinds = rng.sample(KINDS, rng.randint(3, 6))
    faults: list[Fault] = []
    if rng.random() < 0.5:
        # Something that no replica can mask, so that the others find a node failing or stabilising.
        length = setting.delay_us + rng.randrange(200_000, 2_000_000)
        faults.append(Fault("partition", (rng.choice(SOURCES),), rng.randrange(CALM_US, 2_000_000), length))
    for _ in range(rng.randint(3, 7)):
        start = rng.randrange(CALM_US, HEAL_US - 1_000_000)
        length = rng.choice((rng.randrange(50_000, 600_000), rng.randrange(600_000, 3_500_000)))
        fault = _one(rng, rng.choice(kinds), start, length)
        if rng.random() < 0.4:
            faults += _on_state(rng, fault)
        else:
            faults.append(fault)
    return faults


def _on_state(rng: Random, fault: Fault) -> list[Fault]:
    """Let the fault wait for a state of a replica that it hits; recovery needs a crash first."""
    watch = next((t for t in fault.targets if t in REPLICAS), None) or rng.choice(FIRST)
    when = rng.choice(("RECOVERING", "UP_FAILURE", "STABILIZATION", "STABILIZATION"))
    kept = Fault(fault.kind, fault.targets, fault.start_us, fault.length_us, fault.noticed, watch, when)
    if when != "RECOVERING":
        return [kept]
    start = max(CALM_US, fault.start_us - 200_000)
    return [Fault("crash", (watch,), start, rng.randrange(100_000, 700_000), True), kept]


def _short(rng: Random, setting: Setting) -> list[Fault]:
    """Failures that each end well before the delay runs out, with time to recover in between."""
    kinds = ("cut", "oneway", "silent", "pause", "partition")
    longest = setting.delay_us - 600_000
    step = (HEAL_US - CALM_US) // 3
    return [_one(rng, rng.choice(kinds), CALM_US + i * step, rng.randrange(60_000, longest)) for i in range(3)]


def _masked(rng: Random, setting: Setting) -> list[Fault]:
    """Anything at all, but only to one replica of each node: the others form a stable tree throughout."""
    victims: tuple[str, ...] = (rng.choice(FIRST), rng.choice(SECOND))
    kinds = ("crash", "pause", "cut", "oneway", "partition", "slow", "lose", "repeat", "hang")
    faults = []
    for _ in range(rng.randint(3, 5)):
        start = rng.randrange(CALM_US, HEAL_US - 1_000_000)
        faults.append(_one(rng, rng.choice(kinds), start, rng.randrange(100_000, 3_000_000), victims))
    return faults


def _static(rng: Random, setting: Setting) -> list[Fault]:
    """Several things break at once and stay broken until the end."""
    if rng.random() < 0.5:
        victims: tuple[str, ...] = (rng.choice(FIRST), rng.choice(SECOND))
        kinds: tuple[str, ...] = ("crash", "cut", "partition")
    else:
        victims, kinds = (), ("crash", "cut", "cut", "partition", "silent")
    return [_one(rng, rng.choice(kinds), CALM_US, HEAL_US, victims) for _ in range(rng.randint(3, 4))]


def _relapse(rng: Random, setting: Setting) -> list[Fault]:
    """One input comes back after a long failure, and another fails while the corrections are under way."""
    first, second = rng.sample(SOURCES, 2)
    watch = rng.choice(REPLICAS)
    long = setting.delay_us + rng.randrange(300_000, 700_000)
    return [
        Fault("partition", (first,), CALM_US, long, rng.random() < 0.5),
        Fault("partition", (second,), CALM_US, 3_000_000, False, watch, "STABILIZATION"),
        _one(rng, "slow", CALM_US + rng.randrange(2_000_000), 500_000),
    ]


def _rotating(rng: Random, setting: Setting) -> list[Fault]:
    """Some input is always cut off, but each one comes back in between (property 7)."""
    turn = 700_000
    order = rng.sample(SOURCES, 3)
    count = (HEAL_US - CALM_US) // turn
    return [Fault("partition", (order[i % 3],), CALM_US + i * turn, turn + 150_000) for i in range(count)]


def _blackout(rng: Random, setting: Setting) -> list[Fault]:
    """Every replica of every node dies at about the same time: only disks are left (beyond the seeds, §5.8.5)."""
    start = CALM_US + rng.randrange(1_500_000)
    every = [
        Fault("crash", (host,), start + rng.randrange(50_000), rng.randrange(300_000, 1_500_000), rng.random() < 0.5)
        for host in REPLICAS
    ]
    return [*every, _one(rng, rng.choice(KINDS), CALM_US + rng.randrange(1_000_000), 1_500_000)]


def _orphan(rng: Random, setting: Setting) -> list[Fault]:
    """A replica dies for long while it has a branch: readers on its machine find what it has left there."""
    start = CALM_US + setting.delay_us + rng.randrange(500_000, 900_000)
    return [
        Fault("partition", (rng.choice(SOURCES),), CALM_US, HEAL_US),
        Fault("crash", ("n2a",), start, rng.randrange(1_700_000, 2_200_000), rng.random() < 0.5),
        _one(rng, rng.choice(KINDS), start, 500_000),
    ]


def _overflow(rng: Random, setting: Setting) -> list[Fault]:
    """A failure that lasts longer than the buffers do, and some others."""
    long = Fault("partition", (rng.choice(SOURCES + REPLICAS),), CALM_US, HEAL_US)
    return [long, *(_one(rng, rng.choice(("cut", "pause")), CALM_US, 1_000_000) for _ in range(2))]


def _calm(rng: Random, setting: Setting) -> list[Fault]:
    """Nothing at all goes wrong: whatever is suspected is suspected without reason (D16)."""
    return []


_DRAW = {
    "mixed": _mixed,
    "short": _short,
    "masked": _masked,
    "static": _static,
    "rotating": _rotating,
    "relapse": _relapse,
    "overflow": _overflow,
    "blackout": _blackout,
    "calm": _calm,
    "orphan": _orphan,
}
