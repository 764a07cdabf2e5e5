"""A checkpoint as one string of bytes, for stores that keep strings: version, mark, checksum, value.

The version stands first in twenty decimal digits: text of equal length that compares like the number, also in the
Lua of a Redis server, whose string comparison follows the machine's locale.
"""

from __future__ import annotations

from holdfast.checkpoint.store import Entry, Saved
from holdfast.model.errors import CorruptLog
from holdfast.stream.frame import crc32c

VERSION_DIGITS = 20
_KEPT, _GONE = b"+", b"-"
_HEAD = VERSION_DIGITS + 1 + 8


def version_text(version: int) -> bytes:
    return b"%020d" % version


def wrap(entry: Entry) -> bytes:
    """The bytes to keep for an entry. The checksum covers the key as well: a value under a wrong key is damage."""
    head = version_text(entry.version) + (_GONE if entry.value is None else _KEPT)
    value = entry.value or b""
    return head + b"%08x" % crc32c(head + entry.key + value) + value


def version_of(raw: bytes) -> int:
    """The version of a wrapped entry, unchecked: for deciding what is newer, never for returning a value."""
    return int(raw[:VERSION_DIGITS])


def unwrap(key: bytes, raw: bytes, where: str) -> Saved | None:
    """What `wrap` was given; None for a deletion; `CorruptLog` where any bit is wrong."""
    head, value = raw[: VERSION_DIGITS + 1], raw[_HEAD:]
    if len(raw) < _HEAD or b"%08x" % crc32c(head + key + value) != raw[VERSION_DIGITS + 1 : _HEAD]:
        raise CorruptLog(f"{where}: the checkpoint of {key!r:.80} does not match its checksum; restore an earlier one")
    return None if head[VERSION_DIGITS:] == _GONE else Saved(int(head[:VERSION_DIGITS]), value)
