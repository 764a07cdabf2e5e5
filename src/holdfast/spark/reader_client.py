"""What Spark starts as the reader of a streaming query, or as a daemon for workers that plan, write or commit: lets the
reader server fork one, and stands for it.

    python -I -S reader_client.py ADDRESS.JVM PYTHON -m MODULE [WORD…]

Run by its path and without packages, so that it is there in some 20 ms; a process that starts by itself imports for
0.7 s, and a session needs half a dozen.

1. Nobody at the address: start a server and wait for it, which takes no longer than to import the same oneself. Of
   several that start at once, one starts the server: it takes the lock beside the address, and hands it on.
2. A server that answers gives a process with our environment, input, output and errors. It ends when we do, and we with
   it.
3. One that does not answer in time is left alone; its process, should it come, finds nobody and ends before it begins.
4. Whatever goes wrong here, a process is started as Spark wanted. So it is where the server has written into the lock
   that it cannot serve.
"""

import fcntl
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time

#: A fork takes some milliseconds; on a machine that is slower than that, an import takes longer as well.
_ANSWER_S = 2.0
#: A server imports for half a second; one that is not there after twenty has been started where nothing helps.
_LOOK_S = 0.01
_LOOKS_MAX = 2000


def connect(address: str) -> socket.socket | None:
    """None: there is no server."""
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(_ANSWER_S)
    try:
        connection.connect(address)
    except OSError:
        connection.close()
        return None
    return connection


def connect_or_start(address: str, python: str) -> socket.socket | None:
    """Rule 1. None: it cannot serve, or ends before it does."""
    started = False
    for _ in range(_LOOKS_MAX):
        if (connection := connect(address)) is not None:
            return connection
        lock = os.open(f"{address}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if started or os.fstat(lock).st_size:
                return connect(address)
            start_server(address, python, lock)
            started = True
        except BlockingIOError:
            pass  # It is coming.
        finally:
            os.close(lock)
        time.sleep(_LOOK_S)
    return None


def start_server(address: str, python: str, lock: int) -> None:
    """For the JVM that has started us, as the address says; it lives as long as that."""
    command = [python, "-m", "holdfast.spark.reader_server", address, address.rpartition(".")[2], str(lock)]
    devnull = subprocess.DEVNULL
    # By a shell that is gone at once: the process that we may become does not know of a child to wait for.
    subprocess.run(["/bin/sh", "-c", '"$@" &', "sh", *command], stdin=devnull, stdout=devnull, stderr=devnull,
                   start_new_session=True, pass_fds=[lock], check=False)  # fmt: skip


def ask(connection: socket.socket, words: list[str]) -> bool:
    """Whether it has forked."""
    asked = json.dumps({"words": words, "environment": dict(os.environ), "folder": os.getcwd()}).encode()
    socket.send_fds(connection, [struct.pack("!I", len(asked))], [0, 1, 2])
    connection.sendall(asked)
    return connection.recv(1) == b"+"


def stand_in(address: str, python: str, words: list[str]) -> bool:
    """Be there as long as the process that the server has forked. False: there is none."""
    try:
        connection = connect_or_start(address, python)
        if connection is None:
            return False
        with connection:
            if not ask(connection, words):
                return False
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # Of a terminal; Spark's own daemons do not hear it, either.
            connection.settimeout(None)
            connection.recv(1)
            return True
    except OSError:
        return False


def main(address: str, python: str, *words: str) -> None:
    if not stand_in(address, python, list(words[1:])):
        os.execv(python, [python, *words])


if __name__ == "__main__":
    main(*sys.argv[1:])
