"""A node as real processes on real Spark: inputs and hosts fail, and every promise is kept (D1, D3, D4, D5, D6).

HOLDFAST_NODE_FAULTS=10 runs each failure ten times; without it, once.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from holdfast.clock import pause
from holdfast.model.time import SECOND_US
from tests.faults.deployment import Hosts, wait_us
from tests.faults.trial import Deployments, Outcome, Trial
from tests.spark.processes import wait_for

RUNS = int(os.environ.get("HOLDFAST_NODE_FAULTS", "1"))
#: Long enough for tentative output whatever the delay and the bucket; and one that is over before the delay is.
LONG_S, SHORT_S = 8.0, 2.0

COUNTS = """
import holdfast
from pyspark.sql import functions as F

app = holdfast.App("faults")

@app.node(inputs=["m1", "m2", "m3"], max_delay="4s")
def counts(c):
    window = F.window("stime", "1 second")
    return c.groupBy(window, "source").agg(F.count("*").alias("n"), F.sum("bytes").alias("bytes"))
"""
pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def one_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployments]:
    """A node on d over three sources on src, and a client beside the node's log."""

    def made() -> Trial:
        folder = tmp_path_factory.mktemp("one-node")
        hosts = Hosts(folder, COUNTS, "500ms", ["m1", "m2", "m3"], {"counts": ["d"]})
        return Trial(hosts, ("d",), lambda hosts: {"counts": hosts.listen("d", "counts")})

    deployments = Deployments(made)
    try:
        yield deployments
        deployments.end()
    finally:
        deployments.drop()


def cut(trial: Trial, stream: str, seconds: float) -> Outcome:
    with trial.failure(f"{stream} cut for {seconds:g} s") as outcome:
        trial.hosts.cut(f"{stream}>d", "d")
        pause(round(seconds * SECOND_US))
        trial.hosts.heal(f"{stream}>d", "d")
    return outcome


@pytest.mark.parametrize("_", range(RUNS))
def test_a_cut_that_is_shorter_than_x_leaves_no_trace(one_node: Deployments, _: int) -> None:
    with one_node.trial() as trial:
        assert cut(trial, "m3", SHORT_S).tentative["counts"] == 0, "D6"


@pytest.mark.parametrize("_", range(RUNS))
def test_an_input_that_is_cut_delays_nothing_by_more_than_x_and_all_is_right_in_the_end(
    one_node: Deployments, _: int
) -> None:
    with one_node.trial() as trial:
        assert cut(trial, "m3", LONG_S).tentative["counts"] > 0


@pytest.mark.parametrize("_", range(RUNS))
def test_an_input_that_promises_nothing_counts_with_what_it_sends(one_node: Deployments, _: int) -> None:
    with one_node.trial() as trial:
        feed = trial.hosts.feeds["m3"]
        with trial.failure("m3 without boundaries") as outcome:
            feed.promising = False
            pause(round(LONG_S * SECOND_US))
            feed.promising = True
        assert outcome.tentative["counts"] > 0


@pytest.mark.parametrize("_", range(RUNS))
def test_a_failure_during_stabilisation(one_node: Deployments, _: int) -> None:
    """Main is level with the inputs when the second failure stops it, and publishes its last windows after that."""
    with one_node.trial() as trial:
        hosts = trial.hosts

        def stabilising() -> bool:
            replica = hosts.replica("d")
            return replica is not None and replica.state == "STABILIZATION"

        with trial.failure("m3 cut, then m2 while stabilising") as outcome:
            hosts.cut("m3>d", "d")
            pause(round(LONG_S * SECOND_US))
            hosts.heal("m3>d", "d")
            struck = wait_us(stabilising, 2, every_us=30_000) is not None
            hosts.cut("m2>d", "d")
            pause(round(LONG_S * SECOND_US))
            hosts.heal("m2>d", "d")
        print("  struck during stabilisation" if struck else "  struck after stabilisation")
        assert outcome.tentative["counts"] > 0


@pytest.mark.parametrize("_", range(RUNS))
def test_failures_that_overlap(one_node: Deployments, _: int) -> None:
    with one_node.trial() as trial:
        hosts = trial.hosts
        with trial.failure("m2 cut at 0 to 8 s, m3 at 3 to 11 s") as outcome:
            hosts.cut("m2>d", "d")
            pause(3 * SECOND_US)
            hosts.cut("m3>d", "d")
            pause(5 * SECOND_US)
            hosts.heal("m2>d", "d")
            pause(3 * SECOND_US)
            hosts.heal("m3>d", "d")
        assert outcome.tentative["counts"] > 0


@pytest.mark.parametrize("run", range(RUNS))
def test_every_host_is_killed_and_goes_on_where_it_was(one_node: Deployments, run: int) -> None:
    """Nothing is available meanwhile, so there is nothing to be on time with; but nothing may be lost or wrong.

    Every other time without a failure beforehand, and half of the time without its JVM."""
    during_failure, with_java = run % 2 == 0, run % 4 < 2
    with one_node.trial() as trial:
        hosts, recording = trial.hosts, trial.clients["counts"].recording
        with trial.failure(f"kill -9 of all{' during a failure' if during_failure else ''}", available=False):
            if during_failure:
                hosts.cut("m3>d", "d")
                wait_for(lambda: recording.state == "TENTATIVE", "tentative output", 60)
            hosts.kill(with_java=with_java)
            pause(SECOND_US)
            hosts.start()
