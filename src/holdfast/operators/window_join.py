"""Sliding-window join: each tuple of one input is paired with the tuples in the window of the other (004 §4.4).

    WindowJoin("j", Input(left_schema, 32_768), Input(right_schema, 0), on="k").feed(left_batch, right_batch)

Rules:
1. An input's window holds its last W tuples in the order of arrival, or its last W per group if it has a group column.
   W = 0 keeps none: such tuples only probe.
2. A tuple is first paired with the other window as it is at its arrival, then put into its own.
3. Results come in the order of the arriving tuple, and for each in the order of the tuples it met.
4. A batch gives what its tuples would have given one by one: a tuple of a window is met by those that arrive after it
   and before it is evicted, so each has an interval of positions and the join is a search by column.

State is versioned by position: the number of tuples taken in so far, both inputs together.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.checkpoint.derive import Protection, StateKind, derive
from holdfast.checkpoint.exact_groups import ExactGroups
from holdfast.checkpoint.policy import Every, Groups, NoCheckpoint
from holdfast.checkpoint.safekeeper import Outcome, Result, SafeKeeper, State
from holdfast.checkpoint.store import CheckpointStore
from holdfast.checkpoint.window_groups import Dirty, Front, Restored, WindowGroups, other_columns
from holdfast.model.errors import SchemaError, StorageError, UsageError
from holdfast.operators.window_rows import AT, GroupRows, Ints, by_window

#: Positions and key codes share 63 bits when they are searched together.
_POSITION_BITS = 40
#: Evicted never, as far as is known.
_NEVER = (1 << _POSITION_BITS) - 1
#: The one window of an input without groups.
_WHOLE = b"*"


@dataclass(frozen=True)
class Input:
    """One side of a join: its columns, its window, and the column that gives each group a window of its own."""

    schema: pa.Schema
    window: int
    per: str | None = None

    def __post_init__(self) -> None:
        for field in self.schema:
            if _coded(field.type):  # The message of a group does not carry dictionaries.
                raise SchemaError(
                    f"column {field.name!r} of a window must hold its values themselves; got {field.type}; cast it"
                )


def _coded(kind: pa.DataType) -> bool:
    return pa.types.is_dictionary(kind) or any(_coded(kind.field(i).type) for i in range(kind.num_fields))


class Batch(NamedTuple):
    """Tuples of one input with their positions in the order of arrival of both."""

    rows: pa.RecordBatch
    positions: Ints


class _Side:
    """The window of one input, as columns in the order of arrival."""

    def __init__(self, name: str, spec: Input, on: str) -> None:
        self.spec, self.on = spec, on
        self.saved = spec.schema.append(pa.field(AT, pa.int64()))
        self.rows: pa.Table = spec.schema.empty_table()
        self.positions: Ints = np.empty(0, np.int64)
        self.windows: list[bytes] = []
        """Names of windows by number."""
        self.window: Ints = np.empty(0, np.int64)
        self.number: Ints = np.empty(0, np.int64)
        """A tuple's number within its window."""
        self._codes: dict[object, int] = {}
        self._next: Ints = np.empty(0, np.int64)
        self._resume: dict[bytes, int] = {}
        """Where the numbers of windows go on that came back without tuples."""

    def take(self, batch: Batch) -> Ints:
        """Append a batch; the positions at which each tuple is evicted, as far as this batch tells."""
        self.rows = pa.concat_tables([self.rows, pa.Table.from_batches([batch.rows])]).combine_chunks()
        self.positions = np.concatenate([self.positions, batch.positions])
        window = self._windows_of(batch.rows)
        self.window = np.concatenate([self.window, window])
        self.number = np.concatenate([self.number, self._numbers(window)])
        return self._evicted()

    def _windows_of(self, rows: pa.RecordBatch) -> Ints:
        if self.spec.per is None:
            if not self.windows:
                self._window_for(None)
            return np.zeros(rows.num_rows, np.int64)
        coded = rows.column(self.spec.per).dictionary_encode(null_encoding="encode")
        of_value = np.array([self._window_for(v) for v in coded.dictionary.to_pylist()], np.int64)
        return of_value[np.asarray(coded.indices)] if rows.num_rows else np.empty(0, np.int64)

    def _window_for(self, value: object) -> int:
        code = self._codes.get(value)
        if code is None:
            code = self._codes[value] = len(self.windows)
            name = _WHOLE if self.spec.per is None else repr(value).encode()
            self.windows.append(name)
            self._next = np.append(self._next, self._resume.pop(name, 0))
        return code

    def _numbers(self, window: Ints) -> Ints:
        """Numbers for tuples that come now: counting on in each window."""
        if len(self.windows) == 1:
            numbers: Ints = self._next[0] + np.arange(len(window), dtype=np.int64)
            self._next[0] += len(window)
            return numbers
        order = np.argsort(window, kind="stable")
        ordered = window[order]
        starts = np.searchsorted(ordered, ordered)
        numbers = np.empty(len(window), np.int64)
        numbers[order] = self._next[ordered] + np.arange(len(window)) - starts
        self._next += np.bincount(window, minlength=len(self._next))
        return numbers

    def _evicted(self) -> Ints:
        """A tuple leaves when the one numbered W later arrives in its window."""
        evicted = np.full(len(self.positions), _NEVER, np.int64)
        w = self.spec.window
        if len(self.windows) <= 1:
            if len(self.positions) > w:
                evicted[: len(self.positions) - w] = self.positions[w:]
            return evicted
        order = by_window(self.window, len(self.windows))
        later = np.arange(len(order)) + w
        fits = later < len(order)
        same = np.zeros(len(order), bool)
        same[fits] = self.window[order[later[fits]]] == self.window[order[fits]]
        evicted[order[same]] = self.positions[order[later[same]]]
        return evicted

    def slide(self, evicted: Ints) -> None:
        keep = evicted == _NEVER
        if not keep.all():
            first = int(np.argmax(keep)) if keep.any() else len(keep)
            if keep[first:].all():
                self.rows = self.rows.slice(first)
                self.positions, self.window, self.number = (
                    self.positions[first:], self.window[first:], self.number[first:],
                )  # fmt: skip
            else:
                self.rows = self.rows.filter(pa.array(keep))
                self.positions, self.window, self.number = self.positions[keep], self.window[keep], self.number[keep]

    def numbers(self) -> dict[bytes, int]:
        return dict(zip(self.windows, self._next.tolist(), strict=True))

    def rows_of(self, dirty: list[Dirty]) -> GroupRows:
        """The tuples of these groups as they are now."""
        return GroupRows(self.rows, self.positions, self.window, self.number, tuple(self.windows), dirty)

    def load(self, restored: dict[bytes, Restored]) -> None:
        """Windows from what was restored, merged in the order in which their tuples came."""
        parts, windows, numbers = [], [], []
        for name, window in restored.items():
            # The newest, where the window was made smaller meanwhile.
            rows = window.rows.slice(max(0, window.rows.num_rows - self.spec.window))
            if rows.num_rows:
                value = None if self.spec.per is None else rows.column(self.spec.per)[0].as_py()
                code = self._window_for(value)
                self.windows[code] = name
                self._next[code] = window.next
                parts.append(rows)
                windows.append(np.full(rows.num_rows, code, np.int64))
                numbers.append(window.next - rows.num_rows + np.arange(rows.num_rows, dtype=np.int64))
            else:
                self._resume[name] = window.next
        if parts:
            table = pa.concat_tables(parts)
            positions = np.asarray(table.column(AT))
            order = np.argsort(positions)
            self.rows = table.drop_columns([AT]).take(pa.array(order)).combine_chunks()
            self.positions = positions[order]
            self.window, self.number = np.concatenate(windows)[order], np.concatenate(numbers)[order]


class WindowJoin:
    """See the module. `left` columns come first in results, then the columns of `right` without the join column."""

    state_kind = StateKind.SLIDING

    def __init__(
        self, name: str, left: Input, right: Input, *, on: str, checkpoint: Groups | Every | NoCheckpoint | None = None
    ) -> None:
        for which, side in (("left", left), ("right", right)):
            if not isinstance(side, Input):
                raise UsageError(f"{name}: the {which} side must be Input(schema, window); got a {type(side).__name__}")
            if side.window < 0:
                raise UsageError(f"{name}: the {which} window must hold 0 tuples or more; got {side.window}")
            for column in (on, side.per):
                if column is not None and column not in side.schema.names:
                    has = ", ".join(side.schema.names)
                    raise UsageError(f"{name}: the {which} side must have the column {column!r}; it has {has}")
        self.name, self.on, self.position, self._saved_at = name, on, 0, 0
        self.protection: Protection = derive(name, "join", self.state_kind, checkpoint)
        self._sides = (_Side(f"{name}.left", left, on), _Side(f"{name}.right", right, on))
        size = checkpoint.size if isinstance(checkpoint, Groups) else max(left.window, right.window, 1)
        self._groups = tuple(
            WindowGroups(f"{name}.{which}".encode(), side.window, size) if side.window else None
            for which, side in (("left", left), ("right", right))
        )
        self._exact = ExactGroups(name.encode(), size) if isinstance(checkpoint, Groups) and checkpoint.exact else None
        fields = [*left.schema, *(f for f in right.schema if f.name != on)]
        names = [f.name for f in fields]
        if len(set(names)) != len(names):
            raise UsageError(f"{name}: the inputs of a join must not share columns other than {on!r}; rename one")
        self.schema = pa.schema(fields)

    def feed(self, left: pa.RecordBatch, right: pa.RecordBatch, order: npt.NDArray[np.bool_] | None = None) -> pa.Table:
        """Results of a batch. `order` says of each arrival whether it is the left's; without, left ones come first."""
        return self.feed_at(left, right, order)[1]

    def feed_at(
        self, left: pa.RecordBatch, right: pa.RecordBatch, order: npt.NDArray[np.bool_] | None = None
    ) -> tuple[Ints, pa.Table]:
        """The same with the position of the tuple that made each result: the later one of its two."""
        total = left.num_rows + right.num_rows
        if order is None:
            order = np.arange(total) < left.num_rows
        at = np.arange(self.position, self.position + total, dtype=np.int64)
        batches = (Batch(left, at[order]), Batch(right, at[~order]))
        evicted = [
            side.take(batch) if side.spec.window else None for side, batch in zip(self._sides, batches, strict=True)
        ]
        parts = []
        for probing, window, gone in ((1, 0, evicted[0]), (0, 1, evicted[1])):
            if gone is not None and batches[probing].rows.num_rows and len(self._sides[window].positions):
                parts.append(self._pairs(batches[probing], probing, self._sides[window], gone))
        self.position += total
        for side, gone in zip(self._sides, evicted, strict=True):
            if gone is not None:
                side.slide(gone)
        return self._result(parts)

    def _pairs(self, probe: Batch, probing: int, side: _Side, evicted: Ints) -> tuple[Ints, pa.Table]:
        """Position of the arriving tuple and the result, for every pair."""
        mine, theirs = _codes(probe.rows.column(self.on), side.rows.column(self.on))
        base = min(int(side.positions.min()), int(probe.positions[0]))
        arrived = side.positions - base
        order = np.argsort((theirs << _POSITION_BITS) | arrived, kind="stable")
        sorted_key = (theirs[order] << _POSITION_BITS) | arrived[order]
        at = probe.positions - base
        begin = np.searchsorted(sorted_key, mine << _POSITION_BITS)
        end = np.searchsorted(sorted_key, (mine << _POSITION_BITS) | at)
        single = len(side.windows) <= 1 or side.spec.per == self.on
        gone = np.where(evicted == _NEVER, _NEVER, evicted - base)[order]
        if single:
            # Eviction follows arrival among tuples of one key, so those that are gone are the first of its range.
            begin = np.maximum(
                begin, np.searchsorted((theirs[order] << _POSITION_BITS) | gone, (mine << _POSITION_BITS) | at)
            )
        counts = np.maximum(end - begin, 0)
        who = np.repeat(np.arange(len(at)), counts)
        offsets = np.arange(len(who)) - np.repeat(np.cumsum(counts) - counts, counts)
        met = np.repeat(begin, counts) + offsets
        if not single:
            alive = gone[met] > at[who]
            who, met = who[alive], met[alive]
        stored = side.rows.take(pa.array(order[met]))
        arriving = pa.Table.from_batches([probe.rows]).take(pa.array(who))
        left, right = (stored, arriving) if probing == 1 else (arriving, stored)
        columns = [*left.columns, *(right.column(n) for n in right.column_names if n != self.on)]
        return probe.positions[who], pa.Table.from_arrays(columns, schema=self.schema)

    def _result(self, parts: list[tuple[Ints, pa.Table]]) -> tuple[Ints, pa.Table]:
        if not parts:
            return np.empty(0, np.int64), self.schema.empty_table()
        if len(parts) == 1:
            return parts[0]
        at = np.concatenate([part[0] for part in parts])
        order = np.argsort(at, kind="stable")
        return at[order], pa.concat_tables([part[1] for part in parts]).take(pa.array(order))

    def checkpoint(
        self, keeper: SafeKeeper, now_us: int, *, events: int = 0, told: Callable[[Result], None] | None = None
    ) -> int:
        """Hand the dirty groups to the keeper, after `events` tuples or more since the last time; how many they were.

        Nothing is fed meanwhile. An exact policy waits until they are durable; then the input before `position` is not
        needed any more.
        """
        if self.position - self._saved_at < events:
            return 0
        self._saved_at = self.position
        if self._exact is not None:
            return self._checkpoint_exactly(self._exact, keeper)
        states: list[State] = []
        for side, groups in zip(self._sides, self._groups, strict=True):
            if groups is None:
                continue
            for name, number in side.numbers().items():
                groups.advance(name, number)
            dirty = groups.dirty(now_us)
            # The bytes are made beside the stream, in the keeper's thread.
            rows, encode = side.rows_of(dirty), functools.partial(groups.value, now_us=now_us, position=self.position)
            for i, d in enumerate(dirty):
                states.append((groups.key(d.window, d.group), d.end, functools.partial(rows.encoded, i, encode)))
        keeper.save_many(states, told)
        return len(states)

    def _checkpoint_exactly(self, exact: ExactGroups, keeper: SafeKeeper) -> int:
        new, mark = exact.plan(self.held(), self.position)
        states: list[State] = []
        for which, side in enumerate(self._sides):
            mine = [(slot, dirty) for slot, i, dirty in new if i == which]
            rows, encode = side.rows_of([dirty for _, dirty in mine]), functools.partial(exact.value, mark=mark)
            for i, (slot, _) in enumerate(mine):
                states.append((exact.key(slot), mark.seq, functools.partial(rows.encoded, i, encode)))
        marked: list[State] = [(exact.mark_key, mark.seq, exact.mark_value(mark))]
        for result in (r for part in (states, marked) for r in keeper.save_all(part)):
            if result.outcome is not Outcome.DURABLE:
                raise StorageError(
                    f"{self.name}: the checkpoint at position {self.position} is not whole: a part of it was "
                    f"{result.outcome.value}; the one before it holds; give the keeper room and checkpoint again"
                )
        exact.settle(mark)
        return len(new)

    def unsaved(self, result: Result) -> None:
        """For a keeper's callback: what was dropped must be saved again."""
        if result.outcome in (Outcome.DROPPED, Outcome.FAILED):
            for groups in self._groups:
                if groups is not None and result.key.startswith(groups.name + b"/"):
                    groups.unsaved(result.key)

    def restore(self, store: CheckpointStore, *, now_us: int | None = None) -> list[Restored]:
        """Windows from a store; with `now_us`, stale tuples are trimmed (best effort only, C11)."""
        if self._exact is not None:
            if now_us is not None:
                raise UsageError(f"{self.name}: stale tuples are trimmed in best effort only; leave out now_us")
            windows = self._exact.restore(store, tuple(side.saved for side in self._sides))
            for which, side in enumerate(self._sides):
                side.load({name: window for (i, name), window in windows.items() if i == which})
            self.position = self._exact.mark.position
            return list(windows.values())
        found: list[Restored] = []
        for side, groups in zip(self._sides, self._groups, strict=True):
            if groups is not None:
                restored = groups.restore(store, side.saved, now_us=now_us)
                side.load(restored)
                found += restored.values()
        self.position = self._saved_at = max((r.position for r in found), default=0)
        return found

    def snapshot(self) -> bytes:
        """Both windows whole, with their numbers and the position."""
        sides = []
        for side in self._sides:
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, side.saved) as writer:
                writer.write_table(side.rows.append_column(AT, pa.array(side.positions)))
            sides.append((sink.getvalue().to_pybytes(), side.window.tobytes(), side.numbers()))
        return msgspec.msgpack.encode((self.position, sides))

    def load(self, saved: bytes) -> None:
        """Become what `snapshot` saw."""
        self.position, sides = msgspec.msgpack.decode(
            saved, type=tuple[int, list[tuple[bytes, bytes, dict[bytes, int]]]]
        )
        for side, (raw, window, numbers) in zip(self._sides, sides, strict=True):
            table = pa.ipc.open_stream(pa.py_buffer(raw)).read_all()
            table.validate(full=True)  # It may have come from another owner's host (X3).
            if (table.schema.names, table.schema.types) != (side.saved.names, side.saved.types):
                raise other_columns(side.saved)
            codes = np.frombuffer(window, np.int64)
            side.load({
                name: Restored(0, next_number, table.filter(pa.array(codes == i)), self.position)
                for i, (name, next_number) in enumerate(numbers.items())
            })  # fmt: skip

    @property
    def saved_schemas(self) -> tuple[pa.Schema, ...]:
        """The columns of saved tuples of each side."""
        return tuple(side.saved for side in self._sides)

    def held(self) -> list[Front]:
        """The windows that have tuples, with the numbers of these."""
        found = []
        for which, side in enumerate(self._sides):
            counts = np.bincount(side.window, minlength=len(side.windows)).tolist()
            for (name, number), count in zip(side.numbers().items(), counts, strict=True):
                found += [Front(which, name, number - count, number)] if count else []
        return found

    def rows_of(self, which: int, groups: list[Dirty]) -> GroupRows:
        """The tuples of groups of one side's windows."""
        return self._sides[which].rows_of(groups)

    def load_windows(self, position: int, windows: dict[tuple[int, bytes], Restored]) -> None:
        """Become what had these windows, by side and name, at that position."""
        for which, side in enumerate(self._sides):
            side.load({name: window for (i, name), window in windows.items() if i == which})
        self.position = self._saved_at = position

    def contents(self) -> tuple[dict[bytes, pa.Table], dict[bytes, pa.Table]]:
        """The windows, for looking at."""
        return tuple(
            {name: side.rows.filter(pa.array(side.window == i)) for i, name in enumerate(side.windows)}
            for side in self._sides
        )  # type: ignore[return-value]


def _codes(probe: pa.Array, stored: pa.ChunkedArray) -> tuple[Ints, Ints]:
    """Both columns as small whole numbers, equal where the values are."""
    stored = stored.combine_chunks() if isinstance(stored, pa.ChunkedArray) else stored
    if isinstance(stored, pa.ChunkedArray):
        stored = pa.concat_arrays(stored.chunks)
    if pa.types.is_integer(probe.type) and not probe.null_count and not stored.null_count:
        mine, theirs = np.asarray(probe).astype(np.int64), np.asarray(stored).astype(np.int64)
        low = min(int(mine.min()), int(theirs.min()))
        if max(int(mine.max()), int(theirs.max())) - low < (1 << 22):
            return mine - low, theirs - low
    both = pa.concat_arrays([probe, stored.cast(probe.type)]).dictionary_encode()
    codes = np.asarray(pc.fill_null(both.indices, -1)).astype(np.int64)
    # A missing value meets nothing, also not another missing one.
    mine, theirs = codes[: len(probe)], codes[len(probe) :]
    unknown = len(both.dictionary)
    return np.where(mine < 0, unknown, mine), np.where(theirs < 0, unknown + 1, theirs)
