"""The store: a folder of streams, and the way in to everything one can do with a stream."""

from __future__ import annotations

import os
import shutil
import uuid
from pathlib import Path
from typing import Unpack

import msgspec

from holdfast.clock import Clock, now_us
from holdfast.model.errors import StorageError, UnknownStream, UsageError
from holdfast.model.names import check_name, contained
from holdfast.model.schema import SchemaLike, parse_schema, schema_text
from holdfast.model.time import SECOND_US
from holdfast.stream.acks import Acknowledged, forget, read_acks
from holdfast.stream.archive.catalog import read_note
from holdfast.stream.archive.objects import check_url
from holdfast.stream.branch import BranchRoot, branch_writer, create_branch, drop_branch, find_branch
from holdfast.stream.definition import (
    ARCHIVE_FORMAT,
    SEGMENT_BYTES_MIN,
    ArchivePolicy,
    Definition,
    Retention,
    StreamOptions,
    added_columns,
    check_archive,
    define,
    with_columns,
)
from holdfast.stream.disk import Disk, storage_error
from holdfast.stream.persistence import persistence_of
from holdfast.stream.presence import forget_presence
from holdfast.stream.producer import Producer, ProducerOptions
from holdfast.stream.reader import LogReader
from holdfast.stream.retention import AutomaticRetention, Removal, retain
from holdfast.stream.sealed import seal, unseal
from holdfast.stream.subscriber import Subscriber, SubscriberOptions
from holdfast.stream.writer import LogWriter

#: A segment of a stream with an archive is sealed after so long, so that not much is lost with the disk.
ARCHIVE_SEGMENT_US = 300 * SECOND_US


class Stream:
    """One named stream: what it is, and what can be done with it."""

    def __init__(self, folder: Path, definition: Definition, disk: Disk, clock: Clock) -> None:
        self.folder, self.definition, self._disk, self._clock = folder, definition, disk, clock

    @property
    def name(self) -> str:
        return self.definition.name

    def writer(self, *, takeover: bool = False, owner: str | None = None) -> LogWriter:
        """The raw writer of the main branch; most callers want `producer`."""
        retention, segment_bytes = self.definition.retention, self.definition.segment_bytes
        retains = retention != Retention() or self.definition.archive is not None
        # A stream kept for a day, or to a size, gives up a quarter of that at a time.
        age_us = None if retention.age_us is None else max(retention.age_us // 4, 1)
        if self.definition.archive is not None:
            age_us = min(age_us or ARCHIVE_SEGMENT_US, ARCHIVE_SEGMENT_US)
        if retention.size_bytes is not None:
            segment_bytes = min(segment_bytes, max(retention.size_bytes // 4, SEGMENT_BYTES_MIN))
        return LogWriter.open(
            self.folder / "main", self.definition.id_bytes, now_us=self._clock(), owner=owner, takeover=takeover,
            disk=self._disk, segment_bytes=segment_bytes, segment_age_us=age_us,
            retention=AutomaticRetention(self.definition) if retains else None,
            persistence=persistence_of(self.folder, self.definition),
        )  # fmt: skip

    def producer(self, *, takeover: bool = False, **options: Unpack[ProducerOptions]) -> Producer:
        """Open the stream for writing."""
        writer = self.writer(takeover=takeover)
        try:
            return Producer(self.definition, writer, clock=self._clock, **options)
        except BaseException:
            writer.release(self._clock())
            raise

    def subscribe(self, **options: Unpack[SubscriberOptions]) -> Subscriber:
        """Read the stream from any point."""
        return Subscriber(self.folder, self.definition, **options)

    def reader(self) -> LogReader:
        reader = LogReader(self.folder / "main", self.definition.schema, self.definition.bucket_us)
        reader.refresh()
        return reader

    def last(self, tuples: int) -> tuple[int, int]:
        """The bucket in which the last so many complete tuples begin, and how many of its tuples come before them."""
        reader = self.reader()
        try:
            return reader.last(tuples)
        finally:
            reader.close()

    def retain(self, policy: Retention | None = None) -> Removal:
        return retain(self.folder / "main", self.definition, self._clock(), disk=self._disk, policy=policy)

    def acks(self) -> dict[str, Acknowledged]:
        return read_acks(self.folder)

    def forget(self, subscriber: str) -> None:
        forget(self.folder, subscriber, self._disk)
        forget_presence(self.folder, subscriber, self._disk)

    def branch(self) -> BranchRoot | None:
        return find_branch(self.folder)

    def create_branch(self, root_us: int, *, id: str | None = None, kept_us: int | None = None) -> BranchRoot:
        return create_branch(self.folder, self.definition, root_us, self._clock(), id=id, kept_us=kept_us)

    def branch_writer(self, *, id: str | None = None, takeover: bool = False) -> LogWriter:
        return branch_writer(self.folder, self.definition, self._clock(), id=id, takeover=takeover)

    def drop_branch(self) -> bool:
        return drop_branch(self.folder)


class StreamStore:
    """All streams below one folder.

    >>> store = StreamStore("/tmp/streams")                                    # doctest: +SKIP
    >>> store.create("monitor1", "source string, bytes bigint", bucket="1s")   # doctest: +SKIP
    """

    def __init__(self, root: str | os.PathLike[str], *, disk: Disk | None = None, clock: Clock = now_us) -> None:
        self.root = Path(root).absolute()
        self._disk, self._clock = disk or Disk(), clock

    def create(
        self, name: str, schema: SchemaLike, *, exist_ok: bool = False, **options: Unpack[StreamOptions]
    ) -> Stream:
        """Declare a stream. Whole or not at all, also after a crash."""
        folder = contained(self.root, check_name(name))
        definition = define(name, schema, id=uuid.uuid4().hex, now_us=self._clock(), **options)
        if folder.exists():
            present = self.open(name)
            if exist_ok and present.definition.schema.equals(definition.schema):
                return present
            raise UsageError(
                f"stream {name} exists already with columns ({present.definition.columns}); "
                f"choose another name or delete it first"
            )
        staging = self.root / f".creating-{definition.id}"
        self._disk.make_dir(staging / "main")
        try:
            self._disk.replace_file(staging / "stream", seal(definition))
            self._disk.rename(staging, folder)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        self._disk.sync_dir(self.root)
        return Stream(folder, definition, self._disk, self._clock)

    def change_retention(self, name: str, retention: Retention) -> Stream:
        """The same stream, of which so much is kept. Who has it open goes by what held before, until it opens it."""
        present = self.open(name)
        if present.definition.persist != "always":
            raise UsageError(
                f"stream {name} is kept persist={present.definition.persist!r}: what its readers have acknowledged is "
                f"removed, and nothing else; its retention must stay as it is"
            )
        definition = msgspec.structs.replace(present.definition, retention=retention)
        self._disk.replace_file(present.folder / "stream", seal(definition))
        return Stream(present.folder, definition, self._disk, self._clock)

    def change_archive(self, name: str, policy: ArchivePolicy) -> Stream:
        """The same stream with this archive, and with what is kept on the disk and in it. Who has it open goes on as
        before until it opens it."""
        present = self.open(name)
        before = present.definition
        url = check_url(policy.url)
        if before.archive not in (None, url) and read_note(present.folder / "main") is not None:
            raise UsageError(
                f"stream {name} is archived at {before.archive}; it cannot move to {url} while it is there: restore it "
                f"below another root from a copy of that archive, or leave its archive as it is"
            )
        if before.archive is None:
            check_archive(url, policy.archive, before.persist, before.bound)
        definition = msgspec.structs.replace(
            before, archive=url, archive_retention=policy.archive, format=max(before.format, ARCHIVE_FORMAT),
            retention=before.retention if policy.disk is None else policy.disk,
        )  # fmt: skip
        if definition != before:
            self._disk.replace_file(present.folder / "stream", seal(definition))
        return Stream(present.folder, definition, self._disk, self._clock)

    def add_columns(self, name: str, wanted: SchemaLike) -> Stream:
        """The same stream with the columns of `wanted` that it has not got; they are null in what is there. Who has it
        open goes on with those it knew."""
        present, schema = self.open(name), parse_schema(wanted)
        added = added_columns(present.definition, schema)
        if added is None:
            raise UsageError(
                f"stream {name} keeps the columns that it has ({present.definition.columns}), others may be added; got "
                f"({schema_text(schema)}); write to a new stream"
            )
        if not len(added):
            return present
        present.definition.require_replay("who adds columns")
        definition = with_columns(present.definition, added)
        self._disk.replace_file(present.folder / "stream", seal(definition))
        return Stream(present.folder, definition, self._disk, self._clock)

    def open(self, name: str) -> Stream:
        """The stream of that name."""
        folder = contained(self.root, check_name(name))
        path = folder / "stream"
        try:
            definition = unseal(path.read_bytes(), Definition, str(path))
        except FileNotFoundError:
            known = ", ".join(self.names()) or "none"
            raise UnknownStream(
                f"no stream {name!r} below {self.root}; there are: {known}; check the name, or create it"
            ) from None
        except OSError as error:
            raise storage_error("open", path, error) from error
        return Stream(folder, definition, self._disk, self._clock)

    def names(self) -> list[str]:
        try:
            return sorted(p.name for p in self.root.iterdir() if (p / "stream").is_file() and p.name[0] != ".")
        except FileNotFoundError:
            return []
        except OSError as error:
            raise storage_error("list", self.root, error) from error

    def delete(self, name: str) -> None:
        """Remove a stream and all it holds; refused while somebody writes to it."""
        stream = self.open(name)
        stream.writer().release(self._clock())
        doomed = self.root / f".deleted-{uuid.uuid4().hex}"
        try:
            os.rename(stream.folder, doomed)
            shutil.rmtree(doomed)
        except OSError as error:
            raise StorageError(f"could not remove stream {name} whole: {error}; remove {doomed} by hand") from error
