"""A table of a real PostgreSQL holds what a stream says, whoever is killed (T1, T2)."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast.sinks import Sink, postgres
from holdfast.testing.sinks import Seen, SinkConformance

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
