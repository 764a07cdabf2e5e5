"""Which files a parcel may bring, and what they must look like before Spark sees them.

A checkpoint is read by Spark with code that trusts whoever wrote it. Another host, maybe of another owner, wrote this
one, so:

1. A file has one of the names that a forked checkpoint has, and is no larger than such a file can be (X4).
2. It begins, or ends, as its kind does: text with a version and JSON below it, a compressed log of changes, a snapshot
   whose contents stay inside it, a table. Spark unpacks a snapshot from its beginning and never looks at the list at
   its end: so both are read, and must say the same.
3. Offsets carry settings that Spark takes over for the query. Those that are known may be there, with values that are
   known: Spark would load and run whatever class is named as the one that keeps state, or compresses it (X3).
"""

from __future__ import annotations

import json
import re
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgspec

from holdfast.model.errors import CorruptLog, PeerError
from holdfast.stream.identity import NOTE, read_identity

_TEXT_MAX, _STATE_MAX, _SUM_MAX = 16 << 20, 1 << 30, 8 << 20
_FLAG, _VERSION, _PARTITIONS = "true|false", r"\d{1,2}", r"[1-9]\d{0,3}"
#: Settings that offsets may carry, and their values: Spark takes over those that are listed in its OffsetSeqMetadata.
_SETTINGS = {
    key: re.compile(values)
    for key, values in {
        "spark.sql.streaming.stateStore.providerClass":
            r"org\.apache\.spark\.sql\.execution\.streaming\.state\.(HDFSBacked|RocksDB)StateStoreProvider",
        "spark.sql.streaming.stateStore.compression.codec": "(?i:lz4|lzf|snappy|zstd)",
        "spark.sql.streaming.stateStore.encodingFormat": "(?i:unsaferow|avro)",
        "spark.sql.streaming.stateStore.rowChecksum.enabled": _FLAG,
        "spark.sql.streaming.stateStore.rocksdb.formatVersion": _VERSION,
        "spark.sql.streaming.stateStore.rocksdb.mergeOperatorVersion": _VERSION,
        "spark.sql.streaming.flatMapGroupsWithState.stateFormatVersion": _VERSION,
        "spark.sql.streaming.aggregation.stateFormatVersion": _VERSION,
        "spark.sql.streaming.join.stateFormatVersion": _VERSION,
        "spark.sql.streaming.multipleWatermarkPolicy": "(?i:min|max)",
        "spark.sql.streaming.statefulOperator.useStrictDistribution": _FLAG,
        "spark.sql.streaming.statefulOperator.alwaysNullableOutput.enabled": _FLAG,
        "spark.sql.streaming.queryEvolution.enableSourceEvolution": _FLAG,
        "spark.sql.optimizer.pruneFiltersCanPruneStreamingSubplan": _FLAG,
        "spark.sql.dropDuplicates.deterministicKeyOrder.enabled": _FLAG,
        "spark.sql.function.protobufExtensions.enabled": _FLAG,
        # A task for each: more would be no query of anybody's.
        "spark.sql.streaming.internal.stateStore.partitions": _PARTITIONS,
        "spark.sql.shuffle.partitions": _PARTITIONS,
    }.items()
}  # fmt: skip
#: How the codecs that Spark may compress state with begin: lz4, zstd, snappy, lzf.
_COMPRESSED = (b"LZ4Block", b"\x28\xb5\x2f\xfd", b"\x82SNAPPY\0", b"ZV")
#: What is unpacked at once to be counted.
_INFLATE_BYTES = 1 << 20
#: How a table of RocksDB ends.
_TABLE = bytes.fromhex("f7cff485b741e288")


def _lines(path: Path) -> list[str]:
    """As Java sees them: Python's own `splitlines` knows more ends of a line."""
    return path.read_text("utf-8").removesuffix("\n").split("\n")


def _versioned(path: Path) -> bool:
    version, *lines = _lines(path)
    said = [msgspec.json.decode(line) for line in lines if line != "-"]
    return re.fullmatch(r"v\d{1,3}", version) is not None and bool(said)


def _offsets(path: Path) -> bool:
    """Rule 3."""
    about: Any = json.loads(_lines(path)[1], object_pairs_hook=_said_once)
    settings = about.get("conf", {})
    known = all(
        key in _SETTINGS and isinstance(value, str) and _SETTINGS[key].fullmatch(value)
        for key, value in settings.items()
    )
    return _versioned(path) and known


def _said_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Of a key that comes twice Spark might take the other value."""
    if len(dict(pairs)) != len(pairs):
        raise ValueError("a key comes twice")
    return dict(pairs)


def _object(path: Path) -> bool:
    return isinstance(msgspec.json.decode(path.read_bytes()), dict)


def _changes(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(8).startswith(_COMPRESSED)


def _snapshot(path: Path) -> bool:
    """Unpacked by Spark into a folder of its choice: nothing in it may lie elsewhere, or be a thousand times larger."""
    with zipfile.ZipFile(path) as content:
        files = [(f.orig_filename.encode("ascii"), f.file_size) for f in content.infolist()]
        end = content.start_dir
    inside = all(re.fullmatch(rb"[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*", name) and b".." not in name for name, _ in files)
    if not inside or len(files) > 4096 or sum(length for _, length in files) > _STATE_MAX:
        return False
    with path.open("rb") as file:
        return _unpacked(file, files) and file.tell() == end


#: What stands in front of a file in a zip: mark, version, flags, method, time, date, checksum, packed, length, lengths
#: of its name and of what else is said. The flag: checksum and lengths stand behind the file, where a mark may precede
#: them. Of what else is said, 1 stands for lengths of 64 bits, which a snapshot does not need.
_LOCAL = struct.Struct("<4s5H3I2H")
_LENGTHS_BEHIND, _DEFLATED = 8, 8
_MORE = struct.Struct("<2H")


def _unpacked(file: BinaryIO, files: list[tuple[bytes, int]]) -> bool:
    """Rule 2: whether the files come one behind the other, as Spark unpacks them, with these names and lengths. Lengths
    are counted: nothing that is said of them bounds what Spark would write."""
    for name, length in files:
        mark, _, flags, method, _, _, _, packed, said, name_length, more = _LOCAL.unpack(file.read(_LOCAL.size))
        if mark != b"PK\3\4" or flags & ~(_LENGTHS_BEHIND | 0x800) or file.read(name_length) != name:
            return False
        kinds, rest = set(), file.read(more)
        while rest:
            kind, size = _MORE.unpack_from(rest)
            kinds.add(kind)
            rest = rest[_MORE.size + size :]
        if 1 in kinds or method not in (0, _DEFLATED):
            return False
        if method == _DEFLATED:
            if not _inflates(file, length):
                return False
        elif flags & _LENGTHS_BEHIND or not packed == said == length:
            return False
        else:
            file.seek(length, 1)
        if flags & _LENGTHS_BEHIND:
            file.seek(12 if file.read(4) == b"PK\7\x08" else 8, 1)
    return True


def _inflates(file: BinaryIO, length: int) -> bool:
    """Whether what follows becomes so many bytes; the file then stands behind it."""
    unpacking, found = zlib.decompressobj(-zlib.MAX_WBITS), 0
    while not unpacking.eof:
        data = unpacking.unconsumed_tail or file.read(_INFLATE_BYTES)
        out = unpacking.decompress(data, _INFLATE_BYTES)
        found += len(out)
        if found > length or not (data or out):
            return False
    file.seek(-len(unpacking.unused_data), 1)
    return found == length


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


_UNREADABLE = (
    OSError, ValueError, IndexError, AttributeError, RecursionError, NotImplementedError, struct.error, zlib.error,
    zipfile.BadZipFile, msgspec.MsgspecError, CorruptLog,
)  # fmt: skip


def check_stored(checkpoint: Path, path: str) -> None:
    """Rules 2 and 3, once the file is there whole."""
    kind = _kind_of(path)
    assert kind is not None, "its name was checked before"
    try:
        right = kind.looks_right(checkpoint / path)
    except _UNREADABLE:
        right = False
    if not right:
        raise PeerError(f"the file {path} of a parcel does not look like what Spark writes there; it was refused")


def _kind_of(path: str) -> _Kind | None:
    return next((kind for kind in _KINDS if kind.pattern.fullmatch(path)), None)
