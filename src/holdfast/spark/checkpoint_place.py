"""Where Spark's part of a node's checkpoint lies: in the replica's own folder, or on a filesystem of Hadoop's.

Rules:
1. The replica's folder holds what is Holdfast's of a checkpoint (notes, states that came from elsewhere), and Spark's
   part beside it: its record of batches, and its state. Executors write that state. Where they share no folder with the
   host, `spark.holdfast.checkpoints` names a place that all of them reach; then the folder holds the address instead.
2. An address is that of one life of one replica, or of one fork. No two have the same, whatever hosts and folders are
   called.
3. A query goes on where it is. One in the folder is copied to the place that is named before it starts there: the
   address is noted when all of it has been copied, and what was copied goes last. Without the setting it stays there.
4. What lies elsewhere is removed before the folder that knows of it. Where it cannot be, that is said, and it stays.
"""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path

import msgspec

from holdfast.model.errors import HoldfastError, UsageError
from holdfast.spark.fork import carry_checkpoint
from holdfast.spark.hadoop_path import CheckpointFolder, HadoopPath, hadoop_path, local_path
from holdfast.stream.disk import Disk
from holdfast.stream.frame import FORMAT_VERSION
from holdfast.stream.sealed import seal, unseal

log = logging.getLogger(__name__)

CHECKPOINTS = "spark.holdfast.checkpoints"
_NOTE = "elsewhere"
#: Spark's part, as far as it can lie in the folder.
_PARTS = ("metadata", "offsets", "commits", "state", "sources")


class Elsewhere(msgspec.Struct, frozen=True):
    """The content of the note of rule 1."""

    address: str
    format: int = FORMAT_VERSION


def checked_place(given: str | None) -> str | None:
    """The place that the setting names; None: the replica's folder."""
    if not given:
        return None
    if local_path(given) is not None:
        raise UsageError(
            f"{CHECKPOINTS} must name a place on a filesystem of Hadoop's, such as hdfs://namenode:8020/checkpoints or "
            f"s3a://bucket/checkpoints; got {given}; a host keeps checkpoints in its own folder without it"
        )
    return given.rstrip("/")


def lies_elsewhere(checkpoint: Path) -> bool:
    return (checkpoint / _NOTE).exists()


def spark_part(checkpoint: Path) -> CheckpointFolder:
    """Spark's part of the checkpoint in that folder."""
    path = checkpoint / _NOTE
    try:
        return hadoop_path(unseal(path.read_bytes(), Elsewhere, str(path)).address)
    except FileNotFoundError:
        return checkpoint


def settle_in(checkpoint: Path, place: str | None, node: str) -> None:
    """Rule 3: before the query of that checkpoint starts."""
    if lies_elsewhere(checkpoint):
        _clear(checkpoint)  # Left by a host that was killed before it had.
        return
    if place is None:
        return
    target = _address(f"{place}/{node}")
    if (checkpoint / "metadata").exists():
        log.info("node %s: its checkpoint goes from %s to %s", node, checkpoint, target)
        carry_checkpoint(checkpoint, target, _PARTS)
    _note(checkpoint, target)
    _clear(checkpoint)


def settle_fork(checkpoint: Path, parent: CheckpointFolder) -> CheckpointFolder:
    """Where the fork has its part: on the filesystem of its parent's."""
    if not isinstance(parent, HadoopPath):
        return checkpoint
    target = _address(f"{parent}-fork")
    _note(checkpoint, target)
    return target


def remove_checkpoint(checkpoint: Path) -> None:
    """Rule 4."""
    forget_elsewhere(checkpoint)
    shutil.rmtree(checkpoint, ignore_errors=True)


def forget_elsewhere(checkpoint: Path) -> None:
    """Remove what lies elsewhere; nothing of it is needed any more."""
    try:
        part = spark_part(checkpoint)
        if isinstance(part, HadoopPath):
            part.remove()
            (checkpoint / _NOTE).unlink()
    except (HoldfastError, OSError) as error:
        log.warning("what %s had elsewhere stays there: %s", checkpoint, error)


def _address(beginning: str) -> HadoopPath:
    """Rule 2."""
    return hadoop_path(f"{beginning}-{os.urandom(6).hex()}")


def _note(checkpoint: Path, target: HadoopPath) -> None:
    disk = Disk()
    disk.make_dir(checkpoint)
    disk.replace_file(checkpoint / _NOTE, seal(Elsewhere(target.uri)))


def _clear(checkpoint: Path) -> None:
    for part in _PARTS:
        if (checkpoint / part).is_dir():
            shutil.rmtree(checkpoint / part)
        else:
            (checkpoint / part).unlink(missing_ok=True)
