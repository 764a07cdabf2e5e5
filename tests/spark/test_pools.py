"""The pools that queries run in are known to Spark beforehand, so that it warns of none."""

from __future__ import annotations

from xml.etree import ElementTree

from holdfast.spark.pools import fork_pool, pools_file, stable_pool


def test_every_node_has_a_pool_for_its_stable_query_and_one_for_its_forks() -> None:
    path = pools_file(["active", "b"])
    assert path is not None
    found = ElementTree.parse(path).getroot()
    names = [pool.get("name") for pool in found.findall("pool")]
    assert names == ["default", "active", "active-fork", "b", "b-fork"]
    assert (stable_pool("b"), fork_pool("b")) == ("b", "b-fork")
