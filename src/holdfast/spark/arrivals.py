"""Where the states of operators lie in a checkpoint that came from another host, and how those of the user's get there.

Rules:
1. They lie inside the checkpoint that goes there, as scratch does, one folder an operator and partition: so they become
   durable, and count, together with it. For Holdfast's own operators see `holdfast.spark.state_versions`.
2. Scratch lies on the machine that ran the task. Where that may be another one than the host's, nothing can be copied,
   and the node stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import msgspec
from msgspec import Meta

from holdfast.stream.sealed import seal, unseal

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from holdfast.spark.keyed_task import Task

_Count = Annotated[int, Meta(ge=1, le=1 << 16)]


class Operators(msgspec.Struct, frozen=True):
    """The number of partitions of each. Another host may have another number.

    In format 1 those of partition 0 lay under "0", now they lie under "0-of-4". A host that knows the former only would
    find none and begin without any; the number makes it refuse.
    """

    FORMATS: ClassVar[tuple[int, ...]] = (1, 2)

    partitions: dict[str, _Count]
    format: int = 2


def arrivals(checkpoint: Path) -> Path:
    """The folder, inside the checkpoint, so that both travel and count together."""
    return checkpoint / "arrived"


def operators_in(checkpoint: Path) -> str:
    """The folder of the user's operators; empty if the query of this checkpoint began here, or has none."""
    folder = arrivals(checkpoint) / "operators"
    path = folder / "partitions"
    try:
        unseal(path.read_bytes(), Operators, str(path))
    except FileNotFoundError:
        return ""
    return str(folder)


def pack_operators(tasks: Sequence[Task], query: str, batch: int, checkpoint: Path) -> bool:
    """Put the states at the beginning of that batch into a copy of the checkpoint; False if they are not at hand."""
    if not tasks or batch < 1:
        return True
    folder = arrivals(checkpoint) / "operators"
    folder.mkdir(parents=True)
    (folder / "partitions").write_bytes(seal(Operators({task.name: task.partitions for task in tasks})))
    return all(task.pack(query, batch, folder) for task in tasks)


def stays_because(tasks: Sequence[Task], spark: SparkSession) -> str | None:
    """Rule 2."""
    if not tasks or str(spark.sparkContext.master).startswith("local"):
        return None
    return f"its operator {tasks[0].name} keeps its state on the machines of a cluster, out of this host's reach"
