"""Which files a parcel may bring, and what they must look like before Spark sees them.

A checkpoint is read by Spark with code that trusts whoever wrote it. Another host, maybe of another owner, wrote this
one, so:

1. A file has one of the names that a forked checkpoint has, and is no larger than such a file can be (X4).
2. It begins, or ends, as its kind does: text with a version and JSON below it, a compressed log of changes, a snapshot
   whose list of contents stays inside it, a table.
3. Offsets carry settings that Spark takes over for the query. The class that keeps state is one of Spark's two; any
   other name would be loaded and run (X3).
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from holdfast.model.errors import CorruptLog, PeerError
from holdfast.stream.identity import NOTE, read_identity

_TEXT_MAX, _STATE_MAX, _SUM_MAX = 16 << 20, 1 << 30, 8 << 20
_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_PROVIDERS = frozenset(
    f"org.apache.spark.sql.execution.streaming.state.{name}StateStoreProvider" for name in ("HDFSBacked", "RocksDB")
)
#: How the codecs that Spark may compress state with begin: lz4, zstd, snappy, lzf.
_COMPRESSED = (b"LZ4Block", b"\x28\xb5\x2f\xfd", b"\x82SNAPPY\0", b"ZV")
#: How a table of RocksDB ends.
_TABLE = bytes.fromhex("f7cff485b741e288")


def _versioned(path: Path) -> bool:
    version, *lines = path.read_text("utf-8").splitlines()
    said = [msgspec.json.decode(line) for line in lines if line != "-"]
    return re.fullmatch(r"v\d{1,3}", version) is not None and bool(said)


def _offsets(path: Path) -> bool:
    """Rule 3."""
    about: Any = msgspec.json.decode(path.read_text("utf-8").splitlines()[1])
    provider = about.get("conf", {}).get(_PROVIDER) if isinstance(about, dict) else None
    return _versioned(path) and (provider is None or provider in _PROVIDERS)


def _object(path: Path) -> bool:
    return isinstance(msgspec.json.decode(path.read_bytes()), dict)


def _changes(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(8).startswith(_COMPRESSED)


def _snapshot(path: Path) -> bool:
    """Unpacked by Spark into a folder of its choice: nothing in it may lie elsewhere, or be a thousand times larger."""
    with zipfile.ZipFile(path) as content:
        files = content.infolist()
    inside = all(
        re.fullmatch(r"[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*", f.filename) and ".." not in f.filename for f in files
    )
    return inside and len(files) <= 4096 and sum(file.file_size for file in files) <= _STATE_MAX


def _table(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-min(8, path.stat().st_size), 2)
        return file.read() == _TABLE


def _identity(path: Path) -> bool:
    """What the query computes, as its owner noted it: it is compared with what it would compute here (C12)."""
    return read_identity(path.parent) is not None


def _any(path: Path) -> bool:
    return True


class _Kind(NamedTuple):
    pattern: re.Pattern[str]
    bytes_max: int
    looks_right: Callable[[Path], bool]


#: Where states of our own operators lie in a checkpoint that came from elsewhere (`holdfast.spark.arrivals`).
_STATES = "arrived"
_STORE = r"state/\d{1,6}/\d{1,6}(/[A-Za-z][A-Za-z0-9_-]{0,99})?"
_KINDS = tuple(
    _Kind(re.compile(pattern), bytes_max, looks_right)
    for pattern, bytes_max, looks_right in (
        (r"metadata", 64 << 10, _object),
        (NOTE, _TEXT_MAX, _identity),
        (r"offsets/\d{1,19}", _TEXT_MAX, _offsets),
        (r"commits/\d{1,19}", _TEXT_MAX, _versioned),
        (r"state/\d{1,6}/_metadata/(metadata|v\d{1,3}/\d{1,19})", _TEXT_MAX, _versioned),
        (rf"({_STORE}/_metadata|state/\d{{1,6}}/_stateSchema/[A-Za-z0-9_-]+)/[A-Za-z0-9_-]+", _TEXT_MAX, _any),
        (rf"{_STORE}/\d{{1,19}}(_[0-9a-f-]+)?\.(delta|snapshot|changelog)", _STATE_MAX, _changes),
        (rf"{_STORE}/\d{{1,19}}(_[0-9a-f-]+)?\.zip", _STATE_MAX, _snapshot),
        (rf"{_STORE}/SSTs/[A-Za-z0-9_-]+\.sst", _STATE_MAX, _table),
        (rf"{_STORE}/logs/[A-Za-z0-9_-]+\.log", _STATE_MAX, _any),
        # Spark's own sums beside its files.
        (r"([A-Za-z0-9_-]+/){0,6}\.[A-Za-z0-9_-]+(\.[a-z]+)?\.crc", _SUM_MAX, _any),
        # States of our own operators: sealed, and validated when they are read.
        (rf"{_STATES}(/[A-Za-z0-9._-]+){{1,6}}", _STATE_MAX, _any),
    )
)


def is_operator_state(path: str) -> bool:
    """Whether a file is a state of one of our own operators, which a host of the first version does not know."""
    return path.startswith(f"{_STATES}/")


def check_named(path: str, length: int) -> None:
    """Rule 1, before anything of the file is stored."""
    kind = _kind_of(path)
    if kind is None:
        raise PeerError(f"a parcel must hold the files of a checkpoint; got {path[:80]!r}; it was refused")
    if length > kind.bytes_max:
        raise PeerError(f"the file {path} of a parcel may have {kind.bytes_max} bytes at most; got {length}")


def check_stored(checkpoint: Path, path: str) -> None:
    """Rules 2 and 3, once the file is there whole."""
    kind = _kind_of(path)
    assert kind is not None, "its name was checked before"
    try:
        right = kind.looks_right(checkpoint / path)
    except (OSError, ValueError, IndexError, RecursionError, zipfile.BadZipFile, msgspec.MsgspecError, CorruptLog):
        right = False
    if not right:
        raise PeerError(f"the file {path} of a parcel does not look like what Spark writes there; it was refused")


def _kind_of(path: str) -> _Kind | None:
    return next((kind for kind in _KINDS if kind.pattern.fullmatch(path)), None)
