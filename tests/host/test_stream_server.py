"""What a reader gets when it asks."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from holdfast.host.stream_server import StreamServer
from holdfast.host.wire import Portion, Span
from holdfast.model.errors import BadName, CorruptLog, PeerError, UnknownStream, UsageError
from holdfast.model.time import BEGINNING_US, END_OF_TIME_US
from holdfast.protocol.dpc.signals import Lane
from holdfast.stream.definition import Retention
from holdfast.stream.disk import Disk
from holdfast.stream.holes import note_hole, read_holes
from holdfast.stream.worth import Worth, note_worth
from tests.host.conftest import SECOND, Origin, until


def numbers(portion: Portion) -> list[tuple[int, int | None, int]]:
    return [(e.bucket, e.first_tuple_id, e.rows) for e in portion.events]


def everything(serving: StreamServer, position: str | int, bytes_max: int, lane: Lane = Lane.MAIN) -> list[Portion]:
    found = [serving.pull("s", lane, position, bytes_max)]
    while found[-1].events:
        found.append(serving.pull("s", lane, found[-1].cursor, bytes_max))
    return found


@pytest.mark.parametrize("bytes_max", [1, 700, 3000, 1 << 20])
def test_portions_of_any_size_add_up_to_the_stream(tmp_path: Path, bytes_max: int) -> None:
    """L6"""
    origin = Origin(tmp_path, segment_bytes=4096)
    origin.fill(0, 40)
    portions = everything(StreamServer(origin.store), 0, bytes_max)
    sent = [e for p in portions for e in numbers(p)]
    assert [(b, i) for b, i, rows in sent for i in range(i or 0, (i or 0) + rows)] == [t[:2] for t in origin.tuples()]
    assert portions[-1].boundary_us == 40 * SECOND
    assert len({p.cursor for p in portions}) >= len(portions) - 1


@pytest.mark.parametrize("bytes_max", [1, 900])
def test_a_boundary_never_promises_what_was_not_sent_yet(tmp_path: Path, bytes_max: int) -> None:
    """D10: buckets overlap, as they do for a source with slack."""
    origin = Origin(tmp_path, segment_bytes=4096)
    for n in range(60):
        origin.add((n / 10 + (0 if n % 3 else 2.5), n), boundary=n / 10)
    portions = everything(StreamServer(origin.store), 0, bytes_max)
    for at, portion in enumerate(portions):
        later = [e.stime_min_us for p in portions[at + 1 :] for e in p.events]
        assert all(portion.boundary_us <= stime for stime in later)
        assert at == 0 or portion.boundary_us >= portions[at - 1].boundary_us
    assert [i for p in portions for _, i, _ in numbers(p)] == list(range(1, 61))


def test_a_reader_may_begin_at_any_bucket(tmp_path: Path) -> None:
    origin = Origin(tmp_path)
    origin.fill(0, 20)
    for lane in (Lane.MAIN, Lane.HEAD):
        portion = StreamServer(origin.store).pull("s", lane, 15 * SECOND + 7)
        assert {e.bucket for e in portion.events} == {15, 16, 17, 18, 19}
        assert portion.lane == lane
        assert portion.gap_us is None


def test_open_buckets_are_sent_at_once(tmp_path: Path) -> None:
    origin = Origin(tmp_path)
    origin.add((5.5, 1), (6.5, 2), boundary=5.2)
    portion = StreamServer(origin.store).pull("s", Lane.MAIN, 0)
    assert [e.bucket for e in portion.events] == [5, 6]
    assert portion.boundary_us == 5_200_000


def test_the_end_of_a_stream_comes_with_its_last_tuple_only(tmp_path: Path) -> None:
    origin = Origin(tmp_path)
    origin.fill(1, 5)
    origin.writer.commit([], now_us=1, closed=True)
    portions = everything(StreamServer(origin.store), 0, 1)
    assert [p.closed for p in portions] == [False, False, False, True, True]
    assert portions[-1].boundary_us == END_OF_TIME_US


def test_what_retention_removed_is_a_gap_and_not_silence(tmp_path: Path) -> None:
    origin = Origin(tmp_path, segment_bytes=4096)
    origin.fill(1, 6)
    origin.writer.roll(1)
    serving = StreamServer(origin.store)
    reader = serving.pull("s", Lane.MAIN, SECOND, 1)
    origin.add((7.5, 7), boundary=8)
    origin.writer.roll(1)
    assert origin.stream.retain(Retention(size_bytes=1)).segments == 2
    origin.add((9.5, 9), boundary=10)
    for position in (SECOND, reader.cursor):
        portion = serving.pull("s", Lane.MAIN, position)
        assert portion.gap_us == 8 * SECOND
        assert [e.bucket for e in portion.events] == [9]
        assert serving.pull("s", Lane.MAIN, portion.cursor).gap_us is None
    assert serving.pull("s", Lane.MAIN, 8 * SECOND).gap_us is None
    assert serving.pull("s", Lane.MAIN, BEGINNING_US).gap_us is None


def test_retention_of_what_was_sent_already_is_no_gap(tmp_path: Path) -> None:
    origin = Origin(tmp_path, segment_bytes=4096)
    origin.add((5.5, 1), (6.5, 2), boundary=5)
    serving = StreamServer(origin.store)
    reader = serving.pull("s", Lane.MAIN, 0)
    origin.writer.roll(1)
    origin.add((6.6, 3))
    assert origin.stream.retain(Retention(size_bytes=1)).segments == 1
    portion = serving.pull("s", Lane.MAIN, reader.cursor)
    assert portion.gap_us is None
    assert numbers(portion) == [(6, 3, 1)]


def test_a_range_that_the_host_skipped_is_a_gap(tmp_path: Path) -> None:
    origin = Origin(tmp_path)
    origin.fill(1, 4)
    note_hole(origin.stream.folder, 4 * SECOND, 9 * SECOND, Disk())
    origin.fill(9, 12)
    serving = StreamServer(origin.store)
    before = serving.pull("s", Lane.MAIN, SECOND)
    assert [e.bucket for e in before.events] == [1, 2, 3]
    assert (before.boundary_us, before.gap_us) == (4 * SECOND, None)
    after = serving.pull("s", Lane.MAIN, before.cursor)
    assert [e.bucket for e in after.events] == [9, 10, 11]
    assert (after.boundary_us, after.gap_us) == (12 * SECOND, 9 * SECOND)
    assert serving.pull("s", Lane.MAIN, after.cursor).gap_us is None
    assert serving.pull("s", Lane.MAIN, 9 * SECOND).gap_us is None


def test_a_branch_tells_its_id_and_what_its_buckets_are_worth(tmp_path: Path) -> None:
    origin = Origin(tmp_path)
    origin.fill(1, 4)
    serving = StreamServer(origin.store)
    none = serving.pull("s", Lane.BRANCH, SECOND)
    assert (none.branch, none.events) == (None, ())
    root = origin.stream.create_branch(4 * SECOND)
    worth = origin.stream.folder / "tentative" / "worth"
    worth.write_text('{"bucket": 4, "worth": 0.5}\n{"bucket": 5, "worth": 0.25}\n{"bucket": 6, "wor')
    branch = origin.stream.branch_writer()
    origin.add((4.5, 44), boundary=6, writer=branch)
    portion = serving.pull("s", Lane.BRANCH, none.cursor)
    assert (portion.branch, portion.root_us, portion.boundary_us) == (root.id, 4 * SECOND, 6 * SECOND)
    assert portion.worth == ((4, 0.5), (5, 0.25)), "also of a bucket without a tuple"
    with worth.open("a") as file:
        file.write('th": 0.75}\n')
    origin.add((6.5, 66), (7.5, 77), boundary=8, writer=branch)
    portion = serving.pull("s", Lane.BRANCH, portion.cursor)
    assert portion.worth == ((6, 0.75), (7, 1.0)), "nothing said: worth everything"
    assert [e.bucket for e in portion.events] == [6, 7]
    assert not portion.spans


def test_what_a_branch_has_of_a_bucket_that_is_open_is_worth_what_came_before_it(tmp_path: Path) -> None:
    """What that bucket is worth is known once all input is there that it covers. A reader who cannot wait so long took
    it for whole."""
    origin = Origin(tmp_path)
    origin.fill(1, 4)
    serving = StreamServer(origin.store)
    origin.stream.create_branch(4 * SECOND)
    note_worth(origin.stream.folder, origin.definition, [Worth(4, 0.5, ("a",), 0.25, ("b",))])
    branch = origin.stream.branch_writer()
    origin.add((4.5, 44), (6.5, 66), boundary=5, writer=branch)
    portion = serving.pull("s", Lane.BRANCH, SECOND)
    assert portion.worth == ((4, 0.5), (6, 0.5))
    assert portion.spans == (Span(4, 0.25, ("b",), ("a",)), Span(6, 0.25, ("b",), ("a",)))
    note_worth(
        origin.stream.folder, origin.definition, [Worth(5, 0.75, ("a",), 0.5, ("b",)), Worth(6, 1.0, ("a",), 1.0)]
    )
    origin.add(boundary=7, writer=branch)
    portion = serving.pull("s", Lane.BRANCH, portion.cursor)
    assert portion.worth == ((5, 0.75), (6, 1.0)), "told again once it is known"
    assert portion.spans == (Span(5, 0.5, ("b",), ("a",)), Span(6, 1.0, (), ("a",)))


def test_a_branch_that_was_replaced_is_sent_from_its_own_root(tmp_path: Path) -> None:
    origin = Origin(tmp_path)
    origin.fill(1, 4)
    serving = StreamServer(origin.store)
    first = origin.stream.create_branch(4 * SECOND)
    origin.add((4.5, 1), (5.5, 2), boundary=6, writer=origin.stream.branch_writer())
    portion = serving.pull("s", Lane.BRANCH, SECOND)
    assert portion.branch == first.id
    origin.stream.drop_branch()
    gone = serving.pull("s", Lane.BRANCH, portion.cursor)
    assert gone.branch is None
    origin.stream.create_branch(5 * SECOND)
    origin.add((5.5, 9), boundary=7, writer=origin.stream.branch_writer())
    for cursor in (portion.cursor, gone.cursor):
        second = serving.pull("s", Lane.BRANCH, cursor)
        assert second.branch not in (None, first.id)
        assert [e.bucket for e in second.events] == [5]


def test_a_wait_ends_with_news_and_otherwise_with_a_heartbeat(tmp_path: Path) -> None:
    origin = Origin(tmp_path)
    origin.fill(1, 4)
    serving = StreamServer(origin.store)

    async def play() -> None:
        first = await serving.wait("s", Lane.MAIN, SECOND, 60)
        assert len(first.events) == 3
        beat = await serving.wait("s", Lane.MAIN, first.cursor, 0.05)
        assert (beat.events, beat.boundary_us) == ((), first.boundary_us)
        waiting = asyncio.ensure_future(serving.wait("s", Lane.MAIN, beat.cursor, 60))
        tentative = asyncio.ensure_future(serving.wait("s", Lane.BRANCH, SECOND, 60))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        assert not tentative.done()
        origin.add(boundary=5)
        assert (await waiting).boundary_us == 5 * SECOND
        origin.stream.create_branch(5 * SECOND)
        assert (await tentative).branch is not None
        last = asyncio.ensure_future(serving.wait("s", Lane.MAIN, (await waiting).cursor, 60))
        await asyncio.sleep(0.01)
        serving.end()
        with pytest.raises(PeerError, match="about to stop"):
            await last

    asyncio.run(play())


def test_a_poke_wakes_whoever_waits(tmp_path: Path) -> None:
    origin = Origin(tmp_path)
    serving = StreamServer(origin.store)

    async def play() -> None:
        waiting = [asyncio.ensure_future(serving.wait("s", Lane.MAIN, 0, 60)) for _ in range(3)]
        await asyncio.sleep(0.1)
        origin.add((1.5, 1))
        serving.poke()
        await until(lambda: all(task.done() for task in waiting))

    asyncio.run(play())


def test_nobody_who_waits_is_forgotten_for_another(tmp_path: Path) -> None:
    origin = Origin(tmp_path)
    origin.fill(1, 4)
    serving = StreamServer(origin.store)

    async def play() -> None:
        behind = serving.pull("s", Lane.MAIN, 0).cursor
        first = asyncio.ensure_future(serving.wait("s", Lane.MAIN, behind, 60))
        await asyncio.sleep(0)
        origin.add(boundary=5)
        level = serving.pull("s", Lane.MAIN, behind).cursor
        second = asyncio.ensure_future(serving.wait("s", Lane.MAIN, level, 60))
        await until(first.done)
        assert not second.done()
        origin.add(boundary=6)
        await until(second.done)

    asyncio.run(play())


@pytest.mark.parametrize("name", ["../s", "s/../s", "..", "", "S", "s\0", "/etc/passwd", "a" * 200])
def test_a_name_that_leads_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    """X2"""
    with pytest.raises(BadName):
        StreamServer(Origin(tmp_path).store).pull(name, Lane.MAIN, 0)


def test_a_stream_made_anew_is_not_taken_for_the_old_one(tmp_path: Path) -> None:
    origin = Origin(tmp_path)
    origin.fill(1, 4)
    serving = StreamServer(origin.store)
    cursor = serving.pull("s", Lane.MAIN, 0).cursor
    origin.writer.release(1)
    origin.store.delete("s")
    with pytest.raises(UnknownStream):
        serving.pull("s", Lane.MAIN, cursor)
    anew = Origin(tmp_path)
    anew.fill(1, 2)
    with pytest.raises(UsageError, match="made anew"):
        serving.pull("s", Lane.MAIN, cursor)
    assert len(serving.pull("s", Lane.MAIN, 0).events) == 1


def test_damage_on_the_disk_is_not_handed_on(tmp_path: Path) -> None:
    """L4"""
    origin = Origin(tmp_path)
    origin.fill(1, 4)
    serving = StreamServer(origin.store)
    assert serving.pull("s", Lane.MAIN, 0).events
    segment = next((origin.stream.folder / "main").glob("*.seg"))
    data = bytearray(segment.read_bytes())
    extent = origin.stream.reader().extents(0, 2**62)[1]
    data[extent.fields.offset + 64 + 20] ^= 4
    segment.write_bytes(data)
    with pytest.raises(CorruptLog, match="does not match its checksum"):
        serving.pull("s", Lane.MAIN, 0)


def test_a_hole_that_goes_on_stays_one_hole(tmp_path: Path) -> None:
    """An input that is away is given up again and again."""
    for upto in (9, 12, 15):
        note_hole(tmp_path, 4 * SECOND, upto * SECOND, Disk())
    note_hole(tmp_path, 15 * SECOND, 16 * SECOND, Disk())
    note_hole(tmp_path, 20 * SECOND, 21 * SECOND, Disk())
    note_hole(tmp_path, 21 * SECOND, 23 * SECOND, Disk(), why="another reason")
    found = [(h.first_us // SECOND, h.upto_us // SECOND) for h in read_holes(tmp_path)]
    assert found == [(4, 16), (20, 21), (21, 23)]


def test_a_damaged_note_of_a_hole_is_found_before_it_is_believed(tmp_path: Path) -> None:
    """L4: with a wrong number a reader would be told of a gap that is not there, or not told of one that is."""
    note_hole(tmp_path, 4 * SECOND, 9 * SECOND, Disk())
    note_hole(tmp_path, 4 * SECOND, 9 * SECOND, Disk())
    assert [(h.first_us, h.upto_us) for h in read_holes(tmp_path)] == [(4 * SECOND, 9 * SECOND)]
    path = tmp_path / "holes"
    path.write_bytes(path.read_bytes().replace(b"9000000", b"8000000"))
    with pytest.raises(CorruptLog):
        read_holes(tmp_path)
