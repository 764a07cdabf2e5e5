"""The examples of docs/consuming.md, run as they stand: over a stream with a failure in it, and killed on the way."""

from __future__ import annotations

import sqlite3
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest

import holdfast
from tests.docs.test_docs import HOME, blocks
from tests.spark.processes import wait_for

SECOND = 1_000_000
FIRST, UNDO, PANDAS, DATABASE = blocks(HOME / "docs" / "consuming.md", "python")


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


def test_a_stream_is_a_frame_of_pandas(totals: Totals, capsys: pytest.CaptureFixture[str]) -> None:
    totals.stable(0, 5)
    exec(PANDAS, {"stream": totals.stream})
    assert capsys.readouterr().out.splitlines()[1:3] == ["north    4", "south    6"]


def test_a_database_holds_every_stable_row_once_whenever_its_writer_is_stopped(totals: Totals) -> None:
    def rows() -> list[tuple[int, int]]:
        with sqlite3.connect("totals.db") as database:
            return database.execute("select total, tentative from totals order by rowid").fetchall()

    class Stopped(BaseException):
        """As if the process had been killed while it waited."""

    def until_idle() -> None:
        names: dict[str, object] = {}
        # The place of the pause is where nothing new has come.
        stopping = DATABASE.replace("time.sleep(0.1)", "raise Stopped")
        with pytest.raises(Stopped):
            exec(stopping, names | {"Stopped": Stopped})

    totals.stable(0, 3)
    until_idle()
    assert rows() == [(0, 0), (1, 0), (2, 0)]
    totals.tentative(3, 5)
    until_idle()
    assert rows() == [(0, 0), (1, 0), (2, 0), (1003, 1), (1004, 1)]
    totals.corrected()
    totals.stable(3, 6)
    until_idle()
    assert rows() == [(n, 0) for n in range(6)]
    totals.stable(6, 8, end=True)
    exec(DATABASE, {})
    assert rows() == [(n, 0) for n in range(8)]
