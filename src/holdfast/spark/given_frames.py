"""The function of a node reads the frames that it is given at this call, and no others; it starts and writes nothing.

Rules:
1. The nodes of a process share one session, and with it its temp views: those that the user has registered there are
   seen by every function, and a function may look its own up in the session by any way. So functions are called one at
   a time. The plan that a function gives back has its views resolved; what happens to them later is nothing to it.
2. Every plan that comes back is looked at: each stream that it reads must be read as this call said. A frame of another
   node, or of an earlier call of the same one, would be read to another place, and the results would silently be wrong.
3. What a function raises is an error of its node, and of no other: it comes out as one of ours, in one sentence, and
   says whether another call may mend it. What Spark says of a query it says itself (`holdfast.spark.failure`).
4. A function describes a query and is called for each start and each fork. A query that it starts would be started each
   time: it is refused. What it writes from a table is written each time: that is warned of, since it may do no harm.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.classic import dataframe as classic

from holdfast.model.errors import HoldfastError, PeerError, UsageError, in_one_line
from holdfast.spark.failure import is_permanent, may_pass
from holdfast.spark.plan_tree import each, kind_of

log = logging.getLogger(__name__)

_RELATION = "StreamingRelationV2"
#: A part of the plan that stands elsewhere in it in full.
_REFERENCE = "CTERelationRef"
_calling = threading.Lock()
#: Whose function is being called, if one is.
_inside: ContextVar[str | None] = ContextVar("holdfast_given_frames", default=None)
#: What was warned of; once is enough.
_told: set[tuple[str, str]] = set()
#: What Spark says to whoever runs a frame of streams as if it were a table.
_RAN = "must be executed with writeStream.start()"
#: Spark's own.
_write_stream, _write = classic.DataFrame.writeStream, classic.DataFrame.write
_write_to = classic.DataFrame.writeTo


def call_alone(function: Callable[..., Any], frames: Sequence[DataFrame], whose: str) -> Any:
    """Rules 1, 3 and 4."""
    with _calling, _nothing_started(whose):
        try:
            return function(*frames)
        except HoldfastError:
            raise
        except (Exception, SystemExit) as error:
            if _RAN in str(error):
                raise UsageError(
                    f"{whose} must only describe its query: its function has run it (count, collect, show, cache, "
                    f"toPandas, rdd or the like), and inputs that go on for ever have no end to run to; return the "
                    f"frame, and read what it gives from its output"
                ) from error
            if is_permanent(error):  # Spark refuses what it asks for, and says where.
                raise
            if may_pass(error):
                raise PeerError(
                    f"{whose} must be given its query by its function; it raised {in_one_line(error)}; that may pass, "
                    f"so it is called again after a while"
                ) from error
            raise UsageError(
                f"{whose} must be given its query by its function; it raised {in_one_line(error)}; correct the "
                f"function and start again"
            ) from error


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


@contextlib.contextmanager
def _nothing_started(whose: str) -> Iterator[None]:
    """Rule 4, in this thread."""
    frames: Any = classic.DataFrame  # Functions get frames of it and make others, at any depth.
    frames.writeStream, frames.write = property(_stream_written), property(_table_written)
    frames.writeTo = _table_written_to
    token = _inside.set(whose)
    try:
        yield
    finally:
        _inside.reset(token)


def _stream_written(frame: DataFrame) -> Any:
    whose = _inside.get()
    if whose is None or not frame.isStreaming:
        return _write_stream.__get__(frame)
    raise UsageError(
        f"{whose} must not start a query of its own: its function is called for each start and each fork, and each "
        f"call would start another one; got writeStream; return that frame (as one of outputs=[…], where there are "
        f"several), and let a sink (app.sink) or a query outside of the function take its stream"
    )


def _table_written(frame: DataFrame) -> Any:
    _warn_of_writing("write")
    return _write.__get__(frame)


def _table_written_to(frame: DataFrame, table: str) -> Any:
    _warn_of_writing("writeTo")
    return _write_to(frame, table)


def _warn_of_writing(method: str) -> None:
    whose = _inside.get()
    if whose is not None and (whose, method) not in _told:
        _told.add((whose, method))
        log.warning("%s: its function is called for each start and each fork, and what it writes (%s) is written each "
                    "time; write it before the application starts", whose, method)  # fmt: skip
