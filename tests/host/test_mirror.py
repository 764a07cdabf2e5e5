"""Local copies of remote streams: equal to their origin, whatever happened on the way."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import threading
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import holdfast
from holdfast.clock import now_us
from holdfast.host.link import Link, LocalLink
from holdfast.host.mirror import Advance, Copy, Mirror
from holdfast.host.replica_log import Held, Place
from holdfast.host.stream_server import StreamServer
from holdfast.host.wire import Portion, Position
from holdfast.model.errors import PeerError, Removed, UsageError
from holdfast.protocol.dpc.messages import Message
from holdfast.protocol.dpc.signals import Arrival, Lane
from holdfast.stream.checking.verify import verify
from holdfast.stream.definition import Definition, Retention
from holdfast.stream.disk import Disk
from holdfast.stream.merge import Merge, PieceReader
from holdfast.stream.pack import pack
from holdfast.stream.reader import read_extent
from tests.host.conftest import SECOND, Origin, boundary_of, following, hosted, linked, never, tuples_of, until


def local(origin: Origin) -> LocalLink:
    return LocalLink(StreamServer(origin.store), never)


async def level(mirror: Mirror, origin: Origin, link: Link, from_us: int = 0) -> list[Advance]:
    """Follow until the mirror has all that the origin has."""
    goal = boundary_of(origin.stream.folder / "main", origin.definition)
    async with following(mirror, link, from_us=from_us) as told:
        await until(lambda: told and told[-1].boundary_us >= goal)
    return told


def held(mirror: Mirror) -> list[tuple[int, int, int, int]]:
    return tuples_of(mirror.folder / "main", mirror.definition)


def numbers(places: list[Place], definition: Definition) -> list[int]:
    files: dict[Path, int] = {}
    return [
        n
        for place in places
        for n in read_extent(files, Path(place.path), place.fields, definition.stored).column(1).to_pylist()
    ]


def arrived(told: list[Advance]) -> dict[int, int]:
    return {a.bucket: a.tuples for advance in told for a in advance.arrivals}


def sound(mirror: Mirror) -> bool:
    findings = list(verify(mirror.folder))
    return not [f for f in findings if f.severity.name == "ERROR"]


def test_a_mirror_equals_its_origin_in_tuples_and_ids(tmp_path: Path) -> None:
    origin = Origin(tmp_path / "o", segment_bytes=4096)
    origin.fill(0, 30)

    async def play() -> None:
        async with hosted(origin.store) as service, linked(service) as link:
            mirror = Mirror(tmp_path / "m" / "s", await link.definition("s"))
            async with following(mirror, link) as told:
                await until(lambda: told and told[-1].boundary_us == 30 * SECOND)
                origin.fill(30, 40)
                origin.add((41.5, 1), (40.5, 2))
                await until(lambda: 40 in arrived(told))
            assert held(mirror) == origin.tuples()
            assert arrived(told) == {b: 3 for b in range(40) if b % 7} | {40: 1, 41: 1}
            mirror.close()

    asyncio.run(play())


def test_a_mirror_is_read_like_any_stream(tmp_path: Path) -> None:
    origin = Origin(tmp_path / "o")
    origin.fill(1, 5)
    mirror = Mirror(tmp_path / "m" / "s", origin.definition)
    asyncio.run(level(mirror, origin, local(origin)))
    merge = Merge([holdfast.open(tmp_path / "m").open("s")])
    reader = PieceReader(merge.sources, stream_column=False)
    batches = reader.read(merge.pieces(SECOND, 5 * SECOND), SECOND, 5 * SECOND)
    assert [t for b in batches for t in zip(*map(list, (b["tuple_id"].to_pylist(), b["n"].to_pylist())), strict=True)] \
        == [(i, n) for _, i, _, n in origin.tuples()]  # fmt: skip
    assert merge.complete_until_us == 5 * SECOND
    assert mirror.definition.id == origin.definition.id
    assert sound(mirror)


def test_a_mirror_goes_on_when_columns_are_added_and_has_them_when_it_is_opened_again(tmp_path: Path) -> None:
    """Who follows sees the columns that it knew; events from before have nulls in the new ones."""
    origin = Origin(tmp_path / "origin")
    origin.fill(1, 4)

    def wide() -> list[dict[str, Any]]:
        reader = holdfast.open(tmp_path / "mirror").open("s").reader()
        found = [row for _, batch in reader.scan(0, 2**61) for row in batch.to_pylist()]
        reader.close()
        return found

    async def follow() -> None:
        mirror = Mirror(tmp_path / "mirror" / "s", origin.definition)
        await level(mirror, origin, local(origin))
        added = origin.store.add_columns("s", "n bigint, m bigint").definition
        stimes = pa.array([4 * SECOND], added.stored.field(0).type)
        row = pa.RecordBatch.from_arrays([stimes, pa.array([4000]), pa.array([7])], schema=added.stored)
        origin.writer.commit(pack(row, added), now_us=1, boundary_us=5 * SECOND)
        await level(mirror, origin, local(origin), 4 * SECOND)
        assert held(mirror) == origin.tuples()
        mirror.close()
        assert "m" not in wide()[0]
        again = Mirror(tmp_path / "mirror" / "s", added)
        origin.fill(5, 6)
        await level(again, origin, local(origin), 5 * SECOND)
        again.close()
        Mirror(tmp_path / "mirror" / "s", origin.definition).close()  # A replica that does not know yet.

    asyncio.run(follow())
    assert [(row["n"], row["m"]) for row in wide() if row["n"] in (3000, 4000, 5000)] == [
        (3000, None), (4000, 7), (5000, None)
    ]  # fmt: skip


def test_what_is_here_already_is_told_first(tmp_path: Path) -> None:
    origin = Origin(tmp_path / "o")
    origin.fill(1, 6)
    origin.add((6.5, 1))
    mirror = Mirror(tmp_path / "m" / "s", origin.definition)
    asyncio.run(level(mirror, origin, local(origin)))
    mirror.close()
    mirror = Mirror(tmp_path / "m" / "s", origin.definition)
    told: list[Advance] = []

    async def play() -> None:
        with pytest.raises(PeerError):
            await mirror.follow(Broken(), Lane.MAIN, 3 * SECOND, told.append)

    asyncio.run(play())
    assert [a.boundary_us for a in told] == [6 * SECOND]
    assert arrived(told) == {3: 3, 4: 3, 5: 3, 6: 1}


class Broken(Link):
    async def pull(self, stream: str, lane: Lane, position: Position, wait_s: float, bytes_max: int = 0) -> Portion:
        raise PeerError("broken")

    async def say(self, sender: str, to: str, message: Message) -> None:
        raise PeerError("broken")

    async def definition(self, stream: str) -> Definition:
        raise PeerError("broken")


class Shaky(Link):
    """Small portions, and it breaks at random."""

    def __init__(self, link: Link, chance: random.Random) -> None:
        self._link, self._chance = link, chance

    async def pull(self, stream: str, lane: Lane, position: Position, wait_s: float, bytes_max: int = 0) -> Portion:
        if self._chance.random() < 0.2:
            raise PeerError("the link broke")
        return await self._link.pull(stream, lane, position, 0.02, self._chance.choice((1, 500, 2000)))

    async def say(self, sender: str, to: str, message: Message) -> None:
        await self._link.say(sender, to, message)

    async def definition(self, stream: str) -> Definition:
        return await self._link.definition(stream)


@pytest.mark.parametrize("seed", range(6))
def test_following_again_neither_loses_nor_repeats(tmp_path: Path, seed: int) -> None:
    """A source whose buckets overlap, pulled in crumbs, cancelled and reopened at random."""
    chance = random.Random(seed)
    origin = Origin(tmp_path / "o", segment_bytes=4096)
    mirror = Mirror(tmp_path / "m" / "s", origin.definition)
    link = Shaky(local(origin), chance)
    boundary, n = 10.0, 0
    told: list[Advance] = []

    async def play() -> None:
        nonlocal mirror, boundary, n
        for _ in range(25):
            task = asyncio.ensure_future(mirror.follow(link, Lane.MAIN, 0, told.append))
            for _ in range(chance.randrange(5)):
                boundary += chance.random()
                rows = [(boundary + 3 * chance.random(), n + k) for k in range(chance.randrange(4))]
                n += len(rows)
                origin.add(*rows, boundary=boundary)
                await asyncio.sleep(0.001 * chance.randrange(8))
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, PeerError):
                await task
            if chance.random() < 0.3:
                mirror.close()
                mirror = Mirror(tmp_path / "m" / "s", origin.definition)
        async with following(mirror, local(origin)):
            # Not until the boundary is level: tuples of open buckets lie behind it.
            await until(lambda: len(held(mirror)) >= n)

    asyncio.run(play())
    assert held(mirror) == origin.tuples()
    assert sorted(t[3] for t in held(mirror)) == list(range(n))
    assert all(advance.gap_us is None for advance in told)
    assert sound(mirror)


def test_another_replica_goes_on_at_the_next_bucket(tmp_path: Path) -> None:
    """The replicas have streams of their own, made at different times; what a bucket holds is the same (D9)."""
    first, second = Origin(tmp_path / "a"), Origin(tmp_path / "b")
    first.fill(0, 12)
    second.fill(0, 8)
    assert first.definition.id != second.definition.id
    mirror = Mirror(tmp_path / "m" / "s", first.definition)

    async def play() -> None:
        await level(mirror, first, local(first))
        async with following(mirror, local(second), from_us=12 * SECOND) as told:
            await until(lambda: told)
            second.fill(8, 20)
            await until(lambda: told[-1].boundary_us == 20 * SECOND)
        assert set(arrived(told)) == {b for b in range(12, 20) if b % 7}
        first.fill(12, 25)
        await level(mirror, first, local(first), 20 * SECOND)

    asyncio.run(play())
    assert held(mirror) == first.tuples()
    assert sound(mirror)


def test_a_replica_that_was_cut_off_inside_a_bucket_is_continued_by_another(tmp_path: Path) -> None:
    """A bucket of several events, pulled one by one: the other replica's begin alike."""
    first, second = (Origin(tmp_path / name, partitions=3, partition_by="n") for name in "ab")
    for origin in (first, second):
        origin.fill(1, 4, each=20)
    mirror = Mirror(tmp_path / "m" / "s", first.definition)

    async def play() -> None:
        serving = StreamServer(first.store)
        position: Position = 0
        for _ in range(4):
            portion = serving.pull("s", Lane.MAIN, position, 1)
            mirror._held.take(portion, 0 if position == 0 else None)
            position = portion.cursor
        assert {b for b, *_ in held(mirror)} == {1, 2}
        await level(mirror, second, local(second))

    asyncio.run(play())
    assert held(mirror) == second.tuples() == first.tuples()


def test_a_producer_that_contradicts_an_open_bucket_is_refused(tmp_path: Path) -> None:
    origin, other = Origin(tmp_path / "a"), Origin(tmp_path / "b")
    origin.add((5.1, 1), boundary=5)
    other.add((5.2, 2), boundary=5)
    mirror = Mirror(tmp_path / "m" / "s", origin.definition)

    async def play() -> None:
        await level(mirror, origin, local(origin))
        with pytest.raises(PeerError, match="begins with other tuples here"):
            await mirror.follow(local(other))
        origin.add((5.3, 3), boundary=6)
        await level(mirror, origin, local(origin))

    asyncio.run(play())
    assert held(mirror) == origin.tuples()


def test_a_stream_of_another_shape_is_refused(tmp_path: Path) -> None:
    origin = Origin(tmp_path / "a")
    origin.fill(1, 3)
    other = holdfast.open(tmp_path / "b").create("s", "n bigint, more string", bucket="1s")
    mirror = Mirror(tmp_path / "m" / "s", other.definition)
    with pytest.raises(PeerError, match="must have the same columns"):
        asyncio.run(mirror.follow(local(origin)))
    with pytest.raises(UsageError, match="choose another folder"):
        Mirror(tmp_path / "m" / "s", origin.definition)
    with pytest.raises(UsageError, match="follows main"):
        asyncio.run(mirror.follow(local(origin), Lane.BRANCH))


def test_columns_that_replicas_have_added_in_another_order_are_refused(tmp_path: Path) -> None:
    """Bodies have no names in them: one column's values would be read as the other's."""
    first, second = Origin(tmp_path / "one"), Origin(tmp_path / "two")
    ours = first.store.add_columns("s", "n bigint, a bigint, b bigint").definition
    some = second.store.add_columns("s", "n bigint, b bigint").definition
    all_ = second.store.add_columns("s", "n bigint, b bigint, a bigint").definition
    Mirror(tmp_path / "mirror" / "s", ours).close()
    for theirs in (some, all_):
        with pytest.raises(UsageError, match=r"n bigint, a bigint, b bigint.*asked for s .n bigint, b bigint"):
            Mirror(tmp_path / "mirror" / "s", theirs)


def test_a_gap_is_told_and_remembered(tmp_path: Path) -> None:
    """§4.9.4: also by a host that died before it could act on it."""
    origin = Origin(tmp_path / "o", segment_bytes=4096)
    origin.fill(1, 6)
    mirror = Mirror(tmp_path / "m" / "s", origin.definition)
    asyncio.run(level(mirror, origin, local(origin)))
    origin.fill(6, 12)
    origin.writer.roll(1)
    assert origin.stream.retain(Retention(size_bytes=1)).segments
    origin.fill(12, 14)
    told = asyncio.run(level(mirror, origin, local(origin), 6 * SECOND))
    assert [a.gap_us for a in told if a.gap_us is not None] == [12 * SECOND]
    mirror.close()
    mirror = Mirror(tmp_path / "m" / "s", origin.definition)
    told = asyncio.run(level(mirror, origin, local(origin), 6 * SECOND))
    assert told[0].gap_us == 12 * SECOND
    assert asyncio.run(level(mirror, origin, local(origin), 12 * SECOND))[0].gap_us is None
    with pytest.raises(Removed):
        mirror.stream.reader().extents(7 * SECOND, 14 * SECOND)
    assert sound(mirror)


def test_what_was_never_asked_for_is_not_taken_for_empty(tmp_path: Path) -> None:
    origin = Origin(tmp_path / "o")
    origin.fill(1, 9)
    mirror = Mirror(tmp_path / "m" / "s", origin.definition)
    told = asyncio.run(level(mirror, origin, local(origin), 5 * SECOND))
    assert set(arrived(told)) == {5, 6, 8}
    with pytest.raises(Removed):
        mirror.stream.reader().extents(2 * SECOND, 9 * SECOND)
    assert held(mirror) == [t for t in origin.tuples() if t[0] >= 5]
    assert sound(mirror), "ids that were passed over are no damage"


def test_the_first_tuples_of_an_open_bucket_can_be_read_again(tmp_path: Path) -> None:
    origin = Origin(tmp_path / "o")
    for n in range(6):
        origin.add((5 + n / 10, 2 * n), (5 + n / 10, 2 * n + 1), boundary=5)
    mirror = Mirror(tmp_path / "m" / "s", origin.definition)
    asyncio.run(level(mirror, origin, local(origin)))
    assert numbers(mirror.pieces(5), mirror.definition) == list(range(12))
    assert numbers(mirror.pieces(5, 5), mirror.definition)[:5] == list(range(5))
    assert len(mirror.pieces(5, 5)) == 3
    assert mirror.pieces(6) == []
    assert all(Path(place.path).is_absolute() for place in mirror.pieces(5))


def test_what_nobody_needs_goes(tmp_path: Path) -> None:
    origin = Origin(tmp_path / "o", segment_bytes=4096)
    mirror = Mirror(tmp_path / "m" / "s", origin.definition)
    for bucket in range(1, 60, 4):
        origin.fill(bucket, bucket + 4)
        asyncio.run(level(mirror, origin, local(origin), bucket * SECOND))
    assert min(bucket for bucket, *_ in held(mirror)) == 1
    mirror.retain(50 * SECOND)
    origin.fill(61, 62)
    asyncio.run(level(mirror, origin, local(origin), 61 * SECOND))
    kept = {bucket for bucket, *_ in held(mirror)}
    assert 20 < min(kept) <= 50
    assert kept >= {b for b in range(50, 62) if b % 7}
    assert sound(mirror)


def test_a_copy_follows_a_branch_through_its_lives(tmp_path: Path) -> None:
    origin = Origin(tmp_path / "o")
    origin.fill(1, 4)

    async def play() -> None:
        copy = Copy(tmp_path / "c", origin.definition)
        async with following(copy, local(origin), Lane.BRANCH, 4 * SECOND) as told:
            await asyncio.sleep(0.05)
            assert not arrived(told)
            first = origin.stream.create_branch(4 * SECOND)
            worth = origin.stream.folder / "tentative" / "worth"
            worth.write_text(
                '{"bucket": 4, "worth": 0.5, "inputs": ["x"], "least": 0.25, "missing": ["y"]}\n'
                '{"bucket": 5, "worth": 0.25}\n'
            )
            origin.add((4.5, 44), (4.6, 45), boundary=6, writer=origin.stream.branch_writer())
            await until(lambda: told and told[-1].boundary_us == 6 * SECOND)
            assert {a.branch for a in told} == {first.id}
            assert [a for t in told for a in t.arrivals] == [
                Arrival(4, 2, 0.5, 0.25, ("y",), ("x",)), Arrival(5, 0, 0.25)
            ]  # fmt: skip
            old = copy.pieces(4)
            assert numbers(old, copy.definition) == [44, 45]
            origin.stream.drop_branch()
            await until(lambda: told[-1].branch is None)
            second = origin.stream.create_branch(5 * SECOND)
            origin.add((5.5, 55), boundary=7, writer=origin.stream.branch_writer())
            await until(lambda: told[-1].branch == second.id and told[-1].boundary_us == 7 * SECOND)
            assert numbers(copy.pieces(5), copy.definition) == [55]
            assert numbers(copy.pieces(4), copy.definition) == [44, 45], "told before, so still there"
            origin.stream.drop_branch()
            third = origin.stream.create_branch(5 * SECOND)
            origin.add((6.5, 66), boundary=7, writer=origin.stream.branch_writer())
            await until(lambda: told[-1].branch == third.id and told[-1].boundary_us == 7 * SECOND)
            assert copy.pieces(5) == [], "the newest branch has nothing there, and says so"
            copy.retain(7 * SECOND)
            assert copy.pieces(4) == []
            assert not Path(old[0].path).exists()
            assert numbers(copy.pieces(6), copy.definition) == [66]
        copy.close()

    asyncio.run(play())


def test_a_copy_of_a_stream_with_an_archive_lets_go_as_well(tmp_path: Path) -> None:
    """The archive is the origin's: nobody archives a copy, so nothing may wait for that."""
    origin = Origin(tmp_path / "o", segment_bytes=4096)
    archived = msgspec.structs.replace(origin.definition, archive="file:///not/there")

    async def play() -> None:
        copy = Copy(tmp_path / "c", archived)
        async with following(copy, local(origin), Lane.HEAD, 1 * SECOND) as told:
            for bucket in range(1, 60, 4):
                origin.fill(bucket, bucket + 4)
                await until(lambda upto=bucket + 4: told and told[-1].boundary_us == upto * SECOND)
            assert copy.pieces(1)
            copy.retain(50 * SECOND)
            origin.fill(61, 62)
            await until(lambda: told[-1].boundary_us == 62 * SECOND)
            assert not copy.pieces(1)
            assert copy.pieces(61)
        copy.close()

    asyncio.run(play())


def test_a_copy_of_the_head_begins_near_the_end(tmp_path: Path) -> None:
    origin = Origin(tmp_path / "o")
    origin.fill(1, 30)

    async def play() -> None:
        copy = Copy(tmp_path / "c", origin.definition)
        async with following(copy, local(origin), Lane.HEAD, 26 * SECOND) as told:
            await until(lambda: told and told[-1].boundary_us == 30 * SECOND)
            assert arrived(told) == {26: 3, 27: 3, 28: 0, 29: 3}, "an empty bucket is news, too"
            origin.fill(30, 32)
            await until(lambda: told[-1].boundary_us == 32 * SECOND)
            assert arrived(told) == {26: 3, 27: 3, 28: 0, 29: 3, 30: 3, 31: 3}
        async with following(copy, local(origin), Lane.HEAD, 31 * SECOND) as told:
            await until(lambda: told)
            assert arrived(told) == {31: 3}
        assert numbers(copy.pieces(27), copy.definition) == [27000, 27001, 27002]
        assert numbers(copy.pieces(31, 2), copy.definition)[:2] == [31000, 31001]

    asyncio.run(play())


def test_a_producer_that_has_yet_to_prove_itself_does_not_cast_doubt_on_the_one_that_has(tmp_path: Path) -> None:
    """Two replicas are followed at once while one of them is behind in the open bucket."""
    ahead, behind = Origin(tmp_path / "a"), Origin(tmp_path / "b")
    for origin in (ahead, behind):
        origin.fill(1, 4)
    ahead.add((4.1, 41))
    held = Held(tmp_path / "h", ahead.definition, Disk(), now_us)
    first = StreamServer(ahead.store).pull("s", Lane.MAIN, 0)
    held.take(first, 0)
    other = StreamServer(behind.store).pull("s", Lane.MAIN, 4 * SECOND)
    held.take(other, 4 * SECOND)
    ahead.add((4.2, 42))
    held.take(StreamServer(ahead.store).pull("s", Lane.MAIN, first.cursor))
    behind.add((4.1, 99))
    with pytest.raises(PeerError, match="begins with other tuples"):
        held.take(StreamServer(behind.store).pull("s", Lane.MAIN, other.cursor))
    held.close()
    assert tuples_of(tmp_path / "h", ahead.definition) == ahead.tuples()


def test_a_portion_that_comes_too_late_leaves_no_trace(tmp_path: Path) -> None:
    """A follower that is cancelled leaves its last portion to a thread; another life may hold the log by then."""
    origin = Origin(tmp_path / "o")
    origin.fill(1, 4)
    portion = StreamServer(origin.store).pull("s", Lane.MAIN, 2 * SECOND)
    held = Held(tmp_path / "h" / "main", origin.definition, Disk(), now_us)
    held.close()
    before = sorted(p.name for p in (tmp_path / "h" / "main").iterdir())
    with pytest.raises(PeerError, match="was let go"):
        held.take(portion, 2 * SECOND)
    assert sorted(p.name for p in (tmp_path / "h" / "main").iterdir()) == before


def open_below(folder: Path) -> list[str]:
    found = []
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return [path for path in found if path.startswith(str(folder))]


def test_a_copy_whose_link_keeps_breaking_holds_no_more_files_and_stays_readable(tmp_path: Path) -> None:
    origin = Origin(tmp_path / "o")
    copy = Copy(tmp_path / "c", origin.definition)

    async def follow(link: Link, bucket: int) -> int:
        origin.fill(bucket, bucket + 1)
        async with following(copy, link, Lane.HEAD, bucket * SECOND) as told:
            await until(lambda: told and told[-1].boundary_us == (bucket + 1) * SECOND)
            assert open_below(copy.folder)
        assert open_below(copy.folder) == [], "nobody follows it"
        return len(os.listdir("/proc/self/fd"))

    async def play() -> None:
        link = local(origin)
        _, *files = [await follow(link, bucket) for bucket in range(1, 12)]  # The first still has files of other tests.
        assert max(files) <= files[0] + 1
        assert copy.pieces(11)
        assert open_below(copy.folder) == []
        for bucket in (1, 5, 9, 11):
            assert numbers(copy.pieces(bucket), copy.definition) == ([bucket * 1000 + k for k in range(3)])
        copy.retain(12 * SECOND)
        assert list(copy.folder.iterdir()) == [], "nor does it take room when nobody needs it"

    asyncio.run(play())
    copy.close()


def test_a_copy_forgets_what_another_life_left(tmp_path: Path) -> None:
    origin = Origin(tmp_path / "o")
    origin.fill(1, 5)
    copy = Copy(tmp_path / "c", origin.definition)
    with pytest.raises(UsageError, match="use a Mirror"):
        asyncio.run(copy.follow(local(origin), Lane.MAIN))

    async def play() -> None:
        async with following(copy, local(origin), Lane.HEAD, SECOND) as told:
            await until(lambda: told)

    asyncio.run(play())
    assert copy.pieces(2)
    assert Copy(tmp_path / "c", origin.definition).pieces(2) == []


def test_what_a_follower_was_just_taking_when_it_was_cancelled_is_told_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D1, L6: a machine so busy that a subscription is made once more while the first portion is being written."""
    origin = Origin(tmp_path / "o")
    origin.fill(1, 6)
    under_way, go_on = threading.Event(), threading.Event()
    take = Held.take

    def slow(self: Held, *args: Any) -> dict[int, int]:
        if not under_way.is_set():
            under_way.set()
            assert go_on.wait(60)
        return take(self, *args)

    monkeypatch.setattr(Held, "take", slow)

    async def play() -> list[Advance]:
        mirror = Mirror(tmp_path / "m" / "s", origin.definition)
        told: list[Advance] = []
        first = asyncio.ensure_future(mirror.follow(local(origin), told=told.append))
        await until(under_way.is_set)
        first.cancel()
        await asyncio.sleep(0)
        assert not first.done(), "it ends when its work does"
        go_on.set()
        await asyncio.wait({first})
        assert not arrived(told)
        told = await level(mirror, origin, local(origin))
        mirror.close()
        return told

    assert sum(arrived(asyncio.run(play())).values()) == len(origin.tuples())
