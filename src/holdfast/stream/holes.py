"""Holes: ranges of a stream that were never written, because the input they depend on was gone (003 §4.9.4).

A stream with holes comes from a convergent-capable query that went on behind a gap. Whoever reads across a hole is told
so; nothing is left out in silence (D14). One JSON object a line, in the order of time.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from holdfast.model.errors import CorruptLog
from holdfast.stream.disk import Disk


class Hole(msgspec.Struct, frozen=True):
    """Nothing was written of [first, upto)."""

    first_us: int
    upto_us: int


_decoder = msgspec.json.Decoder(Hole)


def holes_path(stream_folder: Path) -> Path:
    return stream_folder / "holes"


def read_holes(stream_folder: Path) -> list[Hole]:
    """All holes of a stream, in order."""
    path = holes_path(stream_folder)
    try:
        return [_decoder.decode(line) for line in path.read_bytes().splitlines()]
    except FileNotFoundError:
        return []
    except msgspec.MsgspecError as error:
        raise CorruptLog(f"{path}: it cannot be read ({error}); restore it from a replica") from error


def note_hole(stream_folder: Path, first_us: int, upto_us: int, disk: Disk) -> None:
    """Add a hole, durably. One that the last one covers is noted already."""
    known = read_holes(stream_folder)
    if known and known[-1].upto_us >= upto_us:
        return
    lines = [msgspec.json.encode(hole) + b"\n" for hole in (*known, Hole(first_us, upto_us))]
    disk.replace_file(holes_path(stream_folder), b"".join(lines))
