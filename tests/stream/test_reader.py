"""What a reader may see, and when (L2, L4, L5, L6)."""

from __future__ import annotations

import os
import random
import resource
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import holdfast
import holdfast.stream.reader as readers
from holdfast.model.errors import CorruptLog, Fenced, Removed
from holdfast.stream.definition import Retention, define
from holdfast.stream.reader import LogReader
from holdfast.stream.retention import retain
from holdfast.stream.writer import Event
from tests.faults.units import BUCKET_US, SCHEMA, QuietDisk, flat, judge, open_log, read_all, rows_of, send

BEGINNING, END = -(2**62), 2**62


def reader_of(folder: Path) -> LogReader:
    reader = LogReader(folder, SCHEMA, BUCKET_US)
    reader.refresh()
    return reader


def numbered(ks: range) -> list[tuple[int, tuple[int, int, str]]]:
    return list(enumerate(flat(list(ks)), start=1))


def test_an_empty_stream_reads_as_empty(tmp_path: Path) -> None:
    reader = reader_of(tmp_path)
    assert not reader.refresh()
    assert (rows_of(reader), reader.rows, reader.closed, reader.stime_max_us) == ([], 0, False, None)
    reader.close()


def test_a_reader_that_was_out_of_files_when_the_log_rolled_looks_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = open_log(tmp_path, disk=QuietDisk(), segment_bytes=1 << 20)
    send(writer, 1)
    reader = reader_of(tmp_path)
    writer.release(1)
    writer = open_log(tmp_path, disk=QuietDisk(), segment_bytes=1024)
    for k in range(2, 30):
        send(writer, k)
    real, left = readers._Active, [1]

    def active(*given: Any) -> Any:
        if left:
            left.pop()
            raise OSError(24, "Too many open files")
        return real(*given)

    monkeypatch.setattr(readers, "_Active", active)
    with pytest.raises(OSError, match="Too many open files"):
        reader.refresh()
    assert reader.refresh()
    assert rows_of(reader) == numbered(range(1, 30))
    reader.close()


def test_a_reader_follows_a_writer_through_rolls_release_resume_and_takeover(tmp_path: Path) -> None:
    """L6: always a prefix of what was sent, never less than was acknowledged, never back."""
    reader = reader_of(tmp_path)
    chance, k = random.Random(1), 0
    writer = open_log(tmp_path, disk=QuietDisk(), segment_bytes=1024)
    for _ in range(120):
        what = chance.random()
        if what < 0.7:
            k += 1
            send(writer, k)
        elif what < 0.85:
            writer.release(1)
            writer = open_log(tmp_path, disk=QuietDisk(), segment_bytes=chance.choice((1024, 1 << 20)))
        else:
            old, writer = writer, open_log(tmp_path, disk=QuietDisk(), takeover=True, segment_bytes=1024)
            old.release(1)
        if chance.random() < 0.4:
            reader.refresh()
            assert rows_of(reader) == numbered(range(1, k + 1))
            assert reader.closed_until_us == (k + 1) * BUCKET_US or k == 0
    writer.release(1)
    reader.refresh()
    assert rows_of(reader) == read_all(tmp_path) == numbered(range(1, k + 1))
    assert reader.rows == len(flat(list(range(1, k + 1))))
    reader.close()


def test_bytes_that_are_written_but_not_yet_durable_are_not_shown(tmp_path: Path) -> None:
    """L2."""
    seen: list[int] = []

    class Looking(QuietDisk):
        def sync(self, fd: int, path: Path) -> None:
            if path.suffix == ".seg" and reader is not None:
                reader.refresh()
                seen.append(len(rows_of(reader)))

    reader: LogReader | None = None
    writer = open_log(tmp_path, disk=Looking(), segment_bytes=1 << 20)
    reader = reader_of(tmp_path)
    for k in (1, 2, 3):
        send(writer, k)
    assert list(dict.fromkeys(seen)) == [0, len(flat([1])), len(flat([1, 2]))]
    writer.release(1)
    reader.close()


def test_a_new_reader_knows_the_boundary_before_the_first_note_in_a_new_segment(tmp_path: Path) -> None:
    """Otherwise `live` would mean the beginning for whoever comes between a roll and its note."""
    seen: list[int] = []

    class Looking(QuietDisk):
        def unlink(self, path: Path) -> None:
            super().unlink(path)
            if path.name.startswith("manifest-") and looking:
                reader = reader_of(tmp_path)
                seen.append(reader.closed_until_us)
                reader.close()

    looking = False
    writer = open_log(tmp_path, disk=Looking(), segment_bytes=64)
    send(writer, 1)
    looking = True
    send(writer, 2)
    writer.release(1)
    assert seen[0] == 2 * BUCKET_US


def test_what_a_fenced_writer_adds_while_its_successor_looks_is_never_shown(tmp_path: Path) -> None:
    """L7, D1: the successor has read the end already, so that unit will not be part of the stream."""
    shown: list[list[tuple[int, tuple[int, int, str]]]] = []

    class Meanwhile(QuietDisk):
        def create(self, path: Path) -> int:
            if path.suffix == ".seg":
                with pytest.raises(Fenced):
                    send(old, 2)
                old.release(1)
                for reader in (early, reader_of(tmp_path)):
                    reader.refresh()
                    shown.append(rows_of(reader))
                    reader.close()
            return super().create(path)

    old = open_log(tmp_path, disk=QuietDisk())
    send(old, 1)
    early = reader_of(tmp_path)
    new = open_log(tmp_path, disk=Meanwhile(), takeover=True)
    send(new, 2)
    new.release(1)
    assert shown == [numbered(range(1, 2))] * 2
    judge(tmp_path, 2, 2)


def test_an_end_that_nobody_attends_is_shown_as_the_next_writer_will_find_it(tmp_path: Path) -> None:
    writer = open_log(tmp_path, disk=QuietDisk())
    for k in (1, 2):
        send(writer, k)
    writer._close_files()
    for note in tmp_path.glob("tail-*"):
        note.unlink()
    assert read_all(tmp_path) == numbered(range(1, 3))
    path = next(tmp_path.glob("*.seg"))
    whole = path.read_bytes()
    path.write_bytes(whole + b"\x07" * 100)
    assert read_all(tmp_path) == numbered(range(1, 3))


def test_an_end_that_is_cut_while_a_reader_walks_over_it_is_read_as_its_new_writer_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L6: space that a dead writer had reserved is gone from one look to the next."""
    old = open_log(tmp_path, disk=QuietDisk())
    send(old, 1)
    with open(tmp_path / old._name, "ab") as segment:
        segment.write(bytes(1 << 20))
    old._close_files()
    real: Any = readers.recover
    successors: list[Any] = []

    def meanwhile(*given: Any, **more: Any) -> Any:
        if not successors:
            successors.append(open_log(tmp_path, disk=QuietDisk()))
            send(successors[0], 2)
        return real(*given, **more)

    monkeypatch.setattr(readers, "recover", meanwhile)
    reader = reader_of(tmp_path)
    reader.refresh()
    assert rows_of(reader) == numbered(range(1, 3))
    reader.close()
    successors[0].release(1)


@pytest.mark.parametrize("tail", [True, False])
def test_damage_in_an_end_that_nobody_attends_is_reported_each_time_one_asks(tail: bool, tmp_path: Path) -> None:
    """L4: not a shorter stream, and not a second answer that is quietly shorter."""
    writer = open_log(tmp_path, disk=QuietDisk(), segment_bytes=1 << 20)
    for k in (1, 2, 3):
        send(writer, k)
    writer._close_files()
    if not tail:
        for note in tmp_path.glob("tail-*"):
            note.unlink()
    path = next(tmp_path.glob("*.seg"))
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 3] ^= 4
    path.write_bytes(raw)
    reader = LogReader(tmp_path, SCHEMA, BUCKET_US)
    for _ in range(3):
        with pytest.raises(CorruptLog):
            _ = reader.refresh(), rows_of(reader)
    reader.close()


def test_damage_in_a_released_end_is_reported_each_time_one_asks(tmp_path: Path) -> None:
    """L4."""
    writer = open_log(tmp_path, disk=QuietDisk(), segment_bytes=1 << 20)
    for k in (1, 2, 3):
        send(writer, k)
    writer.release(1)
    for note in tmp_path.glob("tail-*"):
        note.unlink()
    path = next(tmp_path.glob("*.seg"))
    raw = bytearray(path.read_bytes())
    raw[-30] ^= 4  # In the body of the last commit.
    path.write_bytes(raw)
    reader = LogReader(tmp_path, SCHEMA, BUCKET_US)
    for _ in range(3):
        with pytest.raises(CorruptLog):
            reader.refresh()
    reader.close()


def test_ranges_are_cut_to_the_microsecond_and_only_their_segments_are_opened(tmp_path: Path) -> None:
    writer = open_log(tmp_path, disk=QuietDisk(), segment_bytes=1024)
    for k in range(1, 40):
        send(writer, k)
    writer.release(1)
    chance = random.Random(3)
    everything = numbered(range(1, 40))
    for _ in range(50):
        low, high = sorted((chance.randint(0, 41_000), chance.randint(0, 41_000)))
        reader = reader_of(tmp_path)
        got = []
        for fields, batch in reader.scan(low, high):
            numbers = batch.column(1).to_pylist()
            got += [(fields.first_tuple_id + i, n) for i, n in enumerate(numbers)]
        assert got == [(id, row[1]) for id, row in everything if low <= row[0] < high]
        if high - low < 2_000:
            assert len(reader._sealed) <= 4
        reader.close()


def test_losing_or_damaging_any_index_changes_nothing(tmp_path: Path) -> None:
    """L5."""
    writer = open_log(tmp_path, disk=QuietDisk(), segment_bytes=1024)
    for k in range(1, 20):
        send(writer, k)
    writer.release(1)
    for i, path in enumerate(sorted(tmp_path.glob("*.idx"))):
        path.unlink() if i % 2 else path.write_bytes(path.read_bytes()[:-3] + b"abc")
    assert read_all(tmp_path) == numbered(range(1, 20))
    again = open_log(tmp_path, disk=QuietDisk(), segment_bytes=1024)
    send(again, 20)
    again.release(1)
    assert read_all(tmp_path) == numbered(range(1, 21))


def test_a_range_that_retention_removed_is_refused_and_the_rest_reads_on(tmp_path: Path) -> None:
    definition = define("s", SCHEMA, id=bytes(16).hex(), now_us=0, bucket="1ms")
    writer = open_log(tmp_path / "main", disk=QuietDisk(), segment_bytes=1024)
    for k in range(1, 20):
        send(writer, k)
    reader = reader_of(tmp_path / "main")
    extents = reader.extents(BEGINNING, END)
    assert retain(tmp_path / "main", definition, 1, disk=QuietDisk(), policy=Retention(size_bytes=2048)).segments > 2
    with pytest.raises(Removed, match="removed by retention"):
        reader.check_present(1_000)
    with pytest.raises(Removed, match="removed by retention"):
        reader.read(extents[0])
    rest = rows_of(reader)
    assert rest == numbered(range(1, 20))[-len(rest) :]
    assert len(rest) > 0
    writer.release(1)
    reader.close()


def test_a_segment_removed_between_two_looks_is_reported_as_removed(tmp_path: Path) -> None:
    writer = open_log(tmp_path, disk=QuietDisk(), segment_bytes=1024)
    for k in range(1, 20):
        send(writer, k)
    reader = reader_of(tmp_path)
    first = sorted(tmp_path.glob("*.seg"))[0]
    first.unlink()
    first.with_suffix(".idx").unlink()
    with pytest.raises(Removed):
        reader.extents(BEGINNING, END)
    writer.release(1)
    reader.close()


def test_a_history_of_more_segments_than_files_may_be_open_can_be_read(tmp_path: Path) -> None:
    writer = open_log(tmp_path, disk=QuietDisk(), segment_bytes=64)
    for k in range(1, 150):
        send(writer, k)
    writer.release(1)
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 90, limit[1]))
    try:
        assert read_all(tmp_path) == numbered(range(1, 150))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)


def test_a_reader_that_was_asleep_through_rolls_and_retention_finds_its_way(tmp_path: Path) -> None:
    """It may load a manifest whose last segment is gone a moment later."""
    definition = define("s", SCHEMA, id=bytes(16).hex(), now_us=0, bucket="1ms")
    writer = open_log(tmp_path / "main", disk=QuietDisk(), segment_bytes=64)
    send(writer, 1)
    reader = LogReader(tmp_path / "main", SCHEMA, BUCKET_US)
    inner, slept = reader._follow, []

    def sleepy(manifest: object) -> None:
        if not slept:
            slept.append(1)
            for k in range(2, 6):
                send(writer, k)
            retain(tmp_path / "main", definition, 1, disk=QuietDisk(), policy=Retention(size_bytes=1))
        inner(manifest)  # type: ignore[arg-type]

    reader._follow = sleepy  # type: ignore[method-assign, assignment]
    reader.refresh()
    assert [row for _, row in rows_of(reader)] == flat([5])
    writer.release(1)
    reader.close()


def test_a_reader_that_follows_for_long_keeps_the_indexes_of_the_last_segments_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.stream.reader._INDEX_BYTES_MAX", 1024)
    writer, reader = open_log(tmp_path, disk=QuietDisk(), segment_bytes=512), reader_of(tmp_path)
    for k in range(1, 41):
        send(writer, k)
        reader.refresh()
        reader.extents(max(0, k - 3) * BUCKET_US, END)
    assert len(reader.segments) > 20
    assert sum(entries.nbytes for entries in reader._sealed.values()) <= 1024
    assert rows_of(reader) == numbered(range(1, 41)), "what was let go of is loaded again"
    assert sum(entries.nbytes for entries in reader._sealed.values()) <= 1024
    reader.close()


@pytest.mark.parametrize("seed", range(20))
def test_where_the_last_tuples_begin_is_what_the_whole_history_says(tmp_path: Path, seed: int) -> None:
    chance, first, rows = random.Random(seed), 0, Counter[int]()
    stream = holdfast.open(tmp_path).create("s", "n bigint", bucket="1s", segment_bytes=4096)
    writer = stream.writer()
    for _ in range(chance.randint(0, 40)):
        events = []
        for bucket in (first + chance.randint(0, 3) for _ in range(chance.randint(0, 5))):
            count = chance.randint(1, 9)
            stime = bucket * 1_000_000
            events.append(Event(bucket, 0, count, stime, stime + 1, b"x" * chance.randint(1, 600)))
            rows[bucket] += count
        first += chance.randint(0, 2)
        writer.commit(events, now_us=1, boundary_us=first * 1_000_000)
    closed = sorted((bucket for bucket in rows if bucket < first), reverse=True)
    for tuples in (0, 1, 2, 5, 17, 50, 1000):
        found, expected = 0, first
        for expected in closed if tuples else ():
            found += rows[expected]
            if found >= tuples:
                break
        assert stream.last(tuples) == (expected, max(0, found - tuples))
    writer.release(1)
