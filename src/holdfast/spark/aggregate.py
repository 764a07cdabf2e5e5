"""The aggregate as a stage of a query."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import polars as pl
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema

from holdfast.model.errors import UsageError
from holdfast.operators.decimals import avg_type, sum_type
from holdfast.operators.functions import Function
from holdfast.operators.kernel import aggregate_kernel
from holdfast.operators.plan import Plan
from holdfast.operators.windows import TimeWindow, Window
from holdfast.protocol.cec.policy import Continuous
from holdfast.spark.stage import Output, StagePlan
from holdfast.spark.stages import Inputs, StatefulStage, grouped, resolved, with_control
from holdfast.spark.versions import Scratch

WINDOW_START = "window_start"


class AggregateStage(StatefulStage):
    name = "aggregate"

    def __init__(self, functions: Sequence[Function], window: Window, by: tuple[Any, ...], salt: int) -> None:
        if not functions:
            raise UsageError("an aggregate needs one or more functions, for example count() or avg('price')")
        self.functions, self.window, self.by, self.salt = tuple(functions), window, by, salt
        self.several_keys = len(by) > 1

    def plan(
        self, frame: DataFrame, inputs: Inputs, scratch: Scratch, policy: Continuous | None, output: Output | None
    ) -> tuple[list[Column], StagePlan, T.StructType]:
        columns, keys, fields = grouped(frame, self.by, self.salt, scratch.operator)
        values, numbers = self._values(frame)
        types = {i: _polars(frame.select(v).schema[0].dataType) for i, v in enumerate(values)}
        own = {i: _polars(_result_type(f, None)) for i, f in enumerate(self.functions) if f.kind == "user"}
        # Spark's expressions stay in the driver: they cannot be sent to an executor.
        functions = [
            f if isinstance(f.column, str | None) else replace(f, column=str(f.column)) for f in self.functions
        ]
        kernel, keeps_panes = aggregate_kernel(self.window, Plan(functions, numbers, types, own), keys)
        columns += [v.alias(f"_v{i}") for i, v in enumerate(values)]
        if isinstance(self.window, TimeWindow) and self.window.on is not None:
            columns.append(F.unix_micros(F.col(self.window.on)).alias("_a"))
        given = [frame.select(v).schema[0].dataType for v in values]
        schema, names = self._schema(fields, keys, numbers, given)
        stage = StagePlan(
            scratch.operator, kernel, keeps_panes, to_arrow_schema(with_control(schema, policy), timezone="UTC"), names,
            inputs.order_us, scratch, policy, output,
        )  # fmt: skip
        return columns, stage, with_control(schema, policy)

    def direct(self, schema: T.StructType, inputs: Inputs) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
        values = list(dict.fromkeys(f.column for f in self.functions if isinstance(f.column, str)))
        names = [*self.by, *(f.column for f in self.functions if f.column is not None)]
        if getattr(self.window, "on", None) or not all(isinstance(n, str) and n in schema.names for n in names):
            return None
        if {"stream", "tuple_id", "tuple_type", "stime"} & set(names):
            return None
        return self.by, tuple(values)

    def _values(self, frame: DataFrame) -> tuple[list[Column], list[int | None]]:
        """The value columns, each once, and which of them each function takes."""
        known: dict[str, int] = {}
        columns: list[Column] = []
        numbers: list[int | None] = []
        for function in self.functions:
            if function.column is None:
                numbers.append(None)
                continue
            column = resolved(function.column)
            text = str(column)
            if text not in known:
                known[text] = len(columns)
                columns.append(column)
            numbers.append(known[text])
        return columns, numbers

    def _schema(
        self, fields: list[T.StructField], keys: tuple[str, ...], numbers: list[int | None], given: list[T.DataType]
    ) -> tuple[T.StructType, tuple[str, ...]]:
        """The result's columns, and what each is called in the kernel."""
        made = [T.StructField("stime", T.TimestampType())]
        names = ["stime"]
        if isinstance(self.window, TimeWindow):
            made.append(T.StructField(WINDOW_START, T.TimestampType()))
            names.append("_w")
        for field, key in zip(fields, keys, strict=False):
            made.append(T.StructField(field.name, field.dataType))
            names.append(key)
        for function, number in zip(self.functions, numbers, strict=True):
            kind = _result_type(function, None if number is None else given[number])
            made.append(T.StructField(function.name, kind))
            names.append(function.name)
        if len({f.name for f in made}) != len(made):
            raise UsageError(f"results need different names; got {', '.join(f.name for f in made)}; use .alias")
        return T.StructType(made), tuple(names)


def _result_type(function: Function, given: T.DataType | None) -> T.DataType:
    if function.kind in ("count", "count_distinct"):
        return T.LongType()
    if function.kind == "user":
        assert function.user is not None
        return T.StructType.fromDDL(f"x {function.user.type}")[0].dataType
    assert given is not None
    if isinstance(given, T.DecimalType) and function.kind in ("sum", "avg"):
        rule = sum_type if function.kind == "sum" else avg_type
        return T.DecimalType(*rule(given.precision, given.scale))
    if function.kind == "sum":
        return T.DoubleType() if isinstance(given, T.FractionalType) else T.LongType()
    if function.kind == "avg":
        return T.DoubleType()
    return given


def _polars(kind: T.DataType) -> pl.DataType:
    field = to_arrow_schema(T.StructType([T.StructField("x", kind)]), timezone="UTC")
    return pl.from_arrow(pa.table([pa.nulls(0, field[0].type)], schema=field))["x"].dtype  # type: ignore
