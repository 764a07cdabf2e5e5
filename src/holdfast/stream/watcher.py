"""Follows a stream as a subscriber does, and counts instead of decoding: for whoever draws it.

Rules:
1. The sequence is that of any reader beside the log (`protocol.dpc.local`): the same stable and tentative buckets, UNDO
   where something tentative was handed out, REC_DONE where something was taken back (D15).
2. Tuples are counted from the index of the log; no body is read. So a look costs the same however wide the rows are.
3. It begins at the live end. What retention or a dropped branch has taken away meanwhile is passed over: a picture has
   a hole then, and nobody's data depend on it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from typing import NamedTuple

from holdfast.clock import monotonic_us
from holdfast.model.errors import CorruptLog, Removed
from holdfast.model.time import BEGINNING_US
from holdfast.model.tuples import TupleType
from holdfast.protocol.dpc.local import BranchView, LocalReader, View
from holdfast.stream.branch import BranchReader, branch_folder
from holdfast.stream.reader import LogReader
from holdfast.stream.report import ReportReader
from holdfast.stream.store import Stream

logger = logging.getLogger(__name__)


class Counted(NamedTuple):
    """Tuples of one kind and one bucket that arrived together; UNDO and REC_DONE count one and have no stime."""

    kind: TupleType
    tuples: int = 1
    stime_min_us: int | None = None
    stime_max_us: int | None = None


class Watcher:
    """One look after the other at one stream of this machine."""

    def __init__(self, stream: Stream) -> None:
        definition, folder = stream.definition, stream.folder
        self._size = definition.bucket_us
        self._main = LogReader(folder / "main", definition.schema, definition.bucket_us)
        self._branch, self._branch_path = BranchReader(folder, definition), str(branch_folder(folder))
        self._report = ReportReader(folder)
        self._main.refresh()
        #: Stable tuples are counted from this stime on.
        self.begun_us = self._delivered_us = self._main.closed_until_us
        self._core = LocalReader(self._delivered_us // self._size)
        self._holds = self._undone = False

    @property
    def boundary_us(self) -> int:
        """What main promised at the last look."""
        return self._main.boundary_us

    def look(self) -> Iterator[Counted]:
        """What has come since the last look, in order."""
        for step in self._core.look(self._view(), monotonic_us()):
            if step.kind is TupleType.INSERTION:
                until_us = step.end * self._size
                yield from self._count(self._main, TupleType.INSERTION, self._delivered_us, until_us)
                self._delivered_us = until_us
            elif step.kind is TupleType.TENTATIVE and self._branch.log is not None:
                first_us = max(step.bucket * self._size, self._delivered_us)
                for counted in self._count(self._branch.log, TupleType.TENTATIVE, first_us, step.end * self._size):
                    self._holds = True
                    yield counted
            elif step.kind is TupleType.UNDO and self._holds:
                self._holds, self._undone = False, True
                yield Counted(TupleType.UNDO)
            elif step.kind is TupleType.REC_DONE and self._undone:
                self._undone = False
                yield Counted(TupleType.REC_DONE)

    def _view(self) -> View:
        """In this order: see `local`, rule 2."""
        self._report.refresh()
        self._main.refresh()
        until_us = self._main.closed_until_us
        main = -(-until_us // self._size) if until_us > self._delivered_us else BEGINNING_US
        # Nearly always there is none, and looking for one by opening it takes ten times as long.
        looks = self._branch.root is not None or os.path.exists(self._branch_path)
        root = self._branch.refresh() if looks else None
        branch = None
        if root is not None and self._branch.log is not None:
            branch = BranchView(root.id, root.root_us // self._size, -(-self._branch.log.closed_until_us // self._size))
        return View(self._report.report, self._report.renewed_us, main, self._main.closed, branch)

    def _count(self, log: LogReader, kind: TupleType, start_us: int, end_us: int) -> Iterator[Counted]:
        """Rule 3."""
        found: dict[int, Counted] = {}
        try:
            for _, fields in log.extents(start_us, end_us, strict=False):
                # A range ends where a bucket ends, so no event is cut by it.
                before = found.get(fields.bucket)
                low, high, rows = fields.stime_min_us, fields.stime_max_us, fields.rows
                if before is not None:
                    assert before.stime_min_us is not None
                    assert before.stime_max_us is not None
                    low, high = min(low, before.stime_min_us), max(high, before.stime_max_us)
                    rows += before.tuples
                found[fields.bucket] = Counted(kind, rows, low, high)
        except (Removed, CorruptLog, FileNotFoundError) as error:
            logger.info("%s: what came from %d to %d us is not in the picture: %s", log.folder, start_us, end_us, error)
        log.forget_index()
        yield from found.values()

    def close(self) -> None:
        self._main.close()
        self._branch.close()
