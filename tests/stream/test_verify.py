"""`verify` names the place of any damage, and leaves everything as it is."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import holdfast
from holdfast.stream.checking.finding import Severity
from holdfast.stream.checking.verify import verify
from holdfast.stream.frame import Header, Kind, encode_frame
from holdfast.stream.manifest import load_manifest
from holdfast.stream.record import Commit, encode
from holdfast.stream.writer import Event
from tests.stream.conftest import SECOND, FilledStream

FLIPS = int(os.environ.get("HOLDFAST_FLIPS", "2000"))


def problems(folder: Path) -> list[str]:
    return [f.text for f in verify(folder) if f.severity > Severity.NOTE]


def test_a_sound_stream_has_no_findings(filled: FilledStream) -> None:
    filled.dress()
    assert [f.text for f in verify(filled.folder)] == []


def test_a_stream_partitioned_by_key_has_no_findings(tmp_path: Path) -> None:
    assert problems(FilledStream(tmp_path, partition_by="word").folder) == []


def test_an_empty_stream_has_no_findings(tmp_path: Path) -> None:
    stream = holdfast.open(tmp_path).create("s", "n bigint")
    assert list(verify(stream.folder)) == []


def test_every_flipped_bit_is_named_with_its_place(filled: FilledStream) -> None:
    """L4: segments, indexes, manifests, the head, acknowledgements, the definition, the branch."""
    filled.dress()
    files = [p for p in filled.folder.rglob("*") if p.is_file() and p.stat().st_size]
    files = [p for p in files if not p.name.startswith("tail-") and p.name != "retention.lock"]
    kinds = {p.suffix or p.name.rstrip("0123456789-") for p in files}
    assert kinds >= {".seg", ".idx", "manifest", "head", "reader", "stream", "branch"}
    seed = random.randrange(2**32)
    chance = random.Random(seed)
    for _ in range(FLIPS):
        path = chance.choice(files)
        bit = chance.randrange(path.stat().st_size * 8)
        _flip(path, bit)
        named = [f for f in verify(filled.folder) if f.severity > Severity.NOTE and f.file == path]
        hit = [f for f in named if f.offset <= bit // 8 < f.offset + f.length]
        _flip(path, bit)
        assert hit, f"seed {seed}: bit {bit} of {path} was not named; findings there: {named}"
    assert problems(filled.folder) == []


def _flip(path: Path, bit: int) -> None:
    fd = os.open(path, os.O_RDWR)
    try:
        byte = os.pread(fd, 1, bit // 8)[0]
        os.pwrite(fd, bytes([byte ^ (1 << bit % 8)]), bit // 8)
    finally:
        os.close(fd)


def test_nothing_is_changed(filled: FilledStream) -> None:
    filled.dress()
    before = {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in filled.folder.rglob("*") if p.is_file()}
    list(verify(filled.folder))
    assert {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in filled.folder.rglob("*") if p.is_file()} == before


def test_it_goes_on_behind_the_damage(filled: FilledStream) -> None:
    segments = sorted((filled.folder / "main").glob("*.seg"))
    for path in segments[:2]:
        _flip(path, (64 + 10) * 8)
    assert len({f.file for f in verify(filled.folder) if f.severity is Severity.ERROR}) == 2


def test_progress_ends_at_the_total(filled: FilledStream) -> None:
    seen: list[tuple[int, int]] = []
    list(verify(filled.folder, progress=lambda done, total: seen.append((done, total))))
    assert seen == sorted(seen)
    assert seen[-1][0] > 0.9 * seen[-1][1]


def test_a_missing_segment_is_an_error_and_a_missing_index_is_not(filled: FilledStream) -> None:
    segments = sorted((filled.folder / "main").glob("*.seg"))
    segments[0].with_suffix(".idx").unlink()
    assert problems(filled.folder) == []
    segments[1].unlink()
    assert "is missing" in problems(filled.folder)[0]


def test_a_lost_manifest_is_reported(filled: FilledStream) -> None:
    for path in (filled.folder / "main").glob("manifest-*"):
        path.unlink()
    assert any("the manifest is lost" in p for p in problems(filled.folder))


def test_it_runs_beside_a_living_writer(filled: FilledStream) -> None:
    with filled.stream.producer(stime="at", slack="2s") as producer:
        for n in range(60, 160, 5):
            filled.send(producer, range(n, n + 5))
            assert problems(filled.folder) == []


def test_a_killed_writer_leaves_a_sound_stream_with_at_most_a_note(tmp_path: Path) -> None:
    stream = holdfast.open(tmp_path).create("s", "n bigint")
    code = f"""
        import holdfast, os, signal
        producer = holdfast.open({str(tmp_path)!r}).open("s").producer()
        for n in range(50):
            producer.send({{"n": n}})
        os.pwrite(producer.writer._fd, b"torn" * 30, producer.writer._offset)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=False)
    assert done.returncode == -signal.SIGKILL
    found = list(verify(stream.folder))
    assert [f.severity for f in found] == [Severity.NOTE]
    assert "never acknowledged" in found[0].what


def _append(filled: FilledStream, *frames: tuple[Header, bytes], commit: Commit) -> None:
    """Write a unit that a correct writer would not write, checksums and all."""
    folder = filled.folder / "main"
    manifest = load_manifest(folder)
    assert manifest is not None
    writer = filled.stream.writer()
    seq, next_id = writer.state.commit_seq + 1, writer.state.next_tuple_id
    parts: list[bytes] = []
    for header, body in frames:
        parts += encode_frame(header._replace(epoch=writer.epoch, commit_seq=seq, first_tuple_id=next_id), body)
    commit = Commit(commit.boundary_us, 0, next_id + sum(h.rows for h, _ in frames), sum(map(len, parts)))
    parts += encode_frame(Header(Kind.COMMIT, 0, epoch=writer.epoch, commit_seq=seq), encode(commit))
    writer._write(writer._offset, sum(map(len, parts)), parts)
    writer._note(0)
    writer.release(0)


def _event(filled: FilledStream, *, bucket: int, partition: int = 0) -> tuple[Header, bytes]:
    event: Event = _pack(filled)
    return Header(Kind.EVENT, 0, partition, event.rows, bucket, 0, event.stime_min_us, event.stime_max_us), event.body


def _pack(filled: FilledStream) -> Event:
    import pyarrow as pa

    from holdfast.stream.pack import pack

    batch = pa.RecordBatch.from_pylist([{"stime": 100 * SECOND, "n": 1}], schema=filled.stream.definition.stored)
    return pack(batch, filled.stream.definition)[0]


@pytest.mark.parametrize(
    ("bucket", "partition", "boundary_s", "what"),
    [
        (99, 0, 90, "not within bucket 99"),
        (100, 1, 90, "do not belong to partition 1"),
        (100, 9, 90, "partition 9 of 2"),
        (100, 0, 1, "the boundary goes back"),
    ],
)
def test_what_no_correct_writer_would_write_is_found(
    filled: FilledStream, bucket: int, partition: int, boundary_s: int, what: str
) -> None:
    _append(filled, _event(filled, bucket=bucket, partition=partition), commit=Commit(boundary_s * SECOND, 0, 0, 0))
    assert any(what in p for p in problems(filled.folder)), problems(filled.folder)


def test_a_tuple_below_an_earlier_boundary_is_found(filled: FilledStream) -> None:
    """D10"""
    _append(filled, commit=Commit(200 * SECOND, 0, 0, 0))
    _append(filled, _event(filled, bucket=100), commit=Commit(200 * SECOND, 0, 0, 0))
    assert any("lies below the boundary" in p for p in problems(filled.folder))
