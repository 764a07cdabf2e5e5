"""Operators of a node are found by calling its function, without a session and without a trace."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from holdfast.app import App
from holdfast.checkpoint.policy import every, none
from holdfast.operators import UserOperator, count, keep_time, time_window
from holdfast.protocol.cec.policy import continuous
from holdfast.spark import flow_of, udop
from holdfast.spark.outline import Outline, outline


def seen(function: Any, inputs: tuple[str, ...] = ("left", "right")) -> Outline:
    app = App("outlines")
    app.node(inputs=inputs, name="node")(function)
    before = sessions()
    made = outline(app.diagram().node("node"))
    assert sessions() == before
    return made


def sessions() -> tuple[Any, ...]:
    """What Spark's own functions look for, if there is one."""
    return SparkContext._active_spark_context, SparkSession._instantiatedSession, SparkSession._activeSession


def test_the_methods_of_sparks_frames_are_told_in_their_order() -> None:
    made = seen(lambda rows: rows.groupBy(F.window("stime", "2 seconds"), "k").count().where(F.col("count") > 3))
    assert made == Outline(("groupBy", "count", "where"), ())
    joined = seen(
        lambda left, right: left.join(right, (left.k == right.k) & (F.col("a") >= F.lit(1))).select(left["k"])
    )
    assert joined.methods == ("join", "select")


def test_a_flow_in_a_node_has_continuous_checkpoints_unless_it_says_otherwise() -> None:
    for checkpoint in (None, continuous()):
        made = seen_flow(checkpoint)
        (protection,) = made.protections
        assert (protection.kind, protection.policy, protection.store) == (
            "aggregate", "continuous()", "the log of its results",
        )  # fmt: skip
    (bare,) = seen_flow(none).protections
    assert (bare.policy, bare.saves, bare.store) == ("none", "nothing", None)
    pairs = seen(_joined)
    assert [p.kind for p in pairs.protections] == ["join"]


def seen_flow(checkpoint: Any) -> Outline:
    def node(rows: Any) -> Any:
        return flow_of(rows).filter(F.col("k") > 2).aggregate(
            count(), window=time_window("2s"), by="k", checkpoint=checkpoint
        )  # fmt: skip

    return seen(node)


def _joined(left: Any, right: Any) -> Any:
    both = flow_of(left, right)
    return both.join("left", "right", by="g", window=keep_time("1s"), take_left={"l": "k"}, take_right={"r": "k"})


class Mean(UserOperator):
    def checkpoint(self) -> bytes:
        return b""

    def restore(self, saved: bytes) -> None:
        pass


def test_an_operator_of_the_users_tells_its_policy_and_store() -> None:
    mean = udop("mean", Mean, key="k", schema="k string", checkpoint=every("10s"), store="log:/far")
    made = seen(lambda rows: rows.transform(mean).where("k > 1"))
    assert made.methods == ("mean", "where")
    assert [(p.operator, p.policy, p.store) for p in made.protections] == [("mean", 'every("10s")', "log:/far")]


def test_what_a_function_asks_of_rows_that_are_not_there_is_its_own_error_and_leaves_no_trace() -> None:
    before = sessions()
    with pytest.raises(TypeError):
        seen(lambda rows: rows.where(f"k > {len(rows.columns)}"))
    assert sessions() == before


def test_a_function_of_python_is_called_without_a_session_and_leaves_none() -> None:
    made = seen(lambda rows: rows.withColumn("x", F.udf(len)("k")))
    assert made.methods == ("withColumn",)
