"""Results of a streaming query to the stripes of a stream: deals the rows to as many tasks, one for each stripe.

Rules:
1. By the key, as producers deal (`stripes`), where the stream has one; in turn otherwise. In turn is by a hash of the
   row here, because a batch that is executed again must deal its rows as it did.
2. The column `STRIPE` says which one it is. The sink compares it with the task that has the row, and leaves it out.
"""

from __future__ import annotations

import os

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import ArrayType, BinaryType, DataType, MapType, StructType

from holdfast.model.errors import SchemaError, UsageError
from holdfast.spark.striped_sink import STRIPE
from holdfast.spark.time_column import time_path
from holdfast.stream.store import StreamStore
from holdfast.stream.stripes import Stripes


def to_stripes(
    frame: DataFrame, stream: str, *, root: str | os.PathLike[str] | None = None, stime: str | None = None
) -> DataStreamWriter:
    """The writer of a streaming frame to a striped stream: `.option("checkpointLocation", …).start()` starts it.

    `stime` names the column that gives stime, as the option of the format does.
    """
    where = root or os.environ.get("HOLDFAST_ROOT")
    if where is None:
        raise UsageError("say where the streams are: root='streams/' or the variable HOLDFAST_ROOT")
    striped = StreamStore(where).open_striped(stream)
    path = time_path(frame.schema, stime, f"the query of {stream}")
    missing = [name for name in striped.definition.schema.names if name not in frame.columns]
    if missing:
        raise SchemaError(
            f"stream {stream} has the columns ({striped.definition.columns}); the query gives none of the name "
            f"{', '.join(missing)}; select and cast to fit"
        )
    columns = list(dict.fromkeys([path[0], *striped.definition.schema.names]))
    stripe = _stripe(frame, striped.dealing, columns).cast("int")
    dealt = frame.withColumn(STRIPE, stripe).repartitionById(striped.dealing.stripes, F.col(STRIPE))
    options = {"root": str(os.path.abspath(where)), "stream": stream, "stime": ".".join(path)}
    return dealt.writeStream.format("holdfast").options(**options)


def _stripe(frame: DataFrame, dealing: Stripes, columns: list[str]) -> Column:
    """Rule 1."""
    if dealing.by is not None:
        key = F.col(f"`{dealing.by}`")
        if not isinstance(frame.schema[dealing.by].dataType, BinaryType):
            key = key.cast("string")
        return F.coalesce(F.crc32(key), F.lit(0)) % dealing.stripes
    hashed = [F.col(f"`{name}`") for name in columns if not _has_map(frame.schema[name].dataType)]
    return F.pmod(F.hash(*hashed), F.lit(dealing.stripes))


def _has_map(kind: DataType) -> bool:
    """Spark refuses to hash maps: equal ones may differ in their order."""
    if isinstance(kind, ArrayType):
        return _has_map(kind.elementType)
    if isinstance(kind, StructType):
        return any(_has_map(field.dataType) for field in kind)
    return isinstance(kind, MapType)
