"""Where the versions of a flow's operator become durable, and when: what its planner and its tasks must know of that.

What is done with it is in `holdfast.spark.version_store`.
"""

from __future__ import annotations

import os
from typing import Annotated

import msgspec
from msgspec import Meta

from holdfast.checkpoint.store import without_password
from holdfast.spark.fork import LIFE
from holdfast.spark.hadoop_path import CheckpointFolder, disk_for
from holdfast.stream.frame import FORMAT_VERSION
from holdfast.stream.sealed import seal, unseal


class Durable(msgspec.Struct, frozen=True):
    """Where the versions of an operator become durable, and when. Made by the driver for planner and tasks."""

    operator: str
    address: str
    every_us: int
    partitions: int
    own: str | None
    """What the query is called in the store; None: it saves nothing."""
    before: tuple[tuple[str, int], ...] = ()
    """Queries that it is a fork of, and up to where (rule 7)."""
    always: bool = False
    """*Exact*."""

    @property
    def forked_us(self) -> int | None:
        """The root of a fork that saves nothing."""
        return self.before[0][1] if self.own is None and self.before else None

    def restores(self, position_us: int) -> bool:
        """Whether a state there can be made again. What a fork that saves nothing has read since its root is nowhere to
        be read again."""
        return self.forked_us is None or position_us <= self.forked_us

    @property
    def shown(self) -> str:
        return without_password(self.address)


class Life(msgspec.Struct, frozen=True):
    """A query's, from its first start on. Noted beside its checkpoint: who begins anew has another one."""

    life: Annotated[str, Meta(pattern=r"^[0-9a-f]{8}\Z")]
    format: int = FORMAT_VERSION


def life_in(folder: CheckpointFolder, lineage: str) -> str | None:
    """That of a lineage, noted in that folder; None: nothing was saved. A fork's folder has its parent's, too."""
    path = folder / f"{LIFE}{lineage}"
    try:
        return unseal(path.read_bytes(), Life, str(path)).life
    except FileNotFoundError:
        return None


def begin_life(folder: CheckpointFolder, lineage: str) -> str:
    """The same; it is noted with the first start."""
    if (known := life_in(folder, lineage)) is not None:
        return known
    disk, life = disk_for(folder), Life(os.urandom(4).hex())
    disk.make_dir(folder)
    disk.replace_file(folder / f"{LIFE}{lineage}", seal(life))
    return life.life


def query_name(stream_id: str, lineage: str, life: str) -> str:
    """What a query is called in a store. Streams are made anew under their names, one may have several lineages, and of
    each lineage another query may have begun before: a fork that is made again, one whose checkpoint was removed."""
    return f"{stream_id}.{lineage}.{life}"
