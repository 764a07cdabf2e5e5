"""What results are worth that cover several buckets (003 §5.8.3)."""

from __future__ import annotations

import pytest

from holdfast.engine import Coverage
from holdfast.host.span_worth import SpanWorth
from holdfast.protocol.dpc.effects import Part, TentativeBucket
from holdfast.protocol.dpc.signals import Arrival, InputAdvanced, Lane
from holdfast.protocol.dpc.sunion import SUnion
from holdfast.stream.worth import Worth

SECOND = 1_000_000
#: All instants of the oracle are multiples of it.
GRAIN = SECOND // 4


def bucket(number: int, worth: float, *missing: str, least: float | None = None, emit: bool = True) -> TentativeBucket:
    parts = tuple(Part(name, None if name in missing else Lane.MAIN, None, 0, True) for name in ("a", "b"))
    return TentativeBucket(number, parts, emit, worth, worth if least is None else least, missing)


def spans_of(coverage: Coverage, first: int, *, bucket_us: int = SECOND, output_us: int = SECOND) -> SpanWorth:
    """A fork whose branch begins with an output bucket."""
    spans = SpanWorth(coverage, bucket_us, output_us)
    spans.begin(first)
    return spans


def taken(spans: SpanWorth, *given: TentativeBucket) -> dict[int, Worth]:
    return {worth.bucket: worth for one in given for worth in spans.take(one)}


def test_a_window_of_a_minute_knows_that_an_input_was_away_for_most_of_it() -> None:
    """It used to say 1.0, because the input was back in the bucket of the window's end."""
    spans = spans_of(Coverage(60 * SECOND, 0, 60 * SECOND), 0)
    taken(spans, *(bucket(number, 0.5, "a") for number in range(48)))
    found = taken(spans, *(bucket(number, 1.0) for number in range(48, 108)))
    assert found[60] == Worth(60, (48 * 0.5 + 12) / 60, ("a", "b"), 0.5, ("a",))
    assert (found[107].least, found[107].missing) == (0.5, ("a",)), "one bucket of it is left"
    assert found[108] == Worth(108, 1.0, ("a", "b"), 1.0)


def test_a_window_that_has_the_time_of_its_beginning_is_worth_what_came_after_that() -> None:
    """It used to be told under the bucket of its end, and said nothing of what it lacked itself."""
    spans = spans_of(Coverage(0, 10 * SECOND, 10 * SECOND), 90)
    assert taken(spans, bucket(100, 0.5, "a"))[91] == Worth(91, 0.95, ("a", "b"), 0.5, ("a",))
    found = taken(spans, *(bucket(number, 1.0) for number in range(101, 112)))
    assert found[100] == Worth(100, 0.95, ("a", "b"), 0.5, ("a",)), "that which begins with what is missing"
    assert found[101] == Worth(101, 1.0, ("a", "b"), 1.0)


def test_the_first_results_of_a_branch_are_told_of_though_their_time_lies_before_what_is_missing() -> None:
    """A join that gives a pair the time of its left row: what it still owes when the right one breaks off."""
    spans = SpanWorth(Coverage(3 * SECOND, 3 * SECOND), SECOND, SECOND)
    assert not taken(spans, *(bucket(number, 1.0, emit=False) for number in range(100)))
    spans.begin(97)
    found = taken(spans, bucket(100, 0.5, "b"), bucket(101, 0.5, "b"))
    assert found == {97: Worth(97, round(6.5 / 7, 4), ("a", "b"), 0.5, ("b",)),
                     98: Worth(98, round(6 / 7, 4), ("a", "b"), 0.5, ("b",))}  # fmt: skip


def test_what_an_output_bucket_is_worth_is_known_before_the_fork_could_close_it() -> None:
    for coverage in (Coverage(7 * SECOND, 0, SECOND), Coverage(0, 7 * SECOND, SECOND), Coverage(5, 5), Coverage()):
        spans = spans_of(coverage, 100 - -(-coverage.after_us // SECOND))
        for number in range(100, 110):
            spans.take(bucket(number, 1.0))
            assert spans._next is not None
            assert spans._next >= ((number + 1) * SECOND - coverage.after_us) // SECOND


def test_buckets_that_the_fork_was_not_given_came_from_main_and_are_whole() -> None:
    spans = spans_of(Coverage(10 * SECOND, 0, SECOND), 7)
    found = taken(spans, bucket(7, 0.0, "a", "b"), bucket(8, 0.0, "a"))
    assert found[8] == Worth(8, 0.9, ("a", "b"), 0.0, ("a", "b"))


def test_without_a_window_a_result_is_worth_its_own_bucket() -> None:
    spans = spans_of(Coverage(0), 1)
    found = taken(spans, bucket(1, 0.25, "a"), bucket(2, 1.0))
    assert found == {1: Worth(1, 0.25, ("b",), 0.25, ("a",)), 2: Worth(2, 1.0, ("a", "b"), 1.0)}


def test_a_window_that_ends_within_buckets_counts_those_that_it_touches() -> None:
    spans = spans_of(Coverage(SECOND // 2, 0, SECOND // 2), 1)
    found = taken(spans, bucket(1, 0.0, "a"), bucket(2, 1.0), bucket(3, 1.0))
    assert [(w.worth, w.least, w.missing) for w in found.values()] == [
        (0.5, 0.0, ("a",)), (0.5, 0.0, ("a",)), (1.0, 1.0, ())
    ]  # fmt: skip


def test_where_the_span_is_not_known_all_that_the_fork_was_given_counts_and_nothing_is_remembered_one_by_one() -> None:
    spans = SpanWorth(Coverage(), SECOND, SECOND)
    taken(spans, *(bucket(number, 1.0, emit=False) for number in range(500)))
    spans.begin(500)
    taken(spans, *(bucket(number, 0.5, "a", least=0.25) for number in range(500, 1500)))
    assert taken(spans, bucket(1500, 1.0)) == {1500: Worth(1500, 0.5005, ("a", "b"), 0.25, ("a",))}
    assert not spans._kept
    assert not spans._falling
    assert not spans._ahead


def test_a_fork_that_follows_main_for_days_remembers_no_more_than_its_results_cover() -> None:
    spans = SpanWorth(Coverage(5 * SECOND, 10 * SECOND), SECOND, SECOND)
    taken(spans, *(bucket(number, 1.0, emit=False) for number in range(10_000)))
    assert len(spans._ahead) < 20
    assert not spans._kept


def test_a_node_downstream_passes_on_what_its_input_lacks_with_its_own_window() -> None:
    union = SUnion(("totals",), SECOND, 0, 0)
    arrivals = Arrival(0, 3, 0.8, 0.5, ("monitor3",), ("monitor1",)), Arrival(1, 3)
    union.advance(InputAdvanced("totals", "a", Lane.BRANCH, 2 * SECOND, arrivals), 0)
    spans, found = spans_of(Coverage(0, 2 * SECOND, 2 * SECOND), 0), {}
    for number in range(2):
        parts, share = union.parts(number)
        found |= taken(spans, TentativeBucket(number, parts, True, *share))
    assert found == {0: Worth(0, 0.9, ("totals",), 0.5, ("monitor3",))}


def covered(coverage: Coverage, output: int, bucket_us: int, output_us: int) -> set[int]:
    """Input buckets that the results of an output bucket cover, instant by instant."""
    found: set[int] = set()
    for at in range(output * output_us, (output + 1) * output_us, GRAIN):
        if coverage.step_us and at % coverage.step_us:
            continue
        assert coverage.before_us is not None
        end = at + coverage.after_us + (0 if coverage.step_us else GRAIN)
        found.update(us // bucket_us for us in range(at - coverage.before_us, end, GRAIN))
    return found


@pytest.mark.parametrize(
    ("coverage", "bucket_us", "output_us"),
    [
        (Coverage(7 * SECOND, 0, SECOND), SECOND, SECOND),
        (Coverage(0, 7 * SECOND, SECOND), SECOND, SECOND),
        (Coverage(7 * SECOND, 7 * SECOND), SECOND, SECOND),
        (Coverage(-5 * SECOND, 5 * SECOND), SECOND, SECOND),
        (Coverage(5 * SECOND + GRAIN, 5 * SECOND + GRAIN), SECOND, SECOND),
        (Coverage(2 * SECOND, 0, SECOND // 2), SECOND, SECOND),
        (Coverage(0, 3 * SECOND // 2, 3 * SECOND // 2), SECOND // 2, SECOND // 2),
        (Coverage(6 * SECOND, 0, 2 * SECOND), SECOND, 2 * SECOND),
        (Coverage(0, 6 * SECOND, 2 * SECOND), 2 * SECOND, SECOND),
    ],
    ids=["end", "start", "min", "earlier", "left", "slide", "half", "coarse output", "fine output"],
)
def test_what_is_told_is_that_of_a_scan_over_all_that_the_results_cover(
    coverage: Coverage, bucket_us: int, output_us: int
) -> None:
    first, numbers = 60 * SECOND // bucket_us, range(30 * SECOND // bucket_us)
    root = (60 * SECOND - coverage.after_us) // output_us
    spans, given = spans_of(coverage, root, bucket_us=bucket_us, output_us=output_us), {}
    found: dict[int, Worth] = {}
    for number in numbers:
        worth = min(((number * 37) % 11) / 10, 1.0) if number % 3 else 1.0
        given[first + number] = bucket(first + number, worth, *(["b"] if worth < 0.3 else []))
        found |= taken(spans, given[first + number])
    until_us = (first + len(numbers)) * bucket_us - coverage.after_us
    assert set(found) >= set(range(root, until_us // output_us))
    for output, told in found.items():
        reached = covered(coverage, output, bucket_us, output_us)
        if not reached:
            continue  # No window ends here: nothing is said of what is never there.
        counted = [given[b] for b in reached if b in given]
        assert told.worth == pytest.approx((sum(b.worth for b in counted) + len(reached) - len(counted)) / len(reached),
                                           abs=1e-4)  # fmt: skip
        assert told.least == min((b.least for b in counted), default=1.0)
        assert told.missing == (("b",) if any(b.missing for b in counted) else ())
