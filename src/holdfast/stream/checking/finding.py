"""What `verify` says about one place on disk."""

from __future__ import annotations

from enum import IntEnum
from pathlib import Path
from typing import NamedTuple


class Severity(IntEnum):
    """How bad it is; the larger, the worse."""

    NOTE = 1
    """Worth knowing; nothing is wrong."""
    WARNING = 2
    """Something is wrong that costs no tuple: it can be built again from what is sound."""
    ERROR = 3
    """Bytes that count cannot be trusted."""


class Finding(NamedTuple):
    """One place, what is wrong with it, and what to do."""

    severity: Severity
    file: Path
    offset: int
    length: int
    """Bytes from `offset` on among which the trouble lies."""
    what: str
    advice: str

    @property
    def text(self) -> str:
        return f"{self.file} at byte {self.offset}: {self.what}; {self.advice}"
