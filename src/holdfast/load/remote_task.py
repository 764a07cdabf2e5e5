"""A task of this host that runs at a partner's: what stands for it here.

Rules:
1. The stream stays where it is: what the partner produces is appended to the very log that the task wrote to before, in
   units of whole buckets. So readers, clients and history never move, and who may write is one question on one disk.
2. The log's boundary is the position. Whatever is cut short anywhere, following again from there neither loses nor
   repeats a tuple; ids go on where they were.
3. It answers for the replica as a source does: STABLE up to the boundary. Whether that moves is for readers to judge.
   Whoever asks whether it may stabilise gets no answer: nothing tentative ever comes from here, so nobody could rely on
   it for news (D11); and a refusal would have to be repeated for ever. Without an answer the peer keeps its fork.
4. What comes is another owner's: each event is compared with its header before it is taken (X5), and what waits for its
   bucket to close is bounded (X4). Results promise no more than their inputs have: whatever lies further ahead of the
   clock than a row may, and an end, is taken only where every input has come as far (D10). A wrong one would freeze the
   stream, and nothing of a partner's could put it right.
5. Whatever goes wrong, it is followed again, and whose fault it is is told: a full disk here is not the partner's.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec

from holdfast.clock import monotonic_us, now_us
from holdfast.host.log_lines import ReplicaLog
from holdfast.host.mirror import WAIT_S
from holdfast.host.wire import PORTION_BYTES, Portion, Position, shape_of
from holdfast.load.partner import PartnerLink
from holdfast.model.errors import HoldfastError, PeerError
from holdfast.model.time import BEGINNING_US, END_OF_TIME_US, MAX_AHEAD, duration_us, instant_text
from holdfast.protocol.dpc.effects import Send
from holdfast.protocol.dpc.messages import (
    KeepaliveReply,
    KeepaliveRequest,
    Message,
    StreamReport,
)
from holdfast.protocol.dpc.states import StreamState
from holdfast.stream.disk import Disk
from holdfast.stream.frame import FORMAT_VERSION
from holdfast.stream.sealed import seal, unseal
from holdfast.stream.store import Stream
from holdfast.stream.untrusted import check_events
from holdfast.stream.writer import Event, LogWriter

log = logging.getLogger(__name__)

#: A partner that does not answer is asked again this often.
_RETRY_S = 0.5
#: What may wait in memory for its bucket to close: one bucket of a guest's output, which is sent in several portions.
WAITING_BYTES_MAX = 256 << 20
_AHEAD_US_MAX = duration_us(MAX_AHEAD)


class AwayNote(msgspec.Struct, frozen=True):
    """On disk as long as a task runs elsewhere. Its presence alone decides who writes the output (B7)."""

    lease_id: str
    partner: str
    format: int = FORMAT_VERSION


def read_note(home: Path) -> AwayNote | None:
    path = home / "away"
    try:
        return unseal(path.read_bytes(), AwayNote, str(path))
    except FileNotFoundError:
        return None


def write_note(home: Path, note: AwayNote) -> None:
    Disk().replace_file(home / "away", seal(note))


def remove_note(home: Path) -> None:
    disk = Disk()
    disk.unlink(home / "away")
    disk.sync_dir(home)


class Tributary:
    """The log of a stream whose buckets come from elsewhere (rules 1 and 2)."""

    def __init__(self, stream: Stream, owner: str) -> None:
        self.stream, self._shape = stream, shape_of(stream.definition)
        self._writer: LogWriter = stream.writer(takeover=True, owner=owner)
        self._waiting: list[Event] = []
        self._waiting_bytes = 0
        self._lock = threading.Lock()  # Whoever closes it waits for what is being stored.

    @property
    def boundary_us(self) -> int:
        return self._writer.state.boundary_us

    @property
    def closed(self) -> bool:
        return self._writer.state.closed

    def begin(self) -> int:
        """Where to pull from; what was taken in and not stored is pulled again."""
        self._waiting, self._waiting_bytes = [], 0
        return self.boundary_us

    def is_ahead(self, portion: Portion) -> bool:
        """Rule 4: whether it promises what only the inputs can tell."""
        return _promised(portion) > now_us() + _AHEAD_US_MAX

    def take(self, portion: Portion, inputs_us: int = BEGINNING_US) -> bool:
        """Store the buckets that are complete now; whether there were any, or a new boundary. `inputs_us`: what every
        input has promised, where it `is_ahead`."""
        with self._lock:
            return self._take(portion, inputs_us)

    def _take(self, portion: Portion, inputs_us: int) -> bool:
        name, size = self.stream.name, self.stream.definition.bucket_us
        if portion.stream != name or portion.shape != self._shape:
            raise PeerError(f"stream {name}: the partner's output must have the same columns and buckets; it has not")
        if portion.gap_us is not None:
            raise PeerError(f"stream {name}: the partner no longer has all of the output; it cannot be followed")
        if self.is_ahead(portion) and _promised(portion) > inputs_us:
            raise PeerError(
                f"stream {name}: the partner may promise no more than every input has ({instant_text(inputs_us)}), or "
                f"an hour from now; it promised {instant_text(_promised(portion))}, which was refused; look there"
            )
        before = self._writer.state
        new = [event for event in portion.events if event.bucket * size >= before.boundary_us]
        check_events(new, self.stream.definition)
        self._waiting += new
        self._waiting_bytes += sum(len(event.body) for event in new)
        if self._waiting_bytes > WAITING_BYTES_MAX:
            raise PeerError(
                f"stream {name}: the partner's open buckets may have {WAITING_BYTES_MAX} bytes at most; more came "
                f"before one of them was closed; let the node write smaller buckets"
            )
        ends = portion.closed and not before.closed
        if portion.boundary_us <= before.boundary_us and not ends:
            return False
        ready = [e for e in self._waiting if ends or (e.bucket + 1) * size <= portion.boundary_us]
        self._waiting = [] if ends else [e for e in self._waiting if (e.bucket + 1) * size > portion.boundary_us]
        self._waiting_bytes = sum(len(e.body) for e in self._waiting)
        # Numbered here: buckets and their events come in the one order that every replica files them in (D9).
        events = [event._replace(first_tuple_id=None) for event in ready]
        self._writer.commit(events, now_us=now_us(), boundary_us=portion.boundary_us, closed=ends, pending=(0, b""))
        return True

    def close(self) -> None:
        with self._lock:
            self._writer.release(now_us())


def _promised(portion: Portion) -> int:
    return END_OF_TIME_US if portion.closed else portion.boundary_us


class Fault(Enum):
    """Why nothing is taken in."""

    SILENCE = "the partner does not answer"
    UNFIT = "what it sends cannot be taken"
    OURS = "what it sends cannot be stored here"


class RemoteTask:
    """Stands for a replica whose task runs at a partner's. Belongs to the event loop's thread."""

    def __init__(
        self, replica: str, stream: Stream, note: AwayNote, guest: str, partner: PartnerLink | None,
        say: Callable[[str, Send], None], inputs: Callable[[], Awaitable[tuple[int, ...] | None]],
    ) -> None:  # fmt: skip
        """`inputs` asks what each input promises; None as long as one cannot be asked."""
        self.replica, self.note, self._guest, self._partner, self._say = replica, note, guest, partner, say
        self._inputs = inputs
        self._log = Tributary(stream, f"away:{note.partner}")
        self.heard_us = monotonic_us()
        """When the partner last answered with what can be taken."""
        self.fault: Fault | None = None
        self.trouble: str | None = None
        self._task = asyncio.ensure_future(self._follow())

    @property
    def boundary_us(self) -> int:
        return self._log.boundary_us

    @property
    def ended(self) -> bool:
        """The stream was closed at its end: there is nothing more to come."""
        return self._log.closed

    @property
    def serves(self) -> bool:
        return True

    @property
    def state(self) -> str:
        return "AWAY"

    async def _follow(self) -> None:
        """Rule 5."""
        position: Position = self._log.begin()
        while not self._log.closed:
            assert self._partner is not None, "whoever is away and has not ended has a partner"
            fault = Fault.SILENCE
            try:
                portion = await self._partner.output(self._guest, self._log.stream.name, position, WAIT_S,
                                                     PORTION_BYTES)  # fmt: skip
                fault = Fault.OURS
                await self._take(portion)
                self.heard_us, self.fault, self.trouble, position = monotonic_us(), None, None, portion.cursor
                continue
            except PeerError as error:
                self._suffer(Fault.UNFIT if fault is Fault.OURS else fault, error)
            except Exception as error:  # Whatever it is: the partner computes on, and somebody must take it.
                self._suffer(fault, error)
            await asyncio.sleep(_RETRY_S)
            position = self._log.begin()

    async def _take(self, portion: Portion) -> None:
        """Rule 4."""
        inputs_us = BEGINNING_US
        if self._log.is_ahead(portion):
            found = await self._inputs()
            if found is None:
                raise HoldfastError("an input must say whether it has come as far; none of its hosts answers")
            inputs_us = min(found)
        await asyncio.get_running_loop().run_in_executor(None, self._log.take, portion, inputs_us)

    def _suffer(self, fault: Fault, error: Exception) -> None:
        text = str(error) or type(error).__name__
        if fault is not self.fault:
            full = None if isinstance(error, HoldfastError | OSError) else error
            ReplicaLog(log, self.replica).warning("away at %s: %s: %s; it is tried again", self.note.partner,
                                                  fault.value, text, exc_info=full)  # fmt: skip
        if fault is Fault.OURS:
            self.heard_us = monotonic_us()
        self.fault, self.trouble = fault, text if fault is Fault.SILENCE else f"{fault.value}: {text}"

    async def reach(self, boundary_us: int, within_s: float) -> bool:
        """Wait until everything before `boundary_us` is in the log."""
        end_us = monotonic_us() + round(within_s * 1e6)
        while self._log.boundary_us < boundary_us:
            if monotonic_us() > end_us:
                return False
            await asyncio.sleep(0.02)
        return True

    async def leave(self) -> None:
        """Follow no more; returns when nothing is under way, so that the log can be another's."""
        self._task.cancel()
        await asyncio.wait({self._task})
        await asyncio.get_running_loop().run_in_executor(None, self._log.close)

    # As a replica -----------------------------------------------------------------------------------------------

    def pulse(self) -> None:
        """The task follows by itself."""

    def deliver(self, sender: str, message: Message) -> None:
        """Rule 3."""
        if isinstance(message, KeepaliveRequest):
            self._say(self.replica, Send(sender, KeepaliveReply((self.report(),))))

    def report(self) -> StreamReport:
        """Rule 3."""
        boundary = max(self._log.boundary_us, BEGINNING_US)
        return StreamReport(self._log.stream.name, StreamState.STABLE, boundary, False)

    def status(self) -> dict[str, Any]:
        boundary = self._log.boundary_us
        why = f"it runs at {self.note.partner}" + (f"; {self.trouble}" if self.trouble else "")
        return {
            "replica": self.replica, "node": self.replica.partition("@")[0], "state": "AWAY",
            "at": self.note.partner, "stable_until_us": boundary, "why": why,
            "output": {"stream": self._log.stream.name, "state": "STABLE", "boundary_us": boundary, "fresh": False},
            "inputs": [],
        }  # fmt: skip

    def stop_queries(self) -> None:
        """There are none here."""

    def close(self) -> None:
        if not self._task.done():
            self._task.cancel()
        self._log.close()
