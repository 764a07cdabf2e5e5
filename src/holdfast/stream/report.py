"""The report beside a stream: how its producer does, for readers on the same machine.

Rules:
1. It says what a client of other hosts is told by message (`StreamReport`), whenever that changes; durable and whole,
   so that no reader believes an older one after a power cut.
2. Its time of change is the producer's sign of life, renewed every half second and never synced. A reader counts from
   when it saw that change, by a clock that does not jump; only at its first look it has to believe the wall clock.
3. A report that cannot be read is no report of a living producer: readers go on with stable tuples, warn, and wait for
   the next one. `holdfast verify` finds it.
4. It is bounded: a longer file is none of ours.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

import msgspec

from holdfast.clock import monotonic_us, now_us
from holdfast.model.errors import CorruptLog, StorageError
from holdfast.model.time import BEGINNING_US
from holdfast.protocol.dpc.local import REPORT_US, REPORT_US_MAX
from holdfast.protocol.dpc.messages import StreamReport
from holdfast.protocol.dpc.states import StreamState
from holdfast.stream.disk import Disk
from holdfast.stream.frame import FORMAT_VERSION
from holdfast.stream.sealed import seal, unseal

log = logging.getLogger(__name__)

#: Its parts are bounded; ten times what they need.
REPORT_BYTES_MAX = 4096


class Report(msgspec.Struct, frozen=True):
    """What the producer last published."""

    stream: str
    state: str
    """A name of `StreamState`."""
    main_us: int
    """Main promised everything before this when the report was made; it may promise more by now."""
    fresh: bool
    """A tentative branch grows."""
    wall_us: int
    """When it was made; for people."""
    format: int = FORMAT_VERSION


def report_path(stream_folder: Path) -> Path:
    return stream_folder / "report"


class ReportWriter:
    """The producer's side. A disk that refuses a report is tried again; until then the producer gives no sign of life,
    and readers wait."""

    def __init__(self, stream_folder: Path, disk: Disk | None = None) -> None:
        self.path, self._disk = report_path(stream_folder), disk or Disk()
        self._said: StreamReport | None = None
        self._written = False
        self._due_us = 0
        for half_made in stream_folder.glob(f".{self.path.name}.*.tmp"):  # By a process that was killed.
            self._disk.unlink(half_made)

    def publish(self, report: StreamReport) -> None:
        """Rule 1."""
        self._said, self._written = report, False
        self._write()

    def renew(self) -> None:
        """Rule 2: still there, and nothing has changed. Call it often."""
        if self._said is None or monotonic_us() < self._due_us:
            return
        if self._written:
            try:
                os.utime(self.path)
                self._due_us = monotonic_us() + REPORT_US
                return
            except OSError as error:  # Somebody has removed it, perhaps to repair the stream.
                log.info("%s: the report cannot be renewed (%s); it is made anew", self.path, error)
        self._write()

    def _write(self) -> None:
        assert self._said is not None
        said = Report(self._said.stream, self._said.state.name, self._said.main_us, self._said.fresh, now_us())
        try:
            self._disk.replace_file(self.path, seal(said))
            self._written = True
        except StorageError as error:
            self._written = False
            log.warning("%s; readers on this machine get only stable tuples until it is written", error)
        self._due_us = monotonic_us() + REPORT_US


class ReportReader:
    """The reader's side: the report as of the last look, and when it was last renewed."""

    def __init__(self, stream_folder: Path) -> None:
        self._path = report_path(stream_folder)
        self._seen: tuple[int, int] | None = None
        self._looked_us = BEGINNING_US
        self.report: StreamReport | None = None
        self.renewed_us = BEGINNING_US

    def refresh(self) -> None:
        now = monotonic_us()
        try:
            found = os.stat(self._path)
        except (FileNotFoundError, NotADirectoryError):
            self._seen, self.report = None, None
            return
        seen = (found.st_ino, found.st_mtime_ns)
        if seen != self._seen:
            age_us = now_us() - found.st_mtime_ns // 1000
            # A clock that jumped may tell any age. After the first look it cannot be older than the look before.
            first = self._seen is None and self._looked_us == BEGINNING_US
            self.renewed_us = now - max(age_us, 0) if first else max(self._looked_us, now - max(age_us, 0))
            self._seen, self.report = seen, self._read()
        self._looked_us = now

    @property
    def lives(self) -> bool:
        """Whether somebody has renewed the report lately, as of the last look."""
        return self.report is not None and monotonic_us() - self.renewed_us <= REPORT_US_MAX

    def _read(self) -> StreamReport:
        try:
            return read_report(self._path)
        except CorruptLog as error:
            log.warning("%s; only stable tuples are read until the producer makes another", error)
        except FileNotFoundError:
            pass  # Removed while we looked.
        self.renewed_us = BEGINNING_US
        return StreamReport(self._path.parent.name, StreamState.FAILURE, BEGINNING_US, False)


def read_report(path: Path) -> StreamReport:
    """The report in a file; `CorruptLog` if it is damaged or none of ours."""
    with open(path, "rb") as file:
        data = file.read(REPORT_BYTES_MAX + 1)
    if len(data) > REPORT_BYTES_MAX:
        raise CorruptLog(f"{path}: a report has at most {REPORT_BYTES_MAX} bytes; this file has more; remove it")
    said = unseal(data, Report, str(path))
    if said.state not in StreamState.__members__:
        raise CorruptLog(f"{path}: the report names the state {said.state!r}, which this version does not know; "
                         "upgrade Holdfast")  # fmt: skip
    return StreamReport(said.stream, StreamState[said.state], said.main_us, said.fresh)
