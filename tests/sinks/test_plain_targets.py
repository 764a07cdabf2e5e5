"""Targets that keep no position in a transaction of their own: files, functions, receivers of requests (T2, T3)."""

from __future__ import annotations

import json
import random
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.model.errors import SchemaError
from holdfast.model.schema import parse_schema
from holdfast.sinks import Changes, Sink, Source, foreach, parquet, webhook
from holdfast.sinks.runner import LocalOrigin, SinkRunner
from holdfast.stream.store import StreamStore
from holdfast.testing.sinks import EACH, KILLS, STREAM, Script, Seen, SinkConformance

pytestmark = pytest.mark.slow


class TestParquet(SinkConformance):
    keyed = tentative = replaced = False

    def start(self, folder: Path) -> None:
        self.folder = folder

    def sink(self, key: Sequence[str]) -> Sink:
        return parquet(self.folder, every=0)

    def select(self, key: Sequence[str]) -> list[Seen]:
        tables = [pq.read_table(path, columns=["n", "v"]) for path in sorted(self.folder.glob("*.parquet"))]
        return [(row["n"], row["v"], False) for table in tables for row in table.to_pylist()]


def test_a_folder_whose_files_have_other_types_is_refused(tmp_path: Path) -> None:
    """One file of integers beside one of texts is a folder that nobody can read."""

    def resumed(columns: str) -> str | None:
        sink = parquet(tmp_path / "t", every=0)
        try:
            return sink.resume(Source("s", parse_schema(columns)))
        finally:
            sink.close()

    columns = "n bigint, at timestamp, notes array<struct<a: map<string, decimal(9,2)>, b: array<int>>>"
    schema = parse_schema(columns)
    rows = pa.Table.from_arrays(
        [pa.array([1]), pa.array([0], pa.timestamp("us", tz="UTC")), *(pa.nulls(1, field.type) for field in schema)],
        names=["tuple_id", "stime", *schema.names],
    )
    sink = parquet(tmp_path / "t", every=0)
    sink.resume(Source("s", schema))
    sink.apply(Changes(False, rows, rows.slice(0, 0)), "one")
    sink.close()
    assert resumed(columns) == "one"
    with pytest.raises(SchemaError, match=r"column n of the files of .*t must be string as in stream s, .* is bigint;"):
        resumed(columns.replace("bigint", "string"))
    with pytest.raises(SchemaError, match=r"column notes of .* must be .*decimal\(10,2\).* it is .*decimal\(9,2\)"):
        resumed(columns.replace("9,2", "10,2"))
    with pytest.raises(SchemaError, match="have the columns n, at, notes; stream s has n, at; name another folder"):
        resumed("n bigint, at timestamp")


class Store:
    """A user's function: rows and position in one transaction of SQLite."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def open(self) -> sqlite3.Connection:
        database = sqlite3.connect(self.path, isolation_level=None, timeout=60)
        database.execute("pragma journal_mode=wal")
        database.execute("create table if not exists rows (n integer, v integer, tentative integer)")
        database.execute("create table if not exists place (position text)")
        return database

    def __call__(self, changes: Changes, position: str) -> None:
        with closing(self.open()) as database:
            database.execute("begin immediate")
            if changes.undo:
                database.execute("delete from rows where tentative")
            for rows, tentative in ((changes.stable, False), (changes.tentative, True)):
                for row in rows.to_pylist():
                    database.execute("insert into rows values (?, ?, ?)", (row["n"], row["v"], tentative))
            database.execute("delete from place")
            database.execute("insert into place values (?)", (position,))
            database.execute("commit")

    def position(self) -> str | None:
        with closing(self.open()) as database:
            found = database.execute("select position from place").fetchone()
        return None if found is None else str(found[0])


class TestFunction(SinkConformance):
    keyed = replaced = False

    def start(self, folder: Path) -> None:
        folder.mkdir()
        self.store = Store(folder / "rows.db")

    def sink(self, key: Sequence[str]) -> Sink:
        return foreach(self.store, resume=self.store.position, tentative=True)

    def select(self, key: Sequence[str]) -> list[Seen]:
        with closing(self.store.open()) as database:
            return [(n, v, bool(t)) for n, v, t in database.execute("select n, v, tentative from rows")]


class StoreById:
    """A user's function that keeps rows by their tuple id, and no position."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def open(self) -> sqlite3.Connection:
        database = sqlite3.connect(self.path, isolation_level=None, timeout=60)
        database.execute("pragma journal_mode=wal")
        database.execute("create table if not exists rows (id integer primary key, n integer, v integer)")
        return database

    def __call__(self, changes: Changes, position: str) -> None:
        with closing(self.open()) as database:
            database.execute("begin immediate")
            if changes.undo:
                database.execute("delete from rows where id < 0")
            for rows, sign in ((changes.stable, 1), (changes.tentative, -1)):
                for row in rows.to_pylist():
                    values = (sign * row["tuple_id"], row["n"], row["v"])
                    database.execute("insert or replace into rows values (?, ?, ?)", values)
            database.execute("commit")


class TestFunctionWithAFile(SinkConformance):
    """At least once: a receiver that knows repetitions by the tuple id is exact."""

    kills = max(2, KILLS // 4)
    keyed = replaced = False

    def start(self, folder: Path) -> None:
        folder.mkdir()
        self.store, self.place = StoreById(folder / "rows.db"), folder / "place"

    def sink(self, key: Sequence[str]) -> Sink:
        return foreach(self.store, position=self.place, tentative=True)

    def select(self, key: Sequence[str]) -> list[Seen]:
        with closing(self.store.open()) as database:
            return [(n, v, id < 0) for id, n, v in database.execute("select id, n, v from rows")]


class Receiver(ThreadingHTTPServer):
    """Keeps rows by their tuple id, as the documentation says."""

    def __init__(self) -> None:
        self.rows: dict[tuple[bool, int], Seen] = {}
        self.mutex = threading.Lock()
        super().__init__(("127.0.0.1", 0), _Request)
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    def take(self, body: dict[str, Any]) -> None:
        with self.mutex:
            kept = {place: row for place, row in self.rows.items() if not (body["undo"] and row[2])}
            for row in body["rows"]:
                values, tentative = row["values"], row["tentative"]
                kept[tentative, row["tuple_id"]] = values["n"], values["v"], tentative
            self.rows = kept


class _Request(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        self.server.take(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def receiver(request: pytest.FixtureRequest) -> Iterator[None]:
    with Receiver() as server:
        request.instance.receiver = server
        yield
        server.shutdown()


@pytest.mark.usefixtures("receiver")
class TestWebhook(SinkConformance):
    keyed = replaced = False
    receiver: Receiver

    def start(self, folder: Path) -> None:
        folder.mkdir()
        self.place = folder / "place"

    def sink(self, key: Sequence[str]) -> Sink:
        url = f"http://127.0.0.1:{self.receiver.server_port}/hook"
        return webhook(url, position=self.place, tentative=True)

    def select(self, key: Sequence[str]) -> list[Seen]:
        return list(self.receiver.rows.values())


def test_kills_that_missed_a_place_prove_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "kills").write_text("before\ninside\n" * 4)
    with pytest.raises(AssertionError, match="no kill came after a transaction: 4 before, 4 inside, 0 after"):
        TestParquet()._tell(tmp_path, 8)
    with pytest.raises(AssertionError, match="of 9 kills 8 were noted"):
        TestParquet()._tell(tmp_path, 9)
    assert "TestParquet: killed 8 times: 4 before, 4 inside, 0 after" in capsys.readouterr().out
    (tmp_path / "kills").write_text("before\ninside\n")
    TestParquet()._tell(tmp_path, 2)


class Killed(BaseException):
    """As far as the sink gets."""


@pytest.mark.parametrize("stable_before", [0, 2], ids=["the first rows of all", "behind stable ones"])
def test_tentative_rows_of_a_call_that_nobody_noted_are_taken_back(tmp_path: Path, stable_before: int) -> None:
    """T2: killed between the call and the note of it; by the next start the stream has corrected itself."""
    script = Script(tmp_path / "streams", random.Random(1))
    for _ in range(stable_before):
        script._advance()
    got: dict[tuple[bool, int], int] = {}

    def store(changes: Changes, position: str) -> None:
        if changes.undo:
            for place in [place for place in got if place[0]]:
                del got[place]
        for rows, tentative in ((changes.stable, False), (changes.tentative, True)):
            got.update({(tentative, row["tuple_id"]): row["v"] for row in rows.to_pylist()})
        if changes.tentative.num_rows:
            raise Killed

    def run() -> None:
        sink = foreach(store, position=tmp_path / "place", tentative=True)
        SinkRunner("f", STREAM, LocalOrigin(StreamStore(tmp_path / "streams"), STREAM), sink).run()

    script._fail()
    with pytest.raises(Killed):
        run()
    assert any(tentative for tentative, _ in got)
    script.end()
    run()
    assert sorted(got.values()) == list(range(script.stable * EACH))
    assert not any(tentative for tentative, _ in got)
