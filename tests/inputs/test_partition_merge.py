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


# -- several hosts that read the same source ---------------------------------------------------------------------------


#: When a record was appended, and the time that its broker gave it.
Appended = tuple[float, float]


class Reader:
    """One host's way through the records of two partitions as they come: in portions of its own, with ends that it asks
    for when it does, and stops on the way. What it gives out and what it finds late is all that others see."""

    def __init__(self, records: dict[int, list[Appended]], chance: random.Random, now: float) -> None:
        self._records, self._chance, self._now = records, chance, now
        self.buckets: dict[int, list[tuple[int, int]]] = {}
        self.late: set[tuple[int, int]] = set()
        self._numbers: dict[str, int] = {}
        self._start()

    def _start(self) -> None:
        self.one = merge(self._numbers, shared=True, slack_us=2 * SECOND, by_clock=True)
        for p in self._records:
            self.one.add(p, 0)

    def _there(self) -> dict[int, int]:
        return {p: sum(at <= self._now for at, _ in records) for p, records in self._records.items()}

    def go_on(self) -> None:
        self._now += self._chance.choice([0, 0.5, 3])
        p = self._chance.choice(list(self._records))
        first = self.one.partitions[p].next
        upto = min(self._there()[p], first + self._chance.randrange(6))
        if upto > first:
            portion = chunk(*((n, self._records[p][n][1]) for n in range(first, upto)))
            self.late |= {(p, int(n)) for n in self.one.take(p, portion, 0)}
            self.one.read_until(p, upto)
        if self._chance.random() < 0.5:
            self._ask(self._now - self._chance.random())  # The broker's clock, or less.
        self.commit()
        if self._chance.random() < 0.1:
            self._start()

    def _ask(self, clock: float) -> None:
        self.one.ends(self._there(), int(clock * SECOND))
        self.one.partitions_known(int(clock * SECOND))

    def commit(self) -> None:
        unit = self.one.unit(int(self._now * SECOND), positions=self._chance.random() < 0.3)
        if unit is None:
            return
        self.one.committed(unit)
        self._numbers.update(unit.numbers)
        stimes = unit.rows.column("stime").cast(pa.int64()).to_pylist()
        for stime, n in zip(stimes, unit.rows.column("n").to_pylist(), strict=True):
            self.buckets.setdefault(stime // SECOND, []).append((stime, n))

    def finish(self) -> None:
        while any(p.next < len(self._records[n]) for n, p in self.one.partitions.items()):
            self.go_on()
        self._ask(self._now)
        self.commit()


@pytest.mark.parametrize("seed", range(60))
def test_hosts_that_read_a_source_in_other_portions_have_the_same_buckets_and_the_same_late_records_k3(
    seed: int,
) -> None:
    """Some begin while records come, some when all are there. Brokers' clocks are set back, within the slack; beyond it
    only where everybody comes afterwards."""
    chance = random.Random(seed)
    live = seed % 3 > 0
    records: dict[int, list[Appended]] = {0: [], 1: []}
    for appended in records.values():
        now = 10.0
        for _ in range(chance.randrange(5, 60)):
            now += chance.choice([0.1, 0.3, 1.0, 4.0])
            appended.append((now, now - chance.choice([0, 0, 0, 0, 1.5, 1.5 if live else 7])))
    begins = [0.0, 30.0, 1000.0] if live else [1000.0] * 3
    readers = [Reader(records, random.Random(f"{seed} {n}"), now) for n, now in enumerate(begins)]
    for reader in readers:
        reader.finish()
    closed = min(reader.one.boundary_us for reader in readers) // SECOND
    seen = [{b: rows for b, rows in reader.buckets.items() if b < closed} for reader in readers]
    assert seen[0]
    assert seen[0] == seen[1] == seen[2]
    assert readers[0].late == readers[1].late == readers[2].late


def test_a_record_against_the_promise_of_a_shared_source_is_an_error_and_no_late_record_k3() -> None:
    one = merge(shared=True, by_clock=True)
    for p in (0, 1):
        one.add(p, 0)
    one.take(0, chunk((0, 5), (1, 9)), 0)
    one.read_until(0, 2)
    one.ends({0: 2, 1: 0}, 9 * SECOND)
    one.partitions_known(9 * SECOND)
    assert given(one, 9 * SECOND) == [0]
    with pytest.raises(UsageError, match="partition 1 has at offset 0 a record of 1970-01-01T00:00:08"):
        one.take(1, chunk((0, 8.5)), 0)


def test_a_shared_source_closes_nothing_before_it_knows_which_partitions_there_are() -> None:
    one = merge(shared=True, by_clock=True)
    one.add(0, 0)
    one.take(0, chunk((0, 5), (1, 9)), 0)
    one.read_until(0, 2)
    one.ends({0: 2}, 9 * SECOND)
    one.partitions_known(6 * SECOND)
    assert one.boundary(9 * SECOND) == 6 * SECOND


def test_what_a_partition_has_promised_is_known_after_a_start_that_reads_nothing_of_it_again_k3() -> None:
    """A broker's clock was set back meanwhile: late is late at every host, whether it was started again or not."""
    kept: dict[str, int] = {}

    def taken_up() -> PartitionMerge:
        one = merge(kept, shared=True, by_clock=True, slack_us=2 * SECOND)
        for p in (0, 1):
            one.add(p, 0)
        return one

    one = taken_up()
    one.take(0, chunk((0, 10), (1, 20)), 0)
    one.read_until(0, 2)
    one.take(1, chunk((0, 40)), 0)
    one.read_until(1, 1)
    one.ends({0: 2, 1: 1}, 41 * SECOND)
    one.partitions_known(41 * SECOND)
    unit = one.unit(41 * SECOND)
    assert unit is not None
    assert unit.rows.num_rows == 2
    one.committed(unit)
    kept.update(unit.numbers)
    for host in (one, taken_up()):
        assert host.take(0, chunk((2, 15)), 0).tolist() == [2]


def test_a_copy_of_a_silent_source_goes_on_after_a_start_with_the_time_that_its_log_knows_k2() -> None:
    kept: dict[str, int] = {}

    def taken_up() -> PartitionMerge:
        one = merge(kept, shared=True, by_clock=True, slack_us=2 * SECOND)
        one.add(0, 0)
        return one

    one = taken_up()
    assert one.reached_us == BEGINNING_US
    one.take(0, chunk((0, 10), (1, 20)), 0)
    one.read_until(0, 2)
    one.ends({0: 2}, 15 * SECOND)
    one.partitions_known(15 * SECOND)
    unit = one.unit(15 * SECOND, positions=True)
    assert unit is not None
    kept.update(unit.numbers)
    again = taken_up()
    assert again.reached_us == 20 * SECOND
    again.take(0, chunk((1, 20)), 0)
    again.read_until(0, 2)
    again.partitions_known(40 * SECOND)
    again.ends({0: 2}, 40 * SECOND)
    unit = again.unit(40 * SECOND, positions=True)
    assert unit is not None
    assert unit.boundary_us == 18 * SECOND
    kept["k-boundary"] = 25 * SECOND - BEGINNING_US  # By the clock, where it may follow it.
    assert taken_up().reached_us == 27 * SECOND
