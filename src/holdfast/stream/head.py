"""The head: what retention has removed from the front of a branch.

It is a file of its own, so that retention can run beside a living writer without touching the manifest, and it is
durable before the first segment is deleted (L8).
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from holdfast.model.time import BEGINNING_US
from holdfast.stream.disk import Disk
from holdfast.stream.frame import FORMAT_VERSION
from holdfast.stream.sealed import seal, unseal


class Head(msgspec.Struct, frozen=True):
    format: int = FORMAT_VERSION
    first_base_seq: int = 0
    """Segments that begin before this commit are gone."""
    removed_until_us: int = BEGINNING_US
    """Tuples before this stime may be gone."""
    removed_rows: int = 0
    removed_bytes: int = 0


_NOTHING = Head()


def read_head(folder: Path) -> Head:
    path = folder / "head"
    try:
        return unseal(path.read_bytes(), Head, str(path))
    except FileNotFoundError:
        return _NOTHING


def write_head(folder: Path, head: Head, disk: Disk) -> None:
    disk.replace_file(folder / "head", seal(head))
