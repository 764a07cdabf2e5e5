"""The tentative branch: what a stream shows while its inputs are incomplete.

Rules:
1. A stream has at most one. It is rooted at a point of main: it holds tuples with stime at or after its root.
2. Each has an id of its own. Which failure it belongs to, and whether anybody still answers for it, stands in the
   stream's report.
3. It is thrown away as a whole once the corrections are complete; so its bytes are never synced.
4. It keeps its newest part alone. Nobody acknowledges what is tentative: a reader that is there is near the end, one on
   another host keeps a copy of its own for as long as its forks need it, and whoever comes late wants news.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pyarrow as pa

from holdfast.model.errors import CorruptLog, Fenced, Removed, UsageError
from holdfast.model.time import BEGINNING_US, SECOND_US, instant_text
from holdfast.stream.definition import Definition, Retention
from holdfast.stream.disk import Disk, VolatileDisk, storage_error
from holdfast.stream.frame import FORMAT_VERSION
from holdfast.stream.head import read_head
from holdfast.stream.index import Fields
from holdfast.stream.reader import LogReader
from holdfast.stream.retention import AutomaticRetention
from holdfast.stream.sealed import seal, unseal
from holdfast.stream.writer import LogWriter

#: What a branch keeps at most, by size and by when it was written (rule 4). A failure may last for weeks; whoever lost
#: a connection, or starts a query again, is back within minutes.
BRANCH_BYTES = 64 << 20
BRANCH_US = 1800 * SECOND_US
#: It is cut in whole segments: in that many steps it is filled.
_STEPS = 8


class BranchRoot(msgspec.Struct, frozen=True):
    """Where and when a branch began."""

    id: str
    root_us: int
    created_us: int
    format: int = FORMAT_VERSION
    kept_us: int | None = None
    """For how long it keeps what was written; None: `BRANCH_US`."""


def branch_folder(stream_folder: Path) -> Path:
    return stream_folder / "tentative"


def find_branch(stream_folder: Path) -> BranchRoot | None:
    path = branch_folder(stream_folder) / "branch"
    try:
        return unseal(path.read_bytes(), BranchRoot, str(path))
    except (FileNotFoundError, NotADirectoryError):
        return None


def create_branch(
    stream_folder: Path,
    definition: Definition,
    root_us: int,
    now_us: int,
    *,
    id: str | None = None,
    kept_us: int | None = None,
) -> BranchRoot:
    """Begin the tentative branch at `root_us`, which must be the beginning of a bucket; it keeps what was written
    within `kept_us`, if that is less than usual."""
    if root_us % definition.bucket_us:
        raise UsageError(
            f"stream {definition.name}: a branch must begin where a bucket begins, at a multiple of "
            f"{definition.bucket_us} µs; got {root_us}"
        )
    root = BranchRoot(id=id or os.urandom(8).hex(), root_us=root_us, created_us=now_us, kept_us=kept_us)
    disk = Disk()
    staging = stream_folder / f".branch-{root.id}"
    disk.make_dir(staging)
    disk.replace_file(staging / "branch", seal(root))
    try:
        os.rename(staging, branch_folder(stream_folder))
    except OSError as error:
        shutil.rmtree(staging, ignore_errors=True)
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise storage_error("begin a branch of", stream_folder, error) from error
        present = find_branch(stream_folder)
        since = instant_text(present.root_us) if present else "elsewhere"
        raise UsageError(
            f"stream {definition.name}: it has a tentative branch already, rooted at {since}; drop that one first"
        ) from None
    return root


def drop_branch(stream_folder: Path) -> bool:
    """Throw the branch away; False if there was none. Readers see it vanish at once, as a whole.

    What a process that was killed has left of branches, half made or half removed, goes as well.
    """
    doomed = stream_folder / f".dropped-{os.urandom(8).hex()}"
    try:
        os.rename(branch_folder(stream_folder), doomed)
        dropped = True
    except FileNotFoundError:
        dropped = False
    except OSError as error:
        raise storage_error("drop the branch of", stream_folder, error) from error
    for pattern in (".dropped-*", ".branch-*"):
        for leftover in stream_folder.glob(pattern):
            shutil.rmtree(leftover, ignore_errors=True)
    return dropped


def branch_writer(
    stream_folder: Path, definition: Definition, now_us: int, *, id: str | None = None, takeover: bool = False
) -> LogWriter:
    """The writer of the branch; of no other than `id`, if given."""
    root = find_branch(stream_folder)
    if root is None:
        raise UsageError(f"stream {definition.name}: it has no tentative branch; create one first")
    if id is not None and root.id != id:
        raise Fenced(f"stream {definition.name}: branch {id} was dropped, {root.id} took its place; stop writing to it")
    kept_us = min(root.kept_us or BRANCH_US, BRANCH_US)
    retention = Retention(age_us=kept_us, size_bytes=BRANCH_BYTES)
    newest = msgspec.structs.replace(definition, retention=retention, bound=None, archive=None)
    writer = LogWriter.open(branch_folder(stream_folder), definition.id_bytes, now_us=now_us, takeover=takeover,
                            disk=VolatileDisk(), segment_bytes=min(definition.segment_bytes, BRANCH_BYTES // _STEPS),
                            segment_age_us=kept_us // _STEPS,
                            retention=AutomaticRetention(newest, readers=False))  # fmt: skip
    writer.commit([], now_us=now_us, boundary_us=root.root_us)
    return writer


def cut_of(stream_folder: Path, definition: Definition) -> int:
    """What the branch has lost lies before it, in whole buckets."""
    until_us, size = read_head(branch_folder(stream_folder)).removed_until_us, definition.bucket_us
    return -(-until_us // size) * size if until_us > BEGINNING_US else BEGINNING_US


class BranchReader:
    """Follows whatever branch the stream has now; None while there is none."""

    def __init__(self, stream_folder: Path, definition: Definition, *, all_columns: bool = False) -> None:
        self._folder, self._definition, self._all_columns = stream_folder, definition, all_columns
        self.root: BranchRoot | None = None
        self.log: LogReader | None = None

    def refresh(self) -> BranchRoot | None:
        while True:
            root = find_branch(self._folder)
            if root is None or self.root is None or root.id != self.root.id:
                self.close()
                self.root = root
                if root is not None:
                    d = self._definition
                    self.log = LogReader(branch_folder(self._folder), d.schema, d.bucket_us)
                    self.log.all_columns = self._all_columns
            if self.log is None:
                return None
            trouble: Exception | None = None
            try:
                self.log.refresh()
            except (FileNotFoundError, CorruptLog) as error:
                trouble = error
            if self.current():  # Otherwise what was seen may be of another branch: look again.
                if trouble is not None:
                    raise trouble
                return self.root

    @property
    def cut_us(self) -> int:
        """What lies before it, in whole buckets, was there and is no more."""
        return cut_of(self._folder, self._definition)

    @property
    def cut_rows(self) -> int:
        """How many tuples that were."""
        return read_head(branch_folder(self._folder)).removed_rows

    def scan(self, start_us: int, end_us: int) -> Iterator[tuple[Fields, pa.RecordBatch]]:
        """What the branch still has of [start, end), bucket by bucket."""
        assert self.log is not None
        while True:
            start_us = max(start_us, self.cut_us)
            try:
                yield from self.log.scan(start_us, end_us)
                return
            except Removed:
                # Before it gives what lies there, a scan looks whether that was cut meanwhile; so nothing comes twice.
                if not self.current() or self.cut_us <= start_us:
                    raise
                self.log.refresh()

    def current(self) -> bool:
        """Is the branch that was last seen still there?"""
        now = find_branch(self._folder)
        return now is not None and self.root is not None and now.id == self.root.id

    def close(self) -> None:
        if self.log is not None:
            with contextlib.suppress(OSError):
                self.log.close()
        self.root, self.log = None, None
