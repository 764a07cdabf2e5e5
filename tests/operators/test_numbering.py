"""Numbers of groups outlive the process that gave them, so they must not depend on what else it has seen."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import polars as pl
import pytest

from holdfast.operators import numbering
from holdfast.operators.numbering import hash_of, numbered, partition_of
from holdfast.operators.udop import encode

#: Columns whose values Python takes for equal.
ONES = {"whole": pl.Series([1, 0]), "real": pl.Series([1.0, 0.0]), "truth": pl.Series([True, False])}
TEXT = pl.Series(["a", "a"])


def number(kind: str) -> list[int]:
    return numbered([ONES[kind], TEXT], 0).to_list()


@pytest.mark.parametrize("before", ONES)
@pytest.mark.parametrize("kind", ONES)
def test_a_group_has_the_same_number_whatever_the_worker_has_seen_before(kind: str, before: str) -> None:
    numbering._known.clear()
    fresh = number(kind)
    numbering._known.clear()
    number(before)
    assert number(kind) == fresh
    assert (number(before) == fresh) == (kind == before)


def test_numbers_are_those_that_logs_hold_already() -> None:
    assert number("real")[0] == 6031402857889327811
    assert number("whole")[0] == 2709754766305301151


@pytest.mark.parametrize("values", [[0.0, -0.0], [float("nan"), -float("nan")]])
def test_keys_that_count_as_one_have_one_number_whichever_comes_first(values: list[float]) -> None:
    numbering._known.clear()
    first = numbered([pl.Series(values)], 0).to_list()
    numbering._known.clear()
    assert numbered([pl.Series(values[::-1])], 0).to_list() == first
    assert first[0] == first[1]


def spark_hash(number: int) -> int:
    """MurmurHash3 of 32 bits over a long, as Spark's `Murmur3_x86_32.hashLong` computes it, seed 42."""
    bits, x = 2**32 - 1, 42
    for half in (number & bits, number >> 32 & bits):
        k = half * 0xCC9E2D51 & bits
        k = (k << 15 | k >> 17) * 0x1B873593 & bits
        x ^= k
        x = ((x << 13 | x >> 19) & bits) * 5 + 0xE6546B64 & bits
    x ^= 8
    x = (x ^ x >> 16) * 0x85EBCA6B & bits
    x = (x ^ x >> 13) * 0xC2B2AE35 & bits
    x ^= x >> 16
    return x - 2**32 if x >> 31 else x


@pytest.mark.parametrize("partitions", [1, 2, 3, 8, 200])
@pytest.mark.parametrize(("low", "high", "count"), [(-40, 60, 20_000), (-(2**63), 2**63 - 1, 9_000), (5, 6, 1)])
def test_groups_live_where_spark_would_put_them(low: int, high: int, count: int, partitions: int) -> None:
    """Close together or far apart, few or more than are hashed at a time."""
    numbers = np.random.default_rng(count).integers(low, high, count, endpoint=True)
    expected = [spark_hash(n) % partitions for n in numbers.tolist()]
    assert partition_of(numbers, partitions).tolist() == expected


def test_no_groups_live_nowhere() -> None:
    assert len(partition_of(np.zeros(0, np.int64), 4)) == 0


@pytest.mark.parametrize("low", [-(2**63), 2**63 - 3])
def test_the_largest_numbers_lie_where_spark_puts_them_however_many_come_together(low: int) -> None:
    """A batch of few keys that come often is hashed key by key: the same keys among others must lie where those do."""
    keys = [low, low + 1, low + 2]
    wanted = [spark_hash(key) % 7 for key in keys]
    assert partition_of(np.array(keys * 5), 7).tolist() == wanted * 5
    assert partition_of(np.array([*keys, 0]), 7).tolist()[:3] == wanted


@pytest.mark.parametrize("number", [10**38 - 1, -(10**38 - 1), 12345678901234567890123456789012345678, 10**28 + 1])
@pytest.mark.parametrize("scale", [0, 3, 38])
def test_no_digit_of_a_long_decimal_key_is_rounded_off(number: int, scale: int) -> None:
    """Spark hashes the bytes of the whole number that it is without its point; `test_partitions` has Spark's word."""
    key = Decimal(f"{number}e-{scale}")
    raw = number.to_bytes(16, "big", signed=True)
    while len(raw) > 1 and raw[0] == (0xFF if raw[1] & 0x80 else 0):  # Java writes as few as will do.
        raw = raw[1:]
    assert hash_of(encode(key), f"decimal(38,{scale})") == hash_of(encode(raw), "binary")
