"""Spark's plans from Python: trees of Scala objects, of logical and physical nodes and of expressions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark import cloudpickle


def each(sequence: Any) -> Iterator[Any]:
    for i in range(sequence.size()):
        yield sequence.apply(i)


def nodes(tree: Any) -> Iterator[Any]:
    yield tree
    for child in each(tree.children()):
        yield from nodes(child)


def kind_of(node: Any) -> str:
    return str(node.getClass().getSimpleName()).removesuffix("$")


def text_of(node: Any, method: str) -> str:
    """The text of a property that not every node of the kind has."""
    try:
        return str(getattr(node, method)().toString())
    except Exception:
        return ""


def python_function(expression: Any) -> Any:
    """The user's function of an expression, or the class of one that gives tables; None if it cannot be unpacked here.
    It was pickled in this process a moment ago."""
    try:
        sent = cloudpickle.loads(bytes(expression.func().command().unsafeArray()))
    except Exception:
        return None
    return sent[0] if isinstance(sent, tuple) else sent


def window_us(node: Any) -> int | None:
    """The length of the window that a node of the plan makes, if it does: Spark writes it as a struct of two times, of
    which the second is the first and a number of microseconds."""
    lengths = []
    for expression in each(node.expressions()):
        for part in nodes(expression):
            if kind_of(part) == "CreateNamedStruct" and [str(n) for n in each(part.names())] == ["start", "end"]:
                end = part.valExprs().apply(1)
                while kind_of(end) in ("PreciseTimestampConversion", "KnownNullable", "Cast"):
                    end = end.child()
                if kind_of(end) == "Add" and kind_of(end.right()) == "Literal":
                    lengths.append(int(end.right().value()))
    return max(lengths, default=None)
