"""Where the states of operators lie in a checkpoint that came from another host."""

from __future__ import annotations

from pathlib import Path


def arrivals(checkpoint: Path) -> Path:
    """The folder, inside the checkpoint, so that both travel and count together."""
    return checkpoint / "arrived"
