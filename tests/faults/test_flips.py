"""10,000 single-bit flips: exact data or an error, never anything else (L4, L5)."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast.model.errors import StorageError
from holdfast.stream.definition import Retention
from holdfast.stream.store import StreamStore
from tests.faults.units import QuietDisk

FLIPS = 10_000
FLIPS_WRITER = 400


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine stays up here, so nobody needs to wait for the platter 10,000 times."""
    monkeypatch.setattr(os, "fdatasync", lambda fd: None)


def build(root: Path, released: bool) -> None:
    """Several segments with indexes, a head, an end; `released` or as a killed writer leaves it."""
    now = iter(range(1_000_000, 10**9, 700))
    store = StreamStore(root, disk=QuietDisk(), clock=lambda: next(now))
    stream = store.create("s", "n bigint, text string", bucket="1ms", segment_bytes=4096)
    producer = stream.producer(boundary_every="1h", id="p")
    for n in range(20):
        producer.send_many([{"n": n, "text": "x" * (700 + n * 7 % 90)}, {"n": -n, "text": None}], seq=n)
    producer.advance(10**9)
    stream.retain(Retention(size_bytes=12_000))
    if released:
        producer.close(end=False)
    else:
        producer._ticker.stop()
        producer.writer._close_files()


def read(root: Path) -> pa.Table:
    """Everything, through the front door."""
    stream = StreamStore(root).open("s")
    with stream.subscribe() as subscriber:
        return pa.Table.from_batches(subscriber.poll(), subscriber.schema)


def write(root: Path) -> pa.Table:
    """The next writer comes, adds one tuple, and everything is read."""
    stream = StreamStore(root, disk=QuietDisk(), clock=lambda: 2 * 10**9).open("s")
    with stream.producer(boundary_every="1h", id="p") as producer:
        assert producer.send({"n": 1000, "text": ""}, seq=19).duplicate
        assert not producer.send({"n": 1000, "text": ""}, seq=1000).duplicate
    return read(root)


def flips(root: Path, count: int, seed: int) -> list[tuple[Path, int]]:
    """Bits spread evenly over the kinds of files, so that the small ones are met, too."""
    chance = random.Random(seed)
    files = [p for p in sorted(root.rglob("*")) if p.is_file() and p.stat().st_size and p.name != "retention.lock"]
    kinds: dict[str, list[Path]] = {}
    for path in files:
        kinds.setdefault(path.suffix or path.name.split("-")[0], []).append(path)
    assert set(kinds) == {".seg", ".idx", "manifest", "head", "stream", "tail"}
    found = []
    for kind, paths in kinds.items():
        for _ in range(count // 2 if kind == ".seg" else count // 10):
            path = chance.choices(paths, [p.stat().st_size for p in paths])[0]
            found.append((path, chance.randrange(path.stat().st_size * 8)))
    return found


def flip(path: Path, bit: int) -> None:
    with path.open("r+b") as file:
        file.seek(bit // 8)
        old = file.read(1)[0]
        file.seek(bit // 8)
        file.write(bytes([old ^ 1 << bit % 8]))


def outcome(act: Callable[[Path], pa.Table], root: Path, expected: pa.Table, path: Path, bit: int) -> str:
    try:
        got = act(root)
    except StorageError:
        return "reported"
    except Exception as error:
        raise AssertionError(f"bit {bit} of {path.name}: {type(error).__name__}: {error}") from error
    assert got.equals(expected), f"bit {bit} of {path.name}: other data came back"
    return "harmless"


@pytest.mark.slow
@pytest.mark.parametrize("released", [True, False])
def test_no_flipped_bit_comes_back_as_data_or_as_another_error(released: bool, tmp_path: Path) -> None:
    root = tmp_path / "root"
    build(root, released)
    expected = read(root)
    assert len(expected) >= 10
    counts = {"reported": 0, "harmless": 0}
    for path, bit in flips(root, FLIPS // 2, seed=1):
        flip(path, bit)
        counts[outcome(read, root, expected, path, bit)] += 1
        flip(path, bit)
    assert read(root).equals(expected)
    assert sum(counts.values()) >= FLIPS // 2
    assert counts["reported"] > FLIPS // 10


@pytest.mark.slow
@pytest.mark.parametrize("released", [True, False])
def test_a_writer_that_opens_after_a_flipped_bit_loses_nothing_that_was_acknowledged(
    released: bool, tmp_path: Path
) -> None:
    root, work = tmp_path / "root", tmp_path / "work"
    build(root, released)
    shutil.copytree(root, work)
    expected = write(work)
    shutil.rmtree(work)
    for path, bit in flips(root, FLIPS_WRITER // 2, seed=2):
        shutil.copytree(root, work)
        flip(work / path.relative_to(root), bit)
        outcome(write, work, expected, path, bit)
        shutil.rmtree(work)


@pytest.mark.parametrize("kind", ["*.seg", "manifest-*", "head", "stream", "*.idx"])
def test_a_file_cut_short_at_any_length_is_noticed_or_harmless(kind: str, tmp_path: Path) -> None:
    root = tmp_path / "root"
    build(root, released=True)
    expected = read(root)
    path = max(root.rglob(kind), key=os.path.getsize)
    whole = path.read_bytes()
    for length in sorted({*range(0, len(whole), max(1, len(whole) // 60)), len(whole) - 1}):
        path.write_bytes(whole[:length])
        outcome(read, root, expected, path, length * 8)
    path.write_bytes(whole)
