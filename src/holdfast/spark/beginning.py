"""Where the stable query of a replica began: at the beginning of its inputs, or anew behind a gap in them.

A query that goes on behind a gap has an empty state and a checkpoint of its own (the old one refers to what is gone).
Its first results are wrong, because what they depend on is missing; they are left out until the state has converged.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

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
    path = home / "beginning"
    try:
        return unseal(path.read_bytes(), Beginning, str(path))
    except FileNotFoundError:
        return Beginning()


def begin_anew(home: Path, start_us: int, right_from_us: int) -> Beginning:
    """The next start of the query begins here, with an empty state."""
    beginning = Beginning(
        generation=load_beginning(home).generation + 1, start_us=start_us, right_from_us=right_from_us
    )
    Disk().replace_file(home / "beginning", seal(beginning))
    return beginning
