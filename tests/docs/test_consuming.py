"""The examples of docs/consuming.md, run as they stand: over a stream with a failure in it, and killed on the way."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

import holdfast
from holdfast.stream.worth import Worth, note_worth
from tests.docs.test_docs import HOME, blocks
from tests.operators.test_database import postgres
from tests.spark.processes import wait_for

__all__ = ["postgres"]

SECOND = 1_000_000
FIRST, UNDO, WORTH, PANDAS, SQLITE, POSTGRES = blocks(HOME / "docs" / "consuming.md", "python")


class Totals:
    """A stream of one tuple per second, total n in second n."""

    def __init__(self, root: Path) -> None:
        self.stream = holdfast.open(root).create("totals", "shop string, total bigint", bucket="1s")

    def stable(self, first: int, upto: int, *, end: bool = False) -> None:
        with self.stream.producer(stime="stime", boundary_every="1h") as producer:
            self._send(producer, first, upto)
            producer.close(end=end)

    def tentative(self, first: int, upto: int) -> None:
        """With wrong totals."""
        self.stream.create_branch(first * SECOND)
        branch = holdfast.Producer(self.stream.definition, self.stream.branch_writer(), stime="stime")
        self._send(branch, first, upto, wrong=1000)
        branch.close(end=False)

    def corrected(self) -> None:
        self.stream.drop_branch()

    @staticmethod
    def _send(producer: holdfast.Producer, first: int, upto: int, wrong: int = 0) -> None:
        for n in range(first, upto):
            stime = datetime.fromtimestamp(n, UTC)
            producer.send({"stime": stime, "shop": "north" if n % 2 else "south", "total": n + wrong})
        producer.advance(upto * SECOND)


@pytest.fixture
def totals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Totals:
    monkeypatch.chdir(tmp_path)
    return Totals(tmp_path / "streams")


def test_rows_come_with_the_fields_that_the_page_names(totals: Totals, capsys: pytest.CaptureFixture[str]) -> None:
    totals.stable(0, 3, end=True)
    exec(FIRST, {})
    assert capsys.readouterr().out.splitlines()[1] == "INSERTION 2 1970-01-01 00:00:01+00:00 north 1"


def test_the_three_rules_of_a_consumer_leave_what_is_right(totals: Totals) -> None:
    totals.stable(0, 3)
    totals.tentative(3, 5)
    names = {"stream": totals.stream}

    def corrects() -> None:
        wait_for(lambda: len(names.get("tentative", ())) == 2, "the tentative rows")
        totals.corrected()
        totals.stable(3, 6, end=True)

    other = threading.Thread(target=corrects)
    other.start()
    exec(UNDO.replace('timeout="1s"', 'timeout="60s"'), names)
    other.join()
    assert [row.values["total"] for row in names["stable"]] == [0, 1, 2, 3, 4, 5]  # type: ignore[attr-defined]
    assert names["tentative"] == []


def test_rows_say_what_they_lack(totals: Totals, capsys: pytest.CaptureFixture[str]) -> None:
    totals.stable(0, 3)
    totals.tentative(3, 5)
    lines = [Worth(3, 0.7, ("m1",), 0.5, ("m2", "m3")), Worth(4, 1.0, ("m1", "m2", "m3"), 1.0)]
    note_worth(totals.stream.folder, totals.stream.definition, lines)
    exec(WORTH.replace('timeout="1s"', "timeout=0"), {"stream": totals.stream, "TupleType": holdfast.TupleType})
    assert capsys.readouterr().out.splitlines() == ["north lacks ['m2', 'm3']: worth 70%"]


def test_a_stream_is_a_frame_of_pandas_and_the_next_run_gets_the_rest(
    totals: Totals, capsys: pytest.CaptureFixture[str]
) -> None:
    totals.stable(0, 5)
    exec(PANDAS, {"stream": totals.stream})
    assert capsys.readouterr().out.splitlines()[1:3] == ["north    4", "south    6"]
    totals.stable(5, 8)
    exec(PANDAS, {"stream": totals.stream})
    assert capsys.readouterr().out.splitlines()[1:3] == ["north    12", "south     6"]


class Killed(BaseException):
    """As if the process had been killed behind a row."""


class Dying:
    """The stream, whose reader is killed behind so many rows."""

    def __init__(self, stream: holdfast.Stream, rows: int) -> None:
        self._stream, self._rows = stream, rows

    def subscribe(self, **options: object) -> Dying:
        self._subscriber = self._stream.subscribe(**options)
        return self

    def rows(self, **_: object) -> Iterator[object]:
        for n, row in enumerate(self._subscriber.rows(timeout=0)):
            if n == self._rows:
                raise Killed
            yield row


def database_holds_every_row_once(totals: Totals, block: str, rows: Callable[[], list[tuple[int, bool]]]) -> None:
    """Killed behind every row or two, and started again, through a failure and its corrections."""

    def until_idle() -> None:
        for lives in range(1, 100):
            try:
                return exec(block, {"stream": Dying(totals.stream, lives)})
            except Killed:
                continue

    totals.stable(0, 3)
    until_idle()
    assert rows() == [(0, False), (1, False), (2, False)]
    totals.tentative(3, 5)
    until_idle()
    assert rows() == [(0, False), (1, False), (2, False), (1003, True), (1004, True)]
    totals.corrected()
    totals.stable(3, 6)
    until_idle()
    assert rows() == [(n, False) for n in range(6)]
    totals.stable(6, 8, end=True)
    until_idle()
    assert rows() == [(n, False) for n in range(8)]


def test_sqlite_holds_every_stable_row_once_whenever_its_writer_is_killed(totals: Totals) -> None:
    def rows() -> list[tuple[int, bool]]:
        found = sqlite3.connect("totals.db").execute("select total, tentative from totals order by rowid").fetchall()
        return [(total, bool(tentative)) for total, tentative in found]

    database_holds_every_row_once(totals, SQLITE, rows)


@pytest.mark.slow
def test_postgresql_holds_every_stable_row_once_whenever_its_writer_is_killed(totals: Totals, postgres: str) -> None:
    import psycopg

    def rows() -> list[tuple[int, bool]]:
        with psycopg.connect(postgres) as database:
            return database.execute("select total, tentative from totals order by stime").fetchall()

    database_holds_every_row_once(totals, POSTGRES.replace("postgresql://ann@127.0.0.1/shop", postgres), rows)
