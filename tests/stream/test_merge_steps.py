"""Steps of a query that is run bucket by bucket."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import holdfast
from holdfast.model.time import BEGINNING_US
from holdfast.stream.merge import FOREVER_US, Merge

SECOND = 1_000_000


def test_steps_follow_the_buckets_from_the_first_tuple_to_the_end_wherever_a_query_begins(tmp_path: Path) -> None:
    stream = holdfast.open(tmp_path).create("s", "n bigint", bucket="1s")
    producer = stream.producer(stime="stime", slack="0s", max_ahead=None)
    producer.send_many([{"stime": datetime.fromtimestamp(s, UTC), "n": s} for s in (1_000_000, 1_000_003)])
    merge = Merge([stream])
    first, last = 1_000_001 * SECOND, 1_000_004 * SECOND
    assert merge.step(BEGINNING_US, last, SECOND) == first
    assert merge.step(5 * SECOND, last, SECOND, begins=True) == first, "a year of empty batches before the first tuple"
    assert merge.step(first, last, SECOND) == first + SECOND, "each bucket in turn, tuples or not: timers may be due"
    assert merge.step(first, first + SECOND // 2, SECOND) == first + SECOND // 2
    producer.close()
    merge.refresh()
    assert merge.step(last, FOREVER_US, SECOND) == FOREVER_US
    merge.close()
