from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.errors import UsageError
from holdfast.model.time import (
    BEGINNING_US,
    END_OF_TIME_US,
    bucket_of,
    closed_until,
    duration_text,
    duration_us,
    instant_text,
    instant_us,
)


@pytest.mark.parametrize(
    ("value", "us"),
    [("3s", 3_000_000), (" 250 ms ", 250_000), ("1.5m", 90_000_000), ("2h", 7_200_000_000), ("1d", 86_400_000_000),
     ("7us", 7), ("7µs", 7), (2, 2_000_000), (0.5, 500_000), (timedelta(minutes=1), 60_000_000)],
)  # fmt: skip
def test_durations_are_read_as_people_write_them(value: object, us: int) -> None:
    assert duration_us(value) == us  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "value", ["", "3", "s", "3 parsecs", "-3s", "3s 4ms", None, True, [], float("nan"), float("inf")]
)
def test_what_is_no_duration_is_refused_with_examples(value: object) -> None:
    with pytest.raises(UsageError, match="250ms"):
        duration_us(value)  # type: ignore[arg-type]


@given(st.integers(0, 10**15))
def test_a_duration_written_is_the_duration_read(us: int) -> None:
    assert duration_us(duration_text(us)) == us


@pytest.mark.parametrize(
    ("value", "us"),
    [("1970-01-01T00:00:01", 1_000_000), ("1970-01-01T01:00:00+01:00", 0), ("1970-01-01", 0), ("1.5", 1_500_000),
     ("-2", -2_000_000), (3, 3_000_000), (datetime(1970, 1, 2), 86_400_000_000),
     (datetime(1970, 1, 1, 2, tzinfo=timezone(timedelta(hours=2))), 0)],
)  # fmt: skip
def test_instants_are_read_as_people_write_them(value: object, us: int) -> None:
    assert instant_us(value) == us  # type: ignore[arg-type]


@pytest.mark.parametrize("value", ["yesterday", "", "2026-13-01", float("nan"), float("inf")])
def test_what_is_no_instant_is_refused_with_an_example(value: object) -> None:
    with pytest.raises(UsageError, match="2026-03-01T12:00:00Z"):
        instant_us(value)  # type: ignore[arg-type]


@given(st.datetimes(timezones=st.just(UTC)))
def test_an_instant_written_is_the_instant_read(at: datetime) -> None:
    assert instant_us(instant_text(instant_us(at))) == instant_us(at)


def test_the_ends_of_time_have_names() -> None:
    assert instant_text(END_OF_TIME_US) == "end of stream"
    assert instant_text(BEGINNING_US) == "beginning"


@given(st.integers(BEGINNING_US + 1, END_OF_TIME_US - 1))
def test_every_time_between_the_ends_can_be_written(us: int) -> None:
    """A message about a mad stime must not fail on the stime."""
    assert instant_text(us)


@given(st.integers(-(10**12), 10**12), st.integers(1, 10**9))
def test_a_boundary_closes_exactly_the_buckets_that_end_at_or_before_it(us: int, size: int) -> None:
    bucket = bucket_of(us, size)
    assert bucket * size <= us < (bucket + 1) * size
    assert closed_until(us, size) == bucket * size
    assert closed_until((bucket + 1) * size, size) == (bucket + 1) * size
