"""An operator takes back a boundary that lies ahead; readers are told, and nothing is lost (D1, D10, D19)."""

from __future__ import annotations

from pathlib import Path

import pytest

import holdfast
from holdfast.model.errors import Mended, MendedMeanwhile, StreamBusy, UsageError
from holdfast.stream.boundary_mend import mend_boundary
from holdfast.stream.finding import Severity
from holdfast.stream.mended import read_mends
from holdfast.stream.verify import verify
from tests.faults.units import QuietDisk
from tests.stream.conftest import Cut, CuttingDisk
from tests.stream.test_clock import NOON, SECOND, YEARS, Clocks, opened

TO = NOON + 10 * SECOND


def far_ahead(
    root: Path, *, partition_by: str | None = None, segment_bytes: int = 4096
) -> tuple[holdfast.Stream, Clocks]:
    """Thirty tuples of a right clock and five of one that was ten years ahead; the producer has let go."""
    store, clocks = holdfast.StreamStore(root, disk=QuietDisk()), Clocks()
    stream = store.create(
        "s", "n bigint, word string", bucket="1s", partitions=2, partition_by=partition_by, segment_bytes=segment_bytes
    )
    with opened(stream, clocks) as producer:
        for n in range(30):
            clocks.pass_(SECOND // 5)
            producer.send({"n": n, "word": "w" * 100 + str(n)}, seq=n)
        producer.close(end=False)
    clocks.wall_us += YEARS
    with opened(stream, clocks) as producer:
        for n in range(30, 35):
            clocks.pass_(SECOND // 5)
            producer.send({"n": n, "word": f"w{n % 3}"}, seq=n)
        producer.close(end=False)
    clocks.wall_us -= YEARS
    return stream, clocks


def mend(stream: holdfast.Stream, **options: object):  # type: ignore[no-untyped-def]
    options = {"apply": True, "disk": QuietDisk(), **options}
    return mend_boundary(stream.folder, stream.definition, TO, now_us=TO, **options)  # type: ignore[arg-type]


def problems(stream: holdfast.Stream) -> list[str]:
    return [f.text for f in verify(stream.folder) if f.severity > Severity.NOTE]


@pytest.mark.parametrize("partition_by", [None, "word"])
def test_after_the_mend_every_tuple_is_seen_once_and_new_ones_follow(tmp_path: Path, partition_by: str | None) -> None:
    stream, clocks = far_ahead(tmp_path, partition_by=partition_by)
    before = {r.id: (r.stime, r.values) for r in stream.subscribe().rows(timeout=0)}
    done = mend(stream)
    assert (done.was_us > NOON + YEARS, done.to_us, done.moved, done.applied) == (True, TO + SECOND, 5, True)
    assert problems(stream) == []
    clocks.wall_us = TO + SECOND
    with opened(stream, clocks) as producer:
        assert producer.send({"n": 34, "word": "again"}, seq=34).duplicate
        clocks.pass_(SECOND)
        producer.send({"n": 35, "word": "new"}, seq=35)
        clocks.pass_(2 * SECOND)
        producer.tick()
        found = list(stream.subscribe().rows(timeout=0))
        producer.close(end=False)
    assert sorted(r.values["n"] for r in found) == list(range(36))
    assert len({r.id for r in found}) == 36
    for r in found:
        if r.values["n"] < 30:
            assert before[r.id] == (r.stime, r.values)
        elif r.values["n"] < 35:
            assert r.stime.timestamp() == (TO + SECOND) / 1e6
    assert problems(stream) == []


def test_without_apply_nothing_is_changed(tmp_path: Path) -> None:
    stream, _ = far_ahead(tmp_path)
    before = {p: p.read_bytes() for p in stream.folder.rglob("*") if p.is_file()}
    assert mend(stream, apply=False).moved == 5
    assert {p: p.read_bytes() for p in stream.folder.rglob("*") if p.is_file()} == before


def test_a_reader_that_had_read_beyond_is_refused_open_or_come_back_and_one_before_it_goes_on(tmp_path: Path) -> None:
    stream, _ = far_ahead(tmp_path)
    beyond, before = stream.subscribe(), stream.subscribe(end=(NOON + 2 * SECOND) / 1e6)
    assert len(list(beyond.rows(timeout=0))) > 30
    seen_before = [r.values["n"] for r in before.rows(timeout=0)]
    position = beyond.position_us
    mend(stream)
    for _ in range(2):
        with pytest.raises(MendedMeanwhile, match="open it again"):
            list(beyond.poll())
    with pytest.raises(Mended, match="start it anew"):
        stream.subscribe(start=position / 1e6)
    again = stream.subscribe(start=before.position_us / 1e6)
    assert seen_before + [r.values["n"] for r in again.rows(timeout=0)] == list(range(30))


def test_a_named_subscriber_that_acknowledged_beyond_is_taken_back_and_named(tmp_path: Path) -> None:
    stream, _ = far_ahead(tmp_path)
    subscriber = stream.subscribe(name="reader")
    list(subscriber.rows(timeout=0))
    subscriber.ack()
    assert mend(stream).subscribers == ("reader",)
    assert stream.acks()["reader"].until_us == TO + SECOND


def test_the_mend_is_noted_and_the_old_files_are_kept(tmp_path: Path) -> None:
    stream, _ = far_ahead(tmp_path)
    mend(stream)
    (note,) = read_mends(stream.folder)
    assert (note.to_us, note.moved) == (TO + SECOND, 5)
    assert list((stream.folder / "damaged").glob("*.seg"))


def test_it_is_refused_where_there_is_nothing_to_mend(tmp_path: Path) -> None:
    stream, clocks = far_ahead(tmp_path)
    mend(stream)
    with pytest.raises(UsageError, match="nothing to mend"):
        mend(stream)
    clocks.wall_us = TO + 2 * SECOND
    producer = opened(stream, clocks)
    with pytest.raises(StreamBusy):
        mend_boundary(stream.folder, stream.definition, NOON, now_us=TO, apply=True)
    producer.close()
    with pytest.raises(UsageError, match="it has ended"):
        mend_boundary(stream.folder, stream.definition, NOON, now_us=TO, apply=True)


def test_cut_short_anywhere_it_is_done_or_not_and_can_be_repeated(tmp_path: Path) -> None:
    steps = 0
    while True:
        stream, _ = far_ahead(tmp_path / str(steps), segment_bytes=1 << 20)
        try:
            mend(stream, disk=CuttingDisk(steps))
            break
        except Cut:
            pass
        steps += 1
        found = [r.values["n"] for r in stream.subscribe().rows(timeout=0)]
        assert found in ([*range(35)], [*range(30)], [*range(34)]), found
        if stream.reader().boundary_us > TO + SECOND:
            mend(stream)
        assert stream.reader().boundary_us == TO + SECOND
        assert stream.reader().rows == 35
        assert problems(stream) == []
    assert steps > 20
