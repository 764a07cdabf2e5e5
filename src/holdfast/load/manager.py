"""The load manager of one host: the core, its journal, its partners, and the tasks it answers for (003 §7.2).

Rules:
1. Everything about the core happens in the host's event loop, in order. Records are durable before anything that
   follows from the same signal is said or done (`Effects`, rule 1). Once that has failed, the core knows more than the
   disk, and it is asked nothing more: the host ends, and starts again with what the disk says (L9).
2. A participant is one host, as in the seeds' prototype; an owner of several gives each of them its contracts.
3. What runs here is what the disk says: own nodes without a note that they are away, and guests with a folder.
4. A partner that stays silent or brings nothing beyond our patience is taken for gone: its work for us goes on here
   (`Patience`). So does what a partner has put out. What has stopped a guest here may pass: it is set up again, as a
   node of our own would be.
5. Time is the wall clock at the start and what has passed since: nobody pays because somebody has set a clock.
6. A task whose stream has ended is over for good: once all of it is in our log, its lease ends, and the partner drops
   it. The note stays, and with it the one who answers for the stream: there is nothing left to run here either.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

from holdfast.clock import monotonic_us, now_us
from holdfast.diagram import Diagram
from holdfast.host.controller import Controller
from holdfast.host.crash_points import reached
from holdfast.host.host import Host
from holdfast.host.log_lines import ReplicaLog
from holdfast.load.contract_file import Terms, is_older_id
from holdfast.load.history import History, Movement, Sample
from holdfast.load.journal import Journal
from holdfast.load.meter import Census
from holdfast.load.mover import Mover, start
from holdfast.load.outbox import Outbox
from holdfast.load.partner import PartnerLink
from holdfast.load.patience import Patience
from holdfast.load.remote_task import RemoteTask, read_note
from holdfast.load.tasks import Guest, GuestNote, HeldTask, OwnTask, guests_on, remove_guest
from holdfast.model.errors import HoldfastError, PeerError, StorageError, UsageError
from holdfast.model.time import SECOND_US
from holdfast.protocol.load.contract import Contract
from holdfast.protocol.load.effects import Effects, Fetch, Move, Reclaim
from holdfast.protocol.load.leases import Lease, LeaseState, Role
from holdfast.protocol.load.participant import ParticipantCore
from holdfast.protocol.load.records import OfferClosed, OfferMade, Opened, Reserved
from holdfast.protocol.load.signals import (
    Arrived,
    Finished,
    Measured,
    Moved,
    MoveFailed,
    Place,
    Returned,
    Signal,
    Tick,
    Unreachable,
)

log = logging.getLogger(__name__)

#: How finely the core's wishes to be woken are kept; what it adds to a negotiation of some seconds does not matter.
_PULSE_S = 0.05
_MEASURE_US = SECOND_US
#: How long an engine is left alone after it did not start.
_READY_S = 30.0


class LoadManager:
    """Runs beside the host. `definitions` are the nodes that partners may bring."""

    def __init__(self, host: Host, terms: Terms, definitions: Diagram) -> None:
        self.host, self.terms, self.definitions = host, terms, definitions
        own = host.root / ".holdfast" / "load"
        self.journal = Journal(own / "journal")
        self.history = History(own / "history")
        signed = {contract.contract_id for contract in terms.plan.contracts}
        for record in self.journal.records:
            if isinstance(record, Opened | Reserved) and record.contract_id not in signed:
                if is_older_id(record.contract_id):
                    raise UsageError(
                        f"{own / 'journal'} has a lease of contract {record.contract_id}, which an older Holdfast "
                        "named by another rule; let the lease end with that version, then go on with this one"
                    )
                raise UsageError(
                    f"{terms.file} must still have the contract {record.contract_id} with the clauses that it had: the "
                    "journal speaks of it; put it back until its leases have ended"
                )
        # An offer under clauses that are no longer signed binds nobody: its answer is met with a release.
        void = [OfferClosed(record.offer_id) for record in self.journal.records
                if isinstance(record, OfferMade) and record.contract_id not in signed]  # fmt: skip
        self._begun_us = now_us() - monotonic_us()
        self.core = ParticipantCore(terms.plan, [*self.journal.records, *void], self.now_us)
        self._failed: str | None = None
        """Why nothing may be told to the core any more (rule 1)."""
        self.partners = {name: PartnerLink(partner, terms.name) for name, partner in terms.partners.items()}
        self.tasks: dict[str, HeldTask] = {}
        self.mover = Mover(self.tasks, self.partners)
        self.census = Census(self.tasks, terms, self.lease_of)
        self.outbox = Outbox(self.partners, terms.plan.contracts, lambda partner: self.tell(Unreachable(partner)))
        self.patience = Patience(terms.patience_us)
        self._under_way: dict[str, asyncio.Task[None]] = {}
        self._wake_us = self._measured_us = 0
        #: Movements of tasks of ours since the start, and those that did not come about.
        self.moved_out = self.moved_back = self.moves_failed = 0
        for node in host.catalog.nodes_on(host.name):
            self.tasks[node.name] = OwnTask(host, node)
            if read_note(host.home_of(node.name)) is not None:
                host.absent.add(node.name)
        for folder, note in guests_on(host.root):
            self.tasks[note.lease_id] = self.guest(folder, note)

    def nobodys(self, contract: Contract) -> str:
        """Nodes that a contract permits and nobody here has heard of, as a sentence; empty if there are none. No reason
        to end: contracts outlive nodes."""
        known, where = {node.name for node in self.definitions.nodes}, "our definitions do not have"
        if contract.buyer == self.terms.name:
            known |= {node.name for node in self.host.catalog.diagram.nodes}
            where = "neither our application nor our definitions have"
        unknown = sorted(set(contract.permits or ()) - known)
        if not unknown:
            return ""
        return (
            f"it permits {', '.join(unknown)}, and {where} such a node; there is {', '.join(sorted(known)) or 'none'}; "
            f"correct permits in {self.terms.file} and in the partner's file"
        )

    def guest(self, folder: Path, note: GuestNote) -> Guest:
        if note.owner not in self.partners:
            raise UsageError(
                f"{self.terms.file} must still name {note.owner!r} as a partner: a task of its runs here ({folder}); "
                "put it back until the task has gone home"
            )
        return Guest(self.host, folder, note, self.definitions.node(note.definition), self.partners[note.owner])

    # Life -------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Manage until cancelled."""
        for contract in self.terms.plan.contracts:
            if nobodys := self.nobodys(contract):
                log.warning("%s: %s", contract.contract_id, nobodys)
        self.outbox.start()
        if any(contract.seller == self.terms.name for contract in self.terms.plan.contracts):
            # What comes should not wait for a JVM: two compute the same until it is level.
            self.work("make ready for guests", self._make_ready())
        for task in list(self.tasks.values()):
            note = read_note(task.home)
            if note is not None:
                self.mover.stand_in(task, note)
            elif isinstance(task, Guest):
                self.start(task)
        try:
            self._resume()
            while True:
                if monotonic_us() - self._measured_us >= _MEASURE_US:
                    await self._measure()
                    self._look_after()
                if self._failed is not None or self.now_us >= self._wake_us:
                    self.tell(Tick())
                await asyncio.sleep(_PULSE_S)
        finally:
            self.outbox.stop()
            for work in self._under_way.values():
                work.cancel()

    async def close(self) -> None:
        """Let go of everything; the host's replicas are gone by now."""
        for held in self.tasks.values():
            if isinstance(held, Guest):
                await held.close()
        for link in self.partners.values():
            await link.close()
        if self._failed is None:
            # What is over need not be read again, and its contracts may go.
            self.journal.shorten(self.core.snapshot())
        self.journal.close()

    async def _make_ready(self) -> None:
        while True:
            try:
                await self.host.start_engine()
                return
            except Exception as error:
                log.error("%s, without which nothing can run here, does not start; it is tried again: %s",
                          self.host.engine.name, error)  # fmt: skip
            await asyncio.sleep(_READY_S)

    def start(self, guest: Guest) -> None:
        """A guest is here: set it up."""
        self.work(f"start {guest.task_id}", start(guest))

    def _resume(self) -> None:
        """Say what the disk says: guests are here; what was to come back is back if no note is left."""
        for task in list(self.tasks.values()):
            if isinstance(task, Guest):
                self.tell(Arrived(task.task_id))
        for lease in list(self.core.book.leases.values()):
            held = self.tasks.get(lease.task.task_id)
            back = lease.role is Role.BUYER and lease.state is LeaseState.RETURNING
            if back and held is not None and read_note(held.home) is None:
                self.tell(Returned(lease.lease_id))

    def work(self, name: str, work: Any) -> None:
        """Do this beside everything else, once at a time for each name."""
        if name in self._under_way and not self._under_way[name].done():
            work.close()
            return
        task = asyncio.ensure_future(work)
        self._under_way[name] = task
        task.add_done_callback(lambda done: self._done(name, done))

    def _done(self, name: str, task: asyncio.Task[None]) -> None:
        if self._under_way.get(name) is task:
            del self._under_way[name]
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s: %s", name, error, exc_info=None if isinstance(error, HoldfastError) else error)

    # The core ---------------------------------------------------------------------------------------------------

    @property
    def now_us(self) -> int:
        """Rule 5."""
        return self._begun_us + monotonic_us()

    def tell(self, signal: Signal) -> None:
        """Rule 1."""
        if self._failed is not None:
            raise StorageError(
                f"{self.journal.path} could not be written before ({self._failed}), so nothing more is agreed here; "
                "mend that and start the host again"
            )
        try:
            effects = self.core.handle(signal, self.now_us)
            if effects.record:
                self.journal.append(effects.record)
                if self.journal.long:
                    self.journal.shorten(self.core.snapshot())
        except BaseException as error:
            self._failed = str(error) or type(error).__name__
            raise
        self._carry_out(effects)
        self._wake_us = effects.wake_us

    def _carry_out(self, effects: Effects) -> None:
        for send in effects.send:
            self.outbox.put(send.to, send.message)
        for move in effects.move:
            self.work(f"move {move.lease_id}", self._move(move))
        for fetch in effects.fetch:
            self.work(f"fetch {fetch.lease_id}", self._fetch(fetch))
        for reclaim in effects.reclaim:
            self.work(f"fetch {reclaim.lease_id}", self._was_put_out(reclaim))
        for drop in effects.drop:
            self.work(f"drop {drop.lease_id}", self._drop(drop.lease_id))

    # Movements --------------------------------------------------------------------------------------------------

    async def _move(self, step: Move) -> None:
        held, begun = self.tasks.get(step.task.task_id), monotonic_us()
        controller = None if held is None else held.controller
        try:
            if held is None:
                raise UsageError(f"there is no task {step.task.task_id} here any more")
            await self.mover.leave(held, step.lease_id, step.to)
        except Exception as error:
            # Whatever it was, the core must know, or the lease would be under way for ever.
            log.warning("%s was not moved to %s: %s", step.task.task_id, step.to, error)
            if not isinstance(error, PeerError | UsageError):
                log.error("moving %s: %s", step.task.task_id, error, exc_info=not isinstance(error, HoldfastError))
            self.moves_failed += 1
            self.tell(MoveFailed(step.lease_id))
            return
        self.moved_out += 1
        self.census.forget(step.task.task_id)
        lease = self.core.book.leases.get(step.lease_id)
        self.tell(Moved(step.lease_id))
        self.history.add(Movement(now_us(), step.task.task_id, self.terms.name, step.to,
                                  lease.price if lease else 0.0, monotonic_us() - begun))  # fmt: skip
        # What it has kept since the copy was made. If it comes back, it brings its states.
        await self._forget(controller)

    async def _forget(self, controller: Controller | None) -> None:
        if controller is not None:
            await asyncio.get_running_loop().run_in_executor(None, controller.forget)

    async def _fetch(self, step: Fetch) -> None:
        held, begun = self.tasks.get(step.task.task_id), monotonic_us()
        if held is None:
            return
        try:
            await self.mover.come_back(held, step.lease_id)
        except Exception as error:
            if isinstance(error, PeerError):
                self.patience.refused(step.lease_id)
            log.warning("%s did not come back from %s yet: %s", step.task.task_id, step.from_, error,
                        exc_info=not isinstance(error, HoldfastError | OSError))  # fmt: skip
            return
        self._came_back(step.lease_id, step.task.task_id, step.from_, begun)

    def _came_back(self, lease_id: str, task_id: str, source: str, begun_us: int) -> None:
        lease = self.core.book.leases.get(lease_id)
        self.patience.forget(lease_id)
        self.moved_back += 1
        self.tell(Returned(lease_id))
        self.history.add(Movement(now_us(), task_id, source, self.terms.name, lease.price if lease else 0.0,
                                  monotonic_us() - begun_us, back=True))  # fmt: skip

    async def _drop(self, lease_id: str) -> None:
        guest = self.tasks.get(lease_id)
        if not isinstance(guest, Guest):
            return
        reached("dropping")
        starting = self._under_way.get(f"start {lease_id}")
        if starting is not None:
            starting.cancel()
            await asyncio.wait({starting})
        controller = guest.controller
        await self.host.take_down(guest.replica)
        await self._forget(controller)
        del self.tasks[lease_id]
        await guest.close()
        self.census.forget(lease_id)
        remove_guest(guest.folder)
        ReplicaLog(log, guest.replica).info("its lease is over, and so is its time here")
        reached("dropped")

    def _look_after(self) -> None:
        """Rules 4 and 6."""
        for task_id, held in list(self.tasks.items()):
            away, controller = self.mover.away(held), held.controller
            if away is not None and away.ended:
                self._finish(task_id, held, away)
            elif away is not None:
                self.work(f"look after {task_id}", self._look_for(task_id, held, away))
            elif isinstance(held, Guest) and controller is not None and controller.may_return:
                self.work(f"start {task_id}", self._start_again(held))

    def _finish(self, task_id: str, held: HeldTask, away: RemoteTask) -> None:
        """Rule 6. A guest that went further ends with the lease under which it is here; what is just coming back ends
        by coming back."""
        lease = self.core.book.onward(task_id)
        if isinstance(held, Guest) or (lease is not None and f"fetch {lease.lease_id}" in self._under_way):
            return
        if lease is None or lease.over:
            (held.home / "parcel").unlink(missing_ok=True)  # Whoever was killed before the last line of this.
            return
        log.info("%s has ended at %s's; its lease %s ends", task_id, away.note.partner, lease.lease_id)
        self.tell(Finished(task_id))
        self.patience.forget(lease.lease_id)
        (held.home / "parcel").unlink(missing_ok=True)  # Nothing will go on from there.

    async def _look_for(self, task_id: str, held: HeldTask, away: RemoteTask) -> None:
        why = await self.patience.over(held, away)
        if why is not None:
            self.work(f"fetch {away.note.lease_id}", self._reclaim(task_id, held, away.note.lease_id, why))

    async def _start_again(self, guest: Guest) -> None:
        """As `Host` does with its own."""
        await asyncio.sleep(self.host.return_s)
        await self.host.take_down(guest.replica)
        await start(guest)

    async def _reclaim(self, task_id: str, held: HeldTask, lease_id: str, why: str) -> None:
        begun, lease = monotonic_us(), self.core.book.leases.get(lease_id)
        log.warning("%s; %s goes on here", why, task_id)
        self.tell(Place(task_id))
        await self.mover.reclaim(held)
        self._came_back(lease_id, task_id, lease.partner if lease else "", begun)

    async def _was_put_out(self, step: Reclaim) -> None:
        held = self.tasks.get(step.task.task_id)
        if held is not None:
            why = f"{step.from_} has ended lease {step.lease_id}"
            await self._reclaim(step.task.task_id, held, step.lease_id, why)

    def place(self, node: str, where: str) -> str:
        """By hand: run a node of ours at this partner, or at home. Returns what is going to happen, in a sentence."""
        held = self.tasks.get(node)
        if not isinstance(held, OwnTask):
            known = ", ".join(name for name, task in self.tasks.items() if isinstance(task, OwnTask)) or "none"
            raise UsageError(f"no node {node!r} of {self.terms.name!r} on host {self.host.name!r}; there are: {known}")
        away, home = self.mover.away(held), where in ("", self.terms.name, self.host.name)
        stand = away or held.controller
        if stand is not None and stand.ended:
            raise UsageError(f"{node} has ended, with its inputs; there is nothing left to move")
        if home:
            self.tell(Place(node))
            return f"{node} comes back from {away.note.partner}" if away else f"{node} runs at home already"
        self.terms.partner(where)
        if held.bound_by is not None:
            raise UsageError(f"{node} cannot be moved: {held.bound_by}")
        contract = next((c for c in self.terms.plan.contracts if (c.buyer, c.seller) == (self.terms.name, where)), None)
        if contract is None:
            raise UsageError(f"{self.terms.name!r} has no contract to move load to {where!r}; {self.terms.file} has "
                             "none with `to: " + where + "`; both owners must sign one")  # fmt: skip
        if contract.permits is not None and held.definition not in contract.permits:
            raise UsageError(f"the contract with {where!r} permits {', '.join(contract.permits)}; not {node}")
        if away is not None and away.note.partner == where:
            return f"{node} runs at {where} already"
        consent = self.outbox.agreed.get(where, "it has not been asked yet")
        if isinstance(consent, str):
            raise PeerError(f"partner {where!r} cannot be reached, so {node} stays: {consent}")
        if contract.contract_id not in consent:
            raise UsageError(f"{where!r} has not signed the same contract; compare its clauses with {self.terms.file}")
        if away is None:
            _check_stable(held)
        self.tell(Place(node, where))
        return f"{node} is offered to {where} at {contract.price_low:g} to {contract.price_high:g}"

    # What runs here ---------------------------------------------------------------------------------------------

    async def _measure(self) -> None:
        told = await self.census.look()
        self._measured_us = monotonic_us()
        if not told:
            return
        tasks = self.census.running()
        self.tell(Measured(tasks, movable=self.census.movable()))
        self.history.add(Sample(now_us(), self.terms.name, self.census.load.cpu, self.terms.capacity.cpu,
                                {task.task_id: round(task.usage.cpu, 4) for task in tasks}))  # fmt: skip

    def lease_of(self, task_id: str) -> Lease | None:
        """The lease under which a guest is here, or a task of ours away."""
        return self.core.book.leases.get(task_id) or self.core.book.onward(task_id)


def _check_stable(held: HeldTask) -> None:
    """What is not STABLE cannot be copied: the state that counts is not the newest that there is."""
    if (controller := held.controller) is None or not controller.movable:
        state = "being set up" if controller is None else str(controller.status()["state"])
        raise UsageError(
            f"{held.task_id} must be STABLE to be moved; it is {state}; `holdfast status` says why; try again later"
        )
