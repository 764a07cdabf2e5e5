"""Notes that this version of our rules has made are still right: whoever changes what they say raises `RULES` (C12)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import holdfast
from holdfast.operators.functions import count
from holdfast.operators.windows import time_window
from holdfast.spark import flow_of
from holdfast.spark.node import SparkQueries
from holdfast.stream.frame import crc32c
from holdfast.stream.identity import read_identity

#: Checksums of what is noted, by Spark and by our rules. With another text under the same rules, everybody's node would
#: be refused as changed at its next start. No functions of Python: their code differs between Pythons.
NOTED = {
    "4.3.0, rules 4": {
        "window": "04fb156d", "join": "d190cee1", "outer join": "3beee387", "deduplication": "e7311f9a",
        "flow": "779de925",
    },
}  # fmt: skip
NODES: dict[str, tuple[list[str], Callable[..., Any]]] = {
    "window": (["a"], lambda a: a.groupBy(F.window("stime", "2 seconds"), "k").agg(F.sum("v").alias("v"))),
    "join": (
        ["a", "b"],
        lambda a, b: a.join(b, a.k == b.k).select(F.greatest(a.stime, b.stime).alias("stime"), a.k, b.v),
    ),
    "outer join": (
        ["a", "b"],
        lambda a, b: a.alias("l").join(
            b.alias("r"), F.expr("l.k = r.k and r.stime between l.stime and l.stime + interval 1 second"), "left"
        ).select("l.stime", "l.k", "r.v"),
    ),
    "deduplication": (
        ["a"], lambda a: a.withWatermark("stime", "1 second").dropDuplicatesWithinWatermark(["k"]).select("stime", "k"),
    ),
    "flow": (["a"], lambda a: flow_of(a).filter(F.col("v") > 2).aggregate(count(), window=time_window("2s"), by="k")),
}  # fmt: skip


@pytest.mark.parametrize("kind", NODES)
def test_the_note_of_a_node_is_what_it_was(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    inputs, function = NODES[kind]
    app = holdfast.App("noted")
    app.node(inputs=inputs, name="node", output="results")(function)
    store = holdfast.open(tmp_path / "streams")
    streams = [store.create(name, "k bigint, v bigint", bucket="1s") for name in inputs]
    home = tmp_path / "home"
    queries = SparkQueries(spark, app.diagram().node("node"), streams, tmp_path / "streams", home)
    queries.create_output(1_000_000)
    (note,) = home.rglob("identity")
    found = read_identity(note.parent)
    assert found is not None
    assert found.spark in NOTED, "note here what nodes are with this Spark and these rules"
    text = "\n".join(found.lines)
    assert f"{crc32c(text.encode()):08x}" == NOTED[found.spark][kind], text
