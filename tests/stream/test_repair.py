"""`repair` mends without loss what can be mended, names exactly what is lost, and survives being cut short."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast
from holdfast.clock import now_us
from holdfast.model.time import BEGINNING_US, END_OF_TIME_US
from holdfast.stream.checking.finding import Severity
from holdfast.stream.checking.repair import Repair, repair
from holdfast.stream.checking.verify import verify
from holdfast.stream.disk import Disk
from holdfast.stream.losses import Loss
from holdfast.stream.manifest import load_manifest
from holdfast.stream.record import State
from tests.stream.conftest import SECOND, Cut, CuttingDisk, FilledStream

FLIPS = int(os.environ.get("HOLDFAST_FLIPS", "2000")) // 10
ALL = list(range(60))


def mended(folder: Path, *, drop: bool = False, disk: Disk | None = None) -> Repair:
    return repair(folder, now_us=now_us(), apply=True, drop_damaged=drop, disk=disk)


def problems(folder: Path) -> list[str]:
    return [f.text for f in verify(folder) if f.severity > Severity.NOTE]


def flip(path: Path, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(bytes(data))


def lost_ids(report: Repair) -> set[int]:
    return {i for loss in report.losses for i in range(loss.id_first, loss.id_next)}


def by_id(folder: Path) -> dict[int, int]:
    """What readers find: tuple id and value."""
    reader = holdfast.open(folder.parent).open("s").reader()
    found = {}
    for extent in reader.extents(BEGINNING_US, END_OF_TIME_US):
        for i, n in enumerate(reader.read(extent).column("n").to_pylist()):
            found[extent.fields.first_tuple_id + i] = n
    reader.close()
    return found


def segments(filled: FilledStream) -> list[Path]:
    return sorted((filled.folder / "main").glob("*.seg"))


def test_a_sound_stream_needs_nothing(filled: FilledStream) -> None:
    filled.dress()
    assert repair(filled.folder, now_us=now_us()) == Repair([], [], False, [])


def test_an_index_is_built_again_as_it_was(filled: FilledStream) -> None:
    """L5"""
    indexes = sorted((filled.folder / "main").glob("*.idx"))
    before = [p.read_bytes() for p in indexes]
    indexes[0].unlink()
    flip(indexes[1], 77)
    assert len(mended(filled.folder).actions) == 2
    assert [p.read_bytes() for p in indexes] == before


@pytest.mark.parametrize("how", ["lost", "one bit", "garbage"])
def test_a_manifest_is_built_again_from_the_segments(filled: FilledStream, how: str) -> None:
    before = load_manifest(filled.folder / "main")
    (path,) = (filled.folder / "main").glob("manifest-*")
    if how == "lost":
        path.unlink()
    elif how == "one bit":
        flip(path, 999)
    else:
        path.write_bytes(b"{}")
    report = mended(filled.folder)
    assert report.losses == report.remaining == []
    after = load_manifest(filled.folder / "main")
    assert before is not None
    assert after is not None
    assert after.epoch > before.epoch
    assert after.released
    assert [(s.name, s.length, s.rows, s.stime_min_us, s.stime_max_us) for s in after.segments] == [
        (s.name, s.length, s.rows, s.stime_min_us, s.stime_max_us) for s in before.segments
    ]
    assert sorted(filled.numbers()) == ALL


def test_every_single_flip_is_survived_and_every_lost_tuple_named(filled: FilledStream, tmp_path: Path) -> None:
    """L3, L4: after the repair nothing is wrong, and what is gone is what the report says, no more."""
    filled.dress()
    stored = by_id(filled.folder)
    files = [p for p in filled.folder.rglob("*") if p.is_file() and p.stat().st_size and "tail-" not in p.name]
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    for _ in range(FLIPS):
        copy = tmp_path / "copy" / "s"
        shutil.copytree(filled.folder, copy)
        path = copy / chance.choice(files).relative_to(filled.folder)
        bit = chance.randrange(path.stat().st_size * 8)
        flip(path, bit)
        careful = mended(copy)
        said = f"seed {seed}: bit {bit} of {path}: {careful}"
        assert not careful.losses, said
        if careful.remaining:
            assert path.suffix == ".seg", said
            report = mended(copy, drop=True)
            said += f" {report}"
            if "main" in path.parts:
                ids = lost_ids(report)
                assert by_id(copy) == {i: n for i, n in stored.items() if i not in ids}, said
                assert all(stored[i] is not None for i in ids), said
            assert list((copy / "damaged").iterdir()), said
        elif "main" in path.parts:
            assert by_id(copy) == stored, said
        assert problems(copy) == [], said
        shutil.rmtree(tmp_path / "copy")


def test_damaged_tuples_stay_until_dropping_them_is_asked_for(filled: FilledStream) -> None:
    path = segments(filled)[1]
    flip(path, 3000 * 8)
    before = path.read_bytes()
    report = mended(filled.folder)
    assert report.remaining
    assert path.read_bytes() == before
    report = mended(filled.folder, drop=True)
    assert report.remaining == []
    (loss,) = report.losses
    assert isinstance(loss, Loss)
    assert loss.stime_min_us is not None
    kept = filled.folder / "damaged" / f"main-{path.name}"
    assert kept.read_bytes() == before
    gone = set(ALL) - set(filled.numbers())
    assert len(gone) == loss.tuples == 5
    notes = [f for f in verify(filled.folder) if f.severity is Severity.NOTE]
    assert any("missing" in f.what for f in notes)


def test_no_tuple_id_is_given_twice_after_the_last_unit_was_dropped(filled: FilledStream) -> None:
    path = segments(filled)[-1]
    highest = max(by_id(filled.folder))
    flip(path, (path.stat().st_size - 100) * 8)
    report = mended(filled.folder, drop=True)
    assert report.losses
    with filled.stream.producer(stime="at", slack="2s") as producer:
        filled.send(producer, range(100, 105))
        producer.close(end=False)
    assert min(i for i, n in by_id(filled.folder).items() if n >= 100) == highest + 1


def test_a_lost_segment_is_replaced_by_its_promises(filled: FilledStream) -> None:
    segments(filled)[1].unlink()
    assert mended(filled.folder).remaining
    report = mended(filled.folder, drop=True)
    assert report.remaining == []
    assert set(by_id(filled.folder)) | lost_ids(report) == set(range(1, 61))


@pytest.mark.parametrize("file", ["stream", "acks/reader", "main/head", "tentative/branch", "report"])
def test_one_wrong_bit_in_a_small_file_is_put_right(filled: FilledStream, file: str) -> None:
    filled.dress()
    path = filled.folder / file
    before = path.read_bytes()
    flip(path, 85)
    mended(filled.folder)
    assert path.read_bytes() == before


def test_an_unreadable_acknowledgement_counts_as_none(filled: FilledStream) -> None:
    """L8"""
    filled.dress()
    (filled.folder / "acks" / "reader").write_bytes(b"rot")
    mended(filled.folder)
    assert filled.stream.acks()["reader"].until_us < 0
    assert filled.stream.retain(holdfast.Retention(acknowledged=True)).segments == 0


def test_an_unreadable_report_is_found_and_removed(filled: FilledStream) -> None:
    """The host of the stream makes another."""
    filled.dress()
    (filled.folder / "report").write_bytes(b"rot")
    assert [f.file.name for f in verify(filled.folder) if f.severity > Severity.NOTE] == ["report"]
    assert mended(filled.folder).remaining == []
    assert not (filled.folder / "report").exists()


def test_an_unreadable_head_is_built_again(filled: FilledStream) -> None:
    filled.dress()
    rows = filled.stream.reader().rows
    (filled.folder / "main" / "head").write_bytes(b"rot")
    assert mended(filled.folder).remaining == []
    assert filled.stream.reader().rows == rows


def test_a_branch_whose_root_is_lost_goes_only_when_asked(filled: FilledStream) -> None:
    filled.dress()
    (filled.folder / "tentative" / "branch").write_bytes(b"rot")
    assert mended(filled.folder).remaining
    assert mended(filled.folder, drop=True).remaining == []
    assert filled.stream.branch() is None


def test_a_torn_end_is_left_out(filled: FilledStream) -> None:
    """L3"""
    writer = filled.stream.writer()
    writer.commit([], now_us=1, boundary_us=70 * SECOND)
    os.pwrite(writer._fd, b"torn" * 40, writer._offset)
    writer._close_files()
    report = mended(filled.folder)
    assert report.remaining == []
    assert any("torn" in a.what for a in report.actions)
    assert list(verify(filled.folder)) == []
    assert sorted(filled.numbers()) == ALL


def test_it_refuses_while_a_writer_lives(filled: FilledStream) -> None:
    with filled.stream.producer(), pytest.raises(holdfast.StreamBusy):
        mended(filled.folder)


def test_a_plan_changes_nothing(filled: FilledStream) -> None:
    flip(segments(filled)[0], 5000)
    next((filled.folder / "main").glob("manifest-*")).unlink()
    before = {p: p.read_bytes() for p in filled.folder.rglob("*") if p.is_file()}
    assert repair(filled.folder, now_us=now_us(), drop_damaged=True).actions
    assert {p: p.read_bytes() for p in filled.folder.rglob("*") if p.is_file()} == before


def _lose_manifest(folder: Path) -> None:
    for path in (folder / "main").glob("manifest-*"):
        path.unlink()


def test_the_orphan_of_a_crashed_roll_does_not_come_back(filled: FilledStream) -> None:
    """A unit was written whole but its sync failed, the roll that followed was cut before its manifest was published,
    and the next writer went on behind the whole unit."""
    writer = filled.stream.writer()
    writer._roll(4)
    state = writer.state
    writer.commit([], now_us=5, boundary_us=70 * SECOND)
    after = writer.state
    writer.state = state  # As if the sync had failed: the writer does not know the unit.
    writer._tenure._disk = _NoPublish()
    with pytest.raises(Cut):
        writer._begin_segment(6, writer.segments)
    writer._close_files()
    orphan = segments(filled)[-1]
    kept = orphan.read_bytes()
    writer = filled.stream.writer()
    assert writer.state.boundary_us == after.boundary_us
    writer.commit([], now_us=7, boundary_us=80 * SECOND)
    writer.release(7)
    orphan.write_bytes(kept)  # Its removal did not survive.
    want = _shape(filled)
    _lose_manifest(filled.folder)
    report = mended(filled.folder)
    assert report.remaining == []
    assert _shape(filled) == want
    assert (filled.folder / "damaged" / f"main-{orphan.name}").exists()


def test_an_orphan_at_the_end_does_not_hide_what_was_whole_before_it(filled: FilledStream) -> None:
    writer = filled.stream.writer()
    writer._roll(4)
    writer.commit([], now_us=5, boundary_us=70 * SECOND)
    whole = writer.state
    writer.state = State(whole.commit_seq - 1, 60 * SECOND, whole.next_tuple_id)
    writer._tenure._disk = _NoPublish()
    with pytest.raises(Cut):
        writer._begin_segment(6, writer.segments)
    writer._close_files()
    _lose_manifest(filled.folder)
    assert mended(filled.folder).remaining == []
    writer = filled.stream.writer()
    assert writer.state.boundary_us == 70 * SECOND
    writer.release(0)


def test_what_a_zombie_added_does_not_count(filled: FilledStream) -> None:
    """L7"""
    zombie = filled.stream.writer()
    taken = filled.stream.writer(takeover=True)
    with pytest.raises(holdfast.Fenced):
        zombie.commit([], now_us=5, boundary_us=500 * SECOND)
    taken.release(6)
    zombie._close_files()
    for tail in (filled.folder / "main").glob("tail-*"):
        tail.unlink()
    _lose_manifest(filled.folder)
    assert mended(filled.folder).remaining == []
    writer = filled.stream.writer()
    assert writer.state.boundary_us < 500 * SECOND
    writer.release(0)


class _NoPublish(Disk):
    def publish_file(self, path: Path, data: bytes) -> bool:
        raise Cut


def _shape(filled: FilledStream) -> list[tuple[str, int | None]]:
    manifest = load_manifest(filled.folder / "main")
    assert manifest is not None
    return [(s.name, s.length) for s in manifest.segments]


def _rot(filled: FilledStream) -> None:
    flip(segments(filled)[1], 3000 * 8)


def _rot_and_lost_manifest(filled: FilledStream) -> None:
    _rot(filled)
    _lose_manifest(filled.folder)


@pytest.mark.parametrize("damage", [_rot, _rot_and_lost_manifest])
def test_a_repair_cut_anywhere_can_be_repeated(
    filled: FilledStream, tmp_path: Path, damage: Callable[[FilledStream], None]
) -> None:
    damage(filled)
    rotten = segments(filled)[1]
    whole = tmp_path / "whole" / "s"
    shutil.copytree(filled.folder, whole)
    mended(whole, drop=True)
    want = by_id(whole)
    assert len(want) == 55
    for at in range(1000):
        copy = tmp_path / "copy" / "s"
        shutil.copytree(filled.folder, copy)
        try:
            mended(copy, drop=True, disk=CuttingDisk(at))
            cut = False
        except Cut:
            cut = True
        mended(copy, drop=True)
        assert by_id(copy) == want, at
        assert problems(copy) == [], at
        assert (copy / "damaged" / f"main-{rotten.name}").read_bytes() == rotten.read_bytes(), at
        shutil.rmtree(tmp_path / "copy")
        if not cut:
            assert at > 20
            return
    pytest.fail("the repair never ended")
