"""Who produces, who reads, and where: from a diagram and a deployment."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from holdfast.app import App, Diagram
from holdfast.host.catalog import Catalog, placed_sinks
from holdfast.host.deployment import Deployment, load_deployment
from holdfast.host.reload import _later, _Read
from holdfast.model.errors import UsageError
from holdfast.protocol.dpc.node import NodeCore
from holdfast.protocol.dpc.plan import Full, InputPlan, OutputPlan, Policy, Resume, Stabilise
from holdfast.protocol.dpc.signals import Tick
from holdfast.sinks import foreach

SECOND = 1_000_000


def diagram(replicas: int = 2, second: int = 2) -> Diagram:
    """monitor1, monitor2 → active → alarms."""
    app = App("netmon")

    @app.node(inputs=["monitor1", "monitor2"], replicas=replicas, blocking=["monitor2"], max_delay="2s",
              during_failure="delay", during_stabilisation="suspend", stabilise="stagger", convergent="10s",
              capacity="1m", full="keep_last", retain="acknowledged", keepalive="50ms")  # fmt: skip
    def active(rows: Any) -> Any:
        return rows

    @app.node(inputs=["active"], replicas=second)
    def alarms(rows: Any) -> Any:
        return rows

    return app.diagram()


def deploy(tmp_path: Path, hosts: str, rest: str) -> Deployment:
    lines = "".join(
        f'  {name}: {{address: "127.0.0.1:{7401 + n}", root: {name}}}\n' for n, name in enumerate(hosts.split())
    )
    path = tmp_path / "d.yaml"
    path.write_text(f"app: x.py\nhosts:\n{lines}{rest}\n")
    return load_deployment(path)


SOURCES = "sources: {monitor1: src, monitor2: src}"
PAIRS = f"{SOURCES}\nnodes: {{active: [b, a], alarms: [c, d]}}"


def test_replica_sets_are_those_of_the_file(tmp_path: Path) -> None:
    catalog = Catalog(diagram(), deploy(tmp_path, "a b c d src", PAIRS))
    assert catalog.replicas_of("active") == ("active@b", "active@a")
    assert catalog.producers("active") == ("active@b", "active@a")
    assert catalog.producers("monitor1") == ("monitor1@src",)
    assert catalog.readers("monitor1") == ("active@b", "active@a")
    assert catalog.readers("active") == ("alarms@c", "alarms@d")
    assert catalog.readers("alarms") == ()
    assert catalog.reading_hosts("active") == ("c", "d")
    assert catalog.host_of("monitor2@src") == "src"
    assert catalog.sources_on("src") == ("monitor1", "monitor2")
    assert [node.name for node in catalog.nodes_on("a")] == ["active"]


def test_only_a_source_that_lives_here_and_nowhere_else_is_read_in_place(tmp_path: Path) -> None:
    rest = "sources: {monitor1: a, monitor2: {hosts: [a, b]}}\nnodes: {active: [a, b], alarms: [a]}"
    catalog = Catalog(diagram(second=1), deploy(tmp_path, "a b", rest))
    found = {(s, host) for s in catalog.diagram.streams for host in catalog.hosts if catalog.reads_in_place(s, host)}
    assert found == {("monitor1", "a")}


def test_nodes_without_a_line_spread_over_hosts_that_hold_no_source(tmp_path: Path) -> None:
    catalog = Catalog(diagram(), deploy(tmp_path, "src a b c d", SOURCES))
    assert catalog.placement.replica_sets == {"active": ("a", "b"), "alarms": ("c", "d")}
    everywhere = Catalog(diagram(), deploy(tmp_path, "src a", SOURCES))
    assert everywhere.placement.replica_sets == {"active": ("src", "a"), "alarms": ("src", "a")}


def test_spreading_takes_the_named_replicas_into_account(tmp_path: Path) -> None:
    catalog = Catalog(diagram(second=1), deploy(tmp_path, "a b c src", f"{SOURCES}\nnodes: {{active: [a, b]}}"))
    assert catalog.placement.replica_sets["alarms"] == ("c",)


def test_a_plan_holds_everything_the_node_was_given(tmp_path: Path) -> None:
    catalog = Catalog(diagram(), deploy(tmp_path, "a b c d src", PAIRS))
    plan = catalog.plan_of("active", "b", SECOND)
    assert (plan.replica, plan.peers) == ("active@b", ("active@a",))
    assert plan.inputs == (
        InputPlan("monitor1", ("monitor1@src",), False),
        InputPlan("monitor2", ("monitor2@src",), True),
    )
    assert plan.output == OutputPlan(
        "active", ("monitor1", "monitor2"), ("alarms@c", "alarms@d"), 60 * SECOND, Full.KEEP_LAST
    )
    assert (plan.bucket_us, plan.delay_us, plan.keepalive_us) == (SECOND, 2 * SECOND, 50_000)
    assert (plan.during_failure, plan.during_stabilisation) == (Policy.DELAY, Policy.SUSPEND)
    assert (plan.stabilise, plan.window_us) == (Stabilise.STAGGER, 10 * SECOND)


def test_readers_spread_over_the_producers_and_each_tries_all(tmp_path: Path) -> None:
    rest = f"{SOURCES}\nnodes: {{active: [a, b], alarms: [c, d, e, f]}}"
    catalog = Catalog(diagram(), deploy(tmp_path, "a b c d e f src", rest))
    orders = [catalog.plan_of("alarms", host, SECOND).inputs[0].producers for host in "cdef"]
    assert Counter(order[0] for order in orders) == {"active@a": 2, "active@b": 2}
    assert all(sorted(order) == ["active@a", "active@b"] for order in orders)


def test_a_producer_on_the_same_host_comes_first(tmp_path: Path) -> None:
    rest = f"{SOURCES}\nnodes: {{active: [a, b, c], alarms: [d, b, c, e]}}"
    catalog = Catalog(diagram(), deploy(tmp_path, "a b c d e src", rest))
    first = {host: catalog.plan_of("alarms", host, SECOND).inputs[0].producers[0] for host in "dbce"}
    assert (first["b"], first["c"]) == ("active@b", "active@c")
    assert first["d"] != first["e"]


def test_the_same_file_gives_the_same_catalog_everywhere(tmp_path: Path) -> None:
    one, other = (Catalog(diagram(), deploy(tmp_path, "a b c src", SOURCES)) for _ in range(2))
    assert one.placement == other.placement
    for node in ("active", "alarms"):
        for host in one.placement.replica_sets[node]:
            assert one.plan_of(node, host, SECOND) == other.plan_of(node, host, SECOND)


def test_an_embedded_catalog_has_everything_here() -> None:
    catalog = Catalog(diagram())
    assert catalog.hosts == ("here",)
    assert catalog.producers("monitor1") == ("monitor1@here",)
    plan = catalog.plan_of("alarms", "here", SECOND)
    assert (plan.replica, plan.peers) == ("alarms@here", ())
    assert plan.inputs == (InputPlan("active", ("active@here",)),)
    assert catalog.plan_of("active", "here", SECOND).output.readers == ("alarms@here",)


def test_a_core_runs_on_every_plan(tmp_path: Path) -> None:
    catalog = Catalog(diagram(), deploy(tmp_path, "a b src", SOURCES))
    for host in catalog.hosts:
        for node in catalog.nodes_on(host):
            core = NodeCore(catalog.plan_of(node.name, host, SECOND), Resume(0, 0, 0), 0)
            asked = [send.to for send in core.handle(Tick(), 0).send]
            assert set(asked) <= {*catalog.replicas_of("active"), *catalog.replicas_of("alarms"), "monitor1@src",
                                  "monitor2@src"}  # fmt: skip
            assert asked


REFUSED = [
    ("a b src", "sources: {monitor1: src}", "source 'monitor2', which node 'active' reads, must have a home"),
    ("a b src", "sources: {monitor1: src, monitor2: src, monitor9: src}", "no source 'monitor9'"),
    ("a b src", "sources: {monitor1: src, monitor2: src, active: a}", "'active' is produced by node 'active'"),
    ("a b src", f"{SOURCES}\nnodes: {{activ: [a]}}", "no node 'activ'"),
    ("src", SOURCES, "asks for 2 replicas, each on a host of its own"),
]


@pytest.mark.parametrize(("hosts", "rest", "why"), REFUSED)
def test_a_deployment_that_does_not_fit_the_diagram_is_refused(tmp_path: Path, hosts: str, rest: str, why: str) -> None:
    with pytest.raises(UsageError, match=re.escape(why)) as caught:
        Catalog(diagram(), deploy(tmp_path, hosts, rest))
    assert "d.yaml" in str(caught.value)


def test_questions_about_strangers_are_answered_with_what_there_is(tmp_path: Path) -> None:
    catalog = Catalog(diagram(), deploy(tmp_path, "a b src", SOURCES))
    with pytest.raises(UsageError, match="there are: monitor1, monitor2, active, alarms"):
        catalog.producers("monitor3")
    with pytest.raises(UsageError, match="there are: monitor1@src"):
        catalog.host_of("active@src")
    with pytest.raises(UsageError, match="no replica on 'src'; it has active@a, active@b"):
        catalog.plan_of("active", "src", SECOND)


def test_a_sink_runs_where_the_file_says_or_else_where_its_stream_is_first_produced(tmp_path: Path) -> None:
    app = App("shop")
    app.node(inputs=["orders"], name="totals", replicas=2)(lambda rows: rows)
    for name in ("here", "there"):
        app.sink("totals", foreach(print, resume=lambda: None), name=name)
    rest = "sources: {orders: src}\nnodes: {totals: [b, a]}\nsinks: {there: src}"
    catalog = Catalog(app.diagram(), deploy(tmp_path, "src a b", rest))
    assert {name: host for name, (_, host) in placed_sinks(app, catalog).items()} == {"here": "b", "there": "src"}
    strange = Catalog(app.diagram(), deploy(tmp_path, "src a b", rest.replace("there", "elsewhere")))
    with pytest.raises(UsageError, match="must be sinks of application 'shop': here, there; got elsewhere"):
        placed_sinks(app, strange)


def test_a_sink_may_be_described_in_the_file_alone_and_counts_before_the_applications(tmp_path: Path) -> None:
    app = App("shop")
    app.node(inputs=["orders"], name="totals", replicas=2)(lambda rows: rows)
    app.sink("totals", foreach(print, resume=lambda: None), name="here")
    rest = (
        "sources: {orders: src}\nnodes: {totals: [b, a]}\nsinks:\n  totals: {to: 'sqlite:///t.db', tentative: true}\n"
        "  raw: {host: a, stream: orders, to: 'postgresql://ann:secret@db/shop', table: sales.raw, key: [id]}\n"
        "  here: {stream: totals, to: 'https://example.org/hook', start: live}\n"
    )
    catalog = Catalog(app.diagram(), deploy(tmp_path, "src a b", rest))
    placed = placed_sinks(app, catalog)
    assert {name: (spec.stream, spec.start, host) for name, (spec, host) in placed.items()} == {
        "here": ("totals", "live", "b"), "totals": ("totals", "beginning", "b"), "raw": ("orders", "beginning", "a"),
    }  # fmt: skip
    assert {name: spec.sink.target for name, (spec, _) in placed.items()} == {
        "here": "https://example.org/hook", "totals": f"table totals of {tmp_path / 't.db'}",
        "raw": "table sales.raw of db/shop",
    }  # fmt: skip
    assert [name for name, (spec, _) in placed.items() if spec.sink.tentative] == ["totals"]
    assert placed["here"].spec.sink._path == tmp_path / "b" / ".holdfast" / "here.position"  # type: ignore[attr-defined]
    assert "secret" not in repr(placed) + repr(catalog.deployment)


def test_what_the_file_says_of_a_sink_takes_effect_when_its_host_next_starts(tmp_path: Path) -> None:
    app = App("shop")
    app.node(inputs=["orders"], name="totals", replicas=2)(lambda rows: rows)

    def read(said: str) -> _Read:
        rest = f"sources: {{orders: src}}\nnodes: {{totals: [b, a]}}\nsinks: {{totals: {{{said}}}}}"
        deployment = deploy(tmp_path, "src a b", rest)
        return _Read(deployment, app, Catalog(app.diagram(), deployment))

    before, same, other = (read(f"to: 'sqlite:///{path}'") for path in ("t.db", "t.db", "o.db"))
    assert _later("b", before, same) == []
    assert _later("b", before, other) == ["sinks"]
    assert _later("a", before, other) == []


def test_a_sink_of_the_file_gathers_as_it_says_and_its_settings_may_be_elsewhere(tmp_path: Path) -> None:
    """Whoever only looks at the deployment has no file with passwords."""
    rest = (
        "sources: {totals: a}\nsinks:\n  past: {stream: totals, to: 'delta:t', every: 30s, config_file: none}\n"
        "  hook: {stream: totals, to: 'https://example.org/hook', config_file: none, position: place}\n"
    )
    app = App("shop")
    app.node(inputs=["totals"], name="sums")(lambda rows: rows)
    placed = placed_sinks(app, Catalog(app.diagram(), deploy(tmp_path, "a b", rest)))
    assert {name: (spec.sink.target, spec.sink.every_us) for name, (spec, _) in placed.items()} == {
        "past": (f"Delta table {tmp_path}/t", 30 * SECOND), "hook": ("https://example.org/hook", 0),
    }  # fmt: skip


def test_a_sink_of_the_file_that_takes_no_stream_of_the_application_is_refused(tmp_path: Path) -> None:
    rest = f"{SOURCES}\nsinks: {{totals: {{to: 'sqlite:///t.db'}}}}"
    with pytest.raises(UsageError, match=r"sink 'totals' in .*d\.yaml must take a stream of .*; got 'totals'"):
        Catalog(diagram(), deploy(tmp_path, "a b src", rest))


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("{host: a}", "missing required field `to`"),
        ("{to: 'sqlite:///t.db', colour: red}", "unknown field `colour`"),
        ("{to: 'sqlite:///t.db', host: nobody}", "no host 'nobody'"),
        ("{to: 'ann:secret@db'}", "sink 't' in .* must begin with sqlite"),
        ("{to: 'parquet:t', tentative: true}", "takes no tentative, since"),
        ("{to: 'delta:t', key: [n]}", "takes no key, since"),
        ("{to: 'sqlite:///t.db', tentative: maybe}", "maybe"),
        ("{to: 'sqlite:///t.db', start: soon}", "sink 't' in .*soon"),
        ("{to: 'sqlite:///t.db', position: p}", "takes no position, since it holds its position itself"),
        ("{to: 'sqlite:///t.db', every: 3s}", "takes no every, since"),
        ("{to: 'parquet:t', every: soon}", "sink 't' in .*soon"),
    ],
)
def test_a_sink_that_the_file_describes_wrongly_is_refused_in_a_sentence(tmp_path: Path, said: str, why: str) -> None:
    with pytest.raises(UsageError, match=why) as refused:
        deploy(tmp_path, "a b src", f"{SOURCES}\nsinks: {{t: {said}}}")
    assert "secret" not in str(refused.value)
