"""The examples of docs/connect.md, run as they stand over a stream with a failure in it."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from holdfast import App
from holdfast.clock import now_us
from holdfast.host.embedded import Running
from tests.docs.test_consuming import Totals, totals
from tests.docs.test_docs import HOME, blocks
from tests.inputs.conftest import until
from tests.inputs.kafka_server import kafka_broker
from tests.operators.test_database import postgres
from tests.postgres_server import postgres_server
from tests.sinks.test_runner import Receiver, receiver

__all__ = ["postgres", "receiver", "totals"]

(KAFKA, CHANGES, CLICKS, APP, RUN, SQLITE, POSTGRES, DUCKDB, DELTA, ICEBERG, TOPIC, PARQUET, FUNCTION, WEBHOOK,
 SPARK) = blocks(HOME / "docs" / "connect.md", "python")  # fmt: skip


@pytest.fixture
def ended(totals: Totals) -> Totals:
    totals.stable(0, 6, end=True)
    return totals


def rows(running: Running, stream: str) -> list[dict[str, object]]:
    """What readers see of it by now."""
    if stream not in running.streams.names():
        return []
    with running.streams.open(stream).subscribe() as subscriber:
        return [row.values for row in subscriber.rows(timeout=0)]


@pytest.mark.slow
def test_records_of_a_topic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from confluent_kafka import Producer

    monkeypatch.chdir(tmp_path)
    names: dict[str, App] = {}
    with kafka_broker() as broker:
        exec(KAFKA.replace("broker:9092", broker.address), names)
        broker.create_topic("orders")
        client = Producer({"bootstrap.servers": broker.address, "log_level": 0})
        now_ms = now_us() // 1000
        for customer, amount, at_ms in ((b"ann", 12.5, now_ms - 20_000), (b"bob", 3, now_ms)):
            client.produce("orders", json.dumps({"amount": amount}), customer, timestamp=at_ms)
        assert client.flush(60) == 0
        with names["app"].start() as running:
            until(lambda: rows(running, "orders"), 120)  # Bob's wait until their bucket is over.
            assert rows(running, "orders")[0] == {"customer": "ann", "amount": 12.5}


@pytest.mark.slow
def test_files_that_spark_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, App] = {}
    # Spark takes a relative path from where its JVM was started, which may be for a test before this one.
    exec(CLICKS.replace('"clicks/"', repr(f"{tmp_path}/clicks/")), names)
    (tmp_path / "clicks").mkdir()
    lines = [
        json.dumps({"page": page, "ts": f"2026-01-01T00:00:{second:02}Z"}) for page, second in (("/a", 1), ("/b", 9))
    ]
    (tmp_path / "clicks" / "one.json").write_text("\n".join(lines))
    with names["app"].start(master="local[1]") as running:
        until(lambda: rows(running, "clicks"), 120)
        assert [row["page"] for row in rows(running, "clicks")] == ["/a"]


@pytest.mark.slow
def test_changes_of_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import psycopg

    monkeypatch.chdir(tmp_path)
    with postgres_server(wal_level="logical", fsync="off") as server:
        with psycopg.connect(server.url, autocommit=True) as database:
            database.execute("create table orders (id int primary key, amount int)")
            database.execute("insert into orders values (1, 10)")
        names: dict[str, App] = {}
        exec(CHANGES.replace("postgresql://ann@db.example/shop", server.url), names)
        with names["app"].start() as running:
            until(lambda: running.status()["sources"][0].get("settled"), 120)
        (row,) = running.streams.open("orders").subscribe().rows(timeout=0)
        assert row.values == {"change": "snapshot", "id": 1, "amount": 10, "old": None}


def test_the_application_has_its_sink(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(APP, names)
    assert [spec.name for spec in names["app"].sinks] == ["active_sources.sqlite"]  # type: ignore[attr-defined]


def test_a_program_keeps_a_table(ended: Totals) -> None:
    exec(RUN, {})
    exec(RUN, {})
    assert sqlite3.connect("totals.db").execute("select count(*), sum(total) from totals").fetchall() == [(6, 15)]


def test_sqlite_by_key(ended: Totals, capsys: pytest.CaptureFixture[str]) -> None:
    exec(SQLITE, {})
    assert sorted(capsys.readouterr().out.split()) == ["4", "5", "north", "south"]


@pytest.mark.slow
def test_postgresql(ended: Totals, postgres: str) -> None:
    import psycopg

    with psycopg.connect(postgres, autocommit=True) as database:
        database.execute("create schema connect")
        url = f"{postgres}?options=-csearch_path%3Dconnect"
        exec(POSTGRES.replace("postgresql://ann@127.0.0.1/shop", url), {})
        assert database.execute("select count(*), sum(total) from connect.totals").fetchone() == (6, 15)


def test_duckdb(ended: Totals, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("duckdb", reason="needs the extra duckdb")
    exec(DUCKDB, {})
    assert capsys.readouterr().out == "[(2,)]\n"


def test_delta(ended: Totals, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("deltalake", reason="needs the extra delta")
    exec(DELTA, {})
    assert capsys.readouterr().out == "6\n"


def test_iceberg(ended: Totals, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pyiceberg", reason="needs the extra iceberg")
    exec(ICEBERG, {})
    assert capsys.readouterr().out == "6\n"


@pytest.mark.slow
def test_a_topic(ended: Totals) -> None:
    from tests.sinks.test_kafka_sink import View

    with kafka_broker() as broker:
        exec(TOPIC.replace("broker:9092", broker.address), {})
        view = View(broker, "shop-totals")
        assert sorted((row["shop"], row["total"]) for row in view.look()) == [("north", 5), ("south", 4)]
        view.close()


def test_parquet(ended: Totals, capsys: pytest.CaptureFixture[str]) -> None:
    exec(PARQUET, {})
    assert capsys.readouterr().out == "6\n"


def test_a_function(ended: Totals) -> None:
    names: dict[str, object] = {}
    exec(FUNCTION, names)
    assert names["sums"] == {"south": 6, "north": 9}


def test_a_webhook(ended: Totals, receiver: tuple[str, type[Receiver]]) -> None:
    url, seen = receiver
    exec(WEBHOOK.replace("http://127.0.0.1:8080/hook", url), {})
    assert [row["values"]["total"] for body in seen.bodies for row in body["rows"]] == list(range(6))
