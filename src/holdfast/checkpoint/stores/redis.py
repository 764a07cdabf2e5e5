"""Checkpoints in Redis (002 §3.1's second backend).

Rules:
1. What is older is decided in the server, by one script per write: also against writers elsewhere.
2. How durable a write is, is the server's choice. It is asked once per connection and told in `durability`: only
   `appendonly yes` with `appendfsync always` keeps an acknowledged checkpoint through a power cut.
3. A server that is away raises `PeerError`; the next call connects again. A write without an answer may be repeated.
4. A server that refuses us (a wrong password, a database that it does not have), or is no Redis, will do so for ever:
   that is a `UsageError`, which nobody waits for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.checkpoint.store import CheckpointStore, Entry, Saved, without_password
from holdfast.checkpoint.stores.envelope import VERSION_DIGITS, unwrap, version_text, wrap
from holdfast.model.errors import PeerError, UsageError

#: Longer than any write takes, short enough that a queue behind it notices.
TIMEOUT_S = 5.0
#: Keys fetched with one command, and asked for in one step of a scan.
_MANY = 512

#: Text of equal length compares like the number. A value that is there with an equal version is replaced.
_PUT = f"""
if redis.call('GETRANGE', KEYS[1], 0, {VERSION_DIGITS - 1}) > ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2])
return 1
"""


class RedisStore(CheckpointStore):
    def __init__(self, address: str = "redis://127.0.0.1:6379/0", *, prefix: bytes = b"holdfast:") -> None:
        try:
            import redis
        except ImportError:
            raise UsageError("a redis store needs the package redis; pip install 'holdfast-streams[redis]'") from None
        self._library, self.address, self._prefix = redis, address, prefix
        try:
            self._client = redis.Redis.from_url(
                address, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S, max_connections=256
            )
        except ValueError as error:
            raise UsageError(f"a redis address must look like redis://127.0.0.1:6379/0; got {address!r}") from error
        self._put = self._client.register_script(_PUT)

    @property
    def durability(self) -> str:  # type: ignore[override]
        """Asked of the server, since it decides."""
        told = self._call(lambda: self._client.config_get("append*"))
        if told.get("appendonly") != "yes":
            return "in the server's memory: its snapshots may lose the last minutes"
        return {
            "always": "on the server's disk: synced before each answer",
            "everysec": "in the server's memory, on its disk within a second",
        }.get(told.get("appendfsync", ""), "in the server's memory, on its disk when its system likes")

    def _call(self, ask: Any) -> Any:
        refusals = self._library.exceptions
        try:
            return ask()
        except (refusals.AuthenticationError, refusals.NoPermissionError, refusals.InvalidResponse) as error:
            raise self._refused(error) from error
        except self._library.ResponseError as error:
            if "DB index" not in str(error) and "NOAUTH" not in str(error):
                raise PeerError(self._away(error)) from error
            raise self._refused(error) from error
        except (self._library.RedisError, OSError) as error:
            raise PeerError(self._away(error)) from error

    def _away(self, error: Exception) -> str:
        where = without_password(self.address)
        return f"redis at {where} did not do its part: {error}; start it, the store connects again"

    def _refused(self, error: Exception) -> UsageError:
        """Rule 4."""
        return UsageError(
            f"redis at {without_password(self.address)} must let us in; it said: {error}; check user, password and "
            f"number of the database in the store's address, redis://USER:PASSWORD@HOST:PORT/NUMBER"
        )

    def _write(self, entries: Sequence[Entry]) -> list[bool]:
        if len(entries) == 1:
            return [bool(self._call(lambda: self._put(keys=[self._prefix + entries[0].key], args=_args(entries[0]))))]

        def all_of_them() -> list[Any]:
            pipe = self._client.pipeline(transaction=False)
            for entry in entries:
                self._put(keys=[self._prefix + entry.key], args=_args(entry), client=pipe)
            return list(pipe.execute())

        return [bool(answer) for answer in self._call(all_of_them)]

    def _read(self, keys: Sequence[bytes]) -> list[Saved | None]:
        found: list[Saved | None] = []
        for at in range(0, len(keys), _MANY):
            some = keys[at : at + _MANY]
            raws = self._call(lambda some=some: self._client.mget([self._prefix + key for key in some]))
            found += [
                None if raw is None else unwrap(key, raw, without_password(self.address))
                for key, raw in zip(some, raws, strict=True)
            ]
        return found

    def scan(self, prefix: bytes = b"") -> list[tuple[bytes, int]]:
        keys = sorted({name[len(self._prefix) :] for name in self._names(prefix)})
        return [(key, saved.version) for key, saved in zip(keys, self._read(keys), strict=True) if saved is not None]

    def purge(self, prefix: bytes) -> None:
        names = self._names(prefix)
        for at in range(0, len(names), _MANY):
            some = names[at : at + _MANY]
            self._call(lambda some=some: self._client.unlink(*some))

    def _names(self, prefix: bytes) -> list[bytes]:
        """Of all values and marks, some maybe twice."""
        pattern = _literal(self._prefix + prefix) + b"*"
        found: list[bytes] = self._call(lambda: list(self._client.scan_iter(match=pattern, count=_MANY)))
        return found

    def close(self) -> None:
        self._client.close()


def _args(entry: Entry) -> list[bytes]:
    return [version_text(entry.version), wrap(entry)]


def _literal(text: bytes) -> bytes:
    """`text` as a pattern that matches itself."""
    return b"".join(b"\\" + bytes([c]) if c in b"*?[]\\^-" else bytes([c]) for c in text)
