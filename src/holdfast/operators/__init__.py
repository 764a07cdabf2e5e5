"""Operators with and without state (003 §3.2): what users describe here runs on Spark (`holdfast.spark.flow`).

Windows, functions, and how long a join keeps tuples are frozen values; the kernels are functions of columns and know
nothing of Spark. Policies for state, and the classes of users' own operators, are here as well; they are imported on
first use, since Spark's workers come through this package too.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

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
from holdfast.operators.joined import keep_last, keep_time
from holdfast.operators.windows import count_window, landmark, time_window
from holdfast.protocol.cec.policy import continuous

if TYPE_CHECKING:
    from holdfast.checkpoint.policy import every, groups, none, upstream
    from holdfast.operators.udop import UserOperator, VectorOperator, decode, encode

__all__ = [
    "UserFunction",
    "UserOperator",
    "VectorOperator",
    "avg",
    "continuous",
    "count",
    "count_distinct",
    "count_window",
    "decode",
    "encode",
    "every",
    "first",
    "groups",
    "keep_last",
    "keep_time",
    "landmark",
    "last",
    "max_",
    "min_",
    "none",
    "sum_",
    "time_window",
    "upstream",
    "user_defined",
]

_HOMES = {
    **dict.fromkeys(("every", "groups", "none", "upstream"), "holdfast.checkpoint.policy"),
    **dict.fromkeys(("UserOperator", "VectorOperator", "decode", "encode"), "holdfast.operators.udop"),
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
