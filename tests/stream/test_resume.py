"""Opening a branch, adding a unit and letting go: the same work however long its last segment is (L5)."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

import holdfast
from holdfast.stream.checking.verify import verify
from holdfast.stream.control import ControlLog
from holdfast.stream.disk import Disk
from holdfast.stream.index import build_entries, index_path, load_entries
from holdfast.stream.manifest import Manifest, load_manifest, manifest_path
from holdfast.stream.record import Control
from holdfast.stream.sealed import seal
from holdfast.stream.waiting import waiting_results
from holdfast.stream.writer import LogWriter
from tests.faults.units import QuietDisk, open_log, read_all, send, unit_events

OPERATOR = 7


class Weighing(QuietDisk):
    """Counts the bytes that are written."""

    written = 0

    def write(self, fd: int, path: Path, offset: int, parts: Sequence[bytes]) -> int:
        self.written += sum(map(len, parts))
        return super().write(fd, path, offset, parts)


@contextmanager
def bytes_read(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The bytes that are read from segments meanwhile."""
    found, pread = [0], os.pread

    def counting(fd: int, length: int, offset: int) -> bytes:
        raw = pread(fd, length, offset)
        found[0] += len(raw)
        return raw

    with monkeypatch.context() as patch:
        patch.setattr(os, "pread", counting)
        yield found


def filled(folder: Path, units: range) -> None:
    writer = open_log(folder, disk=QuietDisk(), segment_bytes=128 << 20)
    for k in units:
        send(writer, k)
    writer.release(units[-1])


def one_unit(folder: Path, k: int) -> int:
    disk = Weighing()
    writer = open_log(folder, disk=disk, segment_bytes=128 << 20)
    send(writer, k)
    writer.release(k)
    return disk.written


def test_a_unit_of_a_writer_that_opens_and_lets_go_costs_the_same_after_many_units(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    costs = []
    for first, last in ((1, 40), (41, 2000)):
        filled(tmp_path, range(first, last))
        with bytes_read(monkeypatch) as read:
            written = one_unit(tmp_path, last)
        costs.append((read[0], written))
    (read_few, written_few), (read_many, written_many) = costs
    assert read_many < read_few + 4096
    assert written_many < written_few + 4096
    assert not list(verify_branch(tmp_path))


def verify_branch(folder: Path) -> list[str]:
    """The index and the sums in the manifest against the segments, and the resume point against a walk."""
    wrong = []
    manifest = load_manifest(folder)
    assert manifest is not None
    for entry in manifest.segments:
        assert entry.length is not None
        built = build_entries(folder / entry.name, entry.length)
        if load_entries(folder / entry.name, entry.length).tobytes() != built.tobytes():
            wrong.append(entry.name)
    return wrong


def test_a_new_reader_and_a_fork_look_at_the_end_of_a_long_segment_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = holdfast.open(tmp_path).create("out", "value bigint", bucket="1s")
    writer = stream.writer()
    for k in range(1, 2000):
        writer.commit([], now_us=k, boundary_us=k * 1_000_000, pending=(0, b""), tokens={"spark-q": k})
    writer.release(2000)
    with bytes_read(monkeypatch) as read:
        reader = stream.reader()
        waiting = waiting_results(stream)
    assert reader.boundary_us == 1_999_000_000
    assert waiting is not None
    assert waiting.tokens == {"spark-q": 1999}
    # A chunk is read ahead at each place: the commit, the pending rows, and the tail.
    assert read[0] < 6 * (64 << 10)


def reference(folder: Path) -> LogWriter:
    """A writer of the same branch that had to walk over the segment."""
    manifest = load_manifest(folder)
    assert manifest is not None
    assert manifest.resume is not None
    republish(folder, msgspec.structs.replace(manifest, resume=None))
    return open_log(folder, disk=QuietDisk())


def republish(folder: Path, manifest: Manifest) -> None:
    Disk().replace_file(manifest_path(folder, manifest.version), seal(manifest))


def history(folder: Path, seed: int) -> None:
    """Units of every kind, by writers that let go after some of them."""
    chance = random.Random(seed)
    writer = open_log(folder, disk=QuietDisk(), segment_bytes=4096 if seed % 2 else 1 << 20)
    for k in range(1, 60):
        if chance.random() < 0.3:
            writer.release(k)
            writer = open_log(folder, disk=QuietDisk(), segment_bytes=4096 if seed % 2 else 1 << 20)
        if chance.random() < 0.5:
            send(writer, k)
        else:
            control = [Control(OPERATOR, p, 1, 1, k, k, b"state %d" % k) for p in range(chance.randrange(3))]
            pending = (1, b"waits %d" % k) if chance.random() < 0.5 else (0, b"")
            writer.commit([], now_us=k, tokens={f"p{chance.randrange(5)}": k}, pending=pending, control=control)
    writer.release(60)


@pytest.mark.parametrize("seed", range(8))
def test_a_writer_that_resumes_knows_what_one_that_walks_knows(tmp_path: Path, seed: int) -> None:
    """L5."""
    history(tmp_path, seed)
    manifest = load_manifest(tmp_path)
    assert manifest is not None
    resumes = open_log(tmp_path, disk=QuietDisk())
    quick = state_of(resumes)
    resumes.release(60)
    walks = reference(tmp_path)
    assert state_of(walks) == quick
    walks.release(60)
    assert not verify_branch(tmp_path)


def state_of(writer: LogWriter) -> tuple[object, ...]:
    return writer.state, writer.pending_rows, writer.pending, writer.size_bytes


@pytest.mark.parametrize("wrong", [{"commit_at": 64}, {"offset": 1 << 40}, {"pending_at": 64}, {"commit_at": 1 << 40}])
def test_a_resume_point_that_is_not_the_segments_is_left_alone(tmp_path: Path, wrong: dict[str, int]) -> None:
    """L5."""
    filled(tmp_path, range(1, 40))
    before = read_all(tmp_path)
    manifest = load_manifest(tmp_path)
    assert manifest is not None
    assert manifest.resume is not None
    republish(tmp_path, msgspec.structs.replace(manifest, resume=msgspec.structs.replace(manifest.resume, **wrong)))
    assert read_all(tmp_path) == before
    one_unit(tmp_path, 40)
    assert read_all(tmp_path)[: len(before)] == before
    assert len(read_all(tmp_path)) > len(before)
    assert not verify_branch(tmp_path)


@pytest.mark.parametrize("damage", ["gone", "cut", "flipped", "older"])
def test_an_index_that_is_not_what_was_left_is_built_again(tmp_path: Path, damage: str) -> None:
    """L5."""
    filled(tmp_path, range(1, 40))
    path = index_path(next(tmp_path.glob("*.seg")))
    old = path.read_bytes()
    one_unit(tmp_path, 40)
    data = path.read_bytes()
    changed = {"gone": b"", "cut": data[:-20], "flipped": data[:70] + bytes([data[70] ^ 1]) + data[71:], "older": old}
    path.write_bytes(changed[damage])
    before = read_all(tmp_path)
    if damage == "gone":
        path.unlink()
    assert read_all(tmp_path) == before
    one_unit(tmp_path, 41)
    assert read_all(tmp_path)[: len(before)] == before
    assert not verify_branch(tmp_path)


def test_a_writer_that_died_after_resuming_loses_nothing(tmp_path: Path) -> None:
    """L1, L3."""
    filled(tmp_path, range(1, 40))
    dies = open_log(tmp_path, disk=QuietDisk(), segment_bytes=128 << 20)
    send(dies, 40)
    send(dies, 41)
    before = read_all(tmp_path)
    dies._close_files()
    after = open_log(tmp_path, disk=QuietDisk())
    send(after, 42)
    after.release(42)
    assert read_all(tmp_path)[: len(before)] == before
    assert not verify_branch(tmp_path)


def test_a_segment_that_is_taken_up_again_and_again_grows_old_all_the_same(tmp_path: Path) -> None:
    stream = holdfast.open(tmp_path).create("out", "value bigint", bucket="1s")
    for k in range(1, 30):
        folder = stream.folder / "main"
        writer = LogWriter.open(folder, stream.definition.id_bytes, now_us=k * 10, segment_age_us=100, disk=QuietDisk())
        writer.commit(unit_events(k), now_us=k * 10)
        writer.release(k * 10)
    assert len(list((stream.folder / "main").glob("*.seg"))) >= 3


def test_the_newest_checkpoints_are_found_without_a_walk_and_are_those_of_the_walk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = holdfast.open(tmp_path).create("out", "value bigint", bucket="1s")
    writer = stream.writer()
    for k in range(1, 2000):
        control = [Control(OPERATOR, p, 1, 1, k, k * 10, b"state %d of %d" % (k, p)) for p in range(2)]
        writer.commit([], now_us=k, control=control)
    writer.release(2000)
    with bytes_read(monkeypatch) as read:
        reader = stream.reader()
        latest = ControlLog(reader).latest(OPERATOR, 2)
    assert {p: f.position_us for p, f in latest.items()} == {0: 19_990, 1: 19_990}
    assert read[0] < 8 * (64 << 10)
    backwards = [(f.position_us, f.partition, body.read()) for f, body in ControlLog(reader).backwards(OPERATOR)]
    assert backwards == [(k * 10, p, b"state %d of %d" % (k, p)) for k in range(1999, 0, -1) for p in (1, 0)]
    assert not list(verify(stream.folder))
