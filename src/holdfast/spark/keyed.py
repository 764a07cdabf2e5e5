"""User-defined operators in Spark's executors: `repartition` by key, then one task per partition and batch.

An operator without a key, such as a join with one window over everything or a barrier, has one instance in one task.

What a task does with states, and where they go, is in `holdfast.spark.keyed_task`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType, _parse_datatype_string

from holdfast.checkpoint.deadlines import Kept
from holdfast.checkpoint.derive import Protection, StateKind, derive
from holdfast.checkpoint.policy import Every, Groups, Guarantee, NoCheckpoint, Upstream, guarantee_of
from holdfast.model.errors import UsageError
from holdfast.model.names import check_name
from holdfast.model.time import duration_us
from holdfast.operators.functor import functor_of
from holdfast.operators.keyed_barrier import paired
from holdfast.operators.keyed_join import JoinPrototype
from holdfast.operators.state_parts import Parted
from holdfast.operators.udop import STIME, UserOperator
from holdfast.spark.arrivals import operators_in
from holdfast.spark.keyed_task import Task
from holdfast.spark.plan_tree import kind_of, nodes
from holdfast.spark.save_figures import collector
from holdfast.spark.save_policy import report
from holdfast.spark.time_column import DELAY


class ForkOf(NamedTuple):
    """What an operator in a fork must know: whose state it begins with, and where its own goes."""

    query_id: str
    scratch: str
    root: int | None = None
    """The batch that it begins with: later ones of its parent are not its own. None: whichever it runs first."""


class InNode:
    """What an operator in a node must know, and which there are."""

    def __init__(self, checkpoint: Path) -> None:
        self.arrived = operators_in(checkpoint)
        self.tasks: list[Task] = []


_fork: ContextVar[ForkOf | None] = ContextVar("_fork", default=None)
_node: ContextVar[InNode | None] = ContextVar("_node", default=None)


@contextlib.contextmanager
def forked_from(query_id: str, scratch: Path, root: int | None = None) -> Iterator[None]:
    """Operators that are applied meanwhile, in this thread, belong to a fork of that query that begins with `root`."""
    token = _fork.set(ForkOf(query_id, str(scratch), root))
    try:
        yield
    finally:
        _fork.reset(token)


@contextlib.contextmanager
def in_node(checkpoint: Path) -> Iterator[list[Task]]:
    """Operators that are applied meanwhile, in this thread, belong to the node whose query has that checkpoint."""
    node = InNode(checkpoint)
    token = _node.set(node)
    try:
        yield node.tasks
    finally:
        _node.reset(token)


def check_names(tasks: Sequence[Task], results: DataFrame, whose: str) -> None:
    """Two operators of one name in one query would share their states.

    A function with several outputs may apply one to each: every output is a query of its own. And the results of one
    may be used twice: that is the same batch again.
    """
    names = [task.name for task in tasks]
    twice = sorted({name for name in names if names.count(name) > 1})
    if not twice:
        return
    plan = nodes(results._jdf.queryExecution().analyzed())
    used = sum(kind_of(n) == "MapInArrow" and n.functionExpr().name() == Task.__name__ for n in plan)
    if used > len(set(names)):
        raise UsageError(
            f"{whose} has two operators called {twice[0]}, and their states would be one; give each a name of its own"
        )


#: Tuples in a group of a join's windows in scratch, where no policy names it. The seeds tried 512 to 4,096.
_GROUP = 512
#: What may protect an operator on Spark; which of them fits which operator is for `derive` to say.
Policy = Every | Groups | Upstream | NoCheckpoint
#: How a partition comes by its states after a loss.
Restoring = Literal["all", "lazily", "beside"]


@dataclass(frozen=True)
class Keyed:
    """The description of an operator on Spark. Make one with `udop`."""

    name: str
    prototype: Callable[[], UserOperator]
    key: str | None
    schema: str | StructType
    checkpoint: Policy
    store: str | None
    scratch: str | None
    time: str | None
    state_fits: bool = False
    time_to_live_us: int | None = None
    """None: the class says it."""
    forget: bool = True
    restore: Restoring = "all"

    @property
    def exact(self) -> bool:
        return guarantee_of(self.checkpoint) is Guarantee.EXACT

    @property
    def protection(self) -> Protection:
        # What is more than a user-defined operator says so: a join has sliding windows, a barrier tuples in flight.
        kind = getattr(self.prototype, "kind", "user-defined operator")
        state = getattr(self.prototype, "state_kind", StateKind.KEYED)
        derived = derive(self.name, kind, state, self.checkpoint, self.store)
        if isinstance(self.checkpoint, Upstream):
            return replace(derived, saves="the tuples on their way, each once")
        if isinstance(self.checkpoint, Groups) and self.checkpoint.exact:
            groups = f"the groups of {self.checkpoint.size} tuples that changed, of each window, with each batch"
            return replace(derived, saves=groups)
        return derived

    def __call__(self, frame: DataFrame) -> DataFrame:
        """The results over a (streaming) DataFrame: `frame.transform(operator)`."""
        node = _node.get()
        # A number that is named, so that Spark does not put partitions together when a batch is small.
        partitions, key_type = 1, ""
        if self.key is not None:
            partitions = int(frame.sparkSession.conf.get("spark.sql.shuffle.partitions") or 1)
            key_type = frame.select(self.key).schema[0].dataType.simpleString()
        # Not earlier: Spark reads the text of a schema only where a session runs, and `holdfast explain` has none.
        schema = _parse_datatype_string(self.schema) if isinstance(self.schema, str) else self.schema
        assert isinstance(schema, StructType)
        given = to_arrow_schema(schema, timezone="UTC")
        figures = collector(frame.sparkSession)
        arrived = "" if node is None else node.arrived
        task = Task(self, given, partitions, _fork.get(), arrived, key_type, figures, in_node=node is not None)
        if node is not None:
            node.tasks.append(task)
        by = [] if self.key is None else [self.key]
        results = frame.repartition(partitions, *by).mapInArrow(task, schema)
        note = _event_time(frame)
        if note is None or not getattr(self.prototype, "keeps_time", False) or STIME not in results.columns:
            return results
        return results.withMetadata(STIME, note)


def _event_time(frame: DataFrame) -> dict[str, Any] | None:
    """Spark's note that stime is the frame's event time: a function in Python loses it."""
    found = next((field.metadata for field in frame.schema if field.name == STIME), None)
    return found if found and DELAY in found else None


def udop(
    name: str, prototype: Callable[[], UserOperator], *, key: str | None, schema: str | StructType,
    checkpoint: Policy | None = None, store: str | None = None, scratch: str | None = None, time: str | None = None,
    state_fits: bool = False, ttl: str | float | timedelta | None = None, forget: bool = True,
    restore: Restoring = "all",
) -> Keyed:  # fmt: skip
    """An operator of your own on Spark, one instance of `prototype` per value of `key`; None: one for everything.

    `store` is the address of the checkpoint store that outlives the machine ("log:/mnt/shared/…", "redis://…"); paths
    get a folder per query and partition. `scratch` is a folder of the machine, by default one that only this user can
    write to. `time` names the timestamp column that `output_after_us` and `time_to_live_us` go by; without it, they go
    by the clock. `state_fits` takes a state that was made by another class, with another key, or for other columns.
    `checkpoint` goes before the policy that a functor is annotated with (`functor(…, checkpoint=…).build`).

    `ttl` is a time to live for all keys, such as "30 min", in place of the class's `time_to_live_us`. A key without
    tuples for so long is forgotten; with `forget=False` its state leaves scratch only, and comes back from the store
    with the key's next tuple. `restore` says how a partition comes by its states after a loss: "all" before its first
    tuple, "lazily" each with the first tuple of its key, "beside" as lazily, and some of the rest with each batch.
    """
    annotated = functor_of(prototype)
    if annotated is not None and checkpoint is None:  # From here on it is the operator's, and no part of what it does.
        prototype, checkpoint = annotated.unprotected.build, annotated.policy
    policy = checkpoint or NoCheckpoint()
    _check_prototype(name, prototype, isinstance(policy, NoCheckpoint))
    if not isinstance(policy, NoCheckpoint) and store is None:
        raise UsageError(f"{name}: {policy} needs a store, such as store='log:/var/lib/app/checkpoints'")
    if restore not in get_args(Restoring):
        raise UsageError(f"{name}: restore must be one of {', '.join(get_args(Restoring))}; got {restore!r}")
    if isinstance(policy, NoCheckpoint) and not (forget and restore == "all"):
        raise UsageError(f"{name}: states that come back later must lie in a store; name a policy and a store=, too")
    ttl_us = None if ttl is None else duration_us(ttl)
    if ttl_us is not None and ttl_us < 1:
        raise UsageError(f"{name}: ttl must be a positive time, such as '30 min'; got {ttl!r}")
    made = Keyed(
        check_name(name), prototype, key, schema, policy, store, scratch, time, state_fits, ttl_us, forget, restore
    )
    made.protection  # noqa: B018 - refuses a policy that does not fit
    if isinstance(prototype, JoinPrototype) and not isinstance(policy, Every):
        size = policy.size if isinstance(policy, Groups) else _GROUP
        return replace(made, prototype=prototype.in_groups(size))
    return made


def _check_prototype(name: str, prototype: Any, unprotected: bool) -> None:
    """What a task would find out with the first tuple."""
    is_class = isinstance(prototype, type)
    if not callable(prototype) or (is_class and not issubclass(prototype, UserOperator)):
        got = f"the class {prototype.__name__}" if is_class else f"a {type(prototype).__name__}"
        raise UsageError(
            f"{name}: the prototype must be a class that extends UserOperator or VectorOperator, or a function that "
            f"makes one; got {got}"
        )
    if not is_class or issubclass(prototype, Parted):
        return
    missing = [method for method in ("checkpoint", "restore")
               if getattr(prototype, method) is getattr(UserOperator, method)]  # fmt: skip
    # Without a policy the state goes to scratch between batches, by the same methods.
    if missing:
        raise UsageError(
            f"{name}: {prototype.__name__} must define checkpoint() and restore(saved), with which its state "
            f"{'goes from batch to batch' if unprotected else 'is saved'}; it lacks {' and '.join(missing)}"
        )


def barrier(
    name: str, inputs: Mapping[str, pa.Schema], *, schema: str | StructType, store: str, side: str = "side",
    checkpoint: Policy | None = None, scratch: str | None = None,
) -> Keyed:  # fmt: skip
    """A barrier on Spark over the union of its inputs, told apart by the column `side`.

    `upstream()` is what protects it, said or not: its tuples in flight are saved with each batch, those that came,
    until they are paired; a weaker policy would pair the wrong ones after a loss and is refused.
    """
    return udop(name, paired(name, inputs, side=side), key=None, schema=schema, checkpoint=checkpoint or Upstream(),
                store=store, scratch=scratch)  # fmt: skip


def deadlines(operator: Keyed, query_id: str) -> dict[int, Kept]:
    """How each partition of a query kept the deadlines of its checkpoints, and how many the store did not take.

    Read from the operator's store, where each checkpoint leaves its counts: on the driver, while the query runs or
    afterwards. A store in a folder is held for a moment; tasks wait for it.

        deadlines(mean, query.id)[0].missed
    """
    return report(operator, query_id)
