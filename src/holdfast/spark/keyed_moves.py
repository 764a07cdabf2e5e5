"""The states of user-defined operators in a node that moves to another host.

Rules:
1. They lie inside the checkpoint that goes there, as scratch does, one folder an operator and partition: so they become
   durable, and count, together with it.
2. A key stays in its partition, so the number of partitions moves, too, whatever the other host's settings are.
3. Scratch lies on the machine that ran the task. Where that may be another one than the host's, nothing can be copied,
   and the node stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import msgspec
from msgspec import Meta
from pyspark.sql import SparkSession

from holdfast.spark.arrivals import arrivals
from holdfast.stream.frame import FORMAT_VERSION
from holdfast.stream.sealed import seal, unseal

if TYPE_CHECKING:
    from holdfast.spark.keyed_task import Task

_Count = Annotated[int, Meta(ge=1, le=1 << 16)]


class Operators(msgspec.Struct, frozen=True):
    """Rule 2: the number of partitions of each."""

    partitions: dict[str, _Count]
    format: int = FORMAT_VERSION


class ArrivedOperators(NamedTuple):
    """What came with a checkpoint."""

    folder: str
    partitions: dict[str, int]


def _folder(checkpoint: Path) -> Path:
    return arrivals(checkpoint) / "operators"


def operators_in(checkpoint: Path) -> ArrivedOperators | None:
    """None if the query of this checkpoint began here, or has no such operators."""
    path = _folder(checkpoint) / "partitions"
    try:
        return ArrivedOperators(str(_folder(checkpoint)), unseal(path.read_bytes(), Operators, str(path)).partitions)
    except FileNotFoundError:
        return None


def pack_operators(tasks: Sequence[Task], query: str, batch: int, checkpoint: Path) -> bool:
    """Put the states at the beginning of that batch into a copy of the checkpoint; False if they are not at hand."""
    if not tasks or batch < 1:
        return True
    folder = _folder(checkpoint)
    folder.mkdir(parents=True)
    (folder / "partitions").write_bytes(seal(Operators({task.name: task.partitions for task in tasks})))
    return all(task.pack(query, batch, folder) for task in tasks)


def stays_because(tasks: Sequence[Task], spark: SparkSession) -> str | None:
    """Rule 3."""
    if not tasks or str(spark.sparkContext.master).startswith("local"):
        return None
    return f"its operator {tasks[0].name} keeps its state on the machines of a cluster, out of this host's reach"
