"""A stream whose buckets come from a partner: nothing lost or twice, the same ids, wherever it is cut (B7)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.host.stream_server import StreamServer
from holdfast.host.wire import Portion
from holdfast.load.patience import Patience
from holdfast.load.remote_task import AwayNote, Fault, RemoteTask, Tributary, read_note, remove_note, write_note
from holdfast.load.tasks import let_go
from holdfast.model.errors import PeerError, StorageError
from holdfast.model.time import END_OF_TIME_US
from holdfast.protocol.dpc.messages import AuthorisationRequest, KeepaliveReply, KeepaliveRequest, Message
from holdfast.protocol.dpc.signals import Lane
from holdfast.stream.writer import LogWriter
from tests.host.conftest import Origin, boundary_of, tuples_of

S = 1_000_000


def remote(
    stream: holdfast.Stream, partner: Any, say: Any = None, inputs: tuple[int, ...] | None = (END_OF_TIME_US,)
) -> RemoteTask:
    async def promised() -> tuple[int, ...] | None:
        return inputs

    return RemoteTask("n@here", stream, AwayNote("anna:1#0", "ben"), "guest", partner, say, promised)


class Ben:
    """A partner whose guest has written `origin`."""

    def __init__(self, origin: Origin) -> None:
        self._serving = StreamServer(origin.store)
        self.asked = 0

    async def output(self, guest: str, stream: str, position: Any, wait_s: float, bytes_max: int) -> Portion:
        self.asked += 1
        await asyncio.sleep(0.001)
        return self._serving.pull(stream, Lane.MAIN, position, bytes_max=bytes_max)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.005)


class Fails:
    """Stands for `LogWriter.commit`: the disk is full, or worse, as long as nobody makes room."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
        self.real, self.error = LogWriter.commit, error
        monkeypatch.setattr(LogWriter, "commit", lambda log, *args, **more: self.commit(log, *args, **more))
        self.full = True

    def commit(self, log: LogWriter, *args: Any, **more: Any) -> Any:
        if self.full:
            raise self.error
        return self.real(log, *args, **more)


FULL = "could not write: No space left on device"


@pytest.mark.parametrize("error", [StorageError(FULL), OSError(28, FULL), RuntimeError(FULL)])
def test_what_cannot_be_stored_here_is_tried_again_and_not_held_against_the_partner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    """The task was taken from a partner that was said to be silent, when it was the owner's disk that was full."""
    monkeypatch.setattr("holdfast.load.remote_task._RETRY_S", 0.01)

    async def follow() -> None:
        origin = Origin(tmp_path / "there")
        origin.fill(1, 30)
        stream, ben, patience = copy_of(origin, tmp_path / "here", 20), Ben(origin), Patience(0)
        away = remote(stream, ben)
        disk = Fails(monkeypatch, error)
        await until(lambda: ben.asked > 3)
        assert away.fault is Fault.OURS
        assert (
            f"cannot be stored here: {'[Errno 28] ' if isinstance(error, OSError) else ''}{FULL}"
            in away.status()["why"]
        )
        assert await patience.over(None, away) is None  # type: ignore[arg-type]
        disk.full = False
        await until(lambda: away.boundary_us == 30 * S)
        await until(lambda: away.trouble is None)
        await away.leave()
        assert tuples_of(stream.folder / "main", stream.definition) == origin.tuples()

    asyncio.run(follow())
    assert caplog.text.count("it is tried again") == 1


def test_a_partner_whose_answers_cannot_be_taken_is_given_up_for_that_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.load.remote_task._RETRY_S", 0.01)

    async def follow() -> None:
        origin = Origin(tmp_path / "there")
        origin.fill(1, 30)
        origin.writer.commit([], now_us=1, closed=True)
        stream, ben = copy_of(origin, tmp_path / "here", 20), Ben(origin)
        away = remote(stream, ben, inputs=(END_OF_TIME_US, 40 * S))
        await until(lambda: ben.asked > 3)
        why = await Patience(0).over(None, away)  # type: ignore[arg-type]
        assert why is not None
        assert "ben has sent nothing for too long that could be taken" in why
        assert "may promise no more than every input has (1970-01-01T00:00:40" in why
        assert (away.ended, away.boundary_us) == (False, 20 * S)
        await away.leave()
        unsure = remote(stream, ben, inputs=None)
        await until(lambda: unsure.fault is Fault.OURS)
        assert "none of its hosts answers" in (unsure.trouble or "")
        await unsure.leave()
        away = remote(stream, ben, inputs=(END_OF_TIME_US, END_OF_TIME_US))
        await until(lambda: away.ended)
        await away.leave()
        assert tuples_of(stream.folder / "main", stream.definition) == origin.tuples()

    asyncio.run(follow())


def copy_of(origin: Origin, root: Path, upto: int) -> holdfast.Stream:
    """The stream at home, with the first buckets written there."""
    store = holdfast.open(root)
    stream = store.create("s", "n bigint", bucket="1s")
    home = Origin.__new__(Origin)
    home.store, home.stream, home.writer, home.definition = store, stream, stream.writer(), stream.definition
    home.fill(1, upto)
    home.writer.release(1)
    return stream


@pytest.mark.parametrize("seed", range(4))
def test_following_again_after_any_cut_gives_the_stream_of_one_that_stayed(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    origin = Origin(tmp_path / "there")
    origin.fill(1, 60)
    stream = copy_of(origin, tmp_path / "here", 20)
    serving = StreamServer(origin.store)
    upto = 60
    while boundary_of(stream.folder / "main", stream.definition) < 80 * S:
        log = Tributary(stream, "test")
        position: int | str = log.begin()
        for _ in range(chance.randint(1, 8)):
            portion = serving.pull("s", Lane.MAIN, position, bytes_max=chance.choice((1, 500, 5000)))
            log.take(portion)
            position = portion.cursor
        if chance.random() < 0.5:
            log.close()  # Otherwise it is forgotten, as by a process that was killed.
        if upto < 80:
            origin.fill(upto, upto + 4)
            upto += 4
    assert tuples_of(stream.folder / "main", stream.definition) == origin.tuples()
    serving.close()


def test_a_bucket_that_is_not_complete_is_not_stored(tmp_path: Path) -> None:
    origin = Origin(tmp_path / "there")
    origin.fill(1, 5)
    origin.add((5.1, 1), (5.2, 2))
    stream = copy_of(origin, tmp_path / "here", 3)
    log, serving = Tributary(stream, "test"), StreamServer(origin.store)
    log.take(serving.pull("s", Lane.MAIN, log.begin()))
    assert log.boundary_us == 5 * S
    assert max(t[0] for t in tuples_of(stream.folder / "main", stream.definition)) == 4
    log.close()
    serving.close()


def test_the_end_of_a_stream_comes_through(tmp_path: Path) -> None:
    origin = Origin(tmp_path / "there")
    origin.fill(1, 5)
    origin.writer.commit([], now_us=1, closed=True)
    stream = copy_of(origin, tmp_path / "here", 3)
    log, serving = Tributary(stream, "test"), StreamServer(origin.store)
    log.take(serving.pull("s", Lane.MAIN, log.begin()), END_OF_TIME_US)
    assert log.closed
    log.close()
    assert tuples_of(stream.folder / "main", stream.definition) == origin.tuples()
    serving.close()


def test_what_is_of_another_shape_or_has_a_gap_is_refused(tmp_path: Path) -> None:
    origin = Origin(tmp_path / "there")
    origin.fill(1, 5)
    other = holdfast.open(tmp_path / "other").create("s", "n bigint, m bigint", bucket="1s")
    log, serving = Tributary(other, "test"), StreamServer(origin.store)
    with pytest.raises(PeerError, match="the same columns and buckets"):
        log.take(serving.pull("s", Lane.MAIN, 0))
    log.close()
    serving.close()


def test_a_partner_that_never_closes_a_bucket_does_not_fill_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X4"""
    monkeypatch.setattr("holdfast.load.remote_task.WAITING_BYTES_MAX", 10_000)
    origin = Origin(tmp_path / "there")
    stream = copy_of(origin, tmp_path / "here", 3)
    log, serving = Tributary(stream, "test"), StreamServer(origin.store)
    position: int | str = log.begin()
    for n in range(20):
        origin.add((5 + n / 1000, n))
        portion = serving.pull("s", Lane.MAIN, position)
        log.take(portion)
        position = portion.cursor
    for n in range(100):
        origin.add((5.1 + n / 1000, n))
    with pytest.raises(PeerError, match="open buckets may have 10000 bytes at most"):
        log.take(serving.pull("s", Lane.MAIN, position))
    assert log.begin() == 3 * S
    log.close()
    serving.close()


def test_who_writes_is_one_file(tmp_path: Path) -> None:
    assert read_note(tmp_path) is None
    write_note(tmp_path, AwayNote("anna:1#0", "ben"))
    assert read_note(tmp_path) == AwayNote("anna:1#0", "ben")
    remove_note(tmp_path)
    assert read_note(tmp_path) is None


def test_what_the_owner_has_may_go_at_the_partner_and_the_rest_is_followed_without_a_gap(tmp_path: Path) -> None:
    origin = Origin(tmp_path / "there", segment_bytes=4096)
    origin.fill(1, 60)
    stream = copy_of(origin, tmp_path / "here", 20)
    expected, serving, log = origin.tuples(), StreamServer(origin.store), Tributary(stream, "test")
    portion = serving.pull("s", Lane.MAIN, log.begin(), bytes_max=2000)
    log.take(portion)
    assert 20 * S < log.boundary_us < 60 * S
    assert let_go(origin.stream, log.boundary_us) > 0
    log.take(serving.pull("s", Lane.MAIN, portion.cursor))
    log.close()
    assert tuples_of(stream.folder / "main", stream.definition) == expected
    serving.close()


def test_a_replica_that_has_moved_away_promises_nobody_to_bring_news_d11(tmp_path: Path) -> None:
    """A staggering peer would give up its fork for such a promise, and nothing tentative ever comes from here."""
    said: list[tuple[str, Message]] = []

    async def ask() -> None:
        origin = Origin(tmp_path)
        origin.fill(1, 5)
        origin.writer.release(1)
        stream = origin.stream
        with stream.producer(stime="stime") as producer:
            producer.close()
        away = remote(stream, None, say=lambda _, send: said.append((send.to, send.message)))
        away.deliver("n@there", AuthorisationRequest(7))
        away.deliver("n@there", KeepaliveRequest())
        await away.leave()

    asyncio.run(ask())
    assert [(to, type(message)) for to, message in said] == [("n@there", KeepaliveReply)]
