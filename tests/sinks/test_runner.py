"""What drives a stream into a sink: whole buckets, errors that pass and that do not, what people see of it."""

from __future__ import annotations

import json
import random
import sqlite3
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import holdfast
from holdfast.app import App
from holdfast.host.sinks import embedded_sinks
from holdfast.model.errors import PeerError, Removed, UsageError
from holdfast.model.time import instant_text
from holdfast.sinks import Changes, Sink, Source, foreach, parquet, runner, sqlite, webhook
from holdfast.sinks.runner import LocalOrigin, SinkRunner
from holdfast.stream.definition import Retention
from holdfast.stream.store import Stream, StreamStore
from holdfast.testing.sinks import EACH, STREAM, Script
from tests.faults.units import QuietDisk
from tests.spark.processes import wait_for
from tests.stream.test_subscriber import filled, send


class Held(Sink):
    """A target in memory, which can be made to fail."""

    kind = "held"

    def __init__(self, tentative: bool = True) -> None:
        self.tentative = tentative
        self.position: str | None = None
        self.stable: list[int] = []
        self.guesses: list[int] = []
        self.applied: list[tuple[bool, int, int]] = []
        self.trouble: list[Exception] = []

    @property
    def target(self) -> str:
        return "memory"

    def resume(self, source: Source) -> str | None:
        return self.position

    def apply(self, changes: Changes, position: str) -> None:
        if self.trouble:
            raise self.trouble.pop(0)
        if changes.undo:
            self.guesses.clear()
        self.stable += changes.stable.column("n").to_pylist()
        self.guesses += changes.tentative.column("n").to_pylist()
        self.applied.append((changes.undo, changes.stable.num_rows, changes.tentative.num_rows))
        self.position = position

    def close(self) -> None:
        pass


def run(stream: Stream, sink: Sink, **options: Any) -> SinkRunner:
    made = SinkRunner("test", stream.name, LocalOrigin(StreamStore(stream.folder.parent), stream.name), sink, **options)
    made.run()
    return made


def test_a_transaction_holds_whole_buckets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """T1: also where a lot has gathered."""
    monkeypatch.setattr(runner, "_ROWS_MAX", 5)
    script = Script(tmp_path, random.Random(3))
    for _ in range(25):
        script.step()
    script.end()
    sink = Held()
    status = run(script.stream, sink).status()
    assert sink.stable == list(range(script.stable * EACH))
    assert not sink.guesses
    assert len(sink.applied) > 5
    assert all(stable % EACH == 0 and guesses % EACH == 0 for _, stable, guesses in sink.applied)
    assert (status["state"], status["rows"]) == ("ENDED", sum(s + g for _, s, g in sink.applied))


def test_what_may_pass_is_tried_again_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "_BACK_OFF_S_MIN", 0.05)
    monkeypatch.setattr(runner, "_BACK_OFF_S_MAX", 0.2)
    stream = filled(tmp_path, 3)
    sink = Held()
    sink.trouble = [PeerError("the database is away")] * 4
    made = SinkRunner("test", "s", LocalOrigin(StreamStore(tmp_path), "s"), sink).start()
    said: set[str] = set()
    wait_for(lambda: said.add(made.status()["why"] or "") or sink.stable == [0, 1, 2], "the rows")
    wait_for(lambda: made.status()["state"] == "RUNNING", "the state")
    assert made.status()["why"] is None
    assert made.status()["lag_s"] == 0
    assert any("the database is away; failed" in text for text in said)
    send(stream, range(3, 5), end=True)
    wait_for(lambda: made.ended, "the end")
    assert sink.stable == [0, 1, 2, 3, 4]
    made.stop()
    assert made.ended


def test_what_cannot_pass_ends_the_run_with_its_sentence(tmp_path: Path) -> None:
    stream = filled(tmp_path, 3)
    sink = Held()
    sink.trouble = [UsageError("there is no such table")]
    made = SinkRunner("test", "s", LocalOrigin(StreamStore(tmp_path), "s"), sink)
    with pytest.raises(UsageError, match="no such table"):
        made.run()
    assert (made.status()["state"], made.failure) == ("FAILED", "there is no such table")
    assert not sink.stable
    assert stream.acks() == {}


def test_a_position_that_is_no_longer_kept_is_said_and_never_skipped(tmp_path: Path) -> None:
    stream = filled(tmp_path, 200, segment_bytes=4096)
    sink = Held()
    with stream.subscribe(end=5) as subscriber:
        list(subscriber.poll())
        sink.position = subscriber.position
    stream.retain(Retention(size_bytes=1))
    with pytest.raises(Removed, match="removed by retention"):
        run(stream, sink)


def test_a_stream_that_was_made_anew_is_not_taken_for_the_one_that_filled_the_target(tmp_path: Path) -> None:
    """By key it would be mixed with it in silence."""
    stream, sink = filled(tmp_path, 5), Held()
    assert run_until(stream, sink, 5)["state"] == "STOPPED"
    for first in (3, 2):  # Its fifth tuple comes two seconds later, or its third is the fourth.
        StreamStore(tmp_path).delete("s")
        anew = StreamStore(tmp_path, disk=QuietDisk()).create("s", "n bigint", bucket="1s")
        send(anew, range(first, 9), end=True)
        with pytest.raises(UsageError, match="which stream s has not got: it was made anew since"):
            run(anew, sink)
    assert sink.stable == [0, 1, 2, 3, 4]
    StreamStore(tmp_path).delete("s")
    same = filled(tmp_path, 5)
    send(same, range(5, 7), end=True)
    run(same, sink)
    assert sink.stable == [0, 1, 2, 3, 4, 5, 6], "the same tuples are the same stream"


def test_retention_waits_for_a_sink_with_a_name(tmp_path: Path) -> None:
    stream = filled(tmp_path, 10)
    send(stream, range(10, 12), end=True)
    run(stream, Held(), subscriber="db")
    assert stream.acks()["db"].until_us >= 12_000_000


class Columns(Held):
    """Notes the columns that it was opened with, and the values of one that comes later."""

    def __init__(self) -> None:
        super().__init__()
        self.opened: list[list[str]] = []
        self.later: list[int | None] = []

    def resume(self, source: Source) -> str | None:
        self.opened.append(source.columns.names)
        if len(self.opened) > 1 and self.trouble:
            raise self.trouble.pop(0)
        return super().resume(source)

    def apply(self, changes: Changes, position: str) -> None:
        names = changes.stable.column_names
        self.later += changes.stable.column("m").to_pylist() if "m" in names else [None] * changes.stable.num_rows
        super().apply(changes, position)


def widen(stream: Stream, numbers: range, end: bool = False) -> None:
    """Add a column, and rows that have it."""
    wider = StreamStore(stream.folder.parent, disk=QuietDisk()).add_columns("s", "n bigint, m bigint")
    with wider.producer(stime="stime", boundary_every="1h") as producer:
        for n in numbers:
            producer.send({"n": n, "m": 10 * n, "stime": n * 1_000_000})
        producer.advance((numbers[-1] + 1) * 1_000_000)
        producer.close(end=end)


def test_a_stream_that_gets_a_column_while_a_sink_runs_loses_none_of_its_values(tmp_path: Path) -> None:
    """T1: the target is opened again where the first row with the column comes, and gets all of that bucket."""
    stream, sink = filled(tmp_path, 3), Columns()
    made = SinkRunner("test", "s", LocalOrigin(StreamStore(tmp_path), "s"), sink).start()
    wait_for(lambda: sink.stable == [0, 1, 2], "the rows before")
    widen(stream, range(3, 6), end=True)
    wait_for(lambda: made.ended, "the end")
    made.stop()
    assert sink.stable == [0, 1, 2, 3, 4, 5]
    assert sink.later == [None, None, None, 30, 40, 50]
    assert sink.opened == [["n"], ["n", "m"]]
    assert made.status()["errors"] == 0


def test_a_column_that_a_table_lacks_is_refused_when_it_comes_as_at_a_start(tmp_path: Path) -> None:
    stream, path = filled(tmp_path, 3), tmp_path / "t.db"

    def values(columns: str) -> list[Any]:
        try:
            return sqlite3.connect(path).execute(f"select {columns} from t order by n").fetchall()
        except sqlite3.OperationalError:
            return []

    made = SinkRunner("test", "s", LocalOrigin(StreamStore(tmp_path), "s"), sqlite(path, "t")).start()
    wait_for(lambda: len(values("n")) == 3, "the rows before")
    widen(stream, range(3, 6), end=True)
    wait_for(lambda: made.failure is not None, "the refusal")
    made.stop()
    assert "must have the columns m" in str(made.failure)
    assert values("n") == [(0,), (1,), (2,)]
    run(stream, sqlite(path, "t", add_columns=True))
    assert values("n, m") == [(0, None), (1, None), (2, None), (3, 30), (4, 40), (5, 50)]


def test_what_a_sink_holds_is_acknowledged_without_more_rows_and_a_boundary_alone_is_no_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention need not wait for the next rows, and nothing is lacking where nothing came."""
    stream, sink = filled(tmp_path, 3), Held()
    made = SinkRunner("test", "s", LocalOrigin(StreamStore(tmp_path), "s"), sink, subscriber="db").start()
    wait_for(lambda: "db" in stream.acks() and stream.acks()["db"].until_us == 3_000_000, "the first acknowledgement")
    send(stream, range(3, 4))  # Within a second of it.
    wait_for(lambda: stream.acks()["db"].until_us == 4_000_000, "the second", 30)
    applied, position = list(sink.applied), sink.position
    monkeypatch.setattr(runner, "_IDLE_ACK_US", 0)
    with stream.producer(stime="stime") as producer:
        producer.advance(60_000_000)
        producer.close(end=False)
    wait_for(lambda: stream.acks()["db"].until_us == 60_000_000, "the boundary", 30)
    assert made.status()["lag_s"] == 0
    assert (sink.applied, sink.position) == (applied, position)
    send(stream, range(60, 62), end=True)
    wait_for(lambda: made.ended, "the end")
    made.stop()
    assert sink.stable == [0, 1, 2, 3, 60, 61]
    assert stream.acks()["db"].until_us == 62_000_000


def test_one_that_began_live_and_was_stopped_before_the_first_row_goes_on_there(tmp_path: Path) -> None:
    stream, sink = filled(tmp_path, 3), Held()
    made = SinkRunner("test", "s", LocalOrigin(StreamStore(tmp_path), "s"), sink, start="live").start()
    wait_for(lambda: sink.position is not None, "it to note where it began")
    made.stop()
    send(stream, range(3, 6), end=True)
    run(stream, sink, start="live")
    assert sink.stable == [3, 4, 5]


def test_a_new_sink_on_a_stream_without_its_beginning_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    stream, sink = filled(tmp_path, 200, segment_bytes=4096), Held()
    assert run_until(stream, sink, 200)["removed_before"] is None
    assert not caplog.records
    stream.retain(Retention(size_bytes=1))
    first = next(iter(stream.subscribe().rows())).values["n"]
    new = Held()
    assert run_until(stream, new, 200 - first)["removed_before"] == instant_text((first - 1) * 1_000_000 + 1)
    assert new.stable == list(range(first, 200))
    (said,) = caplog.messages
    assert "sink test: memory held nothing, and lacks what stream s had before" in said
    assert "removed by retention" in said
    caplog.clear()
    assert run_until(stream, sink, 200)["removed_before"] is None, "it has what was removed"
    assert not caplog.records


def run_until(stream: Stream, sink: Held, rows: int) -> dict[str, Any]:
    made = SinkRunner("test", "s", LocalOrigin(StreamStore(stream.folder.parent), "s"), sink).start()
    wait_for(lambda: len(sink.stable) == rows and made.status()["state"] == "RUNNING", "the rows")
    made.stop()
    return made.status()


def test_an_application_runs_its_sinks_and_shows_them(tmp_path: Path) -> None:
    app = App("shop", root=tmp_path / "streams")

    @app.node(inputs="totals", output="large")
    def large(totals: Any) -> Any:
        return totals

    app.sink("totals", sqlite(tmp_path / "t.db", "totals"))
    with pytest.raises(UsageError, match=r"a sink 'totals\.sqlite' is there already"):
        app.sink("totals", sqlite(tmp_path / "t.db", "totals"))
    store = holdfast.open(tmp_path / "streams")
    sinks = embedded_sinks(app)
    sinks.start()
    wait_for(lambda: sinks.status()[0]["state"] == "WAITING", "it to wait for a stream that is not there yet")
    stream = store.create("totals", "n bigint", bucket="1s")
    send(stream, range(3), end=True)
    wait_for(lambda: sinks.ended, "the end")
    sinks.stop()
    assert not sinks.failures()
    assert sqlite3.connect(tmp_path / "t.db").execute("select n from totals order by n").fetchall() == [
        (0,),
        (1,),
        (2,),
    ]
    app.sink("nowhere", sqlite(tmp_path / "t.db", "x"))
    with pytest.raises(UsageError, match="must take a stream of application 'shop': totals, large; got 'nowhere'"):
        _ = app.sinks


def test_a_folder_of_parquet_holds_every_stable_row_once_whenever_its_writer_ends(tmp_path: Path) -> None:
    """T2, T3: stopped behind any file, or half-way through one."""
    script = Script(tmp_path / "streams", random.Random(5))
    folder = tmp_path / "out"

    def numbers() -> list[int]:
        return [n for path in sorted(folder.glob("*.parquet")) for n in pq.read_table(path).column("n").to_pylist()]

    for round in range(6):
        for _ in range(4):
            script.step()
        if round == 5:
            script.end()
        made = SinkRunner("p", STREAM, LocalOrigin(StreamStore(tmp_path / "streams"), STREAM), parquet(folder, every=0))
        made.start()
        wait_for(lambda: len(numbers()) == script.stable * EACH, "the rows")
        made.stop()
        (folder / f".part-{round}.tmp").write_bytes(b"half a file of one that was killed")
    assert numbers() == list(range(script.stable * EACH))
    assert not list(folder.glob(".part-*.tmp"))[1:]
    with pytest.raises(UsageError, match="must be a file of stream other"):
        parquet(folder).resume(Source("other", script.stream.definition.schema))
    first, second = parquet(folder), parquet(folder)
    first.resume(Source(STREAM, script.stream.definition.schema))
    with pytest.raises(UsageError, match="another sink writes"):
        second.resume(Source(STREAM, script.stream.definition.schema))
    first.close()


def test_a_function_gets_changes_and_goes_on_where_its_position_is(tmp_path: Path) -> None:
    stream = filled(tmp_path, 3)
    got: list[int] = []
    kept: list[str] = []

    def store(changes: Changes, position: str) -> None:
        got.extend(changes.stable.column("n").to_pylist())
        kept.append(position)

    made = SinkRunner("f", "s", LocalOrigin(StreamStore(tmp_path), "s"),
                      foreach(store, resume=lambda: kept[-1] if kept else None)).start()  # fmt: skip
    wait_for(lambda: got == [0, 1, 2], "the rows")
    made.stop()
    send(stream, range(3, 5), end=True)
    run(stream, foreach(store, resume=lambda: kept[-1]))
    assert got == [0, 1, 2, 3, 4]
    got.clear()
    for _ in range(2):
        run(stream, foreach(store, position=tmp_path / "place"))
    assert got == [0, 1, 2, 3, 4], "the second run had nothing to do"
    with pytest.raises(UsageError, match="got neither"):
        foreach(store)


class Receiver(BaseHTTPRequestHandler):
    bodies: list[dict[str, Any]]
    answers: list[int]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        status = type(self).answers.pop(0) if type(self).answers else 200
        if status == 200:
            type(self).bodies.append(body)
        self.send_response(status)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def receiver() -> Iterator[tuple[str, type[Receiver]]]:
    Receiver.bodies, Receiver.answers = [], []
    server = HTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/hook", Receiver
    server.shutdown()
    server.server_close()


def test_a_webhook_gets_changes_in_order_again_when_it_was_busy_and_never_when_it_refuses(
    tmp_path: Path, receiver: tuple[str, type[Receiver]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "_BACK_OFF_S_MIN", 0.02)
    url, seen = receiver
    stream = filled(tmp_path / "streams", 3)
    send(stream, range(3, 4), end=True)
    seen.answers = [503, 429]
    run(stream, webhook(url, position=tmp_path / "place"))
    assert [row["values"]["n"] for body in seen.bodies for row in body["rows"]] == [0, 1, 2, 3]
    assert seen.bodies[0]["rows"][1] == {"tuple_id": 2, "stime": "1970-01-01T00:00:01+00:00", "tentative": False,
                                         "values": {"n": 1}}  # fmt: skip
    run(stream, webhook(url, position=tmp_path / "place"))
    assert len({body["id"] for body in seen.bodies}) == len(seen.bodies), "nothing came twice"
    for answer in (404, 301):
        seen.answers = [answer]
        with pytest.raises(UsageError, match=f"answered with {answer}"):
            run(stream, webhook(url, position=tmp_path / "other"))
    with pytest.raises(UsageError, match="must not travel in the clear"):
        webhook("http://example.org/", headers={"Authorization": "Bearer x"})
