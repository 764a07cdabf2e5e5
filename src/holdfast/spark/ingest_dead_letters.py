"""Rows that an ingest query puts aside instead of stopping: without a time, too late, far ahead of the clock, or with a
value that no stream may hold.

Spark runs a batch again until it is committed, so a row that stops it would stop it for ever.

Rules:
1. A row is in the stream or put aside, never both, and once. What is put aside is judged against the boundary and the
   clock, which may have moved when Spark runs the batch again. So the unit of the log settles it: before it, the rows
   are noted beside the stream, durably; behind it, they are appended to the dead letters. A batch that the log has is
   not judged again: the note says what it has put aside, and what the file lacks of it is appended.
2. A batch that the log has not is judged anew, and its note replaced: nobody has seen the first judgement.
3. The note counts what the query has put aside since it began, also where late rows are only dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.inputs.feed import DeadLetters, letter_text
from holdfast.inputs.letter_note import FORMAT, LetterNote
from holdfast.model.time import instant_text
from holdfast.stream.disk import Disk
from holdfast.stream.tables import unfit_rows

_NO_TIME = "its stime must not be null: the column that gives it had no value, or one that Spark could not read"
_EARLY = "its stime lies too far ahead of the clock: what follows would be late; correct it, or raise max_ahead"


class PutAside(NamedTuple):
    """What a query has put aside so far."""

    late: int = 0
    """Rows that came too late or too early."""
    dead: int = 0
    """Rows without a time, or with a value that the stream cannot hold."""


class _Note(msgspec.Struct, frozen=True):
    format: int
    query: str
    batch: int
    before: PutAside
    """Without this batch."""
    since: PutAside
    """With it."""
    at: int
    """How long the dead letters were before it."""


#: Rows that are Python's at once: a whole batch may be late.
_ROWS_AT_ONCE = 1000


def put_aside(note: Path) -> PutAside:
    """What the query has put aside since it began."""
    found = LetterNote(note, _Note).read(letters=False)
    return PutAside() if found is None else found[0].since


class IngestDeadLetters:
    """Those of one stream. `letters`: the file; None where late rows are dropped and others stop the query."""

    def __init__(self, stream: str, note: Path, letters: Path | None, *, drop_late: bool) -> None:
        self._stream, self._letters, self._drop_late = stream, letters, drop_late
        self._note = LetterNote(note, _Note)

    def judge(
        self, batches: list[pa.RecordBatch], before_us: int, early_us: int | None, query: str, batch: int
    ) -> list[pa.RecordBatch]:
        """The rows that the stream takes, once the others are noted. Called by who has the log, before the unit."""
        late = f"it comes after the boundary {instant_text(before_us)}; declare more slack, or let it be dropped "
        late += "(late='drop')"
        kinds: list[tuple[str, Callable[[pa.Array], pa.Array]]] = [
            (_NO_TIME, pc.is_null), (late, lambda stimes: pc.less(stimes, before_us))
        ]  # fmt: skip
        if early_us is not None:
            kinds.append((_EARLY, lambda stimes: pc.greater(stimes, early_us)))
        found, text = PutAside(), bytearray()
        taken: list[pa.RecordBatch] = []
        for rows in batches:
            left = rows
            for why, is_so in kinds:
                dropped = why is late and self._drop_late
                if self._letters is None and not dropped:
                    continue  # These stop the query.
                which = pc.fill_null(is_so(left.column(0).cast(pa.int64())), False)
                refused, left = left.filter(which), left.filter(pc.invert(which))
                late_rows, dead_rows = (0, refused.num_rows) if why is _NO_TIME else (refused.num_rows, 0)
                found = PutAside(found.late + late_rows, found.dead + dead_rows)
                if not dropped:
                    for first in range(0, refused.num_rows, _ROWS_AT_ONCE):
                        text += self._text(refused.slice(first, _ROWS_AT_ONCE), batch, why)
            if self._letters is not None:  # Otherwise the task has looked, and would have stopped.
                unfit = unfit_rows(left, self._stream)
                for n, why in unfit.items():
                    text += self._text(left.slice(n, 1), batch, why)
                found = found._replace(dead=found.dead + len(unfit))
                if unfit:
                    left = left.filter(pa.array([n not in unfit for n in range(left.num_rows)]))
            taken.append(left)
        self._remember(query, batch, found, text)
        return taken

    def _text(self, rows: pa.RecordBatch, batch: int, why: str) -> bytes:
        where = {"where": f"batch {batch} of the ingest query of stream {self._stream}", "batch": batch, "error": why}
        return b"".join(msgspec.json.encode({**where, "row": row}, enc_hook=str) + b"\n" for row in _rows(rows))

    def _remember(self, query: str, batch: int, found: PutAside, text: bytes | bytearray) -> None:
        """Rule 1, the first half; rule 2."""
        known = self._note.read()
        again = known is not None and (known[0].query, known[0].batch) == (query, batch)
        if not any(found) and not again:
            return
        before = PutAside()
        if known is not None and known[0].query == query:
            before = known[0].before if again else known[0].since
        since = PutAside(before.late + found.late, before.dead + found.dead)
        at = self._letters.stat().st_size if self._letters is not None and self._letters.exists() else 0
        self._note.write(_Note(FORMAT, query, batch, before, since, at), text)

    def append(self, query: str, batch: int) -> None:
        """Rule 1, the second half: the log has the batch."""
        known = self._note.read()
        if known is None or self._letters is None:
            return
        note, text = known
        if (note.query, note.batch) != (query, batch) or not text:
            return
        Disk().make_dir(self._letters.parent)
        with DeadLetters(self._letters) as letters:
            letters.complete(note.at, text)


def _rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    try:
        return list(batch.to_pylist())
    except (ValueError, OverflowError):  # Spark has times that Python has not: years before 1 and behind 9999.
        columns = [_values(batch.column(n)) for n in range(batch.num_columns)]
        return [dict(zip(batch.schema.names, row, strict=True)) for row in zip(*columns, strict=True)]


def _values(column: pa.Array) -> list[Any]:
    try:
        return list(column.to_pylist())
    except (ValueError, OverflowError):
        return [_value(column.slice(n, 1)) for n in range(len(column))]


def _value(one: pa.Array) -> Any:
    try:
        return one[0].as_py()
    except (ValueError, OverflowError):
        if pa.types.is_string(one.type):
            return letter_text(one.cast(pa.binary())[0].as_py())
        return one.to_string(skip_new_lines=True)[1:-1]
