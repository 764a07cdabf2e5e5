"""Holes: ranges of a stream that were never written, because the input they depend on was gone (003 §4.9.4).

A stream with holes comes from a convergent-capable query that went on behind a gap. Whoever reads across a hole is told
so; nothing is left out in silence (D14). One sealed file per stream, holes in the order of time.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from holdfast.stream.disk import Disk
from holdfast.stream.frame import FORMAT_VERSION
from holdfast.stream.sealed import seal, unseal

INPUT_GONE = "the input for them was gone"


class Hole(msgspec.Struct, frozen=True):
    """Nothing was written of [first, upto)."""

    first_us: int
    upto_us: int
    why: str = INPUT_GONE


class Holes(msgspec.Struct, frozen=True):
    format: int = FORMAT_VERSION
    holes: tuple[Hole, ...] = ()


def holes_path(stream_folder: Path) -> Path:
    return stream_folder / "holes"


def read_holes(stream_folder: Path) -> tuple[Hole, ...]:
    """All holes of a stream, in order."""
    path = holes_path(stream_folder)
    try:
        return unseal(path.read_bytes(), Holes, str(path)).holes
    except FileNotFoundError:
        return ()


def note_hole(stream_folder: Path, first_us: int, upto_us: int, disk: Disk, why: str = INPUT_GONE) -> None:
    """Add a hole, durably. One that the last one covers is noted already; one that reaches into the last makes it
    longer: an input that is away for a week is given up a thousand times, and that is one hole."""
    known = read_holes(stream_folder)
    if known and known[-1].upto_us >= upto_us:
        return
    if known and known[-1].upto_us >= first_us and known[-1].why == why:
        known, first_us = known[:-1], min(known[-1].first_us, first_us)
    disk.replace_file(holes_path(stream_folder), seal(Holes(holes=(*known, Hole(first_us, upto_us, why)))))
