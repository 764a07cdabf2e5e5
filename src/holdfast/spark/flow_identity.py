"""What a flow computes, as lines of text (see `plan_identity`): its streams, steps, window, functions and keys.

Rules:
1. It is told from the description that the user gave, and not from the plan that this becomes: how an operator reads
   its input and where it runs may change with Holdfast.
2. Expressions count as Spark understands them over the columns that they see: "price" and F.col("price") are one.
3. Where a database is, and how state is protected, is no part of it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from holdfast.model.time import duration_text
from holdfast.spark.fingerprint import fingerprint, plain_path
from holdfast.spark.plan_identity import plan_lines

if TYPE_CHECKING:
    from holdfast.spark.flow import Flow

#: Settings of operators and steps whose texts are SQL.
_EXPRESSIONS = frozenset({"by", "column", "columns", "condition", "lefts", "rights", "value"})
#: Settings that follow from others, or are no part of the results (rule 3).
_ASIDE = frozenset({"database", "several_keys"})
#: Settings that are lengths of time.
_SPANS = ("size_us", "advance_us", "timeout_us", "time_us")
Step = Callable[[DataFrame], DataFrame]


def flow_lines(flow: Flow, columns: DataFrame, made: Callable[[], StructType]) -> list[str]:
    """`columns` are the streams as they are read; `made` says what the operator with state gives."""
    lines = [f"Input {','.join(flow.streams)} [{_schema(columns.schema)}]"]
    before, described = _steps(flow.before, columns)
    lines += described
    if flow.stage is not None:
        lines.append(f"operator {flow.stage.name}")
        for name, value in sorted(vars(flow.stage).items()):
            lines += _indented(_setting(name, value, before))
    if flow.after:  # Asking Spark for the columns of a stage takes it a moment.
        lines += _steps(flow.after, flow.spark.createDataFrame([], made()))[1]
    return lines


def _steps(steps: Sequence[Step], frame: DataFrame) -> tuple[DataFrame, list[str]]:
    """The frame behind the steps, and what they are."""
    lines: list[str] = []
    for step in steps:
        lines.append(f"step {type(step).__name__.strip('_').lower()}")
        for streams, inner in getattr(step, "parts", ()):
            lines += _indented([f"of {','.join(streams)}", *_indented(_steps(inner, frame)[1])])
        if not hasattr(step, "parts"):
            lines += _indented(_fields(step, "", frame))
        frame = step(frame)
    return frame, lines


def _setting(name: str, value: Any, frame: DataFrame) -> list[str]:
    path = name.split(".")
    if path[-1] in _ASIDE:
        return []
    if isinstance(value, Column) or (isinstance(value, str) and _EXPRESSIONS & set(path[:1] + path[-1:])):
        return _expression(name, value, frame)
    if isinstance(value, Mapping):
        return [line for key, item in value.items() for line in _setting(f"{name}.{key}", item, frame)]
    if isinstance(value, list | tuple):
        return [line for at, item in enumerate(value) for line in _setting(f"{name}.{at}", item, frame)]
    if hasattr(value, "computes") or dataclasses.is_dataclass(value):
        return [f"{name}: {type(value).__name__}", *_fields(value, f"{name}.", frame)]
    if type(value) is int and name.endswith(_SPANS):
        return [f"{name}: {duration_text(value)}"]
    if isinstance(value, str | int | float | None):
        return [f"{name}: {plain_path(value) if isinstance(value, str) else value}"]
    return [f"{name}: {type(value).__name__}, code {fingerprint(value)}"]


def _fields(value: Any, prefix: str, frame: DataFrame) -> list[str]:
    fields = getattr(value, "computes", None)
    if fields is None:
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return [line for name, item in fields.items() for line in _setting(f"{prefix}{name}", item, frame)]


def _expression(name: str, given: Column | str, frame: DataFrame) -> list[str]:
    """Rule 2."""
    first, *rest = plan_lines(frame.select(F.expr(given) if isinstance(given, str) else given), tables=False)
    text = first.removeprefix("Project [").removesuffix("]")
    return [f"{name}: {text}", *(line for line in rest if line.startswith(("function ", "text ")))]


def _schema(schema: StructType) -> str:
    return ", ".join(f"{field.name}: {field.dataType.simpleString()}" for field in schema)


def _indented(lines: Iterable[str]) -> list[str]:
    return [f"  {line}" for line in lines]
