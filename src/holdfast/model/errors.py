"""Whose fault it was: the caller's, the environment's, a peer's.

Our own faults are plain assertions. Every message says what was required, what came, and what to do, and names the
stream, bucket or file it speaks of.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path

_OURS = str(Path(__file__).parents[1])
_PYTHONS = (*(sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib")), "<frozen ")
#: Where libraries lie in another environment, such as that of a worker elsewhere.
_ELSEWHERE = ("/site-packages/", "/dist-packages/", "/pyspark.zip/", "/pyspark/python/")


class HoldfastError(Exception):
    """Root of all errors that Holdfast raises on purpose."""


class UsageError(HoldfastError):
    """The caller asked for something that cannot be done as asked. Nothing was changed."""


class UnknownStream(UsageError):
    """No stream of that name lives in the store."""


class SchemaError(UsageError):
    """Rows or batches do not fit the stream's schema."""


class LateTuple(UsageError):
    """A tuple's stime lies before the boundary that the stream has already promised (D10)."""


class EarlyTuple(UsageError):
    """A tuple's stime, or a boundary, lies so far ahead of the clock that every tuple after it would be late (D19)."""


class BadName(UsageError):
    """A name that is not a plain stream name: it could reach outside the data root (X2)."""


class Removed(UsageError):
    """The range asked for was removed by retention."""


class InputLost(UsageError):
    """A replica would have to read input that is gone. What came of it, only its twins have."""


class Mended(UsageError):
    """The boundary of a stream was taken back behind what this reader has read: it must begin anew."""


class StorageError(HoldfastError):
    """The disk refused or lied. What was acknowledged before is intact."""


class MendedMeanwhile(StorageError):
    """The boundary of a stream was taken back while this reader had it open: it must open it again."""


class ColumnsAdded(StorageError):
    """A stream has more columns than when this reader opened it: it must open it again to have their values."""


class CorruptLog(StorageError):
    """A checksum, length or chain does not fit: the bytes at that place are not what was written (L4)."""


class Fenced(StorageError):
    """Another writer holds a newer epoch; this one may not acknowledge anything any more (L7)."""


class StateLost(StorageError):
    """The state of an operator is not at hand; start the query again and it is restored from its checkpoints."""


class StreamBusy(StorageError):
    """Another process is writing to the stream right now."""


class StreamFull(StorageError):
    """A bounded stream has no room and its readers have not acknowledged enough to make some."""


class PeerError(HoldfastError):
    """Another process or server did not do its part."""


def is_library(file: str) -> bool:
    """Whether a file of a traceback is none of the user's program."""
    return file.startswith((_OURS, *_PYTHONS)) or any(part in file for part in _ELSEWHERE)


def in_one_line(error: BaseException) -> str:
    """An error of a program of the user's: its kind, its text, and the line of that program, which is enough to find
    the mistake. A library that the program has called is not where it was made."""
    frames = []
    frame = error.__traceback__
    while frame is not None:
        frames.append((frame.tb_frame.f_code.co_filename, frame.tb_lineno))
        frame = frame.tb_next
    where = ""
    if frames and not isinstance(error, SyntaxError):  # Which says so itself.
        file, line = next((at for at in reversed(frames) if not is_library(at[0])), frames[-1])
        where = f" ({Path(file).name} line {line})"
    return f"{type(error).__name__}: {' '.join(str(error).split())}{where}"
