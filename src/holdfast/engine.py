"""The engine port: what a host needs of whatever runs the queries of its nodes. Spark is one (`holdfast.spark.engine`).

Rules:
1. An engine makes the queries of one replica (`NodeQueries`): the stable one, and at most one fork of it at a time that
   counts. A host asks for nothing else, and knows nothing of batches but their number and where they end.
2. The stable query reads its inputs up to what `decision` says, in whole buckets, and files its results in the output
   stream, each batch once, whoever is killed. Where it stands is durable: the next start goes on there.
3. A fork goes on from the last commit of the stable query and never changes it (S1). It reads the buckets that stand in
   its plan (`stream.tentative`) and files its results in the branch that has its id, those behind the branch's root.
   Until there is one, it files nothing; what it has computed by then and the branch lacks (`stream.waiting`) is filed
   with the first batch after that.
4. What starts, stops, copies or packs may take long and is called on threads of the caller's; what only looks
   (`position`, `progress`, `planned`, `ready`) is called a hundred times a second.
5. Stopping is idempotent, also of what has failed. An error that no new start can mend says so, and so does one that
   the same batch would die of again (`explain`).

`holdfast.testing.engines` has the suite that an implementation is put to.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import pyarrow as pa

from holdfast.diagram import NodeSpec
from holdfast.inputs.source import EngineSource, SourceInput
from holdfast.model.errors import HoldfastError, Removed, UnknownStream, UsageError
from holdfast.model.time import duration_text
from holdfast.stream.definition import Retention, added_columns
from holdfast.stream.store import Stream, StreamStore
from holdfast.stream.waiting import Waiting


class Progress(NamedTuple):
    """How far a query has come."""

    batch_id: int
    """The last committed batch; -1 before the first."""
    until_us: int | None
    """Inputs are consumed up to here; None before the first batch."""


class Recovery(NamedTuple):
    """What the continuous checkpoints of a query's operator cost with its last batch, and what they are worth."""

    windows: int
    """N: open windows that a recovery loads."""
    since_us: int
    """T: the input from here on is computed again."""
    extent_s: float
    opened: int
    """Records: Gopen, Gcheck and R,"""
    checked: int
    closed: int
    bytes: int
    """and their size."""
    period_s: float
    """How often a slow window is saved now."""
    recovery_estimate_s: float
    """What a recovery would take, without the start of the query."""
    last_recovery_s: float | None
    """What the last one took; None before the first."""
    recover_within_s: float | None
    """What was asked for."""

    @property
    def broken_goal(self) -> str | None:
        """Why the time that was asked for cannot be kept; None if it can."""
        if self.recover_within_s is None or self.recovery_estimate_s <= self.recover_within_s:
            return None
        return (
            f"a recovery must take {_seconds(self.recover_within_s)} at most (recover_within); it would take some "
            f"{_seconds(self.recovery_estimate_s)}: {self.windows:,} windows to load and {_seconds(self.extent_s)} of "
            f"input to compute again, though slow windows are saved every {_seconds(self.period_s)}; allow checkpoints "
            f"a larger budget, use more partitions or smaller batches, or ask for a longer time"
        )


def _seconds(seconds: float) -> str:
    return f"{seconds:.3g} s"


class Saves(NamedTuple):
    """What the checkpoints of one operator in a store have come to, over all its partitions."""

    operator: str
    durable: int
    """Checkpoints that its store took since the engine was started."""
    dropped: int
    """Those that it did not take, and deadlines, since the query began."""
    met: int
    missed: int
    late_s: float
    """By how much the latest of them was late."""
    waiting: int
    """Partitions whose checkpoint was handed over and is not in the store yet."""
    bytes: int
    """The newest checkpoint of each partition, together."""
    last_restore_s: float | None
    """How long state took to come back from the store, in the slowest partition; None if it never had to."""


class Work(NamedTuple):
    """What the batches of a query came to, each counted once."""

    batches: int = 0
    busy_ms: float = 0.0
    rows: int = 0
    parts_ms: Mapping[str, float] = MappingProxyType({})

    def with_batch(self, busy_ms: float, rows: int, parts_ms: Mapping[str, float]) -> Work:
        """One more."""
        parts = {part: self.parts_ms.get(part, 0.0) + took_ms for part, took_ms in parts_ms.items()}
        return Work(self.batches + 1, self.busy_ms + busy_ms, self.rows + rows, {**self.parts_ms, **parts})


@dataclass(slots=True)
class Reading:
    """What one look at a query has shown of its work."""

    batch_id: int
    busy_ms: float
    rows: int
    state_bytes: int
    span_us: int | None = None
    """How much of the input's time the batch has read; 0 if that says nothing, None if the engine does not say."""
    parts_ms: dict[str, float] = field(default_factory=dict, compare=False)
    """What parts of `busy_ms` were spent on, in the engine's own words; for people."""
    recovery: Recovery | None = field(default=None, compare=False)
    """Of an operator with continuous checkpoints."""
    work: Work | None = field(default=None, compare=False)
    """All batches since somebody first looked, also over restarts of the query; None if the engine does not say."""


class Failure(NamedTuple):
    """Why a query stopped."""

    sentence: str
    permanent: bool
    """Whether no new start can mend it."""
    cause: str | None = None
    """What the batch has died of, told without values, if the same batch would die of it again; None: it may pass."""


class Description(NamedTuple):
    """What is known of a node's query before it runs."""

    stime: str
    """Where the time of a result is found."""
    lag_us: int = 0
    """How much later than their time results may come."""
    bucket_by_bucket: bool = False
    """Whether it must not read several buckets in one batch."""
    operators: tuple[str, ...] = ()
    """Those with state, as the engine calls them."""


class Coverage(NamedTuple):
    """Which input goes into the results of an instant: that from `before_us` ahead of it until `after_us` behind it."""

    before_us: int | None = None
    """Less than nothing if it begins behind the instant; None: not known, and may be all that came before."""
    after_us: int = 0
    """No more than the output stays behind the input (`NodeQueries.promised_us`)."""
    step_us: int = 0
    """All results have times that are multiples of this, and their input ends right before `after_us`, as that of
    windows does. 0: they may have any time, and the input of that very instant belongs to them."""


class Operator(NamedTuple):
    """One operator with state inside a node, and what protects it."""

    name: str
    kind: str
    keeps: str
    """Its state, in words."""
    policy: str
    saves: str
    store: str | None = None


class Query(ABC):
    """One run of a query, stable or fork."""

    @property
    @abstractmethod
    def active(self) -> bool:
        """Whether it runs."""

    @abstractmethod
    def failure(self) -> BaseException | None:
        """What it stopped of by itself; None if it runs, or was stopped, or does not say."""

    @abstractmethod
    def stop(self) -> None:
        """Rule 5. Returns when nothing of it writes any more."""

    @abstractmethod
    def reading(self) -> Reading | None:
        """The work of the last batch; None before the first. May take a moment."""

    def saves(self) -> tuple[Saves, ...]:
        """What the checkpoints of its operators that save to a store have come to. Does not wait."""
        return ()


class Fork(NamedTuple):
    """A fork that was started."""

    query: Query
    checkpoint: Path
    plan: Path
    branch: str
    """The id of the branch it writes to, which is created when it gets the first bucket that is to be seen."""
    batch_id: int
    """The last batch of the parent."""
    root_us: int
    """The parent had consumed its inputs up to here."""


class NodeQueries(ABC):
    """The queries of one replica of one node."""

    @property
    @abstractmethod
    def decision(self) -> Path:
        """The file that says how far the stable query may read (`stream.decision`)."""

    @abstractmethod
    def create_output(self, bucket_us: int) -> Stream:
        """The output stream with the columns that the function gives. What is there already, and the state of the
        query, must fit; a function that cannot be right is refused here."""

    @abstractmethod
    def describe(self) -> Description:
        """What is known of the query before it runs."""

    def operators(self) -> tuple[Operator, ...]:
        """Those with state, once the output has been created; none if the engine does not say."""
        return ()

    # -- the stable query --------------------------------------------------------------------------------------------

    @abstractmethod
    def start_stable(self) -> Query:
        """Rule 2."""

    @abstractmethod
    def position(self) -> Progress:
        """Where the stable query stands, also when it does not run."""

    def mends(self) -> Mapping[str, int]:
        """How often the boundary of each input had been taken back when the stable query read the last of it; inputs
        that are not named: never."""
        return {}

    @abstractmethod
    def progress(self, since: int, fork: Fork | None = None) -> Progress | None:
        """The last committed batch of the stable query, or of a fork, if it is a later one than `since`."""

    @abstractmethod
    def planned(self, batch_id: int) -> bool:
        """Whether it is settled what the batch reads, so that it will be this and nothing else."""

    @abstractmethod
    def begin_anew(self, start_us: int, right_from_us: int) -> None:
        """From the next start on the stable query begins here, with an empty state; results before `right_from_us` are
        left out. It does not run now."""

    @property
    def keeps_state(self) -> bool:
        """Whether input that was read may be needed to restore the state of operators."""
        return False

    def needed_us(self, until_us: int) -> int:
        """Once results up to `until_us` are written, earlier input than this is not needed any more."""
        return until_us

    @property
    def coverage(self) -> Coverage:
        """Which input goes into a result. Where nothing is said: all of it, as far as the output stays behind."""
        return Coverage(None, -self.promised_us(0))

    @abstractmethod
    def promised_us(self, until_us: int) -> int:
        """What the output promises once the query has consumed its inputs up to `until_us`."""

    # -- movement ----------------------------------------------------------------------------------------------------

    @abstractmethod
    def copy_to(self, checkpoint: Path) -> Waiting:
        """A copy of where the stable query stands, from which the same query can go on elsewhere; it runs on."""

    @property
    def stays_because(self) -> str | None:
        """Why it can never run elsewhere; None if it can."""
        return None

    @abstractmethod
    def forget(self) -> None:
        """The stable query has stopped, and whoever goes on with the node does so from a copy: nothing that it keeps
        outside its folder is needed any more."""

    # -- forks -------------------------------------------------------------------------------------------------------

    @abstractmethod
    def start_fork(self, fork: int) -> Fork:
        """Rule 3. Returns when it is started; `ready` says when it could run a batch. What could not be started leaves
        nothing behind."""

    @abstractmethod
    def ready(self, fork: Fork) -> bool:
        """Whether it could run a batch now."""

    @abstractmethod
    def stop_fork(self, fork: Fork) -> None:
        """Rule 5. What it kept goes; its branch is the caller's."""

    @abstractmethod
    def clear_forks(self) -> None:
        """A host that starts has no forks: what an earlier life left is removed."""

    # -- failures ----------------------------------------------------------------------------------------------------

    def explain(self, error: BaseException | None) -> Failure:
        """Of what a method here raised or a query stopped of."""
        text = "no reason given" if error is None else str(error).strip() or type(error).__name__
        return Failure(text, is_users(type(error)))


def is_users(kind: type) -> bool:
    """Whether errors of this kind are the user's to mend and the same at every start. Input that is gone, and a stream
    that is not there, are not: the replica goes on behind a gap, and streams come."""
    return issubclass(kind, UsageError) and not issubclass(kind, Removed | UnknownStream)


class Engine(ABC):
    """Runs queries for one host."""

    #: For sentences.
    name: str = "the engine"
    #: By which it refuses a function that is described to it, beside `HoldfastError`.
    errors: tuple[type[Exception], ...] = (HoldfastError,)

    @abstractmethod
    def start(self) -> None:
        """Make ready to run queries: may take long, and is tried again where it failed. Called before `queries`."""

    @property
    @abstractmethod
    def ended(self) -> str | None:
        """Why nothing can be run any more: what was started has gone; None while it is there."""

    @abstractmethod
    def queries(self, node: NodeSpec, inputs: Sequence[Stream], outputs: Path, home: Path) -> NodeQueries:
        """The queries of a replica. `outputs` is where its output stream lies, `home` its own folder."""

    def ingest(
        self, source: EngineSource, stream: str, store: StreamStore, home: Path, bucket_us: int | None
    ) -> SourceInput:
        """An input that fills a stream from a source of the engine's own. `home` is a folder for where it stands."""
        raise UsageError(f"the source of stream {stream} must be one that {self.name} can read; it reads none")

    @abstractmethod
    def take_up(self, home: Path, checkpoint: Path, right_from_us: int | None) -> None:
        """The next start of the replica whose folder `home` is goes on from a copy (`NodeQueries.copy_to`), which is
        moved there; results before `right_from_us` are left out. It does not run now, and its output has been given the
        results that waited when the copy was made. Whoever was killed in here may call it again before the start."""

    @abstractmethod
    def renew(self, checkpoint: Path) -> None:
        """Whoever else goes on from the same copy shares nothing with who goes on from this one."""


def create_output(store: StreamStore, node: NodeSpec, columns: pa.Schema, bucket_us: int) -> Stream:
    """The output stream of a node. One that is there already must have its columns; those that it has not got are added
    when the node is let in (`StreamStore.add_columns`). What is kept of it is the node's affair, unless somebody has
    given it an age or a size."""
    retention = Retention(acknowledged=node.retain == "acknowledged")
    stream = store.open(node.output) if node.output in store.names() else None
    if stream is None or not added_columns(stream.definition, columns):
        stream = store.create(node.output, columns, bucket=duration_text(bucket_us), retention=retention, exist_ok=True)
    stream.definition.require_replay(f"node {node.name}, which writes it,")
    given = stream.definition.retention
    if given != retention and given.age_us is None and given.size_bytes is None:
        return store.change_retention(node.output, retention)
    return stream
