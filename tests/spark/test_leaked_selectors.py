"""What Spark leaves open for every query that it starts is closed, and nothing else."""

from __future__ import annotations

import os
import select
import socket
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import holdfast
from holdfast.spark import leaked_monitors, read_stream
from holdfast.spark.leaked_monitors import count_monitors, end_monitors
from holdfast.spark.leaked_selectors import Leaked, close_leaked, find_leaked
from tests.spark.conftest import fill
from tests.spark.processes import wait_for


class Waiting:
    """What Spark waits with for a reader: a listening socket, an epoll that watches it, and an eventfd to wake it."""

    def __init__(self, path: Path, stack: ExitStack) -> None:
        self.path = path
        self.listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        self.listener.bind(str(path))
        self.listener.listen()
        self.epoll = stack.enter_context(select.epoll())
        self.eventfd = os.eventfd(0)
        stack.callback(os.close, self.eventfd)
        for fd in (self.listener.fileno(), self.eventfd):
            self.epoll.register(fd, select.EPOLLIN)

    @property
    def leaked(self) -> Leaked:
        socket = self.listener.fileno()
        return Leaked(self.epoll.fileno(), self.eventfd, socket, os.fstat(socket).st_ino)


NAME = ".6b6e7764-eab4-43c7-af72-76019fdebe16.sock"


@pytest.fixture
def folder() -> Iterator[Path]:
    """Not pytest's: the path of a socket must be short."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.fixture
def waiting(folder: Path) -> Iterator[Waiting]:
    with ExitStack() as stack:
        yield Waiting(folder / NAME, stack)


def test_what_is_left_is_a_socket_without_a_file_its_epoll_and_the_eventfd(waiting: Waiting) -> None:
    assert list(find_leaked(os.getpid())) == [], "Spark still waits for the reader"
    waiting.path.unlink()
    assert list(find_leaked(os.getpid())) == [waiting.leaked]


def test_an_epoll_that_watches_anything_else_is_in_use(waiting: Waiting) -> None:
    waiting.path.unlink()
    with socket.socket() as other:
        waiting.epoll.register(other, select.EPOLLIN)
        assert list(find_leaked(os.getpid())) == []
    assert list(find_leaked(os.getpid())) == [waiting.leaked]
    waiting.epoll.unregister(waiting.eventfd)
    assert list(find_leaked(os.getpid())) == []


def test_a_socket_of_another_name_is_not_sparks(folder: Path) -> None:
    with ExitStack() as stack:
        other = Waiting(folder / "service.sock", stack)
        other.path.unlink()
        assert list(find_leaked(os.getpid())) == []


@pytest.mark.slow
def test_queries_that_were_started_leave_nothing_open(
    spark: SparkSession, store: holdfast.StreamStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leaked_monitors, "MONITORS_MORE", 0)
    fill(store, "s", [(i, "a", i) for i in range(3)])
    jvm = spark._jvm
    assert jvm is not None
    pid = int(jvm.java.lang.ProcessHandle.current().pid())

    def run(name: str) -> None:
        frame = read_stream(spark, "s", root=store.root).select("stime", "value")
        writer = frame.writeStream.format("holdfast").option("root", str(store.root)).option("create", "true")
        query = writer.option("checkpointLocation", str(tmp_path / name)).start(name)
        try:
            assert query.awaitTermination(60)
        finally:
            query.stop()

    def selectors() -> set[int]:
        """Those of workers, too, which Spark ends when they have been idle for a minute."""
        found = set()
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):  # Closed meanwhile.
                if os.readlink(link) == "anon_inode:[eventpoll]":
                    found.add(int(link.name))
        return found

    def monitors() -> int:
        """Threads of factories without a daemon, as a thread dump of Java's has them."""
        group = jvm.java.lang.Thread.getAllStackTraces().keySet()
        named = [t for t in group.toArray() if t.getName().startswith("Idle Worker Monitor")]
        return sum(not t.getClass().getField("$outer").get(t).useDaemonEnabled() for t in named)

    run("first")
    close_leaked(spark)
    end_monitors(spark)
    wait_for(lambda: monitors() == 0, "threads to end")
    for name in ("second", "third"):
        run(name)
    leaked = {one.epoll for one in find_leaked(pid)}
    assert len(leaked & selectors()) == 2, "if not, Spark closes them itself by now"
    assert close_leaked(spark) == 2
    assert (leaked & selectors(), list(find_leaked(pid))) == (set(), [])
    assert monitors() == end_monitors(spark) == 2
    wait_for(lambda: monitors() == 0, "threads to end")
    assert count_monitors(pid) > 0, "those of factories with a daemon"
    run("fourth")
    assert spark.range(5).count() == 5
