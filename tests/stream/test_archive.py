"""Tiered streams: what is archived may leave the disk, is read from there, and comes back from there (L4, L6, L8)."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from holdfast.host.replica_log import Held
from holdfast.model.errors import CorruptLog, Fenced, Removed, StorageError, StreamFull, UsageError
from holdfast.stream.archive import catalog as catalogs
from holdfast.stream.archive import ranges
from holdfast.stream.archive.archiver import EVERY_US, Archiver, archive_lag, archive_once, archive_state
from holdfast.stream.archive.catalog import newest, place, read_note
from holdfast.stream.archive.expiry import expire
from holdfast.stream.archive.object_stores import open_objects
from holdfast.stream.archive.objects import MissingObject, ObjectStore, check_url
from holdfast.stream.archive.restore import Restored, restore_stream
from holdfast.stream.archive.upload import Uploaded
from holdfast.stream.archive.view import view_at
from holdfast.stream.checking.repair import repair
from holdfast.stream.checking.verify import verify
from holdfast.stream.definition import Bound, Retention
from holdfast.stream.disk import Disk
from holdfast.stream.head import Head, alone, read_head, write_head
from holdfast.stream.sealed import seal
from holdfast.stream.store import Stream, StreamStore
from tests.faults.units import QuietDisk
from tests.s3_server import S3Server, s3_server

SECOND = 1_000_000


class Clock:
    now = 1_000 * SECOND

    def __call__(self) -> int:
        return self.now


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as running:
        yield running


@pytest.fixture(params=["folder", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An archive that is empty: a folder, and a bucket of a real S3 server."""
    monkeypatch.setattr(ranges, "_process", None)
    if request.param == "folder":
        (tmp_path / "archive").mkdir()
        return f"file://{tmp_path}/archive"
    running: S3Server = request.getfixturevalue("server")
    bucket = f"b{os.urandom(6).hex()}"
    running.make_bucket(bucket)
    for name, value in running.environment.items():
        monkeypatch.setenv(name, value)
    return f"s3://{bucket}/prefix"


@pytest.fixture
def folder_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(ranges, "_process", None)
    (tmp_path / "archive").mkdir()
    return f"file://{tmp_path}/archive"


@pytest.fixture(autouse=True)
def _no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests archive when they say so; the thread has tests of its own."""
    monkeypatch.setattr("holdfast.stream.retention.wake_archiver", lambda *args, **options: None)


def stream_of(root: Path, url: str, retention: Retention | None = None, **options: object) -> Stream:
    store = StreamStore(root, disk=QuietDisk(), clock=Clock())
    return store.create("s", "n bigint, text string", bucket="1s", retention=retention, archive=url,
                        **{"segment_bytes": 4096, **options})  # fmt: skip


def fill(stream: Stream, numbers: range, *, end: bool = False, text: str = "x") -> None:
    with stream.producer(boundary_every="1h", stime="stime") as producer:
        for n in numbers:
            producer.send({"n": n, "text": text * 900, "stime": n * SECOND}, seq=n)
        if not end:
            producer.advance((numbers[-1] + 1) * SECOND)
        producer.close(end=end)


def archive(stream: Stream) -> Uploaded:
    return archive_once(stream.folder / "main", stream.definition, disk=QuietDisk(), clock=stream._clock)


def numbers(stream: Stream, **options: object) -> list[int]:
    with stream.subscribe(**options) as subscriber:  # type: ignore[arg-type]
        return [n for batch in subscriber.poll() for n in batch.column("n").to_pylist()]


def objects_of(stream: Stream) -> ObjectStore:
    assert stream.definition.archive is not None
    return open_objects(stream.definition.archive)


def restored(stream: Stream, root: Path, **options: object) -> tuple[Stream, Restored]:
    assert stream.definition.archive is not None
    found = restore_stream(root, "s", stream.definition.archive, now_us=1, disk=QuietDisk(), **options)  # type: ignore[arg-type]
    return StreamStore(root, disk=QuietDisk(), clock=Clock()).open("s"), found


# -- away from the disk ----------------------------------------------------------------------------------------------


def test_what_left_the_disk_is_read_from_the_archive(tmp_path: Path, url: str) -> None:
    stream = stream_of(tmp_path, url, Retention(size_bytes=6000))
    fill(stream, range(100))
    done = archive(stream)
    assert done.segments > 10
    assert done.rows > 90
    assert stream.retain().segments > 5
    on_disk = list((stream.folder / "main").glob("*.seg"))
    assert len(on_disk) < 5
    assert numbers(stream) == list(range(100))
    assert numbers(stream, start=10, end=20) == list(range(10, 20))
    reader = stream.reader()
    assert reader.rows == 100
    assert reader.stime_min_us == 0
    assert reader.archived.rows + sum(s.rows for s in reader.segments[:-1]) <= 100
    assert stream.last(60)[0] == 40
    reader.close()


def test_nothing_leaves_the_disk_before_it_is_archived(tmp_path: Path, folder_url: str) -> None:
    stream = stream_of(tmp_path, folder_url, Retention(size_bytes=1))
    fill(stream, range(50))
    removal = stream.retain()
    assert removal.segments == 0
    assert removal.stopped_by == "the archive does not have the rest yet"
    archive(stream)
    assert stream.retain().segments > 10
    assert read_head(stream.folder / "main").removed_rows == 0, "it is elsewhere, not gone"


def test_subscribers_need_not_have_acknowledged_what_leaves_the_disk(tmp_path: Path, folder_url: str) -> None:
    stream = stream_of(tmp_path, folder_url, Retention(size_bytes=1))
    fill(stream, range(20))
    with stream.subscribe(name="slow") as slow:
        fill(stream, range(20, 60))
        archive(stream)
        assert stream.retain().segments > 10
        assert [n for b in slow.poll() for n in b.column("n").to_pylist()] == list(range(60))


def test_a_bounded_stream_waits_for_the_archive(tmp_path: Path, folder_url: str) -> None:
    stream = stream_of(tmp_path, folder_url, bound=Bound(40_000))
    fill(stream, range(25))
    with stream.producer(boundary_every="1h", stime="stime", full_timeout="0s") as producer:
        for n in range(25, 300):
            try:
                producer.send({"n": n, "text": "x" * 900, "stime": n * SECOND}, seq=n)
            except StreamFull:
                assert archive(stream).segments
                producer.send({"n": n, "text": "x" * 900, "stime": n * SECOND}, seq=n)
        producer.close()
    assert numbers(stream) == list(range(300))


def test_an_ended_stream_is_archived_to_its_end(tmp_path: Path, url: str) -> None:
    stream = stream_of(tmp_path, url)
    fill(stream, range(30), end=True)
    archive(stream)
    assert archive_lag(stream.folder / "main").segments == 0
    again, found = restored(stream, tmp_path / "elsewhere")
    assert found.closed
    assert numbers(again) == list(range(30))


# -- damage ----------------------------------------------------------------------------------------------------------


def test_rot_is_not_archived(tmp_path: Path, folder_url: str) -> None:
    stream = stream_of(tmp_path, folder_url, Retention(size_bytes=1))
    fill(stream, range(40))
    victim = sorted((stream.folder / "main").glob("*.seg"))[2]
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 1
    victim.write_bytes(data)
    with pytest.raises(CorruptLog, match="is not archived"):
        archive(stream)
    assert archive_state(stream.folder / "main").failures == 1
    assert stream.retain().segments == 2, "those before it"


def test_a_wrong_bit_in_the_archive_is_not_returned(tmp_path: Path, folder_url: str) -> None:
    stream = stream_of(tmp_path, folder_url, Retention(size_bytes=1))
    fill(stream, range(40))
    archive(stream)
    stream.retain()
    victim = sorted((tmp_path / "archive").rglob("*.seg"))[1]
    data = bytearray(victim.read_bytes())
    data[3000] ^= 1
    victim.write_bytes(data)
    with pytest.raises(CorruptLog, match="archive"):
        numbers(stream)


@pytest.mark.parametrize("lost", [True, False])
def test_an_index_that_is_lost_in_the_archive_is_built_again(tmp_path: Path, url: str, lost: bool) -> None:
    stream = stream_of(tmp_path, url, Retention(size_bytes=1))
    fill(stream, range(40))
    archive(stream)
    stream.retain()
    store = objects_of(stream)
    for key in store.sizes(""):
        if key.endswith(".idx"):
            store.delete([key]) if lost else store.put(key, [b"no index"])
    assert numbers(stream) == list(range(40))
    twin, _ = restored(stream, tmp_path / "again", everything=True)
    assert numbers(twin)[:30] == list(range(30))


@pytest.mark.parametrize("damage", ["a bit", "the file", "the head"])
def test_a_damaged_disk_is_mended_from_the_archive(tmp_path: Path, url: str, damage: str) -> None:
    stream = stream_of(tmp_path, url, Retention(size_bytes=14_000))
    fill(stream, range(40))
    archive(stream)
    assert stream.retain().segments > 2
    victim = sorted((stream.folder / "main").glob("*.seg"))[0]
    if damage == "a bit":
        data = bytearray(victim.read_bytes())
        data[2000] ^= 1
        victim.write_bytes(data)
    elif damage == "the file":
        victim.unlink()
    else:
        (stream.folder / "main" / "head").write_text("nothing\n")
    report = repair(stream.folder, now_us=1, apply=True, disk=QuietDisk())
    assert report.actions
    assert report.losses == []
    assert [f for f in report.remaining if f.severity > 1] == []
    assert numbers(stream) == list(range(40))
    assert [f for f in verify(stream.folder, archive=True) if f.severity > 1] == []


@pytest.mark.parametrize("damage", ["lost", "changed"])
def test_a_note_that_is_lost_is_said_and_taken_from_the_archive(tmp_path: Path, url: str, damage: str) -> None:
    stream = stream_of(tmp_path, url, Retention(size_bytes=1))
    fill(stream, range(40))
    archive(stream)
    stream.retain()
    note = stream.folder / "main" / "archived"
    before = note.read_bytes()
    if damage == "lost":
        note.unlink()
    else:
        note.write_bytes(before.replace(b"epoch", b"epork"))
    with pytest.raises(CorruptLog, match="archived"):
        numbers(stream)
    assert [str(f.file) for f in verify(stream.folder) if f.severity > 1] == [str(note)]
    archive(stream)
    assert note.read_bytes() == before
    assert numbers(stream) == list(range(40))


def test_an_upload_that_does_not_read_back_is_sent_again(tmp_path: Path, folder_url: str, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    from holdfast.stream.archive.folder import FolderObjects

    stream = stream_of(tmp_path, folder_url, Retention(size_bytes=1))
    fill(stream, range(10))
    plain = FolderObjects.get
    with monkeypatch.context() as patched:
        patched.setattr(FolderObjects, "get", lambda self, key, *a: plain(self, key, *a)[:-1] + b"?")
        with pytest.raises(StorageError, match="does not read back"):
            archive(stream)
    assert stream.retain().segments == 0
    assert archive(stream).segments
    assert stream.retain().segments


# -- the store is away -----------------------------------------------------------------------------------------------


def test_an_archive_that_is_away_is_said_and_stops_nothing(tmp_path: Path, folder_url: str) -> None:
    stream = stream_of(tmp_path, folder_url, Retention(size_bytes=1))
    fill(stream, range(10))
    (tmp_path / "archive").rename(tmp_path / "hidden")
    for _ in range(2):
        with pytest.raises(StorageError, match="mount it"):
            archive(stream)
    state = archive_state(stream.folder / "main")
    assert (state.failures, state.errors_total) == (2, 2)
    fill(stream, range(10, 20))
    assert stream.retain().segments == 0
    assert archive_lag(stream.folder / "main").segments > 3
    (tmp_path / "hidden").rename(tmp_path / "archive")
    archive(stream)
    assert archive_state(stream.folder / "main").failures == 0
    assert archive_state(stream.folder / "main").errors_total == 2
    assert numbers(stream) == list(range(20))


def test_a_writer_wakes_the_thread_that_archives(tmp_path: Path, folder_url: str, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    from holdfast.clock import pause
    from holdfast.stream.archive.archiver import wake_archiver

    monkeypatch.setattr("holdfast.stream.retention.wake_archiver", wake_archiver)
    stream = stream_of(tmp_path, folder_url)
    fill(stream, range(40))
    while archive_lag(stream.folder / "main").segments:
        pause(5_000)
    note = read_note(stream.folder / "main")
    assert note is not None
    assert note.rows > 30


def test_an_archive_that_stays_away_is_asked_less_and_less_often(tmp_path: Path, folder_url: str) -> None:
    stream = stream_of(tmp_path, folder_url)
    fill(stream, range(10))
    (tmp_path / "archive").rename(tmp_path / "hidden")
    archiver, pauses = Archiver(stream.folder / "main", stream.definition), [0.0]
    for _ in range(12):
        pauses.append(archiver._attempt(pauses[-1]))
    assert pauses[1:] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]
    (tmp_path / "hidden").rename(tmp_path / "archive")
    assert archiver._attempt(pauses[-1]) == 0
    assert archive_lag(stream.folder / "main").segments == 0


# -- retention of the archive ----------------------------------------------------------------------------------------


def test_each_tier_has_a_retention_of_its_own(tmp_path: Path, url: str) -> None:
    stream = stream_of(tmp_path, url, Retention(size_bytes=5000), archive_retention=Retention(size_bytes=20_000))
    fill(stream, range(100))
    archive(stream)
    stream.retain()
    gone, why = expire(stream.folder / "main", stream.definition, objects_of(stream), QuietDisk(), 2_000 * SECOND)
    assert gone.segments > 5
    assert why == "the rest is neither old nor large enough"
    left = numbers(stream)
    assert left == list(range(gone.rows, 100))
    with pytest.raises(Removed):
        numbers(stream, start=1)
    note, head = read_note(stream.folder / "main"), read_head(stream.folder / "main")
    assert note is not None
    assert (note.removed.rows, head.removed_rows) == (gone.rows, gone.rows)
    assert sum(k.endswith(".seg") for k in objects_of(stream).sizes("")) == note.count
    # Once more: nothing is counted twice.
    archive(stream)
    expire(stream.folder / "main", stream.definition, objects_of(stream), QuietDisk(), 2_000 * SECOND)
    assert read_head(stream.folder / "main").removed_rows == gone.rows


def test_a_gap_that_was_noted_stays_noted_when_the_archive_lets_go(tmp_path: Path, folder_url: str) -> None:
    stream = stream_of(tmp_path, folder_url, Retention(size_bytes=5000), archive_retention=Retention(size_bytes=20_000))
    fill(stream, range(100))
    archive(stream)
    stream.retain()
    main = stream.folder / "main"
    held = Held(main, stream.definition, QuietDisk(), Clock(), takeover=True)
    held._note_gap(95 * SECOND)
    held.close()
    before = read_head(main)
    assert (before.removed_until_us, before.archived_seq) == (95 * SECOND, before.first_base_seq)
    gone, _ = expire(main, stream.definition, objects_of(stream), QuietDisk(), 2_000 * SECOND)
    assert gone.segments
    assert read_head(main).removed_until_us == 95 * SECOND


def test_a_clock_that_jumps_ahead_for_a_moment_empties_no_archive(tmp_path: Path, folder_url: str) -> None:
    day = 86_400 * SECOND
    kept = Retention(age_us=day)
    stream = stream_of(tmp_path, folder_url, Retention(size_bytes=5000), archive_retention=kept)
    fill(stream, range(100))
    main, now = stream.folder / "main", 1_000 * SECOND

    def look(at: int, **options: bool) -> int:
        archive_once(main, stream.definition, disk=QuietDisk(), clock=lambda: at, **options)
        return read_head(main).removed_rows

    assert look(now) == 0
    stream.retain()
    assert look(now + 400 * day) == 0, "the clock is a year ahead, or nobody has looked for a year"
    assert look(now + 1200 * SECOND) == 0, "it was put right"
    assert look(now + 400 * day) == 0
    assert look(now + 400 * day + EVERY_US) > 50, "it stays there"
    fill(stream, range(100, 200))
    look(now + 400 * day + 2 * EVERY_US)
    stream.retain()
    assert look(now + 800 * day, asked=True) > 150, "somebody says that it is time"


def test_an_archive_that_is_looked_at_every_six_hours_is_let_go_of_by_age(tmp_path: Path, folder_url: str) -> None:
    hour = 3600 * SECOND
    kept = Retention(age_us=24 * hour)
    stream = stream_of(tmp_path, folder_url, Retention(size_bytes=5000), archive_retention=kept)
    fill(stream, range(100))
    main = stream.folder / "main"
    for n in range(8):
        archive_once(main, stream.definition, disk=QuietDisk(), clock=lambda n=n: 1_000 * SECOND + n * 6 * hour)
        stream.retain()
    assert read_head(main).removed_rows > 50


def test_the_retention_of_each_tier_keeps_what_that_of_the_other_has_noted(
    tmp_path: Path, folder_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They run in two threads, and the head is both's: a gap that is forgotten would be read over in silence (L6)."""
    stream = stream_of(tmp_path, folder_url, Retention(size_bytes=5000), archive_retention=Retention(size_bytes=20_000))
    fill(stream, range(100))
    archive(stream)
    stream.retain()
    held = []

    def written(folder: Path, head: Head, disk: Disk) -> None:
        with alone(folder, wait=False) as lock:
            held.append(lock is None)
        write_head(folder, head, disk)

    monkeypatch.setattr("holdfast.stream.archive.expiry.write_head", written)
    monkeypatch.setattr("holdfast.stream.retention.write_head", written)
    expire(stream.folder / "main", stream.definition, objects_of(stream), QuietDisk(), 2_000 * SECOND)
    fill(stream, range(100, 120))
    archive(stream)
    stream.retain(Retention(size_bytes=1))
    assert held
    assert all(held), "the head was changed without its lock"


def test_the_archive_keeps_what_a_subscriber_lacks_and_what_is_on_the_disk(tmp_path: Path, folder_url: str) -> None:
    stream = stream_of(tmp_path, folder_url, archive_retention=Retention(age_us=1))
    fill(stream, range(40))
    with stream.subscribe(name="slow", end=20) as slow:
        for _ in slow.poll():
            pass
        slow.ack()
    archive(stream)
    main, late = stream.folder / "main", 10**9 * SECOND
    assert expire(main, stream.definition, objects_of(stream), QuietDisk(), late)[1] == "the rest is still on the disk"
    stream.retain(Retention(size_bytes=1))
    gone, why = expire(main, stream.definition, objects_of(stream), QuietDisk(), late)
    assert 15 <= gone.rows < 20
    assert why.startswith("subscriber slow")


def test_old_entries_stand_in_pages(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogs, "PAGE", 4)
    monkeypatch.setattr(catalogs, "_LOOSE_MAX", 8)
    stream = stream_of(tmp_path, url, Retention(size_bytes=1), archive_retention=Retention(size_bytes=40_000))
    fill(stream, range(100))
    archive(stream)
    stream.retain()
    note = read_note(stream.folder / "main")
    assert note is not None
    assert len(note.pages) >= 4
    assert len(note.segments) < 8
    assert numbers(stream) == list(range(100))
    for page in (stream.folder / "main").glob("page-*"):
        page.unlink()  # Only a convenience.
    monkeypatch.setattr(catalogs, "_pages", {})
    assert numbers(stream, start=3, end=7) == [3, 4, 5, 6]
    gone, _ = expire(stream.folder / "main", stream.definition, objects_of(stream), QuietDisk(), 2_000 * SECOND)
    assert numbers(stream) == list(range(gone.rows, 100))
    again, _ = restored(stream, tmp_path / "elsewhere")
    assert set(range(gone.rows, 95)) <= set(numbers(again))


# -- restoring -------------------------------------------------------------------------------------------------------


def test_a_stream_comes_back_with_all_that_was_archived(tmp_path: Path, url: str) -> None:
    stream = stream_of(tmp_path / "one", url, Retention(size_bytes=5000))
    fill(stream, range(60))
    with stream.subscribe(name="reader", end=20) as reader:
        for _ in reader.poll():
            pass
        reader.ack()
    archive(stream)
    stream.retain()
    note = read_note(stream.folder / "main")
    assert note is not None
    shutil.rmtree(tmp_path / "one")
    again, found = restored(stream, tmp_path / "two")
    assert found.missing == ()
    assert found.fetched == 1, "the rest stays in the archive"
    assert again.acks() == {} or "reader" in again.acks()
    # The last bucket is not known to be complete: what closes it came after the segment.
    assert numbers(again) == list(range(note.rows - 1))
    assert again.reader().rows == note.rows
    assert list(verify(again.folder)) == []
    # It goes on: what the archive did not have is sent again, and nothing is twice.
    fill(again, range(80))
    assert numbers(again) == list(range(80))
    archive(again)
    again.retain()
    assert numbers(again) == list(range(80))
    assert list(verify(again.folder)) == []
    assert read_note(again.folder / "main").tenure == 2  # type: ignore[union-attr]
    third, found = restored(again, tmp_path / "three", everything=True)
    assert found.fetched > 10
    assert numbers(third)[:70] == list(range(70))


def test_the_host_before_can_archive_no_more(tmp_path: Path, url: str) -> None:
    stream = stream_of(tmp_path / "one", url, Retention(size_bytes=1))
    fill(stream, range(30))
    archive(stream)
    again, _ = restored(stream, tmp_path / "two")
    fill(stream, range(30, 60))
    with pytest.raises(Fenced, match="restored from the archive"):
        archive(stream)
    stream.retain()
    assert numbers(stream) == list(range(60)), "nothing was removed from its disk that is not archived"
    fill(again, range(30, 40))
    archive(again)
    assert numbers(again) == list(range(40))


def test_of_two_copies_of_a_folder_one_archives(tmp_path: Path, folder_url: str) -> None:
    stream = stream_of(tmp_path / "one", folder_url)
    fill(stream, range(20))
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    twin = StreamStore(tmp_path / "two", disk=QuietDisk(), clock=Clock()).open("s")
    fill(stream, range(20, 40))
    fill(twin, range(20, 60), text="y")
    archive(stream)
    with pytest.raises(Fenced, match="another copy"):
        archive(twin)


def test_restoring_says_what_is_missing(tmp_path: Path, url: str) -> None:
    stream = stream_of(tmp_path / "one", url, Retention(size_bytes=1))
    fill(stream, range(30))
    archive(stream)
    stream.retain()
    store = objects_of(stream)
    victim = [key for key in store.sizes("") if key.endswith(".seg")][1]
    store.delete([victim, victim])
    again, found = restored(stream, tmp_path / "two")
    assert [s.entry.name for s in found.missing] == [victim.rpartition("/")[2]]
    with pytest.raises(MissingObject):
        numbers(again)
    assert any("is missing in the archive" in f.what for f in verify(again.folder, archive=True))


@pytest.mark.parametrize(
    ("said", "given"),
    [
        ("it has no stream other; it has: s", {"name": "other"}),
        ("is there already", {"root": "one"}),
        ("without credentials", {"url": "s3://key:secret@bucket/x"}),
        ("must begin with one of s3://", {"url": "ftp://bucket/x"}),
    ],
)
def test_what_cannot_be_restored_is_refused(tmp_path: Path, folder_url: str, said: str, given: dict[str, str]) -> None:
    stream = stream_of(tmp_path / "one", folder_url)
    fill(stream, range(20))
    archive(stream)
    with pytest.raises(UsageError, match=said):
        restore_stream(tmp_path / given.get("root", "two"), given.get("name", "s"), given.get("url", folder_url),
                       now_us=1)  # fmt: skip


def test_streams_of_one_name_are_told_apart(tmp_path: Path, folder_url: str) -> None:
    ids = []
    for host in ("one", "two"):
        stream = stream_of(tmp_path / host, folder_url)
        fill(stream, range(20 if host == "one" else 30))
        archive(stream)
        ids.append(stream.definition.id)
    with pytest.raises(UsageError, match="2 streams were called s"):
        restored(stream, tmp_path / "three")
    again, _ = restored(stream, tmp_path / "three", id=ids[0])
    assert again.definition.id == ids[0]


# -- names and secrets -----------------------------------------------------------------------------------------------


def test_a_stream_that_was_made_anew_is_not_taken_for_the_old_one(tmp_path: Path, folder_url: str) -> None:
    """Its definition may lie where the old one lay, under the same inode."""
    stream = stream_of(tmp_path, folder_url, Retention(size_bytes=1))
    old = view_at(stream.folder / "main")
    assert old is not None
    anew = msgspec.structs.replace(stream.definition, id="0" * 32)
    (stream.folder / "stream").write_bytes(seal(anew))
    view = view_at(stream.folder / "main")
    assert view is not None
    assert view.place == place("s", anew.id) != old.place


def test_an_archive_is_checked_when_the_stream_is_declared(tmp_path: Path, folder_url: str) -> None:
    with pytest.raises(UsageError, match="persist='always'"):
        stream_of(tmp_path, folder_url, persist="on_demand")
    with pytest.raises(UsageError, match="drop_oldest"):
        stream_of(tmp_path, folder_url, bound=Bound(100_000, "drop_oldest"))
    with pytest.raises(UsageError, match="give the stream an archive"):
        StreamStore(tmp_path).create("t", "n bigint", archive_retention=Retention(age_us=1))
    assert check_url("s3://bucket/a/") == "s3://bucket/a"


def test_an_older_holdfast_refuses_a_stream_with_an_archive(tmp_path: Path, folder_url: str) -> None:
    assert stream_of(tmp_path, folder_url).definition.format == 3


def test_credentials_come_from_a_file_of_their_owner_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.stream.archive.cloud import credentials

    path = tmp_path / "credentials"
    path.write_text("# of the archive\nAWS_ACCESS_KEY_ID = me\nAWS_SECRET_ACCESS_KEY=s=cret\n")
    path.chmod(0o644)
    monkeypatch.setenv("HOLDFAST_ARCHIVE_CREDENTIALS", str(path))
    with pytest.raises(UsageError, match="chmod 600"):
        credentials()
    path.chmod(stat.S_IRUSR | stat.S_IWUSR)
    assert credentials() == {"aws_access_key_id": "me", "aws_secret_access_key": "s=cret"}


def test_names_in_a_catalog_cannot_lead_outside(tmp_path: Path, folder_url: str) -> None:
    stream = stream_of(tmp_path / "one", folder_url)
    fill(stream, range(20))
    archive(stream)
    store, where = objects_of(stream), place("s", stream.definition.id)
    found = newest(store, where)
    assert found is not None
    bad = msgspec.structs.replace(found.segments[0].entry, name="../../../outside")
    planted = msgspec.structs.replace(
        found, version=found.version + 1, segments=(msgspec.structs.replace(found.segments[0], entry=bad),)
    )
    store.create(catalogs.catalog_key(where, planted.version), seal(planted))
    with pytest.raises(CorruptLog, match="no segment's name"):
        restored(stream, tmp_path / "two")


def test_an_id_in_a_catalog_cannot_lead_outside(tmp_path: Path, folder_url: str) -> None:
    """X2: what is being restored lies in a folder that has the id in its name, and goes first."""
    stream = stream_of(tmp_path / "streams", folder_url)
    fill(stream, range(60))
    archive(stream)
    bystander = tmp_path / "home" / "letters"
    bystander.mkdir(parents=True)
    (bystander / "one").write_text("dear")
    objects, where = objects_of(stream), place("s", stream.definition.id)
    found = newest(objects, where)
    assert found is not None
    lying = msgspec.structs.replace(found, version=found.version + 1, stream="x/../../home/letters")
    assert objects.create(catalogs.catalog_key(where, lying.version), seal(lying))
    for _ in range(2):  # What the first attempt makes may open the way of the second.
        with pytest.raises(CorruptLog, match="no id of a stream"):
            restored(stream, tmp_path / "elsewhere")
    assert {path.name: path.read_text() for path in bystander.iterdir()} == {"one": "dear"}
