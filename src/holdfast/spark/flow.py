"""Operators on streams, as one writes them down: `flow(spark, "orders").filter(...).aggregate(...).write("totals")`.

Rules:
1. A flow is a description; nothing runs before `write` (or `frame`). Each call gives a new flow.
2. Expressions are Spark's own Columns, or SQL text.
3. A flow has at most one operator with state. Its checkpoints go by the stream that the flow writes, into its log or
   under its name into a store, so what follows another stateful operator starts from that stream; there it can run on
   other machines, too.
4. Rows that mark the begin and end of a batch travel with the tuples. Filters let them pass, maps leave them alone.
5. A streaming DataFrame of Holdfast's becomes a flow by `flow_of`. In a node that is the way in; the node itself is the
   way out: its function returns the flow (`holdfast.spark.node_flow`).
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias, cast

import msgspec
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming import StreamingQuery

from holdfast.checkpoint.derive import Protection, StateKind, derive
from holdfast.checkpoint.policy import Every, NoCheckpoint
from holdfast.model.errors import BadName, UnknownStream, UsageError
from holdfast.model.names import check_name
from holdfast.model.tuples import HEADER, STREAM_COLUMN, TupleType
from holdfast.operators.database import Database
from holdfast.operators.functions import Function
from holdfast.operators.join_kernel import Keep
from holdfast.operators.windows import Window
from holdfast.protocol.cec.policy import Continuous, continuous
from holdfast.spark import control
from holdfast.spark.aggregate import AggregateStage
from holdfast.spark.checkpoint_figures import observed
from holdfast.spark.databases import ReadStep, UpdateStage
from holdfast.spark.direct import TASKS_MAX, DirectStage, encode_stage
from holdfast.spark.durable import Durable, begin_life, life_in, query_name
from holdfast.spark.flow_identity import flow_lines
from holdfast.spark.frames import Reading, reading_of
from holdfast.spark.hadoop_path import CheckpointFolder, checkpoint_folder, disk_for, unfit_manager
from holdfast.spark.joining import JoinStage, SortStage
from holdfast.spark.options import READ_OPTIONS, Options
from holdfast.spark.plan_identity import identity
from holdfast.spark.restore import DIRECT, NULLS_APART, Spec, operator_name, origin_of
from holdfast.spark.save_figures import collector
from holdfast.spark.session import make_active
from holdfast.spark.stage import Output, StagePlan
from holdfast.spark.stages import SOURCES_MAX, Inputs, StatefulStage, staged
from holdfast.spark.versions import scratch_folder
from holdfast.stream.definition import BUCKET_DEFAULT
from holdfast.stream.identity import NOTE, changed, note_identity, read_identity, told
from holdfast.stream.store import StreamStore

Expression: TypeAlias = "Column | str"
#: Of a union: streams, and the steps that their tuples take.
Part: TypeAlias = tuple[tuple[str, ...], tuple[Callable[[DataFrame], DataFrame], ...]]
#: Begins the line about partitions among those of what a flow computes.
_PARTITIONS = "partitions: "

#: What may be said of the checkpoints of a flow's operator. None, nothing said: `continuous()` in a node, else `none`.
Checkpoint: TypeAlias = Continuous | Every | NoCheckpoint | None


def is_mark() -> Column:
    return F.col("tuple_type") == F.lit(int(TupleType.BOUNDARY))


def expression(given: Expression) -> Column:
    return F.expr(given) if isinstance(given, str) else given


@dataclass(frozen=True)
class Flow:
    """Operators over the tuples of some streams. Make one with `flow`."""

    spark: SparkSession
    root: str
    streams: tuple[str, ...]
    options: tuple[tuple[str, str], ...]
    partitions: int
    before: tuple[Callable[[DataFrame], DataFrame], ...] = ()
    stage: StatefulStage | None = None
    checkpoint: Checkpoint = None
    store: str | None = None
    """Where `every(…)` saves to."""
    after: tuple[Callable[[DataFrame], DataFrame], ...] = ()
    known: DataFrame | None = None
    """The streams as they were read before, for the sake of their columns: asking Spark again takes it a moment."""

    # -- operators without state -------------------------------------------------------------------------------------

    def _then(self, step: Callable[[DataFrame], DataFrame]) -> Flow:
        if self.stage is None:
            return replace(self, before=(*self.before, step))
        return replace(self, after=(*self.after, step))

    def filter(self, condition: Expression) -> Flow:
        """Only the tuples for which the condition holds."""
        return self._then(_Filter(condition))

    def cases(self, *conditions: Expression) -> tuple[Flow, ...]:
        """One flow per condition and one for the rest; each tuple goes to the first whose condition it meets."""
        flows, none_before = [], F.lit(True)
        for condition in map(expression, conditions):
            flows.append(self.filter(none_before & F.coalesce(condition, F.lit(False))))
            none_before = none_before & ~F.coalesce(condition, F.lit(False))
        return (*flows, self.filter(none_before))

    def map(self, **columns: Expression) -> Flow:
        """Tuples with these columns instead of their own."""
        if not columns or set(columns) & set(HEADER):
            raise UsageError(
                f"map needs columns that are none of {', '.join(HEADER)}; got {', '.join(columns) or 'none'}"
            )
        return self._then(_Map(tuple(columns.items())))

    # -- operators with state ----------------------------------------------------------------------------------------

    def aggregate(
        self, *functions: Function, window: Window, by: Sequence[Expression] | Expression = (),
        checkpoint: Checkpoint = None, store: str | None = None, salt: int = 0,
    ) -> Flow:  # fmt: skip
        """Functions over windows, for each group of `by`.

        Of every operator with state, `checkpoint` says how it is protected: `continuous()` in the log of its results,
        `every("30s")` in the checkpoint store whose address `store` is ("log:/mnt/shared/…", "redis://…").
        """
        groups = [by] if isinstance(by, str | Column) else list(by)
        return self._with(AggregateStage(functions, window, tuple(groups), salt), checkpoint, store)

    def join(
        self, left: str, right: str, *, window: Keep | tuple[Keep, Keep], take_left: Mapping[str, Expression],
        take_right: Mapping[str, Expression], by: Sequence[Expression] | Expression = (),
        where: Expression | None = None, checkpoint: Checkpoint = None, store: str | None = None, salt: int = 0,
    ) -> Flow:  # fmt: skip
        """Pairs of tuples of two streams, in each group of `by`, that fall into each other's window.

        `window` is one for both sides (`keep_time("1h")` is the band |r.time − s.time| <= 1 h) or one per side;
        `take_left` and `take_right` name the columns of the pair; `where` is any condition on them.
        """
        groups = [by] if isinstance(by, str | Column) else list(by)
        keeps = window if isinstance(window, tuple) else (window, window)
        stage = JoinStage(left, right, tuple(groups), keeps, take_left, take_right, salt)
        made = self._with(stage, checkpoint, store)
        return made if where is None else made.filter(where)

    def bsort(
        self, value: Expression, size: int, *, by: Sequence[Expression] | Expression = (),
        checkpoint: Checkpoint = None, store: str | None = None, salt: int = 0,
    ) -> Flow:  # fmt: skip
        """The tuples approximately in the order of a value: each leaves when `size` others have come."""
        groups = [by] if isinstance(by, str | Column) else list(by)
        return self._with(SortStage(value, size, tuple(groups), salt), checkpoint, store)

    def read(self, sql: str, *, database: str, columns: str) -> Flow:
        """Each tuple with every row that the query finds for it; `:name` stands for a column of the tuple."""
        return self._then(ReadStep(Database(database), sql, columns))

    def update(self, sql: str, *, database: str, by: Sequence[Expression] | Expression = ()) -> Flow:
        """Run the statement for each tuple, once; the results have the column `rows`, how many rows it changed.

        Tuples of one group of `by` are applied in order; without groups, all of them are.
        """
        groups = [by] if isinstance(by, str | Column) else list(by)
        return self._with(UpdateStage(Database(database), sql, tuple(groups)), None)

    def union(self, *others: Flow) -> Flow:
        """This flow's tuples and those of others that read the same store, in bucket order."""
        if any(o.stage is not None or o.root != self.root for o in (self, *others)):
            raise UsageError("a union takes flows without state over one store; write results to a stream first")
        names = tuple(dict.fromkeys(s for f in (self, *others) for s in f.streams))
        return replace(self, streams=names, before=(_Union(sum((f._parts for f in (self, *others)), ())),))

    @property
    def _parts(self) -> tuple[Part, ...]:
        """A union of unions is one of all their parts: only so each has a number of its own."""
        if self.before and isinstance(self.before[0], _Union):
            return tuple((streams, (*steps, *self.before[1:])) for streams, steps in self.before[0].parts)
        return ((self.streams, self.before),)

    def _with(self, stage: StatefulStage, checkpoint: Checkpoint, store: str | None = None) -> Flow:
        if self.stage is not None:
            raise UsageError(
                "a flow has one operator with state; write its results to a stream and start another flow there"
            )
        derive(stage.name, stage.name, StateKind.WINDOWS, checkpoint, store)  # Refuses a policy that does not fit.
        if isinstance(checkpoint, Every) and store is None:
            raise UsageError(f"{stage.name}: {checkpoint} needs a store, such as store='log:/var/lib/app/checkpoints'")
        if store is not None and not isinstance(checkpoint, Every):
            said = "without a checkpoint=" if checkpoint is None else str(checkpoint)
            raise UsageError(f'{stage.name}: a store is for every("30s"); {said} saves nothing there; leave out store=')
        return replace(self, stage=stage, checkpoint=checkpoint, store=store)

    def as_in_node(self) -> Flow:
        """A node is to come back after anything: its operator has `continuous()` where the user names no policy."""
        return self if self.stage is None or self.checkpoint is not None else replace(self, checkpoint=continuous())

    @property
    def policy(self) -> Continuous | None:
        """By which it writes checkpoints into the log of its results; None if it writes none there."""
        return self.checkpoint if isinstance(self.checkpoint, Continuous) else None

    @property
    def stored(self) -> Every | None:
        """By which its versions become durable in a store; None if they do not."""
        return self.checkpoint if isinstance(self.checkpoint, Every) else None

    @property
    def restores(self) -> bool:
        """Whether its state comes back after a loss, with the input that it needs for that."""
        return self.policy is not None or self.stored is not None

    @property
    def protection(self) -> Protection:
        """What protects its operator with state; `holdfast explain` shows it."""
        of = f"of {', '.join(self.streams)}"
        if self.stage is None or isinstance(self.stage, UpdateStage):
            name = "flow" if self.stage is None else self.stage.name
            return derive(f"{name} {of}", name, StateKind.NONE, None)
        derived = derive(f"{self.stage.name} {of}", self.stage.name, StateKind.WINDOWS, self.checkpoint, self.store)
        return derived if self.policy is None else replace(derived, store="the log of its results")

    # -- running -----------------------------------------------------------------------------------------------------

    def write(
        self, stream: str, *, checkpoint_location: str | os.PathLike[str], create: bool = True,
        bucket: str | None = None, trigger: dict[str, Any] | None = None,
        scratch: str | os.PathLike[str] | None = None, lineage: str = "main", parents: tuple[str, ...] = (),
        fork_of: str | None = None, name: str | None = None,
    ) -> StreamingQuery:  # fmt: skip
        """Start the query that writes the flow's results to a stream.

        `scratch` is where versions of state lie; on a cluster, by default, next to the output's log, where all machines
        find them. A fork (`holdfast.spark.fork`) gets a `lineage` of its own and names its parent's, and the stream
        that its parent writes (`fork_of`): if the parent's version is no longer on scratch, the state is restored from
        there, or from what the parent has in a store.
        """
        self._check_outside("write")
        if self.known is None:
            return replace(self, known=self._columns()).write(
                stream, checkpoint_location=checkpoint_location, create=create, bucket=bucket, trigger=trigger,
                scratch=scratch, lineage=lineage, parents=parents, fork_of=fork_of, name=name,
            )  # fmt: skip
        if fork_of is not None:
            parents = parents or ("main",)
            if lineage in parents:
                raise UsageError(f"a fork needs a lineage of its own; got {lineage!r}, which is its parent's; name one")
        checkpoint = checkpoint_folder(os.fspath(checkpoint_location))
        if (unfit := unfit_manager(self.spark, checkpoint)) is not None:
            raise UsageError(unfit)
        queries = self.queries(checkpoint, [(stream, lineage), *((fork_of or stream, parent) for parent in parents)])
        spec = self._spec(stream, scratch, lineage, parents, fork_of, queries)
        if fork_of is not None and self.policy is not None:
            spec = msgspec.structs.replace(spec, origin=origin_of(checkpoint, fork_of))
        if create and self.stage is not None:
            self._create(stream, spec, bucket)
        if self.stored is not None:
            forked = None if fork_of is None else origin_of(checkpoint, fork_of)
            before = [] if forked is None else [(forked.stream, parent, forked.root_us) for parent in parents]
            spec = self.with_durable(spec, checkpoint, before)
        self._check_state(stream, checkpoint, spec)
        frame = self.results(spec)
        writer = frame.writeStream.format("holdfast").option("root", self.root)
        writer = writer.option("checkpointLocation", str(checkpoint_location)).option("boundary", "input")
        if create:
            writer = writer.option("create", "true")
        if bucket:
            writer = writer.option("bucket", bucket)
        if name:
            writer = writer.queryName(name)
        make_active(frame.sparkSession)
        return writer.trigger(**(trigger or {"processingTime": "0 seconds"})).start(stream)

    def _check_state(self, stream: str, checkpoint: CheckpointFolder, spec: Spec) -> None:
        """A state is used by what made it (C12, C13)."""
        disk, checkpoint = disk_for(checkpoint), cast(Path, checkpoint)  # As much of a path as a note needs.
        # A database has notes of what each partition has applied; all other states are dealt out anew (C13).
        counted = [f"{_PARTITIONS}{self.partitions}"] if isinstance(self.stage, UpdateStage) else []
        found = identity([*counted, *self.lines(spec)])
        if differences := [d for d in changed(checkpoint, found) if counted or not d.startswith(f"- {_PARTITIONS}")]:
            raise UsageError(
                f"the flow that writes stream {stream} must compute what the state in {checkpoint} was made by; it has "
                f"changed: {told(differences)}; change it back, or write to another stream with another "
                f"checkpoint_location; if you know that the state fits, remove {checkpoint / NOTE}"
            )
        if read_identity(checkpoint) != found:
            note_identity(checkpoint, found, disk)

    def lines(self, spec: Spec) -> list[str]:
        """What it computes, for who compares it with what it has computed."""
        plain = replace(self, after=(), checkpoint=None)
        return flow_lines(self, self._columns(), lambda: plain.results(spec).schema)

    def frame(self, *, name: str | None = None, scratch: str | os.PathLike[str] | None = None) -> DataFrame:
        """The flow as a streaming DataFrame, for operators and a sink of your own. Its state has no checkpoints then.

        With a `name`, a query over it that is started again from its checkpointLocation finds its state, as long as
        scratch is there: `scratch`, by default a folder that a restart of the machine empties, on a cluster one below
        the streams. Without a name, nothing is left when the process ends. Two flows in one query need two names.
        """
        self._check_outside("frame")
        if self.restores:
            raise UsageError("checkpoints go by the stream that a flow writes; use write, or leave out checkpoint=")
        lineage = f"frame-{os.urandom(4).hex()}" if name is None else f"frame-of-{check_name(name)}"
        spec = self._spec(".frames", scratch, lineage, ())
        spec = msgspec.structs.replace(spec, per_query=True, always=False)
        if name is None:  # Nobody can find this lineage again once the process has ended.
            atexit.register(shutil.rmtree, Path(spec.scratch, spec.operator, spec.lineage), ignore_errors=True)
        elif self.stage is not None:
            made_by = msgspec.json.encode(identity(self.lines(spec))).decode()
            spec = msgspec.structs.replace(spec, made_by=made_by)
        frame = self.results(spec, stored=False)
        return frame if self.stage is not None else frame.filter(~is_mark())

    def _check_outside(self, verb: str) -> None:
        if self.in_node:
            raise UsageError(f"inside a node, return the flow itself; its host starts the query; leave out .{verb}(…)")

    @property
    def in_node(self) -> bool:
        return any(name in dict(self.options) for name in ("decision", "plan"))

    def _spec(
        self, stream: str, scratch: Any, lineage: str, parents: tuple[str, ...], fork_of: str | None = None,
        queries: Sequence[str] = (),
    ) -> Spec:  # fmt: skip
        local = str(self.spark.sparkContext.master).startswith("local")
        home = fork_of or stream  # A fork finds its parent's versions where its parent looks for them.
        folder = scratch_folder(self.root, home, scratch, local=local)
        always = scratch is not None and not local
        operator = self.operator(home, folder, (lineage, *parents), queries)
        return Spec(stream, operator, self.partitions, folder, lineage, parents, always)

    def queries(self, notes: CheckpointFolder, of: Sequence[tuple[str, str]]) -> list[str]:
        """What those of these streams and lineages are called in the store, as far as they have begun. `notes`: where
        their lives are noted."""
        found = []
        for stream, lineage in of if self.stored is not None else ():
            with contextlib.suppress(UnknownStream, BadName):
                if (life := life_in(notes, lineage)) is not None:
                    found.append(query_name(StreamStore(self.root).open(stream).definition.id, lineage, life))
        return found

    def operator(self, stream: str, scratch: str, lineages: tuple[str, ...], queries: Sequence[str] = ()) -> str:
        """What the operator with state is called in its versions and checkpoints. It goes on as it began: each way of
        reading numbers groups differently, so none must take up the other's state."""
        if self.stage is None:
            return ""
        name = self.stage.name
        names = [name + NULLS_APART, name] if self.stage.several_keys else [name]
        if self._direct(self._columns(), self._inputs()) is not None:
            names.insert(0 if self.partitions <= TASKS_MAX else len(names), name + DIRECT)
        if len(names) == 1:
            return names[0]
        return operator_name(names, StreamStore(self.root), stream, scratch, lineages, self.store, queries)

    def _reader(self) -> Any:
        return self.spark.readStream.format("holdfast").option("root", self.root).options(**dict(self.options))

    def _columns(self) -> DataFrame:
        return self.known if self.known is not None else self._reader().load(",".join(self.streams))

    def _inputs(self) -> Inputs:
        given = Options({"root": self.root, **dict(self.options), "path": ",".join(self.streams)}, READ_OPTIONS)
        sizes = tuple(s.definition.bucket_us for s in given.streams)
        return Inputs(self.streams, sizes, self.partitions, tuple(streams for streams, _ in self._parts))

    def _direct(self, frame: DataFrame, inputs: Inputs) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
        """Key and value columns if the operator is to read the streams itself."""
        if self.stage is None or self.before or len(set(inputs.bucket_us)) > 1:
            return None
        return self.stage.direct(frame.schema, inputs)

    def _restoring(self, spec: Spec) -> Any:
        """The reader of an operator with state: what its windows rely on is read again, and not acknowledged (L8)."""
        reader = self._reader()
        return reader.option("restore", msgspec.json.encode(spec).decode()) if self.restores else reader

    def _source(self, spec: Spec) -> DataFrame:
        reader = self._reader()
        if self.stage is not None:
            reader = self._restoring(spec).option("marks", str(self.partitions))
        frame = reader.load(",".join(self.streams))
        if len(self.streams) > 1:
            source = F.lit(0)
            for i, stream in enumerate(self.streams):
                source = F.when(F.col(STREAM_COLUMN) == stream, F.lit(i)).otherwise(source)
            frame = frame.withColumn("_src", source)
        return frame

    def results(self, spec: Spec, *, stored: bool = True, checkpoints: bool = True) -> DataFrame:
        """What the operators give, as a frame; `stored`: it is written to the stream that the spec names."""
        output = Output(self.root, spec.stream, spec.origin) if stored else None
        policy = self.policy if checkpoints else None
        frame = self._unstaged(spec) if self.stage is None else self._staged(self.stage, spec, policy, output)
        for step in self.after:
            frame = step(frame)
        return observed(frame) if control.FIGURES in frame.columns else frame

    def _unstaged(self, spec: Spec) -> DataFrame:
        frame = self._source(spec)
        for step in self.before:
            frame = step(frame)
        return frame.drop("_src")  # The union's own column stays inside.

    def _staged(self, stage: StatefulStage, spec: Spec, policy: Continuous | None, output: Output | None) -> DataFrame:
        scratch, inputs = spec.versions, self._inputs()
        if spec.operator.endswith(DIRECT):
            direct = self._direct(columns := self._columns(), inputs)
            if direct is None:
                raise UsageError(
                    f"the flow that writes stream {spec.stream} must name its keys and values as columns of the "
                    f"streams, as when its state was made; it has expressions or steps in front now"
                )
            _, plan, _ = stage.plan(columns, inputs, scratch, policy, output)
            plan = self._with_spec(plan, spec)
            keys, values = direct
            reads = DirectStage(plan, self.partitions, keys, values, stage.salt)
            return self._restoring(spec).option("stage", encode_stage(reads)).load(",".join(self.streams))
        frame = self._source(spec)
        for step in self.before:
            frame = step(frame)
        wanted, plan, schema = stage.plan(frame, inputs, scratch, policy, output)
        return staged(frame, wanted, inputs, self._with_spec(plan, spec), schema)

    def _with_spec(self, plan: StagePlan, spec: Spec) -> StagePlan:
        figures = None if spec.durable is None else collector(self.spark)
        return replace(plan, made_by=spec.made_by, durable=spec.durable, figures=figures)

    def with_durable(
        self, spec: Spec, notes: CheckpointFolder, before: Sequence[tuple[str, str, int]] = (), *, saves: bool = True
    ) -> Spec:
        """With where its versions become durable, if they do. `notes`: where their lives are noted; `before`: streams,
        lineages and roots of whom it is a fork."""
        if self.stored is None or self.store is None or self.stored.us is None:
            return spec
        try:
            names = {spec.stream, *(stream for stream, *_ in before)}
            ids = {name: StreamStore(self.root).open(name).definition.id for name in names}
        except (UnknownStream, BadName):  # Somebody asks for the columns only.
            return spec
        own = query_name(ids[spec.stream], spec.lineage, begin_life(notes, spec.lineage)) if saves else None
        lives = [(stream, lineage, life_in(notes, lineage), root_us) for stream, lineage, root_us in before]
        earlier = tuple(
            (query_name(ids[stream], lineage, life), root_us)
            for stream, lineage, life, root_us in lives if life is not None
        )  # fmt: skip
        us, always = self.stored.us, self.stored.exact
        durable = Durable(spec.operator, self.store, us, spec.partitions, own, earlier, always)
        return msgspec.structs.replace(spec, durable=durable)

    def _create(self, stream: str, spec: Spec, bucket: str | None) -> None:
        """The stage looks into its output's log, so the stream must be there before the query."""
        frame = self.results(spec)
        columns = [f for f in to_arrow_schema(frame.schema, timezone="UTC") if f.name not in (*HEADER, control.COLUMN)]
        StreamStore(self.root).create(stream, pa.schema(columns), exist_ok=True, bucket=bucket or BUCKET_DEFAULT)


@dataclass(frozen=True)
class _Filter:
    condition: Expression

    def __call__(self, frame: DataFrame) -> DataFrame:
        keep = expression(self.condition)
        if "tuple_type" in frame.columns:
            keep = is_mark() | keep
        if control.COLUMN in frame.columns:
            keep = F.col(control.COLUMN).isNotNull() | keep
        return frame.filter(keep)


@dataclass(frozen=True)
class _Union:
    """Each part takes the tuples of its own streams through its own steps."""

    parts: tuple[Part, ...]

    def __call__(self, frame: DataFrame) -> DataFrame:
        made = []
        for number, (streams, steps) in enumerate(self.parts):
            part = frame
            if STREAM_COLUMN in frame.columns:
                part = frame.filter(is_mark() | F.col(STREAM_COLUMN).isin(list(streams)))
            source = F.col("_src") if "_src" in part.columns else F.lit(0)
            part = part.withColumn("_src", F.lit(number * SOURCES_MAX) + source)
            for step in steps:
                part = step(part)
            made.append(part)
        whole = made[0]
        for part in made[1:]:
            whole = whole.unionByName(part)
        return whole


@dataclass(frozen=True)
class _Map:
    columns: tuple[tuple[str, Expression], ...]

    @property
    def computes(self) -> dict[str, dict[str, Expression]]:
        """What of it counts as its definition (`flow_identity`)."""
        return {"columns": dict(self.columns)}

    def __call__(self, frame: DataFrame) -> DataFrame:
        kept = [c for c in (*HEADER, "_src", STREAM_COLUMN, control.COLUMN, control.FIGURES) if c in frame.columns]
        made = []
        for name, given in self.columns:
            column = expression(given)
            # A mark has nulls everywhere; an expression that cannot take them must not see it.
            if "tuple_type" in frame.columns:
                column = F.when(~is_mark(), column)
            elif control.COLUMN in frame.columns:
                column = F.when(F.col(control.COLUMN).isNull(), column)
            made.append(column.alias(name))
        return frame.select(*kept, *made)


def flow(
    spark: SparkSession, *streams: str, root: str | os.PathLike[str] | None = None, partitions: int | None = None,
    **options: str | int,
) -> Flow:  # fmt: skip
    """The tuples of one or several streams, merged in bucket order.

    `partitions` is the number of tasks of an operator with state (default: the cores). A query that is started again
    with another number goes on with its state, unless it updates a database. The options are those of
    `readStream.format("holdfast")`.
    """
    where = root or os.environ.get("HOLDFAST_ROOT")
    if where is None:
        raise UsageError("say where the streams are: root='streams/' or the variable HOLDFAST_ROOT")
    if not streams:
        raise UsageError("name at least one stream, for example flow(spark, 'orders')")
    count = partitions or max(1, spark.sparkContext.defaultParallelism)
    given = tuple((k, str(v)) for k, v in options.items())
    return Flow(spark, str(os.path.abspath(where)), _with_stripes(where, streams), given, count)


def _with_stripes(root: str | os.PathLike[str], streams: tuple[str, ...]) -> tuple[str, ...]:
    """The names of the streams to read: the stripes, where one is striped."""
    store = StreamStore(root)
    found = [(name, store.stripes_of(name)) for name in streams]
    return tuple(stream for name, dealing in found for stream in ((name,) if dealing is None else dealing.names))


def flow_of(*frames: DataFrame, partitions: int | None = None) -> Flow:
    """A streaming DataFrame of Holdfast's as a flow: `flow_of(read_stream(spark, "orders")).aggregate(…)`.

    It takes the frame as it was read, by `read_stream`, by `readStream.format("holdfast")` or as the parameter of a
    node; filters and maps are put behind it. Of a node with one parameter per input it takes one of them, or several:
    `flow_of(left, right).join("left", "right", …)`.
    """
    readings = [reading_of(frame) for frame in frames]
    first = readings[0] if readings else None
    if first is None or any(r is None or r.options != first.options or r.streams != first.streams for r in readings):
        raise UsageError(
            "flow_of takes streams as they were read, all by the same reader; operators of Spark stand in between, or "
            "the frame comes from elsewhere; put filter and map behind flow_of"
        )
    return _flow_of(frames[0], first, [r.only for r in readings if r is not None], partitions)


def _flow_of(
    frame: DataFrame, reading: Reading, only: Sequence[tuple[str, ...] | None], partitions: int | None
) -> Flow:
    spark = frame.sparkSession
    options = {k: v for k, v in reading.options.items() if k.lower() != "root"}
    root = next((v for k, v in reading.options.items() if k.lower() == "root"), os.environ.get("HOLDFAST_ROOT", ""))
    count = partitions or max(1, spark.sparkContext.defaultParallelism)
    known = reading.whole if reading.whole is not None else frame
    streams = reading.streams if "roots" in options else _with_stripes(root, reading.streams)
    made = Flow(spark, os.path.abspath(root), streams, tuple(options.items()), count, known=known)
    taken = [name for names in only if names is not None for name in names]
    if None in only or set(taken) == set(reading.streams):
        return made
    return made.filter(F.col(STREAM_COLUMN).isin(taken))
