"""A striped stream is so many inputs of a node: one that is away is a missing input, with the usual promise."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.host.catalog import Catalog
from holdfast.host.checking import check
from holdfast.host.deployment import load_deployment
from holdfast.model.errors import UsageError
from tests.host.scripted_engine import ScriptedEngine


def declared(root: Path) -> holdfast.App:
    app = holdfast.App("striped", root=root)
    app.striped("orders", 3)

    @app.node(inputs=["orders", "payments"], max_delay="2s", blocking=["payments"])
    def matched(orders: Any, payments: Any) -> Any:
        left = orders.selectExpr("stime", "tuple_type", "tuple_id", "value")
        return left.unionByName(payments.select("stime", "tuple_type", "tuple_id", "value"))

    return app


def test_the_stripes_are_the_inputs_and_come_as_one_frame() -> None:
    (node,) = declared(Path()).diagram().nodes
    assert node.inputs == ("orders.s0", "orders.s1", "orders.s2", "payments")
    assert node.separate
    assert node.frames == (("orders.s0", "orders.s1", "orders.s2"), ("payments",))
    assert node.blocking == ("payments",)
    assert declared(Path()).diagram().sources == ("orders.s0", "orders.s1", "orders.s2", "payments")


def test_what_a_striped_stream_cannot_be_in_an_application_is_said() -> None:
    app = declared(Path())
    app.striped("orders", 3)
    for match, call in (
        ("was said to have 3 stripes; got 4", lambda: app.striped("orders", 4)),
        (r"say app\.striped\('payments', 2\) before the nodes", lambda: app.striped("payments", 2)),
        ("must have 1 to 64 stripes", lambda: app.striped("x", 65)),
        ("a source for each stripe; got one for 'orders'", lambda: app.source("orders", lambda s: s, stime="at")),
        ("an output with one log", lambda: app.node(inputs="payments", output="orders", name="n")(lambda frame: frame)),
    ):
        with pytest.raises(UsageError, match=match):
            call()
    assert len(app.diagram().nodes) == 1


@pytest.mark.parametrize("there", [2, 4])
def test_another_number_of_stripes_than_the_stream_has_is_refused(tmp_path: Path, there: int) -> None:
    """Otherwise half of it would be read, and nobody miss the rest, or an input be waited for that never comes."""
    store = holdfast.open(tmp_path)
    store.create_striped("orders", "value bigint", stripes=there)
    store.create("payments", "value bigint")
    app = declared(tmp_path)
    said = rf"matched.* stream orders with 3 stripes; .* it has {there}; say app\.striped\('orders', {there}\)"
    with pytest.raises(UsageError, match=said):
        app.start(engine=ScriptedEngine())
    (found,) = check(app.diagram(), store, ScriptedEngine())
    assert found.wrong is not None
    assert re.search(said, f"{found.node} {found.wrong}")


def test_stripes_of_one_stream_live_on_several_hosts(tmp_path: Path) -> None:
    path = tmp_path / "orders.yaml"
    path.write_text(
        "app: orders.py\n"
        'hosts: {a: {address: "127.0.0.1:7401", root: a}, b: {address: "127.0.0.1:7402", root: b}}\n'
        "sources: {orders.s0: a, orders.s1: b, orders.s2: b, payments: a}\n"
        "nodes: {matched: [a, b]}\n"
    )
    catalog = Catalog(declared(tmp_path).diagram(), load_deployment(path))
    assert catalog.sources_on("a") == ("orders.s0", "payments")
    assert catalog.sources_on("b") == ("orders.s1", "orders.s2")
