"""The readers of queries, and daemons for workers, are forked from a server of their JVM, and end with whom Spark
knows. No Spark: `sleep` is the JVM, and a script the reader."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast.spark
from holdfast.spark.worker_daemon import NO_THREADS
from tests.spark.processes import REPOSITORY, descendants, environment, wait_for

CLIENT = Path(holdfast.spark.__file__).with_name("reader_client.py")


def alive(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def client(address: Path, mark: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-I", "-S", str(CLIENT), str(address), sys.executable, "-m",
               "tests.spark.stand_in_reader"]  # fmt: skip
    env = {**environment(), **NO_THREADS, "MARK": mark}
    return subprocess.Popen(command, cwd=REPOSITORY, env=env, stdout=subprocess.PIPE, text=True)


@contextlib.contextmanager
def jvm_in_a_shell(folder: Path, clients: int, **more: str) -> Iterator[subprocess.Popen[str]]:
    """A JVM that is a shell, and has started so many clients of its own."""
    one = f'"{sys.executable}" -I -S "{CLIENT}" "{folder}/readers.$$" "{sys.executable}" -m tests.spark.stand_in_reader'
    words = " & ".join([*[one] * clients, "exec sleep 600"])
    env = {**environment(), **NO_THREADS, "MARK": "short", **more}
    with subprocess.Popen(["sh", "-c", words], cwd=REPOSITORY, env=env, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def said(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    found: dict[str, Any] = json.loads(process.stdout.readline())
    return found


def servers(address: Path) -> list[Path]:
    """The processes that serve, or are about to."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"reader_server\0{address}\0" in (process / "cmdline").read_text():
                found.append(process)
    return found


@pytest.fixture
def jvm() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


@pytest.fixture
def address(jvm: subprocess.Popen[bytes], tmp_path: Path) -> Iterator[Path]:
    """Of a server that serves."""
    path = tmp_path / f"readers.{jvm.pid}"
    with (tmp_path / f"{path.name}.lock").open("w") as lock:
        command = [sys.executable, "-m", "holdfast.spark.reader_server", str(path), str(jvm.pid), str(lock.fileno())]
        server = subprocess.Popen(command, env={**environment(), **NO_THREADS}, pass_fds=[lock.fileno()])
    with server:
        wait_for(path.exists, "the server")
        yield path
        jvm.kill()
        assert server.wait(30) == 0, "it ends with its JVM"
    assert not path.exists()


def test_a_reader_has_its_clients_environment_and_output_and_what_was_imported(address: Path) -> None:
    with client(address, "short") as process:
        found = said(process)
        assert (found["arrow"], found["mark"]) == (True, "short")
        assert process.wait(30) == 0, "the client ends with its reader"


def test_a_reader_whose_client_is_killed_ends(address: Path) -> None:
    with client(address, "long") as process:
        reader = said(process)["pid"]
        assert reader != process.pid
        process.send_signal(signal.SIGTERM)
    wait_for(lambda: not alive(reader), "the reader's end")


def test_a_server_that_cannot_serve_is_not_started_again_and_again(tmp_path: Path) -> None:
    with jvm_in_a_shell(tmp_path, 1, JE_ARROW_MALLOC_CONF="background_thread:true") as jvm:
        lock = tmp_path / f"readers.{jvm.pid}.lock"
        assert said(jvm)["arrow"] is False, "the client becomes the reader"
        wait_for(lambda: lock.read_text() == "something that readers import starts a thread", "the server's word")
        wait_for(lambda: not servers(lock.with_suffix("")), "its end")
        with client(lock.with_suffix(""), "short") as process:
            assert said(process)["arrow"] is False
        assert not servers(lock.with_suffix(""))


def test_what_is_no_request_is_ignored(address: Path) -> None:
    for words in (b"", b"GET", b"\xff\xff\xff\xff{}", b"\0\0\0\2[]"):
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.connect(str(address))
            stranger.sendall(words)
    with client(address, "short") as process:
        assert said(process)["arrow"] is True


def test_without_a_server_the_client_starts_one_and_waits_for_it(tmp_path: Path) -> None:
    with jvm_in_a_shell(tmp_path, 2) as jvm:
        path = tmp_path / f"readers.{jvm.pid}"
        assert [said(jvm)["arrow"], said(jvm)["arrow"]] == [True, True]
        # A reader that has just said so is called like its server until it is gone.
        wait_for(lambda: len(servers(path)) == 1, "one server: of two clients that come at once, one starts it")
    wait_for(lambda: not list(tmp_path.iterdir()), "the server's end, its lock goes last")


@contextlib.contextmanager
def daemon(address: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path, list[int]]]:
    """The client of a daemon, the daemon's address, and its processes: itself, and a worker that waits for work."""
    command = [sys.executable, "-I", "-S", str(CLIENT), str(address), sys.executable, "-m",
               "holdfast.spark.worker_daemon", "pyspark.sql.worker.create_data_source"]  # fmt: skip
    env = {**environment(), **NO_THREADS, "SPARK_REUSE_WORKER": "1", "PYTHON_UNIX_DOMAIN_ENABLED": "true"}
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-") as short,  # A socket's path has 107 characters at most.
        subprocess.Popen(
            command, env={**env, "PYTHON_WORKER_FACTORY_SOCK_DIR": short}, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as process,
    ):
        assert process.stdout is not None
        (length,) = struct.unpack("!i", process.stdout.read(4))
        path = Path(process.stdout.read(length).decode())
        with socket.socket(socket.AF_UNIX) as worker:
            worker.connect(str(path))
            (number,) = struct.unpack("!i", worker.recv(4))
            # A worker that was only just forked is deaf to the signal by which its daemon ends it.
            wait_for(lambda: not int(status(number)["SigIgn"], 16) & 1 << signal.SIGHUP - 1, "the worker")
            parent = int(status(number)["PPid"])
            assert "libarrow" in Path(f"/proc/{parent}/maps").read_text()
            assert parent != process.pid
            assert len(list(Path(f"/proc/{parent}/task").iterdir())) == 1, "it forks"
            jvm = int(address.name.rpartition(".")[2])
            below = {pid for pid, _ in descendants(jvm, forked=True)}
            assert {parent, number} <= below, "who measures a JVM's processes finds them"
            yield process, path, [parent, number]


def test_a_server_that_was_killed_is_replaced_though_a_daemon_lives_on_which_hears_no_ctrl_c(
    jvm: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    address = tmp_path / f"readers.{jvm.pid}"
    with daemon(address) as (process, _, found):
        (first,) = (int(path.name) for path in servers(address) if int(path.name) not in found)
        os.kill(first, signal.SIGKILL)
        wait_for(lambda: not alive(first), "its end")
        with client(address, "short") as reader:
            assert said(reader)["arrow"] is True, "forked by a new one"
        assert all(map(alive, [process.pid, *found]))
        wait_for(lambda: int(status(process.pid)["SigIgn"], 16) & 1 << signal.SIGINT - 1, "the client to be deaf to it")
        process.terminate()
    jvm.kill()
    wait_for(lambda: not address.exists(), "the second server's end")


@pytest.mark.parametrize("how", ["its input ends", "its client is told to end", "its client is killed"])
def test_a_daemon_ends_with_its_workers_as_if_spark_had_started_it(address: Path, how: str) -> None:
    with daemon(address) as (process, path, found):
        if how == "its input ends":
            assert process.stdin is not None
            process.stdin.close()
        else:
            process.send_signal(signal.SIGKILL if "killed" in how else signal.SIGTERM)
        wait_for(lambda: not any(map(alive, found)), "the end of the daemon and its worker")
        process.wait(30)
    assert not path.exists(), "it has tidied up"
