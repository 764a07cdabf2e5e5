"""Takes another definition of a node in, where a trial of it stands (`holdfast.host.trial`), between two buckets.

    1. copied    where the trial's query stands, and the results that wait for their bucket there
    2. level     the live output has come as far, so that nothing lies between the two
    3. stopped   the live query; its output ends with bucket B
    4. ordered   one file says that the copy counts from B on
    5. filed     the stream's history says so, too, and the copy's waiting results are the stream's
    6. taken up  the copy's checkpoint is the node's; the file goes, and the node starts as after any stop

Rules:
1. Before the file is there, the old definition goes on; once it is, the new one does, whoever is killed: the next start
   of the node does steps 5 and 6 first. Both may be done again.
2. Results before B are the old definition's and stay; from B on they are the new one's. Main is one log with one writer
   at a time, so readers see neither gap nor repetition (D1).
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Literal

import msgspec

from holdfast.clock import now_us
from holdfast.engine import Engine
from holdfast.host.crash_points import reached
from holdfast.host.rebuild import take_up_parcel
from holdfast.stream.changes import Change, note_change
from holdfast.stream.disk import Disk
from holdfast.stream.frame import FORMAT_VERSION
from holdfast.stream.sealed import seal, unseal
from holdfast.stream.store import Stream
from holdfast.stream.waiting import Waiting


class SwapOrder(msgspec.Struct, frozen=True):
    """Step 4."""

    from_us: int
    what: Literal["compatible", "anew"]
    differences: tuple[str, ...]
    rows: int
    """Results that wait; they lie beside the copy."""
    format: int = FORMAT_VERSION


def staging_of(home: Path) -> Path:
    return home / "swap-in"


def _order_of(home: Path) -> Path:
    return home / "swap"


def order_swap(home: Path, order: SwapOrder, waiting: Waiting) -> None:
    """Step 4. The copy lies in `staging_of(home)`."""
    disk, staging = Disk(), staging_of(home)
    disk.replace_file(staging / "waiting", waiting.body)
    for folder, _, files in os.walk(staging):
        for name in files:
            fd = os.open(Path(folder, name), os.O_RDONLY | os.O_CLOEXEC)
            try:
                disk.sync(fd, Path(folder, name))
            finally:
                os.close(fd)
        disk.sync_dir(Path(folder))
    disk.sync_dir(home)
    disk.replace_file(_order_of(home), seal(order))
    reached("swap-ordered")


def swap_ordered(home: Path) -> bool:
    return _order_of(home).exists()


def finish_swap(engine: Engine, home: Path, output: Stream) -> bool:
    """Steps 5 and 6, if a swap was ordered; whether one was. What is left of one that was not is removed."""
    path, staging = _order_of(home), staging_of(home)
    try:
        order = unseal(path.read_bytes(), SwapOrder, str(path))
    except FileNotFoundError:
        shutil.rmtree(staging, ignore_errors=True)
        return False
    note_change(output.folder, Change(order.from_us, order.what, order.differences, now_us()), Disk())
    body = (staging / "waiting").read_bytes()
    take_up_parcel(engine, home, output, staging, Waiting({}, order.rows, body, order.from_us))
    Disk().unlink(path)
    Disk().sync_dir(home)  # Or a power failure could leave the order, and nothing to carry it out with.
    shutil.rmtree(staging, ignore_errors=True)
    return True
