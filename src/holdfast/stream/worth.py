"""What tentative results are worth (003 §5.8.3): which inputs went into them, and what share of what was expected.

Lines beside the branch, added before the bucket itself is written. A bucket without a line is worth what a reader makes
of it: nothing is known. Results that cover several buckets, those of a window, are worth the mean of all of them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pyarrow as pa

from holdfast.model.errors import CorruptLog
from holdfast.stream.branch import branch_folder, cut_of
from holdfast.stream.definition import Definition
from holdfast.stream.disk import VolatileDisk

#: A file that has grown by so much, or by an eighth, loses what lies before the branch: more lines than a batch adds.
_STEP_BYTES = 16 << 10
#: As many as that are remembered: as many as any reader is told of at once (`wire.WORTHS_MAX`).
_BUCKETS_MAX = 65_536
#: The columns of readers that ask for them.
WORTH_COLUMNS = pa.schema([("worth", pa.float64()), ("worth_least", pa.float64()),
                           ("worth_missing", pa.list_(pa.string()))])  # fmt: skip


class Worth(msgspec.Struct, frozen=True):
    """One tentative bucket of an output stream."""

    bucket: int
    worth: float
    """The share of the expected tuples that went in, over all buckets that the results cover: 1.0 if nothing was
    missing."""
    inputs: tuple[str, ...] = ()
    """The inputs of which something went into any of them; none: nobody has said, as an earlier version would not over
    the network."""
    least: float | None = None
    """The least of those buckets; None: a host of an earlier version has not said."""
    missing: tuple[str, ...] = ()
    """The inputs of which something was missing from any of them."""

    @property
    def values(self) -> tuple[float, float | None, tuple[str, ...]]:
        """Of the columns."""
        return self.worth, self.least, self.missing


_decoder = msgspec.json.Decoder(Worth)


def note_worth(stream_folder: Path, definition: Definition, buckets: Sequence[Worth]) -> None:
    """Add buckets to the branch that the stream has now. A failure may last for weeks: lines that readers do not need
    any more go in steps, by a new file, which readers tell from the old one by its inode."""
    path = branch_folder(stream_folder) / "worth"
    with open(path, "ab+") as file:
        before = file.tell()
        file.write(b"".join(msgspec.json.encode(bucket) + b"\n" for bucket in buckets))
        step = max(_STEP_BYTES, 1 << before.bit_length() >> 3)
        if before // step == file.tell() // step:
            return
        first = cut_of(stream_folder, definition) // definition.bucket_us
        file.seek(0)
        lines = file.readlines()
    kept = [line for line in lines[-_BUCKETS_MAX:] if _decoder.decode(line).bucket >= first]
    if len(kept) < len(lines):
        VolatileDisk().replace_file(path, b"".join(kept))


class Worths:
    """Follows the lines beside whatever branch a stream has."""

    def __init__(self, stream_folder: Path) -> None:
        self._path = branch_folder(stream_folder) / "worth"
        self._branch, self._inode, self._read = "", 0, 0
        self._known: dict[int, Worth] = {}

    def read(self, branch: str) -> dict[int, Worth]:
        """All buckets of this branch that were noted so far."""
        if branch != self._branch:
            self._branch, self._inode, self._read, self._known = branch, 0, 0, {}
        try:
            with self._path.open("rb") as file:
                if (inode := os.fstat(file.fileno()).st_ino) != self._inode:
                    self._inode, self._read = inode, 0
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
            if math.isfinite(said.worth) and (said.least is None or math.isfinite(said.least)):
                self._known[said.bucket] = said
        while len(self._known) > _BUCKETS_MAX:
            del self._known[next(iter(self._known))]
        return self._known
