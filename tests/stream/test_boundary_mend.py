"""An operator takes back a boundary that lies ahead; readers are told, and nothing is lost (D1, D10, D19)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.model.errors import Mended, MendedMeanwhile, StreamBusy, UsageError
from holdfast.spark.failure import is_permanent
from holdfast.spark.source import BucketReader
from holdfast.spark.tentative_source import SequenceReader
from holdfast.stream.checking.boundary_mend import mend_boundary
from holdfast.stream.checking.finding import Severity
from holdfast.stream.checking.mended import Mend, add_mend, read_mends
from holdfast.stream.checking.verify import verify
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


def passed(stream: holdfast.Stream, clocks: Clocks) -> None:
    """The stream has come beyond where it was before the mend."""
    clocks.wall_us = NOON + 2 * YEARS
    with opened(stream, clocks) as producer:
        producer.send({"n": 99, "word": "late"}, seq=99)
        clocks.pass_(3 * SECOND)
        producer.tick()
        producer.close(end=False)


def test_a_position_from_beyond_is_refused_also_when_the_stream_has_passed_it_again(tmp_path: Path) -> None:
    """Once it was let in then, and never saw what lies between."""
    stream, clocks = far_ahead(tmp_path)
    beyond = stream.subscribe(name="beyond")
    rows = list(beyond.rows(timeout=0))
    beyond.ack()
    before, whole = rows[7].position, beyond.position
    mend(stream)
    passed(stream, clocks)
    for position in (whole, rows[-1].position):
        with pytest.raises(Mended, match="start it anew"):
            stream.subscribe(after=position)
    with pytest.raises(Mended, match="start it anew"):
        stream.subscribe(name="beyond", resume=True)
    assert [r.values["n"] for r in stream.subscribe(after=before).rows(timeout=0)] == [*range(8, 35), 99]
    anew = stream.subscribe(name="beyond")
    next(anew.rows(timeout=0))
    anew.ack()
    assert stream.subscribe(name="beyond", resume=True).position_us < TO


def test_a_position_taken_after_the_mend_is_good_until_the_next_one(tmp_path: Path) -> None:
    stream, clocks = far_ahead(tmp_path)
    early = stream.subscribe(end=(NOON + 2 * SECOND) / 1e6)
    list(early.rows(timeout=0))
    mend(stream)
    passed(stream, clocks)
    again = stream.subscribe(after=early.position)
    last = list(again.rows(timeout=0))[-1]
    for position in (again.position, last.position):
        assert list(stream.subscribe(after=position).rows(timeout=0)) == []
    mend_boundary(stream.folder, stream.definition, NOON + YEARS, now_us=TO, apply=True, disk=QuietDisk())
    assert [m.moved for m in read_mends(stream.folder)] == [5, 1]
    for position in (again.position, last.position):
        with pytest.raises(Mended, match="start it anew"):
            stream.subscribe(after=position)
    assert [r.values["n"] for r in stream.subscribe(after=early.position).rows(timeout=0)][-5:] == [*range(30, 35)]


def test_an_open_reader_that_looks_again_only_after_the_stream_has_passed_is_refused(tmp_path: Path) -> None:
    stream, clocks = far_ahead(tmp_path)
    beyond = stream.subscribe(name="beyond")
    list(beyond.rows(timeout=0))
    mend(stream)
    passed(stream, clocks)
    with pytest.raises(MendedMeanwhile):
        beyond.ack()
    with pytest.raises(MendedMeanwhile):
        list(beyond.poll())


def test_a_mend_that_was_cut_short_before_its_manifest_refuses_nobody(tmp_path: Path) -> None:
    stream, _ = far_ahead(tmp_path)
    beyond = stream.subscribe()
    rows = list(beyond.rows(timeout=0))
    add_mend(stream.folder, 0, Mend(NOON + YEARS, TO, TO, 5, 31), QuietDisk())
    assert list(stream.subscribe(after=beyond.position).rows(timeout=0)) == []
    mend(stream)
    assert len(read_mends(stream.folder)) == 1
    with pytest.raises(Mended):
        stream.subscribe(after=rows[-1].position)


def test_a_query_refuses_an_offset_from_beyond_also_when_the_stream_has_passed_it_again(tmp_path: Path) -> None:
    """Reading main alone, with the branch, and of a batch that is done again after a crash."""
    stream, clocks = far_ahead(tmp_path)
    given = {"root": str(tmp_path), "path": "s"}

    def planned() -> tuple[BucketReader, dict[str, Any], dict[str, Any]]:
        reader = BucketReader(given)
        start = reader.initialOffset()
        return reader, start, reader.latestOffset(start, reader.getDefaultReadLimit())

    def sequence() -> tuple[SequenceReader, dict[str, Any]]:
        reader = SequenceReader({**given, "tentative": "true"})
        return reader, reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())

    _, start, end = planned()
    assert end == {"format": 1, "until_us": end["until_us"]}
    with_branch = sequence()[1]
    early = {"format": 1, "until_us": NOON + 2 * SECOND}
    mend(stream)
    passed(stream, clocks)
    reader, _, new = planned()
    assert new["mends"] == {"s": 1}
    limit = reader.getDefaultReadLimit()
    for refused in (
        lambda: reader.latestOffset(end, limit),
        lambda: reader.partitions(start, end),
        lambda: sequence()[0].latestOffset(with_branch, limit),
        lambda: sequence()[0].partitions(with_branch, with_branch),
    ):
        with pytest.raises(Mended, match="new checkpoint"):
            refused()
    assert is_permanent(Mended("a node that goes on from such a checkpoint fails at once"))
    assert reader.latestOffset(early, limit) == new == reader.latestOffset(new, limit)
    assert len(reader.partitions(early, new)) == 1
    waits = BucketReader({**given, "decision": str(tmp_path / "decision")})
    with pytest.raises(Mended):  # Before it waits for a host to decide something.
        waits.latestOffset(end, limit)
