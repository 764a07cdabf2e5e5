"""Join and BSort as stages of a query."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema

from holdfast.model.errors import UsageError
from holdfast.model.tuples import HEADER, STREAM_COLUMN
from holdfast.operators.join_kernel import JoinKernel, Keep
from holdfast.operators.sorting import SortKernel
from holdfast.protocol.cec.policy import Continuous
from holdfast.spark.stage import Output, StagePlan
from holdfast.spark.stages import PART_BIT, SOURCES_MAX, Inputs, StatefulStage, grouped, resolved, with_control
from holdfast.spark.versions import Scratch


class JoinStage(StatefulStage):
    name = "join"

    def __init__(
        self, left: str, right: str, by: tuple[Any, ...], keeps: tuple[Keep, Keep], lefts: Mapping[str, Any],
        rights: Mapping[str, Any], salt: int,
    ) -> None:  # fmt: skip
        if left == right or not lefts or not rights:
            raise UsageError("a join needs two different streams and one or more columns of each")
        if set(lefts) & set(rights):
            raise UsageError(f"columns of a join need different names; both sides have {set(lefts) & set(rights)}")
        self.left, self.right, self.by, self.keeps, self.salt = left, right, by, keeps, salt
        self.lefts, self.rights, self.several_keys = dict(lefts), dict(rights), len(by) > 1

    def plan(
        self, frame: DataFrame, inputs: Inputs, scratch: Scratch, policy: Continuous | None, output: Output | None
    ) -> tuple[list[Column], StagePlan, T.StructType]:
        missing = {self.left, self.right} - set(inputs.streams)
        if missing or len(inputs.streams) != 2:
            raise UsageError(
                f"a join reads exactly the two streams it names; got {', '.join(inputs.streams)}; "
                f"write flow(spark, {self.left!r}, {self.right!r})"
            )
        columns, keys, fields = grouped(frame, self.by, self.salt, scratch.operator)
        side = F.when(F.col(STREAM_COLUMN) == self.right, F.lit(1)).otherwise(F.lit(0)).cast("long")
        number = F.col("tuple_id") * 2 + side + F.shiftleft(_occurrence(inputs), PART_BIT)
        columns += [side.alias("_side"), number.alias("_w")]
        names, made = ["stime"], [T.StructField("stime", T.TimestampType())]
        for field, key in zip(fields, keys, strict=False):
            names.append(key)
            made.append(T.StructField(field.name, field.dataType))
        taken: tuple[list[str], list[str]] = ([], [])
        for number, (name, given) in enumerate([*self.lefts.items(), *self.rights.items()]):
            column = resolved(given)
            columns.append(column.alias(f"_v{number}"))
            taken[number >= len(self.lefts)].append(f"_v{number}")
            names.append(f"_v{number}")
            made.append(T.StructField(name, frame.select(column).schema[0].dataType))
        kernel = JoinKernel(*self.keeps, keys, tuple(taken[0]), tuple(taken[1]))
        return columns, *_planned(kernel, made, names, inputs, scratch, policy, output)


class SortStage(StatefulStage):
    name = "bsort"

    def __init__(self, value: Any, size: int, by: tuple[Any, ...], salt: int) -> None:
        if size < 1:
            raise UsageError(f"the buffer of a sort must hold 1 tuple or more; got {size}")
        self.value, self.size, self.by, self.salt = value, size, by, salt
        self.several_keys = len(by) > 1

    def plan(
        self, frame: DataFrame, inputs: Inputs, scratch: Scratch, policy: Continuous | None, output: Output | None
    ) -> tuple[list[Column], StagePlan, T.StructType]:
        columns, keys, _ = grouped(frame, self.by, self.salt, scratch.operator)
        source = (F.col("_src") if "_src" in frame.columns else F.lit(0)).cast("long")
        number = F.col("tuple_id") * SOURCES_MAX + source % SOURCES_MAX
        columns.append((number + F.shiftleft(_part(source), PART_BIT)).alias("_w"))
        kept = [f for f in frame.schema if f.name not in (*HEADER, "_src", STREAM_COLUMN)]
        columns.append(resolved(self.value).alias("_v0"))
        columns += [F.col(f.name).alias(f"_v{i}") for i, f in enumerate(kept, 1)]
        names = ["stime", *(f"_v{i}" for i in range(1, len(kept) + 1))]
        made = [T.StructField("stime", T.TimestampType()), *kept]
        kernel = SortKernel(self.size, keys, tuple(f"_v{i}" for i in range(1, len(kept) + 1)))
        return columns, *_planned(kernel, made, names, inputs, scratch, policy, output)


def _part(source: Column) -> Column:
    """Which of a union's parts a tuple came through."""
    return F.floor(source / SOURCES_MAX).cast("long")


def _occurrence(inputs: Inputs) -> Column:
    """How many parts before a tuple's own have its stream, too: it has a twin in each of them."""
    found = F.lit(0)
    for number, streams in enumerate(inputs.parts):
        for stream in streams:
            before = sum(stream in earlier for earlier in inputs.parts[:number])
            if before:
                mine = (_part(F.col("_src")) == number) & (F.col(STREAM_COLUMN) == stream)
                found = F.when(mine, F.lit(before)).otherwise(found)
    return found.cast("long")


def _planned(
    kernel: Any, made: list[T.StructField], names: list[str], inputs: Inputs, scratch: Scratch,
    policy: Continuous | None, output: Output | None,
) -> tuple[StagePlan, T.StructType]:  # fmt: skip
    schema = with_control(T.StructType(made), policy)
    plan = StagePlan(scratch.operator, kernel, False, to_arrow_schema(schema, timezone="UTC"), tuple(names),
                     inputs.order_us, scratch, policy, output)  # fmt: skip
    return plan, schema
