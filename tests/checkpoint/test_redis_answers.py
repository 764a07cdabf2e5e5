"""A Redis that refuses us is the user's affair; one that is away is waited for. The answers are played."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from holdfast.checkpoint.stores.redis import RedisStore
from holdfast.model.errors import PeerError, UsageError

pytest.importorskip("redis")


@contextmanager
def answering(answer: bytes) -> Iterator[str]:
    """A server that says the same to everything."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection:
                while connection.recv(65536):
                    connection.sendall(answer)

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"redis://:secret@127.0.0.1:{listening.getsockname()[1]}/0"
    finally:
        listening.close()


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (b"-WRONGPASS invalid username-password pair or user is disabled.\r\n", UsageError),
        (b"-NOAUTH Authentication required.\r\n", UsageError),
        (b"-NOPERM this user has no permissions\r\n", UsageError),
        (b"-ERR DB index is out of range\r\n", UsageError),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", UsageError),
        (b"-OOM command not allowed when used memory > 'maxmemory'.\r\n", PeerError),
        (b"-LOADING Redis is loading the dataset in memory\r\n", PeerError),
    ],
)
def test_a_server_that_refuses_us_is_not_waited_for(answer: bytes, kind: type[Exception]) -> None:
    with answering(answer) as address, RedisStore(address) as store:
        with pytest.raises(kind) as told:
            store.get(b"k")
        assert "secret" not in str(told.value)
