"""Runs the core of one reader against the real world: a client that no host belongs to (003 §4.10.1).

Rules:
1. It watches the hosts that may produce the stream by asking each how the stream does, ten times a second; a host that
   recovers, or does not produce it, says nothing. Which one is read, and which lane, is the core's decision.
2. What is read goes into a mirror and copies, as for a node, in a folder that nobody keeps: so going on with another
   replica neither loses nor repeats a tuple, and what the consumer has not taken yet waits on disk.
3. Steps come out in order. A step names what is readable already; whoever takes it reads it from the folder.
4. A reader of main alone has no use for a branch: to it a producer in UP_FAILURE brings nothing.
5. What waits on disk is bounded (X4): where a consumer does not take what is there, no more is asked for.
6. Nobody is "far behind" here: history is read in order, and nothing stable is shown as tentative before its turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from holdfast.clock import monotonic_us
from holdfast.host.link import HttpLink, Link, Refused
from holdfast.host.mirrored_intake import MirroredIntake
from holdfast.host.wire import PORTION_BYTES, Portion, Position
from holdfast.model.errors import HoldfastError, PeerError, Removed, UsageError
from holdfast.model.time import BEGINNING_US, END_OF_TIME_US, instant_text
from holdfast.model.tuples import TupleType
from holdfast.protocol.dpc.client import ClientCore, ClientEffects, ClientSignal
from holdfast.protocol.dpc.effects import Part
from holdfast.protocol.dpc.messages import KeepaliveReply, KeepaliveRequest, Message, StreamReport
from holdfast.protocol.dpc.plan import KEEPALIVE_US, ClientPlan, InputPlan
from holdfast.protocol.dpc.signals import InputAdvanced, InputGap, Lane, Received, Tick
from holdfast.protocol.dpc.states import StreamState
from holdfast.stream.definition import Definition
from holdfast.stream.disk import VolatileDisk
from holdfast.stream.store import Stream
from holdfast.stream.tentative import PlannedPiece
from holdfast.stream.worth import Worth

log = logging.getLogger(__name__)

#: How often arrivals are looked at; what it adds to latency is half of it.
_PULSE_S = 0.01
#: How often hosts are asked where the stream begins, and told again what was acknowledged and did not reach them.
_ASK_S = 0.25
#: What was delivered is let go of in steps of this many buckets.
_RETAIN_BUCKETS = 64
#: What may lie in the folder while the consumer has something to take. More only makes a temporary folder full.
BYTES_MAX = 256 << 20
#: How often a consumer that is behind is looked at.
_BEHIND_S = 0.05


@dataclass(frozen=True, slots=True)
class Begin:
    """The first bucket is known: everything stable from here on is delivered."""

    start_us: int


@dataclass(frozen=True, slots=True)
class Stable:
    """Main of [start, end) lies in the mirror."""

    start_us: int
    end_us: int


@dataclass(frozen=True, slots=True)
class Tentative:
    """One bucket of a branch, and what it is worth; None if that was said before."""

    bucket: int
    pieces: tuple[PlannedPiece, ...]
    worth: Worth | None


@dataclass(frozen=True, slots=True)
class Undo:
    """All tentative buckets delivered so far are void."""


@dataclass(frozen=True, slots=True)
class RecDone:
    """The corrections that followed the last UNDO are complete."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The stream was closed at its end, and all of it was told."""


Step = Begin | Stable | Tentative | Undo | RecDone | Ended


@dataclass(frozen=True, slots=True)
class Wish:
    """What a client wants to read."""

    start_us: int | None = BEGINNING_US
    """Where to begin; None: with what is complete from now on."""
    tentative: bool = False
    name: str | None = None
    """Under which retention waits for it; None: it does not."""
    gaps: bool = False
    """Whether what is gone for ever may be passed over."""
    keepalive_us: int = KEEPALIVE_US
    goal: int | None = None
    """It resumes, and up to this bucket tentative tuples are to be replaced."""
    mends: int | None = None
    """It resumes, and had read when the boundary had been taken back so often."""


class Client:
    """Reads one stream through links, until cancelled. Everything but `consumed_us` and `acked` is the loop's."""

    def __init__(
        self, definition: Definition, links: Mapping[str, HttpLink], folder: Path, wish: Wish,
        told: Callable[[Step], None], behind: Callable[[], bool] = lambda: False,
    ) -> None:  # fmt: skip
        """`behind` says whether the consumer has steps to take."""
        self.definition, self._links, self._wish, self._told = definition, dict(links), wish, told
        self._behind = behind
        self._size = definition.bucket_us
        self._intake = MirroredIntake(
            folder,
            definition,
            (),
            definition.bucket_us,
            lambda host: _PacedLink(self._links[host], self._room),
            VolatileDisk(),
        )
        if wish.mends is not None:
            self._intake.began_under(wish.mends)
        self.core: ClientCore | None = None
        self._wake_us = 0
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._heard: deque[tuple[str, StreamReport]] = deque()
        #: What each host said last, or why it said nothing; for people.
        self.silent: dict[str, str] = {}
        #: How far main had come by the first word of each producer: what "everything there is" means.
        self.present_us: int | None = None
        self._known: set[str] = set()
        #: Of one that begins at the beginning: tuples before this were removed.
        self.removed_us = BEGINNING_US
        self._retained_us = BEGINNING_US
        #: Set by the consumer: it has read all steps up to here, needs nothing before `acked` ever again, and goes on
        #: at that position if it resumes.
        self.consumed_us = BEGINNING_US
        self.acked: tuple[int, str | None] = (BEGINNING_US, None)

    @property
    def stream(self) -> Stream:
        """Where main can be read."""
        return self._intake.stream

    @property
    def reach_us(self) -> int:
        """How far main has come, here or at a producer that said so."""
        if self.core is None:
            return BEGINNING_US
        known = [self.core.monitor.report(host, self.definition.name) for host in self._links]
        return max([self.core.main_us, *(report.main_us for report in known if report is not None)])

    @property
    def fresh(self) -> bool:
        """Whether some producer grows a branch."""
        if self.core is None:
            return False
        known = [self.core.monitor.report(host, self.definition.name) for host in self._links]
        return any(report is not None and report.fresh for report in known)

    def reading(self) -> list[str]:
        """Who is read now: `host/lane`."""
        if self.core is None:
            return []
        return [f"{source.replica}/{source.lane.name.lower()}" for source in self.core.upstream.subscribed]

    async def run(self) -> None:
        acks = asyncio.ensure_future(self._acknowledge()) if self._wish.name is not None else None
        try:
            await self._begin()
            while True:
                self._pulse()
                if acks is not None and acks.done():
                    acks.result()
                await asyncio.sleep(_PULSE_S)
        finally:
            for task in (*self._asking.values(), *([acks] if acks is not None else [])):
                task.cancel()
            self._intake.close()

    # Where it begins ------------------------------------------------------------------------------------------------

    async def _begin(self) -> None:
        start_us = self._wish.start_us
        if start_us is not None and start_us > BEGINNING_US:
            first = start_us // self._size
        else:
            found = None
            while found is None:
                for host in self._links:
                    with contextlib.suppress(PeerError):
                        found = await (self._now(host) if start_us is None else self._oldest(host))
                        if start_us is not None and self._wish.mends is None:
                            self.removed_us = await self._removed(host)
                    if found is not None:
                        break
                else:
                    await asyncio.sleep(_ASK_S)
            first = start_us = found // self._size
            start_us *= self._size
        name = self._wish.name or "client"
        # The delay only says who is far behind: rule 6.
        plan = ClientPlan(name, InputPlan(self.definition.name, tuple(self._links)), self._size, END_OF_TIME_US,
                          self._wish.keepalive_us, self._wish.gaps)  # fmt: skip
        self.core = ClientCore(plan, first, monotonic_us(), self._wish.goal)
        self.consumed_us = max(self.consumed_us, start_us)
        self._told(Begin(start_us))

    async def _now(self, host: str) -> int | None:
        """What is complete at the moment."""
        report = await self._links[host].report(self.definition.name)
        return report.main_us if report.main_us > BEGINNING_US else None

    async def _oldest(self, host: str) -> int | None:
        """Where the stream begins, once a boundary says that nothing older can come."""
        portion = await self._links[host].pull(self.definition.name, Lane.MAIN, BEGINNING_US, 0, 1)
        if portion.boundary_us <= BEGINNING_US:
            return None
        return min([event.stime_min_us for event in portion.events] + [portion.boundary_us])

    async def _removed(self, host: str) -> int:
        """What retention has removed lies before this. Whoever asks for the beginning is not told, since he gets what
        there is; so we ask for the first bucket that there can be."""
        portion = await self._links[host].pull(self.definition.name, Lane.MAIN, BEGINNING_US + self._size, 0, 1)
        return BEGINNING_US if portion.gap_us is None else portion.gap_us

    # What comes in --------------------------------------------------------------------------------------------------

    def _pulse(self) -> None:
        assert self.core is not None
        for signal in self._intake.poll():
            if isinstance(signal, InputGap):
                self._check_gap(signal.first_us)
            self._tell(signal)
        while self._heard:
            host, report = self._heard.popleft()
            self._tell(Received(host, KeepaliveReply((report,))))
        if monotonic_us() >= self._wake_us:
            self._tell(Tick())
        unneeded_us = self.consumed_us - self._retained_us
        if unneeded_us >= _RETAIN_BUCKETS * self._size or (unneeded_us and self._intake.size_bytes > BYTES_MAX):
            self._retained_us = self.consumed_us
            self._intake.retain(self.consumed_us)

    async def _room(self) -> None:
        """Rule 5. A consumer that has taken everything is given more in any case: a bucket is as large as it is."""
        while self._intake.size_bytes > BYTES_MAX and self._behind():
            await asyncio.sleep(_BEHIND_S)

    def _check_gap(self, first_us: int) -> None:
        assert self.core is not None
        here_us = self.core.sequence.next * self._size
        if first_us <= here_us:
            return
        lost = f"stream {self.definition.name}: tuples from {instant_text(here_us)} to {instant_text(first_us)}"
        if not self._wish.gaps:
            raise Removed(f"{lost} are gone at the producer; start at {instant_text(first_us)}, or allow gaps")
        log.warning("%s are gone at the producer; going on behind them", lost)

    def _tell(self, signal: ClientSignal) -> None:
        assert self.core is not None
        before_us = self.core.main_us
        effects = self.core.handle(signal, monotonic_us())
        self._deliver(effects, signal)
        if before_us < END_OF_TIME_US <= self.core.main_us:
            self._told(Ended())
        for gone in effects.unsubscribe:
            self._intake.unsubscribe(gone.replica, gone.lane)
        for new in effects.subscribe:
            log.debug("%s: reading %s of %s", self.definition.name, new.lane.name, new.replica)
            self._intake.subscribe(new.replica, new.lane, new.from_us)
        for send in effects.send:
            if isinstance(send.message, KeepaliveRequest):
                self._ask(send.to)
        self._wake_us = effects.wake_us

    def _deliver(self, effects: ClientEffects, signal: ClientSignal) -> None:
        """Steps for the consumer."""
        for delivery in effects.deliver:
            if delivery.kind is TupleType.INSERTION:
                self._told(Stable(delivery.bucket * self._size, delivery.end * self._size))
            elif delivery.kind is TupleType.TENTATIVE:
                assert isinstance(signal, InputAdvanced)
                worths = {a.bucket: Worth(a.bucket, a.worth, a.inputs, a.least, a.missing) for a in signal.arrivals}
                for bucket in range(delivery.bucket, delivery.end):
                    self._told(self._tentative(bucket, worths.get(bucket), signal))
            else:
                self._told(Undo() if delivery.kind is TupleType.UNDO else RecDone())

    def _tentative(self, bucket: int, worth: Worth | None, signal: InputAdvanced) -> Tentative:
        start_us = bucket * self._size
        part = Part(signal.stream, signal.lane, signal.replica, 0, True)
        return Tentative(bucket, tuple(self._intake.pieces(0, start_us, start_us + self._size, part)), worth)

    # What is asked and said -----------------------------------------------------------------------------------------

    def _ask(self, host: str) -> None:
        """One question at a time: a host that does not answer must not make more and more of them."""
        asking = self._asking.get(host)
        if asking is None or asking.done():
            self._asking[host] = asyncio.ensure_future(self._hear(host))

    async def _hear(self, host: str) -> None:
        try:
            report = await self._links[host].report(self.definition.name)
        except PeerError as error:
            self.silent[host] = str(error)
            return
        self.silent.pop(host, None)
        if host not in self._known:
            self._known.add(host)
            self.present_us = max(report.main_us, BEGINNING_US if self.present_us is None else self.present_us)
        if not self._wish.tentative:  # Rule 4.
            failing = report.state == StreamState.UP_FAILURE
            state = StreamState.FAILURE if failing else report.state
            report = StreamReport(report.stream, state, report.main_us, False)
        self._heard.append((host, report))

    async def _acknowledge(self) -> None:
        """Tell every host that produces the stream, until each knows; a refusal of the token is the caller's affair."""
        assert self._wish.name is not None
        known: dict[str, tuple[int, str | None] | None] = dict.fromkeys(self._links)
        while True:
            for host, told in list(known.items()):
                acked = self.acked
                if told == acked:
                    continue
                try:
                    await self._links[host].acknowledge(self.definition.name, self._wish.name, *acked)
                    known[host] = acked
                except Refused as error:
                    if error.status in (400, 401, 403):
                        raise UsageError(
                            f"a named subscriber must be allowed to acknowledge; {error}; use the operator's token, or "
                            "give no name"
                        ) from None
                    if error.status == 404:
                        known[host] = acked  # It has nothing of the stream to keep.
                except PeerError as error:
                    log.debug("acknowledging to %s: %s", host, error)
            await asyncio.sleep(_ASK_S)


class _PacedLink(Link):
    """A link that asks for more only when there is room for it."""

    def __init__(self, link: Link, room: Callable[[], Awaitable[None]]) -> None:
        self._link, self._room = link, room

    async def pull(
        self, stream: str, lane: Lane, position: Position, wait_s: float, bytes_max: int = PORTION_BYTES
    ) -> Portion:
        await self._room()
        return await self._link.pull(stream, lane, position, wait_s, bytes_max)

    async def say(self, sender: str, to: str, message: Message) -> None:
        await self._link.say(sender, to, message)

    async def definition(self, stream: str) -> Definition:
        return await self._link.definition(stream)


def trouble_of(error: BaseException) -> HoldfastError:
    """What a consumer is told when its client ended by itself."""
    return error if isinstance(error, HoldfastError) else PeerError(f"the client stopped: {error!r}")
