"""The record of what `repair` gave up, so that a gap in the tuple ids can be told from a new loss.

One sealed file per branch. It is durable before the segment that lacks the tuples is named by a manifest.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from holdfast.stream.disk import Disk
from holdfast.stream.frame import FORMAT_VERSION
from holdfast.stream.sealed import seal, unseal


class Loss(msgspec.Struct, frozen=True):
    """Consecutive tuples that are gone."""

    segment: str
    """The file that held them; it was kept in the folder `damaged`."""
    seq_first: int
    """Commit sequence numbers of the units that are gone."""
    seq_last: int
    id_first: int
    id_next: int
    """The tuples had the ids from `id_first` to before this one."""
    stime_min_us: int | None = None
    """None where not even the index could tell."""
    stime_max_us: int | None = None

    @property
    def tuples(self) -> int:
        return self.id_next - self.id_first


class Losses(msgspec.Struct, frozen=True):
    format: int = FORMAT_VERSION
    losses: tuple[Loss, ...] = ()


def losses_path(folder: Path) -> Path:
    return folder / "losses"


def read_losses(folder: Path) -> tuple[Loss, ...]:
    path = losses_path(folder)
    try:
        return unseal(path.read_bytes(), Losses, str(path)).losses
    except FileNotFoundError:
        return ()


def add_losses(folder: Path, new: tuple[Loss, ...], disk: Disk) -> None:
    """Note them once: a repair that is repeated after a crash finds its own note."""
    known = read_losses(folder)
    more = tuple(loss for loss in new if loss not in known)
    if more:
        disk.replace_file(losses_path(folder), seal(Losses(losses=(*known, *more))))
