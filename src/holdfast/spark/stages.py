"""What an operator with state must be able to do to become a stage of a query."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from holdfast.model.errors import UsageError
from holdfast.model.tuples import TupleType
from holdfast.operators.numbering import NULL_KEY
from holdfast.protocol.cec.policy import Continuous
from holdfast.spark import checkpoint_figures, control
from holdfast.spark.restore import NULLS_APART
from holdfast.spark.stage import StagePlan, mapped
from holdfast.spark.stage_files import Output
from holdfast.spark.versions import Scratch
from holdfast.stream.merge import MARKS

_WHOLE = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)


@dataclass(frozen=True)
class Inputs:
    streams: tuple[str, ...]
    bucket_us: tuple[int, ...]
    partitions: int
    parts: tuple[tuple[str, ...], ...] = ()
    """The streams of each part of a union; one stream may stand in several."""

    @property
    def order_us(self) -> int:
        """Batches end on multiples of this, so the order within it does not depend on where they end."""
        return math.gcd(*self.bucket_us)


class StatefulStage(ABC):
    name: str
    salt: int = 0
    several_keys: bool = False
    """It has groups of more than one column, and keeps state by their number."""

    def direct(self, schema: T.StructType, inputs: Inputs) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
        """Key and value columns if the operator can read the streams itself; None if it needs Spark in between."""
        return None

    @abstractmethod
    def plan(
        self, frame: DataFrame, inputs: Inputs, scratch: Scratch, policy: Continuous | None, output: Output | None
    ) -> tuple[list[Column], StagePlan, T.StructType]:
        """The columns that go into the stage, what it does, and what comes out."""


#: Streams that one part of a union may read; the number of a tuple's input stays unique below it.
SOURCES_MAX = 64
#: From here up, a tuple's number says which of a union's parts it came through. Below it fit 2^50 tuples of a stream.
PART_BIT = 56


def resolved(given: Any) -> Column:
    return F.expr(given) if isinstance(given, str) else given


def grouped(
    frame: DataFrame, by: tuple[Any, ...], salt: int, operator: str = ""
) -> tuple[list[Column], tuple[str, ...], list[T.StructField]]:
    """The columns `_h` (number of the group) and `_k…` (the key), and the key's fields as the user knows them.

    Spark's hash passes nulls over, so that (null, x) and (x, null) are one to it. An operator whose name says so
    numbers them apart; one that has numbered groups without that before goes on as it began (`restore.operator_name`).
    """
    fields = list(frame.select(*[resolved(c) for c in by]).schema) if by else []
    names = [f.name for f in fields]
    if len(set(names)) != len(names):
        raise UsageError(f"groups need different names; got {', '.join(names)}; use .alias")
    columns = [resolved(c) for c in by]
    if not columns:
        return [F.lit(0).cast("long").alias("_h")], ("_h",), []
    if len(columns) == 1 and isinstance(fields[0].dataType, _WHOLE):
        key = columns[0].cast("long")
        refused = F.raise_error(F.lit(f"a key must not be {NULL_KEY}")).cast("long")
        number = F.when(key == NULL_KEY, refused).otherwise(F.coalesce(key, F.lit(NULL_KEY)))
        return [number.alias("_h")], ("_h",), fields
    nulls = [c.isNull() for c in columns] if operator.endswith(NULLS_APART) else []
    number = F.xxhash64(F.lit(salt), *columns, *nulls)
    keys = [c.alias(f"_k{i}") for i, c in enumerate(columns)]
    return [number.alias("_h"), *keys], tuple(f"_k{i}" for i in range(len(columns))), fields


def staged(frame: DataFrame, columns: list[Column], inputs: Inputs, plan: StagePlan, schema: T.StructType) -> DataFrame:
    """Rows go to the partition of their group, marks to all, and the stage runs over each partition."""
    header = [c for c in ("tuple_type", "tuple_id", "stime", "_src") if c in frame.columns]
    selected = frame.select(*header, *columns)
    is_mark = F.col("tuple_type") == F.lit(int(TupleType.BOUNDARY))
    number = F.when(is_mark, (F.col("tuple_id") / MARKS).cast("int"))
    number = number.otherwise(F.pmod(F.hash(F.col("_h")), F.lit(inputs.partitions)))
    moved = selected.repartitionById(inputs.partitions, number.cast("int"))
    return moved.mapInArrow(mapped(plan), schema)


def with_control(schema: T.StructType, policy: Continuous | None) -> T.StructType:
    if policy is None:
        return schema
    hidden = [T.StructField(control.COLUMN, T.BinaryType()), T.StructField(control.FIGURES, checkpoint_figures.TYPE)]
    return T.StructType([*schema.fields, *hidden])
