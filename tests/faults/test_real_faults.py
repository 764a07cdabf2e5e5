"""Faults of the machine itself: full and read-only filesystems, a disk that fails to sync (L1, L9)."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.model.errors import StorageError
from holdfast.stream.store import StreamStore
from tests.faults.units import judge, last_sent, open_log, send

ROOT = Path(__file__).parents[2]


@contextlib.contextmanager
def tmpfs(at: Path, size: str) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("mounting a tmpfs needs root")
    at.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", at], capture_output=True).returncode:
        pytest.skip("this machine does not let us mount a tmpfs")
    try:
        yield at
    finally:
        subprocess.run(["umount", "-l", at], check=True)


def test_a_full_disk_is_reported_in_one_sentence_and_sending_goes_on_when_there_is_space(tmp_path: Path) -> None:
    """L9, with a real ENOSPC: at every fill level, so that append, roll and release each meet it."""
    with tmpfs(tmp_path / "small", "1m") as small:
        for spare in range(0, 40_000, 2_500):
            folder = small / "log" / "main"
            writer = open_log(folder)
            send(writer, 1)
            ballast = small / "ballast"
            free = shutil.disk_usage(small).free
            ballast.write_bytes(bytes(max(0, free - spare)))
            acked, errors = 1, []
            while len(errors) < 3:
                try:
                    send(writer, acked + 1)
                    acked += 1
                except StorageError as error:
                    errors.append(str(error))
            assert all("No space left" in e and "free some space" in e and "\n" not in e for e in errors)
            judge(folder, acked, acked + 1)
            ballast.unlink()
            for _ in range(5):
                send(writer, acked + 1)
                acked += 1
            judge(folder, acked, acked)
            writer.release(1)
            again = open_log(folder)
            assert last_sent(again) == acked
            again.release(1)
            judge(folder, acked, acked)
            shutil.rmtree(small / "log")


def test_a_writer_can_release_and_another_resume_on_a_full_disk_without_loss(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "small", "1m") as small:
        folder = small / "main"
        writer = open_log(folder)
        for k in range(1, 10):
            send(writer, k)
        ballast = small / "ballast"
        with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
            while file.write(bytes(4096)):
                pass
        writer.release(1)
        judge(folder, 9, 9)
        with pytest.raises(StorageError, match="No space left"):
            open_log(folder)
        ballast.unlink()
        again = open_log(folder)
        send(again, 10)
        again.release(1)
        judge(folder, 10, 10)


def test_a_read_only_folder_is_refused_in_one_sentence_and_still_read(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "ro", "4m") as mount:
        store = StreamStore(mount / "streams")
        with store.create("s", "n bigint").producer() as producer:
            producer.send({"n": 1})
        half = open_log(mount / "half")
        send(half, 1)
        subprocess.run(["mount", "-o", "remount,ro", mount], check=False, capture_output=True)
        half._close_files()
        subprocess.run(["mount", "-o", "remount,ro", mount], check=True)
        for act in (
            lambda: store.create("t", "n bigint"),
            lambda: store.open("s").producer(),
            lambda: open_log(mount / "half"),
        ):
            with pytest.raises(StorageError, match="read-only") as caught:
                act()
            assert "\n" not in str(caught.value)
        assert [r.values for r in store.open("s").subscribe().rows()] == [{"n": 1}]
        judge(mount / "half", 1, 1)
        subprocess.run(["mount", "-o", "remount,rw", mount], check=True)


CHILD = """
import sys
from pathlib import Path
from holdfast.model.errors import StorageError
from tests.faults.units import open_log, send, last_sent
folder = Path(sys.argv[1])
writer = open_log(folder, segment_bytes=1 << 20)
k = 0
while k < 8:
    try:
        send(writer, k + 1)
        k += 1
        print("acked", k, writer.segments[-1].name, flush=True)
    except StorageError as error:
        print("failed", k + 1, writer.segments[-1].name, error, flush=True)
"""


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_after_a_real_eio_of_fdatasync_nothing_more_is_acknowledged_on_that_file(tmp_path: Path) -> None:
    """L9, with the error put into the system call itself."""
    folder = tmp_path / "main"
    done = subprocess.run(
        ["strace", "-f", "-qq", "-e", "trace=fdatasync", "-e", "inject=fdatasync:error=EIO:when=6", "-o", "/dev/null",
         sys.executable, "-c", textwrap.dedent(CHILD), folder],
        capture_output=True, text=True, timeout=100, cwd=ROOT, check=False,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
    )  # fmt: skip
    if "ptrace" in done.stderr or "Operation not permitted" in done.stderr:
        pytest.skip("this machine does not let strace trace")
    lines = [line.split(" ", 3) for line in done.stdout.splitlines()]
    failed = [line for line in lines if line[0] == "failed"]
    assert len(failed) == 1, done.stdout + done.stderr
    assert re.search(r"check it before you go on", failed[0][3])
    at = lines.index(failed[0])
    assert 0 < at < 8
    assert all(line[2] != failed[0][2] for line in lines[at + 1 :]), "acknowledged on a file that failed to sync"
    judge(folder, 8, 8)
