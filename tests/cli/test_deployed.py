"""Hosts are started, watched, broken, healed and stopped, as processes, over HTTP; only their inside is a stand-in."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from holdfast.cli.hosts import HostClient, HostStatus
from holdfast.cli.main import app
from holdfast.cli.running import Running, claimed, holder, log_file, pid_file
from holdfast.clock import monotonic_us
from holdfast.host.deployment import Deployment, load_deployment
from tests.cli.conftest import InsideCli
from tests.cli.stub_host import SITE

VERBS = ["up", "status", "fail", "heal", "down", "host"]
APP = """
import holdfast

app = holdfast.App("netmon")

@app.node(inputs=["monitor1", "monitor2"], replicas=2)
def active(rows):
    return rows
"""


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for sock in sockets:
        sock.bind(("127.0.0.1", 0))
    ports = [sock.getsockname()[1] for sock in sockets]
    for sock in sockets:
        sock.close()
    return ports


class Net(InsideCli):
    """A deployment of the hosts a, b (replicas of `active`) and src (the monitors), and the command.

    The verbs run in this process, to save time; the hosts that they start are processes.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "unused")
        self.folder, self.file = folder, folder / "netmon.yaml"
        (folder / "netmon.py").write_text(APP)
        a, b, src = free_ports(3)
        self.file.write_text(
            f"app: netmon.py\ntoken: secret.token\nhosts:\n  a: {{address: '127.0.0.1:{a}', root: a}}\n"
            f"  b: {{address: '127.0.0.1:{b}', root: b}}\n  src: {{address: '127.0.0.1:{src}', root: src}}\n"
            "sources: {monitor1: src, monitor2: src}\n"
        )
        site = folder / "site"
        site.mkdir()
        (site / "sitecustomize.py").write_text(SITE)
        self.env["PYTHONPATH"] = os.pathsep.join([str(site), self.env["PYTHONPATH"]])

    def run(self, *args: object, stdin: bytes = b"") -> subprocess.CompletedProcess[str]:
        path = list(sys.path)
        done = CliRunner().invoke(app, list(map(str, args)), input=stdin, env=self.env, prog_name="holdfast")
        sys.path[:] = path  # Loading an application changes it.
        assert done.exception is None or isinstance(done.exception, SystemExit), done
        return subprocess.CompletedProcess(args, done.exit_code, done.stdout, done.stderr)

    @property
    def deployment(self) -> Deployment:
        return load_deployment(self.file)

    def told(self, verb: str, *args: object) -> str:
        return self.ok(verb, self.file, *args)

    def said(self, verb: str, *args: object) -> list[dict[str, Any]]:
        return self.objects(verb, self.file, *args)

    def refuses(self, verb: str, *args: object) -> str:
        """The sentence that a failure ends with."""
        done = self.run(verb, self.file, *args)
        assert done.returncode == 1, done
        last = done.stderr.splitlines()[-1]
        assert last.startswith("holdfast: "), done
        return last

    def pid(self, name: str) -> int | None:
        return holder(self.deployment.host(name))

    def flaw(self, name: str, what: str) -> None:
        root = self.deployment.host(name).root
        root.mkdir(exist_ok=True)
        (root / what).touch()

    def cuts(self) -> dict[str, list[str]]:
        return {host["host"]: host["cuts"] for host in self.said("status") if host["up"]}


@contextlib.contextmanager
def deployed(folder: Path) -> Iterator[Net]:
    """A deployment whose processes are gone afterwards, however the test went."""
    net = Net(folder)
    try:
        yield net
    finally:
        for spec in net.deployment.hosts:
            running = Running.find(spec)
            if running is not None:
                running.send(signal.SIGKILL)
                running.close()


@pytest.fixture
def net(tmp_path: Path) -> Iterator[Net]:
    with deployed(tmp_path) as net:
        yield net


@pytest.fixture(scope="module")
def _shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Net]:
    with deployed(tmp_path_factory.mktemp("up")) as net:
        net.told("up")
        yield net


@pytest.fixture
def up(_shared: Net) -> Iterator[Net]:
    """All hosts up, for tests that put back what they change."""
    env = dict(_shared.env)
    yield _shared
    _shared.env = env
    assert _shared.told("heal")
    assert None not in [_shared.pid(name) for name in ("a", "b", "src")]


@pytest.mark.parametrize("verb", VERBS)
def test_help_teaches_with_an_example(inside: InsideCli, verb: str) -> None:
    assert f"\n  holdfast {verb} " in inside.ok(verb, "--help") + " "
    assert verb in inside.ok("--help")


# --- up and down


def test_hosts_come_up_answer_and_go_down(net: Net) -> None:
    started = net.told("up")
    for name in ("a", "b", "src"):
        assert f"{name}: up at http://127.0.0.1:" in started
        assert str(log_file(net.deployment.host(name))) in started
        pid = net.pid(name)
        assert pid is not None
        assert pid_file(net.deployment.host(name)).read_text() == f"{pid}\n"
        assert os.getsid(pid) == pid
    assert stat.S_IMODE(net.deployment.token_file.stat().st_mode) == 0o600
    assert net.told("down").splitlines() == ["a: stopped", "b: stopped", "src: stopped"]
    assert [net.pid(name) for name in ("a", "b", "src")] == [None, None, None]
    assert [host["how"] for host in net.said("down")] == ["absent"] * 3


def test_up_waits_until_replicas_answer_and_says_what_they_do_meanwhile(net: Net) -> None:
    net.flaw("a", "slow")
    with net.started("up", net.file, "--host", "a") as child:
        assert child.stderr is not None
        assert child.stdout is not None
        while "active@a: the stub is slow" not in child.stderr.readline():
            pass
        (net.deployment.host("a").root / "slow").unlink()
        assert child.stdout.readline().startswith("a: up at ")
        assert child.stdout.readline() == "  active@a: STABLE\n"
        assert child.wait(30) == 0


def test_up_does_not_wait_for_replicas_if_told_so(net: Net) -> None:
    net.flaw("a", "slow")
    assert "active@a: WAITING, because the stub is slow" in net.told("up", "--host", "a", "--no-wait")


def test_up_does_not_wait_for_inputs_that_are_not_there(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.cli.launch._INPUTS_US", 300_000)
    net.flaw("a", "without-inputs")
    assert "  active@a: RECOVERING, because the stub is without-inputs" in net.told("up", "--host", "a")


@pytest.mark.parametrize("flaw", ["failed", "slow"])
def test_a_replica_that_does_not_start_is_named_with_the_log_of_its_host(
    net: Net, flaw: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed_us, ask = 0, HostClient.status

    def status(client: HostClient) -> HostStatus:
        nonlocal passed_us
        said = ask(client)
        passed_us += 60_000_000  # An answer takes a minute, by the clock of `up`.
        return said

    monkeypatch.setattr(HostClient, "status", status)
    monkeypatch.setattr("holdfast.cli.launch.monotonic_us", lambda: monotonic_us() + passed_us)
    net.flaw("a", flaw)
    said = net.refuses("up", "--host", "a", "--wait", "5m")
    assert f"replica active@a does not run: the stub is {flaw}; see {log_file(net.deployment.host('a'))}" in said
    assert ("goes on trying" in said) == (flaw == "slow"), said
    assert ("then `holdfast down` and `holdfast up`" in said) == (flaw == "failed"), said
    assert net.pid("a") is not None
    assert f"active@a ({'FAILED' if flaw == 'failed' else 'WAITING'}): the stub is {flaw}" in net.told("status")


def test_up_starts_only_the_named_hosts_and_says_so_to_programs(net: Net) -> None:
    (fact,) = net.said("up", "--host", "b")
    assert (fact["host"], fact["pid"]) == ("b", net.pid("b"))
    assert net.pid("a") is None
    assert net.told("down", "--host", "b") == "b: stopped\n"


def test_up_has_a_host_that_is_up_read_the_file_again_and_starts_the_others(net: Net) -> None:
    net.told("up", "--host", "a")
    pid = net.pid("a")
    said = net.told("up")
    assert "a: is up, and has read the file again\n" in said
    assert "b: up at " in said
    assert net.pid("a") == pid
    assert net.pid("b") is not None
    assert f"host 'a' is up already (pid {pid})" in net.refuses("host", "a")


def test_up_refuses_an_address_that_is_taken(net: Net) -> None:
    spec = net.deployment.host("b")
    with socket.create_server((spec.ip, spec.port)):
        assert f"cannot listen on {spec.address}" in net.refuses("up")
    assert net.pid("a") is None


def test_a_host_that_does_not_start_takes_the_others_with_it(net: Net) -> None:
    net.flaw("b", "broken")
    said = net.refuses("up")
    assert "host 'b' did not start: the stub was told to break; the others were stopped again" in said
    assert str(log_file(net.deployment.host("b"))) in said
    assert [net.pid(name) for name in ("a", "b", "src")] == [None, None, None]


def test_a_host_that_never_answers_is_given_up_and_not_left_behind(net: Net) -> None:
    net.flaw("a", "mute")
    said = net.refuses("up", "--host", "a", "--wait", "3s")
    assert "host 'a' did not answer within 3 s; nothing was left running" in said
    assert net.pid("a") is None


def test_an_interrupted_start_leaves_nothing_behind(net: Net) -> None:
    net.flaw("b", "mute")
    with net.started("up", net.file, "--json", "--no-wait") as child:
        assert child.stdout is not None
        assert json.loads(child.stdout.readline())["host"] in ("a", "src")
        child.send_signal(signal.SIGINT)
        child.wait(30)
    assert child.returncode == 130
    assert [net.pid(name) for name in ("a", "b", "src")] == [None, None, None]


def test_a_deployment_that_does_not_fit_is_refused_before_anything_starts(net: Net) -> None:
    net.file.write_text(net.file.read_text() + "nodes: {activ: [a]}\n")
    assert "no node 'activ'" in net.refuses("up")
    assert not net.deployment.token_file.exists()
    assert "no host 'z'" in net.refuses("up", "--host", "z")


def test_a_host_of_another_machine_is_not_started_here(net: Net) -> None:
    text = net.file.read_text()
    away = "  far: {address: '192.0.2.1:7401', root: far, tls: {cert: c, key: k}}\n"  # TEST-NET-1 is nobody's.
    net.file.write_text(text.replace("sources:", away + "sources:"))
    assert "is not of this machine" in net.refuses("up", "--host", "far")
    assert not (net.folder / "far").exists()


def test_missing_tls_files_are_named(net: Net) -> None:
    text = net.file.read_text()
    net.file.write_text(text.replace("root: a}", "root: a, tls: {cert: c.pem, key: k.pem}}"))
    assert "needs the TLS file" in net.refuses("up", "--host", "a")


def test_down_insists_with_signals_and_says_which(net: Net) -> None:
    net.flaw("a", "deaf")
    net.told("up", "--host", "a")
    assert net.told("down", "--host", "a", "--wait", "0s").startswith("a: ended by SIGTERM")
    assert net.pid("a") is None


def test_down_kills_what_does_not_heed(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.cli.ending._TERM_US", 500_000)
    net.flaw("b", "deaf")
    net.flaw("b", "stubborn")
    net.told("up", "--host", "b")
    assert net.said("down", "--host", "b", "--wait", "0s") == [{"host": "b", "how": "killed"}]
    assert net.pid("b") is None


def test_down_never_signals_a_process_that_merely_got_the_number(net: Net) -> None:
    """A stale pid file, as a crash leaves it, names a stranger by now."""
    net.deployment.make_token()
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as stranger:
        spec = net.deployment.host("a")
        spec.own.mkdir(parents=True)
        pid_file(spec).write_text(f"{stranger.pid}\n")
        assert net.told("down", "--host", "a", "--wait", "0s") == "a: was not up\n"
        assert stranger.poll() is None
        stranger.kill()


def test_a_killed_host_can_be_started_again_at_once(net: Net) -> None:
    net.told("up", "--host", "a")
    running = Running.find(net.deployment.host("a"))
    assert running is not None
    running.send(signal.SIGKILL)
    assert running.ended(10_000_000)
    running.close()
    net.told("up", "--host", "a")
    assert net.pid("a") not in (None, running.pid)


def test_a_claim_is_seen_by_others_and_ends_with_its_block(net: Net) -> None:
    spec = net.deployment.host("a")
    code = (
        "import sys; from holdfast.cli.running import holder; from holdfast.host.deployment import load_deployment;"
        "print(holder(load_deployment(sys.argv[1]).host('a')))"
    )

    def seen() -> str:
        done = subprocess.run([sys.executable, "-c", code, net.file], capture_output=True, env=net.env, check=True)
        return done.stdout.decode().strip()

    assert seen() == "None"
    with claimed(spec):
        assert seen() == str(os.getpid())
    assert seen() == "None"


# --- status


def test_status_shows_replicas(up: Net) -> None:
    text = up.told("status")
    rows = {line.split()[0]: line for line in text.splitlines() if line.startswith(("a ", "b ", "src "))}
    assert rows["a"].split()[1:3] == ["active@a", "STABLE"]
    assert "2026-01-01T00:00:00" in rows["a"]
    assert "monitor1: monitor1@src" in rows["a"]
    assert rows["b"].split()[1:3] == ["active@b", "UP_FAILURE"]
    assert "active UP_FAILURE +branch" in rows["b"]
    assert "running" in rows["b"]
    assert "none" not in rows["a"].lower(), "no fork is no word"
    assert "active of active@a keeps: for 1h; 5 tuples to 2025-12-31T23:00:00 removed" in text
    assert "active of active@b keeps" not in text, "a policy that has done nothing is no news"
    assert "monitor2: monitor2@src (failing)" in text
    assert rows["src"].split() == ["src", "up"]


def test_status_speaks_to_programs(up: Net) -> None:
    a, b, src = up.said("status")
    assert (a["up"], a["replicas"][0]["state"], a["replicas"][0]["inputs"][0]["stream"]) == (True, "STABLE", "monitor1")
    assert (b["host"], b["replicas"][0]["fork"]) == ("b", {"state": "RUNNING", "id": 3})
    assert (src["up"], src["replicas"]) == (True, [])


def test_status_marks_what_is_down(net: Net) -> None:
    net.deployment.make_token()
    text = net.told("status")
    assert [line.split() for line in text.splitlines()[1:4]] == [["a", "down"], ["b", "down"], ["src", "down"]]
    assert "host 'src' at http://127.0.0.1:" in text
    a, *_ = net.said("status")
    assert (a["host"], a["up"]) == ("a", False)
    assert "does not answer" in a["error"]


def test_status_is_coloured_for_people_only(up: Net) -> None:
    assert "\x1b[" not in up.told("status")
    up.env["FORCE_COLOR"] = "1"
    text = up.told("status")
    assert "\x1b[32mSTABLE" in text
    assert "\x1b[33mUP_FAILURE" in text


def test_status_watch_goes_on_until_the_signal(up: Net) -> None:
    with up.started("status", up.file, "--watch", "--json") as child:
        assert child.stdout is not None
        assert [json.loads(child.stdout.readline())["host"] for _ in range(6)] == ["a", "b", "src"] * 2


def test_status_draws_the_diagram_without_asking_anybody(net: Net) -> None:
    text = net.told("status", "--diagram")
    assert "monitor1 ─┬─► active ×2 (within 3s) ─► active" in text
    assert "active: active@a, active@b" in text
    (fact,) = net.said("status", "--diagram")
    assert fact["producers"]["monitor2"] == ["monitor2@src"]


def test_an_answer_that_is_no_host_s_is_named_and_hides_nobody(up: Net) -> None:
    up.flaw("b", "nonsense")
    hosts = {host["host"]: host for host in up.said("status")}
    (up.deployment.host("b").root / "nonsense").unlink()
    assert hosts["a"]["up"]
    assert "not as a host does" in hosts["b"]["error"]


def test_a_wrong_token_is_refused_by_name(net: Net) -> None:
    net.told("up", "--host", "a")
    net.deployment.token_file.unlink()
    assert "is not there" in net.refuses("status")
    net.deployment.make_token()
    assert "does not accept the token" in net.said("status")[0]["error"]
    assert "does not accept the token" in net.refuses("fail", "a-b")
    assert net.said("down", "--host", "a") == [{"host": "a", "how": "terminated"}]


# --- fail and heal


def test_links_between_hosts_and_to_streams_are_cut_and_healed(up: Net) -> None:
    assert up.told("fail", "b-a") == "cut a-b (told a and b)\n"
    assert up.cuts() == {"a": ["a-b"], "b": ["a-b"], "src": []}
    up.told("fail", "monitor1>a")
    assert up.told("fail", "monitor2").splitlines() == ["cut monitor2>a (told a)", "cut monitor2>b (told b)"]
    assert up.cuts() == {"a": ["a-b", "monitor1>a", "monitor2>a"], "b": ["a-b", "monitor2>b"], "src": []}
    assert "cut on purpose: a-b, monitor1>a, monitor2>a, monitor2>b" in up.told("status")
    assert up.said("heal", "monitor2", "a-b")[0] == {"link": "monitor2>a", "done": "heal", "told": ["a"]}
    assert up.cuts() == {"a": ["monitor1>a"], "b": [], "src": []}
    assert up.told("heal") == "healed monitor1>a (told a)\n"
    assert up.told("heal") == "nothing is cut\n"


def test_a_link_that_is_not_there_is_refused_before_anybody_is_told(up: Net) -> None:
    for link, why in (
        ("a-z", "must be HOST-HOST, STREAM>HOST or STREAM"),
        ("a-a", "must be HOST-HOST"),
        ("monitor9", "streams are monitor1, monitor2, active"),
        ("monitor1>src", "nobody on 'src' reads 'monitor1'; it is read on a, b"),
        ("monitor1>z", "hosts are a, b, src"),
        ("active", "no host reads 'active'"),
    ):
        assert why in up.refuses("fail", "a-b", link)
    assert up.cuts() == {"a": [], "b": [], "src": []}


def test_a_host_that_cannot_be_told_is_named_and_the_other_is_told(net: Net) -> None:
    net.told("up", "--host", "a")
    done = net.run("fail", net.file, "a-b")
    assert (done.returncode, done.stdout) == (1, "cut a-b (told a)\n")
    assert "host 'b'" in done.stderr
    assert "does not answer" in done.stderr
    assert net.cuts()["a"] == ["a-b"]


# --- the client


def test_the_token_is_never_sent_to_a_proxy(up: Net) -> None:
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        proxy.settimeout(0)
        url = f"http://127.0.0.1:{proxy.getsockname()[1]}"
        up.env |= dict.fromkeys(("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"), url)
        up.env |= {"NO_PROXY": "", "no_proxy": ""}
        assert all(host["up"] for host in up.said("status"))
        with pytest.raises(BlockingIOError):
            proxy.accept()


def test_a_host_with_tls_is_known_by_its_authority(net: Net) -> None:
    made = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=a", "-addext",
         "subjectAltName=IP:127.0.0.1", "-keyout", net.folder / "k.pem", "-out", net.folder / "c.pem"],
        capture_output=True, check=False,
    )  # fmt: skip
    if made.returncode:
        pytest.skip("openssl cannot make a certificate here")
    text = net.file.read_text()
    net.file.write_text(text.replace("root: a}", "root: a, tls: {cert: c.pem, key: k.pem, ca: c.pem}}"))
    assert "https://127.0.0.1:" in net.told("up", "--host", "a")
    assert net.said("status")[0]["up"]
    trusting_others = text.replace("root: a}", "root: a, tls: {cert: c.pem, key: k.pem}}")
    net.file.write_text(trusting_others)
    assert "CERTIFICATE_VERIFY_FAILED" in net.said("status")[0]["error"]


def test_an_address_that_another_deployment_uses_is_noticed(up: Net) -> None:
    spec = up.deployment.host("a")
    (up.folder / "other").mkdir()
    other = up.folder / "other" / "other.yaml"
    other.write_text(f"app: x.py\ntoken: ../secret.token\nhosts: {{z: {{address: '{spec.address}', root: z}}}}\n")
    (fact,) = up.objects("status", other)
    assert "says that it is 'a'" in fact["error"]
    assert HostClient(spec, up.deployment.token()).status().host == "a"
