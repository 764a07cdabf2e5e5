"""kill -9 at the steps of archiving and restoring: nothing is lost, and nothing is twice (L3, L8).

HOLDFAST_ARCHIVE_KILLS=50: so many of each, in a folder and in S3; `archive_process` says what a step is.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.stream.archive import ranges
from holdfast.stream.archive.catalog import newest, place, segments_of
from holdfast.stream.archive.object_stores import open_objects
from holdfast.stream.archive.objects import join
from holdfast.stream.checking.verify import verify
from holdfast.stream.head import read_head
from holdfast.stream.store import Stream, StreamStore
from tests.faults.units import QuietDisk
from tests.s3_server import S3Server, s3_server
from tests.stream.archive_process import main
from tests.stream.test_archive import Clock, fill, numbers, stream_of

COUNT = 40
KILLS = int(os.environ.get("HOLDFAST_ARCHIVE_KILLS", "0"))
_DEFAULT = {"folder": 12, "s3": 2}


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as running:
        yield running


@pytest.fixture(autouse=True)
def _no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.stream.retention.wake_archiver", lambda *args, **options: None)
    monkeypatch.setattr(ranges, "_process", None)


class Place:
    """Where each attempt has a fresh stream, or a fresh archive, of its own."""

    def __init__(self, kind: str, folder: Path, server: S3Server | None) -> None:
        self.kind, self.folder, self._server = kind, folder, server

    def url(self, attempt: int) -> str:
        if self._server is None:
            (self.folder / f"archive{attempt}").mkdir()
            return f"file://{self.folder}/archive{attempt}"
        bucket = f"b{os.urandom(6).hex()}"
        self._server.make_bucket(bucket)
        return f"s3://{bucket}"

    def run(self, what: str, root: Path, url: str, at: int) -> int | None:
        """Steps that it took; None if it was killed."""
        if self.kind == "folder":
            return _forked(what, root, url, at)
        environment = {**os.environ, **(self._server.environment if self._server is not None else {})}
        done = subprocess.run(
            [sys.executable, "-m", "tests.stream.archive_process", what, str(root), url, str(at)],
            env=environment, stdout=subprocess.PIPE, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode in (0, -signal.SIGKILL)
        return int(done.stdout) if done.returncode == 0 else None


def _forked(what: str, root: Path, url: str, at: int) -> int | None:
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(write, str(main(what, root, url, at)).encode())
        finally:
            os._exit(0)
    os.close(write)
    _, status = os.waitpid(pid, 0)
    with open(read) as said:
        text = said.read()
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    assert killed or text, "it failed instead of being killed"
    return int(text) if text else None


@pytest.fixture(params=["folder", "s3"])
def where(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    if request.param == "folder":
        return Place("folder", tmp_path, None)
    running: S3Server = request.getfixturevalue("server")
    for name, value in running.environment.items():
        monkeypatch.setenv(name, value)
    return Place("s3", tmp_path, running)


def chosen(kind: str, steps: int) -> list[int]:
    """Steps to be killed at: all over the run, each time others."""
    count = min(KILLS or _DEFAULT[kind], steps)
    return sorted(random.SystemRandom().sample(range(steps), count))


def filled(root: Path, url: str) -> Stream:
    stream = stream_of(root, url)
    fill(stream, range(COUNT))
    return stream


def opened(root: Path) -> Stream:
    return StreamStore(root, disk=QuietDisk(), clock=Clock()).open("s")


def check(stream: Stream, step: str) -> None:
    """Everything is there that was not removed for good; and once; and the archive holds nothing that no catalog
    names."""
    assert list(verify(stream.folder, archive=True)) == [], step
    gone = read_head(stream.folder / "main").removed_rows
    assert numbers(stream) == list(range(gone, COUNT)), step
    url = stream.definition.archive
    assert url is not None
    objects, below = open_objects(url), place("s", stream.definition.id)
    found = newest(objects, below)
    assert found is not None
    assert found.removed.rows == gone, step
    listed = Counter(join(below, s.key) for s in segments_of(found, lambda page: pytest.fail("no pages here")))
    assert max(listed.values()) == 1, step
    assert {k for k in objects.sizes(below) if k.endswith(".seg")} == set(listed), step


def test_archiving_is_killed_at_every_step(where: Place) -> None:
    url = where.url(0)
    filled(where.folder / "whole", url)
    steps = where.run("archive", where.folder / "whole", url, -1)
    assert steps is not None
    check(opened(where.folder / "whole"), "without a kill")
    for attempt, at in enumerate(chosen(where.kind, steps), 1):
        root, url = where.folder / f"root{attempt}", where.url(attempt)
        filled(root, url)
        assert where.run("archive", root, url, at) is None
        assert where.run("archive", root, url, -1) is not None
        check(opened(root), f"killed at {at} of {steps}")
        shutil.rmtree(root)


def test_restoring_is_killed_at_every_step(where: Place) -> None:
    url = where.url(0)
    stream = filled(where.folder / "first", url)
    fill(stream, range(COUNT, COUNT + 1), end=True)
    assert where.run("archive", where.folder / "first", url, -1) is not None
    gone = read_head(stream.folder / "main").removed_rows
    shutil.rmtree(where.folder / "first")
    steps = where.run("restore", where.folder / "whole", url, -1)
    assert steps is not None
    for attempt, at in enumerate(chosen(where.kind, steps)):
        root = where.folder / f"root{attempt}"
        assert where.run("restore", root, url, at) is None
        if (root / "s").exists():  # Killed behind the last step that counts.
            assert at >= steps - 2
        else:
            assert where.run("restore", root, url, -1) is not None
        again = opened(root)
        assert numbers(again) == list(range(gone, COUNT + 1)), f"killed at {at} of {steps}"
        assert list(verify(again.folder, archive=True)) == []
        assert [p.name for p in root.iterdir()] == ["s"], "nothing is left beside it"
