"""Versions of an operator's state on scratch space: immutable tables, named by what they stand for.

Rules:
1. A version is (lineage, operator, partition of so many, position): the state after all input before that position. It
   is one file, written by rename. Whoever writes it again writes the same windows. Which of them have a checkpoint may
   differ, because that hangs on how long things took; so a version names the checkpoints it goes with (`mark`), and who
   takes it looks whether the log has those.
2. A reader takes exactly the version it needs or none. A fork looks for the versions of its parents, too, and copies
   nothing.
3. Scratch is not durable and need not be. A version has a format and checksums: one that a power cut or a disk has
   damaged counts as lost, and what is lost is restored from the output's log.
4. The worker that wrote a version keeps it in memory as well: usually it is the one that needs it next.
5. A query that goes on from a checkpoint of another host has its first versions from there (`holdfast.spark.arrivals`).
   They are never written to, and nothing else has them.
6. A query that is started again with another number of partitions, or finds versions of an earlier Holdfast, which do
   not say their number, takes what it owns out of all of them. Such a version names no checkpoints, so that its first
   batch saves every window: what a restore needs never reaches back over the change.
7. A frame is no stream, so nothing but the versions tells what made them: each says it (`made_by`). Any number of
   queries may run over one frame, so each has a lineage of its own below the frame's.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import shutil
import struct
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple

import msgspec
import polars as pl
import pyarrow as pa

from holdfast.operators.numbering import partition_of
from holdfast.operators.state import Blocks, in_order
from holdfast.protocol.cec.policy import Measured
from holdfast.spark.own_folder import own_folder
from holdfast.spark.scratch import is_of, layouts, of_this_boot, partition_name
from holdfast.stream.frame import crc32c
from holdfast.stream.untrusted import check_plain

#: Versions that stay: the one in use, the one before it (a batch may be repeated), and some for forks that start late.
KEPT = 4
#: Mark, format, length and checksum of the notes and of the table. The notes follow; then the table, aligned.
_PREFIX = struct.Struct("<8sIIIIQ")
_MAGIC, _FORMAT, _ALIGNMENT = b"HOLDVERS", 1, 64
#: Versions that a worker holds in memory: more than it has partitions of living queries.
_MEMORY_MAX = 64
#: What those say who read bytes that are no table of ours.
_UNREADABLE = (pa.ArrowException, OSError, ValueError, KeyError, IndexError, struct.error, pl.exceptions.PolarsError,
               msgspec.MsgspecError)  # fmt: skip
#: Each with the file that it was written to: another life of a query under the same name writes another one.
_memory: dict[tuple[str, str, int], tuple[os.stat_result, Version]] = {}


class Version(NamedTuple):
    blocks: Blocks
    measured: Measured
    mark: int | None = None
    """Checksum of the checkpoints that left with it; None if there were none, or an older Holdfast wrote it."""
    made_by: str = ""
    """Of a frame's (rule 7)."""
    saves: str = ""
    """What the next batch must know of its checkpoints in a store (`holdfast.spark.version_store`)."""


@dataclass(frozen=True)
class Scratch:
    """Where versions live. `folder` must be visible to every process that may run the operator."""

    folder: str
    operator: str
    partitions: int
    lineage: str = "main"
    parents: tuple[str, ...] = ()
    arrived: str = ""
    """The folder of versions that came with the checkpoint (rule 5); empty: it began here."""
    arrived_of: int = 0
    """How many partitions those are of."""
    shared: bool = True
    """False: each machine of a cluster has a folder of its own under that name."""
    per_query: bool = False
    """It is a frame's, and not yet that of a query over it (rule 7)."""

    def of_query(self, query: str) -> Scratch:
        """That of a query over a frame."""
        return replace(self, lineage=f"{self.lineage}/{query}", per_query=False)

    def _folder(self, lineage: str, partition: int) -> Path:
        return Path(self.folder, self.operator, lineage, partition_name(partition, self.partitions))

    def _path(self, lineage: str, partition: int, position_us: int) -> Path:
        return self._folder(lineage, partition) / f"{position_us}.state"

    def load(self, partition: int, position_us: int) -> Version | None:
        """The state at exactly that position, if it is at hand."""
        for lineage in (self.lineage, *self.parents):
            path = self._path(lineage, partition, position_us)
            kept = _memory.get((self._key(lineage), self.operator, partition))
            if kept is not None and _is(path, kept[0]):
                return kept[1]
            found = _read(path)
            if found is not None:
                return found
        for paths, foreign in self._others(position_us):
            versions = [version for path in paths if (version := _read(path, foreign)) is not None]
            if len(versions) == len(paths):
                with contextlib.suppress(*_UNREADABLE if foreign else ()):
                    return owned(versions, partition, self.partitions)
        return None

    def file(self, partition: int, position_us: int) -> Path | None:
        """The file that holds exactly that version, as it was written."""
        paths = (self._path(lineage, partition, position_us) for lineage in (self.lineage, *self.parents))
        return next((path for path in paths if _whole(path)), None)

    def _others(self, position_us: int) -> Iterator[tuple[list[Path], bool]]:
        """Rule 6: files that hold that position together, and whether they came from elsewhere."""
        for lineage in (self.lineage, *self.parents):
            for paths in _layouts(Path(self.folder, self.operator, lineage), position_us, self.partitions):
                yield paths, False
        if self.arrived:
            for paths in _layouts(Path(self.arrived), position_us, self.arrived_of):
                yield paths, True

    def has(self, position_us: int) -> bool:
        """Do all partitions have that version? Looks at lengths only; who loads one looks at every byte."""
        lineages = (self.lineage, *self.parents)
        own = (any(_whole(self._path(x, p, position_us)) for x in lineages) for p in range(self.partitions))
        return all(own) or any(True for _ in self._others(position_us))

    def pack(self, position_us: int, to: Path) -> bool:
        """Write the versions of that position as those that arrive elsewhere; False if one of them is not at hand.

        They name no checkpoints: log and store over there have none, so that the first batch there saves everything.
        """
        for partition in range(self.partitions):
            version = self.load(partition, position_us)
            if version is None:
                return False
            path = to / str(partition) / f"{position_us}.state"
            path.parent.mkdir(parents=True)
            _write(path, encoded(version._replace(mark=None, saves="")))
        return True

    def pin(self, position_us: int) -> None:
        """Give the versions of the parents a name of their own here: a parent forgets its, and nothing is copied."""
        for partition, parent in itertools.product(range(self.partitions), self.parents):
            with contextlib.suppress(OSError):  # It is lost, or the filesystem has no links: then the parent's is read.
                self._folder(self.lineage, partition).mkdir(parents=True, exist_ok=True)
                os.link(self._path(parent, partition, position_us), self._path(self.lineage, partition, position_us))

    def store(self, partition: int, position_us: int, version: Version) -> None:
        written = self.put(partition, position_us, encoded(version))
        key = (self._key(self.lineage), self.operator, partition)
        _memory.pop(key, None)
        _memory[key] = (written, version)
        while len(_memory) > _MEMORY_MAX:
            del _memory[next(iter(_memory))]  # Of a query that has ended, or of a partition that runs elsewhere now.

    def put(self, partition: int, position_us: int, parts: Iterable[bytes]) -> os.stat_result:
        """Write an encoded version; the file that it became."""
        temporary = self.beside(partition, position_us)
        _write(temporary, parts)
        return self.adopt(partition, position_us, temporary)

    def beside(self, partition: int, position_us: int) -> Path:
        """A new name for a version that is on its way."""
        folder = self._folder(self.lineage, partition)
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f".{position_us}.{os.getpid()}.{os.urandom(4).hex()}"  # Two machines may share a number.

    def adopt(self, partition: int, position_us: int, temporary: Path) -> os.stat_result:
        """The version that was written there is whole."""
        folder, written = temporary.parent, temporary.stat()
        os.rename(temporary, self._path(self.lineage, partition, position_us))
        if self._forget(folder, position_us) and partition == 0:
            self._forget_others(folder.parent)
        return written

    def _key(self, lineage: str) -> str:
        return f"{self.folder}/{lineage}"

    def _forget(self, folder: Path, position_us: int) -> bool:
        """Whether there were any to forget."""
        names = os.listdir(folder)
        positions = sorted(int(name.removesuffix(".state")) for name in names if name.endswith(".state"))
        old = [f"{p}.state" for p in positions if p <= position_us][:-KEPT]
        # A writer that was killed has left its temporary file; one of an earlier position cannot be under way.
        old += [name for name in names if name.startswith(".") and int(name.split(".")[1]) < position_us]
        for name in old:
            with contextlib.suppress(FileNotFoundError):
                (folder / name).unlink()
        return bool(old)

    def _forget_others(self, lineage: Path) -> None:
        """Versions of another number of partitions: all that stay are newer by now."""
        for name in os.listdir(lineage):
            if not is_of(name, self.partitions):
                shutil.rmtree(lineage / name, ignore_errors=True)


def _layouts(lineage: Path, position_us: int, unsaid: int) -> Iterator[list[Path]]:
    """The files of that position for each number of partitions of which none is missing."""
    names: list[str] = []
    with contextlib.suppress(FileNotFoundError):
        names = os.listdir(lineage)
    for layout in layouts(names, unsaid):
        paths = [lineage / name / f"{position_us}.state" for name in layout]
        if all(map(_whole, paths)):
            yield paths


def owned(versions: list[Version], partition: int, partitions: int) -> Version:
    """Rule 6: the groups of one partition, out of the versions of all."""
    parts: dict[int, list[pl.DataFrame]] = {}
    for version in versions:
        for number, block in version.blocks.items():
            mine = block.filter(pl.Series(partition_of(block["_h"].to_numpy(), partitions) == partition))
            if len(mine):
                parts.setdefault(number, []).append(mine)
    blocks = {n: in_order(pl.concat([b.select(some[0].columns) for b in some])) for n, some in parts.items()}
    return Version(blocks, versions[partition % len(versions)].measured, made_by=versions[0].made_by)


def _is(path: Path, written: os.stat_result) -> bool:
    """Whether that file is the one that was written; numbers of files are used again."""
    with contextlib.suppress(OSError):
        found = path.stat()
        return os.path.samestat(found, written) and found.st_mtime_ns == written.st_mtime_ns
    return False


def scratch_folder(root: str, stream: str, given: str | os.PathLike[str] | None, *, local: bool) -> str:
    """Where the versions of the operator that writes a stream lie. No two streams share one, whatever was given."""
    own = f"{crc32c(f'{root}/{stream}'.encode()):08x}"
    if given is not None:
        return os.path.join(given, own)
    return str(of_this_boot(own_folder() / "state", "") / own) if local else os.path.join(root, stream, "state")


def _write(path: Path, parts: Iterable[bytes]) -> None:
    with path.open("wb") as file:
        file.writelines(parts)


def encoded(version: Version) -> list[bytes]:
    """A version as its file has it, in parts."""
    said = {name: text for name, text in (("made_by", version.made_by), ("saves", version.saves)) if text}
    notes = msgspec.json.encode({**asdict(version.measured), "mark": version.mark, **said})
    sink = io.BytesIO()
    _joined(version.blocks).write_ipc(sink, compression="uncompressed")
    body = sink.getvalue()
    prefix = _PREFIX.pack(_MAGIC, _FORMAT, len(notes), crc32c(notes), crc32c(body), len(body))
    return [prefix, notes, bytes(-(_PREFIX.size + len(notes)) % _ALIGNMENT), body]


def _parts(prefix: bytes) -> tuple[int, int, int, int, int]:
    """From a prefix: length and checksum of the notes, where the table begins, its checksum, where it ends."""
    if len(prefix) < _PREFIX.size:
        return 0, 0, 0, 0, -1
    magic, number, length, notes_crc, body_crc, body = _PREFIX.unpack_from(prefix)
    if magic != _MAGIC or number != _FORMAT:
        return 0, 0, 0, 0, -1
    start = _PREFIX.size + length
    start += -start % _ALIGNMENT
    return length, notes_crc, start, body_crc, start + body


def _whole(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return _parts(file.read(_PREFIX.size))[-1] == os.fstat(file.fileno()).st_size
    except OSError:
        return False


def _read(path: Path, foreign: bool = False) -> Version | None:
    """A version as it was written, or None. A damaged one is removed, so that the planner sees that it is lost.

    `foreign`: somebody else wrote it, whose checksums say nothing of whether it is a table at all (X3).
    """
    try:
        with pa.memory_map(str(path)) as source:
            whole = source.read_buffer()
    except (OSError, pa.ArrowInvalid):
        return None
    found = decoded(whole, foreign)
    if found is not None:
        return found
    if not foreign:  # Nobody has another copy of what came from elsewhere.
        with contextlib.suppress(OSError):
            path.unlink()
    return None


def decoded(whole: pa.Buffer, foreign: bool = False) -> Version | None:
    """A version from the bytes of its file; None if they are damaged."""
    length, notes_crc, start, body_crc, end = _parts(bytes(whole.slice(0, min(whole.size, _PREFIX.size))))
    if end == whole.size:
        notes, body = whole.slice(_PREFIX.size, length), whole.slice(start)
        if crc32c(notes) == notes_crc and crc32c(body) == body_crc:
            with contextlib.suppress(*_UNREADABLE):
                return _decoded(notes, body, foreign)
    return None


def _decoded(notes: pa.Buffer, body: pa.Buffer, foreign: bool) -> Version:
    if foreign:
        check_plain(body)
    table = pa.ipc.open_file(pa.BufferReader(body)).read_all()
    if foreign:
        table.validate(full=True)
    noted = msgspec.json.decode(notes, type=dict)
    mark, made_by, saves = noted.pop("mark", None), noted.pop("made_by", ""), noted.pop("saves", "")
    blocks = _split(pl.from_arrow(table))  # type: ignore[arg-type]
    return Version(blocks, msgspec.convert(noted, Measured), mark, made_by, saves)


def _joined(blocks: Blocks) -> pl.DataFrame:
    parts = [
        b.with_columns(pl.lit(n, pl.Int64).alias("_b")) for n, b in sorted(blocks.items(), key=lambda item: item[0])
    ]
    return pl.concat(parts) if parts else pl.DataFrame(schema={"_b": pl.Int64})


def _split(table: pl.DataFrame) -> dict[int, pl.DataFrame]:
    if not len(table):
        return {}
    numbers = table["_b"].to_numpy()
    cuts = [0, *((numbers[1:] != numbers[:-1]).nonzero()[0] + 1).tolist(), len(table)]
    rest = table.drop("_b")
    return {int(numbers[a]): rest[a:b] for a, b in itertools.pairwise(cuts)}
