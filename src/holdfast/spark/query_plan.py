"""What Spark's plan of a query says about its results: how old they may be, and how it must be run.

Rules:
1. Spark's planner is asked, not the text of the user's function. The plan is the one that `explain` shows for a
   streaming frame: nothing is started.
2. The output boundary may follow the watermark that *leaves the last* operator with state. Spark computes it for each
   operator (`produceOutputWatermark`) to tell the next one what is late; a join's lies behind the one that enters it by
   the reach of its condition. For the operators that there are the distance is a constant of the query: the **lag**.
3. Some queries keep no result back although they have state: deduplication lets a row through at once, a function
   without timers answers to its rows, and the later time of an inner join's pair is that of the row that has just come.
   Their output may promise what their input does.
4. Some operators see whole batches (a function with a state of its own or over a group of rows, duplicates within a
   time). Their results are the same in every run only if the batches are: they are run **bucket by bucket**. Where
   something is kept back as well (timers, windows), a batch without tuples follows each bucket, in which that is
   released which its boundary has passed.
5. What cannot be right is refused where the node is declared (`holdfast.spark.plan_check`).
6. A deduplication by some of the columns keeps the row that comes first. Inputs come in one order (`stream.merge`),
   however they are cut into batches, and it is kept on the way if each batch is one task and every operator in between
   takes row by row. Where another one mixes rows, it is warned of.
7. A result may be given an older time than the query has for it, such as the start of its window. The output then
   promises less by that much (`holdfast.spark.result_time`). It is refused where nothing could say how much that
   is, as of the rows that a join keeps for ever, and warned of where the plan does not say it.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame

from holdfast.engine import Coverage
from holdfast.model.tuples import RESERVED
from holdfast.spark.plan_check import check_plan, refused_by_spark
from holdfast.spark.plan_tree import each, kind_of, nodes, text_of, window_us
from holdfast.spark.result_time import Older, older
from holdfast.spark.time_column import DELAY

log = logging.getLogger(__name__)

_RUNTIME = "org.apache.spark.sql.execution.streaming.runtime"
_CHECKPOINTING = "org.apache.spark.sql.execution.streaming.checkpointing"
_STATEFUL = "org.apache.spark.sql.execution.streaming.operators.stateful.StateStoreWriter"
#: Any watermark will do to see the distance; this one is far from both ends of time.
_PROBE_MS = 1_700_000_000_000

_AGGREGATE = "StateStoreSaveExec"
_JOIN = "StreamingSymmetricHashJoinExec"
_FUNCTIONS = ("FlatMapGroupsWithStateExec", "FlatMapGroupsInPandasWithStateExec", "TransformWithStateExec",
              "TransformWithStateInPySparkExec")  # fmt: skip
_WHOLE_BATCHES = (*_FUNCTIONS, "StreamingDeduplicateWithinWatermarkExec")
#: Without state: Spark hands them the rows of a group that happen to be in the batch.
_GROUPS = ("FlatMapGroupsInPandasExec", "FlatMapGroupsInArrowExec", "FlatMapCoGroupsInPandasExec",
           "FlatMapCoGroupsInArrowExec", "MapGroupsExec", "CoGroupExec")  # fmt: skip
_DUPLICATES = ("StreamingDeduplicateExec", "StreamingDeduplicateWithinWatermarkExec")
_AT_ONCE = (*_WHOLE_BATCHES, "StreamingDeduplicateExec")
#: Spark offers these operators with RocksDB only.
_ROCKSDB = ("TransformWithStateExec", "TransformWithStateInPySparkExec")

#: They hand rows on in the order in which they come.
_ROW_BY_ROW = ("Project", "Filter", "Generate", "MapInPandas", "MapInArrow", "SubqueryAlias", "View",
               "EventTimeWatermark", "UpdateEventTimeWatermarkColumn", "CollectMetrics",
               "StreamingRelationV2")  # fmt: skip
_DEDUPLICATIONS = ("Deduplicate", "DeduplicateWithinWatermark")


@dataclass(frozen=True)
class QueryPlan:
    """The operators with state, as Spark would run them, and what follows from them."""

    operators: tuple[str, ...] = ()
    lag_us: int = 0
    """How far the times of results may lie behind the watermark (rule 2)."""
    keeps_rows: bool = False
    """Whether results may come later than the batch that brought their input; then they follow the watermark."""
    by_time: bool = False
    """Whether an aggregation groups by the time itself, and not by a window of it."""
    groups: bool = False
    """Whether a function without state is given groups of rows."""
    in_order: bool = False
    """Whether a deduplication keeps the first of the rows in the order of the inputs (rule 6)."""
    older_us: int = 0
    """How far the stime of a result may lie before its event time, by how it is computed (rule 7)."""
    time_is_known: bool = True
    """Whether `older_us` is more than a guess."""
    span_us: int | None = 0
    """How much input goes into one result, in stime: that of its windows and of what its joins pair; 0: that of one
    instant; None: that is not known, and may be all of it."""
    older_us_min: int = 0
    """As `older_us`, at least; less than nothing where results have later times."""
    step_us: int = 0
    """Of which all times of results are multiples; 0: they may be any."""

    @property
    def behind_us(self) -> int:
        """How far the output's boundary stays behind that of the input, or behind the watermark where rows are kept."""
        return self.older_us + (self.lag_us if self.keeps_rows else 0)

    def coverage(self, said_us: int | None) -> Coverage:
        """Which input goes into a result; `said_us`: how much of it does, as the user says."""
        known_us = [us for us in (self.span_us, said_us) if us is not None]
        before_us = min(known_us) - self.older_us_min if known_us else None
        return Coverage(before_us, self.behind_us, self.step_us if self.span_us else 0)

    @property
    def drops_at_watermark(self) -> bool:
        """Whether an operator drops a row exactly at the watermark, which must then stay below the boundary
        (SPARK-40821). A windowed aggregation does not: its windows end at the watermark."""
        return self.by_time or any(operator != _AGGREGATE for operator in self.operators)

    @property
    def bucket_by_bucket(self) -> bool:
        """Rule 4."""
        return self.groups or any(operator in _WHOLE_BATCHES for operator in self.operators)

    @property
    def settles(self) -> bool:
        """Whether a batch without tuples follows each bucket (rule 4)."""
        return self.bucket_by_bucket and self.keeps_rows

    @property
    def times_are_free(self) -> bool:
        """Whether a user's function gives results the times that it likes."""
        return self.groups or any(operator in _FUNCTIONS for operator in self.operators)

    @property
    def may_be_late(self) -> bool:
        """Whether a result may turn out to have a time that its stream has promised to be over."""
        return not self.time_is_known and not self.times_are_free

    @property
    def settings(self) -> dict[str, str]:
        """Settings of the session that such a query needs and others do not."""
        needed = {}
        if any(operator in _ROCKSDB for operator in self.operators):
            needed["spark.sql.streaming.stateStore.providerClass"] = (
                "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
            )
            needed["spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"] = "true"
        if self.bucket_by_bucket:
            # They come or do not come, as it happens.
            needed["spark.sql.streaming.noDataMicroBatches.enabled"] = "false"
        return needed


def plan_of(frame: DataFrame, stime: tuple[str, ...], whose: str) -> QueryPlan:
    """The plan of a streaming frame whose column `stime` gives its results their time. Refuses rule 5."""
    check_plan(frame, whose)
    analysed = frame._jdf.queryExecution().analyzed()
    operators: list[Any] = []
    with refused_by_spark(whose):
        physical = _physical(frame)
        leaving_ms = _leaving(physical, _class(frame, _STATEFUL), operators)
    names = tuple(kind_of(operator) for operator in operators)
    timers = any("EventTime" in text_of(o, "timeoutConf") + text_of(o, "timeMode") for o in operators)
    later = _later_of_pairs(analysed, stime[0], operators)
    at_once = all(name in _AT_ONCE for name in names) or later
    lag_ms = 0 if leaving_ms is None else _PROBE_MS - leaving_ms
    span_us = _span_us(analysed, names, lag_ms * 1000)
    by_time = any(_by_time(operator) for operator in operators if kind_of(operator) == _AGGREGATE)
    groups = any(kind_of(node) in _GROUPS for node in nodes(physical))
    waiting = _waiting_for_ever(frame, operators)
    if waiting:
        span_us = None
    time = older(analysed, stime, whose, lag_ms * 1000, set() if later else waiting)
    in_order, keeps_rows = _deduplicates_in_order(analysed, whose), timers or not at_once
    us_min, us_max, step_us = time or Older(0, 0)
    plan = QueryPlan(names, lag_ms * 1000, keeps_rows, by_time, groups, in_order, max(0, us_max), time is not None,
                     span_us, us_min, step_us)  # fmt: skip
    if plan.may_be_late:
        log.warning("%s: the time of its results, %s, is not derived from the inputs' time, as far as its plan says; "
                    "a result below the boundary stops the query (LateTuple); give results stime, a window of it or "
                    "stime less an interval, and keep the other time in a column beside it",
                    whose, ".".join(stime))  # fmt: skip
    return plan


def _physical(frame: DataFrame) -> Any:
    """Rule 1: what `frame.explain()` makes."""
    jvm = frame.sparkSession._jvm
    assert jvm is not None
    package = _package(jvm, _RUNTIME)
    execution, metadata = package.IncrementalExecution, _package(jvm, _CHECKPOINTING).OffsetSeqMetadata
    # Spark 4.3 has one parameter more than 4.2.
    parameters = _class(frame, f"{_RUNTIME}.IncrementalExecution").getConstructors()[0].getParameterCount()
    defaults = [getattr(execution, f"$lessinit$greater$default${n}")() for n in range(12, parameters + 1)]
    made = execution(
        frame._jdf.sparkSession(), frame._jdf.queryExecution().analyzed(),
        jvm.org.apache.spark.sql.streaming.OutputMode.Append(), "<unknown>", jvm.java.util.UUID.randomUUID(),
        jvm.java.util.UUID.randomUUID(), 0, jvm.scala.Option.empty(),
        metadata.apply(0, 0, getattr(metadata, "apply$default$3")()), package.WatermarkPropagator.noop(), False,
        *defaults,
    )  # fmt: skip
    return made.sparkPlan()


def _package(jvm: Any, name: str) -> Any:
    for step in name.split("."):
        jvm = getattr(jvm, step)
    return jvm


def _class(frame: DataFrame, name: str) -> Any:
    jvm = frame.sparkSession._jvm
    assert jvm is not None
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    return jvm.java.lang.Class.forName(name, True, loader)


def _leaving(node: Any, stateful: Any, operators: list[Any]) -> int | None:
    """The watermark that leaves a node of the physical plan, in milliseconds (rule 2); None if there is none."""
    entering = [ms for child in each(node.children()) if (ms := _leaving(child, stateful, operators)) is not None]
    if kind_of(node) == "EventTimeWatermarkExec":
        return _PROBE_MS
    lowest = min(entering, default=None)
    if not stateful.isInstance(node):
        return lowest
    operators.append(node)
    if lowest is None:
        return None
    leaving = node.produceOutputWatermark(lowest)
    # A function with a state of its own gives no promise; the times of its results are seen to where they are filed.
    return int(leaving.get()) if leaving.isDefined() else lowest


def _later_of_pairs(analysed: Any, stime: str, operators: list[Any]) -> bool:
    """Rule 3: stime is greatest(…) of the times of all sides of inner joins, and nothing else keeps rows."""
    if not all(kind_of(operator) == _JOIN and operator.joinType().sql() == "INNER" for operator in operators):
        return False
    wanted = next(a for a in each(analysed.output()) if a.name() == stime).exprId().id()
    named = _named(analysed)
    latest = named.get(wanted)
    if latest is None or kind_of(latest) != "Greatest":
        return False
    times = list(each(latest.children()))
    if not all(kind_of(time) == "AttributeReference" and _is_time(time) for time in times):
        return False
    origins = {_origin(time.exprId().id(), named) for time in times}
    return all(origins & side for side in _sides(analysed))


def _named(analysed: Any) -> dict[int, Any]:
    """What stands behind the names that projections give, by their ids."""
    projections = (node for node in nodes(analysed) if kind_of(node) == "Project")
    columns = (column for node in projections for column in each(node.projectList()))
    return {column.exprId().id(): column.child() for column in columns if kind_of(column) == "Alias"}


def _origin(id: int, named: dict[int, Any]) -> int:
    """Of a column that is another one under a new name, that one, as far down as it goes."""
    while id in named and kind_of(named[id]) == "AttributeReference":
        id = named[id].exprId().id()
    return id


def _sides(analysed: Any) -> list[set[int]]:
    """The times that the rows of each side have which is joined with another, and is no pair itself: a side may have
    its time in several columns."""
    joins = [node for node in nodes(analysed) if _is_join_of_streams(node)]
    sides = [side for join in joins for side in (join.left(), join.right())]
    single = [side for side in sides if not any(_is_join_of_streams(node) for node in nodes(side))]
    named = _named(analysed)
    return [{_origin(a.exprId().id(), named) for a in each(side.output()) if _is_time(a)} for side in single]


def _is_join_of_streams(node: Any) -> bool:
    return kind_of(node) == "Join" and bool(node.left().isStreaming() and node.right().isStreaming())


def _waiting_for_ever(frame: DataFrame, operators: list[Any]) -> set[int]:
    """Rule 7: ids of the times of join inputs whose rows a join keeps for ever, since a partner may always come."""
    jvm = frame.sparkSession._jvm
    assert jvm is not None
    joins = [operator for operator in operators if kind_of(operator) == _JOIN]
    found: set[int] = set()
    for join in joins:
        helper = _package(jvm, f"{join.getClass().getPackageName()}.StreamingSymmetricHashJoinHelper")
        left, right, probe = join.left().output(), join.right().output(), jvm.scala.Option.apply(_PROBE_MS)
        keys, condition = (join.leftKeys(), join.rightKeys()), join.condition().full()
        kept_from = helper.getStateWatermark(left, right, *keys, condition, probe, False)
        for side, from_ms in ((left, kept_from._1()), (right, kept_from._2())):
            if from_ms.isEmpty():
                found |= {attribute.exprId().id() for attribute in each(side) if _is_time(attribute)}
    return found


def _span_us(analysed: Any, operators: tuple[str, ...], lag_us: int) -> int | None:
    """Windows one over another add up, and so does the reach of a join. A function with a state of its own, a session
    and an aggregation without a window may hold anything."""
    windows = [us for node in nodes(analysed) if (us := window_us(node)) is not None]
    aggregations = sum(operator == _AGGREGATE for operator in operators)
    known = all(operator in (_AGGREGATE, _JOIN, *_DUPLICATES) for operator in operators)
    return sum(windows) + lag_us if known and aggregations == len(windows) else None


def _by_time(aggregation: Any) -> bool:
    keys = [key for key in each(aggregation.keyExpressions()) if _is_time(key)]
    return any(key.dataType().typeName() != "struct" for key in keys)


def _is_time(attribute: Any) -> bool:
    return bool(attribute.metadata().contains(DELAY))


def _deduplicates_in_order(analysed: Any, whose: str) -> bool:
    """Rule 6."""
    found = [node for node in nodes(analysed) if kind_of(node) in _DEDUPLICATIONS and _leaves_a_choice(node)]
    for node in found:
        mixed = [kind_of(below) for below in nodes(node.child()) if kind_of(below) not in _ROW_BY_ROW]
        if mixed:
            keys = ", ".join(str(key.name()) for key in each(node.keys()))
            log.warning("%s: which of the rows with the same (%s) stays depends on the order in which Spark brings "
                        "rows together, and replicas may differ in it: there is a %s in front of dropDuplicates; put "
                        "dropDuplicates into a node of its own, whose input comes in one order, or name all columns",
                        whose, keys, mixed[0])  # fmt: skip
    return bool(found)


def _leaves_a_choice(deduplication: Any) -> bool:
    """Whether rows that it takes for the same may differ, in more than the header that came with them."""
    keys = {key.exprId().id() for key in each(deduplication.keys())}
    others = {str(a.name()) for a in each(deduplication.child().output()) if a.exprId().id() not in keys}
    return bool(others - (RESERVED - {"stime"}))
