"""The folder `damaged` of a stream: what a repair replaced is kept there, whatever it is."""

from __future__ import annotations

import os
from pathlib import Path

from holdfast.stream.disk import Disk


def keep(stream_folder: Path, file: Path, disk: Disk) -> Path:
    """Give `file` a second, durable name in `damaged`; the first one may go then. Safe to repeat after a crash."""
    folder = stream_folder / "damaged"
    disk.make_dir(folder)
    disk.sync_dir(stream_folder)
    stem = file.name if file.parent == stream_folder else f"{file.parent.name}-{file.name}"
    n = 0
    while True:
        kept = folder / (stem if n == 0 else f"{stem}.{n}")
        if disk.link(file, kept) or os.path.samefile(file, kept):
            disk.sync_dir(folder)
            return kept
        n += 1
