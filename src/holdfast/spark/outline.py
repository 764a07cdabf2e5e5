"""The operators of a node's function, found without Spark: it is called with frames that note what is asked of them.

Rules:
1. Nothing runs and nothing is started. Columns are made over a JVM that is none: every object of it answers everything
   with another one. What a function computes from rows or schemas it gets stand-ins for, and may fail on them; then its
   operators are not known, and it says why.
2. Operators of Holdfast's and of the user's know for themselves what protects them; those of Spark are told by the
   names of the methods. A flow in a node has `continuous()` where it names no policy (`holdfast.spark.node_flow`).
3. Afterwards everything is as it was. One outline at a time: what is replaced is the process's.
4. Only what the program has imported is replaced: importing Spark takes longer than all the rest.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.checkpoint.derive import Protection
from holdfast.diagram import NodeSpec

if TYPE_CHECKING:
    from holdfast.spark.frames import Reading

#: What a function may ask of a frame that is no operator.
_QUESTIONS = frozenset(("columns", "dtypes", "isStreaming", "schema", "sparkSession"))


@dataclass(frozen=True, slots=True)
class Outline:
    """What a function has asked for: methods of Spark's frames in their order, and what protects other operators."""

    methods: tuple[str, ...]
    protections: tuple[Protection, ...]


class _Anything:
    """Answers everything with another of its kind."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything()

    def __call__(self, *_: Any, **__: Any) -> Any:
        return _Anything()

    def __getitem__(self, _: Any) -> Any:
        return _Anything()

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __int__(self) -> int:
        return 1


class _Frame(_Anything):
    """A DataFrame that is none."""

    def __init__(self, notes: list[str], streams: tuple[str, ...], only: tuple[str, ...] | None = None) -> None:
        self._notes, self._streams, self._only = notes, streams, only
        self._asked: tuple[str, ...] = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in _QUESTIONS:
            return _Anything()
        return _Method(self, name)

    def transform(self, function: Any, *args: Any, **named: Any) -> Any:
        return function(self, *args, **named)

    @property
    def reading(self) -> Reading | None:
        """How it was read; None once an operator stands in between, as for a real one."""
        from holdfast.spark.frames import Reading

        return None if self._asked else Reading(self._streams, {}, self._only)

    def then(self, name: str) -> _Frame:
        self._notes.append(name)
        made = _Frame(self._notes, self._streams)
        made._asked = (*self._asked, name)
        return made


class _Method:
    """A method of a frame, or, unless it is called, one of its columns (`frame.amount > 3`)."""

    def __init__(self, frame: _Frame, name: str) -> None:
        self._frame, self._name = frame, name

    def __call__(self, *_: Any, **__: Any) -> _Frame:
        return self._frame.then(self._name)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything()


def _expression(*_: Any) -> Any:
    return _Anything()


#: Columns are added, compared and combined; both kinds stand for columns.
for _name in ("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "mod", "rmod", "lt", "le", "gt", "ge",
              "and", "rand", "or", "ror", "invert", "neg"):  # fmt: skip
    setattr(_Anything, f"__{_name}__", _expression)
    setattr(_Method, f"__{_name}__", _expression)


def outline(node: NodeSpec) -> Outline:
    """Call the node's function. What it raises is raised here."""
    notes: list[str] = []
    kept: list[Protection] = []
    streams = node.inputs
    frames = [_Frame(notes, streams, only) for only in node.frames] if node.separate else [_Frame(notes, streams)]
    with contextlib.ExitStack() as replaced:
        for owner, name, value in _stand_ins(kept):
            replaced.callback(setattr, owner, name, vars(owner)[name])
            setattr(owner, name, value)
        result = node.function(*frames)
    flow = _imported("holdfast.spark.flow")
    if flow is not None and isinstance(result, flow.Flow):
        kept.append(result.as_in_node().protection)
    return Outline(tuple(notes), tuple(kept))


def _imported(module: str) -> Any:
    """Rule 4."""
    return sys.modules.get(module)


def _stand_ins(kept: list[Protection]) -> Iterator[tuple[Any, str, Any]]:
    """What is replaced meanwhile: whose, which name, by what."""
    spark, flow, keyed = map(_imported, ("pyspark.sql", "holdfast.spark.flow", "holdfast.spark.keyed"))
    if spark is not None:
        yield sys.modules["pyspark"].SparkContext, "_active_spark_context", _Anything()
        yield spark.SparkSession, "_instantiatedSession", None
        yield spark.SparkSession, "_activeSession", None  # A function of Python's makes one out of the context above.
    if flow is not None:
        real = flow.reading_of
        yield flow, "reading_of", lambda frame: frame.reading if isinstance(frame, _Frame) else real(frame)
    if keyed is not None:

        def noted(operator: Any, frame: Any) -> Any:
            kept.append(operator.protection)
            return frame.then(operator.name) if isinstance(frame, _Frame) else frame

        yield keyed.Keyed, "__call__", noted
