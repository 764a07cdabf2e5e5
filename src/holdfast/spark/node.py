"""The queries of one replica: the stable one, and at most one fork of it at a time.

Rules:
1. Both are the user's function over the same inputs and differ only in where they read from (a decision, a plan), where
   they write to (main, the branch) and which checkpoint they hold.
2. A fork starts from the parent's last commit together with the results that the parent has computed and not yet filed:
   they are no longer in the query's state, so the fork could not compute them again.
3. Each runs in a scheduler pool of its own, so that catching up on one side does not hold up news on the other.
4. The function may return a flow of Holdfast's own operators instead (`node_flow`). It is a description, so both
   queries are made of the same one.
5. What Spark's plan says of the function is asked once (`query_plan`): how the query must be run, and what its output
   may promise. A function that cannot be right is refused then, before anything runs.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import threading
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.query import StreamingQuery

from holdfast.clock import monotonic_us, pause
from holdfast.diagram import NodeSpec
from holdfast.model.errors import StorageError, UsageError
from holdfast.model.time import BEGINNING_US, SECOND_US, instant_text
from holdfast.model.tuples import STREAM_COLUMN
from holdfast.spark import control
from holdfast.spark.beginning import Beginning, begin_anew, load_beginning
from holdfast.spark.ending import lasts
from holdfast.spark.event_time import boundaries_instead_of_watermarks
from holdfast.spark.flow import Flow
from holdfast.spark.fork import fork_checkpoint, last_commit
from holdfast.spark.forked import ready_mark
from holdfast.spark.frames import part_of, read_stream
from holdfast.spark.keyed import forked_from, in_node
from holdfast.spark.keyed_moves import operators_in, pack_operators, stays_because
from holdfast.spark.keyed_task import Task
from holdfast.spark.node_flow import NodeFlow
from holdfast.spark.node_identity import Admission, node_identity
from holdfast.spark.pools import fork_pool, stable_pool
from holdfast.spark.query_plan import QueryPlan, plan_of
from holdfast.spark.results import create_output, node_columns
from holdfast.spark.session import make_active, with_settings
from holdfast.spark.time_column import time_path
from holdfast.spark.wal import read_wal
from holdfast.stream.identity import Identity, note_identity, read_identity
from holdfast.stream.store import Stream, StreamStore
from holdfast.stream.waiting import Waiting, waiting_results

log = logging.getLogger(__name__)

#: Between the sink's commit and Spark's own lie some milliseconds; a query that stays there longer has failed.
_SETTLE_US_MAX = 10 * SECOND_US
_SETTLE_POLL_US = 2_000


class Progress(NamedTuple):
    """How far a query has come."""

    batch_id: int
    until_us: int | None
    """Inputs are consumed up to here; None before the first batch."""


class RunningFork(NamedTuple):
    """A fork that was started."""

    query: StreamingQuery
    checkpoint: Path
    plan: Path
    branch: str
    """The id of the branch it writes to, which is created when it gets its first bucket."""
    batch_id: int
    """The last batch of the parent."""
    root_us: int
    """The parent had consumed its inputs up to here."""
    waiting: Waiting


class NodeQueries:
    """Starts and watches the queries of one replica. `home` is the replica's own folder."""

    def __init__(
        self, spark: SparkSession, node: NodeSpec, inputs: Sequence[Stream], outputs: Path, home: Path
    ) -> None:
        self._spark, self._node, self._inputs, self._outputs, self._home = spark, node, tuple(inputs), outputs, home
        self._beginning = load_beginning(home)
        self._flow: NodeFlow | None = None
        self._operators: list[Task] = []

    @property
    def checkpoint(self) -> Path:
        return self._beginning.checkpoint(self._home)

    @property
    def decision(self) -> Path:
        return self._home / "decision"

    def create_output(self, bucket_us: int) -> Stream:
        """The output stream with the columns that the function gives; what is there already, and the state of the
        query, must fit."""
        frame = self._results(decision=str(self.decision))
        schema = to_arrow_schema(frame.schema, timezone="UTC")
        columns = node_columns(self._node, pa.schema([field for field in schema if field.name != control.COLUMN]))
        output = create_output(StreamStore(self._outputs), self._node, columns, bucket_us)
        found = node_identity(self._node, columns, bucket_us, frame if self._flow is None else self._flow.lines)
        admission = Admission(self._node, self._home, self._beginning, output, found)
        self._beginning = admission.admitted(self._begin_life)
        return output

    def _begin_life(self, checkpoint: Path) -> None:
        if self._flow is not None:
            self._flow.begin_life(checkpoint)

    # -- the stable query --------------------------------------------------------------------------------------------

    def start_stable(self) -> StreamingQuery:
        start, right_from = self._beginning.start_us, self._beginning.right_from_us
        if start is None and self._node.begin_us is not None:
            start = self._node.begin_us
            self._forget_start()
        source = {} if start is None else {"start": instant_text(start)}
        sink = {} if right_from is None else {"from": instant_text(right_from)}
        frame = self._results(decision=str(self.decision), **source)
        return self._start(frame, self._node.name, stable_pool(self._node.name), self.checkpoint, sink)

    def _forget_start(self) -> None:
        """A start that has read nothing yet, from before somebody said where the node begins, does not count."""
        batch, until_us = progress_of(self.checkpoint)
        if until_us is not None and until_us <= BEGINNING_US and not self.planned(batch + 1):
            known = read_identity(self.checkpoint)
            shutil.rmtree(self.checkpoint)
            self._keep_identity(known, self.checkpoint)

    @staticmethod
    def _keep_identity(known: Identity | None, checkpoint: Path) -> None:
        """A query that begins anew computes what it did: its next start is compared with that (C12)."""
        if known is not None:
            note_identity(checkpoint, known)

    @property
    def keeps_state(self) -> bool:
        """Whether operators of Holdfast's own have state: it lies here, and is restored from output and inputs."""
        return self._flow is not None and self._flow.keeps_state

    def needed_us(self, until_us: int) -> int:
        """Once results up to `until_us` are written, earlier input than this is not needed any more, also not to
        restore an operator's state. Reads the end of the output's log."""
        return until_us if self._flow is None else self._flow.needed_us(until_us, self._beginning.generation)

    def begin_anew(self, start_us: int, right_from_us: int) -> None:
        """From the next start on the stable query begins here, with an empty state."""
        place = Beginning(generation=self._beginning.generation + 1).checkpoint(self._home)
        self._keep_identity(read_identity(self.checkpoint), place)  # First: the old checkpoint goes with its note.
        self._beginning = begin_anew(self._home, self._beginning, start_us, right_from_us)

    def progress(self, since: int, checkpoint: Path | None = None) -> Progress | None:
        """The last committed batch, if it is a later one than `since`."""
        return progress_after(checkpoint or self.checkpoint, since)

    def planned(self, batch_id: int) -> bool:
        """Whether Spark has noted what the batch reads."""
        return (self.checkpoint / "offsets" / str(batch_id)).exists()

    # -- movement ----------------------------------------------------------------------------------------------------

    def copy_to(self, checkpoint: Path) -> Waiting:
        """A copy of where the stable query stands, from which the same query can go on elsewhere; it runs on."""
        waiting = self._copied(checkpoint, lambda: self._pack_state(checkpoint))
        self._keep_identity(read_identity(self.checkpoint), checkpoint)
        return waiting

    def _copied(self, checkpoint: Path, take_states: Callable[[], bool]) -> Waiting:
        """Fork the query together with the states that its operators had then."""
        deadline = monotonic_us() + _SETTLE_US_MAX
        while True:
            waiting = self._fork_at_rest(checkpoint)
            if take_states():
                return waiting
            shutil.rmtree(checkpoint)
            if monotonic_us() > deadline:
                raise StorageError(
                    f"node {self._node.name}: the state of its operators at the last commit must be at hand to be "
                    f"copied; it is lost, or goes by too quickly; try again later"
                )
            pause(_SETTLE_POLL_US)

    def _pack_state(self, checkpoint: Path) -> bool:
        """Add what Holdfast's own operators and the user's know at the batch that the copy stands at."""
        batch, until_us = progress_of(checkpoint)
        if self._flow is not None and until_us is not None:
            return self._flow.pack(self._beginning.generation, until_us, checkpoint)
        return pack_operators(self._operators, _query_id(self.checkpoint), batch + 1, checkpoint)

    def forget(self) -> None:
        """The stable query has stopped, and whoever goes on with the node does so from a copy: what the user's
        operators keep for it elsewhere goes."""
        for operator in self._operators:
            try:
                operator.forget(_query_id(self.checkpoint))
            except Exception as error:  # Whatever it was: the node runs elsewhere, and that must not fail here.
                log.warning("%s: states of %s that nobody needs any more stay where they are: %s", self._node.name,
                            operator.name, error)  # fmt: skip

    @property
    def stays_because(self) -> str | None:
        """Why it can never run elsewhere; None if it can."""
        return stays_because(self._operators, self._spark)

    # -- forks -------------------------------------------------------------------------------------------------------

    def start_fork(self, fork: int) -> RunningFork:
        """Rule 2. Returns when Spark has taken the query; `ready` says when it could run a batch."""
        home = self._home / "forks" / str(fork)
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        try:
            return self._started_fork(fork, home / "checkpoint", home / "plan")
        except BaseException:
            # It is tried again every few seconds, each time with links that keep the parent's old state on the disk.
            shutil.rmtree(home, ignore_errors=True)
            if self._flow is not None:
                self._flow.forget(fork)
            raise

    def _started_fork(self, fork: int, checkpoint: Path, plan: Path) -> RunningFork:
        begun = monotonic_us()
        operators = plan.with_name("operators")
        waiting = self._copied(checkpoint, lambda: self._take_states(checkpoint, operators))
        rested = monotonic_us()
        forked = progress_of(checkpoint)
        assert forked.until_us is not None, "every batch of ours has one input with an stime"
        if self._flow is not None:
            frame = self._flow.forked({"plan": str(plan)}, self._beginning.generation, fork, forked.until_us)
        else:
            with forked_from(_query_id(self.checkpoint), operators):
                frame = self._results(plan=str(plan))
        branch = os.urandom(8).hex()
        name, pool = f"{self._node.name}-fork-{fork}", fork_pool(self._node.name)
        query = self._start(frame, name, pool, checkpoint, {"branch": branch})
        log.info("%s: fork %d of batch %d taken in %d ms, started in %d ms", self._node.name, fork, forked.batch_id,
                 (rested - begun) // 1000, (monotonic_us() - rested) // 1000)  # fmt: skip
        return RunningFork(query, checkpoint, plan, branch, forked.batch_id, forked.until_us, waiting)

    def _take_states(self, checkpoint: Path, operators: Path) -> bool:
        """The user's operators keep two versions of their states: after two more batches, a fork that waited to be
        released would find neither. On a cluster they lie elsewhere, and the fork looks for them when it runs."""
        if self.stays_because is not None:
            return True
        shutil.rmtree(operators, ignore_errors=True)
        batch, query = progress_of(checkpoint).batch_id + 1, _query_id(self.checkpoint)
        return all(operator.pack(query, batch, operators) for operator in self._operators)

    def _fork_at_rest(self, checkpoint: Path) -> Waiting:
        """Fork between two batches, so that checkpoint and waiting results are of the same moment."""
        query_id = _query_id(self.checkpoint)
        output = StreamStore(self._outputs).open(self._node.output)
        deadline = monotonic_us() + _SETTLE_US_MAX
        while True:
            before = last_commit(self.checkpoint)
            waiting = waiting_results(output)
            if waiting is not None and waiting.tokens.get(f"spark-{query_id}", before) == before:
                fork_checkpoint(self.checkpoint, checkpoint)
                if last_commit(checkpoint) == before:
                    return waiting
                shutil.rmtree(checkpoint)
            if monotonic_us() > deadline:
                raise StorageError(
                    f"node {self._node.name}: the stable query has filed results of a batch after {before} but does "
                    f"not commit it; it must have stopped there; look for its error in the log"
                )
            pause(_SETTLE_POLL_US)

    @staticmethod
    def ready(fork: RunningFork) -> bool:
        return ready_mark(fork.plan).exists()

    def stop_fork(self, fork: RunningFork) -> None:
        try:
            stop(fork.query)
        finally:
            self._remove_fork(fork.checkpoint)

    def clear_forks(self) -> None:
        """A host that starts has no forks; what an earlier life left is removed."""
        for checkpoint in (self._home / "forks").glob("*/checkpoint"):
            self._remove_fork(checkpoint)
        if self._flow is not None:
            self._flow.clear(self._beginning.generation)
        shutil.rmtree(self._home / "forks", ignore_errors=True)

    def _remove_fork(self, checkpoint: Path) -> None:
        """Its folder, and large results that its last batch has staged beside the output: nobody will ask for them."""
        with contextlib.suppress(OSError, ValueError, KeyError):
            for staged in (self._outputs / self._node.output / "staging").glob(f"{_query_id(checkpoint)}.*"):
                staged.unlink(missing_ok=True)
        shutil.rmtree(checkpoint.parent, ignore_errors=True)
        if self._flow is not None and checkpoint.parent.name.isdigit():
            self._flow.forget(int(checkpoint.parent.name))

    # -- frames ------------------------------------------------------------------------------------------------------

    def _results(self, **options: str) -> DataFrame:
        """What the function gives, over inputs that come as its query needs them."""
        if self._query.bucket_by_bucket:
            options["step"] = str(max(stream.definition.bucket_us for stream in self._inputs))
            options["timers"] = str(self._query.timers).lower()
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
            results = self._node.function(*(self._split(frame) if self._node.separate else [frame]))
        if "plan" not in options:
            self._operators = operators
        stays = stays_because(operators, self._spark)
        if stays is not None and operators_in(self.checkpoint) is not None:
            raise UsageError(f"node {self._node.name} came from another owner and could not go back: {stays}")
        if isinstance(results, Flow):
            self._flow = NodeFlow(self._node, results, self._outputs, self._home)
            return self._flow.stable(options, self._beginning.generation)
        if not isinstance(results, DataFrame) or not results.isStreaming:
            raise UsageError(
                f"node {self._node.name} must return a streaming DataFrame or a flow; got {type(results).__name__}; "
                f"return what your operators give, or a dict of frames and name its streams with outputs="
            )
        return results

    def _split(self, frame: DataFrame) -> list[DataFrame]:
        """One source, taken apart by input: one offset and one watermark, so that no input stalls the others."""
        return [
            part_of(frame, s.name, frame.filter(F.col(STREAM_COLUMN) == s.name).select(
                "tuple_type", "tuple_id", "stime", *s.definition.schema.names
            ))
            for s in self._inputs
        ]  # fmt: skip

    @cached_property
    def inspected(self) -> tuple[tuple[str, ...], QueryPlan]:
        """Rule 5: where the result's time is found, and what its plan says."""
        whose = f"node {self._node.name}"
        frame = self._described("before", {"decision": str(self.decision)})
        stime = time_path(frame.schema, self._node.stime, whose)
        if self._flow is not None:
            return stime, QueryPlan()
        query = plan_of(frame, stime, whose)
        if query.settings:
            self._spark = with_settings(self._spark, query.settings)
        return stime, query

    @property
    def _query(self) -> QueryPlan:
        return self.inspected[1]

    @property
    def _boundaries(self) -> str:
        """`exact` closes windows a bucket earlier, but is right only where no operator drops what lies at the
        watermark. Holdfast's own operators have no watermark."""
        if self._node.boundaries != "auto":
            return self._node.boundaries
        return "before" if self._query.drops_at_watermark else "exact"

    def promised_us(self, until_us: int) -> int:
        """What the output promises once the query has consumed its inputs up to `until_us`."""
        if not self._query.keeps_rows:
            return until_us
        # Spark counts its watermark in whole milliseconds.
        return until_us // 1000 * 1000 - self._query.lag_us - (1000 if self._boundaries == "before" else 0)

    def _start(
        self, frame: DataFrame, name: str, pool: str, checkpoint: Path, options: dict[str, str]
    ) -> StreamingQuery:
        writer = frame.writeStream.format("holdfast").queryName(name).option("checkpointLocation", str(checkpoint))
        writer = writer.option("root", str(self._outputs)).options(**options)
        writer = writer.option("stime", ".".join(self.inspected[0]))
        if self._query.keeps_rows:
            writer = writer.option("boundary", "watermark").option("lag", f"{self._query.lag_us}us")
        else:
            # Holdfast's own operators, too, release what the end of a batch closes in the batch itself.
            writer = writer.option("boundary", "input")
        if self._query.times_are_free:
            writer = writer.option("late", "lift")
        lasts(name)
        started: list[StreamingQuery | BaseException] = []

        def start() -> None:
            # Pool and session are properties of the thread that starts the query.
            try:
                make_active(self._spark)
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


def _query_id(checkpoint: Path) -> str:
    return str(json.loads((checkpoint / "metadata").read_text())["id"])


def progress_of(checkpoint: Path) -> Progress:
    """The last committed batch of a checkpoint."""
    batch = last_commit(checkpoint)
    if batch < 0:
        return Progress(-1, None)
    _, ends = read_wal(checkpoint, batch)
    return Progress(batch, min(ends) if ends else None)


def progress_after(checkpoint: Path, since: int) -> Progress | None:
    """The same for who looks often: one look for a file, as long as nothing has happened."""
    if not os.path.exists(f"{checkpoint}/commits/{since + 1}"):
        return None
    return progress_of(checkpoint)


def stop(query: StreamingQuery) -> None:
    """Stop a query that may have failed already."""
    try:
        query.stop()
    except Exception:
        if query.isActive:
            raise
