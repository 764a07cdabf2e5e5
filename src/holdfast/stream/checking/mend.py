"""A single flipped bit in a small sealed file can be put right: its checksum says which one it was.

CRC32C tells every pair of texts apart that differ in up to three bits, at any length that a sealed file has. So at most
one of all single flips makes a file with one wrong bit sound again, and one that is wrong in more places is mended by
chance once in a few hundred thousand files; then it must also still be readable.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from holdfast.model.errors import CorruptLog
from holdfast.stream.sealed import unseal

T = TypeVar("T", bound=msgspec.Struct)
#: Each bit costs one checksum of the whole file: a second or so at this size.
MEND_BYTES_MAX = 16_384


def mend(data: bytes, kind: type[T]) -> bytes | None:
    """`data` with its one wrong bit put right, or None if that does not make it sound."""
    if len(data) > MEND_BYTES_MAX:
        return None
    work = bytearray(data)
    for at in range(len(work)):
        for bit in range(8):
            work[at] ^= 1 << bit
            try:
                unseal(bytes(work), kind, "")
                return bytes(work)
            except CorruptLog:
                work[at] ^= 1 << bit
    return None
