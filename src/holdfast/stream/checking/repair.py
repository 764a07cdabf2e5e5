"""Puts a stream in order again: first a plan, then, if asked, its execution.

>>> report = repair(store.open("monitor1").folder, now_us=now_us())         # doctest: +SKIP
>>> for action in report.actions: print(action.file, action.what)           # doctest: +SKIP
>>> repair(store.open("monitor1").folder, now_us=now_us(), apply=True)      # doctest: +SKIP

Indexes, manifests, heads, torn ends and leftovers are mended without loss. Tuples that cannot be read stay where they
are, and are reported, until `drop_damaged` says that the stream shall go on without them; then the old segment is kept
in the folder `damaged` and the report names every tuple that is gone.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from pathlib import Path
from typing import NamedTuple

from holdfast.model.errors import CorruptLog, StorageError
from holdfast.model.time import BEGINNING_US
from holdfast.stream.acks import Acknowledged
from holdfast.stream.branch import BranchRoot, branch_folder
from holdfast.stream.checking.damaged import keep
from holdfast.stream.checking.finding import Finding, Severity
from holdfast.stream.checking.mend import mend
from holdfast.stream.checking.verify import Progress, verify
from holdfast.stream.definition import Definition
from holdfast.stream.disk import Disk
from holdfast.stream.frame import FILE_HEADER_SIZE, decode_file_header
from holdfast.stream.losses import Loss
from holdfast.stream.manifest import SEGMENT_FILE
from holdfast.stream.report import Report, report_path
from holdfast.stream.restore import Action, BranchRepair, Step, mend_step
from holdfast.stream.sealed import seal, unseal

_LEFTOVER = re.compile(r"\.(branch|dropped)-[0-9a-f]+")


class Repair(NamedTuple):
    """What was done, or would be."""

    actions: list[Action]
    losses: list[Loss]
    applied: bool
    remaining: list[Finding]
    """What is still wrong afterwards; before it is applied, what is wrong now."""


def repair(
    stream_folder: Path,
    *,
    now_us: int,
    apply: bool = False,
    drop_damaged: bool = False,
    disk: Disk | None = None,
    progress: Progress | None = None,
) -> Repair:
    """Plan, and with `apply` carry out, what puts the stream in order. `StreamBusy` while somebody writes to it."""
    disk = disk or Disk()
    todo = _Todo(stream_folder, drop_damaged, now_us)
    with contextlib.ExitStack() as held:
        if apply:
            for branch in todo.branches():
                held.enter_context(branch.alone())
        steps = todo.steps()
        if apply:
            for step in steps:
                step.run(disk)
            disk.sync_dir(stream_folder)
    actions = [s.action for s in steps]
    remaining = [f for f in verify(stream_folder, progress=progress) if f.severity > Severity.NOTE]
    return Repair(actions, [loss for a in actions for loss in a.losses], apply, remaining)


class _Todo:
    """Collects the steps for all that belongs to one stream."""

    def __init__(self, folder: Path, drop_damaged: bool, now_us: int) -> None:
        self.folder, self._drop, self._now_us = folder, drop_damaged, now_us
        self._branches: list[BranchRepair] | None = None

    def branches(self) -> list[BranchRepair]:
        if self._branches is None:
            folders = [self.folder / "main", branch_folder(self.folder)]
            self._branches = [
                BranchRepair(self.folder, f, self._stream_id(), drop_damaged=self._drop, now_us=self._now_us)
                for f in folders
                if f.is_dir() and not self._hopeless(f)
            ]
        return self._branches

    def steps(self) -> list[Step]:
        steps = mend_step(self.folder, self.folder / "stream", Definition) or []
        for path in sorted((self.folder / "acks").glob("*")):
            steps += self._acknowledgement(path)
        steps += self._report()
        tentative = branch_folder(self.folder)
        if tentative.is_dir():
            if self._hopeless(tentative):
                steps += [self._give_up_branch(tentative)] if self._drop else []
            else:
                steps += mend_step(self.folder, tentative / "branch", BranchRoot) or []
        for branch in self.branches():
            steps += branch.plan()
        for name in sorted(os.listdir(self.folder)):
            if _LEFTOVER.fullmatch(name):
                path = self.folder / name
                action = Action(path, "remove it: a crash left it behind")
                steps.append(Step(action, lambda disk, path=path: shutil.rmtree(path)))  # type: ignore[misc]
        return steps

    def _hopeless(self, branch: Path) -> bool:
        """A tentative branch of which nobody can tell where it begins."""
        root = branch / "branch"
        return branch.name != "main" and mend_step(self.folder, root, BranchRoot) is None

    def _acknowledgement(self, path: Path) -> list[Step]:
        """One that cannot be read counts as none at all: then nothing that its subscriber needs is removed (L8)."""
        if path.name.startswith("."):
            return [Step(Action(path, "remove it: a crash left it behind"), lambda disk: disk.unlink(path))]
        steps = mend_step(self.folder, path, Acknowledged)
        if steps is not None:
            return steps

        def run(disk: Disk) -> None:
            keep(self.folder, path, disk)
            disk.replace_file(path, seal(Acknowledged(until_us=BEGINNING_US, wall_us=self._now_us)))

        return [Step(Action(path, "let the subscriber have acknowledged nothing, until it does so again"), run)]

    def _report(self) -> list[Step]:
        path = report_path(self.folder)
        steps = mend_step(self.folder, path, Report)
        if steps is not None:
            return steps

        def run(disk: Disk) -> None:
            keep(self.folder, path, disk)
            disk.unlink(path)

        return [Step(Action(path, "remove it: the host of the stream makes another"), run)]

    def _give_up_branch(self, branch: Path) -> Step:
        def run(disk: Disk) -> None:
            disk.make_dir(self.folder / "damaged")
            disk.rename(branch, self.folder / "damaged" / f"tentative-{self._now_us}")
            disk.sync_dir(self.folder)

        return Step(Action(branch, "move the tentative branch to the folder `damaged`: its root is lost"), run)

    def _stream_id(self) -> bytes:
        """From the definition, or from any segment if that one is lost."""
        with contextlib.suppress(OSError, CorruptLog):
            data = (self.folder / "stream").read_bytes()
            try:
                return unseal(data, Definition, "").id_bytes
            except CorruptLog:
                return unseal(mend(data, Definition) or b"", Definition, "").id_bytes
        for path in sorted((self.folder / "main").glob("*.seg")):
            if SEGMENT_FILE.fullmatch(path.name):
                with contextlib.suppress(CorruptLog), path.open("rb") as file:
                    return decode_file_header(file.read(FILE_HEADER_SIZE), "").stream_id
        raise StorageError(
            f"{self.folder}: neither its definition nor any segment can be read; restore it from a replica"
        )
