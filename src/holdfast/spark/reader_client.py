"""What Spark starts as the reader of a streaming query: lets the reader server fork one, and stands for it.

    python -I -S reader_client.py ADDRESS.JVM PYTHON -m MODULE

Run by its path and without packages, so that it is there in some 20 ms; a reader that starts by itself imports for
0.7 s.

1. Nobody at the address: start a server for the queries to come, and become the reader oneself, as Spark wanted. Of
   several queries that start at once, one starts the server: it takes the lock beside the address, and hands it on.
2. A server that answers gives a reader with our environment, output and errors. It ends when we do, and we with it.
3. One that does not answer in time is left alone; its reader, should it come, finds nobody and ends before it begins.
4. Whatever goes wrong here, a reader is started as Spark wanted.
"""

import fcntl
import json
import os
import socket
import struct
import subprocess
import sys

#: A fork takes some milliseconds; on a machine that is slower than that, an import takes longer as well.
_ANSWER_S = 2.0


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


def start_server(address: str, python: str) -> None:
    """For the JVM that has started us, as the address says; it lives as long as that. Not if another one is coming, or
    has written into the lock that it cannot serve here."""
    lock = os.open(f"{address}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(lock).st_size:
            return
        command = [python, "-m", "holdfast.spark.reader_server", address, address.rpartition(".")[2], str(lock)]
        devnull = subprocess.DEVNULL
        # By a shell that is gone at once: the reader that we become does not know of a child to wait for.
        subprocess.run(["/bin/sh", "-c", '"$@" &', "sh", *command], stdin=devnull, stdout=devnull, stderr=devnull,
                       start_new_session=True, pass_fds=[lock], check=False)  # fmt: skip
    finally:
        os.close(lock)


def ask(connection: socket.socket, module: str) -> bool:
    """Whether it has forked."""
    asked = json.dumps({"module": module, "environment": dict(os.environ), "folder": os.getcwd()}).encode()
    socket.send_fds(connection, [struct.pack("!I", len(asked))], [1, 2])
    connection.sendall(asked)
    return connection.recv(1) == b"+"


def stand_for_a_reader(address: str, python: str, module: str) -> bool:
    """False: there is none to stand for."""
    try:
        connection = connect(address)
        if connection is None:
            start_server(address, python)
            return False
        with connection:
            if not ask(connection, module):
                return False
            connection.settimeout(None)
            connection.recv(1)
            return True
    except OSError:
        return False


def main(address: str, python: str, *words: str) -> None:
    if not stand_for_a_reader(address, python, words[-1]):
        os.execv(python, [python, *words])


if __name__ == "__main__":
    main(*sys.argv[1:])
