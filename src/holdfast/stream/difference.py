"""How the results of two streams differ, bucket by bucket: the live output of a node, and that of a trial.

Rules:
1. A bucket is compared once it is complete in both, and only then: until it is, nobody knows what is missing.
2. Compared are the columns that both have, with `stime`; ids and order are not. Rows count as often as they come.
3. Of rows without a counterpart, two that agree in `stime` and the key are one that has *changed*. The key is what the
   user names, or else every column that is no number: results are told apart by names and measured in numbers. Where
   several share a key, they are only here or only there.
4. Some are kept to be shown, the first of each kind; all are counted.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Any

import pyarrow as pa

from holdfast.model.errors import UsageError
from holdfast.model.schema import schema_text
from holdfast.stream.reader import LogReader
from holdfast.stream.store import Stream

#: Rows of each kind that are kept to be shown, and buckets that are looked at in one go: a caller may have other work.
SHOWN, _BUCKETS_MAX = 10, 64

Row = dict[str, Any]


@dataclass(slots=True)
class Counts:
    """What was found so far."""

    from_us: int
    until_us: int
    """Buckets before it were compared."""
    buckets: int = 0
    differing: int = 0
    """Buckets that are not equal."""
    live: int = 0
    trial: int = 0
    equal: int = 0
    changed: int = 0
    only_live: int = 0
    only_trial: int = 0
    changed_columns: dict[str, int] = field(default_factory=dict)
    shown: dict[str, list[Any]] = field(default_factory=lambda: {"changed": [], "only_live": [], "only_trial": []})


class Difference:
    """Of `trial` from `live`, from a bucket on."""

    def __init__(self, live: Stream, trial: Stream, from_us: int, key: Sequence[str] = ()) -> None:
        ours, theirs = live.definition.schema, trial.definition.schema
        self._columns = [field.name for field in ours if field.name in theirs.names]
        self.added = schema_text(pa.schema([field for field in theirs if field.name not in ours.names]))
        strange = [name for name in key if name not in self._columns]
        if strange:
            raise UsageError(f"a key must be made of columns of ({schema_text(ours)}); got {', '.join(strange)}")
        self.key = list(key) or [name for name in self._columns if not _is_number(ours.field(name).type)]
        self._size = live.definition.bucket_us
        self._live, self._trial = live.reader(), trial.reader()
        self.counts = Counts(from_us, from_us)

    def advance(self) -> bool:
        """Compare what has become complete (rule 1), some buckets of it; whether there was any."""
        for reader in (self._live, self._trial):
            reader.refresh()
        counts = self.counts
        furthest_us = max(self._live.closed_until_us, self._trial.closed_until_us)
        # One that has ended has nothing more, however far the other goes.
        until_us = min(furthest_us if r.closed else r.closed_until_us for r in (self._live, self._trial))
        until_us = min(until_us, counts.until_us + _BUCKETS_MAX * self._size)
        begun_us = counts.until_us
        while counts.until_us < until_us:
            self._compare(counts.until_us, counts.until_us + self._size)
            counts.until_us += self._size
        return counts.until_us > begun_us

    def _compare(self, start_us: int, end_us: int) -> None:
        live, trial = (self._table(reader, start_us, end_us) for reader in (self._live, self._trial))
        counts = self.counts
        counts.buckets += 1
        counts.live += live.num_rows
        counts.trial += trial.num_rows
        if live.equals(trial):  # As a rule: results are filed in order, and Arrow compares them by memory.
            counts.equal += live.num_rows
            return
        here, there = (Counter(map(_frozen, table.to_pylist())) for table in (live, trial))
        both = here & there
        counts.equal += both.total()
        here, there = here - both, there - both
        if here or there:
            counts.differing += 1
            self._pair(list(here.elements()), list(there.elements()))

    def _table(self, reader: LogReader, start_us: int, end_us: int) -> pa.Table:
        columns = ["stime", *self._columns]
        batches = [batch.select(columns) for _, batch in reader.scan(start_us, end_us)]
        return pa.Table.from_batches(batches, pa.schema([reader.stored.field(name) for name in columns]))

    def _pair(self, here: list[Any], there: list[Any]) -> None:
        """Rule 3."""
        names = ["stime", *self._columns]
        by_key: dict[Any, tuple[list[Row], list[Row]]] = defaultdict(lambda: ([], []))
        for side, rows in enumerate((here, there)):
            for frozen in rows:
                row = dict(zip(names, frozen, strict=True))
                by_key[tuple(row[name] for name in ("stime", *self.key))][side].append(row)
        for live, trial in by_key.values():
            if len(live) == len(trial) == 1:
                self.counts.changed += 1
                differing = [name for name in self._columns if live[0][name] != trial[0][name]]
                for name in differing:
                    self.counts.changed_columns[name] = self.counts.changed_columns.get(name, 0) + 1
                told = {name: _plain(live[0][name]) for name in ("stime", *self.key)}
                self._show("changed", told | {n: [_plain(live[0][n]), _plain(trial[0][n])] for n in differing})
                continue
            self.counts.only_live += len(live)
            self.counts.only_trial += len(trial)
            for kind, rows in (("only_live", live), ("only_trial", trial)):
                for row in rows:
                    self._show(kind, {name: _plain(value) for name, value in row.items()})

    def _show(self, kind: str, row: Row) -> None:
        if len(self.counts.shown[kind]) < SHOWN:
            self.counts.shown[kind].append(row)

    def close(self) -> None:
        self._live.close()
        self._trial.close()


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _frozen(row: Row) -> tuple[Any, ...]:
    return tuple(_hashable(value) for value in row.values())


def _hashable(value: Any) -> Any:
    """Lists, maps and structs as tuples; a number that is none is equal to itself here."""
    if isinstance(value, dict):
        return tuple((name, _hashable(inner)) for name, inner in value.items())
    if isinstance(value, list | tuple):  # Maps come as lists of pairs.
        return tuple(map(_hashable, value))
    return "NaN" if isinstance(value, float) and value != value else value


def _plain(value: Any) -> Any:
    """For people and JSON."""
    if value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, datetime | date):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, tuple) and value and all(isinstance(inner, tuple) and len(inner) == 2 for inner in value):
        return f"{{{', '.join(f'{name}: {_plain(inner)}' for name, inner in value)}}}"
    if isinstance(value, tuple):
        return f"[{', '.join(str(_plain(inner)) for inner in value)}]"
    return str(value)
