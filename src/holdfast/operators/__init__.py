"""Operators with and without state (003 §3.2): what users describe here runs on Spark (`holdfast.spark.flow`).

Windows, functions, and how long a join keeps tuples are frozen values; the kernels are functions of columns and know
nothing of Spark.
"""

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

__all__ = [
    "UserFunction",
    "avg",
    "continuous",
    "count",
    "count_distinct",
    "count_window",
    "first",
    "keep_last",
    "keep_time",
    "landmark",
    "last",
    "max_",
    "min_",
    "sum_",
    "time_window",
    "user_defined",
]
