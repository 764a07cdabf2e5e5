"""One look at a stream on this machine: its report, main and branch, as the core of a reader wants them.

Everybody who reads the files of a stream with its branch looks this way: subscribers, and queries of Spark.
"""

from __future__ import annotations

from pathlib import Path

from holdfast.model.time import BEGINNING_US
from holdfast.protocol.dpc.local import BranchView, View
from holdfast.stream.branch import BranchReader
from holdfast.stream.definition import Definition
from holdfast.stream.reader import LogReader
from holdfast.stream.report import ReportReader


class StreamLook:
    """Main, branch and report of one stream. Without `tentative` it sees main alone; with `all_columns` it refuses
    events that have more than it knows."""

    def __init__(self, folder: Path, definition: Definition, *, tentative: bool, all_columns: bool = False) -> None:
        self._bucket_us = definition.bucket_us
        self.main = LogReader(folder / "main", definition.schema, definition.bucket_us)
        self.main.all_columns = all_columns
        self.branch = BranchReader(folder, definition, all_columns=all_columns) if tentative else None
        self._report = ReportReader(folder)

    def view(self, delivered_us: int, end_us: int | None = None, limit_us: int | None = None) -> View:
        """What there is now for a reader that has everything stable before `delivered_us`, wants nothing from `end_us`
        on, and nothing stable from `limit_us` on yet. In this order: see `local`, rule 2."""
        if self.branch is not None:
            self._report.refresh()
        self.main.refresh()
        until_us = earlier(self.main.closed_until_us, end_us)
        ended = self.main.closed or (end_us is not None and until_us >= end_us)
        if limit_us is not None and limit_us < until_us:
            until_us, ended = limit_us, False
        main = -(-until_us // self._bucket_us) if until_us > delivered_us else BEGINNING_US
        return View(self._report.report, self._report.renewed_us, main, ended, self._branch_view(end_us))

    def _branch_view(self, end_us: int | None) -> BranchView | None:
        root = self.branch.refresh() if self.branch is not None else None
        if self.branch is None or root is None or self.branch.log is None:
            return None
        size = self._bucket_us
        return BranchView(root.id, root.root_us // size, -(-earlier(self.branch.log.closed_until_us, end_us) // size))

    def close(self) -> None:
        self.main.close()
        if self.branch is not None:
            self.branch.close()


def earlier(until_us: int, end_us: int | None) -> int:
    """The earlier of the two, where there is an end at all."""
    return until_us if end_us is None else min(until_us, end_us)
