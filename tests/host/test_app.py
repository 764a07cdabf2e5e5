"""What a user may write down about nodes, and what is refused with a sentence."""

from __future__ import annotations

import contextlib
import itertools
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import FrozenInstanceError
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.app import App
from holdfast.model.errors import HoldfastError, UsageError
from holdfast.protocol.dpc.plan import Full, Policy, Stabilise
from tests.host.scripted_engine import ScriptedEngine


def merged(rows: Any) -> Any:
    return rows


def chain(*links: tuple[str, str, str]) -> App:
    """An application from (input, node, output)."""
    app = App("chain")
    for stream, node, output in links:
        app.node(inputs=[stream], name=node, output=output)(merged)
    return app


def test_describing_an_application_needs_no_spark() -> None:
    code = "import sys, holdfast, holdfast.host.catalog; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


def test_a_decorated_function_stays_what_it_was() -> None:
    app = holdfast.App("netmon", root="streams/")

    @app.node(inputs=["monitor1", "monitor2"], output="active", max_delay="3s", replicas=2)
    def active_sources(connections: list[int]) -> list[int]:
        return [c + 1 for c in connections]

    assert active_sources([1]) == [2]
    (spec,) = app.diagram().nodes
    assert spec.function is active_sources
    assert (spec.name, spec.inputs, spec.output) == ("active_sources", ("monitor1", "monitor2"), "active")
    assert (spec.max_delay_us, spec.replicas, spec.separate) == (3_000_000, 2, False)
    with pytest.raises(FrozenInstanceError):
        spec.replicas = 3  # type: ignore[misc]


def test_every_option_arrives_in_microseconds_and_enumerations() -> None:
    app = App("all")
    app.node(
        inputs=("a", "b"), name="n", output="o", max_delay=timedelta(seconds=5), blocking=["b"],
        during_failure="delay", during_stabilisation="suspend", stabilise="stagger", convergent="10s", capacity="1m",
        full="keep_last", retain="acknowledged", begin="1970-01-01T00:01", bucket="500ms", stime="at",
        boundaries="exact", keepalive="50ms", output_schema="x bigint",
    )(lambda a, b: a)  # fmt: skip
    spec = app.diagram().node("n")
    assert (spec.max_delay_us, spec.convergent_us, spec.capacity_us) == (5_000_000, 10_000_000, 60_000_000)
    assert spec.begin_us == 60_000_000
    assert (spec.bucket_us, spec.keepalive_us, spec.blocking, spec.separate) == (500_000, 50_000, ("b",), True)
    assert (spec.during_failure, spec.during_stabilisation) == (Policy.DELAY, Policy.SUSPEND)
    assert (spec.stabilise, spec.full) == (Stabilise.STAGGER, Full.KEEP_LAST)
    assert (spec.stime, spec.boundaries, spec.output_mode) == ("at", "exact", "append")
    assert spec.output_schema is not None
    assert spec.output_schema.names == ["x"]


def test_defaults_are_those_of_the_protocol() -> None:
    app = App("plain")
    app.node(inputs="a", name="n")(merged)
    spec = app.diagram().node("n")
    assert (spec.inputs, spec.output, spec.replicas, spec.max_delay_us) == (("a",), "n", 1, 3_000_000)
    assert (spec.keepalive_us, spec.bucket_us, spec.capacity_us, spec.convergent_us) == (100_000, None, None, None)
    assert (spec.during_failure, spec.stabilise, spec.full) == (Policy.PROCESS, Stabilise.FORK, Full.BLOCK)


def _none() -> None: ...
def _two(a: Any, b: Any) -> None: ...
def _three(a: Any, b: Any, c: Any) -> None: ...
def _star(*a: Any) -> None: ...
def _named(*, a: Any) -> None: ...
def _swapped(t: Any, s: Any) -> None: ...


REFUSED: list[tuple[dict[str, Any], Callable[..., Any], str]] = [
    ({"inputs": []}, merged, "at least one input"),
    ({"inputs": ["s", "s"]}, merged, "must differ"),
    ({"inputs": ["S"]}, merged, "got 'S'"),
    ({"inputs": ["../s"]}, merged, "got '../s'"),
    ({"inputs": ["s"], "output": "Out"}, merged, "got 'Out'"),
    ({"inputs": ["s"], "name": "no@"}, merged, "the name of a node"),
    ({"inputs": ["s"], "name": None}, lambda rows: rows, "give it one with name="),
    ({"inputs": ["s"], "output": "s"}, merged, "n → n"),
    ({"inputs": ["n"], "output": "o"}, merged, "named like a source"),
    ({"inputs": ["s", "t"]}, _none, "got none"),
    ({"inputs": ["s"]}, _two, "one parameter, the merged inputs; got"),
    ({"inputs": ["s", "t"]}, _three, "or 2, one for each of s, t; got"),
    ({"inputs": ["s", "t"]}, _star, "one parameter"),
    ({"inputs": ["s", "t"]}, _named, "one parameter"),
    ({"inputs": ["s", "t"]}, _swapped, "in the order of its inputs s, t; got t, s"),
    ({"inputs": ["s"], "blocking": ["t"]}, merged, "must be among its inputs s; got t"),
    ({"inputs": ["s"], "replicas": 0}, merged, "1 to 16 replicas; got 0"),
    ({"inputs": ["s"], "replicas": "2"}, merged, "got '2'"),
    ({"inputs": ["s"], "max_delay": "soon"}, merged, "a duration must look like"),
    ({"inputs": ["s"], "max_delay": "300ms"}, merged, "must exceed 3 keepalives"),
    ({"inputs": ["s"], "bucket": "10us"}, merged, "1ms or more"),
    ({"inputs": ["s"], "capacity": "0s"}, merged, "longer than nothing"),
    ({"inputs": ["s"], "full": "keep_last"}, merged, "without convergent="),
    ({"inputs": ["s"], "full": "keep_last", "convergent": "9s", "capacity": "1m"}, merged,
     "with retain='all' and a capacity; give capacity= and retain='acknowledged'"),
    ({"inputs": ["s"], "full": "keep_last", "convergent": "9s", "retain": "acknowledged"}, merged, "no capacity"),
    ({"inputs": ["s"], "full": "drop"}, merged, "must be one of 'block', 'keep_last'; got 'drop'"),
    ({"inputs": ["s"], "during_failure": "panic"}, merged, "during_failure must be one of 'process', 'delay'"),
    ({"inputs": ["s"], "stabilise": "roll"}, merged, "stabilise must be one of 'fork', 'stagger'"),
    ({"inputs": ["s"], "boundaries": "never"}, merged, "boundaries must be one of"),
    ({"inputs": ["s"], "output_mode": "complete"}, merged, "output_mode must be one of 'append'"),
    ({"inputs": ["s"], "output_schema": "x nonsense"}, merged, "x"),
    ({"inputs": 7}, merged, "a list of stream names"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "function", "why"), REFUSED)
def test_a_node_that_cannot_be_is_refused_and_changes_nothing(
    options: dict[str, Any], function: Callable[..., Any], why: str
) -> None:
    app = App("a")
    with pytest.raises(HoldfastError, match=re.escape(why)) as caught:
        app.node(**{"name": "n", **options})(function)
    assert "\n" not in str(caught.value)
    assert app.diagram().nodes == ()
    app.node(inputs=["s"], name="n")(merged)


def test_an_application_needs_a_name_that_can_be_a_folder() -> None:
    with pytest.raises(UsageError, match="the name of an application"):
        App("Net Mon")


def test_a_stream_has_one_producer_and_a_node_one_name() -> None:
    app = chain(("a", "one", "b"))
    with pytest.raises(UsageError, match="got 'b' from nodes 'one' and 'two'"):
        app.node(inputs=["c"], name="two", output="b")(merged)
    with pytest.raises(UsageError, match="got 'one' twice"):
        app.node(inputs=["c"], name="one", output="d")(merged)
    assert [node.name for node in app.diagram().nodes] == ["one"]


def test_a_loop_is_named() -> None:
    app = chain(("c", "one", "a"), ("a", "two", "b"))
    with pytest.raises(UsageError) as caught:
        app.node(inputs=["b"], name="three", output="c")(merged)
    found = re.search(r"got (\w+) → (\w+) → (\w+) → (\w+);", str(caught.value))
    assert found is not None
    loop = found.groups()
    assert loop[0] == loop[3]
    follows = {"one": "two", "two": "three", "three": "one"}
    assert all(follows[before] == after for before, after in itertools.pairwise(loop))


def test_nodes_stand_in_the_order_in_which_tuples_pass() -> None:
    app = chain(("b", "late", "c"), ("x", "side", "y"), ("a", "early", "b"), ("c", "last", "d"))
    diagram = app.diagram()
    order = [node.name for node in diagram.nodes]
    assert order.index("early") < order.index("late") < order.index("last")
    assert order == [node.name for node in app.diagram().nodes]
    assert diagram.sources == ("x", "a")
    assert diagram.sinks == ("y", "d")
    assert diagram.producer_of("a") is None
    assert [node.name for node in diagram.readers_of("b")] == ["late"]


def test_the_pictures_show_every_stream_and_node() -> None:
    app = App("netmon")
    app.node(inputs=["m1", "m2", "m3"], name="union", replicas=2)(merged)
    app.node(inputs=["union", "list.of-names"], name="join")(lambda a, b: a)
    text = app.diagram().to_text()
    assert text.splitlines() == [
        "m1 ─┐",
        "m2 ─┼─► union ×2 (within 3s) ─► union",
        "m3 ─┘",
        "union         ─┬─► join ×1 (within 3s) ─► join",
        "list.of-names ─┘",
    ]
    mermaid = app.diagram().to_mermaid().splitlines()
    assert mermaid[0] == "flowchart LR"
    labels = dict(re.findall(r'(\w+)[(\[]+"([^"]+)"', "\n".join(mermaid)))
    arrows = {(labels[a], labels[b]) for a, b in re.findall(r"(\w+) --> (\w+)", "\n".join(mermaid))}
    assert arrows == {
        ("m1", "union ×2"), ("m2", "union ×2"), ("m3", "union ×2"), ("union ×2", "union"),
        ("union", "join ×1"), ("list.of-names", "join ×1"), ("join ×1", "join"),
    }  # fmt: skip


def test_a_function_with_several_outputs_is_a_node_for_each() -> None:
    app = App("parts")

    @app.node(inputs=["orders"], outputs=["large", "small"], max_delay="2s")
    def sorted_orders(orders: int) -> dict[str, int]:
        return {"large": orders * 100, "small": orders}

    nodes = app.diagram().nodes
    assert [(n.name, n.output, n.max_delay_us) for n in nodes] == [
        ("sorted_orders.large", "large", 2_000_000), ("sorted_orders.small", "small", 2_000_000)
    ]  # fmt: skip
    assert [n.function(3) for n in nodes] == [300, 3]
    assert sorted_orders(1) == {"large": 100, "small": 1}
    app.node(inputs=["orders"], outputs=["one", "other"], name="odd")(lambda rows: {"one": rows})
    with pytest.raises(UsageError, match="a dict with a DataFrame for each of one, other; got one with one"):
        app.diagram().node("odd.one").function(1)
    with pytest.raises(UsageError, match="output= or outputs="):
        app.node(inputs=["orders"], output="x", outputs=["y"])


def test_each_of_several_outputs_may_have_its_time_in_a_column_of_its_own() -> None:
    def times(stime: Any, **options: Any) -> dict[str, str | None]:
        app = App("parts")
        app.node(inputs=["orders"], outputs=["counts", "large", "rest"], stime=stime, **options)(by_size)
        return {n.output: n.stime for n in app.diagram().nodes}

    def by_size(orders: int) -> dict[str, int]:
        return {}

    assert times({"counts": "window.end", "large": "at"}) == {"counts": "window.end", "large": "at", "rest": None}
    assert times("at") == {"counts": "at", "large": "at", "rest": "at"}
    with pytest.raises(UsageError, match=r"stime of node 'by_size' must name its outputs counts, .*; got larg; corr"):
        times({"larg": "at"})
    with pytest.raises(UsageError, match=r"must be a column, or a column for each output such as {'counts': 'window"):
        times({"large": ["at"]})
    single = App("single")
    single.node(inputs=["orders"], output="out", stime={"out": "at"})(by_size)
    assert single.diagram().nodes[0].stime == "at"


@pytest.mark.parametrize("persist", ["on_demand", "never"])
def test_a_node_over_a_stream_that_is_not_always_kept_is_refused_where_it_is_started(
    tmp_path: Path, persist: Any
) -> None:
    """What is in memory only cannot be read again after a failure; nothing is left running, and nothing was made."""
    store = holdfast.open(tmp_path)
    store.create("orders", "n bigint", persist=persist)
    app = App("shop", root=tmp_path)
    app.node(inputs=["orders"], name="totals")(merged)
    with pytest.raises(UsageError, match=rf"node totals, which reads it, must find .* stream orders .*'{persist}'"):
        app.start(engine=ScriptedEngine())
    assert store.names() == ["orders"]
    store.create("orders-kept", "n bigint")
    kept = App("shop", root=tmp_path)
    kept.node(inputs=["orders-kept"], name="totals")(merged)
    kept.start(engine=ScriptedEngine()).stop()


def test_a_node_of_a_folder_runs_once_in_this_process_or_another(tmp_path: Path) -> None:
    """The writers of two would take its output from each other for ever (L7)."""
    holdfast.open(tmp_path).create("orders", "n bigint")

    def shop(node: str) -> App:
        app = App("shop", root=tmp_path)
        app.node(inputs=["orders"], name=node)(merged)
        return app

    def refused(app: App, sentence: str) -> None:
        with pytest.raises(UsageError, match=sentence):
            app.start(engine=ScriptedEngine())

    with shop("totals").start(engine=ScriptedEngine()):
        refused(shop("totals"), r"node totals of .* runs in this process already; stop that application first")
        shop("counts").start(engine=ScriptedEngine()).stop()
    for place, sentence in (("running/totals", "runs in process {} already"), ("host.pid", "deployment .pid {}. runs")):
        with elsewhere(tmp_path / ".holdfast" / place) as pid:
            refused(shop("totals"), sentence.format(pid))
    shop("totals").start(engine=ScriptedEngine()).stop()


@contextlib.contextmanager
def elsewhere(file: Path) -> Iterator[int]:
    """Another process has claimed a file, until the end of the block, when it is killed."""
    code = (
        "import sys, time, pathlib; from holdfast.host.process_lock import claimed\n"
        "with claimed(pathlib.Path(sys.argv[1]), str):\n    print(flush=True)\n    time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(file)], stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline()
            yield child.pid
        finally:
            child.kill()
