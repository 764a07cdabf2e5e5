"""The alert rules and the dashboard of monitoring/, by Prometheus' own tools and by a real Prometheus."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

import holdfast
from holdfast.metrics import families
from tests.checkpoint.servers import free_port
from tests.metrics.served import COLUMNS, flowing, until
from tests.spark.processes import REPOSITORY, environment

MONITORING = Path(__file__).parents[2] / "monitoring"
ALERTS = MONITORING / "alerts.yaml"
RULES = yaml.safe_load(ALERTS.read_text())["groups"][0]["rules"]
STATES = {*families.REPLICA_STATES, *families.FORK_STATES, *families.SINK_STATES, *families.LEASE_STATES}
TOKEN = "for-those-who-may-look"
OPERATOR = "for-those-who-may-act"


def panels() -> list[dict[str, Any]]:
    board = json.loads((MONITORING / "grafana.json").read_text())
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def expressions() -> list[str]:
    return [rule["expr"] for rule in RULES] + [target["expr"] for panel in panels() for target in panel["targets"]]


def tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed; install prometheus from the system's packages")
    return found


def run(*command: str, folder: Path) -> None:
    ran = subprocess.run([tool(command[0]), *command[1:]], cwd=folder, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize("expression", expressions())
def test_rules_and_panels_ask_for_what_is_served(expression: str) -> None:
    names = set(re.findall(r"holdfast_\w+", expression)) - {"holdfast"}
    assert names <= families.FAMILIES.keys()
    assert names or expression.startswith("up{")
    for name, selected in re.findall(r"(holdfast_\w+)\{(.*?)\}", expression):
        labels = set(re.findall(r"(\w+)\s*=~?", selected))
        assert labels <= {*families.FAMILIES[name].labels, "job", "instance"}, expression
    for states in re.findall(r'state=~?"([\w|]+)"', expression):
        assert set(states.split("|")) <= STATES


def test_every_alert_is_played_from_quiet_to_firing_and_back() -> None:
    played: dict[str, list[bool]] = {}
    for case in yaml.safe_load((MONITORING / "alerts_test.yaml").read_text())["tests"]:
        checks = case["promql_expr_test"]
        assert all(f'alertname="{case["name"]}"' in check["expr"] for check in checks)
        played[case["name"]] = [bool(check["exp_samples"]) for check in checks]
    assert played == {rule["alert"]: [False, True, False] for rule in RULES}
    for rule in RULES:
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert {"summary", "description"} == rule["annotations"].keys()


def test_promtool_accepts_rules_panels_and_configuration_and_the_rules_do_as_they_are_played(tmp_path: Path) -> None:
    run("promtool", "check", "rules", "alerts.yaml", folder=MONITORING)
    run("promtool", "test", "rules", "alerts_test.yaml", folder=MONITORING)
    for name in ("alerts.yaml", "prometheus.yaml"):
        shutil.copy(MONITORING / name, tmp_path)
    (tmp_path / "view.token").write_text(TOKEN)
    run("promtool", "check", "config", "prometheus.yaml", folder=tmp_path)
    shown = [re.sub(r"\$__rate_interval", "1m", target["expr"]) for panel in panels() for target in panel["targets"]]
    rules = [{"record": f"panel:{n}", "expr": expression} for n, expression in enumerate(shown)]
    (tmp_path / "panels.yaml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    run("promtool", "check", "rules", "--lint=none", "panels.yaml", folder=tmp_path)


# A real Prometheus --------------------------------------------------------------------------------------------------


class Deployment:
    """A host of its own process, without Spark, with two inputs that the test feeds."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        (folder / "app.py").write_text(
            "import holdfast\n"
            "app = holdfast.App('watched')\n"
            "app.node(inputs=['left', 'right'], name='counts', max_delay='3s')(lambda rows: rows)\n"
        )
        (folder / "d.yaml").write_text(
            f"app: app.py\nview_token: view.token\nhosts: {{a: {{address: '127.0.0.1:{self.port}', root: a/}}}}\n"
            "sources: {left: a, right: a}\nnodes: {counts: [a]}\n"
        )
        for name in ("holdfast.token", "view.token"):
            with os.fdopen(os.open(folder / name, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
                file.write(TOKEN if name == "view.token" else OPERATOR)
        store = holdfast.open(folder / "a")
        self.inputs = [store.create(name, COLUMNS, bucket="500ms") for name in ("left", "right")]

    @contextmanager
    def running(self) -> Iterator[None]:
        command = [sys.executable, "-m", "tests.load.plain_engine", str(self.folder / "d.yaml"), "a"]
        with (self.folder / "host.log").open("a") as log, ended(
            subprocess.Popen(command, cwd=REPOSITORY, env=environment(), stdout=log, stderr=log)
        ):  # fmt: skip
            yield

    def order(self, **faults: list[str]) -> None:
        headers = {"Authorization": f"Bearer {OPERATOR}"}
        answer = httpx.post(f"http://127.0.0.1:{self.port}/v1/faults", headers=headers, json=faults, timeout=20)
        assert answer.status_code == 200, answer.text


@contextmanager
def ended(process: subprocess.Popen[bytes]) -> Iterator[None]:
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class Prometheus:
    """A server that scrapes and judges every second. The rules are those of monitoring/, but wait for no minutes."""

    def __init__(self, folder: Path, target: int) -> None:
        self.port = free_port()
        rules, times = re.subn(r"for: \w+", "for: 1s", ALERTS.read_text())
        assert times > 10
        (folder / "alerts.yaml").write_text(rules)
        said = yaml.safe_load((MONITORING / "prometheus.yaml").read_text())
        said["global"] = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "500ms"}
        said["scrape_configs"][0]["static_configs"] = [{"targets": [f"127.0.0.1:{target}"]}]
        (folder / "prometheus.yaml").write_text(yaml.safe_dump(said))
        self._folder = folder

    @contextmanager
    def running(self) -> Iterator[None]:
        command = [tool("prometheus"), "--config.file=prometheus.yaml", "--storage.tsdb.path=data",
                   f"--web.listen-address=127.0.0.1:{self.port}", "--log.level=warn"]  # fmt: skip
        with (self._folder / "prometheus.log").open("w") as log, ended(
            subprocess.Popen(command, cwd=self._folder, stdout=log, stderr=log)
        ):  # fmt: skip
            yield

    def ask(self, path: str, **query: str) -> Any:
        """None while it starts."""
        try:
            answer = httpx.get(f"http://127.0.0.1:{self.port}/api/v1/{path}", params=query, timeout=20)
        except httpx.TransportError:
            return None
        return answer.json()["data"] if answer.status_code == 200 else None

    def holds(self, expression: str) -> bool:
        found = self.ask("query", query=expression)
        return bool(found and found["result"])

    def firing(self) -> set[str]:
        alerts = (self.ask("alerts") or {"alerts": []})["alerts"]
        return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}


@pytest.mark.slow
def test_a_real_prometheus_fires_the_right_alert_during_a_failure_and_clears_it(tmp_path: Path) -> None:
    tool("prometheus")
    deployment = Deployment(tmp_path)
    prometheus = Prometheus(tmp_path, deployment.port)
    # A busy machine may be late with results, and with a scrape; and where the rules do not wait for minutes, a few
    # seconds of what other tests write are carried on to a full disk.
    busy = {"HoldfastDelayUsed", "HoldfastResultsLate", "HoldfastHostDown", "HoldfastDiskFull"}
    with prometheus.running():
        with flowing(*deployment.inputs), deployment.running():
            stable = 'holdfast_replica_state{node="counts", state="STABLE"} == 1'
            until(lambda: prometheus.holds(stable) and not prometheus.firing() - busy, "a quiet deployment", 120)

            deployment.order(cut=["right>a"])
            until(lambda: "HoldfastTentative" in prometheus.firing(), "the alert")
            assert prometheus.firing() - busy == {"HoldfastTentative"}
            assert prometheus.holds('holdfast_input_failing{stream="right"} == 1')

            deployment.order(heal=["right>a"])
            until(lambda: "HoldfastTentative" not in prometheus.firing(), "the end of the alert")
            until(lambda: prometheus.holds(stable), "the correction")
            assert prometheus.holds("holdfast_replica_corrected_tuples_total > 0")
            assert prometheus.holds("holdfast_replica_tentative_tuples == 0")
        until(lambda: "HoldfastHostDown" in prometheus.firing(), "the alert about a host that has ended")


def test_the_dashboard_is_laid_out_as_grafana_expects() -> None:
    """Grafana's own model of dashboards (grafana-foundation-sdk 10.1) reads it; this keeps what that wants."""
    board = json.loads((MONITORING / "grafana.json").read_text())
    assert (board["uid"], board["schemaVersion"] >= 36) == ("holdfast", True)
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids)
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        squares = {(x, y) for x in range(place["x"], place["x"] + place["w"])
                   for y in range(place["y"], place["y"] + place["h"])}  # fmt: skip
        assert max(x for x, _ in squares) < 24, panel["title"]
        assert not squares & taken, f"{panel['title']} lies over another panel"
        taken |= squares
    for panel in panels():
        letters = [target["refId"] for target in panel["targets"]]
        assert len(set(letters)) == len(letters), panel["title"]
        assert {target["datasource"]["uid"] for target in [panel, *panel["targets"]]} == {"${datasource}"}
        assert panel["type"] in {"stat", "timeseries", "table", "gauge", "bargauge", "state-timeline"}, panel["title"]
        assert panel["title"]
