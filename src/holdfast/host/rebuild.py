"""Makes a replica anew from its twin: its disk has died, it was added to a deployment that runs, or its inputs do not
reach back to where it stood. In 003 §4.8 every replica can read all of its inputs again; here it need not (D18).

    1. fetched   where the twin's query stands, checked, while it runs on (`holdfast.host.parcel_routes`)
    2. copied    our output has all that the twin had filed by then, with the ids that its tuples have there
    3. filed     results that wait for their bucket to close are handed to our output
    4. taken up  the checkpoint is ours; from here on the replica starts as after any stop

Rules:
1. Replicas with equal input have equal output (D9): so what the twin has made of input that is gone is what we should
   have made. Nothing of its tentative results is asked for.
2. Every step may be cut short and done anew from the first. Until the last one the replica has no checkpoint, or the
   old one, and so is rebuilt again.
3. Our output may have more than the twin's, or less: what it has is compared and stays; results before its boundary are
   left out when the query goes on.
4. A twin that says that it recovers is waited for; one that cannot be reached, or has nothing to give, is not. What
   becomes of a replica that no twin helps is its controller's affair.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from holdfast.clock import monotonic_us, now_us
from holdfast.engine import Engine
from holdfast.host.controller import boundary_of
from holdfast.host.crash_points import reached
from holdfast.host.link import Link, Refused
from holdfast.host.log_lines import ReplicaLog
from holdfast.host.mirror import WAIT_S
from holdfast.host.parcel import Unpacking
from holdfast.host.replica_log import Held
from holdfast.host.site import Site
from holdfast.host.wire import Portion, same_columns
from holdfast.model.errors import PeerError
from holdfast.model.time import BEGINNING_US, SECOND_US, instant_text
from holdfast.protocol.dpc.signals import Lane
from holdfast.stream.disk import Disk
from holdfast.stream.record import State
from holdfast.stream.store import Stream
from holdfast.stream.waiting import Waiting

log = logging.getLogger(__name__)

#: How long a twin that recovers is waited for: as a rule its engine starts, which takes a crowded machine a minute.
PATIENCE_S = 60.0
_RETRY_S = 0.5

T = TypeVar("T")


class Rebuilding:
    """One replica on its way. `twins` are the other replicas of the node, by name, and how to reach their hosts."""

    def __init__(self, site: Site, engine: Engine, output: Stream, twins: Mapping[str, Link]) -> None:
        self._site, self._engine, self._output, self._twins = site, engine, output, twins
        self._log = ReplicaLog(log, site.replica)
        self._staging = site.home / "rebuilding"

    async def run(self) -> str | None:
        """The twin that it was rebuilt from; None if none had anything to give (rule 4)."""
        end_us = monotonic_us() + round(PATIENCE_S * SECOND_US)
        while True:
            recovering = False
            for twin, link in self._twins.items():
                try:
                    await self._from(twin, link)
                except PeerError as error:
                    recovering |= isinstance(error, Refused) and error.status == 503
                    self._log.info("was not rebuilt from %s: %s", twin, error)
                else:
                    return twin
            if not recovering or monotonic_us() > end_us:
                return None
            await asyncio.sleep(_RETRY_S)

    async def _from(self, twin: str, link: Link) -> None:
        shutil.rmtree(self._staging, ignore_errors=True)
        self._staging.mkdir(parents=True)
        try:
            waiting = await self._fetched(twin, link)
            reached("fetched")
            await self._copied(link, waiting)
            reached("copied")
            take_up = partial(take_up_parcel, self._engine, self._site.home, self._output, self._staging, waiting)
            await _aside(take_up)
        finally:
            shutil.rmtree(self._staging, ignore_errors=True)
        self._log.info("rebuilt from %s, up to %s", twin, instant_text(waiting.boundary_us))

    async def _fetched(self, twin: str, link: Link) -> Waiting:
        """Step 1."""
        unpacking, node = Unpacking(self._staging), self._site.node.name
        try:
            await link.take_parcel(node, unpacking)
            head, output, waiting = await _aside(unpacking.finish)
        finally:
            unpacking.close()
        if head.definition != node or not same_columns(output, self._output.definition):
            raise PeerError(
                f"{twin} must run the same node with the same columns, in the same order, and buckets; it handed over "
                f"{head.definition}, which writes {output.name} ({output.columns}); ours has "
                f"({self._output.definition.columns}); deploy both hosts alike"
            )
        return waiting

    async def _copied(self, link: Link, waiting: Waiting) -> None:
        """Step 2. Nothing is filed in a bucket that is open, so what the twin had filed is what lies before its
        boundary. It may have nothing of it left; ids go on all the same."""
        name, size, present_us = self._output.name, self._output.definition.bucket_us, boundary_of(self._output)
        # Whoever asks from the very beginning on gets what is left; a bucket later, they are told of what is gone.
        empty = present_us <= BEGINNING_US
        start_us = (BEGINNING_US // size + 2) * size if empty else present_us
        portion = await link.pull(name, Lane.MAIN, start_us, WAIT_S)
        nothing = not portion.events and portion.boundary_us >= waiting.boundary_us
        begin = State(next_tuple_id=waiting.next_tuple_id) if empty and nothing else None
        held = Held(self._output.folder / "main", self._output.definition, Disk(), now_us, takeover=True, begin=begin)
        begin_us: int | None = None if empty else present_us
        try:
            while held.boundary_us < waiting.boundary_us:
                await _aside(partial(held.take, _until(portion, waiting.boundary_us), begin_us))
                begin_us = None
                if held.boundary_us < waiting.boundary_us:
                    portion = await link.pull(name, Lane.MAIN, portion.cursor, WAIT_S)
        finally:
            await _aside(held.close)


def _until(portion: Portion, upto_us: int) -> Portion:
    """What a portion has before a boundary; what lies behind it we compute ourselves."""
    events = tuple(event for event in portion.events if event.stime_min_us < upto_us)
    return replace(portion, events=events, boundary_us=min(portion.boundary_us, upto_us), closed=False)


def take_up_parcel(engine: Engine, home: Path, output: Stream, staging: Path, waiting: Waiting) -> None:
    """Steps 3 and 4, in the order in which they may be cut short: the next start goes on from what was unpacked in
    `staging`."""
    writer = output.writer(takeover=True)
    boundary_us = writer.state.boundary_us
    writer.commit([], now_us=now_us(), pending=waiting.since(boundary_us))
    writer.release(now_us())
    reached("filed")
    engine.take_up(home, staging / "checkpoint", boundary_us if boundary_us > BEGINNING_US else None)
    reached("taken-up")


def sweep_parcels(home: Path) -> None:
    """Remove what an earlier life, killed on the way, has left of parcels that it sent or took."""
    for left in (*home.glob(".handing-*"), home / "rebuilding"):
        shutil.rmtree(left, ignore_errors=True)


async def _aside(work: Callable[[], T]) -> T:
    """In a thread; whoever is cancelled meanwhile ends when the work does, so that nobody writes beside the next."""
    under_way = asyncio.get_running_loop().run_in_executor(None, work)
    try:
        return await asyncio.shield(under_way)
    except asyncio.CancelledError:
        await asyncio.wait({under_way})
        raise
