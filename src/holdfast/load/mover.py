"""Moves tasks between this host and partners' (003 §7.2.3), in steps that may be cut short anywhere (B7).

A task leaves like this; it runs here until the last step but one, and there from the second:
    1. copied     where its query stands, as a parcel, while the query runs on
    2. sent       the partner has it, durably, and starts it; both compute now, and compute the same
    3. level      the partner's output has come as far as ours
    4. noted      one file here says that the partner's output counts from now on; ours is stopped
    5. following  the partner's output is appended to the stream that was ours all the time

And comes back:
    1. fetched    where the partner's query stands, while it runs on
    2. level      our stream has all that the partner had filed by then; we stop following
    3. filed      results that wait for their bucket are handed to our stream
    4. taken up   the checkpoint is the task's again; the file is gone, and the task runs here
    5.            the partner is told, and drops it

Rules:
1. Who writes the output is decided by the file alone. Before and after it, a crash on either side leaves one writer.
2. Two may compute the same for a while: results are a function of inputs (D9), and only one's are read.
3. Every step may be done again. What was half done is done anew from the beginning.
4. The parcel is kept while the task is away, and so is the input behind it. If the partner is gone for good, the task
   goes on from there: what the stream holds already is computed once more and left out.
5. While the file is there, somebody here follows the partner. What fails before the file changes leaves everything as
   it was; what fails afterwards is tried until it succeeds, since there is no way back (rule 1).
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TypeVar

from holdfast.clock import monotonic_us
from holdfast.host.crash_points import reached
from holdfast.host.log_lines import ReplicaLog
from holdfast.host.parcel import Unpacking, pack, parcel_version
from holdfast.host.rebuild import take_up_parcel
from holdfast.load.partner import PartnerLink, write_parcel
from holdfast.load.remote_task import AwayNote, Fault, RemoteTask, read_note, remove_note, write_note
from holdfast.load.tasks import HeldTask, guest_name
from holdfast.model.errors import PeerError, StorageError, UsageError
from holdfast.model.time import SECOND_US
from holdfast.stream.waiting import Waiting

log = logging.getLogger(__name__)

#: How long a partner may come no nearer: the first batch of a new Spark session takes minutes on a crowded machine. And
#: how long the last of its output may take to come here before a node comes back.
LEVEL_S = 120.0
#: How long two may compute the same, though the partner comes nearer all the time.
_BOTH_S = 900.0
_LOOK_S = 0.1
_AGAIN_S = 5.0
_CHUNK = 1 << 20
#: Who keeps the input of a task that is on its way.
_HOLDER = "movement"

T = TypeVar("T")


class Mover:
    """Carries out what the core has agreed. `tasks` are those that this host answers for, by their ids."""

    def __init__(self, tasks: Mapping[str, HeldTask], partners: Mapping[str, PartnerLink]) -> None:
        self._tasks, self._partners = tasks, partners

    def away(self, task: HeldTask) -> RemoteTask | None:
        """Who stands for the task, if it is elsewhere."""
        stand = task.host.controllers.get(task.replica)
        return stand if isinstance(stand, RemoteTask) else None

    def stand_in(self, task: HeldTask, note: AwayNote) -> None:
        """Follow what the partner produces."""
        partner = self._partners.get(note.partner)
        if partner is None and not _closed(task):
            raise UsageError(
                f"{task.task_id} is at {note.partner}'s, which must be named among the partners until the task is "
                f"back; add it again"
            )
        away = RemoteTask(task.replica, task.output, note, guest_name(note.lease_id), partner, task.say,
                          task.input_boundaries)  # fmt: skip
        task.host.add(task.replica, away)

    # There ------------------------------------------------------------------------------------------------------

    async def leave(self, task: HeldTask, lease_id: str, to: str) -> None:
        """Move the task to the partner; `PeerError` or `UsageError` if it stays here."""
        note = read_note(task.home)
        if note is not None and note.lease_id == lease_id:
            if self.away(task) is None:
                await self._follow(task, note)
            return
        controller, partner, guest = task.controller, self._partners[to], guest_name(lease_id)
        if controller is None or not controller.movable:
            raise UsageError(f"{task.task_id} must be STABLE to be moved; it is not so now; it stays here")
        note = AwayNote(lease_id, to)
        controller.keep(_HOLDER)
        try:
            parcel = await _aside(partial(self._pack, task, lease_id))
            reached("copied")
            await partner.send_parcel(guest, parcel)
            reached("sent")
            await self._level(task, partner, guest)
            if not controller.movable:
                raise UsageError(f"{task.task_id} is no longer STABLE; it stays here")
            reached("level")
            await _write(task, note)
        except BaseException:
            controller.release(_HOLDER)
            (task.home / "parcel").unlink(missing_ok=True)
            raise
        reached("noted")
        await _surely(task, "be stopped here", partial(task.host.take_down, task.replica))
        reached("stopped")
        await self._follow(task, note)
        ReplicaLog(log, task.replica).info("runs at %s now, under lease %s", to, lease_id)
        reached("following")

    async def _follow(self, task: HeldTask, note: AwayNote) -> None:
        """Rule 5."""

        async def follow() -> None:
            self.stand_in(task, note)

        await _surely(task, f"be followed at {note.partner}'s", follow)

    def _pack(self, task: HeldTask, lease_id: str) -> Path:
        """Step 1, as a file (rule 4)."""
        staging, parcel = task.home / "leaving", task.home / "parcel"
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(parents=True)
        controller = task.controller
        assert controller is not None
        try:
            waiting = controller.copy_to(staging / "checkpoint")
            write_parcel(parcel, pack(lease_id, task.definition, task.output.definition, waiting,
                                      staging / "checkpoint"))  # fmt: skip
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        return parcel

    async def _level(self, task: HeldTask, partner: PartnerLink, guest: str) -> None:
        """Step 3. Its output may trail ours by the last bucket: it will have it before anybody misses it."""
        controller, size = task.controller, task.output.definition.bucket_us
        assert controller is not None
        begun_us = nearer_us = monotonic_us()
        nearest, seen = 1 << 63, set[str]()
        while True:
            report, at_us = await partner.guest(guest), monotonic_us()
            behind_us = controller.boundary_us - report.boundary_us
            if behind_us <= size and report.state in ("STABLE", "UP_FAILURE"):
                return
            if behind_us < nearest or report.state not in seen:
                nearest, nearer_us = min(nearest, behind_us), at_us
                seen.add(report.state)
            late = at_us - nearer_us > LEVEL_S * SECOND_US or at_us - begun_us > _BOTH_S * SECOND_US
            if late or report.state == "FAILED":
                raise PeerError(
                    f"{partner.partner} has not caught up with {task.task_id} in "
                    f"{(at_us - begun_us) / SECOND_US:.0f} s (it is {report.state}); it stays here"
                )
            await asyncio.sleep(_LOOK_S)

    # And back ---------------------------------------------------------------------------------------------------

    async def come_back(self, task: HeldTask, lease_id: str) -> None:
        """Take the task back from the partner that runs it; `PeerError` if it stays there for now."""
        note = read_note(task.home)
        if note is None:
            return
        staging = task.home / "coming"
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(parents=True)
        unpacking = Unpacking(staging)
        try:
            await self._partners[note.partner].take_parcel(guest_name(lease_id), unpacking)
            head, _, waiting = await _aside(unpacking.finish)
        finally:
            unpacking.close()
        if head.definition != task.definition:
            raise PeerError(f"{note.partner} handed over {head.definition} instead of {task.definition}")
        if unpacking.version < parcel_version(task.home / "parcel"):
            raise PeerError(
                f"{note.partner} handed over {task.task_id} without the state of its operators; it must run a Holdfast "
                f"that moves it; upgrade it, or wait until the task is reclaimed"
            )
        reached("fetched")
        away = self.away(task)
        if away is None:
            self.stand_in(task, note)
            away = self.away(task)
        assert away is not None
        # Always: what the partner has filed since our stream stopped following is in neither of the two.
        if not await away.reach(waiting.boundary_us, LEVEL_S):
            if away.fault is Fault.OURS:
                raise StorageError(f"{task.task_id} stays at {note.partner}'s for now: {away.trouble}")
            raise PeerError(f"{note.partner} has not sent all of the output of {task.task_id}; it stays there for now")
        await self._take_up(task, note, staging, waiting)

    async def reclaim(self, task: HeldTask) -> None:
        """Rule 4: go on from where it left, without the partner."""
        note, staging = read_note(task.home), task.home / "coming"
        if note is None:
            return
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(parents=True)
        waiting = await _aside(partial(_unpacked, task, staging))
        await self._take_up(task, note, staging, waiting)

    async def _take_up(self, task: HeldTask, note: AwayNote, staging: Path, waiting: Waiting) -> None:
        away = self.away(task)
        try:
            if away is not None:
                await away.leave()
            await task.host.take_down(task.replica)
            await _aside(partial(_file, task, staging, waiting))
        except Exception:
            await self._follow(task, note)
            raise

        async def remove() -> None:
            remove_note(task.home)

        await _surely(task, "be taken up here", remove)
        reached("unnoted")
        await start(task)
        (task.home / "parcel").unlink(missing_ok=True)
        ReplicaLog(log, task.replica).info("runs here again")
        reached("back")


async def start(task: HeldTask) -> None:
    """Set a task up here, however often it takes: nobody else runs it."""
    await _surely(task, "be set up", task.start)


async def _surely(task: HeldTask, what: str, work: Callable[[], Awaitable[None]]) -> None:
    """However often it takes (rule 5)."""
    while True:
        try:
            await work()
            return
        except Exception as error:
            log.error("%s could not %s; it is tried again: %s", task.replica, what, error)
        await asyncio.sleep(_AGAIN_S)


def _closed(task: HeldTask) -> bool:
    reader = task.output.reader()
    try:
        reader.refresh()
        return reader.closed
    finally:
        reader.close()


async def _write(task: HeldTask, note: AwayNote) -> None:
    """Step 4. Once the file has its name it holds, durable or not: then it is made durable, however often it takes."""
    while True:
        try:
            write_note(task.home, note)
            return
        except Exception as error:
            if not _stands(task, note):
                raise
            ReplicaLog(log, task.replica).error("that it is at %s's could not be made durable: %s", note.partner, error)
        await asyncio.sleep(_AGAIN_S)


def _stands(task: HeldTask, note: AwayNote) -> bool:
    """Whether the file may be there: as long as that cannot be seen, it may."""
    try:
        return read_note(task.home) == note
    except Exception as error:
        ReplicaLog(log, task.replica).error("whether it is at %s's cannot be read: %s", note.partner, error)
        return True


def _file(task: HeldTask, staging: Path, waiting: Waiting) -> None:
    """Steps 3 and 4, in the order in which they may be cut short."""
    take_up_parcel(task.host.engine, task.home, task.output, staging, waiting)
    shutil.rmtree(staging, ignore_errors=True)


def _unpacked(task: HeldTask, staging: Path) -> Waiting:
    unpacking = Unpacking(staging)
    try:
        with (task.home / "parcel").open("rb") as file:
            while chunk := file.read(_CHUNK):
                unpacking.feed(chunk)
        waiting = unpacking.finish()[2]
    finally:
        unpacking.close()
    # The partner runs it under the id that is in the parcel, maybe to this day, and maybe in a store that both reach.
    task.host.engine.renew(staging / "checkpoint")
    return waiting


async def _aside(work: Callable[[], T]) -> T:
    """Run what waits for the disk or for Spark in a thread."""
    return await asyncio.get_running_loop().run_in_executor(None, work)
