"""A user-defined operator that tests of keyed state share: the running sum of each key."""

from __future__ import annotations

import sys
from typing import Any

from pyspark import cloudpickle

from holdfast.operators.udop import UserOperator, decode, encode

# Spark's workers cannot import the tests.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Summing(UserOperator):
    def __init__(self) -> None:
        self.sum = 0

    def process(self, row: dict[str, Any]) -> list[dict[str, Any]]:
        self.sum += row["value"]
        return [{"key": row["key"], "sum": self.sum}]

    def checkpoint(self) -> bytes:
        return encode(self.sum)

    def restore(self, saved: bytes) -> None:
        self.sum = decode(saved)
