"""The store: a folder of streams, and the way in to everything one can do with a stream."""

from __future__ import annotations

import os
import shutil
import uuid
from collections import Counter
from pathlib import Path
from typing import Any, Unpack

import msgspec
import pyarrow as pa

from holdfast.clock import Clock, now_us
from holdfast.model.errors import CorruptLog, StorageError, UnknownStream, UsageError
from holdfast.model.names import check_name, contained
from holdfast.model.schema import SchemaLike, parse_schema, schema_text
from holdfast.model.time import BEGINNING_US, SECOND_US
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
from holdfast.stream.manifest import load_manifest
from holdfast.stream.persistence import persistence_of
from holdfast.stream.prepared import refuse_prepared
from holdfast.stream.presence import forget_presence
from holdfast.stream.producer import Producer, ProducerOptions
from holdfast.stream.reader import LogReader
from holdfast.stream.retention import AutomaticRetention, Removal, retain
from holdfast.stream.sealed import seal, unseal
from holdfast.stream.striped_producer import StripedProducer, dealt_options
from holdfast.stream.striped_subscriber import StripedSubscriber, check_asked, parted_position
from holdfast.stream.stripes import ENDED, STRIPES_FILE, STRIPES_MAX, Stripes, check_key, stripe_names
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
            refuse_prepared(self.definition, writer.state.tokens, writer.state.boundary_us)
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


class StripedStream:
    """A stream that is too much for one writer: several streams, its stripes, merged in bucket order."""

    def __init__(self, dealing: Stripes, stripes: tuple[Stream, ...], clock: Clock) -> None:
        self.dealing, self.stripes, self._clock = dealing, stripes, clock
        #: That of the stripes, under the name of the whole.
        self.definition = msgspec.structs.replace(stripes[0].definition, name=dealing.name)
        for id, stripe in zip(dealing.ids, stripes, strict=False):
            if stripe.definition.id != id:
                raise UsageError(
                    f"stream {stripe.name} is not the stripe of {dealing.name} that was created with it, but another "
                    f"one of its name; bring the old one back from a copy or its archive, or delete {dealing.name}"
                )
        for stripe in stripes:
            d = stripe.definition
            # By name: columns that each stripe got by itself may stand in another order.
            if d.bucket_us != self.definition.bucket_us or _types(d) != _types(self.definition):
                raise UsageError(
                    f"the stripes of stream {dealing.name} must have equal columns and buckets; got ({d.columns}) for "
                    f"{d.name} and ({self.definition.columns}) for {stripes[0].name}; add the columns "
                    f"that are missing with store.add_columns_striped({dealing.name!r}, …)"
                )

    @property
    def name(self) -> str:
        return self.dealing.name

    def producer(self, *, takeover: bool = False, **options: Unpack[ProducerOptions]) -> StripedProducer:
        """Open all stripes for writing. Other processes may write them instead, each a stripe or several:
        `stripes[0].producer()`."""
        writers: list[LogWriter] = []
        producers: list[Producer] = []
        try:
            writers += (stripe.writer(takeover=takeover) for stripe in self.stripes)
            for stripe, writer in zip(self.stripes, writers, strict=True):
                refuse_prepared(stripe.definition, writer.state.tokens, writer.state.boundary_us)
            self._finish_end(writers)
            for stripe, writer in zip(self.stripes, writers, strict=True):
                told: Any = dealt_options(options)
                producers.append(Producer(stripe.definition, writer, clock=self._clock, **told))
            own: Any = {k: v for k, v in options.items() if k != "full_timeout"}
            return StripedProducer(self.definition, self.dealing.by, producers, clock=self._clock, **own)
        except BaseException:
            for producer in producers:
                producer.close(end=False)
            for writer in writers[len(producers) :]:
                writer.release(self._clock())
            raise

    def _finish_end(self, writers: list[LogWriter]) -> None:
        """Whoever ended the whole may have been killed before the last stripe; whoever writes one stripe ends that."""
        still_open = [writer for writer in writers if not writer.state.closed]
        ended = [s.name for s, writer in zip(self.stripes, writers, strict=True) if writer.state.closed]
        if not ended or not still_open:
            return
        if not any(writer.state.closed and ENDED in writer.state.tokens for writer in writers):
            others = [stripe.name for stripe in self.stripes if stripe.name not in ended]
            raise UsageError(
                f"stream {self.name}: {', '.join(ended)} ended, and not with the whole, so that nobody can deal to all "
                f"stripes; open the others by their names ({', '.join(others)}), or end them as well"
            )
        for writer in still_open:
            writer.commit((), now_us=self._clock(), closed=True, tokens={ENDED: 1})

    def subscribe(self, **options: Unpack[SubscriberOptions]) -> StripedSubscriber:
        """Read the stripes as one stream, from any point."""
        asked: dict[str, Any] = dict(options)
        check_asked(self.name, asked)
        boundaries, after = asked.pop("boundaries", False), asked.pop("after", None)
        if asked.get("start") == "live" and asked.get("bucket") is None and after is None:
            complete_us = self.complete_until_us
            if complete_us > BEGINNING_US:
                asked["bucket"] = complete_us // self.definition.bucket_us
            else:  # Also what one stripe has completed: no reader has got it.
                asked["start"] = "beginning"
        count = len(self.stripes)
        positions = [None] * count if after is None else parted_position(after, self.name, count)
        opened: list[Subscriber] = []
        try:
            opened += (s.subscribe(**asked, after=at) for s, at in zip(self.stripes, positions, strict=True))
            return StripedSubscriber(self.definition, opened, boundaries=boundaries)
        except BaseException:
            for subscriber in opened:
                subscriber.close()
            raise

    @property
    def complete_until_us(self) -> int:
        """What all stripes have completed; those that were closed at their end hold nobody back."""
        readers = [stripe.reader() for stripe in self.stripes]
        try:
            still_open = [r.closed_until_us for r in readers if not r.closed]
            return min(still_open, default=max(r.closed_until_us for r in readers))
        finally:
            for reader in readers:
                reader.close()

    def last(self, tuples: int) -> tuple[int, int]:
        """As `Stream.last`, of all stripes together."""
        until = self.complete_until_us // self.definition.bucket_us
        if tuples == 0:
            return until, 0
        near = min(stripe.last(tuples)[0] for stripe in self.stripes)
        counts = self._rows_per_bucket(near, until)
        if sum(counts.values()) < tuples:  # One stripe has few, or they lie behind what all have completed.
            counts = self._rows_per_bucket(None, until)
        found = 0
        for bucket in sorted(counts, reverse=True):
            found += counts[bucket]
            if found >= tuples:
                return bucket, found - tuples
        return min(counts, default=until), 0

    def _rows_per_bucket(self, first: int | None, until: int) -> Counter[int]:
        size, counts = self.definition.bucket_us, Counter[int]()
        for stripe in self.stripes:
            reader = stripe.reader()
            try:
                entries = reader.entries(BEGINNING_US if first is None else first * size, until * size)
            finally:
                reader.close()
            for bucket, rows in zip(entries["bucket"].tolist(), entries["rows"].tolist(), strict=True):
                if bucket < until and (first is None or bucket >= first):
                    counts[bucket] += rows
        return counts


def _types(definition: Definition) -> dict[str, pa.DataType]:
    return {field.name: field.type for field in definition.schema}


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
        if self.stripes_of(name) is not None:
            raise UsageError(f"stream {name} exists already, with stripes; choose another name or delete it first")
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

    def create_striped(
        self,
        name: str,
        schema: SchemaLike,
        *,
        stripes: int,
        stripe_by: str | None = None,
        exist_ok: bool = False,
        **options: Unpack[StreamOptions],
    ) -> StripedStream:
        """Declare a stream of several stripes: whole or not at all. `stripe_by` names the column whose equal values go
        to one stripe; without it tuples go to the stripes in turn. The options hold for each stripe."""
        names, arrow = stripe_names(name, stripes), parse_schema(schema)
        if stripe_by is not None:
            check_key(stripe_by, arrow)
        if (persist := options.get("persist", "always")) != "always":
            raise UsageError(f"a striped stream is kept persist='always'; got {persist!r}; create one without stripes")
        folder = contained(self.root, name)
        present = self.stripes_of(name)
        if present is not None:
            striped = self.open_striped(name)
            same = (present.stripes, present.by) == (stripes, stripe_by) and striped.definition.schema.equals(arrow)
            if exist_ok and same:
                return striped
            raise UsageError(
                f"stream {name} exists already: {present.text}, columns ({striped.definition.columns}); choose another "
                f"name or delete it first"
            )
        if folder.exists():
            raise UsageError(f"stream {name} exists already, without stripes; choose another name or delete it first")
        try:
            made = [self._create_stripe(stripe, arrow, **options) for stripe in names]
            ids = tuple(stripe.definition.id for stripe in made)
            self._publish(Stripes(id=uuid.uuid4().hex, name=name, stripes=stripes, ids=ids, by=stripe_by,
                                  created_us=self._clock()))  # fmt: skip
        except (StorageError, UsageError):
            if self.stripes_of(name) is None:
                raise
            # Somebody else was faster: theirs is what is there.
            return self.create_striped(name, arrow, stripes=stripes, stripe_by=stripe_by, exist_ok=exist_ok, **options)
        return self.open_striped(name)

    def _publish(self, dealing: Stripes) -> None:
        """From then on the stripes are one stream."""
        staging = self.root / f".creating-{dealing.id}"
        self._disk.make_dir(staging)
        try:
            self._disk.replace_file(staging / STRIPES_FILE, seal(dealing))
            self._disk.rename(staging, contained(self.root, dealing.name))
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        self._disk.sync_dir(self.root)

    def _create_stripe(self, name: str, schema: pa.Schema, **options: Unpack[StreamOptions]) -> Stream:
        """One that is there and was never written to was left by whoever was killed in here, or is of somebody who
        creates the same stream now."""
        folder = contained(self.root, name)
        if not folder.exists():
            try:
                return self.create(name, schema, **options)
            except (StorageError, UsageError):
                if not folder.exists():
                    raise
        present = self.open(name)
        wanted = define(name, schema, id=present.definition.id, now_us=present.definition.created_us, **options)
        if present.definition != wanted or load_manifest(present.folder / "main") is not None:
            raise UsageError(f"stream {name} exists already and would be a stripe; choose another name or delete it")
        return present

    def open_striped(self, name: str) -> StripedStream:
        """The striped stream of that name."""
        dealing = self.stripes_of(name)
        if dealing is None:
            self.open(name)
            raise UsageError(f"stream {name} has no stripes; open it as any other: store.open({name!r})")
        return StripedStream(dealing, tuple(self.open(stripe) for stripe in dealing.names), self._clock)

    def open_all(self, name: str) -> list[Stream]:
        """The streams to read for this name: its stripes, or the one that it names."""
        dealing = self.stripes_of(name)
        return [self.open(name)] if dealing is None else list(self.open_striped(name).stripes)

    def stripes_of(self, name: str) -> Stripes | None:
        """How the stream of this name is striped; None if it is not, or not there."""
        path = contained(self.root, check_name(name)) / STRIPES_FILE
        advice = (
            f"bring it back from a copy; its stripes {name}.s0 … can be read by their names, and deleting {name} "
            f"removes them as well"
        )
        try:
            return unseal(path.read_bytes(), Stripes, str(path), advice)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise storage_error("open", path, error) from error

    def stripes_there(self, name: str) -> list[str] | None:
        """The stripes of a striped stream that are there, by their names where its own file is damaged; None if it is
        not striped."""
        try:
            if (dealing := self.stripes_of(name)) is None:
                return None
            wanted = dealing.names
        except CorruptLog:
            wanted = tuple(f"{name}.s{n}" for n in range(STRIPES_MAX))
        known = set(self.names())
        return [stripe for stripe in wanted if stripe in known]

    def striped_names(self) -> list[str]:
        """The names of striped streams; `names` has their stripes."""
        return self._names_with(STRIPES_FILE)

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
        present = self.open(name)
        added = self._columns_to_add(present, parse_schema(wanted))
        if not len(added):
            return present
        definition = with_columns(present.definition, added)
        self._disk.replace_file(present.folder / "stream", seal(definition))
        return Stream(present.folder, definition, self._disk, self._clock)

    def add_columns_striped(self, name: str, wanted: SchemaLike) -> StripedStream:
        """The same for all stripes of a striped stream. Whoever was killed in here does it again."""
        dealing = self.stripes_of(name)
        if dealing is None:
            raise UsageError(f"stream {name} has no stripes; use store.add_columns({name!r}, …)")
        for stripe in dealing.names:  # Before the first has changed.
            self._columns_to_add(self.open(stripe), parse_schema(wanted))
        for stripe in dealing.names:
            self.add_columns(stripe, wanted)
        return self.open_striped(name)

    def _columns_to_add(self, present: Stream, wanted: pa.Schema) -> pa.Schema:
        added = added_columns(present.definition, wanted)
        if added is None:
            raise UsageError(
                f"stream {present.name} keeps the columns that it has ({present.definition.columns}), others may be "
                f"added; got ({schema_text(wanted)}); write to a new stream"
            )
        if len(added):
            present.definition.require_replay("who adds columns")
        return added

    def open(self, name: str) -> Stream:
        """The stream of that name."""
        folder = contained(self.root, check_name(name))
        path = folder / "stream"
        try:
            definition = unseal(path.read_bytes(), Definition, str(path))
        except FileNotFoundError:
            self._refuse_striped(name)
            known = ", ".join(self.names()) or "none"
            raise UnknownStream(
                f"no stream {name!r} below {self.root}; there are: {known}; check the name, or create it"
            ) from None
        except OSError as error:
            raise storage_error("open", path, error) from error
        return Stream(folder, definition, self._disk, self._clock)

    def _refuse_striped(self, name: str) -> None:
        """Whoever knows streams alone is not given a striped one as if it were one."""
        if (dealing := self.stripes_of(name)) is not None:
            raise UsageError(
                f"stream {name} is striped ({dealing.text}), and this takes a stream with one log; name a stripe, such "
                f"as {dealing.names[0]}, or use store.open_striped({name!r})"
            )

    def names(self) -> list[str]:
        """All streams, stripes among them."""
        return self._names_with("stream")

    def _names_with(self, file: str) -> list[str]:
        try:
            return sorted(p.name for p in self.root.iterdir() if (p / file).is_file() and p.name[0] != ".")
        except FileNotFoundError:
            return []
        except OSError as error:
            raise storage_error("list", self.root, error) from error

    def delete(self, name: str) -> None:
        """Remove a stream and all it holds, stripes included; refused while somebody writes to it."""
        if (stripes := self.stripes_there(name)) is not None:
            self._delete_striped(name, stripes)
            return
        whole = name.rpartition(".s")[0]
        if whole and name in (self.stripes_there(whole) or ()):
            raise UsageError(f"stream {name} is a stripe of {whole}, which is nothing without it; delete {whole}")
        self._delete_log(self.open(name))

    def _delete_striped(self, name: str, stripes: list[str]) -> None:
        """Its definition last: whoever is killed in here deletes the rest by doing it again."""
        there = [self.open(stripe) for stripe in stripes]
        for stripe in there:  # Before the first is gone.
            stripe.writer().release(self._clock())
        for stripe in there:
            self._delete_log(stripe)
        self._remove(name)

    def _delete_log(self, stream: Stream) -> None:
        stream.writer().release(self._clock())
        self._remove(stream.name)

    def _remove(self, name: str) -> None:
        """At once: whoever is killed in here leaves a folder that no name leads to."""
        doomed = self.root / f".deleted-{uuid.uuid4().hex}"
        self._disk.rename(contained(self.root, name), doomed)
        try:
            shutil.rmtree(doomed)
        except OSError as error:
            raise StorageError(f"could not remove stream {name} whole: {error}; remove {doomed} by hand") from error
