"""Incremental checkpoints of sliding windows: only the groups of tuples that changed (004 §4.4).

The intuition: a sliding window loses tuples at one end and gains them at the other; what lies between was saved before.

1. Tuples of a window are numbered. Group g holds the numbers [g·size, (g+1)·size). A window of W tuples touches at most
   W/size + 1 groups, so as many slots are enough, used in turn like a circular buffer; nothing has to be collected.
2. A group is dirty if it has a tuple that was not saved. Dirty groups are saved whole, the oldest first. One that only
   lost tuples is not saved.
3. Groups are put in order by their numbers, not by the times of files as in the seeds: a clock may jump.
4. A group that cannot be read costs its own tuples and no others, and that is told (C11). A window whose newest group
   was saved before a crash is a state that existed (C7).
5. In best effort, tuples that would have left the window while the operator was down are trimmed: the measured rate
   times the time since the save. In exact mode nothing is trimmed: replay moves the window on.
6. Numbers never begin again while the store has later ones: its newer would refuse what follows as older.
7. Tuples lie as columns without names and types; a digest of those goes with each group. A program that has others
   now is refused: the bytes would be taken for what they are not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
import pyarrow as pa

from holdfast.checkpoint.group_columns import Columns, Stretch, columns_text, digest_of, read_stretch
from holdfast.checkpoint.store import CheckpointStore, EntryInPieces, Pieces
from holdfast.model.errors import CorruptLog, UsageError
from holdfast.model.time import SECOND_US


class Head(msgspec.Struct, array_like=True, frozen=True):
    """What stands before the tuples of a saved group."""

    group: int
    first: int
    """Number of the first tuple in it."""
    rows: int
    size: int
    saved_us: int
    rate: float
    """Tuples per second that the window gained lately."""
    position: int = 0
    """The operator's input position that the save belongs to."""
    oldest: int = 0
    """Tuples before this one had been trimmed from the window: they are not to come back."""
    lengths: tuple[int, ...] = ()
    """Of the pieces that the tuples are in, see `group_columns`."""
    columns: int = 0
    """Digest of their names and types (rule 7); 0 where it was not saved."""


_encode = msgspec.msgpack.Encoder().encode
_head = msgspec.msgpack.Decoder(Head)


class Front(NamedTuple):
    """A window now: its tuples have the numbers `oldest` … `next`-1."""

    side: int
    name: bytes
    oldest: int
    next: int


class Dirty(NamedTuple):
    """A group to save: tuples `first` … `end`-1 of a window."""

    window: bytes
    group: int
    first: int
    end: int


#: Makes the bytes of a group, given its tuples.
Encode = Callable[[Dirty, Stretch], Pieces]


@dataclass
class _Counted:
    """One window's numbers."""

    next: int = 0
    saved: int = 0
    saved_us: int = 0
    rate: float = 0.0
    first: int = 0
    """The oldest tuple that came back; after a loss, those before the hole count as if they stood right after it."""
    oldest: int = 0
    """The same as the store numbers it."""


@dataclass
class Restored:
    """What came back of one window."""

    first: int
    """Number of the oldest tuple."""
    next: int
    rows: pa.Table
    position: int
    oldest: int = 0
    """The number that the store knows the oldest tuple by."""
    lost: int = 0
    """Tuples of groups that could not be read."""
    trimmed: int = 0
    problems: list[str] = field(default_factory=list)
    anew: bool = False
    """All of it is to be saved anew: the window or its groups have another size now."""


class _Found(NamedTuple):
    """A group, and the slot that it was in."""

    head: Head
    rows: pa.RecordBatch
    slot: int


class WindowGroups:
    """Keeps count of what is saved of all windows of one operator input."""

    def __init__(self, name: bytes, window: int, size: int) -> None:
        if size < 1 or window < 1:
            raise UsageError(f"a window and its groups need a tuple at least; got {window} and {size}")
        self.name, self.window, self.size = name, window, size
        self.slots = -(-window // size) + 1
        self._counted: dict[bytes, _Counted] = {}

    def advance(self, window: bytes, next_number: int) -> None:
        """The window has gained tuples up to, not including, this number: all that is done per batch."""
        counted = self._counted.get(window)
        if counted is None:
            counted = self._counted[window] = _Counted()
        counted.next = next_number

    def unsaved(self, key: bytes) -> None:
        """A save was dropped on its way: its group is dirty again."""
        window, _, slot = key[len(self.name) + 1 :].partition(b"/")
        counted = self._counted.get(bytes.fromhex(window.decode()))
        if counted is not None:
            newest = max(0, counted.saved - 1) // self.size
            group = newest - (newest - int(slot)) % self.slots
            counted.saved = min(counted.saved, max(0, group) * self.size)

    def dirty(self, now_us: int) -> list[Dirty]:
        """Groups with new tuples; from now on they count as saved."""
        found = []
        for window, counted in self._counted.items():
            gained = counted.next - counted.saved
            if gained:
                oldest = max(counted.first, counted.next - self.window)
                begin = max(counted.saved, oldest) // self.size
                for group in range(begin, (counted.next - 1) // self.size + 1):
                    first = max(group * self.size, oldest)
                    found.append(Dirty(window, group, first, min((group + 1) * self.size, counted.next)))
            if counted.saved_us:
                elapsed = max(1, now_us - counted.saved_us)
                counted.rate = gained * SECOND_US / elapsed
            counted.saved, counted.saved_us = counted.next, now_us
        return found

    def entry(self, dirty: Dirty, rows: pa.RecordBatch, now_us: int, position: int) -> EntryInPieces:
        """What to store for a dirty group, given its tuples."""
        # Tuples are only ever added, so the number of the last one orders the saves of a slot, reused or not.
        stretch = Columns(rows).stretch(0, rows.num_rows)
        return EntryInPieces(
            self.key(dirty.window, dirty.group), dirty.end, self.value(dirty, stretch, now_us, position)
        )

    def value(self, dirty: Dirty, rows: Stretch, now_us: int, position: int) -> Pieces:
        """The bytes of a group."""
        counted = self._counted[dirty.window]
        return encode_group(dirty, rows, self.size, now_us, counted.rate, position, counted.oldest)

    def key(self, window: bytes, group: int) -> bytes:
        return b"%b/%b/%06d" % (self.name, window.hex().encode(), group % self.slots)

    def restore(self, store: CheckpointStore, schema: pa.Schema, *, now_us: int | None = None) -> dict[bytes, Restored]:
        """All windows as they were saved. With `now_us`, stale tuples are trimmed (best effort)."""
        found: dict[bytes, list[_Found]] = {}
        problems: dict[bytes, list[str]] = {}
        ends: dict[bytes, int] = {}
        prefix = self.name + b"/"
        for key, version in store.scan(prefix):
            window = bytes.fromhex(key[len(prefix) :].partition(b"/")[0].decode())
            ends[window] = max(version, ends.get(window, 0))
            try:
                saved = store.get(key)
                if saved is not None:
                    if saved.passed_over:
                        problems.setdefault(window, []).append(
                            f"{key.decode(errors='replace')}: its newest version is damaged; an earlier one is used"
                        )
                    head, rows = decode_group(saved.value, schema)
                    found.setdefault(window, []).append(_Found(head, rows, int(key.rpartition(b"/")[2])))
            except (CorruptLog, msgspec.MsgspecError, pa.ArrowInvalid) as error:
                problems.setdefault(window, []).append(f"{key.decode(errors='replace')}: {error}")
        windows = {
            window: self._assemble(found.get(window, []), schema, problems.get(window, []), ends[window], now_us)
            for window in sorted({*found, *problems})
        }
        for window, restored in windows.items():
            until = restored.first if restored.anew else restored.next
            self._counted[window] = _Counted(
                restored.next, until, now_us or 0, first=restored.first, oldest=restored.oldest
            )
        return windows

    def _assemble(
        self, groups: list[_Found], schema: pa.Schema, problems: list[str], end: int,
        now_us: int | None,
    ) -> Restored:  # fmt: skip
        if not groups:
            after = self._after(end)
            return Restored(after, after, schema.empty_table(), 0, after, 0, 0, problems)
        groups.sort(key=lambda found: found.head.first)
        newest = groups[-1].head
        next_number = newest.first + newest.rows
        oldest = max(newest.oldest, next_number - self.window)
        parts, have = [], 0
        numbers: list[range] = []
        anew = False
        for head, rows, slot in groups:
            if head.first + head.rows <= oldest:
                continue  # An earlier use of a slot, whose tuples have left the window.
            anew = anew or head.size != self.size or slot != head.group % self.slots
            skip = max(0, oldest - head.first)
            parts.append(rows.slice(skip))
            numbers.append(range(head.first + skip, head.first + head.rows))
            have += head.rows - skip
        table = pa.Table.from_batches(parts, schema)
        lost = next_number - oldest - have
        trimmed = 0
        if now_us is not None:
            stale = int(max(0, now_us - newest.saved_us) / SECOND_US * newest.rate)
            # The window had room for that many more before it would have lost any.
            trimmed = min(table.num_rows, max(0, stale - (self.window - (next_number - oldest))))
            table = table.slice(trimmed)
        oldest = _number_at(numbers, trimmed, next_number)
        if end > next_number:
            next_number = self._after(end)
        if anew:
            # Of a window or groups of another size: new groups would take the slots of some that are still needed.
            oldest = self._after(max(end, next_number))
            next_number = oldest + table.num_rows
        first = next_number - table.num_rows
        return Restored(first, next_number, table, newest.position, oldest, lost, trimmed, problems, anew)

    def _after(self, end: int) -> int:
        """Rule 6, where the newest group is lost: on with the next one, so that none is half of old and half of new."""
        return -(-end // self.size) * self.size


def _number_at(numbers: list[range], index: int, default: int) -> int:
    for held in numbers:
        if index < len(held):
            return held[index]
        index -= len(held)
    return default


def encode_group(
    dirty: Dirty, rows: Stretch, size: int, now_us: int, rate: float, position: int, oldest: int = 0
) -> Pieces:
    """The bytes of a group: its head and its tuples. In pieces: to join them would be to copy the tuples once more."""
    about = Head(dirty.group, dirty.first, rows.rows, size, now_us, rate, position, oldest, rows.lengths, rows.digest)
    head = _encode(about)
    return len(head).to_bytes(2, "little") + head, *rows.pieces


def decode_group(value: bytes, schema: pa.Schema) -> tuple[Head, pa.RecordBatch]:
    """What `encode_group` was given; refuses other columns (rule 7)."""
    length = int.from_bytes(value[:2], "little")
    head = _head.decode(value[2 : 2 + length])
    if head.columns not in (0, digest_of(schema)):
        raise other_columns(schema)
    rows = read_stretch(value[2 + length :], head.rows, head.lengths, schema)
    if rows.num_rows != head.rows:
        raise CorruptLog(f"a group of {head.rows} tuples holds {rows.num_rows}; it is not what was saved")
    return head, rows


def other_columns(schema: pa.Schema) -> UsageError:
    """Rule 7."""
    return UsageError(
        f"a window must be restored with the columns it was saved with; the program has {columns_text(schema)}; give "
        f"the inputs their columns back, or begin anew with another store"
    )
