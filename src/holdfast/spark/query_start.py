"""Where the stable query of a replica began: at the beginning of its inputs, anew behind a gap in them or with another
definition, or from a checkpoint that another host has sent.

A query that goes on behind a gap has an empty state and a checkpoint of its own (the old one refers to what is gone).
Its first results are wrong, because what they depend on is missing; they are left out until the state has converged.

The new beginning is durable before the old checkpoint goes. The other way round, a host killed in between would come
back with neither: its query would read from the front again and publish wrong results as stable ones.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from holdfast.spark.checkpoint_place import remove_checkpoint
from holdfast.stream.disk import Disk
from holdfast.stream.frame import FORMAT_VERSION
from holdfast.stream.sealed import seal, unseal


class Beginning(msgspec.Struct, frozen=True):
    format: int = FORMAT_VERSION
    generation: int = 0
    """How often the query has begun anew; names its checkpoint."""
    start_us: int | None = None
    """First input; None: all there is."""
    right_from_us: int | None = None
    """First result that counts; None: all do."""

    def checkpoint(self, home: Path) -> Path:
        return home / ("checkpoint" if self.generation == 0 else f"checkpoint-{self.generation}")


def load_beginning(home: Path) -> Beginning:
    """What holds at a start; checkpoints of other beginnings, left by a host that was killed, are removed."""
    beginning = _read(home)
    for folder in home.glob("checkpoint*"):
        if folder != beginning.checkpoint(home):
            remove_checkpoint(folder)
    return beginning


def _read(home: Path) -> Beginning:
    path = home / "beginning"
    try:
        return unseal(path.read_bytes(), Beginning, str(path))
    except FileNotFoundError:
        return Beginning()


def begin_anew(
    home: Path, before: Beginning, start_us: int | None, right_from_us: int | None, disk: Disk | None = None
) -> Beginning:
    """The next start of the query begins here, with an empty state."""
    beginning = Beginning(generation=before.generation + 1, start_us=start_us, right_from_us=right_from_us)
    (disk or Disk()).replace_file(home / "beginning", seal(beginning))
    remove_checkpoint(before.checkpoint(home))
    return beginning


def take_up(home: Path, checkpoint: Path, right_from_us: int | None) -> Beginning:
    """The next start of the query goes on from a checkpoint that came from elsewhere; it is moved into `home`, and then
    the one before it goes. Whoever was killed on the way may do it again with the same words: one that was moved
    counts from where it is now, and one that was taken up is not taken up twice."""
    known = _read(home)
    beginning = Beginning(generation=known.generation + 1, start_us=known.start_us, right_from_us=right_from_us)
    disk, place = Disk(), beginning.checkpoint(home)
    if checkpoint.exists():
        remove_checkpoint(place)  # Left by a crash before the file below was written.
        disk.rename(checkpoint, place)
    elif not place.exists():
        return known
    disk.sync_dir(home)
    disk.replace_file(home / "beginning", seal(beginning))
    remove_checkpoint(known.checkpoint(home))
    return beginning
