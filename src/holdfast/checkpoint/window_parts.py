"""Sliding windows as parts of a state: the circular buffer of groups of `window_groups`, saved with a batch (004 §4.4).

On Spark a state is saved at the end of a batch, with two versions of everything (`slots`), so a group needs no versions
of its own: it is a part that is saved again when it has new tuples.

1. Tuples of a window are numbered; group g holds the numbers [g·size, (g+1)·size) and is saved whole if it has a tuple
   that was not saved. One that only lost tuples is not.
2. The groups of a window use W/size + 1 names in turn. One whose tuples have all left is removed, unless its name is
   used again at once. Windows are numbered in the order in which they first came; the head lists them in that order.
3. A group that is lost costs its own tuples and no others (C11). Those that are left count as if they stood together,
   so groups are cut anew: the next save is of all of them.
4. Nothing is trimmed: on Spark the input waits while the operator is down.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
import pyarrow as pa

from holdfast.checkpoint.group_columns import Stretch
from holdfast.checkpoint.store import Pieces
from holdfast.checkpoint.window_groups import Dirty, Front, Restored, decode_group, encode_group
from holdfast.model.errors import CorruptLog, UsageError


class Ring(msgspec.Struct, array_like=True, frozen=True):
    """A window as the head knows it: input, name, the numbers of its tuples, and how many names its groups use."""

    side: int
    name: bytes
    oldest: int
    next: int
    slots: int


class Head(msgspec.Struct, array_like=True, frozen=True):
    position: int
    size: int
    rings: list[Ring]


class Part(NamedTuple):
    """A group to save, by its name."""

    name: bytes
    side: int
    dirty: Dirty


@dataclass
class _Saved:
    number: int
    """Of the window."""
    next: int = 0
    """Tuples before this one are saved."""
    oldest: int = 0
    stale: list[bytes] = field(default_factory=list)
    """Names whose groups were cut in another way: all is to be saved anew."""


_decode = msgspec.msgpack.Decoder(Head).decode


class WindowParts:
    """What is saved of the windows of one operator. `windows` are the sizes of its inputs' windows."""

    def __init__(self, windows: tuple[int, ...], size: int) -> None:
        if size < 1:
            raise UsageError(f"a group needs a tuple at least; got {size}")
        self._size = size
        self._slots = tuple(-(-window // size) + 1 for window in windows)
        self._saved: dict[tuple[int, bytes], _Saved] = {}

    def plan(self, fronts: Iterable[Front], position: int) -> tuple[bytes, list[Part], list[bytes]]:
        """The head to save, the parts to save with it, and the names that are not used any more."""
        now = {(front.side, front.name): front for front in fronts}
        for known in now:
            self._saved.setdefault(known, _Saved(len(self._saved)))
        parts: list[Part] = []
        rings: list[Ring] = []
        unused: list[bytes] = []
        for (side, name), saved in self._saved.items():
            front = now.get((side, name)) or Front(side, name, saved.next, saved.next)
            rings.append(Ring(side, name, front.oldest, front.next, self._slots[side]))
            mine = self._dirty(front, saved)
            parts += mine
            used = {part.name for part in mine}
            unused += [name for name in (saved.stale or self._left(front, saved)) if name not in used]
            saved.next, saved.oldest, saved.stale = front.next, front.oldest, []
        return msgspec.msgpack.encode(Head(position, self._size, rings)), parts, unused

    def _dirty(self, front: Front, saved: _Saved) -> list[Part]:
        if front.next <= saved.next:
            return []
        found = []
        for group in range(max(saved.next, front.oldest) // self._size, (front.next - 1) // self._size + 1):
            first = max(group * self._size, front.oldest)
            dirty = Dirty(front.name, group, first, min((group + 1) * self._size, front.next))
            found.append(Part(_name(saved.number, group, self._slots[front.side]), front.side, dirty))
        return found

    def _left(self, front: Front, saved: _Saved) -> list[bytes]:
        """Groups that were saved and have left the window."""
        end = min(front.oldest // self._size, -(-saved.next // self._size))
        return [_name(saved.number, group, self._slots[front.side]) for group in range(saved.oldest // self._size, end)]

    def value(self, dirty: Dirty, rows: Stretch, position: int) -> Pieces:
        """The bytes of a group."""
        return encode_group(dirty, rows, self._size, 0, 0.0, position)

    def restore(
        self, head: bytes, parts: Mapping[bytes, bytes], schemas: tuple[pa.Schema, ...]
    ) -> tuple[int, dict[tuple[int, bytes], Restored]]:
        """The position, and the windows by side and name, without the groups that are not there."""
        try:
            known = _decode(head)
        except msgspec.MsgspecError as error:
            raise CorruptLog(f"the windows of a join cannot be read ({error}); restore an earlier state") from error
        self._saved = {}
        found = {}
        for number, ring in enumerate(known.rings):
            window = _restored(number, ring, known, parts, schemas[ring.side])
            found[ring.side, ring.name] = window
            saved = self._saved[ring.side, ring.name] = _Saved(number, ring.next, ring.oldest)
            if window.lost or known.size != self._size or ring.slots != self._slots[ring.side]:
                saved.next, saved.stale = 0, [_name(number, group, ring.slots) for group in _groups(ring, known.size)]
        return known.position, found


def _restored(number: int, ring: Ring, head: Head, parts: Mapping[bytes, bytes], schema: pa.Schema) -> Restored:
    batches = []
    for group in _groups(ring, head.size):
        value = parts.get(_name(number, group, ring.slots))
        if value is not None:
            known, rows = decode_group(value, schema)
            if known.group != group:
                raise CorruptLog(f"group {group} of a window was expected; got {known.group}; restore an earlier state")
            batches.append(rows.slice(max(0, ring.oldest - known.first)))
    table = pa.Table.from_batches(batches, schema)
    lost = ring.next - ring.oldest - table.num_rows
    return Restored(ring.next - table.num_rows, ring.next, table, head.position, lost=lost)


def _groups(ring: Ring, size: int) -> range:
    return range(ring.oldest // size, -(-ring.next // size))


def _name(number: int, group: int, slots: int) -> bytes:
    return b"%d.%d" % (number, group % slots)
