"""Which of several rows a deduplication keeps: the first in the order of the inputs, however they are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import holdfast
from holdfast.spark import read_stream
from holdfast.spark.node import SparkQueries
from tests.spark.conftest import fill, layout


@pytest.fixture
def inputs(store: holdfast.StreamStore) -> holdfast.StreamStore:
    """Keys that come once more: in the same bucket, in the other stream, in a later bucket."""
    fill(store, "a", [(i / 4, f"k{i % 7}", i) for i in range(24)])
    fill(store, "b", [(i / 4 + 0.1, f"k{i % 11}", 100 + i) for i in range(24)])
    return store


def test_the_first_row_stays_however_the_inputs_are_cut_into_batches(
    spark: SparkSession, inputs: holdfast.StreamStore, tmp_path: Path
) -> None:
    """D9."""

    def kept(output: str, **options: Any) -> list[Any]:
        rows = read_stream(spark, "a", "b", root=str(inputs.root), tasks=1, **options)
        once = rows.select("stime", "key", "value").dropDuplicates(["key"])
        writer = once.writeStream.format("holdfast").option("root", str(inputs.root)).option("create", "true")
        writer = writer.option("bucket", "1s").option("checkpointLocation", str(tmp_path / output))
        query = writer.trigger(availableNow=True).start(output)
        assert query.awaitTermination(120), "the query must come to its end"
        return layout(inputs.open(output))

    whole = kept("whole")
    assert sum(extent[2] for extent in whole) == 11, "one row of each key"
    assert kept("bucketwise", maxRowsPerBatch=1) == whole


def test_a_node_that_deduplicates_by_some_columns_reads_each_batch_in_one_task(
    spark: SparkSession, inputs: holdfast.StreamStore
) -> None:
    """Rows of several tasks come to a shuffle's other side in the order in which they are fetched."""

    def described(name: str, *keys: str) -> str:
        app = holdfast.App("once", root=inputs.root)

        @app.node(inputs=["a", "b"], output=f"of-{name}", name=name)
        def once(rows: DataFrame) -> DataFrame:
            return rows.select("stime", "key", "value").dropDuplicates(list(keys))

        home = Path(inputs.root) / ".holdfast" / name
        node = SparkQueries(spark, app.diagram().nodes[0], [inputs.open("a"), inputs.open("b")], inputs.root, home)
        return str(node._results(decision=str(node.decision))._jdf.queryExecution().analyzed().toString())

    assert "tasks=1" in described("some", "key")
    assert "tasks=1" not in described("all", "stime", "key", "value")
