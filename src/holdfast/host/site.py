"""The site of a replica: where it runs, what its inputs are, and whom it talks to. A host sets every replica up from
one: nodes of its own application (`OwnSite`), and guests of other owners (`holdfast.load.tasks`)."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.diagram import NodeSpec
from holdfast.engine import NodeQueries
from holdfast.host.catalog import replica_name
from holdfast.host.intake import DirectIntake, Intake
from holdfast.host.link import Link
from holdfast.host.log_lines import ReplicaLog
from holdfast.host.mirrored_intake import MirroredIntake
from holdfast.host.replica_status import Wait, missing_stream
from holdfast.model.errors import PeerError, UnknownStream
from holdfast.protocol.dpc.effects import Send
from holdfast.protocol.dpc.plan import NodePlan
from holdfast.stream.definition import Definition
from holdfast.stream.store import StreamStore

if TYPE_CHECKING:
    from holdfast.host.host import Host

log = logging.getLogger(__name__)

#: How often a replica that cannot be set up yet asks again for what is missing.
_RETRY_S = 0.25
#: How often it has asked before that is a warning: some seconds.
_PATIENCE = 40

Waits = Callable[[Wait], None]


class Site(ABC):
    """What a host must know of a replica to run it. `home` is its own folder; its output lies in `store`."""

    def __init__(self, node: NodeSpec, host: str, home: Path, store: StreamStore) -> None:
        self.node, self.home, self.store = node, home, store
        self.replica = replica_name(node.name, host)

    @property
    def mirrors(self) -> Path:
        """The folder below which inputs are mirrored."""
        return self.home

    @property
    def twins(self) -> Mapping[str, Link]:
        """The other replicas of the node, and how to reach their hosts."""
        return {}

    @abstractmethod
    async def definition(self, stream: str, waits: Waits) -> Definition:
        """What an input is, asked until somebody knows; `waits` is told meanwhile why it takes so long."""

    @abstractmethod
    def intake(self, definition: Definition, bucket_us: int) -> Intake:
        """How an input comes in."""

    @abstractmethod
    def plan(self, bucket_us: int) -> NodePlan:
        """What the replica's core has to know."""

    @abstractmethod
    def say(self, sender: str, send: Send) -> None:
        """What the replica says."""

    def before_start(self, queries: NodeQueries) -> None:
        """What is to be said to the queries before they first run here."""
        return


class OwnSite(Site):
    """A node of the host's own application."""

    def __init__(self, host: Host, node: NodeSpec) -> None:
        super().__init__(node, host.name, host.home_of(node.name), host.store)
        self._host = host

    async def definition(self, stream: str, waits: Waits) -> Definition:
        host, asked = self._host, 0
        while True:
            for producer in host.catalog.producers(stream):
                try:
                    if host.catalog.host_of(producer) == host.name:
                        return host.store.open(stream).definition
                    return await host.link_to(producer).definition(stream)
                except (PeerError, UnknownStream) as error:
                    wait = missing_stream(stream, error)
            waits(wait)
            if asked == self._patience(stream):
                ReplicaLog(log, self.replica).warning("%s", wait.why)
            asked += 1
            await asyncio.sleep(_RETRY_S)

    @property
    def twins(self) -> Mapping[str, Link]:
        host = self._host
        return {peer: host.link_to(peer) for peer in host.catalog.replicas_of(self.node.name) if peer != self.replica}

    def _patience(self, stream: str) -> int:
        """How often a stream is asked for before its absence is spoken of: results of other nodes come when these are
        set up, and other hosts when they are started; a source of this host is there, or its name is wrong."""
        source = self._host.catalog.diagram.producer_of(stream) is None
        return 0 if source and stream in self._host.catalog.sources_on(self._host.name) else _PATIENCE

    def intake(self, definition: Definition, bucket_us: int) -> Intake:
        host = self._host
        producers = host.catalog.producers(definition.name)
        if host.catalog.reads_in_place(definition.name, host.name):
            return DirectIntake(host.store.open(definition.name), producers[0], bucket_us, host.cuts)
        return MirroredIntake(self.mirrors, definition, producers, bucket_us, host.link_to)

    def plan(self, bucket_us: int) -> NodePlan:
        return self._host.catalog.plan_of(self.node.name, self._host.name, bucket_us)

    def say(self, sender: str, send: Send) -> None:
        self._host.say(sender, send)
