"""Spark reads a batch again after a failure and remembers what it wrote: it needs streams that are persisted always."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import holdfast
from holdfast.model.errors import UsageError
from holdfast.spark.sink import Target
from holdfast.spark.source import BucketReader, RangeReader


@pytest.mark.parametrize("persist", ["on_demand", "never"])
def test_streaming_queries_refuse_what_may_not_be_there_again(tmp_path: Path, persist: Any) -> None:
    holdfast.open(tmp_path).create("s", "n bigint", persist=persist)
    given = {"root": str(tmp_path), "path": "s"}
    with pytest.raises(UsageError, match="a streaming query of Spark that reads it must find every tuple"):
        BucketReader(given)
    columns = pa.schema([("stime", pa.timestamp("us", tz="UTC")), ("n", pa.int64())])
    with pytest.raises(UsageError, match="a query of Spark that writes it must find every tuple"):
        Target(given, columns)
    RangeReader(given)  # What is there is read as any past.
