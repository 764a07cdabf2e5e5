"""Aggregate functions: what is computed over a window.

`count`, `sum_`, `avg`, `min_`, `max_`, `count_distinct`, `first`, `last`, and your own with `user_defined`. Columns are
names or Spark Column expressions; `.alias` names the result.

Rules:
1. Nulls do not count, except for `count()` and for `first` and `last`, which take the tuple as it is. A result over no
   value is null. NaN is larger than every number. This is Spark's rule, too.
2. Sums of floating-point numbers are added up in the order of the tuples, so replicas agree to the last bit (D9).
3. A user-defined function is a subclass of `UserFunction`. Its state must be plain data (None, bool, int, float, str,
   bytes, list, dict): checkpoints hold data, never code (X3).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from holdfast.model.errors import UsageError

KINDS = ("count", "sum", "avg", "min", "max", "count_distinct", "first", "last", "user")


class UserFunction(ABC):
    """A function of yours over the values of a window.

    >>> class Product(UserFunction):
    ...     type = "double"
    ...     def start(self): return 1.0
    ...     def add(self, state, values):
    ...         for value in values: state *= value
    ...         return state
    ...     def merge(self, a, b): return a * b
    ...     def result(self, state): return state
    """

    #: Type of the result, in Spark's words.
    type: str = "double"

    @abstractmethod
    def start(self) -> Any:
        """The state of a window without a value."""

    @abstractmethod
    def add(self, state: Any, values: Sequence[Any]) -> Any:
        """The state after some more values, which come in the order of their tuples."""

    def merge(self, a: Any, b: Any) -> Any:
        """The state of two neighbouring panes, the earlier one first; needed for windows that overlap."""
        raise UsageError(f"{type(self).__name__} needs merge(a, b) for windows that overlap")

    @abstractmethod
    def result(self, state: Any) -> Any:
        """What the window gives."""


@dataclass(frozen=True)
class Function:
    kind: str
    column: Any = None
    name: str = ""
    user: UserFunction | None = None

    def alias(self, name: str) -> Function:
        return replace(self, name=name)


def _named(kind: str, column: Any, user: UserFunction | None = None) -> Function:
    label = column if isinstance(column, str) else "value"
    word = type(user).__name__.lower() if user is not None else kind
    return Function(kind, column, word if column is None else f"{word}_{label}", user)


def count(column: Any = None) -> Function:
    """How many tuples; with a column, how many that are not null there."""
    return _named("count", column)


def sum_(column: Any) -> Function:
    return _named("sum", column)


def avg(column: Any) -> Function:
    return _named("avg", column)


def min_(column: Any) -> Function:
    return _named("min", column)


def max_(column: Any) -> Function:
    return _named("max", column)


def count_distinct(column: Any) -> Function:
    return _named("count_distinct", column)


def first(column: Any) -> Function:
    return _named("first", column)


def last(column: Any) -> Function:
    return _named("last", column)


def user_defined(function: UserFunction, column: Any) -> Function:
    if not isinstance(function, UserFunction):
        raise UsageError(f"a user-defined function must be an instance of UserFunction; got {function!r}")
    return _named("user", column, function)
