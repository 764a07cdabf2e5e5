"""Values from outside: rows, JSON, CSV, Arrow bodies, frames. What is taken comes back equal, through the log."""

from __future__ import annotations

import csv
import io
import json
import os
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

import holdfast
from holdfast.inputs.decode import Decoder
from holdfast.model.schema import parse_schema
from holdfast.stream.rows import Columns
from holdfast.stream.tables import table_batch
from holdfast.stream.untrusted import read_arrow
from tests.fuzz import values
from tests.fuzz.target import Target, Wrong, mutated
from tests.fuzz.types import TYPES

#: Tries of the cheap doors in one round.
_ROUND = 50


class Inputs(Target):
    """All doors for one type a round; the types take turns."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        os.fdatasync = os.fsync = lambda fd: None  # The machine stays up here.
        self._schemas = {word: parse_schema(f"v {word}") for word in TYPES}

    def round(self, chance: random.Random) -> None:
        word = chance.choice(TYPES)
        schema = self._schemas[word]
        taken: list[Any] = []
        before = self.tried.total()
        for _ in range(_ROUND):
            for door in (self._row, self._json, self._cell, self._table):
                found = door(chance, schema)
                if found is not None:
                    taken.append(found[0])
        for _ in range(_ROUND // 4):
            self._frame(chance, schema)
            self._body(chance, schema)
        self.tried[word] += self.tried.total() - before
        if chance.random() < 0.1:
            self._log(word, chance, taken)

    def _judge(self, door: str, kind: pa.DataType, meant: Any, batch: pa.RecordBatch, about: Any) -> tuple[Any]:
        (got,) = batch.column(0).to_pylist()
        if not values.same(kind, meant, got):
            raise Wrong(f"{door}: {about!r:.300} came back from a column {kind} as {got!r:.300}")
        return (got,)

    def _row(self, chance: random.Random, schema: pa.Schema) -> tuple[Any] | None:
        value = values.any_value(chance, schema[0].type)
        row = chance.choice([{"v": value}, (value,), [value]])
        batch = self.refused_or("rows", lambda: Columns(schema, "stream s").batch([row]), value)
        return None if batch is None else self._judge("rows", schema[0].type, value, batch, value)

    def _json(self, chance: random.Random, schema: pa.Schema) -> tuple[Any] | None:
        kind, text = schema[0].type, '{"v": ' + values.json_text(chance, schema[0].type) + "}"
        raw = text.encode("utf-8", "surrogatepass")
        if chance.random() < 0.1:
            raw = mutated(raw, chance)
        row = self.refused_or("json", lambda: Decoder(schema, "s").row(raw, "line 1"), raw)
        if not row:
            return None
        batch = self.refused_or("json", lambda: Columns(schema, "stream s").batch([row]), raw)
        if batch is None:
            raise Wrong(f"json: {raw!r:.300} was decoded and then refused")
        said = json.loads(raw, parse_float=Decimal)["v"]
        return self._judge("json", kind, values.meant_by_json(kind, said), batch, raw)

    def _cell(self, chance: random.Random, schema: pa.Schema) -> tuple[Any] | None:
        kind, line = schema[0].type, io.StringIO()
        text = values.json_text(chance, kind)
        cell = json.loads(text) if text[:1] == '"' else text
        cell = cell.replace("\n", " ").replace("\r", " ")
        csv.writer(line).writerow([cell])
        raw = line.getvalue().encode("utf-8", "surrogatepass")
        row = self.refused_or("csv", lambda: Decoder(schema, "s", "csv", header=["v"]).row(raw, "line 1"), raw)
        if not row:
            return None
        batch = self.refused_or("csv", lambda: Columns(schema, "stream s").batch([row]), raw)
        if batch is None:
            raise Wrong(f"csv: {raw!r:.300} was decoded and then refused")
        return self._judge("csv", kind, values.meant_by_cell(kind, cell), batch, raw)

    def _table(self, chance: random.Random, schema: pa.Schema) -> tuple[Any] | None:
        column = _any_column(chance, schema[0].type)
        batch = self.refused_or("arrow", lambda: table_batch(pa.table({"v": column}), schema, "s"), column.type)
        if batch is None:
            return None
        try:
            sent = column.to_pylist()[0]
        except (ValueError, OverflowError, ArithmeticError):
            raise Wrong(f"arrow: a {column.type} that cannot be shown was taken") from None
        return self._judge("arrow", schema[0].type, sent, batch, (column.type, sent))

    def _frame(self, chance: random.Random, schema: pa.Schema) -> None:
        value = values.any_value(chance, schema[0].type)
        frame = pd.DataFrame({"v": pd.Series([value], dtype=object)})
        batch = self.refused_or("pandas", lambda: table_batch(frame, schema, "s"), value)
        if batch is not None and not (pd.api.types.is_scalar(value) and pd.isna(value)):
            self._judge("pandas", schema[0].type, value, batch, value)

    def _body(self, chance: random.Random, schema: pa.Schema) -> None:
        """Bytes that claim to be Arrow: what is taken can be shown, whatever it is."""
        column = _any_column(chance, schema[0].type)
        sink = pa.BufferOutputStream()
        options = pa.ipc.IpcWriteOptions(compression=chance.choice([None, None, "zstd", "lz4"]))
        table = pa.table({"v": pa.concat_arrays([column] * 20)})
        with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
            writer.write_table(table)
        raw = mutated(sink.getvalue().to_pybytes(), chance)

        def through() -> Any:
            return table_batch(read_arrow(raw, "body", unpacked_max=1 << 24), schema, "s").to_pylist()

        self.refused_or("body", through, raw)

    def _log(self, word: str, chance: random.Random, taken: list[Any]) -> None:
        """What was taken is read back from the log by a subscriber."""
        if not taken:
            return
        name = f"s{chance.getrandbits(60):x}"
        stream = holdfast.open(self.folder / "streams").create(name, self._schemas[word], bucket="1s")
        with stream.producer(boundary_every="1h") as producer:
            producer.send_many([{"v": value} for value in taken])
        got = [row.values["v"] for row in stream.subscribe().rows(timeout=0)]
        if repr(got) != repr(taken):
            raise Wrong(f"log: {word}: {taken!r:.300} came back as {got!r:.300}")
        holdfast.open(self.folder / "streams").delete(name)


def _any_column(chance: random.Random, kind: pa.DataType) -> pa.Array:
    """One value in some Arrow type, often not that of the column."""
    kinds = [kind, kind, kind, pa.string(), pa.large_string(), pa.int64(), pa.uint64(), pa.float64(), pa.float16(),
             pa.decimal128(38, 5), pa.decimal256(76, 20), pa.timestamp("ns", tz="Europe/Paris"), pa.timestamp("s"),
             pa.date64(), pa.large_binary(), pa.list_(pa.int64()), pa.large_list(kind), pa.bool_(), pa.binary(3),
             pa.time64("us"), pa.duration("us"), pa.list_(kind, 2), pa.struct([("p", kind)]), pa.int8()]  # fmt: skip
    for _ in range(20):
        one = chance.choice(kinds)
        value = chance.choice(
            [values.any_value(chance, kind), "1e-10000000", "1." + "0" * 5000, chance.getrandbits(62), 0.1]
        )
        if isinstance(value, Decimal) and (not value.is_finite() or abs(value.as_tuple().exponent) > 100):  # type: ignore[arg-type]
            continue  # Arrow itself would crash while the test makes its column.
        if pa.types.is_map(kind) and _lacks_key(value):
            continue  # The same.
        try:
            return pa.array([value], one) if not _hides_decimal(value) else pa.nulls(1, one)
        except (pa.ArrowException, ValueError, TypeError, OverflowError, AttributeError, ArithmeticError):
            continue
    return pa.nulls(1, kind)


def _lacks_key(value: Any) -> bool:
    """Whether it is a map of which a key is null, as Arrow sees it."""
    pairs = value.items() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    keys = [pair[0] for pair in pairs if isinstance(pair, tuple | list) and pair]
    # Of a signalling NaN pandas does not say whether it is missing: it raises.
    return any(
        key.is_nan() if isinstance(key, Decimal) else pd.api.types.is_scalar(key) and pd.isna(key) for key in keys
    )


def _hides_decimal(value: Any, depth: int = 0) -> bool:
    if isinstance(value, dict):
        value = [*value.keys(), *value.values()]
    if isinstance(value, list | tuple | set) and depth < 10:
        return any(isinstance(v, Decimal) or _hides_decimal(v, depth + 1) for v in value)
    return False
