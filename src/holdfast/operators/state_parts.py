"""States in parts: of a large state, only what changed is saved with a batch.

    class Pages(UserOperator, Parted):
        def changes(self):
            return Changed(encode(self.count), {b"%d" % n: page for n, page in self.fresh()})
        def restore_parts(self, head, parts, lost):
            self.count, self.pages = decode(head), parts

Rules:
1. A state is a *head*, saved whole whenever its key had tuples, and parts by name, of which `changes` gives those that
   are new or different since the last time; None removes one. What it leaves out stays as it is.
2. Holdfast keeps the directory: with the head it saves the name and the checksum of each part, so the parts that a
   state is put together from are those that belong to its head, or they are lost (C6, C11).
3. A part that is lost is an error where *exact* was promised. In best effort the operator goes on without it: it is
   told the names in `lost`.
4. Names are to be used again, like the slots of a circular buffer: a store remembers each name that it ever had.
5. An operator that is restored from a state that was saved whole gets it by `restore`, as others do.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from holdfast.model.errors import CorruptLog
from holdfast.stream.frame import crc32c

#: Begins the bytes of a state that has parts. No MessagePack begins with this byte.
_MAGIC = b"\xc1parts1"


class Changed(NamedTuple):
    """What to save of a state: its head, and the parts that are not as they were."""

    head: bytes
    parts: Mapping[bytes, bytes | None]


class Parted(ABC):
    """An operator whose state has parts; beside `UserOperator` or `VectorOperator`."""

    @abstractmethod
    def changes(self) -> Changed:
        """What differs from what was restored, or from the last time."""

    @abstractmethod
    def restore_parts(self, head: bytes, parts: dict[bytes, bytes], lost: list[bytes]) -> None:
        """Become what all `changes` so far made; `lost` are parts that are not there any more."""


class Packed(msgspec.Struct, array_like=True, frozen=True):
    """The state of a key as it is kept: its head, and the checksum of each part by name."""

    head: bytes
    directory: dict[bytes, int]


_decode = msgspec.msgpack.Decoder(Packed).decode


def pack(head: bytes, directory: dict[bytes, int]) -> bytes:
    return _MAGIC + msgspec.msgpack.encode(Packed(head, directory))


def unpack(state: bytes) -> Packed | None:
    """None if the state was saved whole."""
    if not state.startswith(_MAGIC):
        return None
    try:
        return _decode(state[len(_MAGIC) :])
    except msgspec.MsgspecError as error:
        raise CorruptLog(f"the head of a state cannot be read ({error}); restore an earlier checkpoint") from error


def follow(directory: dict[bytes, int], parts: Mapping[bytes, bytes | None]) -> dict[bytes, int]:
    """The directory after these changes."""
    found = {name: crc for name, crc in directory.items() if name not in parts}
    return found | {name: crc32c(part) for name, part in parts.items() if part is not None}


def sorted_out(directory: dict[bytes, int], found: Mapping[bytes, bytes]) -> tuple[dict[bytes, bytes], list[bytes]]:
    """Of what was found, the parts that a directory names; and the names of those that are lost."""
    parts = {name: found[name] for name, crc in directory.items() if name in found and crc32c(found[name]) == crc}
    return parts, [name for name in directory if name not in parts]
