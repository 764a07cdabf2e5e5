"""Spark's own log of a batch: what it read and what watermark it ran under.

Spark writes `offsets/<batch>` before a batch runs and reads it again if the batch must be repeated. It is the one
record of the watermark and the inputs' ends that is the same in every execution of the batch, so the output boundary
comes from it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from holdfast.model.errors import StorageError, UsageError
from holdfast.model.time import BEGINNING_US
from holdfast.spark.hadoop_path import CheckpointFolder, HadoopPath, checkpoint_folder
from holdfast.stream.disk import Disk
from holdfast.stream.merge import FOREVER_US

_FORMATS = ("v1", "v2")

T = TypeVar("T")


def batch_boundary(checkpoint: str | None, batch_id: int, mode: str, data: Callable[[], int], lag_us: int = 0) -> int:
    """What the output stream may promise once the batch is committed.

    `watermark`: later results have a larger stime than the batch's watermark less the lag, if stime is a window's end
    or an event time. `input`: later results come from later input, if the query keeps no rows back, and are older than
    it by the lag at most. `data`: what the function of that name makes of the rows.
    """
    if mode == "data":
        return data()
    if checkpoint is None:
        raise UsageError(
            "the sink needs .option('checkpointLocation', …) on the query itself, because the output boundary is read "
            "from there; a default in the session's settings is not enough"
        )
    folder = checkpoint_folder(checkpoint)
    watermark_ms, ends = read_wal(folder, batch_id)
    # Spark makes the folder of a query's state before the first batch is committed, and none for a query without state.
    if mode == "watermark" or (mode == "auto" and (folder / "state").exists()):
        if watermark_ms * 1000 >= FOREVER_US:
            return FOREVER_US  # Nothing is kept back any more, however far an operator reaches.
        return watermark_ms * 1000 - lag_us if watermark_ms > 0 else BEGINNING_US
    if ends is None:
        if mode == "input":
            raise UsageError("boundary 'input' needs inputs that are streams of Holdfast; use 'watermark' or 'data'")
        return data()
    end = min(ends)
    return end - lag_us if BEGINNING_US < end < FOREVER_US else end


def keep_wal(checkpoint: str, batch_id: int, disk: Disk) -> None:
    """Make the record of a batch durable, where it lies on a disk of this machine; elsewhere it was when Spark had
    written it."""
    folder = checkpoint_folder(checkpoint)
    if isinstance(folder, HadoopPath):
        return
    path = folder / "offsets" / str(batch_id)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        disk.sync(fd, path)
    finally:
        os.close(fd)
    disk.sync_dir(path.parent)


def read_wal(folder: CheckpointFolder, batch_id: int) -> tuple[int, list[int] | None]:
    """Watermark of a batch in milliseconds, and the ends of its inputs if all of them are Holdfast's."""
    return _record(folder, batch_id, _parsed)


def read_mends_of(folder: CheckpointFolder, batch_id: int) -> dict[str, int]:
    """How often the boundary of each input had been taken back when the batch was planned, where it was."""

    def parsed(lines: list[str], path: CheckpointFolder) -> dict[str, int]:
        offsets = [json.loads(line) for line in lines[2:] if line.startswith("{")]
        return {name: int(n) for offset in offsets for name, n in (offset.get("mends") or {}).items()}

    return _record(folder, batch_id, parsed)


def read_lines(checkpoint: Path, batch_id: int) -> bytes | None:
    """What the record says that the batch reads, and its watermark: equal for equal batches, whenever they were
    planned. None if there is no record."""
    path = checkpoint / "offsets" / str(batch_id)
    if not path.exists():
        return None

    def parsed(lines: list[str], path: CheckpointFolder) -> bytes:
        watermark, _ = _parsed(lines, path)
        return "\n".join([str(watermark), *lines[2:]]).encode()

    return _record(checkpoint, batch_id, parsed)


def _record(folder: CheckpointFolder, batch_id: int, parsed: Callable[[list[str], CheckpointFolder], T]) -> T:
    path = folder / "offsets" / str(batch_id)
    try:
        text = path.read_text()
    except OSError as error:
        raise StorageError(
            f"the sink reads the output boundary from {path}: {error.strerror or 'it is not there'}; "
            f"the checkpoint must lie where the driver can read it"
        ) from error
    try:
        return parsed(text.splitlines(), path)
    except (ValueError, IndexError, AttributeError) as error:
        raise StorageError(
            f"{path}: Spark's record of the batch cannot be read ({error}), as after a power cut; restore the "
            f"checkpoint, or start with a new one"
        ) from error


def _parsed(lines: list[str], path: CheckpointFolder) -> tuple[int, list[int] | None]:
    if lines[0] not in _FORMATS:
        raise StorageError(f"{path}: Spark's log has format {lines[0]}; this Holdfast reads {', '.join(_FORMATS)}")
    watermark = int(json.loads(lines[1]).get("batchWatermarkMs", 0))
    ends: list[int] = []
    for line in lines[2:]:
        offset = json.loads(line) if line.startswith("{") else None
        if not isinstance(offset, dict) or "until_us" not in offset:
            return watermark, None
        ends.append(int(offset["until_us"]))
    return watermark, ends or None
