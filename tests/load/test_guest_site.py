"""A guest is set up by the host in the way of its own nodes, with the same checks."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.host.catalog import Catalog
from holdfast.host.controller import Controller
from holdfast.host.host import Host
from holdfast.host.mirrored_intake import copies_of
from holdfast.host.wire import Portion
from holdfast.load.tasks import GuestSite
from holdfast.model.errors import PeerError, UsageError
from holdfast.stream.definition import Definition
from tests.host.scripted_engine import ScriptedEngine


class Owner:
    """Stands for the way to a guest's owner, who knows its inputs after a while and sends nothing of them."""

    def __init__(self, *inputs: Definition) -> None:
        self._inputs, self._asked = {definition.name: definition for definition in inputs}, 0

    async def definition(self, stream: str) -> Definition:
        self._asked += 1
        if self._asked == 1:
            raise PeerError("the owner starts just now")
        return self._inputs[stream]

    async def pull(self, *_: Any) -> Portion:
        raise PeerError("nothing comes")


def guest(tmp_path: Path, buckets: tuple[str, str]) -> tuple[Host, GuestSite]:
    app = holdfast.App("counting")
    app.node(inputs=["a", "b"], name="counts", blocking=["a"], max_delay="7s", capacity="9s", convergent="5s")(
        lambda rows: rows
    )
    streams = holdfast.open(tmp_path / "owner")
    owner: Any = Owner(*(streams.create(name, "n bigint", bucket=size).definition
                         for name, size in zip("ab", buckets, strict=True)))  # fmt: skip
    node = replace(app.diagram().node("counts"), name="anna.3.0")
    site = GuestSite(node, "here", tmp_path / "guests" / node.name, "anna", owner)
    return Host("here", Catalog(holdfast.App("none").diagram()), tmp_path / "here", ScriptedEngine()), site


def test_a_guest_whose_inputs_have_buckets_that_do_not_fit_is_refused_as_any_node(tmp_path: Path) -> None:
    host, site = guest(tmp_path, ("2s", "3s"))
    with pytest.raises(UsageError, match="buckets that fit into each other"):
        asyncio.run(host.set_up(site))
    assert host.controllers == {}


def test_a_guest_has_the_promises_of_its_node_and_its_owner_for_a_producer(tmp_path: Path) -> None:
    host, site = guest(tmp_path, ("1s", "1s"))
    left = copies_of(site.mirrors) / "a"
    left.mkdir(parents=True)

    async def play() -> Controller:
        await host.set_up(site)
        controller = host.controllers["anna.3.0@here"]
        assert isinstance(controller, Controller)
        await host.take_down("anna.3.0@here")
        return controller

    plan = asyncio.run(play()).plan
    assert [(spec.stream, spec.producers, spec.blocking) for spec in plan.inputs] == [
        ("a", ("a@anna",), True), ("b", ("b@anna",), False),
    ]  # fmt: skip
    assert (plan.delay_us, plan.window_us, plan.bucket_us) == (7_000_000, 5_000_000, 1_000_000)
    assert (plan.output.readers, plan.output.capacity_us) == ((), None), "its owner says what it has by pulling"
    assert not left.exists(), "copies of an earlier life are gone"
