"""The queries of `federation` in plain Python, where Spark would run them: for killing hosts hundreds of times.

It does what Spark does, as far as a movement can see: batches of whole buckets as decided by the controller, a log of
offsets before each and of commits after it, a version of the state for each, results through the same sink. A batch
whose offsets are there and whose commit is not is done again. Everything else in a host that runs it is the real thing;
of `federation.TALLIES` that is the operator, too, with its versions, its checkpoints and their way back.

    python -m tests.load.plain_engine FILE NAME        # as `holdfast host FILE NAME`
"""

from __future__ import annotations

import json
import os
import sys
import threading
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl
import pyarrow as pa
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema

from holdfast.cli.host import be_host
from holdfast.clock import pause
from holdfast.diagram import NodeSpec
from holdfast.engine import Coverage, Description, Engine, NodeQueries, Query, Reading, Recovery, Work, create_output
from holdfast.model.errors import HoldfastError, StorageError
from holdfast.model.schema import STIME_TYPE
from holdfast.model.time import BEGINNING_US, instant_text
from holdfast.operators import count, count_window, sum_
from holdfast.operators.kernel import aggregate_kernel
from holdfast.operators.plan import Plan
from holdfast.protocol.cec.policy import continuous
from holdfast.spark import control
from holdfast.spark.checkpoint_figures import TYPE as FIGURES
from holdfast.spark.direct import DirectStage, Rows
from holdfast.spark.fork import last_commit, renew_id
from holdfast.spark.forked import ready_mark
from holdfast.spark.node_checkpoint import CheckpointedQueries, query_id, waiting_beside
from holdfast.spark.node_identity import Admission
from holdfast.spark.plan_identity import identity
from holdfast.spark.query_start import take_up
from holdfast.spark.restore import Spec
from holdfast.spark.sink import Target
from holdfast.spark.source import offset_of, until_of
from holdfast.spark.stage import Batch, Output, Stage, StagePlan
from holdfast.spark.state_versions import Lineages
from holdfast.stream.decision import Decision
from holdfast.stream.disk import Disk
from holdfast.stream.merge import FOREVER_US, Merge, PieceReader
from holdfast.stream.store import Stream, StreamStore
from holdfast.stream.tentative import PlannedReader, PlanReader

SECOND = 1_000_000
_WINDOW = pa.struct([("start", STIME_TYPE), ("end", STIME_TYPE)])
TALLIES = pa.schema([("stime", STIME_TYPE), ("source", pa.string()), ("count", pa.int64()), ("sum_bytes", pa.int64()),
                     (control.COLUMN, pa.binary())])  # fmt: skip
#: As they leave the stage.
STAGED = pa.schema([*TALLIES, *to_arrow_schema(T.StructType([T.StructField(control.FIGURES, FIGURES)]))])
SCHEMA = pa.schema([("window", _WINDOW), ("source", pa.string()), ("n", pa.int64()), ("bytes", pa.int64())])


#: How Spark's snapshots begin; a parcel with others is refused.
MARK = "LZ4Block"


class Settings(NamedTuple):
    """What a function of a test computes here, as it says in its attribute `plain`."""

    scale: int = 1
    without: str = ""
    rate: bool = False
    window: int = 1

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([*SCHEMA, ("rate", pa.float64())]) if self.rate else SCHEMA

    @property
    def lines(self) -> list[str]:
        return [f"Project [{self.scale}, {self.without}, {self.rate}]", f"  Aggregate [window {self.window}s]"]


DEFAULTS = Settings()


class Decided:
    """What the stable query reads: its inputs merged, up to what the controller decided."""

    def __init__(self, inputs: Sequence[Stream], decision: Path) -> None:
        self.merge, self._decision = Merge(inputs), Decision(decision)

    def until_us(self) -> int:
        self.merge.refresh()
        return min(self._decision.until_us, self.merge.complete_until_us)

    def read(self, since: int, until: int) -> Iterator[pa.RecordBatch]:
        reader = PieceReader(self.merge.sources, stream_column=False)
        self.merge.refresh()
        yield from reader.read(self.merge.pieces(since, until), since, until)
        reader.close()


class Planned:
    """What a fork reads: the buckets of its plan."""

    def __init__(self, inputs: Sequence[Stream], plan: Path) -> None:
        self._sources, self._path, self._plan = Merge(inputs).sources, plan, PlanReader(plan)

    def until_us(self) -> int:
        ready_mark(self._path).touch()
        self._plan.refresh()
        until = self._plan.until_us
        return BEGINNING_US if until is None else until

    def read(self, since: int, until: int) -> Iterator[pa.RecordBatch]:
        reader = PlannedReader(self._sources, stream_column=False)
        self._plan.refresh()
        yield from reader.planned(self._plan.pieces(since, until))
        reader.close()


class PlainQuery(Query):
    """One run of the query, in a thread."""

    schema = SCHEMA

    def __init__(
        self, source: Decided | Planned, checkpoint: Path, sink: dict[str, str], start_us: int,
        settings: Settings = DEFAULTS,
    ) -> None:  # fmt: skip
        self._source, self.checkpoint, self._start_us = source, checkpoint, start_us
        self._settings, self.schema = settings, self.schema if settings is DEFAULTS else settings.schema
        self._target = Target({**sink, "checkpointlocation": str(checkpoint)}, self.schema)
        self._run_id = str(uuid.uuid4())
        for name in ("offsets", "commits", "state/0/0"):
            (checkpoint / name).mkdir(parents=True, exist_ok=True)
        if not (checkpoint / "metadata").exists():
            Disk().replace_file(checkpoint / "metadata", json.dumps({"id": str(uuid.uuid4())}).encode())
        self._id = query_id(checkpoint)
        self._end = threading.Event()
        self._trouble: BaseException | None = None
        self._reading: Reading | None = None
        self._thread = threading.Thread(target=self._run, name=f"plain-{checkpoint.parent.name}", daemon=True)
        self._thread.start()

    @property
    def active(self) -> bool:
        return self._thread.is_alive()

    def failure(self) -> BaseException | None:
        return self._trouble

    def stop(self) -> None:
        self._end.set()
        self._thread.join()

    def reading(self) -> Reading | None:
        return self._reading

    def _run(self) -> None:
        try:
            batch = last_commit(self.checkpoint)
            until = self._start_us if batch < 0 else self._planned(batch)
            state = self._load(batch)
            while not self._end.is_set():
                to = self._planned(batch + 1)
                if to is None:
                    to = self._source.until_us()
                    if to <= until and batch >= 0:
                        pause(20_000)
                        continue
                    to = max(to, until)
                    line = json.dumps(offset_of(to))
                    self._write(f"offsets/{batch + 1}", f'v1\n{{"batchWatermarkMs":0}}\n{line}\n')
                batch += 1
                state = self._batch(batch, until, to, state)
                until = to
        except BaseException as error:
            self._trouble = error

    def _load(self, batch: int) -> Any:
        if batch < 0:
            return {}
        return json.loads((self.checkpoint / f"state/0/0/{batch + 1}.snapshot").read_text().removeprefix(MARK))

    def _planned(self, batch: int) -> Any:
        path = self.checkpoint / "offsets" / str(batch)
        return until_of(json.loads(path.read_text().splitlines()[2])) if path.exists() else None

    def _write(self, name: str, text: str) -> None:
        path = self.checkpoint / name
        temporary = path.with_name(f".{path.name}.tmp")
        temporary.write_text(text)
        temporary.rename(path)

    def _batch(self, batch: int, since: int, until: int, state: dict[str, list[int]]) -> dict[str, list[int]]:
        rows, state = 0, {key: list(value) for key, value in state.items()}
        for part in self._source.read(since, until):
            stimes = part.column("stime").cast(pa.int64()).to_pylist()
            for at, source, size in zip(stimes, part["source"].to_pylist(), part["bytes"].to_pylist(), strict=True):
                window_us = self._settings.window * SECOND
                both = state.setdefault(f"{at // window_us * window_us} {source}", [0, 0])
                both[0] += 1
                both[1] += size
                rows += 1
        ready = [key for key in state if int(key.split()[0]) + self._settings.window * SECOND <= until]
        self._file(batch, until, [(int(key.split()[0]), key.split()[1], *state.pop(key)) for key in ready])
        self._write(f"state/0/0/{batch + 1}.snapshot", MARK + json.dumps(state))
        self._committed(batch, since, until, rows)
        return state

    def _committed(self, batch: int, since: int, until: int, rows: int, recovery: Recovery | None = None) -> None:
        self._write(f"commits/{batch}", 'v1\n{"nextBatchWatermarkMs":0}')
        span_us = until - since if since > BEGINNING_US and until < FOREVER_US else 0
        before = Work() if self._reading is None else self._reading.work or Work()
        work = before.with_batch(1.0, rows, {"plain": 1.0})
        self._reading = Reading(batch, 1.0, rows, 0, span_us, {"plain": 1.0}, recovery, work)

    def _file(self, batch: int, until: int, found: list[tuple[Any, ...]]) -> None:
        settings, schema = self._settings, self.schema
        found = [(at, s, n * settings.scale, b, b / n) for at, s, n, b in found if s != settings.without]
        windows = pa.array([{"start": at, "end": at + settings.window * SECOND} for at, *_ in found], _WINDOW)
        columns = [windows, *(pa.array([row[i] for row in found], schema.field(i).type) for i in range(1, len(schema)))]
        results = pa.RecordBatch.from_arrays(columns, schema=schema)
        message = self._target.take(iter([results]), self._id, self._run_id, str(batch))
        self._target.append([message], until, self._id, self._run_id, batch)


class PlainTallies(PlainQuery):
    """One run of the query of `TALLIES`: tasks as Spark would run them, one after the other."""

    schema = TALLIES

    def __init__(self, spec: Spec, source: Decided, *more: Any) -> None:
        self._spec, self._merge = spec, source.merge
        super().__init__(source, *more)

    def _load(self, batch: int) -> Any:
        return None

    def _batch(self, batch: int, since: int, until: int, state: Any) -> Any:
        plan = Plan((count(), sum_("bytes")), (None, 0), {0: pl.Int64()})
        kernel, keeps_panes = aggregate_kernel(count_window(20), plan, ("_k0",))
        output = Output(self._target.options.get("root") or "", self._spec.stream)
        stage = StagePlan(self._spec.operator, kernel, keeps_panes, STAGED, ("stime", "_k0", "count", "sum_bytes"),
                          SECOND, self._spec.versions, continuous(), output)  # fmt: skip
        direct = DirectStage(stage, self._spec.partitions, ("source",), ("bytes",))
        self._merge.refresh()
        pieces, messages, seen = self._merge.pieces(since, until), [], 0
        said: list[dict[str, Any]] = []
        for partition in range(self._spec.partitions):
            rows = Rows(direct, self._merge.sources, partition)
            new = rows.read(pieces, since, until)
            given = Batch(since, until, new, lambda position_us, rows=rows: rows.again(position_us, since))  # type: ignore[misc]
            made = list(Stage(stage, partition, batch).run(given))
            rows.close()
            said += [found for part in made for found in part[control.FIGURES].to_pylist() if found is not None]
            made = [part.drop_columns([control.FIGURES]) for part in made]
            messages.append(self._target.take(iter(made), self._id, self._run_id, str(batch)))
            seen += len(new)
        self._target.append(messages, until, self._id, self._run_id, batch)
        self._committed(batch, since, until, seen, _together(said))


def _together(said: list[dict[str, Any]]) -> Recovery:
    """As Spark observes it."""
    windows, opened, checked, closed, size = (
        sum(one[name] for one in said) for name in ("windows", "opened", "checked", "closed", "bytes")
    )
    extent_us, period_us, estimate_s = (max(one[n] for one in said) for n in ("extent_us", "period_us", "estimate_s"))
    return Recovery(windows, min(one["since_us"] for one in said), extent_us / 1e6, opened, checked, closed, size,
                    period_us / 1e6, estimate_s, None, None)  # fmt: skip


class PlainFlow:
    """As `NodeFlow`, for `TALLIES`: which versions are whose is decided by the real thing."""

    keeps_state = True

    def __init__(self, node: Any, outputs: Path, home: Path) -> None:
        self._lineages = Lineages(home, outputs, node.output, "aggregate-direct", 2)
        self.spec, self.needed_us, self.pack = self._lineages.spec, self._lineages.needed_us, self._lineages.pack
        self.forget, self.clear = self._lineages.forget, self._lineages.clear

    def forget_stored(self, generation: int) -> None:
        """Its checkpoints lie in the log of its results."""


class PlainQueries(CheckpointedQueries):
    """What a controller asks for, without Spark."""

    def __init__(self, node: NodeSpec, inputs: Sequence[Stream], outputs: Path, home: Path) -> None:
        super().__init__(node, inputs, outputs, home)
        if node.output.startswith("tallies-"):
            self._flow = PlainFlow(node, outputs, home)  # type: ignore[assignment]
        self._settings = Settings(**getattr(node.function, "plain", {}))

    def create_output(self, bucket_us: int) -> Stream:
        columns = self._settings.schema if self._flow is None else pa.schema(list(TALLIES)[1:-1])
        store = StreamStore(self._outputs)
        output = create_output(store, self._node, columns, bucket_us)
        if self._flow is None:
            found = identity(self._settings.lines)
            admission = Admission(self._node, self._home, self._beginning, output, found)
            self._beginning = admission.admitted(lambda _: None)
        return store.add_columns(self._node.output, columns)

    def describe(self) -> Description:
        return Description("window.end" if self._flow is None else "stime")

    @property
    def coverage(self) -> Coverage:
        window_us = self._settings.window * SECOND
        return Coverage(window_us, 0, window_us) if self._flow is None else Coverage()

    def promised_us(self, until_us: int) -> int:
        return until_us

    def start_stable(self) -> Query:
        start_us, first = self._beginning.start_us, self._beginning.right_from_us
        sink = {} if first is None else {"from": instant_text(first)}
        return self._run(Decided(self._inputs, self.decision), self.checkpoint, sink, start_us)

    def _run_fork(self, fork: int, checkpoint: Path, plan: Path, branch: str) -> Query:
        if self._flow is not None:
            raise StorageError("the plain engine has no forks of operators with a state of their own")
        sink = {"branch": branch, "waiting": str(waiting_beside(plan))}
        return self._run(Planned(self._inputs, plan), checkpoint, sink)

    def _run(
        self, source: Decided | Planned, checkpoint: Path, sink: dict[str, str], start_us: int | None = None
    ) -> Query:
        target = {"root": str(self._outputs), "path": self._node.output, **sink}
        begin_us = BEGINNING_US if start_us is None else start_us
        if isinstance(self._flow, PlainFlow):
            assert isinstance(source, Decided)
            return PlainTallies(self._flow.spec(self._beginning.generation), source, checkpoint, target, begin_us)
        return PlainQuery(source, checkpoint, target, begin_us, self._settings)


class PlainEngine(Engine):
    """Nothing to start, nothing that could end."""

    ended = None

    def start(self) -> None:
        pass

    def queries(self, node: NodeSpec, inputs: Sequence[Stream], outputs: Path, home: Path) -> NodeQueries:
        return PlainQueries(node, inputs, outputs, home)

    def take_up(self, home: Path, checkpoint: Path, right_from_us: int | None) -> None:
        take_up(home, checkpoint, right_from_us)

    def renew(self, checkpoint: Path) -> None:
        renew_id(checkpoint, durable=True)


def main() -> None:
    try:
        be_host(Path(sys.argv[1]), sys.argv[2], PlainEngine())
    except HoldfastError as error:
        print(f"holdfast: {error}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    main()
