"""Retention of sources follows the replicas that read them, over the same messages as between hosts (D14, 003 §4.9)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import holdfast
from holdfast.host import reader_acks
from holdfast.host.catalog import Catalog
from holdfast.host.deployment import load_deployment
from holdfast.host.host import Host
from holdfast.model.errors import UsageError
from holdfast.model.time import BEGINNING_US
from holdfast.protocol.dpc.messages import Ack, KeepaliveRequest
from holdfast.stream.definition import Retention
from holdfast.stream.head import read_head
from holdfast.stream.store import Stream
from tests.host.conftest import SECOND, Origin, until
from tests.host.scripted_engine import ScriptedEngine

APP = holdfast.App("netmon")


@APP.node(inputs=["s"], replicas=2)
def active(rows: object) -> object:
    return rows


@APP.node(inputs=["s", "t"])
def other(s: object, t: object) -> object:
    return s


FILE = """
app: unused.py
hosts:
  a: {address: "127.0.0.1:7401", root: a}
  b: {address: "127.0.0.1:7402", root: b}
  src: {address: "127.0.0.1:7403", root: src}
sources: {s: src, t: src}
nodes: {active: [a, b], other: [b]}
"""
READERS = ("active@a", "active@b", "other@b")


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_acks, "_EVERY_US", 0)


@contextlib.asynccontextmanager
async def source_host(root: Path) -> AsyncIterator[Host]:
    """The host of the sources, which runs no node and so needs no Spark."""
    (root / "net.yaml").write_text(FILE)
    catalog = Catalog(APP.diagram(), load_deployment(root / "net.yaml"))
    host = Host("src", catalog, root / "src", ScriptedEngine(), "x" * 20)
    running = asyncio.ensure_future(host.run())
    await until(lambda: host._voices)
    try:
        yield host
    finally:
        host.stop()
        await running


def ack(host: Host, reader: str, seconds: int) -> None:
    host.deliver(reader, "s@src", Ack("s", seconds * SECOND))


def noted(stream: Stream) -> int:
    return stream.acks()["replicas"].until_us


def removed(stream: Stream) -> int:
    return read_head(stream.folder / "main").removed_rows


def origin(root: Path, **options: object) -> Origin:
    made = Origin(root / "src", segment_bytes=4096, **options)
    made.fill(1, 200)
    return made


def test_a_source_is_truncated_to_what_its_slowest_reader_has(tmp_path: Path) -> None:
    source = origin(tmp_path, retention=Retention(acknowledged=True))
    before = source.tuples()

    async def play() -> None:
        async with source_host(tmp_path) as host:
            for reader in READERS[:2]:
                ack(host, reader, 150)
            assert source.tuples() == before, "one reader of the deployment has not spoken: it may be down"
            ack(host, "other@b", 60)
            ack(host, "stranger@b", 190)
            assert noted(source.stream) == 60 * SECOND
            await until(lambda: removed(source.stream) > 0)
            left = source.tuples()
            assert left == before[-len(left) :]
            assert left[0][0] <= 60, "what the slowest needs is there"
            ack(host, "other@b", 150)
            assert noted(source.stream) == 150 * SECOND
            await until(lambda: removed(source.stream) > len(before) - len(left))
            assert len(source.tuples()) < len(left)

    asyncio.run(play())


def test_a_reader_that_never_spoke_holds_back_whatever_others_acknowledge(tmp_path: Path) -> None:
    source = origin(tmp_path, retention=Retention(acknowledged=True))
    before = source.tuples()

    async def play() -> None:
        async with source_host(tmp_path) as host:
            host.deliver("active@a", "s@src", KeepaliveRequest())
            assert noted(source.stream) == BEGINNING_US
            subscriber = source.stream.subscribe(name="dashboard")
            list(subscriber.poll())
            subscriber.ack()
            subscriber.close()
            assert source.stream.retain().stopped_by.startswith("subscriber replicas has acknowledged only")
            assert source.tuples() == before

    asyncio.run(play())


def test_nobody_else_may_speak_for_the_replicas(tmp_path: Path) -> None:
    source = origin(tmp_path)
    with pytest.raises(UsageError, match="must not be called 'replicas'"):
        source.stream.subscribe(name="replicas")


def test_a_restarted_host_forgets_no_note_and_waits_for_everybody_again(tmp_path: Path) -> None:
    source = origin(tmp_path, retention=Retention(acknowledged=True))

    async def play(seconds: dict[str, int]) -> int:
        async with source_host(tmp_path) as host:
            for reader, upto in seconds.items():
                ack(host, reader, upto)
            return noted(source.stream)

    assert asyncio.run(play(dict.fromkeys(READERS, 50))) == 50 * SECOND
    assert asyncio.run(play({"active@a": 100})) == 50 * SECOND
    assert asyncio.run(play(dict.fromkeys(READERS, 40))) == 50 * SECOND
    assert asyncio.run(play(dict.fromkeys(READERS, 70))) == 70 * SECOND


def test_other_policies_wait_for_the_replicas_but_are_not_hastened_by_them(tmp_path: Path) -> None:
    source = origin(tmp_path)
    before = source.tuples()

    async def play() -> None:
        async with source_host(tmp_path) as host:
            for reader in READERS:
                ack(host, reader, 60)
            assert source.tuples() == before
            source.stream.retain(Retention(size_bytes=1))
            assert before[0] not in source.tuples()
            assert [t for t in before if t[0] >= 60] == [t for t in source.tuples() if t[0] >= 60]

    asyncio.run(play())
