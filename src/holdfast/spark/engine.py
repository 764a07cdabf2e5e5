"""Spark as the engine of a host: one session, made when the first query needs it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from holdfast.diagram import NodeSpec
from holdfast.engine import Engine, NodeQueries
from holdfast.inputs.source import EngineSource, SourceInput
from holdfast.model.errors import HoldfastError
from holdfast.spark.fork import renew_id
from holdfast.spark.ingest import SparkInput
from holdfast.spark.node import SparkQueries
from holdfast.spark.pools import pools_file
from holdfast.spark.query_start import take_up
from holdfast.spark.session import build_session, has_ended
from holdfast.stream.store import Stream, StreamStore


class SparkEngine(Engine):
    """`make` gives the session; it is called when one is first needed."""

    name = "Spark"
    errors = (HoldfastError, PySparkException)

    def __init__(self, make: Callable[[], SparkSession]) -> None:
        self._make = make
        self._spark: SparkSession | None = None

    def start(self) -> None:
        if self._spark is None:
            self._spark = self._make()

    @property
    def ended(self) -> str | None:
        if self._spark is None or not has_ended(self._spark):
            return None
        return "Spark has ended beneath it: its JVM is gone, or somebody stopped it"

    def queries(self, node: NodeSpec, inputs: Sequence[Stream], outputs: Path, home: Path) -> NodeQueries:
        assert self._spark is not None, "an engine is started before it is used"
        return SparkQueries(self._spark, node, inputs, outputs, home)

    def ingest(
        self, source: EngineSource, stream: str, store: StreamStore, home: Path, bucket_us: int | None
    ) -> SourceInput:
        assert self._spark is not None, "an engine is started before it is used"
        return SparkInput(source, stream, store, home, self._spark, bucket_us)

    def take_up(self, home: Path, checkpoint: Path, right_from_us: int | None) -> None:
        take_up(home, checkpoint, right_from_us)

    def renew(self, checkpoint: Path) -> None:
        renew_id(checkpoint, durable=True)


def node_session(name: str, nodes: Iterable[str] = (), *, master: str | None = None, **settings: str) -> SparkSession:
    """A session in which the stable queries and forks of these nodes get their fair shares."""
    fair = {"spark_scheduler_mode": "FAIR"}
    # Not to be removed when Spark has started: the next session of this process reads it again.
    if (pools := pools_file(nodes)) is not None:
        fair["spark_scheduler_allocation_file"] = pools.as_uri()
    return build_session(name, master=master, **{**fair, **settings})
