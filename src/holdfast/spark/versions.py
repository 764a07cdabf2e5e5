"""Versions of an operator's state on scratch space: immutable tables, named by what they stand for.

Rules:
1. A version is (lineage, operator, partition, position): the state after all input before that position. It is written
   once, by rename, and never changed; whoever writes it again writes the same.
2. A reader takes exactly the version it needs or none. A fork looks for the versions of its parents, too, and copies
   nothing.
3. Scratch is not durable and need not be: the name of the machine's boot is part of the path where the space is local,
   so what a power cut has left half-written is never looked at. What is lost is restored from the output's log.
4. The worker that wrote a version keeps it in memory as well: usually it is the one that needs it next.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from dataclasses import dataclass
from pathlib import Path

import msgspec
import polars as pl
import pyarrow as pa

from holdfast.operators.state import Blocks
from holdfast.protocol.cec.policy import Measured

#: Versions that stay: the one in use, the one before it (a batch may be repeated), and some for forks that start late.
KEPT = 4
_memory: dict[tuple[str, str, int], tuple[int, Blocks, Measured]] = {}


@dataclass(frozen=True)
class Scratch:
    """Where versions live. `folder` must be visible to every process that may run the operator."""

    folder: str
    operator: str
    lineage: str = "main"
    parents: tuple[str, ...] = ()

    def _folder(self, lineage: str, partition: int) -> Path:
        return Path(self.folder, self.operator, lineage, str(partition))

    def load(self, partition: int, position_us: int) -> tuple[Blocks, Measured] | None:
        """The state at exactly that position, if it is at hand."""
        for lineage in (self.lineage, *self.parents):
            kept = _memory.get((self._key(lineage), self.operator, partition))
            if kept is not None and kept[0] == position_us:
                return kept[1], kept[2]
            path = self._folder(lineage, partition) / f"{position_us}.arrow"
            with contextlib.suppress(OSError, pa.ArrowInvalid):
                with pa.memory_map(str(path)) as source:
                    table = pa.ipc.open_file(source).read_all()
                notes = msgspec.json.decode(path.with_suffix(".json").read_bytes(), type=Measured)
                return _split(pl.from_arrow(table)), notes  # type: ignore[arg-type]
        return None

    def has(self, partitions: int, position_us: int) -> bool:
        """Do all partitions have that version?"""
        return all(
            any(
                (self._folder(lineage, p) / f"{position_us}.arrow").exists()
                for lineage in (self.lineage, *self.parents)
            )
            for p in range(partitions)
        )

    def store(self, partition: int, position_us: int, blocks: Blocks, measured: Measured) -> None:
        folder = self._folder(self.lineage, partition)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{position_us}.arrow"
        temporary = folder / f".{position_us}.{os.getpid()}"
        path.with_suffix(".json").write_bytes(msgspec.json.encode(measured))
        _joined(blocks).write_ipc(temporary, compression="uncompressed")
        os.rename(temporary, path)
        _memory[self._key(self.lineage), self.operator, partition] = (position_us, blocks, measured)
        self._forget(folder, position_us)

    def _key(self, lineage: str) -> str:
        return f"{self.folder}/{lineage}"

    def _forget(self, folder: Path, position_us: int) -> None:
        positions = sorted(int(p.stem) for p in folder.glob("*.arrow") if not p.name.startswith("."))
        for old in [p for p in positions if p <= position_us][:-KEPT]:
            for suffix in (".arrow", ".json"):
                with contextlib.suppress(FileNotFoundError):
                    (folder / f"{old}{suffix}").unlink()


def local_scratch() -> Path:
    """A folder of this user on this machine, since this boot."""
    from holdfast.spark.session import own_folder

    boot = Path("/proc/sys/kernel/random/boot_id")
    name = boot.read_text().strip() if boot.exists() else "unknown-boot"
    return own_folder() / "state" / name


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
