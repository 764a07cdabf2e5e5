"""A table of a real PostgreSQL holds what a stream says, whoever is killed (T1, T2)."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast.sinks import Sink, postgres
from holdfast.sinks.runner import LocalOrigin, SinkRunner
from holdfast.stream.store import StreamStore
from holdfast.testing.sinks import EACH, KILLS, STREAM, Script, Seen, SinkConformance, Watch
from tests.postgres_server import postgres_server
from tests.spark.processes import wait_for

psycopg = pytest.importorskip("psycopg", reason="needs the extra postgres")
pytestmark = pytest.mark.slow


class TestPostgres(SinkConformance):
    @pytest.fixture(autouse=True)
    def _server(self, postgres: str, request: pytest.FixtureRequest) -> Iterator[None]:
        self.url, self.schema = postgres, f"s{abs(hash(request.node.name)):x}"
        self.reader: Any = psycopg.connect(self.url, autocommit=True)
        yield
        self.reader.close()

    def start(self, folder: Path) -> None:
        self.reader.execute(f'create schema "{self.schema}"')

    def sink(self, key: Sequence[str]) -> Sink:
        return postgres(self.url, f"{self.schema}.results", key=key, tentative=True)

    def select(self, key: Sequence[str]) -> list[Seen]:
        try:
            found: list[Seen] = self.reader.execute(f"select n, v, tentative from {self.schema}.results").fetchall()
        except psycopg.errors.UndefinedTable:
            return []
        return found

    def disturb(self, chance: random.Random) -> None:
        """The database ends the sink's session: it comes back."""
        with psycopg.connect(self.url, autocommit=True) as other:
            other.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'holdfast-sink'"
            )


def test_a_table_is_right_at_every_look_while_the_database_is_killed(tmp_path: Path) -> None:
    """T1, T2: the sink backs off, says so, and goes on from what the database recovered."""
    seen: list[Seen] = []

    def select() -> list[Seen]:
        """As soon as the database lets a reader in; until then there is nothing to see."""
        nonlocal seen
        try:
            with psycopg.connect(server.url) as reader:
                seen = reader.execute("select n, v, tentative from results").fetchall()
        except (psycopg.OperationalError, psycopg.errors.UndefinedTable):
            pass
        return seen

    with postgres_server() as server:
        script = Script(tmp_path, random.Random(7))
        runner = SinkRunner("t", STREAM, LocalOrigin(StreamStore(tmp_path), STREAM),
                            postgres(server.url, "results", tentative=True)).start()  # fmt: skip
        watch = Watch(select, script, keyed=False)
        try:
            for _ in range(KILLS // 4):
                for _ in range(8):
                    script.step()
                    script.renew()
                    looks = watch.looks
                    wait_for(lambda looks=looks: watch.looks > looks, "another look", 60)  # type: ignore[misc]
                rows = runner.status()["rows"]
                server.kill()
                script.step()
                wait_for(lambda: runner.status()["state"] == "WAITING", "the sink to notice", 60)
                assert runner.status()["rows"] >= rows
                server.start()
                wait_for(lambda: runner.status()["state"] == "RUNNING", "the sink to go on", 60)
            script.end()
            wait_for(lambda: runner.ended, "the end", 60)
        finally:
            watch.close()
            runner.stop()
        assert watch.wrong is None, watch.wrong
        assert watch.tentative_looks > 0
        assert sorted(select()) == [(n, n, False) for n in range(script.stable * EACH)]


def test_a_server_that_does_not_let_us_in_is_an_error_at_once(tmp_path: Path) -> None:
    """No retry mends these; each of them was tried for ever."""
    Script(tmp_path, random.Random(1)).step()
    with postgres_server() as server:
        with psycopg.connect(server.url, autocommit=True) as database:
            database.execute("create role locked nologin")
            database.execute("create role secret login password 'right'")
        server.ask_password("secret")
        address = server.url.partition("@")[2]
        for user in ("secret", "secret:wrong", "locked", "nobody"):
            runner = SinkRunner("t", STREAM, LocalOrigin(StreamStore(tmp_path), STREAM),
                                postgres(f"postgresql://{user}@{address}", "results")).start()  # fmt: skip
            try:
                wait_for(lambda one=runner: one.failure is not None, f"{user} to be refused", 30)  # type: ignore[misc]
                assert "wrong" not in str(runner.failure)
            finally:
                runner.stop()
