"""The query that simulated nodes run: small, deterministic, and with state that shows every mistake.

Rules:
1. Each output tuple depends on its input tuple and on the state before its bucket, so a lost, doubled or misplaced
   bucket changes everything after it.
2. Without a window the state depends on all input ever; with a window of w buckets only on the last w, so the query is
   convergent-capable (003 §4.1.3).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

Rows = tuple[int, ...]
State = tuple[int, ...]

_MASK = (1 << 61) - 1


class Query:
    """What a node computes, bucket by bucket."""

    __slots__ = ("window",)

    def __init__(self, window: int | None = None) -> None:
        self.window = window

    @property
    def empty(self) -> State:
        """The state before the first bucket."""
        return () if self.window else (17,)

    def apply(self, state: State, bucket: int, inputs: Sequence[Rows]) -> tuple[State, Rows]:
        """The state after the bucket and the bucket's output."""
        merged = [value for rows in inputs for value in rows]
        seed = sum(state)
        out = tuple([(value * 31 + seed) & _MASK for value in merged])
        if self.window:
            return (*state, sum(merged) + bucket)[-self.window :], out
        return ((seed * 1_000_003 + sum(merged) + bucket) & _MASK,), out


class Buckets(Protocol):
    """Rows by bucket number."""

    def __getitem__(self, bucket: int, /) -> Rows:
        """The rows of one bucket."""


class Expected:
    """What a single node without failures would have computed: the oracle (003 definition 7)."""

    def __init__(self, query: Query, inputs: Sequence[Buckets]) -> None:
        self.query = query
        self.inputs = inputs
        self.rows: list[Rows] = []
        self.states: list[State] = [query.empty]

    def upto(self, bucket: int) -> list[Rows]:
        """The output of all buckets below `bucket`, and perhaps more."""
        while len(self.rows) < bucket:
            n = len(self.rows)
            state, rows = self.query.apply(self.states[n], n, [stream[n] for stream in self.inputs])
            self.rows.append(rows)
            self.states.append(state)
        return self.rows
