"""The table of docs/metrics.md is what real hosts serve, read by Prometheus' own parser, through a failure."""

from __future__ import annotations

import asyncio
import re
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

import holdfast
import holdfast.host.controller
import holdfast.sinks as sinks
from holdfast.checkpoint.safekeeper import SafeKeeper
from holdfast.checkpoint.scheduler import scheduler
from holdfast.checkpoint.stores.memory import MemoryStore
from holdfast.engine import Recovery, Saves
from holdfast.host.measures import _recovery, _saves
from holdfast.metrics.families import FAMILIES
from holdfast.metrics.sheet import Sheet
from holdfast.model.errors import UsageError
from tests.load.pair import pair
from tests.load.plain_engine import PlainEngine, PlainQuery
from tests.metrics.served import COLUMNS, Scrape, flowing, scrape, until

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
REPLICA = {"node": "counts", "replica": "counts@here"}
#: Served where there are contracts, and operators of Holdfast's own; everything else is served by every application.
_ELSEWHERE = {
    *(name for name in FAMILIES if re.match("holdfast_(load|contract|partner)_", name)),
    *(name for name in FAMILIES if name.startswith("holdfast_replica_checkpoint_")),
    "holdfast_replica_recovery_estimate_seconds",
}
#: Of user-defined operators in an engine's workers.
_IN_WORKERS = {name for name in FAMILIES if name.startswith("holdfast_operator_")}
#: And after a recovery, or where a time for one was asked for.
_SELDOM = {"holdfast_replica_recovery_goal_seconds", "holdfast_replica_recovery_last_seconds"}


def test_the_page_has_every_metric_and_no_other() -> None:
    rows = re.findall(r"^\| `(holdfast_\w+)` \| (gauge|counter) \| (.*?) \| (.*) \|$", PAGE.read_text(), re.MULTILINE)
    assert [(name, kind, labels, text) for name, kind, labels, text in rows] == [
        (f.name, f.kind, ", ".join(f"`{label}`" for label in f.labels), f.help) for f in FAMILIES.values()
    ]


def test_a_recovery_is_measured_where_there_was_one_or_a_time_was_asked_for() -> None:
    sheets = [Sheet(), Sheet()]
    found = Recovery(10, 5, 4.0, 1, 2, 3, 400, 10.0, 2.5, None, None)
    for sheet, recovery in zip(sheets, (found, found._replace(last_recovery_s=1.5, recover_within_s=2.0)), strict=True):
        _recovery(sheet, recovery, REPLICA)
    plain, both = ({metric.name: metric.samples for metric in sheet.collect()} for sheet in sheets)
    assert both.keys() - plain.keys() == _SELDOM
    assert [sample.value for name in sorted(_SELDOM) for sample in both[name]] == [2.0, 1.5]
    assert [sample.value for sample in both["holdfast_replica_checkpoint_records"]] == [1, 2, 3]


def test_checkpoints_of_operators_in_workers_are_measured_each_by_its_name() -> None:
    sheet = Sheet()
    saves = (Saves("mean", 40, 2, 9, 1, 0.5, 1, 400, None), Saves("top", 7, 0, 0, 0, 0.0, 0, 30, 1.5))
    _saves(sheet, saves, REPLICA)
    found = {metric.name: metric.samples for metric in sheet.collect()}
    assert {name.removesuffix("_total") for name in _IN_WORKERS} == {name.removesuffix("_total") for name in found}
    said = {(s.labels["operator"], s.labels["outcome"]): s.value
            for s in found["holdfast_operator_checkpoints"]}  # fmt: skip
    assert said == {("mean", "durable"): 40, ("mean", "dropped"): 2, ("top", "durable"): 7, ("top", "dropped"): 0}
    assert [(s.labels["operator"], s.value) for s in found["holdfast_operator_restore_seconds"]] == [("top", 1.5)]


def check(scraped: Scrape) -> set[str]:
    """What was served is as the table says; the names of it."""
    served = {name for name in scraped.families if name.startswith("holdfast_")}
    for name in served:
        family, metric = FAMILIES[name], scraped.families[name]
        assert (metric.type, metric.documentation) == (family.kind, family.help)
        assert metric.samples
        for sample in metric.samples:
            assert set(sample.labels) == set(family.labels), sample
            assert sample.value >= 0 or name == "holdfast_partner_balance", sample
    return served


class Tap:
    """A source of the test's own, as `app.source` takes one."""

    def __init__(self) -> None:
        self.over = threading.Event()

    def open(self, stream: holdfast.Stream, home: Path) -> Tap:
        return self

    def text(self) -> str:
        return "a tap"

    def run(self) -> None:
        self.over.wait()

    def stop(self) -> None:
        self.over.set()

    def status(self) -> dict[str, Any]:
        return {"rows": 7, "late": 2, "dead": 1, "lag": 40, "lag_bytes": 5, "errors": 3}


@pytest.mark.slow
def test_a_failure_is_seen_in_the_numbers_as_it_comes_and_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = Saves("mean", 40, 2, 9, 1, 0.5, 1, 400, 1.5)
    monkeypatch.setattr(PlainQuery, "saves", lambda _: (told,))
    store = holdfast.open(tmp_path / "streams")
    (tmp_path / "archive").mkdir()
    left = store.create("left", COLUMNS, bucket="500ms", bound=holdfast.Bound(1 << 30),
                        archive=f"file://{tmp_path}/archive")  # fmt: skip
    right = store.create("right", COLUMNS, bucket="500ms")
    app = holdfast.App("seen", root=tmp_path / "streams")
    app.node(inputs=["left", "right"], name="counts", max_delay="2s")(lambda rows: rows)
    app.source("taps", Tap(), schema=COLUMNS)
    app.sink("counts", sinks.foreach(lambda changes, position: None, position=tmp_path / "position"), name="table")
    keeper = SafeKeeper(MemoryStore())
    keeper.save(b"key", 1, b"state")
    scheduler().add("operator", 50_000, lambda: None)
    with flowing(left, right), app.start(engine=PlainEngine(), metrics_port=0) as running:
        port = running.metrics_port
        assert port

        def state() -> list[str]:
            return scrape(port).states("replica_state", node="counts")

        until(lambda: state() == ["STABLE"] and scrape(port)("sink_rows_total"), "a quiet node")
        until(lambda: scrape(port)("replica_usual_wait_seconds") is not None, "the wait of quiet times")
        quiet = scrape(port)
        served = check(quiet)
        assert quiet("replica_max_delay_seconds") == 2
        assert quiet("query_seen_batches_total") * 0.001 == pytest.approx(quiet("query_seconds_total"))
        assert quiet.states("source_state", stream="taps") == ["RUNNING"]
        assert (quiet("source_lag_records"), quiet("source_lag_bytes"), quiet("source_errors_total")) == (40, 5, 3)
        assert quiet("stream_bound_bytes", stream="left") == 1 << 30
        assert quiet("store_checkpoints_total", store="MemoryStore", outcome="durable") >= 1
        assert quiet("checkpoint_deadlines_total", operator="operator", kept="met") is not None
        assert httpx.get(f"http://127.0.0.1:{port}/readyz").json() == {"ready": True, "not_ready": {}}
        refused = httpx.get(f"http://127.0.0.1:{port}/metrics", headers={"Host": "evil.example"})
        assert refused.status_code == 403

        running.fail("right")
        until(lambda: scrape(port)("replica_tentative_tuples"), "tentative tuples")
        failed = scrape(port)
        served |= check(failed)
        assert failed("input_failing", stream="right") == 1
        assert failed("host_links_cut") == 1
        assert failed("input_boundary_age_seconds", stream="right") > 1
        assert failed.states("replica_state", **REPLICA) == ["UP_FAILURE"]
        assert failed.states("fork_state", **REPLICA) == ["running"]
        assert failed("host_ready") == 1, "who gives tentative results is ready"

        running.heal("right")
        until(lambda: state() == ["STABLE"] and not scrape(port)("replica_tentative_tuples"), "the correction")
        healed = scrape(port)
        served |= check(healed)
        unserved = FAMILIES.keys() - served
        assert unserved == _ELSEWHERE | _SELDOM, "one that nobody ever serves is a promise on paper"
        assert healed("operator_checkpoints_total", operator="mean", outcome="dropped", **REPLICA) == 2
        assert running.status()["replicas"][0]["saves"] == [told._asdict()], "as `holdfast status` has it"
        assert healed("replica_corrections_total") >= 1
        assert healed("replica_corrected_tuples_total") == healed("replica_tentative_tuples_total") > 0
        assert healed("replica_results_total", kind="tentative", in_time="yes") is not None
        spent = {s.labels["state"]: s.value for s in healed.families["holdfast_replica_state_seconds_total"].samples}
        assert {"RECOVERING", "STABLE", "UP_FAILURE", "STABILIZATION"} <= spent.keys()
    keeper.close()
    scheduler().remove("operator")
    with pytest.raises(httpx.TransportError):
        httpx.get(f"http://127.0.0.1:{port}/metrics")


@pytest.mark.slow
def test_contracts_and_operators_are_measured_where_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holdfast.host.controller, "_RETAIN_BUCKETS", 1)

    async def run() -> None:
        async with pair(tmp_path, monkeypatch, kind="tallies", period="5s") as two:
            await two.results_come()
            stand = two.task.controller
            assert stand is not None
            await two.until(lambda: stand.relied_us is not None, "a look at what the operator relies on")
            home = await two.anna.scraped()
            for _ in range(300):
                if home("replica_checkpoint_windows"):
                    break
                await asyncio.sleep(0.1)  # Until a batch leaves windows open.
                home = await two.anna.scraped()
            served = check(home)
            assert home("replica_checkpoint_windows") >= 1
            assert home("replica_recovery_estimate_seconds") > 0
            assert home("replica_checkpoint_bytes") > 0
            assert home("replica_checkpoint_records", kind="gopen") is not None
            assert home("contract_leases", state="running", role="buyer") == 0
            await two.to_ben()
            await two.until(lambda: two.anna.manager.core.ledger.balance("ben") < 0, "a period that is paid")
            away, there = await two.anna.scraped(), await two.ben.scraped()
            served |= check(away) | check(there)
            assert served >= _ELSEWHERE
            assert away.states("replica_state", node=two.node) == ["AWAY"]
            assert away("contract_leases", state="running", role="buyer") == 1
            assert there("contract_leases", state="running", role="seller") == 1
            assert away("partner_balance", partner="ben") < 0 < there("partner_balance", partner="anna")
            assert away("load_movements_total", direction="out") == 1
            assert there("contract_unpaid_periods") <= 1
            assert len([s for s in there.families["holdfast_replica_state"].samples if s.value]) == 1, "the guest"

    asyncio.run(run())


def test_a_port_that_is_taken_is_said_by_the_start(tmp_path: Path) -> None:
    app = holdfast.App("none", root=tmp_path)
    with app.start(metrics_port=0) as first, pytest.raises(holdfast.StorageError, match="choose another port"):
        app.start(metrics_port=first.metrics_port)


def test_a_port_must_be_one(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="metrics_port must be a port"):
        holdfast.App("none", root=tmp_path).start(metrics_port=70_000)
