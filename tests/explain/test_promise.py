"""What a node promises, as figures, and the advice that follows from them."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.checkpoint.derive import StateKind, derive
from holdfast.checkpoint.policy import continuous, every, groups, none, upstream
from holdfast.explain.cost import host_costs
from holdfast.explain.facts import node_facts
from holdfast.explain.operators import Operators, recovery
from holdfast.explain.promise import NodePromise, buckets_of, promises
from holdfast.explain.text import node_block
from holdfast.host.catalog import Catalog
from tests.explain.applications import application, deployed

MS = 1_000


def only(**options: Any) -> NodePromise:
    (made,) = promises(Catalog(application(node={"inputs": ["s1", "s2"], **options}).diagram()), {})
    return made


def test_a_node_works_in_the_largest_bucket_of_its_inputs_and_passes_it_on() -> None:
    app = application(first={"inputs": ["s1", "s2"]}, second={"inputs": ["first"], "bucket": "2s"},
                      third={"inputs": ["second"]})  # fmt: skip
    catalog = Catalog(app.diagram())
    assert buckets_of(catalog, {"s1": 500 * MS}) == {
        "s1": 500 * MS, "s2": 200 * MS, "first": 500 * MS, "second": 2000 * MS, "third": 2000 * MS,
    }  # fmt: skip
    assert [(made.depth, made.usual_us) for made in promises(catalog, {"s1": 500 * MS})] == [
        (1, 500 * MS), (2, 1000 * MS), (3, 3000 * MS),
    ]  # fmt: skip


def test_when_a_failure_is_noticed_and_a_fork_ready_follows_from_x_bucket_and_keepalive() -> None:
    """As the core decides it: three keepalives; twice a bucket and three keepalives; a second for the start."""
    made = only(max_delay="5s")
    assert (made.dead_us, made.silent_us, made.prepared_us, made.ready_us) == (300 * MS, 700 * MS, 700 * MS, 1700 * MS)
    assert only(keepalive="50ms").dead_us == 150 * MS


def test_an_x_that_leaves_no_time_for_a_fork_is_said_with_the_way_out() -> None:
    short = only(max_delay="1s", warm=0)
    assert short.late_us == 500 * MS
    assert "about 500ms late; let one be kept ready (warm=0.05), or take X = 3s or more" in short.advice[0]
    assert only(max_delay="3s").late_us == 0
    kept = only(max_delay="1s")
    assert kept.kept_ready
    assert kept.late_us == 0
    assert only(max_delay="1s", during_failure="suspend").late_us == 0


def test_a_time_of_results_that_stime_names_is_spoken_of_and_a_part_of_a_window_is_not() -> None:
    (said,) = [advice for advice in only(stime="at").advice if "results have the time that stands in at" in advice]
    assert "if not, a result below the boundary stops the query" in said
    assert not any("results have the time" in advice for advice in only(stime="window.start").advice)


def test_an_x_shorter_than_that_of_the_node_above_is_said() -> None:
    app = application(
        above={"inputs": ["s1"], "max_delay": "10s"},
        alone={"inputs": ["above"], "max_delay": "4s"},
        beside={"inputs": ["above", "s2"], "max_delay": "4s"},
    )
    _, alone, beside = promises(Catalog(app.diagram()), {})
    assert any("is not what its readers wait: above above it holds results back for 10s" in a for a in alone.advice)
    assert any("the first tentative results would go without it" in a for a in beside.advice)


def test_replicas_read_the_producer_on_their_own_host_first_and_mirror_what_is_elsewhere() -> None:
    app = application(first={"inputs": ["s1"], "replicas": 2}, second={"inputs": ["first"], "replicas": 2})
    catalog = deployed(app, "a b", {"s1": "a"}, {"first": ["a", "b"], "second": ["b", "a"]})
    first, second = promises(catalog, {})
    assert [replica.mirrors for replica in first.replicas] == [(), ("s1",)]
    assert [replica.reads["first"] for replica in second.replicas] == [("first@b", "first@a"), ("first@a", "first@b")]


def test_a_source_with_copies_is_mirrored_also_where_one_of_them_lives() -> None:
    """A replica must be able to switch between them, as between replicas of a node."""
    app = application(first={"inputs": ["s1", "s2"], "replicas": 2})
    catalog = deployed(app, "a b", {"s1": ("a", "b"), "s2": "a"}, {"first": ["a", "b"]})
    (first,) = promises(catalog, {})
    assert [replica.mirrors for replica in first.replicas] == [("s1",), ("s1", "s2")]
    told = host_costs(catalog, buckets_of(catalog, {}), {})
    assert [cost.mirrors for cost in told] == [(("s1", "first@a"),), (("s1", "first@b"), ("s2", "first@b"))]


def test_what_it_takes_to_have_a_state_back_follows_from_its_policy() -> None:
    def told(state: StateKind, policy: object, store: str | None = None) -> str:
        return recovery(derive("operator", "kind", state, policy, store))

    assert "what came since (up to 10s) is lost" in told(StateKind.VARIABLES, every("10s"))
    assert "what came since (up to 100 tuples of a key) is lost" in told(StateKind.KEYED, every(events=100))
    assert "nothing is computed twice" in told(StateKind.KEYED, every("10s", exact=True))
    assert "up to 1s" in told(StateKind.SLIDING, groups(32, every="1s"))
    assert "computed again" in told(StateKind.SLIDING, groups(32, every="1s", exact=True))
    assert "read backwards" in told(StateKind.WINDOWS, continuous())
    assert "takes 90s, if it can be" in told(StateKind.WINDOWS, continuous(recover_within="1.5m"))
    assert "read again" in told(StateKind.IN_FLIGHT, upstream())
    assert "begins empty" in told(StateKind.VARIABLES, none)
    assert told(StateKind.NONE, none) == "nothing: it has no state"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_delay": "3s"}, "tentative results begin 3s after it began"),
        ({"during_failure": "suspend"}, "nothing comes until it has healed"),
        ({"blocking": ["s1"]}, "without s1 nothing comes out"),
        ({"convergent": "10s"}, "depends on the last 10s of input"),
        ({"stabilise": "stagger"}, "needs a second replica"),
        ({"during_failure": "delay"}, "keeps X by giving each bucket to the fork a batch before"),
        ({"max_delay": "1s"}, "one is kept ready all the time, which may take 5% of the time"),
        ({"replicas": 2}, "1 in one process; the 2 that are asked for need a deployment"),
    ],
)
def test_the_block_of_a_node_says_what_follows_from_each_option(options: dict[str, Any], words: str) -> None:
    assert words in " ".join(node_block(only(**options)).split())


def test_operators_that_cannot_be_followed_are_said_to_be_unknown_and_never_called_none() -> None:
    catalog = Catalog(application(node={"inputs": ["s1"]}).diagram())
    (made,) = promises(catalog, {}, {"node": Operators(unseen="TypeError: no")})
    assert "not known (TypeError: no)" in node_block(made)
    assert node_facts(made)["operators"]["unseen"] == "TypeError: no"
    (seen,) = promises(catalog, {}, {"node": Operators(("groupBy", "count", "where"), (), None)})
    assert "groupBy → count → where" in node_block(seen)
    assert "of groupBy, count: Spark saves" in node_block(seen)


def test_a_watermark_that_is_not_waited_for_is_said() -> None:
    catalog = Catalog(application(node={"inputs": ["s1"]}).diagram())

    def advice(*methods: str) -> str:
        (made,) = promises(catalog, {}, {"node": Operators(methods, (), None)})
        return " ".join(made.advice)

    assert "withWatermark does not wait: boundaries say when a bucket is complete" in advice("withWatermark", "groupBy")
    assert "withWatermark" not in advice("withWatermark", "dropDuplicatesWithinWatermark")
    assert "withWatermark" not in advice("groupBy")
