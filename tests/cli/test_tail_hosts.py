"""`holdfast tail --deployment`: a stream read over the network from a real host, here one of sources without Spark."""

from __future__ import annotations

import json
import shutil
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast.cli.hosts import HostClient
from holdfast.cli.running import Running
from holdfast.host.deployment import load_deployment
from holdfast.model.errors import PeerError
from holdfast.protocol.dpc.states import StreamState
from tests.cli.conftest import Cli
from tests.host.conftest import TOKEN
from tests.host.test_client import House, Replica

APP = """
import holdfast

app = holdfast.App("netmon")

@app.node(inputs=["monitor1"])
def active(rows):
    return rows
"""


class Net:
    """The host `src` with the stream monitor1, and one host that is never up."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "netmon.yaml"
        (folder / "netmon.py").write_text(APP)
        with socket.socket() as one, socket.socket() as other:
            one.bind(("127.0.0.1", 0))
            other.bind(("127.0.0.1", 0))
            ports = one.getsockname()[1], other.getsockname()[1]
        self.file.write_text(
            "app: netmon.py\nview_token: view.token\nhosts:\n"
            f"  a: {{address: '127.0.0.1:{ports[0]}', root: a}}\n"
            f"  src: {{address: '127.0.0.1:{ports[1]}', root: src}}\n"
            "sources: {monitor1: src}\nnodes: {active: [a]}\n"
        )
        self.store = holdfast.open(folder / "src")
        self.stream = self.store.create("monitor1", "n bigint", bucket="50ms")


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Net]:
    net = Net(tmp_path_factory.mktemp("net"))
    cli = Cli(net.file.parent / "unused")
    cli.ok("up", net.file, "--host", "src")
    yield net
    running = Running.find(load_deployment(net.file).host("src"))
    if running is not None:
        running.send(signal.SIGTERM)
        assert running.ended(30_000_000)
        running.close()


def test_tail_reads_a_stream_through_its_hosts_and_follows_it(net: Net, cli: Cli) -> None:
    with net.stream.producer() as producer:
        for n in range(20):
            producer.send({"n": n})
        with cli.started("tail", "monitor1", "--deployment", net.file, "-f", "--json", "--from", "beginning") as tail:
            assert tail.stdout is not None
            assert [json.loads(tail.stdout.readline())["values"]["n"] for _ in range(20)] == list(range(20))
            producer.send({"n": 20})
            assert json.loads(tail.stdout.readline())["values"]["n"] == 20
    shown = cli.objects("tail", "monitor1", "-d", net.file, "-n", "3")
    assert [row["values"]["n"] for row in shown] == [18, 19, 20]


def test_with_the_viewers_token_alone_one_may_look_but_not_act(net: Net, inside: Cli, tmp_path: Path) -> None:
    for name in ("netmon.yaml", "netmon.py", "view.token"):
        shutil.copy2(net.file.parent / name, tmp_path / name)
    file = tmp_path / "netmon.yaml"
    assert [host["up"] for host in inside.objects("status", file)] == [False, True]
    inside.ok("tail", "monitor1", "-d", file, "--from", "live")
    assert "the token file" in inside.fails("down", file)
    client = HostClient(load_deployment(file).host("src"), load_deployment(file).looking_token())
    with pytest.raises(PeerError, match="this token may look but not act"):
        client.stop()


def test_tail_says_which_stream_nobody_has(net: Net, inside: Cli) -> None:
    assert "nobody could say where stream 'monitor7' ends" in inside.fails("tail", "monitor7", "-d", net.file)


def test_tail_says_what_tentative_tuples_from_hosts_are_worth(inside: Cli, tmp_path: Path) -> None:
    house = House()
    replica = Replica(house, tmp_path / "a").start()
    try:
        replica.origin.fill(1, 2)
        file = tmp_path / "net.yaml"
        (tmp_path / "net.py").write_text(APP.replace("active", "s"))
        (tmp_path / "holdfast.token").write_text(TOKEN)
        (tmp_path / "holdfast.token").chmod(0o600)
        address = replica.address.removeprefix("http://")
        file.write_text(
            f"app: net.py\nhosts:\n  a: {{address: '{address}', root: a}}\n"
            "  src: {address: '127.0.0.1:9', root: src}\nsources: {monitor1: src}\nnodes: {s: [a]}\n"
        )
        with Cli(tmp_path).started(
            "tail", "s", "-d", file, "--from", "beginning", "--tentative", "-f", "--json"
        ) as tail:
            assert tail.stdout is not None
            stable = [json.loads(tail.stdout.readline()) for _ in range(3)]
            replica.state = StreamState.UP_FAILURE
            replica.branch(2, 3, each=1)
            tentative = json.loads(tail.stdout.readline())
        assert [row["type"] for row in (*stable, tentative)] == ["INSERTION"] * 3 + ["TENTATIVE"]
        said = {"worth": 0.5, "least": 0.25, "missing": ["y"], "inputs": ["x"]}
        assert {name: tentative.get(name) for name in said} == said
        assert not said.keys() & stable[0].keys()
    finally:
        replica.stop()
        house.close()
