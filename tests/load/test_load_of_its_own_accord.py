"""Hosts that share load without anybody's hand: they move what costs too much, take it back, and outlive a partner.

The query is run by plain Python (`plain_engine`); managers, words, ledgers and movement are the real ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

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
@long_only
def test_a_replica_moves_while_its_twin_stays_and_both_write_the_same(tmp_path: Path) -> None:
    clauses = "price: 0.1 to 5.0, period: 3s"
    owners = [Owner("anna", ["m1"], [f"to: ben, {clauses}"], twin=True), Owner("ben", [], [f"from: anna, {clauses}"])]
    two = Federation(tmp_path, owners, plain=True)
    try:
        two.start("anna", "anna2", "ben")
        two.wait(lambda: two.runs_at("anna", "counts-m1") == "anna", "the node to run at home")
        two.wait(lambda: two.ask("anna", "/v1/contracts")["contracts"][0]["agreed"], "ben's consent")  # type: ignore[index]
        two.place("anna", "counts-m1", "ben")
        two.wait(lambda: two.runs_at("anna", "counts-m1") == "ben", "the node to run at ben's")
        seen = len(two.results("anna", "counts-m1"))
        two.wait(lambda: len(two.results("anna", "counts-m1")) > seen + 14, "results from ben's")
        status = two.client("anna2").status()
        assert [replica.state for replica in status.replicas] == ["STABLE"], "the twin does not notice"
        two.place("anna", "counts-m1", "anna")
        two.wait(lambda: two.runs_at("anna", "counts-m1") == "anna", "the node to run at home again")
        check_outputs(two, "anna", ["m1"])
        two.finish("anna2", "counts-m1")
        assert two.results("anna2", "counts-m1") == two.results("anna", "counts-m1")
    finally:
        two.end()
