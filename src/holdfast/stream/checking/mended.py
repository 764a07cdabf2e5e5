"""The note of every time that an operator took a stream's boundary back (`boundary_mend`).

Rules:
1. One sealed file per stream holds them all, for ever. How many of them were carried out stands in the manifest, so
   that a reader learns of a mend together with the segments that it made.
2. A position says how many mends it was taken under. Whoever was beyond the mended place at one of the later ones has
   read tuples that have another stime now, and is refused, however far the stream has come since.
3. A position that says nothing is older than the first mend.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from holdfast.model.errors import Mended, MendedMeanwhile
from holdfast.model.time import instant_text
from holdfast.stream.disk import Disk
from holdfast.stream.frame import FORMAT_VERSION
from holdfast.stream.sealed import seal, unseal


class Mend(msgspec.Struct, frozen=True):
    was_us: int
    to_us: int
    """The boundary before and after."""
    wall_us: int
    moved: int
    """Tuples whose stime lay beyond `to_us` and is `to_us` since."""
    first_id: int | None = None
    """The first of them; None if there are none."""


class Mends(msgspec.Struct, frozen=True):
    format: int = FORMAT_VERSION
    mends: tuple[Mend, ...] = ()


def mended_path(stream_folder: Path) -> Path:
    return stream_folder / "mended"


def read_mends(stream_folder: Path) -> tuple[Mend, ...]:
    path = mended_path(stream_folder)
    try:
        return unseal(path.read_bytes(), Mends, str(path)).mends
    except FileNotFoundError:
        return ()


def add_mend(stream_folder: Path, done: int, mend: Mend, disk: Disk) -> None:
    """Note the mend behind those that were `done`: one that was cut short before its manifest is forgotten."""
    mends = (*read_mends(stream_folder)[:done], mend)
    disk.replace_file(mended_path(stream_folder), seal(Mends(mends=mends)))


def passed_over(mends: Sequence[Mend], position_us: int, next_id: int = 0) -> Mend | None:
    """The first of these mends whose place lies before the position of somebody who knew none of them, or of whose
    moved tuples one lies before `next_id`: they may have been sent before the boundary had come to them."""
    for mend in mends:
        if mend.to_us < position_us or (mend.first_id is not None and mend.first_id < next_id):
            return mend
    return None


def refusal(stream: str, position_us: int, mend: Mend) -> Mended:
    return Mended(
        f"stream {stream}: its boundary was taken back to {instant_text(mend.to_us)} by `holdfast mend-boundary`, and "
        f"this reader had read until {instant_text(position_us)} before; what it read beyond has another stime now: "
        f"start it anew (a query with a new checkpoint, a node with `holdfast down`, its folder removed, and `up`, a "
        f"subscriber without its old position)"
    )


def went_back(stream: str, was_us: int) -> MendedMeanwhile:
    return MendedMeanwhile(
        f"stream {stream}: its boundary no longer lies at {instant_text(was_us)}: it was taken back by `holdfast "
        f"mend-boundary`, or the stream was made anew, while this reader was open; open it again"
    )
