"""Why a query stopped: one sentence of it, and whether starting it again could change anything.

Spark wraps what happened: an error that was raised in a worker comes back as text inside another exception, with the
query's plan behind it. Whoever reads a log or a status wants the sentence.

Rules:
1. An error of the user's (`UsageError` and what extends it, wherever it was raised) and a query that Spark itself
   refuses (analysis, parsing, an operation that it does not support) will be the same at every start.
2. Input that is gone, and a stream that is not there, are not: the replica goes on behind a gap, and streams come.
3. What a function of the user's raises in a worker, and what Spark's arithmetic refuses (SQLSTATE 22, data exceptions:
   a division by zero, a cast; 21, too many rows of a subquery; P0001, `raise_error`), has its **cause** in the batch:
   the same batch dies of it again. Which of a batch's rows is first may differ, so the cause is told without values.
4. Everything else may pass: a worker that was killed, a disk that was full, a server that is away, also where it was a
   function of the user's that asked for it.
"""

from __future__ import annotations

import builtins
import re
from pathlib import Path

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import (
    AnalysisException,
    ParseException,
    PySparkException,
    PySparkRuntimeError,
    QueryExecutionException,
    SparkRuntimeException,
    StreamingQueryException,
    UnknownException,
)

from holdfast.engine import is_users
from holdfast.model import errors
from holdfast.model.errors import HoldfastError, is_library

_OURS = re.compile(r"holdfast\.model\.errors\.(\w+): (.+)")
_UNSUPPORTED = re.compile(r"\[(UNSUPPORTED_\w+|STREAMING_OUTPUT_MODE)[.\]]")
_STOPPED = re.compile(r"^\[STREAM_FAILED\] Query \[[^\]]*\] terminated with exception: ")
_STATE = re.compile(r" SQLSTATE: \w+")
#: Rule 3. The message has no other bracket of that kind before its state.
_DATA = re.compile(
    r"(\[([A-Z][A-Z0-9_]+)(?:\.[A-Z0-9_]+)?\] (?:(?!\[[A-Z]).)*?) SQLSTATE: (?:22\w{3}|21000|P0001)\b", re.S
)
_CALLED = re.compile(r"was called from\s+(\S+\.py):(\d+)")
_TRACE = "Traceback (most recent call last):\n"
_FRAME = re.compile(r'^ +File "(.+)", line (\d+)')
_RAISED = re.compile(r"^([A-Za-z_][\w.]*)(?:: (.*))?$")
_SENTENCE_MAX = 500

#: Rule 4: what Python raises when something outside is not as it should be,
_OUTSIDE = {
    *(name for name, kind in vars(builtins).items() if isinstance(kind, type) and issubclass(kind, OSError)),
    "EOFError",
    "MemoryError",
}
#: and how libraries call that: drivers of databases (PEP 249), of HTTP, of message brokers.
_CALLED_OUTSIDE = re.compile(
    r"Connect|Time(d)?[oO]ut|Unavailable|Unreachable|OperationalError|InterfaceError|Throttl|TooManyRequests|HTTP|"
    r"URLError|SSL|Network|Socket|gaierror|Disconnected|ServerError|RetryError"
)
#: Raised for values, though no line of the user's stands in the trace: a result that does not fit its declared type.
_OF_VALUES = ("pyspark.errors.", "pyarrow.", "pandas.")
_JVMS = (PySparkRuntimeError, QueryExecutionException, SparkRuntimeException, StreamingQueryException, UnknownException)


class _Raised:
    """What was raised in a worker of Python's, and where: of several traces the last, which is what came out."""

    def __init__(self, kind: str, text: str, frames: list[tuple[str, int]]) -> None:
        self.kind, self.text = kind, text
        users = [frame for frame in frames if not is_library(frame[0])]
        self.place = f"{Path(users[-1][0]).name} line {users[-1][1]}" if users else None

    @property
    def sentence(self) -> str:
        told = f"{self.kind.rpartition('.')[2]}: {self.text}" if self.text else self.kind.rpartition(".")[2]
        return f"{told[:_SENTENCE_MAX]}{f' ({self.place})' if self.place else ''}"

    @property
    def of_batch(self) -> bool:
        """Rules 3 and 4."""
        return not _is_outside(self.kind) and (self.place is not None or self.kind.startswith(_OF_VALUES))


def sentence(error: BaseException | None) -> str:
    """What happened, without Spark's wrapping, its plan and its traces."""
    if error is None:
        return "no reason given"
    text = str(error).strip()
    if not isinstance(error, HoldfastError):
        if (ours := _ours(text)) is not None:
            return ours[1]
        if (raised := _raised(text)) is not None:
            return raised.sentence
        if (data := _DATA.search(text)) is not None:
            called = _CALLED.search(text, data.end())
            where = f" ({Path(called[1]).name} line {called[2]})" if called else ""
            return f"{' '.join(data[1].split())[:_SENTENCE_MAX]}{where}"
    first = _STATE.sub("", _STOPPED.sub("", text.partition("\n")[0])).rstrip("; ")
    place = _place(error)
    return f"{first[:_SENTENCE_MAX]}{f' ({place})' if place else ''}" or type(error).__name__


def is_permanent(error: BaseException | None) -> bool:
    """Whether no new start can mend it."""
    if isinstance(error, HoldfastError):
        return is_users(type(error))
    if isinstance(error, AnalysisException | ParseException):
        return True
    text = str(error or "")
    if (ours := _ours(text)) is not None:
        return is_users(getattr(errors, ours[0], HoldfastError))
    return isinstance(error, PySparkException) and _UNSUPPORTED.search(text.partition("\n")[0]) is not None


def cause(error: BaseException | None) -> str | None:
    """What the batch died of, if it will die of it again (rule 3)."""
    text = str(error or "")
    if not isinstance(error, PySparkException) or _ours(text) is not None:
        return None
    if (raised := _raised(text)) is not None:
        return f"{raised.kind} ({raised.place})" if raised.of_batch else None
    data = _DATA.search(text)
    return None if data is None else data[2]


def may_pass(error: BaseException) -> bool:
    """Rule 4, of what a function of the user's raises where it is called: whether another call may go well."""
    if isinstance(error, PySparkException):
        return isinstance(error, _JVMS) and not is_permanent(error) and _DATA.search(str(error)) is None
    return isinstance(error, OSError | MemoryError | EOFError | Py4JError) or _is_outside(type(error).__name__)


def _is_outside(kind: str) -> bool:
    name = kind.rpartition(".")[2]
    return name in _OUTSIDE or _CALLED_OUTSIDE.search(name) is not None


def _raised(text: str) -> _Raised | None:
    _, found, trace = text.rpartition(_TRACE)
    frames = []
    for line in trace.splitlines() if found else ():
        if (frame := _FRAME.match(line)) is not None:
            frames.append((frame[1], int(frame[2])))
        elif (raised := _RAISED.match(line)) is not None:
            return _Raised(raised[1], (raised[2] or "").strip(), frames)
    return None


def _ours(text: str) -> tuple[str, str] | None:
    """Name and sentence of an error of ours in a trace: of several, the last, which is what came out."""
    found = _OURS.findall(text)
    return (found[-1][0], found[-1][1].strip()) if found else None


def _place(error: BaseException) -> str | None:
    """Where in the user's program Spark was asked for it, if it knows."""
    if not isinstance(error, AnalysisException):
        return None
    try:
        for context in error.getQueryContext():
            if (place := context.callSite().rpartition("/")[2].strip()) and place.partition(":")[0].endswith(".py"):
                return str(place)
    except Exception:  # Spark's contexts differ by kind; the sentence stands without a place.
        return None
    return None
