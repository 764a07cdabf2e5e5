"""A sink that reads over the network: replicas fail beneath it, and it is stopped and started at every stage."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.host.connection import Connection
from holdfast.sinks import sqlite
from holdfast.sinks.runner import Reader, SinkRunner
from holdfast.stream.definition import Definition
from holdfast.stream.subscriber import Start
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
