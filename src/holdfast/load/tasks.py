"""Tasks that this host answers for: its own nodes, and those of partners (guests). Movement treats both alike.

Rules:
1. A task has a home folder, an output stream and a name as a replica. Whether it runs here or at a partner's is one
   small file in its home (`away`).
2. A guest is a definition that we have ourselves, by name; what came with it is state and positions, never code (X3).
3. A guest's folder appears whole or not at all, and goes in one step; so a host that was killed finds each guest either
   there, and goes on with it, or not.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
from abc import ABC, abstractmethod
from dataclasses import replace
from pathlib import Path

import msgspec

from holdfast.clock import now_us
from holdfast.diagram import NodeSpec
from holdfast.host.catalog import node_plan, replica_name
from holdfast.host.controller import Controller
from holdfast.host.host import Host
from holdfast.host.intake import Intake
from holdfast.host.link import Link
from holdfast.host.log_lines import ReplicaLog
from holdfast.host.mirrored_intake import MirroredIntake
from holdfast.host.replica_status import missing_stream
from holdfast.host.site import OwnSite, Site, Waits
from holdfast.host.stream_server import StreamServer
from holdfast.host.task_copy import lay_out
from holdfast.host.wire import Position, parse_cursor
from holdfast.load.partner import PartnerLink, Relay
from holdfast.model.errors import PeerError, UnknownStream
from holdfast.model.time import BEGINNING_US, END_OF_TIME_US
from holdfast.protocol.dpc.effects import Send
from holdfast.protocol.dpc.messages import Message
from holdfast.protocol.dpc.plan import InputPlan, NodePlan, OutputPlan
from holdfast.protocol.dpc.signals import Lane
from holdfast.stream.acks import acknowledge
from holdfast.stream.definition import Definition, Retention
from holdfast.stream.disk import Disk
from holdfast.stream.frame import FORMAT_VERSION
from holdfast.stream.sealed import seal, unseal
from holdfast.stream.store import Stream, StreamStore
from holdfast.stream.waiting import Waiting

log = logging.getLogger(__name__)

#: How much output, in stime, is looked through at once for what the owner has: seldom, since it takes a sync.
_KEPT_US = 60_000_000
#: Behind everything that a stream holds: who asks from here on is told the boundary and nothing else.
_BEHIND_US = END_OF_TIME_US // 2


def guest_name(lease_id: str) -> str:
    """A lease as the name of a folder, of a replica and in addresses.

    >>> guest_name("anna:3#0")
    'anna.3.0'
    """
    return lease_id.replace(":", ".").replace("#", ".")


class HeldTask(ABC):
    """One task that this host answers for."""

    def __init__(self, host: Host, task_id: str, site: Site) -> None:
        self.host, self.task_id, self.site = host, task_id, site
        self.node, self.home, self.store, self.replica = site.node, site.home, site.store, site.replica

    @property
    @abstractmethod
    def definition(self) -> str:
        """What it is an instance of."""

    @property
    def output(self) -> Stream:
        return self.store.open(self.node.output)

    @property
    def controller(self) -> Controller | None:
        """What runs it here; None while it is away, or not set up yet."""
        stand = self.host.controllers.get(self.replica)
        return stand if isinstance(stand, Controller) else None

    @property
    def bound_by(self) -> str | None:
        """Why it can never be moved; None if it can."""
        return None if self.controller is None else self.controller.stays_because

    async def start(self) -> None:
        """Set it up here."""
        await self.host.set_up(self.site)

    @abstractmethod
    def input_links(self, stream: str) -> list[Link]:
        """How its inputs are reached, best first: for a partner that runs it."""

    async def input_definition(self, stream: str) -> Definition:
        """What an input is, as the first who knows says."""
        trouble: PeerError | None = None
        for link in self.input_links(stream):
            try:
                return await link.definition(stream)
            except PeerError as error:
                trouble = error
        raise trouble or PeerError(f"nobody produces {stream}")

    async def input_boundaries(self) -> tuple[int, ...] | None:
        """What each input promises; None as long as one of them cannot be asked."""
        found = []
        for stream in self.node.inputs:
            for link in self.input_links(stream):
                try:
                    found.append((await link.pull(stream, Lane.MAIN, _BEHIND_US, 0, 1)).boundary_us)
                    break
                except PeerError:
                    continue
            else:
                return None
        return tuple(found)

    def say(self, sender: str, send: Send) -> None:
        """What is said for it, wherever it runs."""
        self.site.say(sender, send)


class OwnTask(HeldTask):
    """A node of this host's own application."""

    def __init__(self, host: Host, node: NodeSpec) -> None:
        super().__init__(host, node.name, OwnSite(host, node))

    @property
    def definition(self) -> str:
        return self.node.name

    @property
    def bound_by(self) -> str | None:
        # Input is kept while the task is away, so that it can be taken up here again; a full buffer would block.
        for stream in self.node.inputs:
            producer = self.host.catalog.diagram.producer_of(stream)
            if producer is not None and producer.capacity_us is not None:
                return f"its input {stream} comes from {producer.name}, which has a capacity and would wait for it"
        return super().bound_by

    def input_links(self, stream: str) -> list[Link]:
        return [self.host.link_to(producer) for producer in self.host.catalog.producers(stream)]


class GuestNote(msgspec.Struct, frozen=True):
    """What a guest is, beside its state."""

    lease_id: str
    definition: str
    owner: str
    format: int = FORMAT_VERSION


class GuestSite(Site):
    """Where a partner's task runs here: its owner stands for the producers of all its inputs."""

    def __init__(self, node: NodeSpec, host: str, folder: Path, owner: str, relay: Relay) -> None:
        super().__init__(node, host, folder / "node", StreamStore(folder / "streams"))
        self._owner, self._relay = owner, relay

    @property
    def mirrors(self) -> Path:
        return self.home / "inputs"  # Where guests that came with earlier versions have them.

    async def definition(self, stream: str, waits: Waits) -> Definition:
        """A guest that is here must not be lost because its owner is down just now."""
        said = False
        while True:
            try:
                return await self._relay.definition(stream)
            except (PeerError, UnknownStream) as error:
                waits(missing_stream(stream, error))
                if not said:
                    ReplicaLog(log, self.replica).info("waiting for stream %s: %s", stream, error)
                    said = True
            await asyncio.sleep(0.25)

    def intake(self, definition: Definition, bucket_us: int) -> Intake:
        producers = (replica_name(definition.name, self._owner),)
        return MirroredIntake(self.mirrors, definition, producers, bucket_us, lambda _: self._relay)

    def plan(self, bucket_us: int) -> NodePlan:
        """Nobody but the owner reads what it gives, and that one says what it has by pulling."""
        node = self.node
        inputs = tuple(InputPlan(s, (replica_name(s, self._owner),), s in node.blocking) for s in node.inputs)
        return node_plan(node, self.replica, inputs, OutputPlan(node.output, node.inputs), bucket_us)

    def say(self, sender: str, send: Send) -> None:
        self._relay.hear(send.to, send.message)


class Guest(HeldTask):
    """A partner's task that runs here."""

    def __init__(self, host: Host, folder: Path, note: GuestNote, definition: NodeSpec, partner: PartnerLink) -> None:
        name = guest_name(note.lease_id)
        self.folder, self.note = folder, note
        self.relay = Relay(partner, name, self._heard)
        site = GuestSite(replace(definition, name=name), host.name, folder, note.owner, self.relay)
        super().__init__(host, note.lease_id, site)
        self._gone_us = BEGINNING_US
        self.serving = StreamServer(self.store)

    @property
    def definition(self) -> str:
        return self.note.definition

    def input_links(self, stream: str) -> list[Link]:
        return [self.relay]

    def _heard(self, sender: str, message: Message) -> None:
        controller = self.controller
        if controller is not None:
            controller.deliver(sender, message)

    def pulled(self, position: Position) -> None:
        """The owner asks for what comes after `position`, so it has what lies before; from time to time that goes."""
        if isinstance(position, str):
            has_us = parse_cursor(position).boundary_us
            if has_us - self._gone_us >= _KEPT_US and has_us < END_OF_TIME_US:
                self._gone_us = has_us
                going = asyncio.get_running_loop().run_in_executor(None, let_go, self.output, has_us)
                going.add_done_callback(_told)

    async def close(self) -> None:
        self.serving.close()
        await self.relay.close()


def _told(going: asyncio.Future[int]) -> None:
    if not going.cancelled() and (error := going.exception()) is not None:
        log.info("output that its owner has could not be let go of: %s", error)


def install_guest(folder: Path, note: GuestNote, output: Definition, waiting: Waiting, staging: Path) -> None:
    """Rule 3: make the folder of a guest out of what was unpacked in `staging`."""
    disk = Disk()
    lay_out(staging, output, waiting)
    disk.replace_file(staging / "guest", seal(note))
    disk.rename(staging, folder)
    disk.sync_dir(folder.parent)


def let_go(stream: Stream, upto_us: int) -> int:
    """The owner has everything before `upto_us`, durably: whole segments of it may go. How many did."""
    acknowledge(stream.folder, "owner", upto_us, now_us(), Disk())
    return stream.retain(Retention(acknowledged=True)).segments


def guests_on(root: Path) -> list[tuple[Path, GuestNote]]:
    """The guests of a host, after what crashes have left behind is gone."""
    folder = root / ".holdfast" / "guests"
    found = []
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        # What has no note never came whole (rule 3): a thread that was late has made it again.
        if path.name.startswith(".") or not (path / "guest").exists():
            shutil.rmtree(path, ignore_errors=True)
        else:
            found.append((path, unseal((path / "guest").read_bytes(), GuestNote, str(path / "guest"))))
    return found


def remove_guest(folder: Path) -> None:
    """Rule 3: gone in one step, then swept."""
    disk, doomed = Disk(), folder.parent / f".gone-{os.urandom(8).hex()}"
    disk.rename(folder, doomed)
    disk.sync_dir(folder.parent)
    shutil.rmtree(doomed, ignore_errors=True)
