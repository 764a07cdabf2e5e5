"""`holdfast sink`, and sinks that a host of a deployment runs: here one of sources, without Spark."""

from __future__ import annotations

import os
import signal
import sqlite3
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.cli.running import Running
from holdfast.host.deployment import load_deployment
from holdfast.model.errors import UsageError
from holdfast.model.schema import parse_schema
from tests.cli.conftest import Cli
from tests.cli.test_tail_hosts import APP, Net
from tests.spark.processes import wait_for

SINKS = """
from pathlib import Path
from holdfast.sinks import sqlite

app.sink("monitor1", sqlite(Path(__file__).parent / "hosted.db", "monitor", tentative=True))
"""

DESCRIBED = """
  numbers: {host: src, stream: monitor1, to: "sqlite:///described.db", table: n, key: [n], tentative: true}
"""


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Net]:
    net = Net(tmp_path_factory.mktemp("net"))
    (net.file.parent / "netmon.py").write_text(APP + SINKS)
    net.file.write_text(net.file.read_text() + "sinks:\n  monitor1.sqlite: src\n" + DESCRIBED)
    Cli(net.file.parent / "unused").ok("up", net.file, "--host", "src")
    yield net
    running = Running.find(load_deployment(net.file).host("src"))
    if running is not None:
        running.send(signal.SIGTERM)
        assert running.ended(30_000_000)
        running.close()


def numbers(path: Path, table: str = "monitor1") -> list[int]:
    try:
        return [n for (n,) in sqlite3.connect(path).execute(f"select n from {table} order by holdfast_id")]
    except sqlite3.OperationalError:
        return []


def keyed(path: Path) -> list[int]:
    try:
        return [n for (n,) in sqlite3.connect(path).execute("select n from n where not tentative order by n")]
    except sqlite3.OperationalError:
        return []


@pytest.mark.slow
def test_a_host_runs_the_sinks_that_the_deployment_gives_it_and_status_shows_it(net: Net, cli: Cli) -> None:
    with net.stream.producer() as producer:
        for n in range(20):
            producer.send({"n": n})
        hosted = net.file.parent / "hosted.db"
        wait_for(lambda: numbers(hosted, "monitor") == list(range(20)), "the table of the host", 120)
        shown = cli.ok("status", net.file)
        assert f"sink monitor1.sqlite on src: RUNNING, monitor1 into table monitor of {hosted}, 20 rows" in shown
        described = net.file.parent / "described.db"
        wait_for(lambda: keyed(described) == list(range(20)), "the table that the file describes", 120)
        shown = cli.ok("status", net.file)
        assert f"sink numbers on src: RUNNING, monitor1 into table n of {described}, 20 rows" in shown
        with cli.started("sink", "monitor1", f"sqlite:///{net.file.parent}/own.db", "-d", net.file):
            wait_for(lambda: numbers(net.file.parent / "own.db") == list(range(20)), "a sink of its own", 120)
    wait_for(lambda: {"monitor1.sqlite", "numbers"} <= net.stream.acks().keys(), "retention to know of them", 60)


def test_a_sink_that_the_application_does_not_have_is_refused(net: Net, cli: Cli) -> None:
    from holdfast.host.catalog import Catalog
    from holdfast.host.sinks import sinks_on

    file = net.file.with_name("other.yaml")
    file.write_text(net.file.read_text().replace("monitor1.sqlite: src", "monitor2.sqlite: src"))
    deployment = load_deployment(file)
    app = deployment.load_app()
    with pytest.raises(UsageError, match=r"must be sinks of application 'netmon': monitor1\.sqlite; got monitor2"):
        sinks_on("src", app, deployment, Catalog(app.diagram(), deployment))
    assert "got monitor2.sqlite; correct the name" in cli.fails("up", file), "before anything is started"
    file.write_text(net.file.read_text().replace("monitor1.sqlite: src", "monitor1.sqlite: nobody"))
    with pytest.raises(UsageError, match="no host 'nobody'"):
        load_deployment(file)


def test_sink_keeps_a_table_and_goes_on_where_it_is(cli: Cli, tmp_path: Path) -> None:
    stream = holdfast.open(cli.root).create("totals", "n bigint", bucket="1s")
    with stream.producer(stime="stime") as producer:
        producer.send({"n": 1, "stime": 1})
        producer.close(end=True)
    target = f"sqlite:///{tmp_path}/t.db"
    assert "1 row taken" in cli.ok("sink", "totals", target, "--table", "monitor")
    assert "0 rows taken" in cli.ok("sink", "totals", target, "--table", "monitor")
    assert numbers(tmp_path / "t.db", "monitor") == [1]
    assert "another table" in cli.fails("sink", "totals", target, "--table", "monitor", "--tentative")
    assert "no stream 'total'" in cli.fails("sink", "total", target)


def test_each_target_has_its_address(tmp_path: Path) -> None:
    from holdfast.sinks.address import sink_at

    sink = sink_at("kafka://broker:9092", "totals", key=("shop",), tentative=True, config_file=tmp_path / "c")
    assert (sink.target, sink.tentative) == ("topic totals of Kafka at broker:9092", True)
    assert sink_at("iceberg:shop.totals", "totals", tentative=True).target == "Iceberg table shop.totals"
    assert sink_at("duckdb:///t.duckdb", "totals", tentative=True).target == "table totals of t.duckdb"
    hook = sink_at("https://example.org/hook", "totals", tentative=True)
    assert (hook.target, hook.tentative) == ("https://example.org/hook", True)
    assert sink_at(f"delta:{tmp_path}/t", "totals", add_columns=True).kind == "delta", "and may add columns"
    assert sink_at("delta:t", "totals", folder=tmp_path).target == f"Delta table {tmp_path}/t"
    assert sink_at("delta:s3://b/t", "totals", folder=tmp_path).target == "Delta table s3://b/t"
    for target in ("delta:t", "iceberg:a.t", "https://example.org/hook", "parquet:t"):
        with pytest.raises(UsageError, match="takes no key, since rows are appended"):
            sink_at(target, "totals", key=("shop",))
    with pytest.raises(UsageError, match="takes no tentative, since what it holds cannot be taken back"):
        sink_at("parquet:t", "totals", tentative=True)
    with pytest.raises(UsageError, match="no columns of its own") as refused:
        sink_at("https://ann:secret@example.org/hook", "totals", add_columns=True)
    assert "secret" not in str(refused.value)
    with pytest.raises(UsageError, match="takes no config_file, since it has no settings of a client; leave it out"):
        sink_at("sqlite:///totals.db", "totals", config_file=tmp_path / "client.properties")
    with pytest.raises(UsageError, match="takes no position, since it holds its position itself; leave it out"):
        sink_at("delta:t", "totals", position=tmp_path / "place")
    for gathering in ("duckdb:///t.duckdb", "delta:t", "iceberg:shop.totals", "parquet:t"):
        assert sink_at(gathering, "totals", every="30s").every_us == 30_000_000
    for at_once in ("sqlite:///t.db", "postgresql://db/shop", "kafka://broker:9092", "https://example.org/hook"):
        with pytest.raises(UsageError, match="takes no every, since it takes changes as they come; leave it out"):
            sink_at(at_once, "totals", every="30s")
    with pytest.raises(UsageError, match="soon"):
        sink_at("parquet:t", "totals", every="soon")
    for wrong in (
        "totals.db", "oracle://ann:secret@db/shop", "sqlite:totals.db", "duckdb:///", "delta:", "parquet:", "kafka://",
        "https://ann:secret@", "https://ann:secret/word@example.org/hook",
        "https://ann:secret@example.org:port/", "postgresql://ann:secret@[::1/shop",
    ):  # fmt: skip
        with pytest.raises(UsageError, match=r"address (of a sink )?must") as refused:
            sink_at(wrong, "totals")
        assert "secret" not in str(refused.value)


class Hook(BaseHTTPRequestHandler):
    server: Hooked

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.keys.append(self.headers["X-Key"])
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


class Hooked(HTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Hook)
        self.keys: list[str | None] = []


@pytest.fixture
def hook() -> Iterator[Hooked]:
    with Hooked() as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server
        server.shutdown()


def test_headers_and_position_of_a_webhook_come_from_files(cli: Cli, hook: Hooked, tmp_path: Path) -> None:
    """What `ps` shows has no secret, and two hooks of one stream have a position each."""
    stream = holdfast.open(cli.root).create("totals", "n bigint", bucket="1s")
    with stream.producer(stime="stime") as producer:
        producer.send({"n": 1, "stime": 1})
        producer.close(end=True)
    headers = tmp_path / "headers"
    url, words = f"http://127.0.0.1:{hook.server_port}/hook", ("--config-file", headers)
    headers.write_text("X-Key=a ${HOME} $${KEY}\n")
    for place, rows in (("one", 1), ("one", 0), ("other", 1)):
        done = cli.ok("sink", "totals", f"{url}/{place}", *words, "--position", tmp_path / place)
        assert f"{rows} row" in done
    assert hook.keys == [f"a {os.environ['HOME']} ${{KEY}}"] * 2


def test_settings_of_a_store_and_of_a_catalog_are_read_when_they_are_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.inputs.settings_file import read_settings
    from holdfast.sinks import Source
    from holdfast.sinks.address import sink_at

    seen: list[dict[str, str]] = []

    def resume(sink: Any, _: Source) -> None:
        seen.append(getattr(sink, "_storage", None) or sink._properties)

    monkeypatch.setattr("holdfast.sinks.delta_sink.DeltaSink.resume", resume)
    monkeypatch.setattr("holdfast.sinks.iceberg_sink.IcebergSink.resume", resume)
    file = tmp_path / "settings"
    for address in ("delta:s3://b/t", "iceberg:shop.totals"):
        sink = sink_at(address, "totals", every="1m", tentative=True, config_file=file)
        assert (sink.kind, sink.every_us, sink.tentative) == (address.partition(":")[0], 60_000_000, True)
        with pytest.raises(UsageError, match=r"settings must be in .*settings;"):
            sink.resume(Source("totals", parse_schema("n bigint")))
        file.write_text("type=sql\nuri=a=b\n")
        sink.resume(Source("totals", parse_schema("n bigint")))
        sink.close()
        file.unlink()
    assert seen == [{"type": "sql", "uri": "a=b"}, {"name": "default", "type": "sql", "uri": "a=b"}]
    file.write_text("# ours\nkey = a ${HOLDFAST_NO_SUCH_KEY}\n")
    with pytest.raises(UsageError, match=r"settings line 2 takes the variable HOLDFAST_NO_SUCH_KEY, which must be set"):
        read_settings(file)
    file.write_text("password: secret\n")
    with pytest.raises(UsageError, match=r"line 1 must be name=value; got a line without") as refused:
        read_settings(file)
    assert "secret" not in str(refused.value)


def test_a_command_line_that_names_no_sink_is_refused_as_such(cli: Cli) -> None:
    done = cli.run("sink", "totals", "parquet:t", "--tentative")
    assert done.returncode == 2
    assert "takes no tentative" in done.stderr
