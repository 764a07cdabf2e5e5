"""The tuples of dirty groups, taken out of a window's columns beside the stream.

1. A window's columns are replaced when tuples come, never changed, so what was handed over stays as it was at the
   checkpoint, and the operator goes on meanwhile.
2. Tuples stand in the order of arrival. Those of one window are a stretch of it; those of many are gathered once, for
   all dirty groups together and for no others, by whoever asks for the first of them.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.checkpoint.group_columns import Columns
from holdfast.checkpoint.store import Pieces
from holdfast.checkpoint.window_groups import Dirty, Encode

Ints = npt.NDArray[np.int64]
#: A saved tuple's position, so that windows of groups merge again in the order of arrival.
AT = "_at"


def by_window(window: Ints, windows: int) -> Ints:
    """Rows window after window. Those of a window are in order already; small integers sort in linear time."""
    return np.argsort(window.astype(np.uint16 if windows < 1 << 16 else np.int64), kind="stable")


class GroupRows:
    """Columns as they were: the tuples, their positions, windows and numbers; and the groups that are wanted."""

    def __init__(
        self, rows: pa.Table, positions: Ints, window: Ints, number: Ints, names: Sequence[bytes], dirty: list[Dirty]
    ) -> None:
        self._rows, self._positions, self._window, self._number = rows, positions, window, number
        self._names, self._dirty = names, dirty

    def encoded(self, i: int, encode: Encode) -> Pieces:
        """The bytes of the group with this index."""
        columns, spans = self._columns
        return encode(self._dirty[i], columns.stretch(*spans[i]))

    @functools.cached_property
    def _columns(self) -> tuple[Columns, list[tuple[int, int]]]:
        """Columns, and where in them each group begins and ends."""
        table = self._rows.append_column(AT, pa.array(self._positions)).combine_chunks()
        (batch,) = table.to_batches()
        if len(self._names) <= 1:
            base = int(self._number[0])
            return Columns(batch), [(d.first - base, d.end - base) for d in self._dirty]
        order = by_window(self._window, len(self._names))
        counts = np.bincount(self._window, minlength=len(self._names))
        starts = np.cumsum(counts) - counts
        first = self._number[order[np.minimum(starts, len(order) - 1)]]
        shift = dict(zip(self._names, (starts - first).tolist(), strict=True))
        chosen = [order[d.first + shift[d.window] : d.end + shift[d.window]] for d in self._dirty]
        ends = np.cumsum([len(rows) for rows in chosen]).tolist()
        rows = np.concatenate(chosen)
        gathered = pa.RecordBatch.from_arrays([_taken(c, rows) for c in batch.columns], schema=batch.schema)
        return Columns(gathered), list(zip([0, *ends], ends, strict=False))


def _taken(column: pa.Array, rows: Ints) -> pa.Array:
    """These rows of a column, which are known to be there. To gather texts is half of what a checkpoint costs."""
    kind = column.type
    if (pa.types.is_string(kind) or pa.types.is_binary(kind)) and not column.null_count:
        _, ends, data = column.buffers()
        ends = np.frombuffer(ends, np.int32)[column.offset : column.offset + len(column) + 1]
        width = int(ends[1] - ends[0])
        if width and bool(np.all(np.diff(ends) == width)):
            # Codes and identifiers, all of one length: numpy takes those in less than half the time.
            texts = np.frombuffer(data, np.dtype((np.void, width)), len(column), int(ends[0])).take(rows)
            starts = np.arange(len(rows) + 1, dtype=np.int32) * np.int32(width)
            return pa.Array.from_buffers(
                kind, len(rows), [None, pa.py_buffer(starts), pa.py_buffer(texts.view(np.uint8))]
            )
    # Narrow numbers: less to read for every column.
    return pc.take(column, pa.array(rows.astype(np.uint32)), boundscheck=False)
