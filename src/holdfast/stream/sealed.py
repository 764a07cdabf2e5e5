"""Small files: JSON for people, followed by a line with its CRC32C, so that damage is noticed before it is believed."""

from __future__ import annotations

import threading
from typing import Any, TypeVar

import msgspec

from holdfast.model.errors import CorruptLog
from holdfast.stream.frame import FORMAT_VERSION, crc32c

T = TypeVar("T", bound=msgspec.Struct)


_decoders: dict[type[msgspec.Struct], msgspec.json.Decoder[Any]] = {}
_building = threading.Lock()


def decoder_of(kind: type[T]) -> msgspec.json.Decoder[T]:
    """The decoder of a type, made by one thread at a time: msgspec looks a type up lazily, and two threads that do so
    at once can crash the process."""
    with _building:
        if kind not in _decoders:
            _decoders[kind] = msgspec.json.Decoder(kind)
        return _decoders[kind]


def seal(value: msgspec.Struct) -> bytes:
    text = msgspec.json.format(msgspec.json.encode(value), indent=1)
    return text + b"\n%08x\n" % crc32c(text)


def unseal(data: bytes, kind: type[T], where: str, advice: str = "run `holdfast repair`") -> T:
    """The value that was sealed; `CorruptLog` if a bit is wrong or the format is not ours."""
    text, _, crc = data[:-1].rpartition(b"\n")
    if data[-1:] != b"\n" or crc != b"%08x" % crc32c(text):
        raise CorruptLog(f"{where}: the file does not match its checksum; {advice}")
    try:
        value = decoder_of(kind).decode(text)
    except msgspec.MsgspecError as error:
        raise CorruptLog(f"{where}: the file is unreadable ({error}); {advice}") from error
    if value.format not in getattr(kind, "FORMATS", (FORMAT_VERSION,)):  # type: ignore[attr-defined]
        raise CorruptLog(f"{where}: the file has another format than {FORMAT_VERSION}; upgrade Holdfast")
    return value
