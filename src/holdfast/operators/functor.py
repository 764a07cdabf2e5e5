"""Functor: filters, projects and maps tuples one by one, and may keep variables (004 §4).

    functor("running", lambda row, v: v.update(n=v["n"] + 1) or {"n": v["n"]}, variables={"n": 0},
            checkpoint=every("10s"))

Rules:
1. The function gets a tuple and the variables, changes the variables, and returns the tuple to send or None for none.
   The vectorised one gets a record batch instead.
2. Without variables a functor has no state and nothing of it is saved, whatever is annotated.
3. Variables are numbers, text, bytes, lists and maps of them: what MessagePack can say. They are saved by name, so a
   later version of the program may add one.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import pyarrow as pa

from holdfast.checkpoint.derive import Protection, StateKind, derive
from holdfast.checkpoint.policy import Every, NoCheckpoint
from holdfast.model.errors import UsageError
from holdfast.operators.udop import Row, UserOperator, VectorOperator, decode, encode

Variables = dict[str, Any]
OnRow = Callable[[Row, Variables], Row | None]
OnBatch = Callable[[pa.RecordBatch, Variables], pa.RecordBatch | None]


@dataclass(frozen=True)
class Functor:
    """The description. `build()` makes one instance with its own variables."""

    name: str
    on_row: OnRow | None
    on_batch: OnBatch | None
    variables: Variables = field(default_factory=dict)
    checkpoint: Every | NoCheckpoint | None = None

    @property
    def protection(self) -> Protection:
        state = StateKind.VARIABLES if self.variables else StateKind.NONE
        return derive(self.name, "functor", state, self.checkpoint)

    @property
    def policy(self) -> Every | NoCheckpoint | None:
        """Rule 2."""
        return self.checkpoint if self.variables else None

    @property
    def unprotected(self) -> Functor:
        """What it does, whatever protects it."""
        return replace(self, checkpoint=None)

    def build(self) -> UserOperator:
        if self.on_batch is not None:
            return _Vectorised(self.on_batch, copy.deepcopy(self.variables))
        assert self.on_row is not None
        return _RowByRow(self.on_row, copy.deepcopy(self.variables))


def functor(
    name: str, on_row: OnRow | None = None, *, on_batch: OnBatch | None = None, variables: Variables | None = None,
    checkpoint: Every | NoCheckpoint | None = None,
) -> Functor:  # fmt: skip
    """A functor; `on_row` or `on_batch`, one of both."""
    if (on_row is None) == (on_batch is None):
        raise UsageError(f"functor {name} needs a function of a row or one of a batch, one of both")
    try:
        encode(variables or {})
    except (TypeError, msgspec.MsgspecError) as error:
        raise UsageError(f"functor {name}: variables must be numbers, text, lists or maps; {error}") from None
    made = Functor(name, on_row, on_batch, dict(variables or {}), checkpoint)
    made.protection  # noqa: B018 - refuses a policy that does not fit, here and not at run time
    return made


def functor_of(prototype: Any) -> Functor | None:
    """Whose `build` it is; None if it is something else."""
    owner = getattr(prototype, "__self__", None)
    return owner if isinstance(owner, Functor) and prototype == owner.build else None


class _State:
    """Saving variables by name."""

    variables: Variables

    def checkpoint(self) -> bytes:
        return encode(self.variables)

    def restore(self, saved: bytes) -> None:
        self.variables.update(decode(saved))


class _RowByRow(_State, UserOperator):
    def __init__(self, function: OnRow, variables: Variables) -> None:
        self._function, self.variables = function, variables

    def process(self, row: Row) -> Iterable[Row] | None:
        found = self._function(row, self.variables)
        return None if found is None else [found]


class _Vectorised(_State, VectorOperator):
    def __init__(self, function: OnBatch, variables: Variables) -> None:
        self._function, self.variables = function, variables

    def process_batch(self, rows: pa.RecordBatch) -> pa.RecordBatch | None:
        return self._function(rows, self.variables)
