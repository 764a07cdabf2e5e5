"""Where the versions of a flow's operator become durable, and when: what its planner and its tasks must know of that.

What is done with it is in `holdfast.spark.version_store`.
"""

from __future__ import annotations

import msgspec

from holdfast.checkpoint.store import without_password


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


def query_name(stream_id: str, lineage: str) -> str:
    """What a query is called in a store: streams are made anew under their names, and one may have several lineages."""
    return f"{stream_id}.{lineage}"
