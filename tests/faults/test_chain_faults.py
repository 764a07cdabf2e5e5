"""Replicas below which another node and a client over the network read: hosts are killed and cut off (D1, D3–D6, D16).

HOLDFAST_NODE_FAULTS=10 runs each failure ten times; without it, once.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from holdfast.clock import pause
from holdfast.model.time import SECOND_US
from tests.faults.deployment import Client, Hosts
from tests.faults.trial import Deployments, Trial

RUNS = int(os.environ.get("HOLDFAST_NODE_FAULTS", "1"))
#: Long enough for tentative output of both nodes.
LONG_S = 8.0
UPSTREAM = ("u1", "u2")

#: The upstream node keeps no state: what it adds to the skew between the inputs of the second one has to stay well
#: below X on a machine with two cores and three JVMs.
CHAIN = """
import holdfast
from pyspark.sql import functions as F

app = holdfast.App("faults")

@app.node(inputs=["m1", "m2"], max_delay="4s", keepalive="200ms")
def some(c):
    return c.where("bytes % 5 != 0").select("stime", "source", (F.col("bytes") * 2).alias("bytes"))

@app.node(inputs=["some", "m3"], max_delay="4s", keepalive="200ms")
def counts(c):
    window = F.window("stime", "2 seconds")
    return c.groupBy(window, "source").agg(F.count("*").alias("n"), F.sum("bytes").alias("bytes"))
"""
pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.timeout(900)]


def listen(hosts: Hosts) -> dict[str, Client]:
    """A client beside the log of d, and one of both upstream replicas over the network."""
    return {"counts": hosts.listen("d", "counts"), "some": hosts.listen_to_all("some", "u1")}


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployments]:
    """A node with replicas on u1 and u2, and below it one on d that has another input as well."""

    def made() -> Trial:
        nodes = {"some": list(UPSTREAM), "counts": ["d"]}
        hosts = Hosts(tmp_path_factory.mktemp("chain"), CHAIN, "2s", ["m1", "m2", "m3"], nodes)
        return Trial(hosts, (*UPSTREAM, "d"), listen)

    deployments = Deployments(made)
    try:
        yield deployments
        deployments.end()
    finally:
        deployments.drop()


def read_by_node(trial: Trial) -> str:
    """The upstream host from which d reads now."""
    replica = trial.hosts.replica("d")
    assert replica is not None
    (reading,) = next(i.reading for i in replica.inputs if i.stream == "some")
    return reading.partition("/")[0].partition("@")[2]


def read_by_client(trial: Trial) -> str:
    (host,) = trial.clients["some"].reading()
    return host


@pytest.mark.parametrize("run", range(RUNS))
def test_a_killed_host_is_replaced_by_its_twin_for_nodes_and_clients_without_a_tentative_tuple(
    chain: Deployments, run: int
) -> None:
    with chain.trial() as trial:
        missed = [read_by_node, read_by_client]
        while missed:
            victim = missed[0](trial)
            missed = [reader for reader in missed if reader(trial) != victim]
            with trial.failure(f"kill -9 of {victim}") as outcome:
                trial.hosts.kill(victim, with_java=run % 2 == 0)
                pause(round(LONG_S * SECOND_US))
                assert victim not in (read_by_node(trial), read_by_client(trial))
                trial.hosts.start(victim)
            assert outcome.tentative == {"counts": 0, "some": 0}, "D6: a STABLE replica could be reached all the time"
            assert outcome.suspicions == 0, "D16"


@pytest.mark.parametrize("_", range(RUNS))
def test_both_replicas_of_an_upstream_node_are_cut_off(chain: Deployments, _: int) -> None:
    with chain.trial() as trial:
        with trial.failure("u1 and u2 cut off from d") as outcome:
            for up in UPSTREAM:
                trial.hosts.cut(f"{up}-d", up, "d")
            pause(round(LONG_S * SECOND_US))
            for up in UPSTREAM:
                trial.hosts.heal(f"{up}-d", up, "d")
        assert outcome.tentative["counts"] > 0
        assert outcome.tentative["some"] == 0, "a link that it does not use is nothing to a client"
        assert outcome.suspicions == 0, "D16"


@pytest.mark.parametrize("_", range(RUNS))
def test_a_client_of_twins_gets_tentative_tuples_and_corrections_when_both_miss_an_input(
    chain: Deployments, _: int
) -> None:
    with chain.trial() as trial:
        with trial.failure("m1 cut off from u1 and u2") as outcome:
            for up in UPSTREAM:
                trial.hosts.cut(f"m1>{up}", up)
            pause(round(LONG_S * SECOND_US))
            for up in UPSTREAM:
                trial.hosts.heal(f"m1>{up}", up)
        assert outcome.tentative["some"] > 0
        assert outcome.tentative["counts"] > 0, "D8: what tentative input contributes to is tentative"
        assert outcome.suspicions == 0, "D16"
