"""Two versions of every key, so that what was begun can be begun again.

A store keeps the newest version only. A batch that is executed again needs the state it began with, although its first
attempt may have saved the state it ended with. Rules:

1. A key has two slots. A new version goes into the slot that does not hold the one it was made from, so the newest two
   versions are always there, however many batches passed between them.
2. A read asks for the newest version that is not newer than a given one.
3. Marks are values of the whole set, kept the same way. One of them, `batch`, is written last: it is there only if all
   that it speaks of is. A save without it never was: what it left is not a version that rule 1 keeps, and whoever goes
   on from an earlier one asks for `leftovers` and saves these anew. The others are written first: who executes a batch
   again must find when it was executed first if it may find anything of that.
4. A state that is removed stays readable as of earlier versions until the save after that: a batch that is executed
   again may have begun with it. Then its bytes go.
5. A store that passed over a damaged version gives an older one. Where that may not be the newest, it is an error, or a
   warning where a policy of best effort was chosen.
6. A state may be away (`Away`): it lies in the slots `beyond`, and here stands as of which version. Whoever reads it
   gets it from there, and it is checked to be the one that left. Its bytes go from here as those of a removed state do.
   Parts are away with their state. What was fetched is kept here with the next save.
7. A state may have parts (`holdfast.operators.state_parts`), kept beside it by the same rules, each on its own: what
   did not change is not saved again. Their names are made by `part_key`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from holdfast.checkpoint.store import CheckpointStore, Entry, Saved
from holdfast.model.errors import CorruptLog, StorageError
from holdfast.stream.frame import crc32c

_STATE, _PART, _MARK, _NOTE = b"s", b"p", b"m", b"n"
#: The mark that makes a save whole (rule 3).
BATCH = b"batch"
#: The marks that list what a save removed of states and of parts.
_REMOVED = {_STATE: b"removed", _PART: b"removed_parts"}
#: Keys that are read together: enough that a server is asked seldom, few enough that their states fit memory.
_MANY = 1024
#: Stands in the slot of a state that was removed. No state is empty: an operator's is at least a MessagePack list.
_GONE = b""
#: Begins what stands in the slot of one that is away. No MessagePack begins with this byte.
_AWAY = b"\xc1away1"

_Pair = tuple[Saved | None, Saved | None]


class WentBack(StorageError):
    """A query is executed from a batch before the last one but one."""


class Away(NamedTuple):
    """In place of a state: it lies in the slots beyond, as of a version."""

    version: int
    crc: int | None = None
    """Its checksum, if it was here before; None if it never came."""


class Names(NamedTuple):
    """Of states and of parts."""

    states: list[bytes]
    parts: list[bytes]


def part_key(key: bytes, name: bytes) -> bytes:
    """What a part of a key's state is kept by."""
    return len(key).to_bytes(2, "big") + key + name


def key_of(part: bytes) -> bytes:
    """Whose part it is."""
    return part[2 : 2 + int.from_bytes(part[:2], "big")]


class Slots:
    def __init__(self, store: CheckpointStore, prefix: bytes = b"", *, exact: bool = True) -> None:
        self._store, self._prefix, self._exact = store, prefix, exact
        self._notes: dict[bytes, bytes] | None = None
        self._noted = 0
        self.beyond: Slots | None = None
        """Where states lie that are away (rule 6)."""
        self._away: dict[bytes, int] = {}
        self._fetched: dict[bytes, bytes] = {}

    def read(self, key: bytes, version: int) -> bytes | None:
        """The newest state of `key` that is not newer than `version`."""
        found = self._fetched.get(_STATE + key) or self._newest(_STATE + key, version)
        if found is not None and found.startswith(_AWAY):
            found = self._come_back({key: found}).get(key)
            if found is not None:
                self._fetched[_STATE + key] = found
        return found

    def lie(self, keys: list[bytes], version: int) -> dict[bytes, bytes | Away]:
        """The states of these keys, or where they are, without fetching any."""
        found = (item for some in self._read([_STATE + key for key in keys], version) for item in some.items())
        return {key[1:]: _away(value) if value.startswith(_AWAY) else value for key, value in found}

    def read_parts(self, names: Iterable[bytes], version: int) -> dict[bytes, bytes]:
        """The parts of these names that are there."""
        wanted = [_PART + name for name in names]
        found = {key[1:]: value for some in self._read(wanted, version) for key, value in some.items()}
        away: dict[int, list[bytes]] = {}
        for name in wanted:
            if name[1:] not in found and (since := self._away.get(key_of(name[1:]))) is not None:
                away.setdefault(since, []).append(name[1:])
        for since, missing in away.items():
            assert self.beyond is not None
            parts = self.beyond.read_parts(missing, since)
            self._fetched |= {_PART + name: part for name, part in parts.items()}
            found |= parts
        return found

    def states(self, version: int) -> dict[bytes, bytes]:
        """The state of every key as of `version`."""
        return {key: state for some in self.in_turn(version) for key, state in some.items()}

    def in_turn(self, version: int) -> Iterator[dict[bytes, bytes]]:
        """The same in the order of the keys: read in bulk, but not all at once."""
        for some in self._read(self._names(_STATE), version):
            yield self._come_back({key[1:]: value for key, value in some.items()})

    def here(self, version: int) -> Iterator[dict[bytes, bytes]]:
        """The same without those that are away and were not fetched."""
        for some in self._read(self._names(_STATE), version):
            found = {key[1:]: self._fetched.get(key, value) for key, value in some.items()}
            yield {key: value for key, value in found.items() if not value.startswith(_AWAY)}

    def bring(
        self, version: int, parts_of: Callable[[bytes], Iterable[bytes]], after: bytes = b"", many: int | None = None
    ) -> bytes | None:  # fmt: skip
        """Fetch states that never came, those of the first `many` keys behind a key, with the parts that each names.
        The last of these keys; None if there are no more."""
        names = [name for name in self._names(_STATE) if name[1:] > after]
        some, more = names[:many], many is not None and len(names) > many
        for found in self._read(some, version):
            away = {key[1:]: value for key, value in found.items()
                    if value.startswith(_AWAY) and key not in self._fetched}  # fmt: skip
            missing = {key: value for key, value in away.items() if _away(value).crc is None}
            for key, state in self._come_back(missing).items():
                self._fetched[_STATE + key] = state
                self.read_parts([part_key(key, name) for name in parts_of(state)], version)
        return some[-1][1:] if more else None

    def parts(self, version: int) -> dict[bytes, bytes]:
        """The parts of all states as of `version`."""
        found = self._read(self._names(_PART), version)
        return {key[1:]: value for some in found for key, value in some.items()}

    def mark(self, name: bytes, version: int) -> bytes | None:
        return self._newest(_MARK + name, version)

    def leftovers(self, version: int) -> Names:
        """What later saves left, whole or not: it is not of the run that goes on from `version` (rule 3)."""
        found: list[list[bytes]] = []
        for kind in (_STATE, _PART):
            prefix = self._prefix + kind
            later = (name[len(prefix) : -1] for name, saved in self._store.scan(prefix) if saved > version)
            found.append(list(dict.fromkeys(later)))
        return Names(*found)

    def names(self) -> Names:
        """Of all that is there, as of whatever version."""
        states, parts = ([name[1:] for name in self._names(kind)] for kind in (_STATE, _PART))
        return Names(states, parts)

    def save(
        self, states: Mapping[bytes, bytes | Away | None], version: int, marks: Mapping[bytes, bytes],
        parts: Mapping[bytes, bytes | None] | None = None,
    ) -> None:  # fmt: skip
        """Keep states with their parts, and marks, as of `version`; what is None is removed.

        Done again with the same version, it changes nothing.
        """
        known = [_MARK + name for name in (BATCH, *_REMOVED.values())]
        (zero, one), *lists = self._spared(known)
        whole = max((s.version for s in (zero, one) if s is not None and s.version < version), default=-1)
        values = [(_MARK + name, value) for name, value in marks.items() if name != BATCH]
        cleaned: list[bytes] = []
        given: Mapping[bytes, bytes | Away | None]
        for (kind, mark), slots, given in zip(_REMOVED.items(), lists, self._with_fetched(states, parts), strict=True):
            before = _keys(self._newest_of(_MARK + mark, slots, whole))
            removed = [key for key, value in given.items() if value is None or isinstance(value, Away)]
            values += [(kind + key, _bytes_of(value)) for key, value in given.items()]
            cleaned += [kind + key for key in before if key not in given]
            if removed or before:
                values.append((_MARK + mark, msgspec.msgpack.encode(removed)))
        if values:
            self._put(values, version, whole)
        self._clean(cleaned, version)
        self._put([(_MARK + BATCH, marks[BATCH])], version, whole)
        self._fetched = {}

    def _with_fetched(
        self, states: Mapping[bytes, bytes | Away | None], parts: Mapping[bytes, bytes | None] | None
    ) -> tuple[Mapping[bytes, bytes | Away | None], Mapping[bytes, bytes | None]]:
        if not self._fetched:
            return states, parts or {}
        came = {name[1:]: value for name, value in self._fetched.items() if name.startswith(_STATE)}
        whole = {**came, **states}
        # Parts of a state that is away again, or gone, stay away.
        theirs = {name[1:]: value for name, value in self._fetched.items()
                  if name.startswith(_PART) and isinstance(whole.get(key_of(name[1:])), bytes)}  # fmt: skip
        return whole, {**theirs, **(parts or {})}

    def tear(self, version: int) -> None:
        """A save that is known to be damaged counts as one that never was whole (rule 3): the next takes its place."""
        name = _MARK + BATCH
        slots = zip(self._spared([name])[0], (b"0", b"1"), strict=True)
        torn = [slot for saved, slot in slots if saved is not None and saved.version == version]
        self._store.put_many([Entry(self._prefix + name + slot, version, None) for slot in torn])

    def clear(self) -> None:
        """Remove everything: nobody will go on from it."""
        self._store.purge(self._prefix)

    @property
    def pending(self) -> Names:
        """What is noted as not yet saved elsewhere."""
        listed = (self._noticed.get(name, b"\x90") for name in (b"pending", b"pending_parts"))
        return Names(*(_keys(names) for names in listed))

    def number(self, name: bytes) -> int:
        return int(self._noticed.get(name, b"0"))

    def noted(self, name: bytes) -> bytes | None:
        return self._noticed.get(name)

    def note(self, pending: Names, values: Mapping[bytes, bytes]) -> None:
        """Remember, without versions: what a policy needs to know the next time."""
        lists = {b"pending": msgspec.msgpack.encode(pending.states)}
        lists[b"pending_parts"] = msgspec.msgpack.encode(pending.parts)
        self._notes = {**self._noticed, **values, **lists}
        self._noted += 1
        self._store.put(self._prefix + _NOTE, self._noted, msgspec.msgpack.encode(self._notes))

    @property
    def _noticed(self) -> dict[bytes, bytes]:
        if self._notes is None:
            noted = self._store.get(self._prefix + _NOTE)
            self._notes = msgspec.msgpack.decode(noted.value, type=dict[bytes, bytes]) if noted else {}
            self._noted = noted.version if noted else 0
        return self._notes

    def _come_back(self, states: dict[bytes, bytes]) -> dict[bytes, bytes]:
        """Rule 6: with those that are away from beyond."""
        places = {key: _away(value) for key, value in states.items() if value.startswith(_AWAY)}
        if not places:
            return states
        if self.beyond is None:
            raise StorageError(
                f"{len(places)} states lie in the store that outlives the machine, which is not at hand; use the store "
                f"and the policy that they were saved with"
            )
        found = {key: value for key, value in states.items() if key not in places}
        for version in sorted({place.version for place in places.values()}):
            wanted = {_STATE + key: place.crc for key, place in places.items() if place.version == version}
            for some in self.beyond._read(list(wanted), version):
                found |= {key[1:]: value for key, value in some.items()}
            for name, crc in wanted.items():
                self._away[name[1:]] = version
                value = found.get(name[1:])
                if crc is not None and (value is None or crc32c(value) != crc):
                    left = "nothing" if value is None else "another one"
                    self.beyond._tell(f"{name[1:]!r:.80}: its state left scratch for the store, which has {left} now")
        return found

    def _names(self, kind: bytes) -> list[bytes]:
        prefix = self._prefix + kind
        return list(dict.fromkeys(name[len(prefix) - 1 : -1] for name, _ in self._store.scan(prefix)))

    def _read(self, keys: list[bytes], version: int) -> Iterator[dict[bytes, bytes]]:
        for begin in range(0, len(keys), _MANY):
            some = keys[begin : begin + _MANY]
            found = zip(some, self._spared(some), strict=True)
            newest = {key: self._newest_of(key, slots, version) for key, slots in found}
            yield {key: state for key, state in newest.items() if state is not None}

    def _spared(self, keys: list[bytes]) -> list[_Pair]:
        """In best effort, what is damaged as a whole is not there and costs nothing else (C11); who needs it counts."""
        try:
            return self._slots(keys)
        except CorruptLog:
            if self._exact:
                raise
        if len(keys) > 1:
            middle = len(keys) // 2
            return self._spared(keys[:middle]) + self._spared(keys[middle:])
        return [(self._spared_slot(keys[0] + b"0"), self._spared_slot(keys[0] + b"1"))]

    def _spared_slot(self, name: bytes) -> Saved | None:
        try:
            return self._store.get(self._prefix + name)
        except CorruptLog as error:
            warnings.warn(f"a version is damaged and not used (best effort): {error}", RuntimeWarning, stacklevel=2)
            return None

    def _newest(self, key: bytes, version: int) -> bytes | None:
        return self._newest_of(key, self._spared([key])[0], version)

    def _newest_of(self, key: bytes, slots: _Pair, version: int) -> bytes | None:
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
        for key, slots in zip(keys, self._spared(keys), strict=True):
            newest = max((s.version for s in slots if s is not None), default=0)
            if self._newest_of(key, slots, version) is None and newest < version:
                # The one that says so goes last: whoever is stopped in between must not uncover what it stands before.
                order = sorted(zip(slots, (b"0", b"1"), strict=True), key=lambda s: s[0].version if s[0] else -1)
                entries += [Entry(self._prefix + key + slot, newest, None) for _, slot in order]
            elif newest < version and (self._newest_of(key, slots, version) or b"").startswith(_AWAY):
                older = [(s.version, slot) for s, slot in zip(slots, (b"0", b"1"), strict=True) if s is not None]
                entries += [Entry(self._prefix + key + slot, v, None) for v, slot in older if v < newest]
        self._store.put_many(entries)

    def _slots(self, keys: list[bytes]) -> list[_Pair]:
        names = [self._prefix + key + slot for key in keys for slot in (b"0", b"1")]
        saved = self._store.get_many(names)
        return [(saved.get(self._prefix + key + b"0"), saved.get(self._prefix + key + b"1")) for key in keys]

    def _put(self, values: list[tuple[bytes, bytes]], version: int, whole: int) -> None:
        """Into the slots that do not hold the newest of a save that was whole."""
        entries = []
        for (key, value), (zero, one) in zip(values, self._spared([key for key, _ in values]), strict=True):
            # What an earlier attempt left is replaced, with this version or one before; the newest whole one stays.
            before = [
                (s.version, slot) for slot, s in ((b"0", zero), (b"1", one)) if s is not None and s.version <= whole
            ]
            keep = max(before)[1] if before else b"1"
            entries.append(Entry(self._prefix + key + (b"0" if keep == b"1" else b"1"), version, value))
        if not all(self._store.put_many(entries)):
            raise WentBack(
                f"the state of version {version} cannot be saved: later ones are there already; a query must not go "
                f"back by more than one batch"
            )


def _away(value: bytes) -> Away:
    return Away(*msgspec.msgpack.decode(value[len(_AWAY) :], type=tuple[int, int | None]))


def _bytes_of(value: bytes | Away | None) -> bytes:
    if isinstance(value, Away):
        return _AWAY + msgspec.msgpack.encode(tuple(value))
    return _GONE if value is None else value


def _keys(noted: bytes | None) -> list[bytes]:
    return [] if noted is None else msgspec.msgpack.decode(noted, type=list[bytes])
