"""Over the network: whoever has read beyond a place where a boundary was taken back is refused for good (D10, D19)."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.clock import monotonic_us
from holdfast.host.link import LocalLink
from holdfast.host.mirror import Mirror
from holdfast.host.mirrored_intake import MirroredIntake
from holdfast.host.stream_server import StreamServer
from holdfast.host.wire import Since, decode_position, encode_position
from holdfast.model.errors import Mended, UsageError
from holdfast.protocol.dpc.signals import InputAdvanced, Lane
from holdfast.stream.checking.boundary_mend import mend_boundary
from tests.host.conftest import SECOND, TOKEN, Origin, following, hosted, linked, never, tuples_of, until
from tests.host.test_client import House, Replica

TO, FAR, PASSED = 30 * SECOND, 5000 * SECOND, 6000 * SECOND


def ahead(root: Path) -> Origin:
    """Thirty buckets, and a row by a clock that was ahead."""
    origin = Origin(root)
    origin.fill(0, 30)
    origin.add((4999.5, 7), boundary=FAR / SECOND)
    return origin


def mended(origin: Origin) -> None:
    """The boundary was taken back, and the stream has come beyond where it was."""
    origin.writer.release(1)
    done = mend_boundary(origin.stream.folder, origin.definition, TO - 1, now_us=1, apply=True)
    assert (done.to_us, done.moved) == (TO, 1)
    origin.writer = origin.stream.writer()
    origin.add((40, 8), boundary=PASSED / SECOND)


async def mirrored(mirror: Mirror, link: Any, goal_us: int) -> None:
    async with following(mirror, link) as told:
        await until(lambda: told and told[-1].boundary_us >= goal_us)


@pytest.mark.parametrize("over", ["http", "calls"])
def test_a_mirror_that_comes_back_from_beyond_is_refused_after_the_stream_has_passed(tmp_path: Path, over: str) -> None:
    """Once it went on in silence, without the row that was moved and the one that came after the mend."""
    origin = ahead(tmp_path / "o")

    async def play() -> None:
        async with contextlib.AsyncExitStack() as stack:
            service = await stack.enter_async_context(hosted(origin.store))
            link = LocalLink(StreamServer(origin.store), never)
            if over == "http":
                link = await stack.enter_async_context(linked(service))
            beyond, early = (Mirror(tmp_path / name / "s", origin.definition) for name in ("beyond", "early"))
            await mirrored(beyond, link, FAR)
            cursor = (await link.pull("s", Lane.MAIN, 0, 0)).cursor
            async with following(early, Crumbs(link, TO), from_us=0):
                await until(lambda: early.boundary_us >= TO - SECOND)
            beyond.close()
            early.close()
            mended(origin)
            beyond, early = (Mirror(tmp_path / name / "s", origin.definition) for name in ("beyond", "early"))
            for _ in range(2):
                with pytest.raises(Mended, match="start it anew"):
                    await beyond.follow(link)
            with pytest.raises(Mended, match="start it anew"):
                await link.pull("s", Lane.MAIN, cursor, 0)
            await mirrored(early, link, PASSED)
            early.close()
            early = Mirror(tmp_path / "early" / "s", origin.definition)
            await mirrored(early, link, PASSED)  # It knows of the mend now.
            assert tuples_of(early.folder / "main", early.definition) == origin.tuples()
            await mirrored(Mirror(tmp_path / "anew" / "s", origin.definition), link, PASSED)
            early.close()
            beyond.close()

    asyncio.run(play())


class Crumbs:
    """A link that ends where the boundary is about to be mended."""

    def __init__(self, link: Any, until_us: int) -> None:
        self._link, self._until_us, self._over = link, until_us, asyncio.Event()

    async def pull(self, stream: str, lane: Lane, position: Any, wait_s: float, bytes_max: int = 0) -> Any:
        portion = await self._link.pull(stream, lane, position, wait_s, 1)
        if portion.boundary_us > self._until_us:
            await self._over.wait()
        return portion


def test_a_mirror_that_holds_a_moved_row_of_an_open_bucket_is_refused_as_well(tmp_path: Path) -> None:
    """The row came ahead of the boundary: by that alone, the mirror stands before the mended place."""
    origin = Origin(tmp_path / "o")
    origin.fill(0, 25)
    origin.add((4999.5, 7))

    async def play() -> None:
        link = LocalLink(StreamServer(origin.store), never)
        mirror = Mirror(tmp_path / "m" / "s", origin.definition)
        await mirrored(mirror, link, 25 * SECOND)
        cursor = (await link.pull("s", Lane.MAIN, 0, 0)).cursor
        origin.add(boundary=FAR / SECOND)
        mended(origin)
        with pytest.raises(Mended):
            await mirror.follow(link)
        with pytest.raises(Mended):
            await link.pull("s", Lane.MAIN, cursor, 0)
        mirror.close()

    asyncio.run(play())


def test_a_node_hears_of_it_at_once_and_so_does_one_that_begins_from_a_checkpoint(tmp_path: Path) -> None:
    origin = ahead(tmp_path / "o")

    async def refused(home: Path, mends: int | None) -> bool:
        intake = MirroredIntake(home, origin.definition, (), SECOND, lambda _: link)
        if mends is not None:
            intake.began_under(mends)
        intake.subscribe("s@a", Lane.MAIN, FAR)
        told: list[object] = []
        try:
            await until(lambda: told.extend(intake.poll()) or told)
        except Mended:
            return True
        finally:
            intake.close()
        return not isinstance(told[0], InputAdvanced)

    async def play() -> None:
        assert not await refused(tmp_path / "reads", None)
        mended(origin)
        assert await refused(tmp_path / "reads", None)
        assert await refused(tmp_path / "checkpoint", 0)
        assert not await refused(tmp_path / "later", 1)

    link = LocalLink(StreamServer(origin.store), never)
    asyncio.run(play())


def test_a_subscriber_with_a_position_from_beyond_is_refused_and_one_from_after_the_mend_goes_on(
    tmp_path: Path,
) -> None:
    house = House()
    replica = Replica(house, tmp_path / "o").start()
    origin = replica.origin
    origin.fill(0, 30)
    origin.add((4999.5, 7), boundary=FAR / SECOND)
    net = holdfast.connect({"a": replica.address}, token=TOKEN)
    try:
        with net.subscribe("s", name="reader") as reader:
            rows = []
            for row in reader.rows(timeout="20s"):
                rows.append(row)
                if row.values["n"] == 7:
                    break
            reader.ack()
            end = monotonic_us() + 20 * SECOND
            while origin.stream.acks()["reader"].until_us < TO and monotonic_us() < end:
                list(reader.poll())
        mended(origin)
        for position in ({"after": rows[-1].position}, {"name": "reader", "resume": True}):
            with pytest.raises(Mended, match="start it anew"), net.subscribe("s", **position) as reader:
                list(reader.rows(timeout="20s"))
        with net.subscribe("s", after=rows[3].position) as reader:
            later = []
            for row in reader.rows(timeout="20s"):
                later.append(row)
                if row.values["n"] == 8:
                    break
        assert [row.values["n"] for row in later] == [row.values["n"] for row in rows[4:]] + [8]
        origin.add((6001, 9), boundary=6002)
        with net.subscribe("s", after=later[-1].position) as reader:
            assert next(reader.rows(timeout="20s")).values["n"] == 9
    finally:
        net.close()
        replica.stop()
        house.close()


def test_a_place_is_sent_as_it_is_and_one_of_an_older_reader_knows_no_mend() -> None:
    for position in ("1.abc.0.0.0", 17, Since(17, 3, 25)):
        assert decode_position(encode_position(position)) == position
    assert decode_position({"from_us": "17"}) == Since(17, 0, 17)
    for wrong in ({}, {"from_us": "x"}, {"from_us": "1", "mends": "-1"}, {"from_us": "1", "mends": "9" * 40}):
        with pytest.raises(UsageError):
            decode_position(wrong)
