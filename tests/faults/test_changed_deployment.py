"""The file of a deployment that runs is edited: `holdfast up` brings hosts, replicas and nodes in and out; all others
run on, and readers get news all the time (D9)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

import holdfast
from holdfast.cli.main import app
from holdfast.host.deployment import load_deployment
from tests.faults.deployment import Hosts, free_ports, wait_us
from tests.faults.test_rebuild import APP, begun, counted, ended, gets_news, results

AGAIN = """
@app.node(inputs=["counts"], name="again", max_delay="20s", keepalive="500ms")
def again(c):
    window = F.window("stime", "1 second")
    return c.groupBy(window, "source").agg(F.count("*").alias("n"), F.sum("bytes").alias("bytes"))
"""


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    deployed = Hosts(tmp_path, APP, "1s", ["flows"], {"counts": ["a", "b"]}, plain=True, segment_bytes=1 << 16,
                     retention=holdfast.Retention(acknowledged=True))  # fmt: skip
    try:
        yield deployed
    finally:
        deployed.end()


def edit(hosts: Hosts, *changes: tuple[str, str]) -> None:
    text = hosts.file.read_text()
    for before, after in changes:
        assert text.count(before) == 1, before
        text = text.replace(before, after)
    hosts.file.write_text(text)
    hosts.deployment = load_deployment(hosts.file)


def up(hosts: Hosts, *named: str) -> str:
    return told("up", hosts.file, *(word for name in named for word in ("--host", name)))


def told(*words: object) -> str:
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    return done.output


def refused(*words: object) -> str:
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == 1, done.output
    return done.output


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_hosts_replicas_and_nodes_come_and_go_while_the_others_run_on(hosts: Hosts) -> None:
    client = begun(hosts)
    pids = {host: hosts.pid(host) for host in ("src", "b")}
    line = next(line for line in hosts.file.read_text().splitlines() if line.startswith("  a:"))
    (port,) = free_ports(1)
    edit(hosts, (line, f'  c: {{address: "127.0.0.1:{port}", root: c/}}'), ("[a, b]", "[b, c]"))
    said = up(hosts, "src", "b")
    assert "a: is not in the file any more; stopped" in said
    hosts.died("a")
    gets_news(client)
    hosts.start("c")
    hosts.wait_until("STABLE", "c")
    assert "counts@c: rebuilt from counts@b" in hosts.log("c").read_text()

    assert told("drain", hosts.file, "b") == "counts@b: stopped\n"
    assert states(hosts, "b") == {"counts@b": "DRAINED"}
    gets_news(client_of_all := hosts.listen_to_all("counts", "c"))
    up(hosts, "src", "b", "c")
    hosts.wait_until("STABLE", "b")

    (hosts.folder / "app.py").write_text(APP + AGAIN)
    edit(hosts, ("nodes:", "nodes:\n  again: [b, c]"))
    said = up(hosts, "src", "b", "c")
    assert "b: is up, and has read the file again: new again@b" in said
    assert wait_us(lambda: "again" in json.loads(hosts.client_of("b").call("GET", "/v1/console"))["nodes"], 30), "seen"
    assert wait_us(lambda: states(hosts, "b")["again@b"] == states(hosts, "c")["again@c"] == "STABLE", 60)
    edit(hosts, ("counts: [b, c]", "counts: [c]"))
    assert "b: is up, and has read the file again: stopped counts@b" in up(hosts, "src", "b", "c")
    assert states(hosts, "b") == {"again@b": "STABLE"}, "it reads from the other host now"
    gets_news_of_the_second(hosts)
    assert "counts@c must have a twin that serves" in refused("drain", hosts.file, "c")
    assert states(hosts, "c") == {"counts@c": "STABLE", "again@c": "STABLE"}
    assert pids == {host: hosts.pid(host) for host in pids}

    hosts.feeds["flows"].end()
    assert wait_us(lambda: ended(hosts, "c") and ended(hosts, "c", "again") and ended(hosts, "b", "again"), 120)
    assert results(hosts, "c") == counted(hosts), "nothing lost, nothing twice"
    assert results(hosts, "b", "again") == results(hosts, "c", "again")
    assert client_of_all.recording.tentative == 0


def states(hosts: Hosts, host: str) -> dict[str, str]:
    return {replica.replica: replica.state for replica in hosts.client_of(host).status().replicas}


def gets_news_of_the_second(hosts: Hosts) -> None:
    before = len(results(hosts, "b", "again"))
    assert wait_us(lambda: len(results(hosts, "b", "again")) > before, 60), "its input is not read"


@pytest.mark.slow
def test_what_a_running_host_cannot_take_over_is_refused_and_changes_nothing(hosts: Hosts) -> None:
    hosts.start()
    hosts.feeds["flows"].start()
    hosts.wait_until("STABLE", "a", "b")
    (hosts.folder / "app.py").write_text(APP.replace('max_delay="20s"', 'max_delay="10s"'))
    assert "node 'counts' runs and must stay as it was declared" in refused("up", hosts.file)
    (hosts.folder / "app.py").write_text(APP)
    edit(hosts, ("root: b/", "root: elsewhere/"))
    assert "the root of host 'b', which runs, must stay as it is" in refused("up", hosts.file, "--host", "a")
    assert states(hosts, "a") == {"counts@a": "STABLE"}
