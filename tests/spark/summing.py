"""A user-defined operator that tests of keyed state share: the running sum of each key."""

from __future__ import annotations

from typing import Any

from holdfast.operators.udop import UserOperator, decode, encode


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
