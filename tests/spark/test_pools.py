"""The pools that queries run in are known to Spark beforehand, so that it warns of none."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from holdfast.spark.pools import fork_pool, stable_pool, write_pools


def test_every_node_has_a_pool_for_its_stable_query_and_one_for_its_forks(tmp_path: Path) -> None:
    write_pools(tmp_path / "pools.xml", ["active", "b"])
    found = ElementTree.parse(tmp_path / "pools.xml").getroot()
    names = [pool.get("name") for pool in found.findall("pool")]
    assert names == ["default", "active", "active-fork", "b", "b-fork"]
    assert (stable_pool("b"), fork_pool("b")) == ("b", "b-fork")
