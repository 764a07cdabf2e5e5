"""A host loses its disk by kill -9; its replica is rebuilt from the twin, byte-equal, and readers get news meanwhile.

Sources keep what is not acknowledged, and no more: the inputs do not reach back to where the node began (D18).
"""

from __future__ import annotations

import itertools
import os
import shutil
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import holdfast
from holdfast.clock import now_us
from holdfast.host.controller import boundary_of
from holdfast.host.crash_points import REBUILT
from holdfast.stream.acks import REPLICAS, acknowledge
from holdfast.stream.checking.verify import verify
from holdfast.stream.disk import Disk
from holdfast.stream.head import read_head
from tests.faults.deployment import Client, Hosts, wait_us

SECOND = 1_000_000
#: Raise it for a long run: HOLDFAST_REBUILDS=10. With HOLDFAST_REBUILD_SPARK=1 Spark runs the nodes.
ROUNDS = int(os.environ.get("HOLDFAST_REBUILDS", "1"))
SPARK = bool(os.environ.get("HOLDFAST_REBUILD_SPARK"))
X_US = 20 * SECOND
APP = """
import holdfast
from pyspark.sql import functions as F

app = holdfast.App("lost")

@app.node(inputs=["flows"], name="counts", max_delay="20s", keepalive="500ms")
def counts(c):
    window = F.window("stime", "1 second")
    return c.groupBy(window, "source").agg(F.count("*").alias("n"), F.sum("bytes").alias("bytes"))
"""
Row = tuple[int, int, str, int, int]


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    deployed = Hosts(tmp_path, APP, "1s", ["flows"], {"counts": ["a", "b"]}, plain=not SPARK, segment_bytes=1 << 16,
                     retention=holdfast.Retention(acknowledged=True))  # fmt: skip
    try:
        yield deployed
    finally:
        deployed.end()


def begun(hosts: Hosts) -> Client:
    """Both replicas serve, a client listens, and the source has let go of its beginning."""
    feed = hosts.feeds["flows"]
    feed.rows = 400
    hosts.start()
    feed.start()
    hosts.wait_until("STABLE", "a", "b")
    client = hosts.listen_to_all("counts", "a")
    assert wait_us(lambda: removed_us(hosts) > 0, 60), "the source keeps everything"
    return client


def removed_us(hosts: Hosts) -> int:
    return read_head(hosts.store("src").open("flows").folder / "main").removed_until_us


def gets_news(client: Client) -> None:
    """Stable results of two more seconds."""
    before = client.recording.stable
    assert wait_us(lambda: client.recording.stable >= before + 14, X_US / SECOND, 20_000), "the reader is without news"


class News:
    """What a reader sees of new results, beside the calm at the beginning (D5)."""

    def __init__(self, client: Client) -> None:
        self._client = client
        gets_news(client)
        self._since_us = now_us()
        gets_news(client)
        self._normal_us = self._latency_us(self._since_us)
        self._added_us: list[int] = []

    def _latency_us(self, since_us: int) -> int:
        latency = self._client.recording.latency(since_us)
        assert latency is not None
        return latency.us_max

    def keep_coming(self, since_us: int, what: str) -> None:
        """Since that time."""
        added_us = max(0, self._latency_us(since_us) - self._normal_us)
        self._added_us.append(added_us)
        print(f"{what}: {added_us / SECOND:.2f} s added to {self._normal_us / SECOND:.2f} s", flush=True)
        assert added_us < X_US, "D5"

    def end(self) -> None:
        came = [self._since_us, *(c.wall_us for c in self._client.recording.cells() if c.wall_us > self._since_us)]
        pause_us = max(later - sooner for sooner, later in itertools.pairwise(came))
        print(f"at most {max(self._added_us) / SECOND:.2f} s added, and {pause_us / SECOND:.2f} s without news")
        assert pause_us < X_US, "never without news for longer than X"


def loses_its_disk(hosts: Hosts, host: str) -> None:
    hosts.kill(host)
    shutil.rmtree(hosts.folder / host)


def loses_its_input(hosts: Hosts, host: str) -> None:
    """It is down while an operator, who needs room, lets go of what its twin has read."""
    hosts.kill(host)
    flows, mirrored = hosts.store("src").open("flows"), hosts.folder / host / ".holdfast/nodes/counts/inputs"
    had_us = boundary_of(holdfast.open(mirrored).open("flows"))  # It may have come further than the query.

    def removed() -> bool:
        flows.forget(REPLICAS)
        acknowledge(flows.folder, REPLICAS, boundary_us(hosts, "a") - SECOND, now_us(), Disk())
        flows.retain()
        return removed_us(hosts) > had_us

    assert wait_us(removed, 60), "nothing could be removed"


def boundary_us(hosts: Hosts, host: str) -> int:
    return boundary_of(hosts.store(host).open("counts"))


def results(hosts: Hosts, host: str, stream: str = "counts") -> list[Row]:
    """Every tuple with its id, in the order of the log."""
    reader, found = hosts.store(host).open(stream).reader(), []
    for extent in reader.extents(-(2**62), 2**62, strict=False):
        batch, first = reader.read(extent), extent.fields.first_tuple_id
        for k, (row, at) in enumerate(
            zip(batch.to_pylist(), batch.column(0).cast(pa.int64()).to_pylist(), strict=True)
        ):
            found.append((first + k, at, row["source"], row["n"], row["bytes"]))
    reader.close()
    return found


def counted(hosts: Hosts) -> list[Row]:
    """The same from what was sent, by plain Python."""
    groups: defaultdict[tuple[int, str], list[int]] = defaultdict(lambda: [0, 0])
    for at, first, count in hosts.feeds["flows"].sends:
        for k in range(first, first + count):
            both = groups[at // SECOND * SECOND + SECOND, f"s{k % 7}"]
            both[0] += 1
            both[1] += k
    return [(i + 1, *key, *both) for i, (key, both) in enumerate(sorted(groups.items()))]


def ended(hosts: Hosts, host: str, stream: str = "counts") -> bool:
    reader = hosts.store(host).open(stream).reader()
    reader.close()
    return reader.closed


def check_the_end(hosts: Hosts, client: Client) -> None:
    hosts.feeds["flows"].end()
    assert wait_us(lambda: ended(hosts, "a") and ended(hosts, "b"), 120), "they did not end"
    client.join(60)
    assert client.trouble is None
    assert client.recording.tentative == 0, "a stable twin was in reach all the time (D6)"
    latency = client.recording.latency()
    assert latency is not None
    print(f"{client.recording.stable} stable results, at most {latency.us_max / SECOND:.1f} s behind their stime")
    expected = counted(hosts)
    for host in ("a", "b"):
        assert results(hosts, host) == expected, f"{host}: nothing lost, nothing twice"
        found = verify(hosts.store(host).open("counts").folder)
        assert [f for f in found if f.severity.name == "ERROR"] == []


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_replica_whose_disk_died_or_whose_input_went_is_rebuilt_from_its_twin_and_readers_get_news(
    hosts: Hosts,
) -> None:
    """D9, D18."""
    client = begun(hosts)
    news = News(client)
    for k in range(ROUNDS):
        lost, since_us = "ba"[k % 2], now_us()
        loses_its_disk(hosts, lost)
        gets_news(client)
        hosts.log(lost).unlink()
        hosts.start(lost)
        hosts.wait_until("STABLE", lost)
        assert f"counts@{lost}: rebuilt from counts@" in hosts.log(lost).read_text()
        gets_news(client)
        news.keep_coming(since_us, f"{lost} lost its disk")
    since_us = now_us()
    loses_its_input(hosts, "b")
    hosts.log("b").unlink()
    hosts.start("b")
    hosts.wait_until("STABLE", "b")
    said = hosts.log("b").read_text()
    assert "must be complete" in said, "it has a checkpoint, of which nothing can be made any more"
    assert "counts@b: rebuilt from counts@a" in said
    news.keep_coming(since_us, "b lost its input")
    news.end()
    check_the_end(hosts, client)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_rebuilding_that_is_killed_at_any_step_is_done_anew(hosts: Hosts, tmp_path: Path) -> None:
    """D9."""
    client, order = begun(hosts), tmp_path / "kill-at"
    for step in REBUILT if ROUNDS > 1 else ("filed",):
        loses_its_disk(hosts, "b")
        order.write_text(step)
        hosts.start("b", HOLDFAST_KILL_AT=str(order))
        hosts.died("b")
        gets_news(client)
        hosts.start("b")
        hosts.wait_until("STABLE", "b")
    check_the_end(hosts, client)
