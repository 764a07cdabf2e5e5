"""A branch keeps its newest part, however long the failure lasts (003 §4.9.2): what is tentative is never replayed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from holdfast.host.link import LocalLink
from holdfast.host.mirror import Advance, Copy
from holdfast.host.stream_server import StreamServer
from holdfast.protocol.dpc.signals import Lane
from holdfast.protocol.dpc.states import StreamState
from holdfast.stream import branch
from holdfast.stream.branch import BranchReader, branch_folder
from holdfast.stream.pack import pack
from holdfast.stream.store import Stream, StreamStore
from holdfast.stream.writer import LogWriter
from tests.stream.test_rows import stored_batch
from tests.stream.test_subscriber import SECOND, filled, polled, publish, send


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(branch, "BRANCH_BYTES", 64 << 10)


def write(stream: Stream, writer: LogWriter, numbers: range) -> None:
    for n in numbers:
        rows = stored_batch(stream.definition, [n * SECOND] * 50, n=[n] * 50)
        writer.commit(pack(rows, stream.definition), now_us=n, boundary_us=(n + 1) * SECOND)


def room(stream: Stream) -> int:
    return sum(path.stat().st_size for path in branch_folder(stream.folder).iterdir())


def failing(tmp_path: Path) -> tuple[Stream, LogWriter]:
    stream = filled(tmp_path, 3)
    with stream.subscribe(name="slow"):  # Main waits for it.
        pass
    publish(stream, StreamState.UP_FAILURE)
    stream.create_branch(3 * SECOND)
    return stream, stream.branch_writer()


def test_who_keeps_up_gets_all_of_it_who_comes_late_the_newest_and_both_the_corrections(tmp_path: Path) -> None:
    """D2, D3."""
    stream, writer = failing(tmp_path)
    most, end = 0, 1_000
    with stream.subscribe(tentative=True) as follower:
        assert polled(follower) == [0, 1, 2]
        for n in range(3, end, 50):
            upto = min(n + 50, end)
            write(stream, writer, range(n, upto))
            publish(stream, StreamState.UP_FAILURE)  # Its host is alive.
            assert polled(follower) == [f"~{k}" for k in range(n, upto) for _ in range(50)]
            most = max(most, room(stream))
        assert most < 2 * branch.BRANCH_BYTES
        reader = BranchReader(stream.folder, stream.definition)
        reader.refresh()
        first = reader.cut_us // SECOND
        assert 3 < first < end
        assert reader.cut_rows > 0
        reader.close()
        with stream.subscribe(tentative=True) as late:
            publish(stream, StreamState.UP_FAILURE)
            assert polled(late) == [0, 1, 2, *(f"~{k}" for k in range(first, end) for _ in range(50))]
            writer.release(1)
            publish(stream, StreamState.STABILIZATION)
            send(stream, range(3, end))
            stream.drop_branch()
            publish(stream, StreamState.STABLE)
            for subscriber in (late, follower):
                assert polled(subscriber) == ["UNDO after 3", *range(3, end), "REC_DONE"]


def test_a_branch_keeps_what_was_written_lately_and_no_more_however_little_that_is(tmp_path: Path) -> None:
    """A node that keeps two minutes of its output keeps that much of what is tentative, too."""
    filled(tmp_path, 3)
    now = [3 * SECOND]
    stream = StreamStore(tmp_path, clock=lambda: now[0]).open("s")
    stream.create_branch(3 * SECOND, kept_us=120 * SECOND)
    writer, sizes = stream.branch_writer(), []
    for n in range(3, 1_000):
        now[0] = n * SECOND
        if n % 10 == 0:  # As Spark's sink does between batches.
            writer.release(n * SECOND)
            writer = stream.branch_writer()
        rows = stored_batch(stream.definition, [n * SECOND], n=[n])
        writer.commit(pack(rows, stream.definition), now_us=n * SECOND, boundary_us=(n + 1) * SECOND)
        sizes.append(room(stream))
    writer.release(now[0])
    reader = BranchReader(stream.folder, stream.definition)
    reader.refresh()
    assert 1_000 - 120 * 5 // 4 <= reader.cut_us // SECOND <= 1_000 - 120
    reader.close()
    assert max(sizes[500:]) <= 1.01 * max(sizes[200:500]), "flat"


def test_a_reader_over_the_network_is_told_where_what_is_left_begins(tmp_path: Path) -> None:
    stream, writer = failing(tmp_path)
    write(stream, writer, range(3, 1_000))

    async def play() -> None:
        serving = StreamServer(StreamStore(tmp_path))
        portion = serving.pull("s", Lane.BRANCH, 3 * SECOND)
        assert portion.gap_us is not None
        assert portion.gap_us > 3 * SECOND
        assert min(event.bucket for event in portion.events) == portion.gap_us // SECOND
        told: list[Advance] = []
        copy = Copy(tmp_path / "copy", stream.definition)
        following = asyncio.ensure_future(
            copy.follow(LocalLink(serving, lambda *_: None), Lane.BRANCH, 3 * SECOND, told.append, wait_s=0.1)
        )
        while not told or told[-1].boundary_us < 1_000 * SECOND:
            await asyncio.sleep(0.01)
        following.cancel()
        arrived = {arrival.bucket: arrival.tuples for advance in told for arrival in advance.arrivals}
        assert arrived == dict.fromkeys(range(portion.gap_us // SECOND, 1000), 50), "nothing passes for empty"
        copy.close()
        serving.close()

    asyncio.run(play())
    writer.release(1)
