"""Spark's plans from Python: trees of Scala objects, of logical and physical nodes and of expressions."""

from __future__ import annotations

import math
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
    for struct in _windows(node):
        end = struct.valExprs().apply(1)
        while kind_of(end) in ("PreciseTimestampConversion", "KnownNullable", "Cast"):
            end = end.child()
        if kind_of(end) == "Add" and kind_of(end.right()) == "Literal":
            lengths.append(int(end.right().value()))
    return max(lengths, default=None)


def window_step_us(node: Any) -> int:
    """The greatest length of which all its windows begin and end at a multiple; 0 if that cannot be seen. Spark has
    them begin where the time less an offset leaves no rest of their slide."""
    lengths, slides = {window_us(node) or 0}, set[int]()
    for struct in _windows(node):
        for rest in nodes(struct.valExprs().apply(0)):
            if kind_of(rest) != "Remainder" or kind_of(rest.right()) != "Literal":
                continue
            slides.add(int(rest.right().value()))
            offset = rest.left()
            if kind_of(offset) != "Subtract" or kind_of(offset.right()) != "Literal":
                return 0
            lengths.add(int(offset.right().value()))
    return math.gcd(*lengths, *slides) if slides else 0


def _windows(node: Any) -> Iterator[Any]:
    for expression in each(node.expressions()):
        for part in nodes(expression):
            if kind_of(part) == "CreateNamedStruct" and [str(n) for n in each(part.names())] == ["start", "end"]:
                yield part
