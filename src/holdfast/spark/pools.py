"""Scheduler pools: a fair share for the stable query of each node, and one for its fork.

Spark makes a pool for whatever name a job mentions, with a warning each time, and keeps it for ever. So the pools are
named beforehand, two for each node, and all forks of a node use the same one.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from xml.sax.saxutils import quoteattr

#: As Spark would make them: within a pool in order, all pools alike, nothing reserved.
_POOL = "  <pool name={}><schedulingMode>FIFO</schedulingMode><weight>1</weight><minShare>0</minShare></pool>\n"


def stable_pool(node: str) -> str:
    return node


def fork_pool(node: str) -> str:
    return f"{node}-fork"


def write_pools(path: Path, nodes: Iterable[str]) -> None:
    """The allocation file that Spark reads when its context starts."""
    names = [pool for node in nodes for pool in (stable_pool(node), fork_pool(node))]
    pools = "".join(_POOL.format(quoteattr(name)) for name in ("default", *names))
    path.write_text(f'<?xml version="1.0"?>\n<allocations>\n{pools}</allocations>\n')
