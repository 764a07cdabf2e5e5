"""What tentative results are worth (003 §5.8.3): which inputs went into a bucket, and what share of what was expected.

Lines beside the branch, added before the bucket itself is written. A bucket without a line is worth what a reader makes
of it: nothing is known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import msgspec

from holdfast.model.errors import CorruptLog
from holdfast.stream.branch import branch_folder


class Worth(msgspec.Struct, frozen=True):
    """One tentative bucket of an output stream."""

    bucket: int
    worth: float
    """The share of the expected tuples that went in: 1.0 if nothing was missing."""
    inputs: tuple[str, ...] = ()
    """The inputs of which something went in."""


_decoder = msgspec.json.Decoder(Worth)


def note_worth(stream_folder: Path, buckets: Sequence[Worth]) -> None:
    """Add buckets to the branch that the stream has now."""
    with open(branch_folder(stream_folder) / "worth", "ab") as file:
        file.write(b"".join(msgspec.json.encode(bucket) + b"\n" for bucket in buckets))


class Worths:
    """Follows the lines beside whatever branch a stream has."""

    def __init__(self, stream_folder: Path) -> None:
        self._path = branch_folder(stream_folder) / "worth"
        self._branch, self._read = "", 0
        self._known: dict[int, Worth] = {}

    def read(self, branch: str) -> dict[int, Worth]:
        """All buckets of this branch that were noted so far."""
        if branch != self._branch:
            self._branch, self._read, self._known = branch, 0, {}
        try:
            with self._path.open("rb") as file:
                file.seek(self._read)
                data = file.read()
        except FileNotFoundError:
            return self._known
        whole = data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.splitlines():
            try:
                said = _decoder.decode(line)
            except msgspec.MsgspecError as error:
                raise CorruptLog(f"{self._path}: a line cannot be read ({error})") from error
            if math.isfinite(said.worth):
                self._known[said.bucket] = said
        return self._known
