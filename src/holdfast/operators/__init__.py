"""Operators with and without state (003 §3.2): what users describe here runs on Spark (`holdfast.spark.flow`).

Windows, functions, and how long a join keeps tuples are frozen values; the kernels are functions of columns and know
nothing of Spark. Policies for state, operators with an instance per key, the classes of users' own ones, and what
protects an operator in a process of yours are here as well; they are imported on first use, since Spark's workers come
through this package too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.model.first_use import import_on_first_use
from holdfast.operators.functions import (
    UserFunction,
    avg,
    count,
    count_distinct,
    first,
    last,
    max_,
    min_,
    sum_,
    user_defined,
)
from holdfast.operators.join_kernel import keep_last, keep_time
from holdfast.operators.windows import count_window, landmark, time_window
from holdfast.protocol.cec.policy import continuous

if TYPE_CHECKING:
    from holdfast.checkpoint.policy import every, groups, none, upstream
    from holdfast.checkpoint.protect import protect
    from holdfast.checkpoint.safekeeper import SafeKeeper
    from holdfast.operators.barrier import Barrier
    from holdfast.operators.functor import functor
    from holdfast.operators.keyed_join import keyed_join
    from holdfast.operators.state_parts import Changed, Parted
    from holdfast.operators.udop import UserOperator, VectorOperator, decode, encode
    from holdfast.operators.window_join import Input, WindowJoin

__all__ = [
    "Barrier",
    "Changed",
    "Input",
    "Parted",
    "SafeKeeper",
    "UserFunction",
    "UserOperator",
    "VectorOperator",
    "WindowJoin",
    "avg",
    "continuous",
    "count",
    "count_distinct",
    "count_window",
    "decode",
    "encode",
    "every",
    "first",
    "functor",
    "groups",
    "keep_last",
    "keep_time",
    "keyed_join",
    "landmark",
    "last",
    "max_",
    "min_",
    "none",
    "protect",
    "sum_",
    "time_window",
    "upstream",
    "user_defined",
]

_HOMES = {
    **dict.fromkeys(("every", "groups", "none", "upstream"), "holdfast.checkpoint.policy"),
    **dict.fromkeys(("UserOperator", "VectorOperator", "decode", "encode"), "holdfast.operators.udop"),
    **dict.fromkeys(("Input", "WindowJoin"), "holdfast.operators.window_join"),
    **dict.fromkeys(("Changed", "Parted"), "holdfast.operators.state_parts"),
    "Barrier": "holdfast.operators.barrier",
    "SafeKeeper": "holdfast.checkpoint.safekeeper",
    "functor": "holdfast.operators.functor",
    "keyed_join": "holdfast.operators.keyed_join",
    "protect": "holdfast.checkpoint.protect",
}
import_on_first_use(__name__, _HOMES)
