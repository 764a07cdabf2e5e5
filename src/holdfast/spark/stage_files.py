"""What a stage keeps outside of its task: versions of its state on scratch, and checkpoints in its output's log.

`StageFiles` is where the folder of the streams is mounted. A task that does not see it has a `RemoteStageFiles`
(`holdfast.spark.host_client`), which asks the one beside the driver.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec

from holdfast.operators.footprints import partitions_of
from holdfast.spark import control
from holdfast.spark.logged import logged_mark
from holdfast.spark.restore import Origin, checkpoints
from holdfast.spark.versions import Scratch, Version
from holdfast.stream.store import StreamStore


@dataclass(frozen=True)
class Output:
    """Where the results go, as far as a stage must know."""

    root: str
    stream: str
    origin: Origin | None = None
    """If the query is a fork: where its windows from before the fork have their checkpoints."""

    @property
    def folder(self) -> Path:
        return Path(self.root, self.stream)


class StageNote(msgspec.Struct, frozen=True, array_like=True):
    """Everything that tells the files of a stage."""

    operator: str
    scratch: Scratch
    output: Output | None

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls, raw: bytes) -> StageNote:
        return msgspec.msgpack.decode(raw, type=cls)


class Dealt(NamedTuple):
    """Among how many partitions an operator's groups were dealt out at a position, as its checkpoints there say."""

    said: int | None
    numbers: tuple[int, ...]


class StageFiles:
    """The files of one stage, in the folders themselves."""

    def __init__(self, note: StageNote) -> None:
        self._note = note

    def load(self, partition: int, position_us: int) -> Version | None:
        return self._note.scratch.load(partition, position_us)

    def store(self, partition: int, position_us: int, version: Version) -> None:
        self._note.scratch.store(partition, position_us, version)

    def mark(self, partition: int, position_us: int) -> int | None:
        """The checksum of the checkpoints that the log has at exactly that position."""
        out = self._output
        store = StreamStore(out.root)
        return logged_mark(store, out.stream, out.origin, self._note.operator, partition, position_us)

    def dealt(self, position_us: int) -> Dealt:
        out, said, numbers = self._output, None, set[int]()
        found = checkpoints(StreamStore(out.root), out.stream, out.origin, self._note.operator, position_us, None)
        with contextlib.closing(found):
            for footprint, body in found:
                if footprint.position_us != position_us:
                    break
                said = said if numbers else partitions_of(body.read())
                numbers.add(footprint.partition)
        return Dealt(said, tuple(sorted(numbers)))

    def bodies(self, partition: int, position_us: int) -> Iterator[bytes]:
        """The checkpoints of one partition that its state at a position is made of, the newest first."""
        out, oldest = self._output, None
        found = checkpoints(StreamStore(out.root), out.stream, out.origin, self._note.operator, position_us, partition)
        with contextlib.closing(found):
            for footprint, body in found:
                if oldest is not None and footprint.position_us < oldest:
                    return
                oldest = oldest if oldest is not None else footprint.since_us
                yield body.read()

    def stage(self, message: control.Message, body: bytes) -> bytes:
        """What stands for a checkpoint among the results of its batch; a large one goes by file."""
        if len(body) <= control.INLINE_BYTES:
            return control.inline(message, body)
        name = control.write(self._output.folder / "staging", message.position_us, body)
        return control.staged(message, name, body)

    @property
    def _output(self) -> Output:
        assert self._note.output is not None
        return self._note.output
