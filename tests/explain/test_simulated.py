"""What is said of a failure is what the protocol does: every failure of some applications, run in the simulator."""

from __future__ import annotations

from random import Random

import pytest

from holdfast.explain.failure import Failure, Sight, effect, failures
from holdfast.host.catalog import Catalog
from tests.explain.applications import application, deployed
from tests.explain.simulated import SLACK_US, Simulated

ONE = {"max_delay": "1s"}
TWO = {"max_delay": "1s", "replicas": 2}
#: The last one was found among three hundred: a blocking input that comes tentatively, and later than X. With it, 1,500
#: agreed.
DRAWN = (*range(24), 136)


def chain() -> Catalog:
    """Three sources at one home, a chain of two nodes with two replicas each."""
    app = application(first={"inputs": ["s1", "s2", "s3"], **TWO}, second={"inputs": ["first"], **TWO})
    homes = dict.fromkeys(("s1", "s2", "s3"), "src")
    return deployed(app, "src a b c d", homes, {"first": ["a", "b"], "second": ["c", "d"]})


def single() -> Catalog:
    """One replica each, one source, everything in a row."""
    app = application(first={"inputs": ["s1"], **ONE}, second={"inputs": ["first"], **ONE})
    return deployed(app, "src a b", {"s1": "src"}, {"first": ["a"], "second": ["b"]})


def spread() -> Catalog:
    """Sources with homes apart, on the hosts that compute; the second node reads a source as well."""
    app = application(first={"inputs": ["s1", "s2"], **TWO}, second={"inputs": ["first", "s3"], **ONE})
    return deployed(app, "a b c", {"s1": "a", "s2": "b", "s3": "c"}, {"first": ["a", "b"], "second": ["c"]})


def particular() -> Catalog:
    """A blocking input, a node that suspends, and nodes behind each; X grows and shrinks on the way."""
    app = application(
        join={"inputs": ["s1", "s2"], "blocking": ["s1"], **ONE},
        patient={"inputs": ["s1", "s2"], "max_delay": "1s", "during_failure": "suspend"},
        behind={"inputs": ["patient", "s3"], **ONE},
        slow={"inputs": ["join"], "max_delay": "2s"},
        quick={"inputs": ["slow"], "max_delay": "600ms"},
        mixed={"inputs": ["slow", "s3"], "max_delay": "600ms"},
    )
    sets = {"join": ["a"], "patient": ["b"], "behind": ["a"], "slow": ["b"], "quick": ["a"], "mixed": ["b"]}
    return deployed(app, "x y z a b", {"s1": "x", "s2": "y", "s3": "z"}, sets)


CASES = [(make, failure) for make in (chain, single, spread, particular) for failure in failures(make())]


@pytest.mark.parametrize(("make", "failure"), CASES, ids=lambda case: getattr(case, "text", None) or case.__name__)
def test_a_failure_does_what_is_said(make, failure: Failure) -> None:
    """D5, D6, D7: tentative or not, silent or not, and when tentative results begin."""
    compare(make(), failure)


@pytest.mark.parametrize("seed", DRAWN)
def test_a_failure_of_an_application_that_was_drawn_does_what_is_said(seed: int) -> None:
    rng = Random(seed)
    catalog = drawn(rng)
    compare(catalog, rng.choice(failures(catalog)))


def drawn(rng: Random) -> Catalog:
    """Up to three sources and four nodes, anyhow connected, on four hosts."""
    hosts = ["a", "b", "c", "d"]
    streams = [f"s{number}" for number in range(rng.randint(1, 3))]
    homes, sets, nodes = {stream: rng.choice(hosts) for stream in streams}, {}, {}
    for number in range(rng.randint(1, 4)):
        name, inputs = f"n{number}", rng.sample(streams, rng.randint(1, min(3, len(streams))))
        nodes[name] = {
            "inputs": inputs,
            "max_delay": rng.choice(("600ms", "1s", "1500ms")),
            "blocking": [stream for stream in inputs if rng.random() < 0.15],
            "during_failure": rng.choice(("process", "process", "process", "delay", "suspend")),
        }
        sets[name] = rng.sample(hosts, rng.randint(1, 2))
        streams.append(name)
    read = {stream for node in nodes.values() for stream in node["inputs"]}
    return deployed(application(**nodes), "a b c d", {s: h for s, h in homes.items() if s in read}, sets)


def compare(catalog: Catalog, failure: Failure) -> None:
    told, run = effect(catalog, failure), Simulated(catalog, failure)
    for node in told.nodes:
        expected = Sight.NOTHING if node.sight is Sight.SWITCH else node.sight
        assert run.saw(node.node) is expected, node
        if expected is Sight.TENTATIVE:
            first_us = run.first_tentative_us(node.node)
            assert first_us is not None
            assert node.seen.begins_us - SLACK_US < first_us < node.seen.begins_us + SLACK_US
        elif expected is Sight.NOTHING:
            assert run.first_tentative_us(node.node) is None
