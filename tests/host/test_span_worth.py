"""What results are worth that cover several buckets (003 §5.8.3)."""

from __future__ import annotations

import pytest

from holdfast.host.span_worth import SpanWorth
from holdfast.protocol.dpc.effects import TentativeBucket

SECOND = 1_000_000


def bucket(number: int, worth: float, *missing: str, least: float | None = None) -> TentativeBucket:
    return TentativeBucket(number, (), True, worth, worth if least is None else least, missing)


def test_a_window_of_a_minute_knows_that_an_input_was_away_for_most_of_it() -> None:
    """It used to say 1.0, because the input was back in the bucket of the window's end."""
    spans = SpanWorth(60 * SECOND, SECOND)
    for number in range(48):
        spans.of(bucket(number, 0.5, "monitor3"))
    for number in range(48, 60):
        spans.of(bucket(number, 1.0))
    mean, least, missing = spans.of(bucket(60, 1.0))
    assert mean == pytest.approx((48 * 0.5 + 12) / 60)
    assert (least, missing) == (0.5, ("monitor3",))
    for number in range(61, 108):
        mean, least, missing = spans.of(bucket(number, 1.0))
    assert (least, missing) == (0.5, ("monitor3",)), "one bucket of it is left"
    assert spans.of(bucket(108, 1.0)) == (pytest.approx(1.0), 1.0, ())


def test_buckets_that_the_fork_was_not_given_came_from_main_and_are_whole() -> None:
    spans = SpanWorth(10 * SECOND, SECOND)
    spans.of(bucket(7, 0.0, "a", "b"))
    assert spans.of(bucket(8, 0.0, "a")) == (pytest.approx(0.9), 0.0, ("a", "b"))


def test_without_a_window_a_result_is_worth_its_own_bucket() -> None:
    spans = SpanWorth(0, SECOND)
    assert spans.of(bucket(1, 0.25, "a")) == (pytest.approx(0.25), 0.25, ("a",))
    assert spans.of(bucket(2, 1.0)) == (pytest.approx(1.0), 1.0, ())


def test_a_window_that_ends_within_buckets_counts_those_that_it_touches() -> None:
    spans = SpanWorth(SECOND // 2, SECOND)
    spans.of(bucket(1, 0.0, "a"))
    assert spans.of(bucket(2, 1.0)) == (pytest.approx(0.5), 0.0, ("a",))
    assert spans.of(bucket(3, 1.0)) == (pytest.approx(1.0), 1.0, ())


def test_where_the_span_is_not_known_all_that_the_fork_was_given_counts_and_nothing_is_remembered_one_by_one() -> None:
    spans = SpanWorth(None, SECOND)
    for number in range(1000):
        spans.of(bucket(number, 0.5, "a", least=0.25))
    assert spans.of(bucket(1000, 1.0)) == (pytest.approx(0.5, abs=0.001), 0.25, ("a",))
    assert not spans._kept
    assert not spans._falling


def test_the_least_is_that_of_a_scan_over_all_buckets_of_the_window() -> None:
    spans, given = SpanWorth(7 * SECOND, SECOND), []
    for number in range(200):
        worth = ((number * 37) % 11) / 10 if number % 3 else 1.0
        now = bucket(number, min(worth, 1.0), *(["x"] if worth < 0.3 else []))
        covered = [b for b in given if number - 7 <= b.bucket < number]
        mean, least, missing = spans.of(now)
        given.append(now)
        assert least == min((b.least for b in covered), default=1.0)
        assert mean == pytest.approx((sum(b.worth for b in covered) + 7 - len(covered)) / 7)
        assert missing == (("x",) if any(b.missing for b in covered) else ())
