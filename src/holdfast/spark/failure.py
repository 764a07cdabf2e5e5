"""Why a query stopped: one sentence of it, and whether starting it again could change anything.

Spark wraps what happened: an error of ours that was raised in a worker comes back as text inside another exception,
with the query's plan behind it. Whoever reads a log or a status wants the sentence.

Rules:
1. An error of the user's (`UsageError` and what extends it, wherever it was raised) and a query that Spark itself
   refuses (analysis, parsing, an operation that it does not support) will be the same at every start.
2. Input that is gone, and a stream that is not there, are not: the replica goes on behind a gap, and streams come.
3. Everything else may pass: a worker that was killed, a disk that was full, a server that is away.
"""

from __future__ import annotations

import re

from pyspark.errors import AnalysisException, ParseException, PySparkException

from holdfast.engine import is_users
from holdfast.model import errors
from holdfast.model.errors import HoldfastError

_OURS = re.compile(r"holdfast\.model\.errors\.(\w+): (.+)")
_UNSUPPORTED = re.compile(r"\[(UNSUPPORTED_\w+|STREAMING_OUTPUT_MODE)[.\]]")
_STOPPED = re.compile(r"^\[STREAM_FAILED\] Query \[[^\]]*\] terminated with exception: ")
_STATE = re.compile(r" SQLSTATE: \w+")
_SENTENCE_MAX = 500


def sentence(error: BaseException | None) -> str:
    """What happened, without Spark's wrapping, its plan and its traces."""
    if error is None:
        return "no reason given"
    text = str(error).strip()
    if (ours := _ours(text)) is not None and not isinstance(error, HoldfastError):
        return ours[1]
    first = _STATE.sub("", _STOPPED.sub("", text.partition("\n")[0])).rstrip("; ")
    where = _place(error)
    return f"{first[:_SENTENCE_MAX]}{f' ({where})' if where else ''}" or type(error).__name__


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
