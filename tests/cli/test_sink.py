"""`holdfast sink`, and sinks that a host of a deployment runs: here one of sources, without Spark."""

from __future__ import annotations

import signal
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast.cli.running import Running
from holdfast.host.deployment import load_deployment
from holdfast.model.errors import UsageError
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
    with pytest.raises(UsageError, match="config_file, which has the settings of a client of Kafka"):
        sink_at("sqlite:///totals.db", "totals", config_file=tmp_path / "client.properties")
    for wrong in (
        "totals.db", "oracle://ann:secret@db/shop", "sqlite:totals.db", "duckdb:///", "delta:", "parquet:", "kafka://",
        "https://ann:secret@", "https://ann:secret/word@example.org/hook",
        "https://ann:secret@example.org:port/", "postgresql://ann:secret@[::1/shop",
    ):  # fmt: skip
        with pytest.raises(UsageError, match=r"address (of a sink )?must") as refused:
            sink_at(wrong, "totals")
        assert "secret" not in str(refused.value)


def test_a_command_line_that_names_no_sink_is_refused_as_such(cli: Cli) -> None:
    done = cli.run("sink", "totals", "parquet:t", "--tentative")
    assert done.returncode == 2
    assert "takes no tentative" in done.stderr
