"""Two versions of every key, so that what was begun can be begun again.

A store keeps the newest version only. A batch that is executed again needs the state it began with, although its first
attempt may have saved the state it ended with. Rules:

1. A key has two slots. A new version goes into the slot that does not hold the one it was made from, so the newest two
   versions are always there, however many batches passed between them.
2. A read asks for the newest version that is not newer than a given one.
3. Marks are values of the whole set, kept the same way and written last: a mark is there only if what it speaks of is.
4. A state that is removed stays readable as of earlier versions until the save after that: a batch that is executed
   again may have begun with it. Then its bytes go.
5. A store that passed over a damaged version gives an older one. Where that may not be the newest, it is an error, or a
   warning where a policy of best effort was chosen.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from holdfast.checkpoint.store import CheckpointStore, Entry, Saved
from holdfast.model.errors import CorruptLog, StorageError

_STATE, _MARK, _NOTE = b"s", b"m", b"n"
#: The mark that lists what a save removed.
_REMOVED = b"removed"
#: Keys that are read together: enough that a server is asked seldom, few enough that their states fit memory.
_PART = 1024
#: Stands in the slot of a state that was removed. No state is empty: an operator's is at least a MessagePack list.
_GONE = b""


class Slots:
    def __init__(self, store: CheckpointStore, prefix: bytes = b"", *, exact: bool = True) -> None:
        self._store, self._prefix, self._exact = store, prefix, exact
        noted = store.get(prefix + _NOTE)
        self._notes: dict[bytes, bytes] = msgspec.msgpack.decode(noted.value, type=dict[bytes, bytes]) if noted else {}
        self._noted = noted.version if noted else 0

    def read(self, key: bytes, version: int) -> bytes | None:
        """The newest state of `key` that is not newer than `version`."""
        return self._newest(_STATE + key, version)

    def states(self, version: int) -> dict[bytes, bytes]:
        """The state of every key as of `version`."""
        return {key: state for part in self.parts(version) for key, state in part.items()}

    def parts(self, version: int) -> Iterator[dict[bytes, bytes]]:
        """The same in parts, in the order of the keys: read in bulk, but not all at once."""
        prefix = self._prefix + _STATE
        keys = list(dict.fromkeys(name[len(prefix) - 1 : -1] for name, _ in self._store.scan(prefix)))
        for begin in range(0, len(keys), _PART):
            some = keys[begin : begin + _PART]
            found = zip(some, self._slots(some), strict=True)
            newest = {key[1:]: self._newest_of(key, slots, version) for key, slots in found}
            yield {key: state for key, state in newest.items() if state is not None}

    def mark(self, name: bytes, version: int) -> bytes | None:
        return self._newest(_MARK + name, version)

    def save(self, states: Mapping[bytes, bytes | None], version: int, marks: Mapping[bytes, bytes]) -> None:
        """Keep states and then marks as of `version`; a state that is None is removed.

        Done again with the same version, it changes nothing.
        """
        removed = [key for key, value in states.items() if value is None]
        before = _keys(self.mark(_REMOVED, version - 1)) if version else []
        if states:
            self._put([(_STATE + key, _GONE if value is None else value) for key, value in states.items()], version)
        self._clean([key for key in before if key not in states], version)
        also = {_REMOVED: msgspec.msgpack.encode(removed)} if removed or before else {}
        self._put([(_MARK + name, value) for name, value in {**marks, **also}.items()], version)

    @property
    def pending(self) -> dict[bytes, None]:
        """Keys noted as not yet saved elsewhere."""
        return dict.fromkeys(msgspec.msgpack.decode(self._notes.get(b"pending", b"\x90"), type=list[bytes]))

    def number(self, name: bytes) -> int:
        return int(self._notes.get(name, b"0"))

    def note(self, pending: Iterable[bytes], values: Mapping[bytes, bytes]) -> None:
        """Remember, without versions: what a policy needs to know the next time."""
        self._notes = {**self._notes, **values, b"pending": msgspec.msgpack.encode(list(pending))}
        self._noted += 1
        self._store.put(self._prefix + _NOTE, self._noted, msgspec.msgpack.encode(self._notes))

    def _newest(self, key: bytes, version: int) -> bytes | None:
        return self._newest_of(key, self._slots([key])[0], version)

    def _newest_of(self, key: bytes, slots: tuple[Saved | None, Saved | None], version: int) -> bytes | None:
        found = [s for s in slots if s is not None and s.version <= version]
        newest = max(found, key=lambda s: s.version, default=None)
        if any(s is not None and s.passed_over for s in slots) and (newest is None or newest.version < version):
            self._tell(f"{(self._prefix + key)!r:.80}: its newest version is damaged; an earlier one is left")
        return (newest.value or None) if newest is not None else None

    def _tell(self, problem: str) -> None:
        if self._exact:
            raise CorruptLog(f"{problem}, which is not the state that was saved last; restore the store from a copy")
        warnings.warn(f"{problem} and is used (best effort)", RuntimeWarning, stacklevel=4)

    def _clean(self, keys: list[bytes], version: int) -> None:
        """Rule 4: what an earlier save removed, nobody can begin with any more."""
        entries = []
        for key, slots in zip(keys, self._slots([_STATE + key for key in keys]), strict=True):
            newest = max((s.version for s in slots if s is not None), default=0)
            if self._newest_of(key, slots, version) is None and newest < version:
                entries += [Entry(self._prefix + _STATE + key + slot, newest, None) for slot in (b"0", b"1")]
        self._store.put_many(entries)

    def _slots(self, keys: list[bytes]) -> list[tuple[Saved | None, Saved | None]]:
        names = [self._prefix + key + slot for key in keys for slot in (b"0", b"1")]
        saved = self._store.get_many(names)
        return [(saved.get(self._prefix + key + b"0"), saved.get(self._prefix + key + b"1")) for key in keys]

    def _put(self, values: list[tuple[bytes, bytes]], version: int) -> None:
        entries = []
        for (key, value), (zero, one) in zip(values, self._slots([key for key, _ in values]), strict=True):
            # What an earlier attempt saved with this version is replaced; the newest one before it stays.
            before = [
                (s.version, slot) for slot, s in ((b"0", zero), (b"1", one)) if s is not None and s.version < version
            ]
            keep = max(before)[1] if before else b"1"
            entries.append(Entry(self._prefix + key + (b"0" if keep == b"1" else b"1"), version, value))
        if not all(self._store.put_many(entries)):
            raise StorageError(
                f"the state of version {version} cannot be saved: later ones are there already; a query must not go "
                f"back by more than one batch"
            )


def _keys(noted: bytes | None) -> list[bytes]:
    return [] if noted is None else msgspec.msgpack.decode(noted, type=list[bytes])
