"""A sink that reads over the network: replicas fail beneath it, and it is stopped and started at every stage; and hosts
are killed, its own among them."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.host.connection import Connection
from holdfast.host.deployment import load_deployment
from holdfast.model.time import SECOND_US
from holdfast.sinks import sqlite
from holdfast.sinks.runner import Reader, SinkRunner
from holdfast.stream.definition import Definition
from holdfast.stream.subscriber import Start
from holdfast.testing.sinks import KILLS
from tests.faults.deployment import Hosts as Deployed
from tests.faults.deployment import wait_us
from tests.host.test_client import STABILIZATION, STABLE, UP_FAILURE, House, Scene, expected, house, scene
from tests.spark.processes import wait_for

__all__ = ["house", "scene"]
pytestmark = pytest.mark.slow


class Hosts:
    """The stream of a scene's hosts."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def definition(self) -> Definition:
        return self._connection.definition("s")

    def subscribe(self, *, after: str | None, start: Start, tentative: bool, name: str | None) -> Reader:
        return self._connection.subscribe("s", after=after, start=start, tentative=tentative, name=name)

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def hosts(scene: Scene, house: House) -> Iterator[Hosts]:
    found = Hosts(scene.connect())
    yield found
    found.close()


def test_a_table_is_right_whichever_replica_it_came_from(scene: Scene, hosts: Hosts, tmp_path: Path) -> None:
    """T1, T2, D15: started anew at every stage, with tentative rows of a replica that is gone in the table."""
    path = tmp_path / "s.db"

    def rows() -> list[tuple[int, int]]:
        try:
            return sqlite3.connect(path).execute("select holdfast_id, n from s order by holdfast_id").fetchall()
        except sqlite3.OperationalError:
            return []

    def comes(stable: list[tuple[int, int]], tentative: list[int]) -> None:
        """Until the table holds exactly this, by a sink that starts now and ends then."""
        runner = SinkRunner("s", "s", hosts, sqlite(path, "s", tentative=True), subscriber="db").start()
        try:
            wait_for(
                lambda: (
                    [row for row in rows() if row[0] > 0] == stable
                    and sorted(n for id, n in rows() if id < 0) == sorted(tentative)
                ),
                f"{len(stable)} stable rows and {tentative}; got {rows()}, {runner.status()}",
                120,
            )
        finally:
            runner.stop()

    scene.fill(1, 4)
    before = expected(scene.a.origin)
    comes(before, [])
    scene.say(UP_FAILURE)
    scene.a.branch(4, 6)
    comes(before, [-4000, -4001, -5000, -5001])
    scene.a.stop()
    scene.b.branch(4, 7)
    comes(before, [-4000, -4001, -5000, -5001, -6000, -6001])
    scene.b.state = STABILIZATION
    scene.b.origin.fill(4, 7)
    comes(expected(scene.b.origin), [])
    scene.b.drop()
    scene.b.state = STABLE
    scene.b.origin.fill(7, 9)
    comes(expected(scene.b.origin), [])


APP = """
import holdfast
app = holdfast.App("net")
app.node(inputs=["flows"], name="counts", max_delay="1s", keepalive="200ms", replicas=2)(lambda rows: rows)
"""
#: It has a type for windows, which the databases lack.
SINKS = "sinks: {counts: {host: src, to: 'delta:counts', tentative: true}}\n"
Row = tuple[str, int, int, int, bool]
"""Source, beginning of the window, number, bytes, whether it is tentative."""


def table_of(folder: Path) -> Counter[Row]:
    import deltalake

    path = str(folder / "counts")
    if not deltalake.DeltaTable.is_deltatable(path):
        return Counter()
    rows = deltalake.DeltaTable(path).to_pyarrow_table().to_pylist()
    return Counter(
        (r["source"], round(r["window"]["start"].timestamp()), r["n"], r["bytes"], r["tentative"]) for r in rows
    )


def counted(hosts: Deployed) -> Counter[Row]:
    """What the windows of all that was sent hold, in plain Python."""
    found: dict[tuple[str, int], list[int]] = {}
    for at_us, first, rows in hosts.feeds["flows"].sends:
        for k in range(first, first + rows):
            found.setdefault((f"s{k % 7}", at_us // SECOND_US), []).append(k)
    return Counter((source, at, len(sizes), sum(sizes), False) for (source, at), sizes in found.items())


def test_a_table_is_right_in_the_end_whichever_host_is_killed(tmp_path: Path) -> None:
    """T2: replicas, and the host that holds the source and runs the sink, whose death makes all else tentative."""
    pytest.importorskip("deltalake", reason="needs the extra delta")
    hosts = Deployed(tmp_path, APP, "1s", ["flows"], {"counts": ["a", "b"]}, plain=True)
    hosts.file.write_text(hosts.file.read_text() + SINKS)
    hosts.deployment = load_deployment(hosts.file)

    def stable() -> int:
        return sum(not row[-1] for row in table_of(tmp_path))

    def goes_on(what: str) -> None:
        before = stable()
        assert wait_us(lambda: stable() > before, 120) is not None, f"no rows come {what}: {hosts.status('src')}"

    try:
        hosts.start()
        hosts.feeds["flows"].start()
        goes_on("at all")
        for turn in range(max(3, 3 * (KILLS // 8))):
            victim = ("a", "src", "b")[turn % 3]
            hosts.kill(victim)
            if victim == "src":
                hosts.wait_until("UP_FAILURE", "b")  # The last turn has shown that it was up.
            else:
                goes_on(f"while {victim} is dead")
            hosts.start(victim)
            goes_on(f"after {victim} was killed")
        hosts.feeds["flows"].end()
        expected = counted(hosts)
        wait_us(lambda: table_of(tmp_path) == expected, 120)
        assert table_of(tmp_path) == expected
    finally:
        hosts.end()
