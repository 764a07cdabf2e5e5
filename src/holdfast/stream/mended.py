"""The note of every time that an operator took a stream's boundary back (`boundary_mend`).

One sealed file per stream. Readers look into it when they find that the stream does not reach to where they stand.
"""

from __future__ import annotations

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


def add_mend(stream_folder: Path, mend: Mend, disk: Disk) -> None:
    """Note it once: a mend that is repeated after a crash finds its own note."""
    known = tuple(m for m in read_mends(stream_folder) if (m.was_us, m.to_us) != (mend.was_us, mend.to_us))
    disk.replace_file(mended_path(stream_folder), seal(Mends(mends=(*known, mend))))


def refusal(stream: str, position_us: int, boundary_us: int) -> Mended:
    return Mended(
        f"stream {stream}: its boundary was taken back to {instant_text(boundary_us)} by `holdfast mend-boundary`, and "
        f"this reader had read until {instant_text(position_us)}; what it read beyond has another stime now: start it "
        f"anew (a query with a new checkpoint, a subscriber from a time before the boundary)"
    )


def went_back(stream: str, was_us: int) -> MendedMeanwhile:
    return MendedMeanwhile(
        f"stream {stream}: its boundary no longer lies at {instant_text(was_us)}: it was taken back by `holdfast "
        f"mend-boundary`, or the stream was made anew, while this reader was open; open it again"
    )
