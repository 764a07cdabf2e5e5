"""What a plan asks for that cannot be right: refused where the node is declared, or warned of.

Rules:
1. What depends on chance, on the clock or on machines gives other results to each replica and each repetition, and is
   refused. So is what Spark would refuse when the query starts.
2. Expressions are looked at as they were written and as Spark's optimiser replaces them: `to_timestamp('now')` is a
   cast, and the cast of a constant text that says a time of today is that time. A literal that Spark has already made
   of such a text (`TIMESTAMP 'now'`) is known by the text that it came from.
3. What depends on the order in which rows come together, or adds floating-point numbers in that order, may differ
   between replicas and is warned of: often it does no harm.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.streaming import StatefulProcessor

from holdfast.model.errors import UsageError
from holdfast.spark.failure import sentence
from holdfast.spark.plan_tree import each, kind_of, nodes, python_function, text_of

log = logging.getLogger(__name__)

_CLOCKS = ("CurrentTimestamp", "CurrentBatchTimestamp", "Now", "CurrentDate", "LocalTimestamp", "CurrentTime")
#: Their plan is looked at by itself.
_SUBQUERIES = ("LateralSubquery", "ScalarSubquery", "ListQuery", "Exists")
#: Types of which a text may say a time of today.
_TIMES = ("timestamp", "date")
_ORDERED = ("First", "Last", "CollectList", "CollectSet", "CollectUnion", "ListAgg", "Mode")
#: Summaries of a bounded size: what they keep depends on what came before.
_SKETCHES = ("ApproximatePercentile", "HistogramNumeric", "ApproxTopK", "Hll", "Kll", "Theta", "Tuple")
_FLOATING_SUMS = ("Sum", "Average", "Product", "VariancePop", "VarianceSamp", "StddevPop", "StddevSamp", "Skewness",
                  "Kurtosis", "Corr", "CovPopulation", "CovSample", "RegrSlope", "RegrIntercept", "RegrSXY", "RegrR2",
                  "RegrReplacement")  # fmt: skip


def check_plan(frame: DataFrame, whose: str) -> None:
    """Refuse rule 1, warn of rule 3. `frame` is what the function of `whose` gives."""
    analysed = frame._jdf.queryExecution().analyzed()
    jvm: Any = frame.sparkSession._jvm
    _Check(jvm, whose).plan(analysed)
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    with refused_by_spark(whose):  # What Spark looks at when a query starts.
        checker.checkForStreaming(analysed, jvm.org.apache.spark.sql.streaming.OutputMode.Append())


@contextlib.contextmanager
def refused_by_spark(whose: str) -> Iterator[None]:
    try:
        yield
    except AnalysisException as error:
        advice = "write it with operators that Spark streams in append mode"
        if "without watermark" in str(error):
            advice = (
                "group by a window of stime itself: of a time that is computed from it Spark does not know that it "
                "advances; or compute that time in a node of its own, named there with stime=, and group in the next"
            )
        elif "MULTIPLE_EVENT_TIME_COLUMNS" in str(error):
            advice = "select one of the times that it has in front of that, and leave the others out"
        raise UsageError(
            f"{whose} must be a query that Spark streams; Spark says: {sentence(error)}; {advice}"
        ) from None


class _Check:
    """One look at a plan, and at those of its subqueries."""

    def __init__(self, jvm: Any, whose: str) -> None:
        self._jvm, self._whose = jvm, whose
        self._warned: set[str] = set()

    def plan(self, analysed: Any) -> None:
        """Rule 2."""
        self._expressions(analysed, whole=True)
        replaced = self._jvm.org.apache.spark.sql.catalyst.optimizer.ReplaceExpressions.apply(analysed)
        if not replaced.fastEquals(analysed):
            self._expressions(replaced)

    def _expressions(self, plan: Any, *, whole: bool = False) -> None:
        """Of all nodes; of the `whole` plan also the nodes themselves."""
        for node in nodes(plan):
            if whole:
                _check_node(node, self._whose)
            for expression in each(node.expressions()):
                for part in nodes(expression):
                    self._expression(part)

    def _expression(self, part: Any) -> None:
        name = kind_of(part)
        if name in _CLOCKS or (name == "Cast" and self._says_now(part)) or (name == "Literal" and self._said_now(part)):
            raise UsageError(
                f"{self._whose} must not look at the clock: each replica and each repetition would give other results; "
                f"got {part.sql()}; use stime"
            )
        aggregate = ".aggregate." in part.getClass().getName()
        if name in _SUBQUERIES:
            self.plan(part.plan())
        elif name == "PythonUDTF":
            pass  # Spark takes every one for nondeterministic that is not marked otherwise.
        elif aggregate:
            self._aggregate(part, name)
        elif not part.deterministic() and all(child.deterministic() for child in each(part.children())):
            raise UsageError(
                f"{self._whose} must give the same results for the same rows; got {part.sql()}, which does not: each "
                f"replica and each repetition would differ; leave it out, or compute it where the stream is filled"
            )

    def _aggregate(self, part: Any, name: str) -> None:
        """Rule 3."""
        if name in self._warned:
            return
        advice = None
        if name in _ORDERED:
            advice = "sort what it gives (array_sort), or use max_by and min_by"
        elif name.startswith(_SKETCHES):
            advice = "use percentile, count_distinct or approx_count_distinct, which do not"
        if advice is not None:
            self._warned.add(name)
            log.warning("%s: %s depends on the order in which Spark brings rows together; replicas may differ in it; "
                        "%s", self._whose, part.sql(), advice)  # fmt: skip
        elif name in _FLOATING_SUMS and _is_floating(part):
            self._warned.add(name)
            log.warning("%s: %s adds floating-point numbers in any order: replicas are equal up to rounding only; cast "
                        "to decimal where that matters", self._whose, part.sql())  # fmt: skip

    def _says_now(self, cast: Any) -> bool:
        """Whether a text is made a time of, and Spark would put the clock's into its place."""
        text = cast.child()
        if not cast.dataType().typeName().startswith(_TIMES) or not text.foldable():
            return False
        if not text.dataType().typeName().startswith("string"):
            return False
        try:
            return self._is_now(str(text.eval(None)))
        except (Py4JError, PySparkException):  # Spark replaces it first, or says itself that it cannot be computed.
            return False

    def _said_now(self, literal: Any) -> bool:
        """Whether a time was written as a text that says the clock's."""
        if not literal.dataType().typeName().startswith(_TIMES):
            return False
        origin = literal.origin()
        if any(option.isEmpty() for option in (origin.sqlText(), origin.startIndex(), origin.stopIndex())):
            return False
        written = str(origin.sqlText().get())[int(origin.startIndex().get()) : int(origin.stopIndex().get()) + 1]
        kind, _, text = written.replace('"', "'").partition("'")
        return kind.strip().lower().startswith(_TIMES) and self._is_now(text.rpartition("'")[0])

    def _is_now(self, text: str) -> bool:
        """As Spark reads `now`, `today UTC` and the like. `epoch`, which it reads so as well, is always the same."""
        times, zone = self._jvm.org.apache.spark.sql.catalyst.util.DateTimeUtils, self._jvm.java.time.ZoneId.of("UTC")
        found = times.convertSpecialTimestamp(text, zone)
        return bool(found.isDefined()) and int(found.get()) != 0


def _check_node(node: Any, whose: str) -> None:
    name = kind_of(node)
    if name == "EventTimeWatermark" and kind_of(node.child()) != "StreamingRelationV2":
        raise UsageError(
            f"{whose} must not set a watermark in SQL: boundaries say when a bucket is complete; leave it out"
        )
    if "WithState" in name and (mode := text_of(node, "outputMode")) in ("Update", "Complete"):
        raise UsageError(
            f"{whose} must give results in append mode: none of them is replaced but after an UNDO; got "
            f"outputMode={mode!r}; say outputMode='Append', and let readers take the last result of a key"
        )
    if "WithState" in name and "ProcessingTime" in text_of(node, "timeout"):
        raise UsageError(
            f"{whose} must not use processing-time timeouts: each replica would give other results; use "
            f"GroupStateTimeout.EventTimeTimeout, which follows the boundaries"
        )
    if "TransformWithState" in name and "ProcessingTime" in text_of(node, "timeMode"):
        if _has_timers(node):
            raise UsageError(
                f"{whose} must not use processing-time timers: each replica would give other results; use "
                f"timeMode='EventTime', whose timers follow the boundaries; or leave handleExpiredTimer out, where "
                f"timeMode is for a time to live"
            )
        log.warning("%s: results that depend on a time to live differ between replicas and from run to run; use "
                    "event-time timers where they matter", whose)  # fmt: skip
    if "TransformWithState" in name and node.right().isStreaming():
        raise UsageError(
            f"{whose} must begin a state with a table; got a stream as initialState, of which that counts which "
            f"happens to be there first; read a table, or let the processor take those rows among its input"
        )
    if name in ("GlobalLimit", "Offset") and node.isStreaming():
        raise UsageError(
            f"{whose} must give the same results for the same rows; got a limit on a stream, by which those rows count "
            f"that come first to each replica; take the first of each window instead (min_by, max_by, or applyInPandas "
            f"behind a window), or leave it out"
        )


def _has_timers(node: Any) -> bool:
    """Whether the user's processor handles timers. One that does not can be given a time to live at most."""
    function = python_function(node.functionExpr()) if kind_of(node) == "TransformWithStateInPySpark" else None
    processor = getattr(getattr(function, "__self__", None), "_stateful_processor", None)
    handles = getattr(type(processor), "handleExpiredTimer", StatefulProcessor.handleExpiredTimer)
    return handles is not StatefulProcessor.handleExpiredTimer


def _is_floating(part: Any) -> bool:
    return any(child.dataType().simpleString() in ("float", "double") for child in each(part.children()))
