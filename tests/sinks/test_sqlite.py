"""A table of SQLite holds what a stream says, whoever is killed (T1, T2)."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path

import pytest

from holdfast.sinks import Sink, sqlite
from holdfast.testing.sinks import Seen, SinkConformance

pytestmark = pytest.mark.slow


class TestSqlite(SinkConformance):
    def start(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.path = folder / "results.db"

    def sink(self, key: Sequence[str]) -> Sink:
        return sqlite(self.path, "results", key=key, tentative=True)

    def select(self, key: Sequence[str]) -> list[Seen]:
        if not self.path.exists():
            return []
        connection = sqlite3.connect(self.path, timeout=60)
        try:
            return [(n, v, bool(t)) for n, v, t in connection.execute("select n, v, tentative from results")]
        except sqlite3.OperationalError as error:
            if "no such table" in str(error):
                return []
            raise
        finally:
            connection.close()
