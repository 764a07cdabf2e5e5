"""One writer of one branch: order, refusals, and what an error or Ctrl-C leaves behind (L1, L3, L9)."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from holdfast.model.errors import CorruptLog, Fenced, LateTuple, StorageError, UsageError
from holdfast.stream.disk import storage_error
from holdfast.stream.index import build_entries, load_entries
from holdfast.stream.manifest import load_manifest
from holdfast.stream.reader import LogReader
from tests.faults.interrupts import run_interrupted
from tests.faults.units import (
    BUCKET_US,
    SCHEMA,
    QuietDisk,
    flat,
    judge,
    last_sent,
    open_log,
    read_all,
    send,
    unit_events,
    unit_rows,
)


def index_is_what_the_segments_say(folder: Path) -> None:
    """L5, and the manifest's own counts of rows and stimes."""
    manifest = load_manifest(folder)
    assert manifest is not None
    for entry in manifest.segments:
        if entry.length is None:
            continue
        built = build_entries(folder / entry.name, entry.length)
        assert load_entries(folder / entry.name, entry.length).tobytes() == built.tobytes()
        assert entry.rows == sum(int(n) for n in built["rows"])
        if len(built):
            assert (entry.stime_min_us, entry.stime_max_us) == (min(built["stime_min_us"]), max(built["stime_max_us"]))


def test_ids_are_consecutive_and_order_is_that_of_sending(tmp_path: Path) -> None:
    writer = open_log(tmp_path, disk=QuietDisk())
    for k in range(1, 30):
        send(writer, k)
    assert [id for id, _ in read_all(tmp_path)] == list(range(1, len(flat(list(range(1, 30)))) + 1))
    writer.release(1)
    assert len(list(tmp_path.glob("*.seg"))) > 3
    judge(tmp_path, 29, 29)
    index_is_what_the_segments_say(tmp_path)


def test_a_unit_is_one_write_and_one_sync(tmp_path: Path) -> None:
    class Counting(QuietDisk):
        calls: list[str] = []  # noqa: RUF012

        def write(self, fd: int, path: Path, offset: int, parts: Sequence[bytes]) -> int:
            self.calls.append("write")
            return super().write(fd, path, offset, parts)

        def sync(self, fd: int, path: Path) -> None:
            self.calls.append("sync")

        def reserve(self, fd: int, path: Path, offset: int, length: int) -> bool:
            self.calls.append("reserve")
            return True

    writer = open_log(tmp_path, disk=Counting(), segment_bytes=1 << 20)
    Counting.calls.clear()
    for k in range(40):
        send(writer, k)
    writes = [call for call in Counting.calls if call != "reserve"]
    assert writes == ["write", "sync"] * 40
    assert len(Counting.calls) - len(writes) < 10, "space is reserved in growing steps, not for each unit"
    writer.release(1)


def test_space_that_cannot_be_reserved_does_not_fail_the_unit(tmp_path: Path) -> None:
    class Tight(QuietDisk):
        def write(self, fd: int, path: Path, offset: int, parts: Sequence[bytes]) -> int:
            if len(parts) == 1 and not any(parts[0]):
                super().write(fd, path, offset, [parts[0][: len(parts[0]) // 2]])
                raise StorageError("no space left")
            return super().write(fd, path, offset, parts)

    writer = open_log(tmp_path, disk=Tight(), segment_bytes=1 << 20)
    send(writer, 1)
    send(writer, 2)
    assert os.path.getsize(next(tmp_path.glob("*.seg"))) == writer.size_bytes
    writer.release(1)


def test_a_tuple_before_the_boundary_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    """D10."""
    writer = open_log(tmp_path, disk=QuietDisk())
    send(writer, 5)
    before = writer.state
    with pytest.raises(LateTuple, match="more slack"):
        send(writer, 4)
    assert writer.state == before
    send(writer, 6)
    writer.release(1)
    assert [row for _, row in read_all(tmp_path)] == flat([5, 6])


def test_a_boundary_never_goes_back(tmp_path: Path) -> None:
    """D10."""
    writer = open_log(tmp_path, disk=QuietDisk())
    writer.commit([], now_us=1, boundary_us=500)
    writer.commit([], now_us=2, boundary_us=100)
    assert writer.state.boundary_us == 500
    writer.release(1)


def test_a_closed_stream_takes_no_more_tuples_also_after_reopening(tmp_path: Path) -> None:
    writer = open_log(tmp_path, disk=QuietDisk())
    send(writer, 1)
    writer.commit([], now_us=2, closed=True)
    with pytest.raises(UsageError, match="closed"):
        send(writer, 2)
    writer.release(1)
    again = open_log(tmp_path, disk=QuietDisk())
    with pytest.raises(UsageError, match="closed"):
        send(again, 2)
    again.release(1)
    judge(tmp_path, 1, 1)


def test_a_released_writer_refuses_to_write(tmp_path: Path) -> None:
    """Its file numbers may belong to other files by now."""
    writer = open_log(tmp_path, disk=QuietDisk())
    send(writer, 1)
    writer.release(1)
    writer.release(1)
    others = [os.open(tmp_path / f"other{i}", os.O_RDWR | os.O_CREAT) for i in range(8)]
    for _ in range(3):
        with pytest.raises(UsageError, match="released"):
            send(writer, 2)
        writer.beat(5)
    assert [os.fstat(fd).st_size for fd in others] == [0] * 8
    for fd in others:
        os.close(fd)
    judge(tmp_path, 1, 1)


def test_an_aged_segment_is_rolled_when_it_has_rows(tmp_path: Path) -> None:
    from holdfast.stream.writer import LogWriter

    writer = LogWriter.open(tmp_path, bytes(16), now_us=0, disk=QuietDisk(), segment_age_us=100)
    writer.commit([], now_us=500)
    assert len(writer.segments) == 1
    writer.commit(unit_events(1), now_us=600, boundary_us=2_000)
    writer.commit(unit_events(2), now_us=601)
    assert len(writer.segments) == 2
    writer.release(700)


class FailingDisk(QuietDisk):
    """Fails when asked, doing the harm that the real failure may do."""

    def __init__(self) -> None:
        self.fail: dict[str, int] = {}
        self.half = False

    def write(self, fd: int, path: Path, offset: int, parts: Sequence[bytes]) -> int:
        if self.fail.get("write"):
            if self.half:
                os.pwrite(fd, b"".join(parts)[:100], offset)
            raise storage_error("write", path, OSError(self.fail["write"], "failed"))
        return super().write(fd, path, offset, parts)

    def sync(self, fd: int, path: Path) -> None:
        if self.fail.get("sync"):
            raise storage_error("make durable", path, OSError(self.fail["sync"], "failed"))

    def create(self, path: Path) -> int:
        if self.fail.get("create"):
            raise storage_error("create", path, OSError(self.fail["create"], "failed"))
        return super().create(path)

    def sync_dir(self, path: Path) -> None:
        if self.fail.get("sync_dir"):
            raise storage_error("make durable", path, OSError(self.fail["sync_dir"], "failed"))


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("where", ["write", "sync"])
def test_after_a_failed_write_or_sync_the_file_is_given_up_and_the_next_commit_begins_another(
    where: str, half: bool, tmp_path: Path
) -> None:
    """L9: no further acknowledgement on that file; what was acknowledged before is intact."""
    disk = FailingDisk()
    disk.half = half
    writer = open_log(tmp_path, disk=disk, segment_bytes=1 << 20)
    send(writer, 1)
    before = writer.segments[-1].name
    disk.fail = {where: errno.EIO}
    for _ in range(3):
        with pytest.raises(StorageError, match="nothing acknowledged was lost"):
            send(writer, 2)
    assert last_sent(writer) == 1
    disk.fail = {}
    send(writer, 2)
    assert writer.segments[-1].name != before
    send(writer, 3)
    judge(tmp_path, 3, 3)
    writer.release(1)
    judge(tmp_path, 3, 3)
    index_is_what_the_segments_say(tmp_path)


@pytest.mark.parametrize("where", ["create", "sync_dir"])
def test_a_roll_that_fails_loses_nothing_and_can_be_repeated_by_this_writer_or_the_next(
    where: str, tmp_path: Path
) -> None:
    disk = FailingDisk()
    writer = open_log(tmp_path, disk=disk, segment_bytes=64)
    send(writer, 1)
    disk.fail = {where: errno.ENOSPC}
    for _ in range(2):
        with pytest.raises(StorageError):
            send(writer, 2)
    disk.fail = {}
    send(writer, 2)
    writer.release(1)
    judge(tmp_path, 2, 2)


def test_a_failed_commit_leaves_the_pending_tuples_as_they_were(tmp_path: Path) -> None:
    disk = FailingDisk()
    writer = open_log(tmp_path, disk=disk)
    writer.commit([], now_us=1, pending=(1, b"old"))
    disk.fail = {"sync": errno.EIO}
    with pytest.raises(StorageError):
        writer.commit([], now_us=2, pending=(2, b"new"))
    disk.fail = {}
    writer.commit([], now_us=3)
    assert (writer.pending_rows, writer.pending) == (1, b"old")
    writer.release(4)
    again = open_log(tmp_path, disk=QuietDisk())
    assert (again.pending_rows, again.pending) == (1, b"old")
    again.commit([], now_us=5, pending=(0, b""))
    again.release(6)
    last = open_log(tmp_path, disk=QuietDisk())
    assert (last.pending_rows, last.pending) == (0, b"")
    last.release(7)


def test_a_note_that_cannot_be_written_does_not_take_back_a_durable_unit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The unit is on disk and counted; an error here would make the caller send it twice."""
    writer = open_log(tmp_path, disk=QuietDisk())

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(writer._tail, "note", full)
    send(writer, 1)
    writer.beat(5)
    monkeypatch.undo()
    writer.release(2)
    judge(tmp_path, 1, 1)


@pytest.mark.parametrize("segment_bytes", [1 << 20, 64])
def test_ctrl_c_at_any_line_of_an_append_or_a_roll_loses_and_doubles_nothing(
    segment_bytes: int, tmp_path: Path
) -> None:
    """L1, L3, L5: the same writer goes on, or says that it must be opened again."""
    files = ("stream/writer.py", "stream/manifest.py", "stream/disk.py", "stream/tail.py", "stream/segment.py")
    reached, at = True, 0
    while reached:
        at += 1
        folder = tmp_path / str(at)
        writer = open_log(folder, disk=QuietDisk(), segment_bytes=segment_bytes)
        send(writer, 1)
        reached = run_interrupted(lambda w=writer: send(w, 2), at, files)
        try:
            if last_sent(writer) < 2:
                send(writer, 2)
            send(writer, 3)
        except Fenced:
            writer.release(4)
            writer = open_log(folder, disk=QuietDisk())
            for k in range(last_sent(writer) + 1, 4):
                send(writer, k)
        try:
            judge(folder, 3, 3)
            writer.release(5)
            judge(folder, 3, 3)
            index_is_what_the_segments_say(folder)
        except AssertionError as error:
            raise AssertionError(f"interrupted in front of line {at} of the append") from error
    assert at > 40


def test_a_torn_end_is_cut_and_damage_before_it_is_reported(tmp_path: Path) -> None:
    """L3, L4: the difference is whether something later and whole follows."""
    writer = open_log(tmp_path, disk=QuietDisk(), segment_bytes=1 << 20)
    for k in (1, 2, 3):
        send(writer, k)
    path, end = tmp_path / writer.segments[-1].name, writer._offset
    whole = path.read_bytes()
    send(writer, 4)
    torn = path.read_bytes()
    starts = [i for i in range(0, len(whole), 64) if whole[i + 8 : i + 10] == b"\x01\x01"]

    def reopened(data: bytes, tail: bool) -> int:
        path.write_bytes(data)
        if not tail:
            for note in tmp_path.glob("tail-*"):
                note.unlink()
        again = open_log(tmp_path, disk=QuietDisk(), takeover=True)
        try:
            return last_sent(again)
        finally:
            again.release(1)

    flipped = bytearray(whole)
    flipped[starts[1] + 70] ^= 1
    with pytest.raises(CorruptLog, match="acknowledged tuples follow"):
        reopened(bytes(flipped), tail=True)
    with pytest.raises(CorruptLog, match="acknowledged tuples follow"):
        reopened(bytes(flipped), tail=False)
    zeroed = bytearray(torn)
    zeroed[starts[2] : starts[2] + 512] = bytes(512)
    with pytest.raises(CorruptLog, match="acknowledged tuples follow"):
        reopened(bytes(zeroed), tail=False)
    assert reopened(torn[: end + 200], tail=False) == 3
    judge(tmp_path, 3, 3)


def test_a_segment_that_is_gone_is_reported_as_a_storage_error(tmp_path: Path) -> None:
    writer = open_log(tmp_path, disk=QuietDisk())
    send(writer, 1)
    writer.release(1)
    next(tmp_path.glob("*.seg")).unlink()
    with pytest.raises(StorageError):
        open_log(tmp_path)


def test_the_rows_of_a_unit_depend_on_its_number_alone() -> None:
    """What the oracle rests on."""
    assert unit_rows(7) == unit_rows(7) != unit_rows(8)


def test_a_copy_made_of_links_keeps_nobody_from_being_fenced(tmp_path: Path) -> None:
    """As `cp -al` makes it, or NFS when a file that is open is unlinked (L7)."""
    folder, copy = tmp_path / "log", tmp_path / "copy"
    folder.mkdir()
    copy.mkdir()
    old = open_log(folder, disk=QuietDisk())
    send(old, 1)
    for path in folder.glob("manifest-*"):
        os.link(path, copy / path.name)
    new = open_log(folder, disk=QuietDisk(), takeover=True)
    send(new, 2)
    with pytest.raises(Fenced):
        send(old, 3)
    new.release(1)


def test_a_copy_made_of_links_keeps_no_reader_from_going_on(tmp_path: Path) -> None:
    folder, copy = tmp_path / "log", tmp_path / "copy"
    folder.mkdir()
    copy.mkdir()
    writer = open_log(folder, disk=QuietDisk())
    send(writer, 1)
    reader = LogReader(folder, SCHEMA, BUCKET_US)
    reader.refresh()
    before = reader.rows
    for path in folder.glob("manifest-*"):
        os.link(path, copy / path.name)
    for k in range(2, 5):
        send(writer, k)
        writer.roll(1)
    assert reader.refresh()
    assert reader.rows > before
    reader.close()
    writer.release(1)
