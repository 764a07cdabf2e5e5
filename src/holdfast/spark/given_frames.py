"""The function of a node reads the frames that it is given at this call, and no others.

Rules:
1. The nodes of a process share one session, and with it its temp views: those that the user has registered there are
   seen by every function, and a function may look its own up in the session by any way. So functions are called one at
   a time. The plan that a function gives back has its views resolved; what happens to them later is nothing to it.
2. Every plan that comes back is looked at: each stream that it reads must be read as this call said. A frame of another
   node, or of an earlier call of the same one, would be read to another place, and the results would silently be wrong.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from pyspark.sql import DataFrame

from holdfast.model.errors import UsageError
from holdfast.spark.plan_tree import each, kind_of

_RELATION = "StreamingRelationV2"
#: A part of the plan that stands elsewhere in it in full.
_REFERENCE = "CTERelationRef"
_calling = threading.Lock()


def call_alone(function: Callable[..., Any], frames: Sequence[DataFrame]) -> Any:
    """Rule 1."""
    with _calling:
        return function(*frames)


def check_sources(results: DataFrame, given: DataFrame, whose: str) -> None:
    """Rule 2. `given` is what the function was handed, whole or in parts."""
    (expected,) = _sources(given)
    options = expected.extraOptions()
    for source in _sources(results):
        if kind_of(source) != _RELATION or source.sourceName() != "holdfast":
            raise UsageError(
                f"{whose} must read only the frames that it is given; got a readStream of its own; name that stream in "
                f"inputs=, or send it to one first"
            )
        if not source.extraOptions().equals(options):
            hosts = source.extraOptions().containsKey("decision") or source.extraOptions().containsKey("plan")
            got = "a frame of another call or of another node" if hosts else "a readStream of its own"
            raise UsageError(
                f"{whose} must read only the frames that it is given; got {got} (streams "
                f"{source.extraOptions().get('path')}); name every stream in inputs=, make the query anew at each call "
                f"(no frame or temp view of an earlier call, no cache), and register its views before it reads them"
            )


def _sources(frame: DataFrame) -> list[Any]:
    """What a plan reads as a stream."""
    leaves = each(frame._jdf.queryExecution().analyzed().collectLeaves())
    return [leaf for leaf in leaves if leaf.isStreaming() and kind_of(leaf) != _REFERENCE]
