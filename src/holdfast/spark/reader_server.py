"""Forks what a session needs in Python besides its workers, from a process that has imported what all of these need:
the readers of streaming queries, and Spark's daemons for workers that plan, write or commit.

    python -m holdfast.spark.reader_server ADDRESS JVM LOCK

Spark starts a Python process for every query over a source in Python and waits for it: most of what a fork of a node
took to start. It has a daemon for workers, but one for each kind, and each imports the same; it has none for readers.
So what it starts is a small client of ours (`reader_client.py`), which asks here. Only the daemon of workers that run
tasks is Spark's own child (`worker_daemon`): it imports more.

1. There is one server for each JVM, which has the lock (a descriptor) from the client that started it. It ends with
   the JVM.
2. It has no thread, since it forks (`worker_daemon`); if it cannot be without, it does not serve, and writes that into
   the lock.
3. Whoever asks is this user, and sees the same processes: the address lies in a folder of his own, and the kernel says
   who it is. Containers may share that folder.
4. What was forked watches its client, as Spark knows no other process of it: when that is gone, so is a reader, and a
   daemon ends as if it had been told to. A daemon has no thread for that; the kernel sends it a signal.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import json
import os
import runpy
import select
import signal
import socket
import struct
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn

from holdfast.spark import worker_daemon
from holdfast.spark.worker_daemon import import_ahead, threads

#: The module that Spark runs as a reader, and one that imports what it does.
READER = "pyspark.sql.streaming.python_streaming_source_runner"
_ALIKE = "pyspark.sql.worker.plan_data_source_read"
#: A client says all it has to say at once.
_REQUEST_S = 2.0
_REQUEST_MAX = 16 << 20


def listen(address: str) -> socket.socket:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(address)  # Of a JVM that had the same number.
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(64)
    return listener


def received(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """A request, and the client's input, output and errors."""
    pid, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    if uid != os.getuid() or pid == 0:
        raise OSError("asked by another user, or from another container")
    connection.settimeout(_REQUEST_S)
    head, fds, _, _ = socket.recv_fds(connection, 4, 3)
    try:
        (length,) = struct.unpack("!I", head)
        body = b""
        while len(body) < min(length, _REQUEST_MAX) and (piece := connection.recv(length - len(body))):
            body += piece
        connection.settimeout(None)
        return json.loads(body), fds
    except BaseException:
        for fd in fds:
            os.close(fd)
        raise


def stand_for(request: dict[str, Any], fds: list[int], client: socket.socket) -> None:
    """In the forked process: be what Spark wanted to start."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for standard, fd in enumerate(fds):
        os.dup2(fd, standard)
        os.close(fd)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    sys.path[:0] = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p and p not in sys.path]
    module, *sys.argv[1:] = request["words"]
    client.sendall(b"+")
    if module == worker_daemon.__name__:
        _end_by_signal(client)
        worker_daemon.main()
    else:
        _end_by_thread(client)
        runpy.run_module(module, run_name="__main__")


def _end_by_thread(client: socket.socket) -> None:
    def watch() -> None:
        with contextlib.suppress(OSError):
            client.recv(1)
        os._exit(1)

    threading.Thread(target=watch, name="client", daemon=True).start()


def _end_by_signal(client: socket.socket) -> None:
    """The client says nothing more: a signal about its socket means that it may be gone."""

    def look(*_: object) -> None:
        with contextlib.suppress(BlockingIOError):
            with contextlib.suppress(ConnectionError):
                client.recv(1, socket.MSG_DONTWAIT)
            os.kill(os.getpid(), signal.SIGTERM)  # As Spark ends its daemons.

    signal.signal(signal.SIGIO, look)
    os.register_at_fork(after_in_child=client.close)  # A worker that outlives its daemon keeps no client.
    fcntl.fcntl(client, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(client, fcntl.F_SETFL, fcntl.fcntl(client, fcntl.F_GETFL) | os.O_ASYNC)
    look()


def serve(listener: socket.socket, jvm: int, lock: int) -> None:
    """Until the JVM is gone."""
    poller = select.poll()
    poller.register(listener, select.POLLIN)
    poller.register(jvm, select.POLLIN)
    while True:
        ready = [fd for fd, _ in poller.poll()]
        if jvm in ready:
            return
        connection, _ = listener.accept()
        with connection, contextlib.suppress(OSError, ValueError, struct.error):
            request, fds = received(connection)
            try:
                if os.fork() == 0:
                    _end_as(partial(_stand_apart, listener, (jvm, lock), request, fds, connection))
            finally:
                for fd in fds:
                    os.close(fd)


def _stand_apart(
    listener: socket.socket, own: Sequence[int], request: dict[str, Any], fds: list[int], client: socket.socket
) -> None:
    listener.close()
    for fd in own:
        os.close(fd)  # The lock above all: held by what outlives the server, it would say that one is coming.
    stand_for(request, fds, client)


def _end_as(work: Callable[[], None]) -> NoReturn:
    """Do it, and end this process as Python would."""
    code: int = 1
    try:
        work()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except (BrokenPipeError, ConnectionResetError):
        pass  # The query was stopped, and nobody hears the last words of its reader: that is no trace (`noise`).
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code & 0xFF)


def main(address: str, jvm: str, lock: str) -> None:
    """Rules 1 and 2."""
    os.set_inheritable(int(lock), False)
    try:
        parent = os.pidfd_open(int(jvm))
    except ProcessLookupError:
        return
    except (OSError, AttributeError):
        os.write(int(lock), b"this system does not say when a JVM ends")
        return
    import_ahead(_ALIKE)
    if threads() != 1:
        os.write(int(lock), b"something that readers import starts a thread")
        return
    try:
        listener = listen(address)
    except OSError as error:
        os.write(int(lock), str(error).encode())
        return
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    gc.freeze()
    try:
        serve(listener, parent, int(lock))
    finally:
        for file in (address, f"{address}.lock"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(file)


if __name__ == "__main__":
    main(*sys.argv[1:])
