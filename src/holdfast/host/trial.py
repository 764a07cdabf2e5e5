"""Runs a changed function of a node beside the one that is live, on a copy of its state: `holdfast try`.

A trial is a replica like any other, of which nobody reads: it goes on from a copy of the live query, reads the same
inputs and writes a stream of its own below `.holdfast/trials`. Its complete buckets are compared with the live ones
(`stream.difference`). Then it ends, or is taken in (`holdfast.host.swap`).

Rules:
1. The live query is not disturbed: it is copied between two batches, as for a movement. The trial never forks: while an
   input is away it waits, and the live one answers.
2. The file that is tried lies in the folder of the deployment's application: whoever can write there decides what runs
   on this host anyway, and nobody else does (X3). Swapped in is only what the deployment names, since that is what the
   next start of the host runs.
3. State is carried over where the operators with state, their keys and windows are what they were. Where they are not,
   the sentence says so, and `replay` makes a fresh state of so much input, as `holdfast upgrade --from` does.
4. One trial for each node at a time. It ends when nobody has asked for it for a while, or when the live replica goes.
5. A node with one replica can be swapped; with several they would have to change at the same bucket.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from holdfast.clock import monotonic_us
from holdfast.diagram import NodeSpec
from holdfast.engine import NodeQueries
from holdfast.host.app_file import load_app
from holdfast.host.catalog import replica_name
from holdfast.host.controller import Controller, boundary_of
from holdfast.host.crash_points import reached
from holdfast.host.envelope import UNREADABLE
from holdfast.host.host import Host
from holdfast.host.link import Link
from holdfast.host.log_lines import ReplicaLog
from holdfast.host.reload import Reload, same_but_function
from holdfast.host.service import Door, Refused, body_of
from holdfast.host.site import OwnSite
from holdfast.host.swap import SwapOrder, finish_swap, order_swap, staging_of, swap_ordered
from holdfast.host.task_copy import lay_out
from holdfast.model.errors import PeerError, UsageError
from holdfast.model.time import BEGINNING_US, SECOND_US, closed_until, duration_text, duration_us, instant_text
from holdfast.protocol.dpc.effects import Send
from holdfast.protocol.dpc.plan import NodePlan, Policy
from holdfast.stream.difference import Difference
from holdfast.stream.holes import read_holes
from holdfast.stream.identity import Upgrade, read_refused, told, write_upgrade
from holdfast.stream.store import Stream, StreamStore
from holdfast.stream.waiting import Waiting

log = logging.getLogger(__name__)

#: Rule 4: whoever tries asks every second; one that has gone must not leave a second query behind for ever.
IDLE_S = 60.0
_LOOK_S = 0.2
#: How long the live output may take to come as far as the trial's, and to be STABLE, before a swap is given up.
_LEVEL_S = 60.0
#: Who keeps input of the live replica: the trial from where it stands, a swap from where its copy does.
_TRIAL, _SWAP = "trial", "swap"

T = TypeVar("T")


class TrialOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is to be tried."""

    app: Annotated[str, Meta(max_length=4096)]
    replay: Annotated[str, Meta(max_length=64)] | None = None
    key: Annotated[tuple[Annotated[str, Meta(max_length=256)], ...], Meta(max_length=64)] = ()


_orders = msgspec.json.Decoder(TrialOrder)


class TrialSite(OwnSite):
    """Where a trial runs: with the inputs of the live node, and neighbours that do not know of it."""

    def __init__(self, host: Host, node: NodeSpec, folder: Path) -> None:
        super().__init__(host, replace(node, name=f"{node.name}.trial"))
        self._live, self.folder = node.name, folder
        self.home, self.store = folder / "node", StreamStore(folder / "streams")
        #: Of one with a fresh state: its first input, and its first result.
        self.fresh: tuple[int, int] | None = None

    @property
    def twins(self) -> Mapping[str, Link]:
        return {}

    def plan(self, bucket_us: int) -> NodePlan:
        """Rule 1."""
        plan = self._host.catalog.plan_of(self._live, self._host.name, bucket_us)
        output = replace(plan.output, readers=(), capacity_us=None)
        return replace(plan, replica=self.replica, output=output, peers=(), during_failure=Policy.SUSPEND, warm=0.0)

    def say(self, sender: str, send: Send) -> None:
        """Nothing: it hears what the live replica is told, and what that has read is what may go."""

    def before_start(self, queries: NodeQueries) -> None:
        if self.fresh is not None and queries.position().until_us is None:
            queries.begin_anew(*self.fresh)


class Trial:
    """One trial that runs."""

    def __init__(self, host: Host, site: TrialSite, live: Controller, order: TrialOrder, content: bytes) -> None:
        self._host, self.site, self.live, self.order, self.content = host, site, live, order, content
        self.differences: tuple[str, ...] = ()
        self.carried = order.replay is None
        self.difference: Difference | None = None
        self.asked_us = monotonic_us()
        self.watching: asyncio.Task[None] | None = None
        self.comparing: asyncio.Future[bool] | None = None

    @property
    def controller(self) -> Controller | None:
        stand = self._host.controllers.get(self.site.replica)
        return stand if isinstance(stand, Controller) else None

    @property
    def node(self) -> str:
        return self.live.plan.replica.partition("@")[0]

    @property
    def what(self) -> Literal["compatible", "anew"]:
        """The change that a swap is, as the stream's history has it."""
        return "compatible" if self.carried else "anew"

    @property
    def level(self) -> bool:
        """Whether its output has come as far as the live one, up to the last bucket."""
        size, controller = self.live.output.definition.bucket_us, self.controller
        return controller is not None and controller.boundary_us >= self.live.boundary_us - size

    @property
    def trouble(self) -> str | None:
        """Why nothing more can be learned from it."""
        if self.controller is None:
            return "it has ended"
        if self.live.trouble is not None or self.live.stopped:
            return f"{self.live.plan.replica} has stopped"
        return self.controller.trouble

    def status(self) -> dict[str, Any]:
        """For `holdfast try`."""
        assert self.difference is not None
        controller, counts = self.controller, asdict(self.difference.counts)
        for name in ("from_us", "until_us"):
            counts[name.removesuffix("_us")] = instant_text(counts.pop(name))
        return {
            "node": self.node, "replica": self.live.plan.replica,
            "state": "FAILED" if self.trouble else "STABLE" if controller is None else controller.state,
            "why": self.trouble, "carried": self.carried, "differences": list(self.differences),
            "level": self.level, "key": self.difference.key, "added": self.difference.added, **counts,
        }  # fmt: skip


class Trials:
    """The trials of one host, by node."""

    def __init__(self, host: Host, reload: Reload) -> None:
        self._host, self._reload = host, reload
        self._trials: dict[str, Trial] = {}
        self._lock = asyncio.Lock()
        self._place = host.root / ".holdfast" / "trials"
        shutil.rmtree(self._place, ignore_errors=True)  # Of a host that was killed.

    def doors(self) -> list[Door]:
        path = "/v1/trials/{node}"
        return [
            Door(path, "POST", self._post), Door(path, "GET", self._get), Door(path, "DELETE", self._delete),
            Door(f"{path}/swap", "POST", self._swap),
        ]  # fmt: skip

    async def _post(self, request: Request) -> Response:
        try:
            order = _orders.decode(await body_of(request))
        except UNREADABLE as error:
            raise Refused(400, f"what is to be tried cannot be read: {error}") from None
        async with self._lock:
            trial = await self.start(str(request.path_params["node"]), order)
        return JSONResponse(trial.status())

    async def _get(self, request: Request) -> Response:
        trial = self._running(request)
        trial.asked_us = monotonic_us()
        return JSONResponse(trial.status())

    async def _delete(self, request: Request) -> Response:
        async with self._lock:
            await self.end(self._running(request))
        return JSONResponse({})

    async def _swap(self, request: Request) -> Response:
        async with self._lock:
            return JSONResponse(await self.swap(self._running(request)))

    def _running(self, request: Request) -> Trial:
        node = str(request.path_params["node"])
        if node not in self._trials:
            raise Refused(404, f"nothing is tried of node {node!r} on this host; begin with `holdfast try`")
        return self._trials[node]

    # -- a trial -----------------------------------------------------------------------------------------------------

    async def start(self, name: str, order: TrialOrder) -> Trial:
        """Set it up; raises if it cannot be (rules 2 and 3)."""
        host = self._host
        live = self._live(name)
        if name in self._trials:
            raise Refused(409, f"another definition of node {name!r} is tried just now; end that first")
        path = self._file(order.app)
        content = await _aside(path.read_bytes)
        app = await _aside(partial(load_app, order.app, self._folder))
        node = app.diagram().node(name)
        known = host.catalog.diagram.node(name)
        if not same_but_function(replace(known, output_schema=node.output_schema), node):
            raise UsageError(
                f"node {name!r} must be declared in {order.app} as it runs, with another function; it has other "
                f"options there; change them back, or stop its hosts and start them again"
            )
        site = TrialSite(host, node, self._place / name)
        trial = Trial(host, site, live, order, content)
        live.keep(_TRIAL)  # It has to read what the live one may have read already.
        try:
            await self._set_up(trial, known)
        except BaseException:
            live.release(_TRIAL)
            await self._clear(site)
            raise
        self._trials[name] = trial
        trial.watching = asyncio.ensure_future(self._watch(trial))
        ReplicaLog(log, site.replica).info("tries %s with %s state", order.app,
                                           "the live" if trial.carried else "a fresh")  # fmt: skip
        return trial

    def _live(self, name: str) -> Controller:
        host = self._host
        known = {node.name: node for node in host.catalog.nodes_on(host.name)}
        if name not in known:
            raise Refused(404, f"node {name!r} has no replica on this host; there are: {', '.join(known) or 'none'}")
        live = host.controllers.get(replica_name(name, host.name))
        if not isinstance(live, Controller) or not live.movable or live.boundary_us <= BEGINNING_US:
            raise Refused(
                409,
                f"node {name!r} must be STABLE here and have given results before another function is tried; wait "
                f"until `holdfast status` says so",
            )
        if (why := live.stays_because) is not None:
            raise Refused(409, f"the state of node {name!r} cannot be copied: {why}")
        return live

    @property
    def _folder(self) -> Path:
        return self._reload.deployment.file.parent

    def _path(self, app: str) -> Path:
        where, _, name = app.rpartition(":")
        return (self._folder / (where if where and "/" not in name else app)).resolve()

    def _file(self, app: str) -> Path:
        """Rule 2."""
        path, deployed = self._path(app), self._path(self._reload.deployment.app)
        if path.suffix != ".py" or path.parent != deployed.parent or not path.is_file():
            raise UsageError(
                f"what is tried must be a Python file beside the application of {self._reload.deployment.file.name}, "
                f"on the machine of the host; got {app}; copy it there"
            )
        return path

    async def _set_up(self, trial: Trial, known: NodeSpec) -> None:
        site, live = trial.site, trial.live
        await _aside(partial(shutil.rmtree, site.folder, ignore_errors=True))
        site.folder.mkdir(parents=True)
        if trial.order.replay is None:
            waiting = await _aside(partial(live.copy_to, site.folder / "checkpoint"))
        else:
            waiting = Waiting({}, 0, b"", boundary_us=live.boundary_us)
            start_us = (waiting.boundary_us - duration_us(trial.order.replay)) // live.plan.bucket_us
            site.fresh = start_us * live.plan.bucket_us, waiting.boundary_us
        await _aside(partial(lay_out, site.folder, live.output.definition, waiting))
        try:
            await self._host.set_up(site)
        except UsageError:
            if not self._may_go_on(trial, known):
                raise
            await self._host.set_up(site)
        trial.difference = await _aside(
            partial(Difference, live.output, site.store.open(known.output), _first_us(waiting, live), trial.order.key)
        )
        controller = trial.controller
        assert controller is not None
        self._host.overhear(live.plan.replica, controller)

    def _may_go_on(self, trial: Trial, known: NodeSpec) -> bool:
        """Rule 3, of a start that the engine has refused because the definition has changed."""
        refused = read_refused(trial.site.home)
        if refused is None:
            return False
        trial.differences = refused.differences
        if refused.misfits:
            raise UsageError(
                f"the state of node {known.name} was made by other operators, keys or windows and cannot be carried "
                f"over ({told(list(refused.misfits))}); try it with --replay and at least its longest window, such as "
                f"--replay {duration_text(known.convergent_us or 600 * SECOND_US)}: a fresh state is made of so much "
                f"input, as `holdfast upgrade {known.name} --from end --replay …` does"
            )
        write_upgrade(trial.site.home, Upgrade(refused.identity.number, "compatible"))
        return True

    async def _watch(self, trial: Trial) -> None:
        """Compare what has come; rule 4."""
        while True:
            await asyncio.sleep(_LOOK_S)
            if monotonic_us() - trial.asked_us > IDLE_S * SECOND_US and not self._lock.locked():
                log.info("the trial of node %s ends: nobody has asked for it for %.0f s", trial.node, IDLE_S)
                trial.watching = None  # This very task: nobody is to wait for it.
                async with self._lock:
                    await self.end(trial)
                return
            if trial.trouble is not None:
                continue
            if trial.controller is not None and trial.controller.core is not None:
                trial.live.keep(_TRIAL, trial.controller.core.needed_from)
            assert trial.difference is not None
            try:
                more = True
                while more:
                    trial.comparing = asyncio.get_running_loop().run_in_executor(None, trial.difference.advance)
                    more = await asyncio.shield(trial.comparing)
            except Exception as error:
                log.warning("the trial of node %s cannot be compared: %s", trial.node, error)

    async def end(self, trial: Trial) -> None:
        """Nothing of it stays."""
        self._trials.pop(trial.node, None)
        if trial.watching is not None:
            trial.watching.cancel()
            await asyncio.gather(trial.watching, return_exceptions=True)
        if trial.comparing is not None:  # A thread cannot be cancelled, and reads files that are about to be closed.
            await asyncio.wait({trial.comparing})
        if trial.difference is not None:
            trial.difference.close()
        trial.live.release(_TRIAL)
        await self._clear(trial.site)

    async def _clear(self, site: TrialSite) -> None:
        controller = self._host.controllers.get(site.replica)
        await self._host.take_down(site.replica)
        if isinstance(controller, Controller):
            await _aside(controller.forget)
        await _aside(partial(shutil.rmtree, site.folder, ignore_errors=True))

    # -- taken in ----------------------------------------------------------------------------------------------------

    async def swap(self, trial: Trial) -> dict[str, Any]:
        """Take what was tried in (`holdfast.host.swap`)."""
        host, live, name, controller = self._host, trial.live, trial.node, trial.controller
        if trial.trouble is not None or controller is None:
            raise UsageError(f"what was tried does not run: {trial.trouble}; it cannot be swapped in")
        if controller.core is None:
            raise UsageError(f"what was tried of node {name!r} must have read something to be swapped in; it has just "
                             f"begun; try again in a moment")  # fmt: skip
        if live.plan.peers:
            raise UsageError(
                f"node {name!r} must have one replica to be swapped while it runs; it has "
                f"{len(live.plan.peers) + 1}, which would have to change at the same bucket; stop its hosts and use "
                f"`holdfast upgrade`"
            )
        assert trial.difference is not None
        if trial.difference.added and (readers := host.catalog.readers(live.output.name)):
            raise UsageError(
                f"columns are added to a stream while it runs only if no node reads it, since those compute something "
                f"else then; {live.output.name} would get {trial.difference.added} and is read by "
                f"{', '.join(readers)}; write to another output=, or swap in a function without new columns"
            )
        await self._check_file(trial)
        async with self._reload.lock:  # Whoever reads the deployment again would start the node that is stopped here.
            live.keep(_SWAP, controller.core.needed_from)  # The trial goes on from there, and its copy stays behind.
            try:
                from_us = await self._take_in(trial, controller)
            finally:
                live.release(_SWAP)
            await self._reload.run()
        log.warning("node %s: %s was swapped in; results from %s on are its own", name, trial.order.app,
                    instant_text(from_us))  # fmt: skip
        return {"node": name, "replica": live.plan.replica, "from": instant_text(from_us), "what": trial.what}

    async def _take_in(self, trial: Trial, controller: Controller) -> int:
        """Steps 1 to 6; the first bucket that is the new definition's."""
        host, live, name = self._host, trial.live, trial.node
        await self._reload.check(name)
        home, output = host.home_of(name), live.output
        staging = staging_of(home)
        await _aside(partial(shutil.rmtree, staging, ignore_errors=True))
        staging.mkdir(parents=True)
        waiting = await _aside(partial(controller.copy_to, staging / "checkpoint"))
        await _aside(partial(_require_whole, controller.output, name))
        reached("swap-copied")
        await self._level(live, waiting)
        await host.drain(name)
        reached("swap-stopped")
        try:
            from_us = await _aside(partial(boundary_of, output))
            order = SwapOrder(from_us, trial.what, trial.differences, waiting.rows)
            await _aside(partial(order_swap, home, order, waiting))
        except BaseException:
            if not swap_ordered(home):  # Else there is no way back: the next start takes it up.
                host.resume(name)
            raise
        await self.end(trial)
        await _aside(live.forget)  # The copy has brought its states.
        await _aside(partial(finish_swap, host.engine, home, output))
        reached("swapped")
        return from_us

    async def _check_file(self, trial: Trial) -> None:
        """Rule 2."""
        path, deployed = self._file(trial.order.app), self._reload.deployment.app
        if path != self._path(deployed):
            raise UsageError(
                f"what is swapped in must be the application that {self._reload.deployment.file.name} names, "
                f"{deployed}, since hosts load that when they start; {trial.order.app} was tried; copy it there and "
                f"try that"
            )
        if await _aside(path.read_bytes) != trial.content:
            raise UsageError(f"{trial.order.app} has changed since it was tried; try it again, then swap it in")

    async def _level(self, live: Controller, waiting: Waiting) -> None:
        """Step 2 of a swap. Not amid a failure: a node that restarts then answers nobody until it is over (D12)."""
        end_us = monotonic_us() + round(_LEVEL_S * SECOND_US)
        while live.boundary_us < waiting.boundary_us or not live.movable:
            if monotonic_us() > end_us or live.trouble is not None:
                raise PeerError(
                    f"{live.plan.replica} must be STABLE and have come as far as the trial to be swapped; it is "
                    f"{live.state} after {_LEVEL_S:.0f} s; nothing was changed; try again when it is STABLE"
                )
            await asyncio.sleep(_LOOK_S / 10)


def _first_us(waiting: Waiting, live: Controller) -> int:
    """The first bucket that is all the trial's: results that waited when it was copied are those of the live one."""
    last_us, size = waiting.last_us(), live.output.definition.bucket_us
    return waiting.boundary_us if last_us is None else closed_until(last_us, size) + size


def _require_whole(output: Stream, node: str) -> None:
    """Of a trial, behind its copy. One that began anew behind a gap leaves results out until its state is right, and
    the stream that it is taken into would have them missing with nothing said of it (D14)."""
    if holes := read_holes(output.folder):
        raise UsageError(
            f"what was tried of node {node!r} must have read all of its input to be swapped in; some was gone, so that "
            f"its results from {instant_text(holes[0].first_us)} to {instant_text(holes[-1].upto_us)} are missing; "
            f"nothing was changed; end the trial and try it again"
        )


async def _aside(work: Callable[[], T]) -> T:
    """Run what waits for the disk or the engine in a thread."""
    return await asyncio.get_running_loop().run_in_executor(None, work)
