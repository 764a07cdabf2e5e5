"""Where checkpoints go: the one interface behind which every store stands.

A store maps a key to its newest checkpoint. Rules, which `holdfast.testing.stores` proves for each implementation:

1. A write returns when its bytes are as safe as the store's `durability` says, and not before (C8).
2. Every write carries a version. A write that is older than what is there changes nothing and says so: older never
   overwrites newer, whatever queues, retries and half-dead processes do (C8). An equal version replaces, so that a
   write whose answer was lost can be repeated.
3. A deletion is a write without a value. It leaves a mark that refuses older writes and reads as nothing.
4. A read returns exactly the bytes that were written, or nothing, or raises. Where the newest version is damaged and
   the store keeps an earlier one, that is returned and `passed_over` counts what was skipped (C6, C7).
5. Reading changes nothing: a crash in the middle of a restore leaves the store as it was (C10).
6. Values are bytes. No store interprets, and none unpickles, what it keeps (X3).

7. A value may be given in pieces that stand one after another, so that large state is not copied on its way. A store
   gets them joined, unless it has a `_write_pieces` of its own.
8. `purge` is for keys that nobody will write again. A store that can leaves no marks there.

An implementation has four methods: `_write`, `_read`, `scan` and `close`; the rest is here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import NamedTuple, Self, TypeAlias

from holdfast.model.errors import UsageError

#: Keys are kept in memory by indexes and in names by servers; HBase's own limit is 32 KiB.
KEY_BYTES_MAX = 1024
#: One value must fit a frame with room to spare, and a queue of a few of them must fit memory (X4).
VALUE_BYTES_MAX = 256 << 20
#: Room for microseconds since 1970, and below the number that HBase takes for "now".
VERSION_MAX = 2**62


#: Bytes in pieces, which nobody changes any more; views are of single bytes.
Pieces: TypeAlias = tuple[bytes | memoryview, ...]
_PIECES = {bytes, memoryview}


class Entry(NamedTuple):
    """One write: `value` None deletes."""

    key: bytes
    version: int
    value: bytes | None


class EntryInPieces(NamedTuple):
    """One write whose value may be in pieces."""

    key: bytes
    version: int
    value: bytes | Pieces | None


class Saved(NamedTuple):
    """What a read found."""

    version: int
    value: bytes
    passed_over: int = 0
    """Newer versions that were damaged and skipped."""


class CheckpointStore(ABC):
    """The newest checkpoint of each key."""

    #: In words, when a write counts as done. Shown by `holdfast explain`.
    durability: str

    @abstractmethod
    def _write(self, entries: Sequence[Entry]) -> list[bool]:
        """Write all, in order; for each, whether it was taken (rule 2)."""

    @abstractmethod
    def _read(self, keys: Sequence[bytes]) -> list[Saved | None]:
        """What is there for each key."""

    @abstractmethod
    def scan(self, prefix: bytes = b"") -> list[tuple[bytes, int]]:
        """Keys that begin with `prefix` and their versions, in the order of the keys."""

    @abstractmethod
    def close(self) -> None:
        """Let go of files and connections. Twice does no harm."""

    def _write_pieces(self, entries: Sequence[EntryInPieces]) -> list[bool]:
        """Like `_write`, for a store that need not join values to write them (rule 7)."""
        return self._write([Entry(k, n, b"".join(v) if isinstance(v, tuple) else v) for k, n, v in entries])

    def put(self, key: bytes, version: int, value: bytes | Pieces) -> bool:
        """Save one checkpoint; True if it was taken, False if a newer one is there."""
        return self._write_pieces([_checked(EntryInPieces(key, version, value))])[0]

    def put_many(self, entries: Iterable[Entry | EntryInPieces]) -> list[bool]:
        """Save several with one wait."""
        checked = [_checked(e if type(e) is EntryInPieces else EntryInPieces(*e)) for e in entries]
        return self._write_pieces(checked) if checked else []

    def delete(self, key: bytes, version: int) -> bool:
        """Remove what is not newer than `version`."""
        return self._write_pieces([_checked(EntryInPieces(key, version, None))])[0]

    def purge(self, prefix: bytes) -> None:
        """Remove all keys that begin with `prefix`, for good (rule 8)."""
        self.put_many([Entry(key, version, None) for key, version in self.scan(prefix)])

    def get(self, key: bytes) -> Saved | None:
        """The newest checkpoint of a key, None if there is none."""
        return self._read([check_key(key)])[0]

    def get_many(self, keys: Iterable[bytes]) -> dict[bytes, Saved]:
        """Those that exist, in bulk: for restores that do not wait for the first tuple of a key."""
        wanted = [check_key(key) for key in keys]
        return {key: saved for key, saved in zip(wanted, self._read(wanted), strict=True) if saved is not None}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def without_password(address: str) -> str:
    """A store's address, for people."""
    scheme, there, rest = address.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}" if there else address


def check_key(key: bytes) -> bytes:
    if type(key) is not bytes or not 1 <= len(key) <= KEY_BYTES_MAX:
        raise UsageError(f"a checkpoint key must be 1 to {KEY_BYTES_MAX} bytes; got {key!r:.80}")
    return key


def _checked(entry: EntryInPieces) -> EntryInPieces:
    key, version, value = entry
    if type(key) is not bytes or not 1 <= len(key) <= KEY_BYTES_MAX:
        check_key(key)
    if type(version) is not int or not 0 <= version <= VERSION_MAX:
        raise UsageError(f"a checkpoint version must be a whole number from 0 to 2^62; got {version!r}; count up")
    if value is not None:
        check_value(value)
    return entry


def check_value(value: bytes | Pieces) -> None:
    """Refuses what no store can keep."""
    if type(value) is bytes:
        size = len(value)
    elif type(value) is tuple and set(map(type, value)) <= _PIECES:
        size = sum(map(len, value))
    else:
        raise UsageError(f"a checkpoint must be bytes; got {type(value).__name__}; encode it")
    if size > VALUE_BYTES_MAX:
        raise UsageError(
            f"a checkpoint must be {VALUE_BYTES_MAX} bytes at most; got {size} bytes; split large state by key"
        )
