"""Scheduler pools: a fair share for the stable query of each node, and one for its fork.

Spark makes a pool for whatever name a job mentions, with a warning each time, and keeps it for ever. So the pools are
named beforehand, two for each node, and all forks of a node use the same one.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from xml.sax.saxutils import quoteattr

from holdfast.model.errors import StorageError
from holdfast.spark.own_folder import own_folder
from holdfast.stream.disk import VolatileDisk
from holdfast.stream.frame import crc32c

#: As Spark would make them: within a pool in order, all pools alike, nothing reserved.
_POOL = "  <pool name={}><schedulingMode>FIFO</schedulingMode><weight>1</weight><minShare>0</minShare></pool>\n"


def stable_pool(node: str) -> str:
    return node


def fork_pool(node: str) -> str:
    return f"{node}-fork"


def pools_file(nodes: Iterable[str]) -> Path | None:
    """The allocation file that Spark reads when a context starts; None where it has no safe place.

    Its name follows from what it holds, so it may stay for whoever needs the same.
    """
    names = [pool for node in nodes for pool in (stable_pool(node), fork_pool(node))]
    pools = "".join(_POOL.format(quoteattr(name)) for name in ("default", *names))
    data = f'<?xml version="1.0"?>\n<allocations>\n{pools}</allocations>\n'.encode()
    try:
        path = own_folder() / f"pools-{crc32c(data):08x}.xml"
        VolatileDisk().replace_file(path, data)
    except StorageError:
        return None  # Spark makes the pools as it goes, with a warning for each.
    return path
