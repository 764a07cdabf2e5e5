"""Forks a query: a second one that goes on from where the first has committed, without stopping it.

Rules:
1. The fork starts at N, the last batch that the parent has committed. What Spark needs to go on from there is:
   offsets N and N−1, commit N, the metadata of every operator, and for every state store the newest snapshot up to
   version N+1 with the changes after it up to N+1 (batch N reads version N and writes N+1).
2. Offsets of a later batch are left out: they would make the fork repeat what the parent was about to read.
3. The fork gets a new query id. With the parent's, Spark would take it for a restart and stop the parent.
4. The parent's files are linked, or copied where links do not work, and never changed (S1). Spark writes by rename
   only, so a link stays what it was; its own purging unlinks names, which does not touch ours.
5. With them go the notes of what the parent, and those that it is a fork of, are called in a store (`durable`).
6. On a filesystem of Hadoop's (`hadoop_path`), and from there into a folder, all are copied. Spark may purge a file
   meanwhile; then the parent has committed again, and the fork is begun anew from there.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import uuid
import zipfile
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from holdfast.model.errors import CorruptLog, StorageError, UsageError
from holdfast.spark.hadoop_path import CheckpointFolder, HadoopPath
from holdfast.stream.disk import Disk, VolatileDisk

#: A version of a state store, with Spark's unique id behind it in checkpoint format 2.
_STATE_FILE = re.compile(r"(\d+)(?:_[0-9a-f-]+)?\.(delta|snapshot|changelog|zip)")
_SNAPSHOTS = ("snapshot", "zip")
#: Begins the names of the notes of rule 5; the lineage follows.
LIFE = "life."
#: Rule 6: how often a fork is begun anew, and how many files are copied at a time.
_ATTEMPTS, _COPIES = 5, 8


class Forked(NamedTuple):
    """What a fork consists of."""

    query_id: str
    batch_id: int
    files: int
    linked: bool


def last_commit(checkpoint: CheckpointFolder) -> int:
    """The last batch that a query has committed; -1 before the first."""
    try:
        return max((int(p.name) for p in (checkpoint / "commits").iterdir() if p.name.isdigit()), default=-1)
    except FileNotFoundError:
        return -1


def fork_checkpoint(parent: CheckpointFolder, child: CheckpointFolder) -> Forked:
    """Make `child` a checkpoint that starts after the parent's last committed batch. The parent may be running.

    Both are folders of this machine, or on filesystems of Hadoop's: `checkpoint_folder("hdfs://…")`. From there one may
    be copied into a folder.
    """
    if child.exists() and any(child.iterdir()):
        raise UsageError(f"a fork needs a new folder; {child} is not empty; choose another")
    if isinstance(parent, Path):
        if isinstance(child, Path):
            return _linked(parent, child)
        raise UsageError(f"a fork lies on the filesystem of its parent, or in a folder; got {parent} and {child}")
    for _ in range(_ATTEMPTS):
        with contextlib.suppress(FileNotFoundError):
            return _copied(parent, child)
        if isinstance(child, Path):
            shutil.rmtree(child, ignore_errors=True)
        else:
            child.remove()
    raise StorageError(f"{parent}: the query commits more quickly than its state can be copied to {child}; try again")


def _wanted(parent: CheckpointFolder) -> tuple[int, list[Path]]:
    """The batch that a fork begins behind, and the files that it takes over."""
    batch = last_commit(parent)
    if batch < 0:
        raise UsageError(f"{parent}: the query has not committed a batch yet; there is nothing to fork from")
    wanted = [Path("offsets", str(batch)), Path("commits", str(batch))]
    if (parent / "offsets" / str(batch - 1)).exists():
        wanted.append(Path("offsets", str(batch - 1)))
    if (parent / "state").is_dir():
        wanted += _state_files(parent, batch + 1)
    return batch, wanted + [Path(found.name) for found in parent.iterdir() if found.name.startswith(LIFE)]


def _linked(parent: Path, child: Path) -> Forked:
    """Rule 4."""
    batch, wanted = _wanted(parent)
    linked = True
    count = 0
    for relative in wanted:
        for name in (relative, relative.with_name(f".{relative.name}.crc")):
            if (parent / name).exists():
                linked &= _place(parent / name, child / name)
                count += 1
    return Forked(renew_id(child), batch, count, linked)


def _copied(parent: HadoopPath, child: CheckpointFolder) -> Forked:
    """Rule 6."""

    def copy(name: Path) -> None:
        if isinstance(child, HadoopPath):
            (parent / name).copy(child / name)
        else:
            (child / name).parent.mkdir(parents=True, exist_ok=True)
            (child / name).write_bytes((parent / name).read_bytes())

    batch, wanted = _wanted(parent)
    with ThreadPoolExecutor(_COPIES, "fork") as pool:
        list(pool.map(copy, wanted))
    return Forked(renew_id(child), batch, len(wanted), False)


def carry_checkpoint(folder: Path, target: HadoopPath, parts: Collection[str]) -> None:
    """Copy those parts of a checkpoint as they are: the query goes on there, with its id and the batch that it was in.
    It does not run meanwhile."""
    names = [
        below / name
        for below, names in _folders(folder)
        for name in names
        if (below / name).parts[0] in parts and not name.startswith(".")
    ]
    with ThreadPoolExecutor(_COPIES, "carry") as pool:
        list(pool.map(lambda name: target.take(folder / name, name), names))


def renew_id(checkpoint: CheckpointFolder, durable: bool = False) -> str:
    """Make the checkpoint that of a query of its own; its id."""
    query_id = str(uuid.uuid4())
    metadata = json.dumps({"id": query_id}).encode()
    if isinstance(checkpoint, HadoopPath):
        (checkpoint / "metadata").write_bytes(metadata)
    else:
        disk = Disk() if durable else VolatileDisk()
        disk.replace_file(checkpoint / "metadata", metadata)
    return query_id


def _place(source: Path, target: Path) -> bool:
    target.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(OSError):
        os.link(source, target)
        return True
    shutil.copy2(source, target)
    return False


def _folders(below: CheckpointFolder) -> Iterator[tuple[Path, list[str]]]:
    """All folders, relative to here, each with the names of its files."""
    if isinstance(below, HadoopPath):
        yield from below.walk()
        return
    for folder, _, names in os.walk(below):
        yield Path(folder).relative_to(below), names


def _state_files(checkpoint: CheckpointFolder, version: int) -> list[Path]:
    """Rule 1 for every store below `state`."""
    found: list[Path] = []
    for below, names in _folders(checkpoint / "state"):
        here = Path("state") / below
        if "_metadata" in here.parts:
            found += [here / name for name in names if not name.startswith(".")]
            continue
        versions = [(int(m[1]), m[2], name) for name in names if (m := _STATE_FILE.fullmatch(name))]
        if versions:
            found += _store_files(checkpoint, here, versions, version)
    return found


def _store_files(
    checkpoint: CheckpointFolder, store: Path, versions: list[tuple[int, str, str]], version: int
) -> list[Path]:
    snapshot = max((v for v, kind, _ in versions if kind in _SNAPSHOTS and v <= version), default=0)
    found = []
    for v, kind, name in versions:
        if kind in _SNAPSHOTS and v == snapshot:
            found.append(store / name)
            if kind == "zip":
                found += _table_files(checkpoint, store, name)
        elif kind not in _SNAPSHOTS and snapshot < v <= version:
            found.append(store / name)
    return found


def _table_files(checkpoint: CheckpointFolder, store: Path, name: str) -> list[Path]:
    """The files that a RocksDB snapshot refers to, as its own list of contents says."""
    try:
        path = checkpoint / store / name
        with zipfile.ZipFile(path if isinstance(path, Path) else io.BytesIO(path.read_bytes())) as snapshot:
            text = snapshot.read("metadata").decode()
    except FileNotFoundError:
        raise
    except (KeyError, zipfile.BadZipFile, OSError) as error:
        raise CorruptLog(f"{checkpoint / store / name}: the snapshot cannot be read ({error})") from error
    content = json.loads(text.partition("\n")[2])
    tables = [store / "SSTs" / f["dfsSstFileName"] for f in content.get("sstFiles", [])]
    tables += [store / "logs" / f["dfsLogFileName"] for f in content.get("logFiles", [])]
    if any(table.parent.parent != store or table.name == ".." for table in tables):
        raise CorruptLog(
            f"{checkpoint / store / name}: the snapshot names files outside its store; it was tampered with"
        )
    return tables
