"""Incremental checkpoints of sliding windows, exact: all windows of an operator as they were at one position (C1, C11).

The intuition: `window_groups` lets every window be as new as its newest group, so a crash in the middle of a checkpoint
leaves windows of different ages. Here a checkpoint counts only when its *mark* is there: a directory that names, for
every window, the slots its groups stand in, and the position in the input that they belong to.

1. Groups with tuples that no mark knows go into slots that the last mark does not name; groups that did not change stay
   where they are. The mark is written when all of them are durable. So whatever a crash leaves, the last mark and all
   that it names are there.
2. What is restored is the state at the mark's position; feeding the input again from there gives what the run without
   the crash gave. Nothing is trimmed.
3. A group that a mark names and that cannot be read is an error, not a loss: an exact policy never guesses.
4. Slots are used again, so an operator keeps at most twice its windows in the store.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import pyarrow as pa

from holdfast.checkpoint.group_columns import Stretch
from holdfast.checkpoint.store import CheckpointStore, Pieces
from holdfast.checkpoint.window_groups import Dirty, Front, Restored, decode_group, encode_group
from holdfast.model.errors import CorruptLog, UsageError


class Kept(msgspec.Struct, array_like=True, frozen=True):
    """Where a group stands and which tuples it holds: numbers `first` … `end`-1."""

    group: int
    first: int
    end: int
    slot: int


class Window(msgspec.Struct, array_like=True, frozen=True):
    """A window as a mark knows it: input, name, the numbers of its tuples, its groups in order."""

    side: int
    name: bytes
    oldest: int
    next: int
    groups: list[Kept]


class Mark(msgspec.Struct, array_like=True, frozen=True):
    """A whole checkpoint."""

    seq: int
    position: int
    windows: list[Window]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Mark)


class ExactGroups:
    """The checkpoints of one operator. `plan`, make all of it durable, then the mark, then `settle`."""

    def __init__(self, name: bytes, size: int) -> None:
        if size < 1:
            raise UsageError(f"a group needs a tuple at least; got {size}")
        self.name, self.size = name, size
        self.mark = Mark(0, 0, [])
        """The last one that is durable."""

    def plan(self, fronts: Iterable[Front], position: int) -> tuple[list[tuple[int, int, Dirty]], Mark]:
        """Groups to save, by slot and side, and the mark to write after them."""
        known = {(w.side, w.name, k.group): k for w in self.mark.windows for k in w.groups}
        taken = {kept.slot for kept in known.values()}
        free = (slot for slot in range(1 << 62) if slot not in taken)
        new: list[tuple[int, int, Dirty]] = []
        windows = []
        for front in fronts:
            groups = []
            for group in range(front.oldest // self.size, -(-front.next // self.size)):
                end = min((group + 1) * self.size, front.next)
                kept = known.get((front.side, front.name, group))
                if kept is None or kept.end != end:
                    kept = Kept(group, max(group * self.size, front.oldest), end, next(free))
                    new.append((kept.slot, front.side, Dirty(front.name, group, kept.first, end)))
                groups.append(kept)
            windows.append(Window(front.side, front.name, front.oldest, front.next, groups))
        return new, Mark(self.mark.seq + 1, position, windows)

    def key(self, slot: int) -> bytes:
        return b"%b/=/%08d" % (self.name, slot)

    @property
    def mark_key(self) -> bytes:
        return self.name + b"/=mark"

    def value(self, dirty: Dirty, rows: Stretch, mark: Mark) -> Pieces:
        return encode_group(dirty, rows, self.size, 0, 0.0, mark.position)

    def mark_value(self, mark: Mark) -> bytes:
        return _encode(mark)

    def settle(self, mark: Mark) -> None:
        """The mark is durable: from now on what only the one before it named may be overwritten."""
        self.mark = mark

    def restore(self, store: CheckpointStore, schemas: tuple[pa.Schema, ...]) -> dict[tuple[int, bytes], Restored]:
        """All windows at the position of the last mark, by side and name; nothing if there is no mark."""
        saved = store.get(self.mark_key)
        if saved is None:
            self.mark = Mark(0, 0, [])
            return {}
        if saved.passed_over:
            raise CorruptLog(
                f"{self.name.decode()}: its newest mark is damaged; what an earlier one names is not the state that "
                f"was saved last; restore the store from a copy or begin anew"
            )
        try:
            self.mark = _decode.decode(saved.value)
        except msgspec.MsgspecError as error:
            raise CorruptLog(f"{self.name.decode()}: its mark cannot be read ({error}); begin anew") from error
        slots = [self.key(kept.slot) for window in self.mark.windows for kept in window.groups]
        found = {key: value.value for key, value in store.get_many(slots).items()}
        return {(w.side, w.name): self._window(w, schemas[w.side], found) for w in self.mark.windows}

    def _window(self, window: Window, schema: pa.Schema, found: dict[bytes, bytes]) -> Restored:
        parts = []
        for kept in window.groups:
            value = found.get(self.key(kept.slot))
            if value is not None:
                head, rows = decode_group(value, schema)
                if (head.group, head.first, head.first + head.rows) == (kept.group, kept.first, kept.end):
                    parts.append(rows.slice(max(0, window.oldest - kept.first)))
                    continue
            raise CorruptLog(
                f"{self.name.decode()}: group {kept.group} of a window is not what its mark names; what is left is not "
                f"the state at position {self.mark.position}; begin anew or restore with a best-effort policy"
            )
        return Restored(window.oldest, window.next, pa.Table.from_batches(parts, schema), self.mark.position)
