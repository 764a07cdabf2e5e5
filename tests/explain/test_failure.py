"""What a failure does, on applications small enough to see it with the eye."""

from __future__ import annotations

import pytest

from holdfast.explain.failure import Effect, Failure, Kind, Sight, SinkPlace, effect, failures
from holdfast.explain.text import failing_text, failure_rows, failure_summary
from holdfast.host.catalog import Catalog
from holdfast.protocol.dpc.states import StreamState
from tests.explain.applications import application, deployed

SECOND = 1_000_000


def host(name: str) -> Failure:
    return Failure(Kind.HOST, (name,))


def link(one: str, other: str) -> Failure:
    return Failure(Kind.LINK, (one, other))


def source(stream: str) -> Failure:
    return Failure(Kind.SOURCE, (stream,))


def sights(told: Effect) -> dict[str, str]:
    return {node.node: node.sight.value for node in told.nodes}


def twins() -> Catalog:
    """Two sources at one home; two nodes in a chain with two replicas each."""
    app = application(
        first={"inputs": ["s1", "s2"], "max_delay": "2s", "replicas": 2},
        second={"inputs": ["first"], "max_delay": "3s", "replicas": 2},
    )
    return deployed(app, "src a b c d", {"s1": "src", "s2": "src"}, {"first": ["a", "b"], "second": ["c", "d"]})


def test_a_host_with_a_twin_is_replaced_by_it_and_nobody_gets_tentative_results() -> None:
    """D6."""
    told = effect(twins(), host("a"))
    assert sights(told) == {"first": "switch", "second": "nothing"}
    assert told.of("first").seen.now == "first@b"
    (reading,) = next(r for r in told.of("second").replicas if r.name == "second@c").readings
    assert (reading.before, reading.now, reading.sight) == ("first@a", "first@b", Sight.SWITCH)


def test_the_host_that_nobody_reads_from_is_not_missed() -> None:
    told = effect(twins(), host("b"))
    assert sights(told) == {"first": "nothing", "second": "nothing"}
    assert [replica.down for replica in told.of("first").replicas] == [False, True]


def test_the_home_of_all_sources_silences_everything_behind_it() -> None:
    assert sights(effect(twins(), host("src"))) == {"first": "silence", "second": "silence"}


def test_a_source_with_two_homes_is_read_from_the_other_one() -> None:
    app = application(first={"inputs": ["s1"], "max_delay": "2s", "replicas": 2})
    shared = deployed(app, "a b", {"s1": ("a", "b")}, {"first": ["a", "b"]})
    assert sights(effect(shared, host("a"))) == {"first": "switch"}
    assert sights(effect(shared, link("a", "b"))) == {"first": "nothing"}


def test_one_source_of_two_makes_results_tentative_and_a_chain_waits_for_its_longest_x_once() -> None:
    """Rule 4: 3 s behind both nodes, not 2 + 3."""
    told = effect(twins(), source("s1"))
    assert sights(told) == {"first": "tentative", "second": "tentative"}
    assert told.of("first").seen.begins_us == 2 * SECOND
    assert told.of("second").seen.begins_us == 3 * SECOND
    assert {replica.missing for replica in told.of("first").replicas} == {("s1",)}


def test_a_replica_that_is_cut_off_from_its_sources_is_left_for_its_twin() -> None:
    told = effect(twins(), link("src", "a"))
    assert sights(told) == {"first": "switch", "second": "nothing"}
    assert [replica.state for replica in told.of("first").replicas] == [StreamState.FAILURE, StreamState.STABLE]


def test_without_replicas_everything_behind_a_host_is_silent() -> None:
    app = application(first={"inputs": ["s1"]}, second={"inputs": ["first"]}, other={"inputs": ["s1"]})
    catalog = deployed(app, "src a b", {"s1": "src"}, {"first": ["a"], "second": ["b"], "other": ["b"]})
    assert sights(effect(catalog, host("a"))) == {"first": "silence", "second": "silence", "other": "nothing"}
    assert sights(effect(catalog, link("a", "b"))) == {"first": "nothing", "second": "silence", "other": "nothing"}


@pytest.mark.parametrize(
    ("options", "lost", "sight"),
    [
        ({"blocking": ["s1"]}, "s1", "silence"),
        ({"blocking": ["s1"]}, "s2", "tentative"),
        ({"during_failure": "suspend"}, "s2", "silence"),
        ({}, "s1", "tentative"),
    ],
)
def test_blocking_inputs_and_suspension_keep_results_back(options: dict, lost: str, sight: str) -> None:
    app = application(node={"inputs": ["s1", "s2"], **options})
    catalog = deployed(app, "a b c", {"s1": "a", "s2": "b"}, {"node": ["c"]})
    assert sights(effect(catalog, source(lost))) == {"node": sight}


def test_a_node_with_a_stable_input_does_not_wait_beyond_its_own_x_for_one_that_is_held_back() -> None:
    app = application(
        slow={"inputs": ["s1", "s2"], "max_delay": "10s"}, quick={"inputs": ["slow", "s3"], "max_delay": "2s"}
    )
    catalog = deployed(app, "x y z a b", {"s1": "x", "s2": "y", "s3": "z"}, {"slow": ["a"], "quick": ["b"]})
    assert effect(catalog, source("s1")).of("quick").seen.begins_us == 2 * SECOND


def test_a_blocking_input_that_is_held_back_is_waited_for() -> None:
    app = application(
        slow={"inputs": ["s1", "s2"], "max_delay": "10s"},
        join={"inputs": ["slow", "s3"], "max_delay": "2s", "blocking": ["slow"]},
    )
    catalog = deployed(app, "x y z a b", {"s1": "x", "s2": "y", "s3": "z"}, {"slow": ["a"], "join": ["b"]})
    assert effect(catalog, source("s1")).of("join").seen.begins_us == 10 * SECOND


def test_a_sink_stands_still_with_its_host_and_reads_over_its_own_links() -> None:
    catalog, sinks = twins(), {"table": SinkPlace("first", "d")}
    assert effect(catalog, host("d"), sinks).sinks[0].seen is None
    (cut,) = effect(catalog, link("a", "d"), sinks).sinks
    assert (cut.sight, cut.seen and cut.seen.now) == (Sight.SWITCH, "first@b")
    assert effect(catalog, link("a", "c"), sinks).sinks[0].sight is Sight.NOTHING


def test_a_sink_that_takes_stable_rows_only_waits_while_there_are_none() -> None:
    for tentative, sight in ((True, Sight.TENTATIVE), (False, Sight.SILENCE)):
        told = effect(twins(), source("s1"), {"table": SinkPlace("second", "c", tentative)})
        assert told.sinks[0].sight is sight
        rows = {who: what for _, who, what in failure_rows([told])}
        assert ("takes stable rows only" in rows["sink table"]) is not tentative


def test_a_failure_that_only_a_sink_sees_is_named_in_the_summary() -> None:
    told = effect(twins(), host("d"), {"table": SinkPlace("first", "d")})
    assert all(node.sight is not Sight.SILENCE for node in told.nodes)
    assert failure_summary([told]) == f"Silent for some readers, whatever X is: {failing_text(told)}."
    without = effect(twins(), host("d"))
    assert failure_summary([without]) == "No single failure keeps results away for longer than X."


def test_all_that_can_fail_by_itself_is_listed_and_nothing_else() -> None:
    app = application(first={"inputs": ["s1"]}, second={"inputs": ["first"]})
    catalog = deployed(app, "src a b idle", {"s1": "src"}, {"first": ["a"], "second": ["b"]})
    assert [failure.text for failure in failures(catalog)] == [
        "host src", "host a", "host b", "link src-a", "link a-b", "source s1",
    ]  # fmt: skip
    listed = [failure.text for failure in failures(catalog, {"table": SinkPlace("second", "idle")})]
    assert "host idle" in listed
    assert "link b-idle" in listed


def test_in_one_process_its_end_silences_and_a_source_does_not() -> None:
    catalog = Catalog(application(node={"inputs": ["s1", "s2"], "replicas": 2}).diagram())
    told = {failure.text: sights(effect(catalog, failure))["node"] for failure in failures(catalog)}
    assert told == {"host here": "silence", "source s1": "tentative", "source s2": "tentative"}
