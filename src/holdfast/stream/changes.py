"""The history of a stream's definition: from where on its results come from another one.

One sealed file per stream, in the order of time. A result before `from_us` is what an earlier definition made of the
input, and stays; `holdfast verify` shows where that is.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from holdfast.stream.disk import Disk
from holdfast.stream.frame import FORMAT_VERSION
from holdfast.stream.sealed import seal, unseal


class Change(msgspec.Struct, frozen=True):
    from_us: int
    what: Literal["compatible", "anew"]
    """Whether the state was taken over, because somebody knew that it fits, or made afresh."""
    differences: tuple[str, ...]
    written_us: int
    """When it was noted, by this machine's clock."""


class Changes(msgspec.Struct, frozen=True):
    format: int = FORMAT_VERSION
    changes: tuple[Change, ...] = ()


def changes_path(stream_folder: Path) -> Path:
    return stream_folder / "changes"


def read_changes(stream_folder: Path) -> tuple[Change, ...]:
    """All changes of a stream's definition, in order."""
    path = changes_path(stream_folder)
    try:
        return unseal(path.read_bytes(), Changes, str(path)).changes
    except FileNotFoundError:
        return ()


def note_change(stream_folder: Path, change: Change, disk: Disk) -> None:
    """Add a change, durably. One that is there already, because its writer was killed behind it, is not added again."""
    known = read_changes(stream_folder)
    if known and (known[-1].from_us, known[-1].differences) == (change.from_us, change.differences):
        return
    disk.replace_file(changes_path(stream_folder), seal(Changes(changes=(*known, change))))
