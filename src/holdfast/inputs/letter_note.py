"""The note beside a stream of dead letters that the next unit of its log will settle.

Whether a row is refused may be judged otherwise at a second reading: the clock and the boundary have moved on. So a
letter counts from the moment that the log has the unit behind it. The note is durable before that unit, and says how to
tell whether the log has it; the file of dead letters gets the letters behind it. Whoever comes back after a kill
appends what a settled note still lacks there, and forgets one that was not settled.
"""

from __future__ import annotations

from pathlib import Path
from typing import Generic, Protocol, TypeVar

import msgspec

from holdfast.model.errors import StorageError
from holdfast.stream.disk import Disk

FORMAT = 1


class Head(Protocol):
    """The first line of the file, a struct of `msgspec`; letters follow as they are to stand in the dead letters."""

    @property
    def format(self) -> int: ...


H = TypeVar("H", bound=Head)


class LetterNote(Generic[H]):
    """One note at `path`; `kind` is the type of its head."""

    def __init__(self, path: Path, kind: type[H]) -> None:
        self._path = path
        self._decoder: msgspec.json.Decoder[H] = msgspec.json.Decoder(kind)

    def read(self, *, letters: bool = True) -> tuple[H, bytes] | None:
        """Its head and its letters; None if there is no note."""
        try:
            with self._path.open("rb") as file:
                line, text = file.readline(), file.read() if letters else b""
        except FileNotFoundError:
            return None
        try:
            head = self._decoder.decode(line)
        except msgspec.MsgspecError as error:
            raise StorageError(f"{self._path}: the note of rows that were put aside cannot be read ({error})") from None
        if head.format != FORMAT:
            raise StorageError(f"{self._path} has format {head.format}; this Holdfast reads {FORMAT}")
        return head, text

    def write(self, head: H, text: bytes | bytearray) -> None:
        """In the place of the one before, durably."""
        disk = Disk()
        disk.make_dir(self._path.parent)
        disk.replace_file(self._path, msgspec.json.encode(head) + b"\n" + text)

    def remove(self) -> None:
        """Durably: it must not come back once the log has gone on."""
        disk = Disk()
        disk.unlink(self._path)
        disk.sync_dir(self._path.parent)
