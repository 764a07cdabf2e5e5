"""Partitions of one source become buckets that only their records decide (K1, K2, K3)."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from holdfast.inputs import partition_merge
from holdfast.inputs.partition_merge import Chunk, PartitionMerge
from holdfast.model.errors import UsageError
from holdfast.model.schema import STIME_TYPE
from holdfast.model.time import BEGINNING_US

SECOND = 1_000_000
SCHEMA = pa.schema([pa.field("stime", STIME_TYPE), ("n", pa.int64())])


def chunk(*records: tuple[int, int]) -> Chunk:
    """Of (offset, stime in seconds)."""
    offsets = np.array([o for o, _ in records], np.int64)
    stimes = np.array([int(s * SECOND) for _, s in records], np.int64)
    rows = pa.RecordBatch.from_arrays([pa.array(stimes).cast(STIME_TYPE), pa.array(offsets)], schema=SCHEMA)
    return Chunk(offsets, stimes, rows)


def merge(numbers: dict[str, int] | None = None, **options: object) -> PartitionMerge:
    settings = {"bucket_us": SECOND, "slack_us": 0, "boundary_us": BEGINNING_US, "by_clock": False} | options
    return PartitionMerge(SCHEMA, "k", numbers or {}, **settings)  # type: ignore[arg-type]


def given(one: PartitionMerge, now_us: int = 0) -> list[int]:
    unit = one.unit(now_us)
    if unit is None:
        return []
    one.committed(unit)
    return unit.rows.column("n").to_pylist()


def test_a_partition_with_records_that_were_not_read_holds_the_boundary_back_k2() -> None:
    one = merge()
    for p in (0, 1):
        one.add(p, 0)
    one.ends({0: 3, 1: 2}, 0)
    one.take(0, chunk((0, 1), (1, 2), (2, 3)), 0)
    one.read_until(0, 3)
    assert one.unit(0) is None
    one.take(1, chunk((0, 1.5)), 0)
    one.read_until(1, 1)
    assert given(one) == []  # The bucket of second 1 may have more from partition 1.
    assert one.boundary_us == 1 * SECOND
    one.take(1, chunk((1, 2.5)), 0)
    one.read_until(1, 2)
    # By partition, then offset, within the buckets that are complete: read to its end it holds nothing back.
    assert given(one) == [0, 1, 0, 1]
    assert one.boundary_us == 3 * SECOND


def test_a_partition_read_to_its_end_holds_nothing_back_as_long_as_that_is_known_k2() -> None:
    one = merge()
    for p in (0, 1):
        one.add(p, 0)
    one.ends({0: 1, 1: 0}, 0)
    one.take(0, chunk((0, 5.5)), 0)
    one.read_until(0, 1)
    late_us = partition_merge.END_KNOWN_US
    assert one.boundary(late_us) == one.boundary_us  # Nobody has said anything for so long.
    one.ends({0: 1, 1: 0}, late_us)
    assert one.boundary(late_us) == 5 * SECOND


def test_by_the_clock_a_silent_partition_is_known_to_be_silent_up_to_when_it_was_asked() -> None:
    one = merge(by_clock=True)
    for p in (0, 1):
        one.add(p, 0)
    one.take(0, chunk((0, 5.5)), 0)
    one.read_until(0, 1)
    one.ends({0: 1, 1: 0}, 3_500_000)
    assert one.boundary(9 * SECOND) == 3 * SECOND
    one.ends({0: 1, 1: 0}, 7 * SECOND)
    assert one.boundary(9 * SECOND) == 5 * SECOND


def test_where_silence_means_that_nothing_came_the_boundary_follows_the_clock() -> None:
    one = merge(by_clock=True, idle_us=0)
    one.add(0, 0)
    one.ends({0: 0}, 7_300_000)
    assert one.boundary(9 * SECOND) == 7 * SECOND


def test_offsets_with_gaps_are_no_obstacle_and_an_end_beyond_the_last_record_is_reached_k1() -> None:
    one = merge()
    one.add(0, 0)
    one.ends({0: 11}, 0)
    one.take(0, chunk((3, 1), (9, 2)), 0)
    one.read_until(0, 10)
    assert not one.partitions[0].read_to_end
    one.read_until(0, 11)  # Compaction and markers of transactions take offsets, too.
    assert one.partitions[0].read_to_end
    assert given(one) == [3]
    assert one.unit(0, positions=True) is None


def test_a_record_whose_bucket_is_closed_is_given_back() -> None:
    one = merge()
    one.add(0, 0)
    one.take(0, chunk((0, 1), (1, 5)), 0)
    one.read_until(0, 2)
    assert given(one) == [0]
    assert one.take(0, chunk((2, 3), (3, 6)), 0).tolist() == [2]


def test_what_was_held_is_read_again_and_what_was_given_out_is_passed_over_k1() -> None:
    one = merge(slack_us=2 * SECOND)
    one.add(0, 0)
    one.take(0, chunk((0, 1), (1, 4), (2, 2), (3, 5)), 0)
    one.read_until(0, 4)
    unit = one.unit(0)
    assert unit is not None
    assert unit.rows.column("n").to_pylist() == [0, 2]
    # Killed here, behind the commit; offset 1 was held, 2 was given out.
    again = merge(unit.numbers, slack_us=2 * SECOND, boundary_us=unit.boundary_us)
    again.add(0, 0)
    assert again.partitions[0].next == 1
    assert again.take(0, chunk((1, 4), (2, 2), (3, 5), (4, 2), (5, 9)), 0).tolist() == [4]
    again.read_until(0, 6)
    assert given(again) == [1, 3]


def test_a_boundary_that_somebody_else_has_set_loses_nothing_in_silence() -> None:
    one = merge(slack_us=2 * SECOND)
    one.add(0, 0)
    one.take(0, chunk((0, 1), (1, 4)), 0)
    one.read_until(0, 2)
    unit = one.unit(0)
    assert unit is not None
    again = merge(unit.numbers, boundary_us=8 * SECOND)
    again.add(0, 0)
    assert again.take(0, chunk((1, 4)), 0).tolist() == [1]


@pytest.mark.parametrize("seed", range(10))
def test_however_it_is_cut_and_killed_the_same_records_give_the_same_buckets_k1_k3(seed: int) -> None:
    chance = random.Random(seed)
    topic = {p: [(o * 2 + p, o / 4 + chance.random()) for o in range(40)] for p in range(3)}
    wanted: dict[int, list[int]] = {}
    for records in topic.values():
        for offset, stime in records:
            wanted.setdefault(int(stime), []).append(offset)

    numbers: dict[str, int] = {}
    boundary_us, found = BEGINNING_US, dict[int, list[int]]()
    for _ in range(40):
        one = merge(numbers, slack_us=SECOND, boundary_us=boundary_us)
        for p in topic:
            one.add(p, 0)
        one.ends({p: records[-1][0] + 1 for p, records in topic.items()}, 0)
        for _ in range(chance.randrange(40)):
            p = chance.choice(list(topic))
            part = [r for r in topic[p] if r[0] >= one.partitions[p].next][: chance.randrange(1, 6)]
            if part:
                assert not len(one.take(p, chunk(*part), 0))
                one.read_until(p, part[-1][0] + 1)
            unit = one.unit(0, positions=chance.random() < 0.2)
            if unit is None or chance.random() < 0.2:
                continue  # Killed before the commit, as good as.
            for stime, n in zip(*(unit.rows.column(c).to_pylist() for c in ("stime", "n")), strict=True):
                found.setdefault(int(stime.timestamp()), []).append(n)
            one.committed(unit)
            numbers, boundary_us = {**numbers, **unit.numbers}, unit.boundary_us
    closed = boundary_us // SECOND
    assert closed >= 8
    assert found == {second: offsets for second, offsets in wanted.items() if second < closed}


def test_partitions_that_are_ahead_wait_when_much_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_merge, "HELD_BYTES_MAX", 1000)
    one = merge()
    for p in (0, 1):
        one.add(p, 0)
    one.ends({0: 1000, 1: 1000}, 0)
    one.take(0, chunk(*((n, n) for n in range(100))), 0)
    one.read_until(0, 100)
    assert one.waiting(0, ()) == {0}
    one.take(1, chunk((0, 90)), 0)
    one.read_until(1, 1)
    assert len(given(one)) == 90
    assert one.waiting(0, {0}) == set()


def test_a_slack_that_holds_too_much_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_merge, "HELD_BYTES_MAX", 1000)
    one = merge(slack_us=10_000 * SECOND)
    one.add(0, 0)
    one.ends({0: 1000}, 0)
    one.take(0, chunk(*((n, n) for n in range(200))), 0)
    with pytest.raises(UsageError, match="lower the slack"):
        one.waiting(0, ())


def test_more_partitions_than_can_be_remembered_are_refused() -> None:
    with pytest.raises(UsageError, match="at most"):
        merge().add(partition_merge.PARTITIONS_MAX, 0)
