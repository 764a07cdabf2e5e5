"""An input through links: whatever ends a lane is said, and its files keep out of each other's way."""

from __future__ import annotations

import asyncio
from pathlib import Path

import holdfast
from holdfast.host.link import Link, LocalLink
from holdfast.host.mirrored_intake import MirroredIntake
from holdfast.host.stream_server import StreamServer
from holdfast.host.wire import Portion, Position
from holdfast.model.errors import PeerError
from holdfast.model.time import BEGINNING_US
from holdfast.protocol.dpc.messages import Message
from holdfast.protocol.dpc.signals import Disconnected, InputAdvanced, Lane
from holdfast.stream.definition import Definition
from holdfast.stream.head import read_head
from tests.host.conftest import SECOND, Origin, never, until


class Faulty(Link):
    """Breaks in a way that nobody thought of."""

    async def pull(self, stream: str, lane: Lane, position: Position, wait_s: float, bytes_max: int = 0) -> Portion:
        raise RuntimeError("a fault of a library")

    async def say(self, sender: str, to: str, message: Message) -> None:
        raise RuntimeError("a fault of a library")

    async def definition(self, stream: str) -> Definition:
        raise RuntimeError("a fault of a library")


def test_a_lane_that_ends_by_an_unforeseen_error_is_told_as_broken(tmp_path: Path) -> None:
    origin = Origin(tmp_path / "o")

    async def play() -> None:
        intake = MirroredIntake(tmp_path / "home", origin.definition, ("n@a",), SECOND, lambda _: Faulty())
        intake.subscribe("n@a", Lane.MAIN, 0)
        told: list[object] = []
        await until(lambda: told.extend(intake.poll()) or told)
        assert told == [Disconnected("n@a")]
        intake.close()

    asyncio.run(play())


def test_where_a_stream_begins_is_asked_again_after_an_unforeseen_error(tmp_path: Path) -> None:
    origin = Origin(tmp_path / "o")
    origin.fill(3, 5)
    links: list[Link] = [LocalLink(StreamServer(origin.store), never), Faulty()]

    async def play() -> None:
        intake = MirroredIntake(tmp_path / "home", origin.definition, ("n@a",), SECOND, lambda _: links[-1])
        await asyncio.sleep(0)
        assert intake.first_us() is None
        links.pop()
        await until(lambda: intake.first_us() is not None)
        intake.close()

    asyncio.run(play())


def test_a_stream_named_like_a_folder_of_ours_is_mirrored_beside_the_copies(tmp_path: Path) -> None:
    store = holdfast.open(tmp_path / "o")
    for name in ("copies", "s"):
        writer = store.create(name, "n bigint", bucket="1s").writer()
        writer.commit([], now_us=1, boundary_us=3 * SECOND)
        writer.release(1)
        store.open(name).create_branch(2 * SECOND)

    async def play() -> None:
        link = LocalLink(StreamServer(store), never)
        intakes = [
            MirroredIntake(tmp_path / "home", store.open(name).definition, ("n@a",), SECOND, lambda _: link)
            for name in ("copies", "s")
        ]
        for intake in intakes:
            told: list[object] = []
            intake.subscribe("n@a", Lane.BRANCH, 0)
            intake.subscribe("n@a", Lane.MAIN, 0)
            await until(lambda intake=intake, told=told: told.extend(intake.poll()) or told)  # type: ignore[misc]
            assert isinstance(told[0], InputAdvanced)
        mirrors = {p.name for p in (tmp_path / "home" / "inputs").iterdir()}
        assert mirrors == {"copies", "s"}
        for intake in intakes:
            intake.close()

    asyncio.run(play())


def test_what_is_gone_at_every_producer_is_known_before_a_replica_begins_and_a_whole_one_is_preferred(
    tmp_path: Path,
) -> None:
    """D18."""
    whole, short = Origin(tmp_path / "whole"), Origin(tmp_path / "short", segment_bytes=4096)
    for origin in (whole, short):
        origin.fill(3, 40)
    assert short.stream.retain(holdfast.Retention(size_bytes=1)).segments
    removed_us = read_head(short.stream.folder / "main").removed_until_us
    links: dict[str, Link] = {"n@b": LocalLink(StreamServer(short.store), never), "n@a": Silent()}

    async def play() -> None:
        def link_to(producer: str) -> Link:
            return links[producer]

        waits = MirroredIntake(tmp_path / "1", whole.definition, ("n@b", "n@a"), SECOND, link_to)
        alone = MirroredIntake(tmp_path / "2", whole.definition, ("n@b",), SECOND, link_to)
        await until(lambda: alone.first_us() is not None)
        assert removed_us <= alone.lost_until_us() <= removed_us + SECOND
        assert waits.first_us() is None, "n@a may have it whole"
        links["n@a"] = LocalLink(StreamServer(whole.store), never)
        await until(lambda: waits.first_us() is not None)
        assert (waits.lost_until_us(), waits.first_us()) == (BEGINNING_US, 3 * SECOND)
        waits.close()
        alone.close()

    asyncio.run(play())


class Silent(Faulty):
    """Does not answer."""

    async def pull(self, stream: str, lane: Lane, position: Position, wait_s: float, bytes_max: int = 0) -> Portion:
        raise PeerError("it does not answer")
