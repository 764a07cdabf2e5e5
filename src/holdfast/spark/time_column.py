"""Which column of a result has its time.

Spark notes in the metadata of a column that it carries event time, also of a window and under another name. That note,
not the name, says which column gives a result its stime. (Every worker that writes imports this: it stays small.)
"""

from __future__ import annotations

from pyspark.sql.types import StructType, TimestampType

from holdfast.model.errors import SchemaError

#: The key of Spark's note; its value is the delay in milliseconds.
DELAY = "spark.watermarkDelayMs"


def time_path(schema: StructType, named: str | None, whose: str) -> tuple[str, ...]:
    """Where in a result its stime is found: a column, or the end of a window (rule 1)."""
    path = tuple(named.split(".")) if named else _marked(schema, whose)
    kind = schema
    for step in path:
        if not isinstance(kind, StructType) or step not in kind.names:
            raise SchemaError(
                f"a result needs an stime: {'.'.join(path)} was named for it; {whose} gives ({_text(schema)}); name a "
                f"column that is there, for each output its own where there are several (stime={{'output': 'column'}})"
            )
        kind = kind[step].dataType
    if isinstance(kind, StructType) and "end" in kind.names:
        path, kind = (*path, "end"), kind["end"].dataType
    if not isinstance(kind, TimestampType):
        raise SchemaError(
            f"the column that gives stime must be a timestamp or a window; {'.'.join(path)} of {whose} is "
            f"{kind.simpleString()}"
        )
    return path


def _marked(schema: StructType, whose: str) -> tuple[str, ...]:
    times = [f.name for f in schema if DELAY in (f.metadata or {})]
    if "stime" in schema.names:
        return ("stime",)
    if len(times) == 1:
        return (times[0],)
    if times:
        raise SchemaError(
            f"a result needs one stime; {whose} gives several columns with event time: {', '.join(times)}; say which "
            f"one it is (stime={times[0]!r}), or select only one"
        )
    if "window" in schema.names:
        return ("window",)
    raise SchemaError(
        f"a result needs an stime: a column `stime`, one with event time, a window, or the one that stime= names; "
        f"{whose} gives ({_text(schema)})"
    )


def _text(schema: StructType) -> str:
    return ", ".join(f"{f.name} {f.dataType.simpleString()}" for f in schema)
