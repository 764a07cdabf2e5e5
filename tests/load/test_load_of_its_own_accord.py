"""Hosts that share load without anybody's hand: they move what costs too much, take it back, and outlive a partner.

The query is run by plain Python (`plain_engine`); managers, words, ledgers and movement are the real ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

import holdfast
from holdfast.host.client_subscriber import ClientSubscriber
from holdfast.model.errors import PeerError
from tests.load.federation import MOVES, Federation, Owner, plainly

long_only = pytest.mark.skipif(not MOVES, reason="half a minute each; HOLDFAST_MOVES=1 runs them")


def at(federation: Federation, owner: str) -> dict[str, str]:
    """Where each node of an owner runs."""
    said = federation.ask(owner)
    return {} if said is None else {task["task"]: task["at"] for task in said["tasks"] if task["owner"] == owner}


def check_outputs(federation: Federation, owner: str, streams: Sequence[str]) -> None:
    for stream in streams:
        federation.finish(owner, f"counts-{stream}")
        assert plainly(federation.results(owner, f"counts-{stream}")) == federation.sources[stream].expected()


@pytest.mark.slow
def test_a_spike_moves_a_node_to_the_partner_and_its_end_brings_it_back(tmp_path: Path) -> None:
    clauses = "price: 3.0, period: 4s"
    owners = [Owner("anna", ["m1", "m2"], [f"to: ben, {clauses}"]), Owner("ben", [], [f"from: anna, {clauses}"])]
    two = Federation(tmp_path, owners, plain=True)
    try:
        two.start()
        two.wait(lambda: two.runs_at("anna", "counts-m2") == "anna", "the nodes to run at home")
        for source in two.sources.values():
            source.rate = 400.0
        two.wait(lambda: list(at(two, "anna").values()).count("ben") == 1, "one node to run at ben's")
        for source in two.sources.values():
            source.rate = 50.0
        two.wait(lambda: set(at(two, "anna").values()) == {"anna"}, "both nodes to run at home again")
        two.wait(lambda: (said := two.ask("ben")) and not said["tasks"], "ben to let go")
        check_outputs(two, "anna", ["m1", "m2"])
        anna, ben = two.ask("anna"), two.ask("ben")
        assert anna is not None
        assert ben is not None
        assert anna["balances"]["ben"] == -ben["balances"]["anna"] < 0
    finally:
        two.end()


@pytest.mark.slow
@long_only
def test_a_partner_that_is_gone_for_good_loses_nothing_of_ours(tmp_path: Path) -> None:
    clauses = "price: 0.1 to 5.0, period: 3s"
    owners = [
        Owner("anna", ["m1"], [f"to: ben, {clauses}"], "patience: 4s"),
        Owner("ben", [], [f"from: anna, {clauses}"]),
    ]
    two = Federation(tmp_path, owners, plain=True)
    try:
        two.start()
        two.wait(lambda: two.runs_at("anna", "counts-m1") == "anna", "the node to run at home")
        two.wait(lambda: two.ask("anna", "/v1/contracts")["contracts"][0]["agreed"], "ben's consent")  # type: ignore[index]
        two.place("anna", "counts-m1", "ben")
        two.wait(lambda: two.runs_at("anna", "counts-m1") == "ben", "the node to run at ben's")
        seen = len(two.results("anna", "counts-m1"))
        two.wait(lambda: len(two.results("anna", "counts-m1")) > seen + 14, "results from ben's")
        two.kill("ben")
        two.wait(lambda: two.runs_at("anna", "counts-m1") == "anna", "the node to go on at home")
        check_outputs(two, "anna", ["m1"])
    finally:
        two.end()


@pytest.mark.slow
@long_only
def test_a_guest_moves_on_to_a_third_and_its_owner_cannot_tell(tmp_path: Path) -> None:
    dear, cheap = "price: 3.0, period: 6s", "price: 0.9, period: 6s"
    owners = [
        Owner("anna", ["m1", "m2"], [f"to: ben, {dear}"]),
        Owner("ben", [], [f"from: anna, {dear}", f"to: carl, {cheap}"]),
        Owner("carl", [], [f"from: ben, {cheap}"], "capacity: {cpu: 4.0}"),
    ]
    three = Federation(tmp_path, owners, plain=True)
    try:
        three.start()
        three.wait(lambda: three.runs_at("anna", "counts-m2") == "anna", "the nodes to run at home")
        for source in three.sources.values():
            source.rate = 400.0
        three.wait(lambda: (said := three.ask("carl")) and said["tasks"], "a guest of ben's to run at carl's")
        three.wait(lambda: "ben" in at(three, "anna").values(), "anna to know it at ben's")
        seen = {s: len(three.results("anna", f"counts-{s}")) for s in ("m1", "m2")}
        three.wait(lambda: all(len(three.results("anna", f"counts-{s}")) > n + 14 for s, n in seen.items()), "results")
        check_outputs(three, "anna", ["m1", "m2"])
    finally:
        three.end()


@pytest.mark.slow
@pytest.mark.parametrize("kind", [pytest.param("counts", marks=long_only), "tallies"])
def test_a_replica_moves_while_its_twin_stays_and_readers_have_either(tmp_path: Path, kind: str) -> None:
    """D9. The twin is killed while the other one is away: what the partner computes is all that there is then."""
    clauses, node = "price: 0.1 to 5.0, period: 3s", f"{kind}-m1"
    owners = [Owner("anna", ["m1"], [f"to: ben, {clauses}"], twin=True), Owner("ben", [], [f"from: anna, {clauses}"])]
    two = Federation(tmp_path, owners, plain=True, kind=kind)
    try:
        two.start("anna", "anna2", "ben")
        two.wait(lambda: two.runs_at("anna", node) == "anna", "the node to run at home")
        two.wait(lambda: two.ask("anna", "/v1/contracts")["contracts"][0]["agreed"], "ben's consent")  # type: ignore[index]
        two.wait(lambda: _states(two, "anna2") == ["STABLE"], "the twin")
        with holdfast.connect(two.file("anna")) as net:
            reader = Reading(two, net.subscribe(node))
            two.place("anna", node, "ben")
            two.wait(lambda: two.runs_at("anna", node) == "ben", "the node to run at ben's")
            reader.gets_more()
            assert _states(two, "anna2") == ["STABLE"], "the twin does not notice"
            two.kill("anna2")
            reader.gets_more()
            two.start("anna2")
            two.place("anna", node, "anna")
            two.wait(lambda: two.runs_at("anna", node) == "anna", "the node to run at home again")
            reader.gets_more()
            for host in ("anna", "anna2"):
                two.finish(host, node)
            two.check("anna", "m1")
            assert two.results("anna2", node) == two.results("anna", node)
            everything = [id for id, *_ in two.results("anna", node)]
            two.wait(lambda: len(reader.ids()) >= len(everything), "the reader to have everything")
            assert reader.ids() == everything, "D1"
    finally:
        two.end()


def _states(two: Federation, host: str) -> list[str]:
    try:
        return [replica.state for replica in two.client(host).status().replicas]
    except PeerError:
        return []


class Reading:
    """Somebody who reads the node's output from whichever replica is best."""

    def __init__(self, two: Federation, subscriber: ClientSubscriber) -> None:
        self._two, self._subscriber, self._ids = two, subscriber, list[int]()

    def ids(self) -> list[int]:
        self._ids += [row.id for batch in self._subscriber.poll() for row in self._subscriber.rows_of(batch)]
        return self._ids

    def gets_more(self) -> None:
        seen = len(self.ids())
        self._two.wait(lambda: len(self.ids()) > seen + 14, "more results")
