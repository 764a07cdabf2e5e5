"""Power loss on real filesystems: a loop device that is shut down under a writer (L1, L3).

`xfs_io shutdown` makes ext4 and xfs forget, at once, whatever had not reached the device. Both have a gap there: an
fdatasync that is under way may return 0 although its bytes are forgotten (a plain write loop shows it: 9 of 60 cuts on
ext4, 2 of 60 on xfs, kernel 6.18). With the power really gone nobody would have seen that 0, so an acknowledgement
counts only if the filesystem was still up after it.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.model.errors import HoldfastError
from holdfast.stream.store import Stream, StreamStore

pytestmark = [pytest.mark.power, pytest.mark.slow]

CYCLES = int(os.environ.get("HOLDFAST_POWER_CYCLES", "10"))
THREADS = 3


def _run(*command: object) -> str:
    return subprocess.run([str(c) for c in command], check=True, capture_output=True, text=True).stdout.strip()


@contextlib.contextmanager
def device(base: Path, kind: str) -> Iterator[str]:
    """A loop device with a fresh filesystem; detached whatever happens."""
    if os.geteuid() != 0:
        pytest.skip("a loop device needs root")
    for tool in ("xfs_io", f"mkfs.{kind}", "losetup"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    image = base / "image"
    with image.open("wb") as file:
        file.truncate(320 << 20)
    try:
        loop = _run("losetup", "--find", "--show", image)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"this machine has no loop device to give: {error.stderr.strip()}")
    try:
        _run(f"mkfs.{kind}", "-q", loop)
        yield loop
    finally:
        _run("losetup", "--detach", loop)


@contextlib.contextmanager
def mounted(loop: str, at: Path) -> Iterator[Path]:
    _run("mount", loop, at)
    try:
        yield at
    finally:
        _run("umount", at)


def _contents(stream: Stream) -> list[list[int]]:
    """Per thread, its numbers in the order of the log."""
    found: list[list[int]] = [[] for _ in range(THREADS)]
    ids: list[int] = []
    reader = stream.reader()
    try:
        for fields, batch in reader.scan(-(2**62), 2**62):
            ids += range(fields.first_tuple_id, fields.first_tuple_id + batch.num_rows)
            for thread, n, text in zip(*(batch.column(c).to_pylist() for c in (1, 2, 3)), strict=True):
                assert text == "x" * (n % 500)
                found[thread].append(n)
    finally:
        reader.close()
    assert ids == list(range(1, len(ids) + 1))
    return found


def _life(root: Path, done: list[int], chance: random.Random) -> list[int]:
    """Send on several threads until the power goes; what was acknowledged."""
    acked, enough = list(done), threading.Event()
    want = sum(done) + chance.choice((0, 1, 5, 30, 100))
    stream = StreamStore(root).create("s", "thread int, n bigint, text string", bucket="5ms", exist_ok=True,
                                      segment_bytes=16 << 10)  # fmt: skip
    producer = stream.producer(boundary_every="5ms")

    def work(thread: int) -> None:
        with contextlib.suppress(HoldfastError, OSError):
            while True:
                n = acked[thread] + 1
                producer.send({"thread": thread, "n": n, "text": "x" * (n % 500)})
                os.close(os.open(stream.folder / "stream", os.O_RDONLY))  # Fails once the filesystem is down.
                acked[thread] = n
                if sum(acked) >= want:
                    enough.set()

    threads = [threading.Thread(target=work, args=(t,)) for t in range(THREADS)]
    for thread in threads:
        thread.start()
    assert enough.wait(30) or want == sum(done)
    time.sleep(chance.random() * 0.005)  # Where in the commit the power goes is what must be random.
    _run("xfs_io", "-x", "-c", "shutdown", root)
    for thread in threads:
        thread.join(30)
    with contextlib.suppress(HoldfastError):
        producer.close(end=False)
    return acked


@pytest.mark.parametrize("kind", ["ext4", "xfs"])
def test_power_loss_on_a_real_filesystem_loses_doubles_and_tears_nothing_acknowledged(
    kind: str, tmp_path: Path
) -> None:
    chance = random.Random(kind)
    at = tmp_path / "mount"
    at.mkdir()
    done, before = [0] * THREADS, 0
    with device(tmp_path, kind) as loop:
        for cycle in range(CYCLES):
            with mounted(loop, at):
                acked = _life(at, done, chance)
            with mounted(loop, at):
                seen = _contents(StreamStore(at).open("s"))
            for thread in range(THREADS):
                last = len(seen[thread])
                assert seen[thread] == list(range(1, last + 1)), f"cycle {cycle}: missing, doubled or out of order"
                assert acked[thread] <= last <= acked[thread] + 1, f"cycle {cycle}, thread {thread}"
            before, done = sum(done), [len(numbers) for numbers in seen]
            assert sum(done) >= before
    assert sum(done) > CYCLES
