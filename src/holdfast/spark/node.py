"""The queries of one replica on Spark: the stable one, and at most one fork of it at a time.

Rules:
1. Both are the user's function over the same inputs and differ only in where they read from (a decision, a plan), where
   they write to (main, the branch) and which checkpoint they hold (`holdfast.spark.node_checkpoint`).
2. Each runs in a scheduler pool of its own, so that catching up on one side does not hold up news on the other.
3. The function may return a flow of Holdfast's own operators instead (`node_flow`). It is a description, so both
   queries are made of the same one.
4. What Spark's plan says of the function is asked once (`query_plan`): how the query must be run, and what its output
   may promise. A function that cannot be right is refused then, before anything runs.
5. A checkpoint on a filesystem of Hadoop's (`checkpoint_place`) is looked at by the threads that start queries, once
   for each start. From then on Spark's events say how far the query is: a filesystem that does not answer must not keep
   waiting who asks, the loop of a host.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import threading
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, cast

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.query import StreamingQuery

from holdfast.diagram import NodeSpec
from holdfast.engine import (
    Coverage,
    Description,
    Failure,
    Fork,
    Operator,
    Progress,
    Query,
    Reading,
    Saves,
    Work,
    create_output,
)
from holdfast.model.errors import UsageError
from holdfast.model.time import BEGINNING_US, instant_text
from holdfast.model.tuples import STREAM_COLUMN
from holdfast.spark import control
from holdfast.spark.arrivals import operators_in, stays_because
from holdfast.spark.batch_listener import BatchLog, follow, work_of
from holdfast.spark.checkpoint_figures import recovery_of
from holdfast.spark.checkpoint_place import CHECKPOINTS, checked_place, lies_elsewhere, settle_in, spark_part
from holdfast.spark.ending import lasts
from holdfast.spark.event_time import boundaries_instead_of_watermarks
from holdfast.spark.failure import cause, is_permanent, sentence
from holdfast.spark.flow import Flow
from holdfast.spark.frames import part_of, read_stream
from holdfast.spark.given_frames import call_alone, check_sources
from holdfast.spark.grants import noted_host
from holdfast.spark.hadoop_path import hadoop_path, unfit_manager
from holdfast.spark.keyed import check_names, forked_from, in_node
from holdfast.spark.leaked_listeners import remove_listener
from holdfast.spark.leaked_monitors import end_monitors
from holdfast.spark.leaked_references import collect_references, let_go
from holdfast.spark.leaked_selectors import close_leaked
from holdfast.spark.node_checkpoint import CheckpointedQueries, progress_of, query_id, states_beside, waiting_beside
from holdfast.spark.node_flow import NodeFlow
from holdfast.spark.node_identity import Admission, node_identity
from holdfast.spark.plan_identity import settings_line
from holdfast.spark.pools import fork_pool, stable_pool
from holdfast.spark.query_plan import QueryPlan, plan_of
from holdfast.spark.results import node_columns
from holdfast.spark.save_figures import saves_of
from holdfast.spark.session import make_active, moved_to, with_settings
from holdfast.spark.source import until_of
from holdfast.spark.time_column import time_path
from holdfast.stream.merge import FOREVER_US
from holdfast.stream.store import Stream, StreamStore

log = logging.getLogger(__name__)


class Standing(NamedTuple):
    """How far a query has come, and how often the boundary of each input had been taken back then."""

    progress: Progress
    mends: Mapping[str, int]
    planned: bool = False
    """Whether it was settled what the next batch reads, when the query did not run."""


class SparkQuery(Query):
    """One run of a query, as Spark runs it."""

    def __init__(
        self, query: StreamingQuery, session: SparkSession, before: Work | None = None, *, follow: bool = False
    ) -> None:
        """`follow`: `committed` is going to be asked."""
        self._query, self._session = query, session
        self._batches = BatchLog(before)
        self._followed = False
        if follow:
            self._follow()

    @property
    def active(self) -> bool:
        return bool(self._query.isActive)

    def failure(self) -> BaseException | None:
        return None if self._query.isActive else self._query.exception()

    def stop(self) -> None:
        try:
            self._query.stop()
        except Exception:  # It may have failed already.
            if self._query.isActive:
                raise
        self._tidy()

    def _tidy(self) -> None:
        """What is left of queries that were started; should that fail, it costs memory, descriptors and threads."""
        session, query = self._session, self._query
        for tidy in (
            lambda: close_leaked(session), lambda: end_monitors(session), lambda: remove_listener(session, query),
            lambda: let_go(query._jsq), collect_references,
        ):  # fmt: skip
            try:
                tidy()
            except Exception as error:
                log.debug("what is left of a query stays: %s", error)

    def _follow(self) -> None:
        if not self._followed:
            follow(self._query, self._session, self._batches)
            self._followed = True

    def reading(self) -> Reading | None:
        self._follow()
        last, work = self._batches.seen()
        return None if last is None else reading_of(last, work)

    @property
    def committed(self) -> Standing | None:
        """As Spark has told of the last batch; None before the first one."""
        last, _ = self._batches.seen()
        return None if last is None else standing_of(last)

    @property
    def busy(self) -> bool:
        """Whether it is in a batch."""
        return bool(self._query.status["isDataAvailable"])

    def saves(self) -> tuple[Saves, ...]:
        return saves_of(str(self._query.id))

    @property
    def work(self) -> Work | None:
        """All batches so far; None if nobody has asked."""
        return self._batches.seen()[1] if self._followed else None


def reading_of(progress: Mapping[str, Any], work: Work | None = None) -> Reading:
    """The work of a batch, as Spark tells it."""
    busy_ms, rows, parts_ms = work_of(progress)
    state = sum(int(operator["memoryUsedBytes"]) for operator in progress["stateOperators"])
    recovery = recovery_of(progress.get("observedMetrics"))
    span_us = _span_us(progress.get("sources", []))
    return Reading(int(progress["batchId"]), busy_ms, rows, state, span_us, parts_ms, recovery, work)


def standing_of(progress: Mapping[str, Any]) -> Standing:
    """After a batch, as Spark tells it. All inputs of ours have an end."""
    offsets = [_offset(source["endOffset"]) for source in progress["sources"]]
    mends = {name: int(n) for offset in offsets for name, n in cast(dict[str, int], offset.get("mends") or {}).items()}
    return Standing(Progress(int(progress["batchId"]), min(map(until_of, offsets), default=None)), mends)


def _offset(told: Any) -> dict[str, int]:
    """An event's JSON has the offset as it is, PySpark's progress as text."""
    return json.loads(told) if isinstance(told, str) else dict(told)  # type: ignore[no-any-return]


def _span_us(sources: Sequence[Mapping[str, Any]]) -> int | None:
    """The first batch has no beginning, and the last no end: those say nothing. Inputs move on together."""
    spans = []
    for source in sources:
        try:
            begin, end = (until_of(_offset(source[which])) for which in ("startOffset", "endOffset"))
        except (ValueError, TypeError, KeyError, AttributeError, UsageError):
            return 0 if source.get("startOffset") in (None, "null", "None") else None
        spans.append(max(0, end - begin) if begin > BEGINNING_US and end < FOREVER_US else 0)
    return max(spans, default=None)


class SparkQueries(CheckpointedQueries):
    """Describes the queries of one replica to Spark, and starts them."""

    def __init__(
        self, spark: SparkSession, node: NodeSpec, inputs: Sequence[Stream], outputs: Path, home: Path
    ) -> None:
        super().__init__(node, inputs, outputs, home)
        self._spark = spark
        self._stable: SparkQuery | None = None
        self._place: str | None = None
        self._looked = self._look()

    def explain(self, error: BaseException | None) -> Failure:
        return Failure(sentence(error), is_permanent(error), cause(error))

    @property
    def stays_because(self) -> str | None:
        return stays_because(self._operators, self._spark)

    def create_output(self, bucket_us: int) -> Stream:
        self._place = checked_place(self._spark.conf.get(CHECKPOINTS, None))
        frame = self._results(decision=str(self.decision))
        schema = to_arrow_schema(frame.schema, timezone="UTC")
        columns = node_columns(self._node, pa.schema([field for field in schema if field.name != control.COLUMN]))
        output = create_output(StreamStore(self._outputs), self._node, columns, bucket_us)
        found = node_identity(
            self._node,
            columns,
            bucket_us,
            frame if self._flow is None else self._flow.lines,
            settings_line(self._spark),
            {s.name: s.definition.id for s in self._inputs if self._home not in s.folder.parents},  # No mirrors.
        )
        flow = self._flow is not None or bool(self._operators)
        admission = Admission(self._node, self._home, self._beginning, output, found, flow=flow)
        self._beginning = admission.admitted(self._begin_life)
        self._looked = self._look()
        return StreamStore(self._outputs).add_columns(self._node.output, columns)

    def describe(self) -> Description:
        stime, query = self.inspected
        return Description(".".join(stime), query.behind_us, query.bucket_by_bucket, query.operators)

    def operators(self) -> tuple[Operator, ...]:
        if self._flow is not None:
            protections = [self._flow.protection] if self._flow.keeps_state else []
        else:
            protections = [operator.protection for operator in self._operators]
        own = [Operator(p.operator, p.kind, p.state.value, p.policy, p.saves, p.store) for p in protections]
        beside = ("Spark", "Spark's state", "every batch", "what has changed", "the query's checkpoint")
        of_spark = [Operator(name, *beside) for name in self._query.operators]
        return (*own, *of_spark)

    # -- the stable query --------------------------------------------------------------------------------------------

    def _look(self) -> Standing | None:
        """Rule 5; None: the checkpoint lies here, and is looked at when it is asked for."""
        if not lies_elsewhere(self.checkpoint):
            return None
        progress = super().position()
        return Standing(progress, super().mends(), super().planned(progress.batch_id + 1))

    def _standing(self, looked: Standing) -> Standing:
        told = None if self._stable is None else self._stable.committed
        return looked if told is None or told.progress.batch_id <= looked.progress.batch_id else told

    def position(self) -> Progress:
        return super().position() if self._looked is None else self._standing(self._looked).progress

    def mends(self) -> Mapping[str, int]:
        return super().mends() if self._looked is None else self._standing(self._looked).mends

    def progress(self, since: int, fork: Fork | None = None) -> Progress | None:
        if self._looked is None:
            return super().progress(since, fork)
        known: Standing | None = None
        if fork is None:
            known = self._standing(self._looked)
        elif isinstance(fork.query, SparkQuery):
            known = fork.query.committed
        return known.progress if known is not None and known.progress.batch_id > since else None

    def planned(self, batch_id: int) -> bool:
        if self._looked is None:
            return super().planned(batch_id)
        if self._looked.planned and batch_id == self._looked.progress.batch_id + 1:
            return True
        return self._stable is not None and self._stable.active and self._stable.busy

    def _settle(self) -> None:
        """See that the place of the checkpoint is fit for it, and then that it is there."""
        if self._place is not None or lies_elsewhere(self.checkpoint):
            part = spark_part(self.checkpoint)
            at = hadoop_path(self._place) if self._place is not None and isinstance(part, Path) else part
            if (unfit := unfit_manager(self._spark, at)) is not None:
                raise UsageError(f"node {self._node.name}: {unfit}")
            if noted_host() is None:
                raise UsageError(
                    f"node {self._node.name} must have its checkpoint at {at}, and the process in which Spark commits "
                    f"results must ask the driver for it; without a cluster, set spark.holdfast.executors to host"
                )
        settle_in(self.checkpoint, self._place, self._node.name)
        if not lies_elsewhere(self.checkpoint):
            return
        if self._stable is None:  # Left by a host that was killed. Now, since nobody waits here.
            for fork in (self._home / "forks").glob("*/checkpoint"):
                self._remove_fork(fork)

    def start_stable(self) -> Query:
        start, right_from = self._beginning.start_us, self._beginning.right_from_us
        if start is None and self._node.begin_us is not None:
            start = self._node.begin_us
            self._forget_start()
        self._settle()
        self._looked = self._look()
        source = {} if start is None else {"start": instant_text(start)}
        sink = {} if right_from is None else {"from": instant_text(right_from)}
        frame = self._results(decision=str(self.decision), **source)
        before = None if self._stable is None else self._stable.work
        started = self._start(frame, self._node.name, stable_pool(self._node.name), self.checkpoint, sink)
        self._stable = SparkQuery(started, self._session, before, follow=self._looked is not None)
        return self._stable

    def _run_fork(self, fork: int, checkpoint: Path, plan: Path, branch: str) -> Query:
        parent_batch, parent_us = progress_of(checkpoint)
        assert parent_us is not None
        if self._flow is not None:
            frame = self._flow.forked({"plan": str(plan)}, self._beginning.generation, fork, parent_us)
        else:
            with forked_from(query_id(self.checkpoint), states_beside(plan), parent_batch + 1):
                frame = self._results(plan=str(plan))
        name, pool = f"{self._node.name}-fork-{fork}", fork_pool(self._node.name)
        sink = {"branch": branch, "waiting": str(waiting_beside(plan))}
        started = self._start(frame, name, pool, checkpoint, sink)
        return SparkQuery(started, self._session, follow=lies_elsewhere(checkpoint))

    # -- frames ------------------------------------------------------------------------------------------------------

    def _results(self, **options: str) -> DataFrame:
        """What the function gives, over inputs that come as its query needs them."""
        if self._query.bucket_by_bucket:
            options["step"] = str(max(stream.definition.bucket_us for stream in self._inputs))
            options["timers"] = str(self._query.settles).lower()
        if self._query.in_order:
            options["tasks"] = "1"
        return self._described(self._boundaries, options)

    def _described(self, boundaries: str, options: dict[str, str]) -> DataFrame:
        if self._flow is not None:
            return self._flow.stable(options, self._beginning.generation)
        roots = json.dumps([str(stream.folder.parent) for stream in self._inputs])
        names = [stream.name for stream in self._inputs]
        frame = read_stream(
            self._spark, *names, boundaries=boundaries, roots=roots,
            streamColumn=str(self._node.separate or len(names) > 1).lower(), **options,
        )  # fmt: skip
        with in_node(self.checkpoint) as operators, boundaries_instead_of_watermarks(self._node.name):
            given = self._split(frame) if self._node.separate else [frame]
            results = call_alone(self._node.function, given, f"node {self._node.name}")
        if "plan" not in options:
            self._operators = operators
        stays = stays_because(operators, self._spark)
        if stays is not None and operators_in(self.checkpoint):
            raise UsageError(f"node {self._node.name} came from another owner and could not go back: {stays}")
        if isinstance(results, Flow):
            self._flow = NodeFlow(self._node, results, self._outputs, self._home, self._beginning.generation)
            return self._flow.stable(options, self._beginning.generation)
        if not isinstance(results, DataFrame) or not results.isStreaming:
            raise UsageError(
                f"node {self._node.name} must return a streaming DataFrame or a flow; got {type(results).__name__}; "
                f"return what your operators give, or a dict of frames and name its streams with outputs="
            )
        check_names(operators, results, f"node {self._node.name}")
        check_sources(results, frame, f"node {self._node.name}")
        return results

    def _split(self, frame: DataFrame) -> list[DataFrame]:
        """One source, taken apart by input: one offset and one watermark, so that no input stalls the others.

        Each input has columns of its own, as two streams have: of columns that are the same in both, Spark could not
        say whose `a.k == b.k` means.
        """
        columns = {s.name: s.definition.schema.names for s in self._inputs}
        return [
            part_of(frame, names, frame.filter(_comes_from(names)).select(
                *(F.col(c).alias(c) for c in ("tuple_type", "tuple_id", "stime", *columns[names[0]]))
            ))
            for names in self._node.frames
        ]  # fmt: skip

    @cached_property
    def inspected(self) -> tuple[tuple[str, ...], QueryPlan]:
        """Rule 4: where the result's time is found, and what its plan says."""
        whose = f"node {self._node.name}"
        frame = self._described("before", {"decision": str(self.decision)})
        stime = time_path(frame.schema, self._node.stime, whose)
        if self._flow is not None:
            return stime, QueryPlan()
        return stime, plan_of(frame, stime, whose)

    @property
    def _query(self) -> QueryPlan:
        return self.inspected[1]

    @cached_property
    def _session(self) -> SparkSession:
        """In which the queries are started. Functions are called in the user's own, where they find what he has put."""
        return with_settings(self._spark, self._query.settings) if self._query.settings else self._spark

    @property
    def _boundaries(self) -> str:
        """`exact` closes windows a bucket earlier, but is right only where no operator drops what lies at the
        watermark. Holdfast's own operators have no watermark."""
        if self._node.boundaries != "auto":
            return self._node.boundaries
        return "before" if self._query.drops_at_watermark else "exact"

    @property
    def coverage(self) -> Coverage:
        """What the plan says, or the user, who knows more of a function with a state of its own and of a flow."""
        unknown = self._flow is not None and self._flow.keeps_state
        query = dataclasses.replace(self._query, span_us=None) if unknown else self._query
        return query.coverage(self._node.convergent_us)

    def promised_us(self, until_us: int) -> int:
        if not self._query.keeps_rows:
            return until_us - self._query.behind_us
        # Spark counts its watermark in whole milliseconds.
        return until_us // 1000 * 1000 - self._query.behind_us - (1000 if self._boundaries == "before" else 0)

    def _start(
        self, frame: DataFrame, name: str, pool: str, checkpoint: Path, options: dict[str, str]
    ) -> StreamingQuery:
        if self._session is not self._spark:
            frame = moved_to(self._session, frame)
        writer = frame.writeStream.format("holdfast").queryName(name)
        writer = writer.option("checkpointLocation", str(spark_part(checkpoint)))
        writer = writer.option("root", str(self._outputs)).options(**options)
        writer = writer.option("stime", ".".join(self.inspected[0]))
        if self._query.keeps_rows:
            writer = writer.option("boundary", "watermark")
        else:
            # Holdfast's own operators, too, release what the end of a batch closes in the batch itself.
            writer = writer.option("boundary", "input")
        writer = writer.option("lag", f"{self._query.behind_us}us")
        if self._query.times_are_free:
            writer = writer.option("late", "lift")
        lasts(name)
        started: list[StreamingQuery | BaseException] = []

        def start() -> None:
            # Pool and session are properties of the thread that starts the query.
            try:
                make_active(self._session)
                self._spark.sparkContext.setLocalProperty("spark.scheduler.pool", pool)
                started.append(writer.start(self._node.output))
            except BaseException as error:
                started.append(error)

        thread = threading.Thread(target=start, name=f"start-{name}")
        thread.start()
        thread.join()
        if isinstance(started[0], BaseException):
            raise started[0]
        return started[0]


def _comes_from(names: tuple[str, ...]) -> Column:
    stream = F.col(STREAM_COLUMN)
    return stream == names[0] if len(names) == 1 else stream.isin(*names)
