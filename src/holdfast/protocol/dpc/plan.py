"""What a deployment says about one replica or one client: frozen, checked, and built into a core.

Rules:
1. Durations are integer microseconds. `delay_us` is the X of 003 §4.1.1: the most that a failure may add to latency.
2. The detection time (keepalive × missed) must be well below the delay, or a switch to a stable replica would come
   after the first tentative tuple (003 §4.6.2: P1·P2 ≪ D).
3. Every input names all replicas that produce it, every output all readers that must acknowledge it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from holdfast.model.errors import UsageError
from holdfast.model.time import SECOND_US

#: P2 of figure 4-10. Shorter finds failures sooner and costs messages; the seeds use 100 ms.
KEEPALIVE_US = 100_000
#: P1 of figure 4-10: unanswered requests after which a replica counts as failed. Fewer mistakes a lost message for a
#: failure, more eats into the delay.
MISSED_MAX = 3
#: How long a tentative bucket, once its time is over, waits for inputs that still deliver but promise nothing (§5.1.4
#: used the same 300 ms).
SETTLE_US = 300_000
#: A fork whose root lies further behind main than this is thrown away and prepared again: it would spend the delay on
#: buckets that main already has.
FORK_LAG_MAX = 20
#: A fork that nobody needs any more is kept for this long. On a busy machine suspicions come in swarms, and a fork
#: started for each of them would keep the machine busy.
FORK_LINGER_US = 10 * SECOND_US
#: The longest delay for which a fork is kept ready. Finding a failure, starting a query and its first batch take a
#: second and a half, on a busy machine more; whoever can wait longer saves himself the fork.
WARM_DELAY_US = 2 * SECOND_US
#: The share of time that a fork which is kept ready may take, unless the user says otherwise.
WARM_SHARE = 0.05
#: A fork that is kept ready lies at most this far behind main. What it has not read is kept for it.
WARM_LAG_US = 60 * SECOND_US
#: With so few buckets left to correct, new buckets wait for the stable query instead of becoming tentative: otherwise
#: the fork would stay one bucket ahead for ever. Bounded by the delay, like every wait.
HANDOVER_BUCKETS = 4
#: Acknowledgements go out on every fifth keepalive, and at once if so many buckets wait for one: seldom in quiet times,
#: often while catching up, when producers may be out of room. An ack that is lost delays truncation until the next one.
ACK_KEEPALIVES = 5
ACK_BUCKETS = 8
#: A producer of which it is not known how often it moves is given so long at most, also by readers whose delay has no
#: end. A first batch on a busy machine takes some seconds.
UNKNOWN_US = 10 * SECOND_US


class Policy(Enum):
    """What to do with new buckets once the first delay has run out (003 §4.2, §5.4)."""

    PROCESS = "process"
    """As soon as the inputs that still work have delivered them. Best for chains and long failures."""
    DELAY = "delay"
    """Each one as late as the delay allows, less what a batch takes. Fewer tentative tuples in short failures of a
    single node."""
    SUSPEND = "suspend"
    """Not at all: consistency before availability."""


class Stabilise(Enum):
    """How news keep coming while main catches up."""

    FORK = "fork"
    """The replica's own fork goes on; nobody is asked."""
    STAGGER = "stagger"
    """A peer promises to stay behind, and the fork is given up (figure 4-12). Saves the second query."""


class Full(Enum):
    """What a bounded output buffer does when its readers do not acknowledge (§4.9.4)."""

    BLOCK = "block"
    """Stop producing; nothing is lost."""
    KEEP_LAST = "keep_last"
    """Drop the oldest, with notice; only for convergent-capable queries."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a boundary may stand still. Its producer's cadence is what it takes between two steps at most, or None
    while too few were seen."""

    dead_us: int
    """Who is silent for so long is dead."""
    bucket_us: int
    delay_us: int

    @property
    def least_us(self) -> int:
        """Enough for a producer that steps from bucket to bucket."""
        return self.dead_us + self.bucket_us

    def usual_us(self, cadence_us: int | None) -> int:
        """So long it stands still in quiet times."""
        return self.dead_us + max(self.bucket_us, cadence_us or 0)

    def doubt_us(self, cadence_us: int | None) -> int:
        """A producer that answers and says that all is well is doubted after twice its cadence: on a busy machine a
        batch takes that long now and then, and nothing is gained by doubting sooner. But in time for a switch to
        another replica within the delay, unless the cadence itself takes that long; so is one whose cadence is not
        known."""
        in_time_us = self.delay_us - self.dead_us
        if cadence_us is None:
            return max(self.least_us, min(in_time_us, UNKNOWN_US))
        lenient_us = self.dead_us + max(self.bucket_us, 2 * cadence_us)
        return max(self.usual_us(cadence_us), min(lenient_us, in_time_us))


@dataclass(frozen=True, slots=True)
class InputPlan:
    """One input stream of a node or client."""

    stream: str
    producers: tuple[str, ...]
    blocking: bool = False
    """Nothing can come out while this input is missing (a join's side), §4.1.3."""


#: What a reader on a crowded machine takes to start again, and as much once more.
_RESTART_US = 60 * SECOND_US


@dataclass(frozen=True, slots=True)
class OutputPlan:
    """One output stream: which inputs reach it, who reads it, how much is kept."""

    stream: str
    inputs: tuple[str, ...]
    readers: tuple[str, ...] = ()
    capacity_us: int | None = None
    """The most stime that may stay unacknowledged; None keeps everything."""
    full: Full = Full.BLOCK


@dataclass(frozen=True, slots=True)
class NodePlan:
    """One replica of one node. `NodeCore(plan, ...)` runs it."""

    replica: str
    inputs: tuple[InputPlan, ...]
    output: OutputPlan
    peers: tuple[str, ...] = ()
    bucket_us: int = SECOND_US
    delay_us: int = 3 * SECOND_US
    keepalive_us: int = KEEPALIVE_US
    during_failure: Policy = Policy.PROCESS
    during_stabilisation: Policy = Policy.PROCESS
    stabilise: Stabilise = Stabilise.FORK
    window_us: int | None = None
    """How much input the query's state depends on if it is convergent-capable (§4.1.3); None: perhaps all of it."""
    warm: float = 0.0
    """The share of time that may go into keeping a fork ready, where the delay asks for it; 0: none is kept."""

    @property
    def level(self) -> int:
        """So few buckets behind its inputs, the stable query is level with them: batches always trail what arrives."""
        return max(HANDOVER_BUCKETS, self.delay_us // (2 * self.bucket_us))

    @property
    def near(self) -> int:
        """So few buckets behind its inputs, the stable query is waited for instead of the fork, within the delay."""
        return max(HANDOVER_BUCKETS, self.delay_us // self.bucket_us)

    @property
    def kept(self) -> int | None:
        """How many buckets of input wait at most for one that is away; None: all of them. What a convergent-capable
        query's output has room for, and the input that its state needs to be right from there on (§4.9.4)."""
        output = self.output
        if self.window_us is None or output.capacity_us is None or output.full is not Full.KEEP_LAST:
            return None
        return -(-(output.capacity_us + self.window_us) // self.bucket_us)

    @property
    def tentative_us(self) -> int | None:
        """For how long tentative results are kept for readers: no longer than stable ones, where those are bounded, but
        a reader that was away for the delay, or starts again, finds all. None: the host decides."""
        output = self.output
        if self.window_us is None or output.capacity_us is None or output.full is not Full.KEEP_LAST:
            return None
        return max(output.capacity_us + self.window_us + self.delay_us, _RESTART_US)

    @property
    def patience(self) -> Patience:
        """With the producers of its inputs."""
        return Patience(MISSED_MAX * self.keepalive_us, self.bucket_us, self.delay_us)

    def same_but_neighbours(self, other: NodePlan) -> bool:
        """Whether the other plan differs in nothing but who produces the inputs, who reads the output and who the peers
        are: then a replica may go on with it as it stands."""
        return self._alone() == other._alone()

    def _alone(self) -> NodePlan:
        inputs = tuple(replace(spec, producers=()) for spec in self.inputs)
        return replace(self, inputs=inputs, output=replace(self.output, readers=()), peers=())

    def __post_init__(self) -> None:
        if not self.inputs:
            raise UsageError(f"node replica {self.replica!r} must have at least one input; got none; name its streams")
        names = [spec.stream for spec in self.inputs]
        if len(set(names)) != len(names):
            raise UsageError(f"inputs of {self.replica!r} must differ; got {names}; read a stream once and split it")
        check_times(self.replica, self.bucket_us, self.delay_us, self.keepalive_us)
        check_warm(self.replica, self.warm)
        if self.output.full is Full.KEEP_LAST and self.window_us is None:
            raise UsageError(
                f"output {self.output.stream!r} of {self.replica!r} must not drop tuples unless the query is "
                "convergent-capable; got full='keep_last' without a window; give the window or use full='block'"
            )
        if self.peers and self.replica in self.peers:
            raise UsageError(f"the peers of {self.replica!r} must be the other replicas; got itself; leave it out")


@dataclass(frozen=True, slots=True)
class Resume:
    """Where a replica goes on after a start: what its host finds in the checkpoint and the log."""

    next_bucket: int
    """First bucket that the stable query has not committed."""
    boundary_us: int
    """Boundary of the output's main branch."""
    kept_us: int
    """All readers have acknowledged the output before this, durably; or it begins here."""
    fork: int = 0
    """Higher than any fork id used before, so that late words about an old fork are recognised."""


@dataclass(frozen=True, slots=True)
class ClientPlan:
    """A reader of one stream who wants news and corrections (the client proxy of §4.10.1)."""

    client: str
    input: InputPlan
    bucket_us: int = SECOND_US
    delay_us: int = 3 * SECOND_US
    keepalive_us: int = KEEPALIVE_US
    convergent: bool = False
    """Whether a hole in the stable stream, told as such, is acceptable (§4.9.4)."""

    @property
    def patience(self) -> Patience:
        """With the producers of its input."""
        return Patience(MISSED_MAX * self.keepalive_us, self.bucket_us, self.delay_us)

    def __post_init__(self) -> None:
        check_times(self.client, self.bucket_us, self.delay_us, self.keepalive_us)


def check_times(owner: str, bucket_us: int, delay_us: int, keepalive_us: int) -> None:
    """Refuse durations with which the promises could not be kept, and say what to change."""
    if bucket_us <= 0 or keepalive_us <= 0:
        raise UsageError(f"bucket and keepalive of {owner!r} must be positive; got {bucket_us} and {keepalive_us} us")
    if keepalive_us * MISSED_MAX >= delay_us:
        raise UsageError(
            f"the delay of {owner!r} must exceed {MISSED_MAX} keepalives of {keepalive_us} us, or a failure could not "
            f"be masked by switching replicas; got {delay_us} us; allow more delay or shorten the keepalive"
        )


def check_warm(owner: str, warm: float) -> None:
    """Refuse what is not a share."""
    if isinstance(warm, bool) or not isinstance(warm, int | float) or not 0 <= warm <= 1:
        raise UsageError(f"warm of {owner!r} must be a share of time from 0 to 1; got {warm!r}; 0.05 is usual, 0 never")
