"""The watcher sees the sequence of a subscriber, counted."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

from holdfast.model.tuples import TupleType
from holdfast.protocol.dpc.messages import StreamReport
from holdfast.protocol.dpc.states import StreamState
from holdfast.stream.report import ReportWriter
from holdfast.stream.store import Stream, StreamStore
from holdfast.stream.subscriber import Subscriber
from holdfast.stream.watcher import Watcher

SECOND = 1_000_000
#: Several tuples in a bucket, in several events.
EACH = 3


def made(root: Path) -> Stream:
    return StreamStore(root).create("s", "n bigint", bucket="1s")


def send(stream: Stream, buckets: range, *, branch: bool = False, end: bool = False) -> None:
    from holdfast.stream.producer import Producer

    options = {"stime": "stime", "boundary_every": "1h"}
    producer = Producer(stream.definition, stream.branch_writer(), **options) if branch else stream.producer(**options)
    for n in buckets:
        for part in range(EACH):
            producer.send({"n": n, "stime": n * SECOND + part})
    producer.advance(buckets.stop * SECOND)
    producer.close(end=end)


def told(subscriber: Subscriber) -> Counter[TupleType]:
    return Counter(TupleType(kind) for batch in subscriber.poll() for kind in batch.column("tuple_type").to_pylist())


def seen(watcher: Watcher) -> Counter[TupleType]:
    found: Counter[TupleType] = Counter()
    for counted in watcher.look():
        found[counted.kind] += counted.tuples
    return found


def test_a_watcher_counts_what_a_subscriber_is_handed_through_a_failure(tmp_path: Path) -> None:
    """D1 to D4, D15: stable, tentative, taken back, corrected, ended."""
    stream = made(tmp_path)
    send(stream, range(3))
    watcher, subscriber = Watcher(stream), stream.subscribe(start="live", tentative=True)
    report = ReportWriter(stream.folder)

    def same() -> Counter[TupleType]:
        counted = seen(watcher)
        assert counted == told(subscriber)
        return counted

    def say(state: StreamState, until: int, fresh: bool) -> None:
        report.publish(StreamReport("s", state, until * SECOND, fresh))

    assert watcher.begun_us == 3 * SECOND
    say(StreamState.STABLE, 3, False)
    assert not same()
    send(stream, range(3, 5))
    assert same() == {TupleType.INSERTION: 2 * EACH}
    say(StreamState.UP_FAILURE, 5, True)
    stream.create_branch(5 * SECOND)
    send(stream, range(5, 8), branch=True)
    assert same() == {TupleType.TENTATIVE: 3 * EACH}
    say(StreamState.STABILIZATION, 5, True)
    send(stream, range(5, 7))
    assert same() == {TupleType.UNDO: 1, TupleType.INSERTION: 2 * EACH}
    send(stream, range(7, 9))
    stream.drop_branch()
    say(StreamState.STABLE, 9, False)
    assert same() == {TupleType.INSERTION: 2 * EACH, TupleType.REC_DONE: 1}
    send(stream, range(9, 10), end=True)
    assert same() == {TupleType.INSERTION: EACH}
    watcher.close()
    subscriber.close()


def test_a_watcher_of_an_empty_stream_counts_from_its_beginning(tmp_path: Path) -> None:
    stream = made(tmp_path)
    watcher = Watcher(stream)
    send(stream, range(2))
    assert next(watcher.look()) == (TupleType.INSERTION, EACH, 0, EACH - 1)


def test_a_watcher_passes_over_what_is_gone(tmp_path: Path) -> None:
    """A picture with a hole, and no reason to stop."""
    stream = made(tmp_path)
    watcher = Watcher(stream)
    stream.create_branch(0)
    send(stream, range(3), branch=True)
    shutil.rmtree(stream.folder / "tentative")
    assert not seen(watcher)
    send(stream, range(2))
    assert seen(watcher) == {TupleType.INSERTION: 2 * EACH}
