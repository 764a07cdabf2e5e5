"""Read and Update on Spark."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import polars as pl
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema

from holdfast.model.errors import UnknownStream, UsageError
from holdfast.model.tuples import HEADER, STREAM_COLUMN, TupleType
from holdfast.operators.database import Database, UpdateKernel, parameters, read_rows
from holdfast.protocol.cec.policy import Continuous
from holdfast.spark.stage import Output, StagePlan
from holdfast.spark.stages import Inputs, StatefulStage, grouped
from holdfast.spark.versions import Scratch
from holdfast.stream.store import StreamStore
from holdfast.stream.values import exact_decimal


def _known(sql: str, frame: DataFrame) -> list[str]:
    names = parameters(sql)
    missing = [n for n in names if n not in frame.columns]
    if missing:
        raise UsageError(
            f"parameters are columns of the tuple ({', '.join(frame.columns)}); got :{', :'.join(missing)}"
        )
    return names


@dataclass(frozen=True)
class ReadStep:
    """Each tuple with the rows that the query finds for it. Marks pass."""

    database: Database
    sql: str
    columns: str

    @property
    def computes(self) -> dict[str, str]:
        """What of it counts as its definition (`flow_identity`)."""
        return {"sql": self.sql, "schema": self.columns}

    def __call__(self, frame: DataFrame) -> DataFrame:
        names = _known(self.sql, frame)
        added = T.StructType.fromDDL(self.columns)
        schema = T.StructType([*frame.schema.fields, *added.fields])
        arrow = to_arrow_schema(schema, timezone="UTC")
        database, sql, width = self.database, self.sql, len(added.fields)
        marked = "tuple_type" in frame.columns

        def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                if not batch.num_rows:
                    continue
                rows = pa.Table.from_batches([batch])
                marks = None
                if marked:
                    is_mark = pa.compute.equal(rows["tuple_type"], int(TupleType.BOUNDARY))
                    marks, rows = rows.filter(is_mark), rows.filter(pa.compute.invert(is_mark))
                places, found = read_rows(database, sql, pl.from_arrow(rows), names, width)  # type: ignore[arg-type]
                taken = rows.take(pa.array(places, pa.int64()))
                new = [_column([r[i] for r in found], arrow.field(len(rows.schema) + i).type) for i in range(width)]
                yield from pa.Table.from_arrays([*taken.columns, *new], schema=arrow).to_batches()
                if marks is not None and marks.num_rows:
                    empty = [pa.nulls(marks.num_rows, arrow.field(len(rows.schema) + i).type) for i in range(width)]
                    yield from pa.Table.from_arrays([*marks.columns, *empty], schema=arrow).to_batches()

        return frame.mapInArrow(read, schema)


def _column(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Decimals are bounded before Arrow sees them; a database may have more digits than memory has (X5)."""
    if pa.types.is_decimal(kind):
        values = [None if value is None else exact_decimal(value, kind) for value in values]
    return pa.array(values, kind)


def _identity(output: Output) -> str:
    """What tells this update's notes from those of others in the same database, whose streams may have the same name.
    While the stream is not there, only the columns of the stage are asked for."""
    try:
        return StreamStore(output.root).open(output.stream).definition.id
    except UnknownStream:
        return output.stream


class UpdateStage(StatefulStage):
    name = "update"

    def __init__(self, database: Database, sql: str, by: tuple[Any, ...]) -> None:
        self.database, self.sql, self.by = database, sql, by

    def plan(
        self, frame: DataFrame, inputs: Inputs, scratch: Scratch, policy: Continuous | None, output: Output | None
    ) -> tuple[list[Column], StagePlan, T.StructType]:
        if policy is not None or output is None:
            raise UsageError("an update keeps no state to checkpoint, and writes its outcome to a stream; use write")
        names = _known(self.sql, frame)
        kept = [f for f in frame.schema if f.name not in (*HEADER, "_src", STREAM_COLUMN)]
        columns, _, _ = grouped(frame, self.by, 0)
        columns += [F.col(f.name).alias(f"_v{i}") for i, f in enumerate(kept)]
        of = {f.name: f"_v{i}" for i, f in enumerate(kept)}
        kernel = UpdateKernel(self.database, self.sql, f"{_identity(output)}/{self.name}", {n: of[n] for n in names},
                              tuple(of.values()))  # fmt: skip
        schema = T.StructType([T.StructField("stime", T.TimestampType()), *kept, T.StructField("rows", T.LongType())])
        plan = StagePlan(scratch.operator, kernel, False, to_arrow_schema(schema, timezone="UTC"),
                         ("stime", *of.values(), "rows"), inputs.order_us, scratch, None, output)  # fmt: skip
        return columns, plan, schema
