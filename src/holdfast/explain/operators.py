"""The operators inside a node: whose state they keep, what protects it, and what it costs to have it back."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.checkpoint.derive import Protection, StateKind
from holdfast.checkpoint.policy import Guarantee

#: Methods of a streaming DataFrame behind which Spark keeps state.
SPARK_STATE = frozenset((
    "agg", "applyInPandasWithState", "avg", "count", "cogroup", "distinct", "dropDuplicates", "drop_duplicates",
    "dropDuplicatesWithinWatermark", "groupBy", "groupby", "intersect", "join", "max", "mean", "min", "pivot", "sum",
    "transformWithState", "transformWithStateInPandas",
))  # fmt: skip


@dataclass(frozen=True, slots=True)
class Operators:
    """What a node is made of, as far as its function tells without Spark."""

    spark: tuple[str, ...] = ()
    """Methods of Spark's frames that it calls, in their order."""
    own: tuple[Protection, ...] = ()
    """Holdfast's own operators, and the user's."""
    unseen: str | None = "nobody looked"
    """Why no more is known; None: that is all."""

    @property
    def spark_state(self) -> tuple[str, ...]:
        """Those of Spark's that keep state."""
        return tuple(name for name in dict.fromkeys(self.spark) if name in SPARK_STATE)


def recovery(protection: Protection) -> str:
    """What it takes to have the state of an operator back when its process is lost."""
    kind = protection.policy.partition("(")[0]
    if protection.state is StateKind.NONE:
        return "nothing: it has no state"
    if protection.guarantee is Guarantee.NOTHING:
        return "the state as of the last batch, from scratch on the same machine; elsewhere it begins empty"
    if kind == "continuous":
        goal = _quoted(protection.policy)
        asked = f"so little that this takes {goal}, if it can be" if goal else "10 s of it by default"
        return (
            "its open windows from the log of the results, read backwards, and the input since the oldest of them once "
            f"more ({asked}; `holdfast status` and the query's progress say what it would take)"
        )
    if kind == "upstream":
        return "the tuples on their way are read again; nothing is computed twice"
    if kind == "groups" and protection.guarantee is Guarantee.EXACT:
        return "all groups are loaded, and the input since the last save is computed again"
    if kind == "every" and protection.state is StateKind.WINDOWS and "exact=True" not in protection.policy:
        return (
            f"the last checkpoint is loaded, and the input behind it ({_lost(protection.policy)} of work, twice that "
            f"where it is damaged) is computed again"
        )
    if protection.guarantee is Guarantee.EXACT:
        return "the state as of the last batch is loaded; nothing is computed twice, each batch waits for the store"
    return f"the last checkpoint is loaded; what came since ({_lost(protection.policy)}) is lost to the state"


def _quoted(policy: str) -> str | None:
    """What a policy was given as a text."""
    return policy.split(chr(34))[1] if '"' in policy else None


def _lost(policy: str) -> str:
    """The most that `every(…)` or `groups(…)` has not saved yet."""
    inner = policy.partition("(")[2].rstrip(")")
    if '"' in inner:
        return f"up to {inner.split(chr(34))[1]}"
    return f"up to {inner.partition('=')[2].partition(',')[0]} tuples of a key"
