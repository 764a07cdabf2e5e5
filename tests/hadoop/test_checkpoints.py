"""Checkpoints where Spark has them: the same queries with theirs in a local folder, on HDFS and on S3.

One driver runs all of them and is killed with all that belongs to it; they go on in the tests' own session, are forked
there while they run, and must come to what plain Python counts. Their inputs grow step by step, so that none is done
before it is killed or forked. The files of the checkpoints are read by Spark where the oracle needs them.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.sql import SparkSession

import holdfast
from holdfast.model.errors import UsageError
from holdfast.operators.functions import count, sum_
from holdfast.operators.windows import count_window
from holdfast.spark.flow import Flow, flow
from holdfast.spark.fork import Forked, fork_checkpoint, last_commit
from holdfast.spark.hadoop_path import checkpoint_folder
from tests.hadoop import job
from tests.hadoop.places import HDFS, LOCAL, S3, Places, unavailable
from tests.spark.conftest import T0, fill, layout
from tests.spark.processes import REPOSITORY, environment, kill_tree, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

#: `make test-faults` kills more often, and has every query everywhere.
LONG = "HOLDFAST_HADOOP_KILLS" in os.environ
CASES = [(place, query) for place in (LOCAL, HDFS, S3) for query in job.QUERIES]
if not LONG:
    CASES = [(HDFS, "pairs"), (S3, "windows")]
KILLS = int(os.environ.get("HOLDFAST_HADOOP_KILLS", "1"))
#: One for each kill, one for the forks, and what follows these.
STEPS, STEP_S = KILLS + 2, 2
A = [(i * 0.02, f"k{i % 7}", i * 31 % 1000) for i in range(50 * STEP_S * STEPS)]
B = [(i * 0.05, f"k{i % 5}", i) for i in range(20 * STEP_S * (STEPS - 1))]  # It ends before the other.
Row = tuple[Any, ...]


def counted(later_than_us: int = 0) -> Counter[Row]:
    """The windows that end later than that."""
    found: dict[tuple[int, str], list[int]] = {}
    for t, key, value in A:
        found.setdefault((int(T0 + t + 1) * 1_000_000, key), []).append(value)
    return Counter((end, key, len(v), sum(v)) for (end, key), v in found.items() if end > later_than_us)


def paired(read_us: tuple[int, int] = (0, 0)) -> Counter[Row]:
    """The pairs of which a row, at least, comes from where the streams were not read yet."""
    found: Counter[Row] = Counter()
    for t, key, value in A:
        for u, other, number in B:
            left, right = round((T0 + t) * 1e6), round((T0 + u) * 1e6)
            near = key == other and abs(left - right) <= job.REACH_S * 1e6
            if near and not (left < read_us[0] and right < read_us[1]):
                found[(max(left, right), key, value, number)] += 1
    return found


def rows_of(stream: holdfast.Stream) -> Counter[Row]:
    found: Counter[Row] = Counter()
    for batch in stream.subscribe().poll():
        for row in batch.to_pylist():
            stime, *values = (row[name] for name in row if name not in ("tuple_type", "tuple_id"))
            found[(round(stime.timestamp() * 1e6), *values)] += 1
    return found


class Ran(NamedTuple):
    """What came of it."""

    store: holdfast.StreamStore
    killed_at: dict[str, int]
    """The last batch that each query was known to have committed when its driver was killed."""
    went_on_at: dict[str, int]
    """The last one that its checkpoint had."""
    forks: dict[str, tuple[Forked, Counter[Row]]]
    """Of each query, and what it must come to."""


def beginning(spark: SparkSession, query: str, checkpoint: str, batch: int) -> Counter[Row]:
    """What comes behind a batch, by Spark's own record of it."""
    lines = [row[0] for row in spark.read.text(f"{checkpoint}/offsets/{batch}").collect()]
    assert lines[0] in ("v1", "v2")
    if query == "windows":
        return counted(json.loads(lines[1])["batchWatermarkMs"] * 1000)
    left, right = (int(json.loads(line)["until_us"]) for line in lines[2:])
    return paired((left, right))


def jobs(places: Places) -> dict[str, tuple[str, str, str]]:
    """By its output: the query, its place and its checkpoint."""
    return {f"{place}-{query}": (query, place, f"{places.at(place)}/{query}")
            for place, query in CASES if unavailable(place) is None}  # fmt: skip


def grow(store: holdfast.StreamStore, step: int) -> None:
    """B ends a step before A."""
    for name, rows, steps in (("a", A, STEPS), ("b", B, STEPS - 1)):
        new = [row for row in rows if step * STEP_S <= row[0] < (step + 1) * STEP_S]
        if step < steps:
            fill(store, name, new, end=step == steps - 1, until=(step + 1) * STEP_S)


def killed(store: holdfast.StreamStore, places: Places, folder: Path) -> dict[str, int]:
    """A driver that is killed as soon as each query has committed something."""
    wanted = [(query, checkpoint, output) for output, (query, _, checkpoint) in jobs(places).items()]
    words = (str(store.root), json.dumps(places.settings()), json.dumps(wanted))
    log = folder / "job.log"
    with log.open("w") as out:
        process = subprocess.Popen([sys.executable, "-m", "tests.hadoop.job", *words], cwd=REPOSITORY,
                                   env=environment(), stdout=out, stderr=subprocess.STDOUT, text=True)  # fmt: skip
    last: dict[str, int] = {}

    def far_enough() -> bool:
        text = log.read_text()
        assert process.poll() is None, text[-3000:]
        told = [line.partition(" ") for line in text.splitlines()]
        last.update({name: int(batch) for name, _, batch in told if batch.isdigit()})
        return len(last) == len(wanted)

    try:
        wait_for(far_enough, "a batch of every query", 300)
        if KILLS > 1:
            time.sleep(random.random())
    finally:
        kill_tree(process)
    return last


@pytest.fixture(scope="module")
def ran(places: Places, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Ran:
    if not jobs(places):
        pytest.skip(" and ".join(sorted({unavailable(place) or "" for place, _ in CASES})))
    folder = tmp_path_factory.mktemp("ran")
    store = holdfast.open(folder / "streams")
    for step in range(KILLS):
        grow(store, step)
        killed_at = killed(store, places, folder)
    spark: SparkSession = request.getfixturevalue("spark")  # Not earlier: the killed one has the machine for itself.
    root, made = str(store.root), jobs(places)
    went_on_at = {output: last_commit(checkpoint_folder(at)) for output, (_, _, at) in made.items()}
    grow(store, KILLS)
    running = [job.start(spark, query, root, at, output, rows="200") for output, (query, _, at) in made.items()]
    forks = {}
    for output, (query, _, at) in made.items():
        wait_for(lambda o=output, a=at: last_commit(checkpoint_folder(a)) > went_on_at[o], f"a batch of {output}", 300)
        forked = fork_checkpoint(checkpoint_folder(at), checkpoint_folder(f"{at}-fork"))
        forks[output] = (forked, beginning(spark, query, f"{at}-fork", forked.batch_id))
    grow(store, KILLS + 1)
    running += [job.start(spark, query, root, f"{at}-fork", f"fork-{output}", rows="200")
                for output, (query, _, at) in made.items()]  # fmt: skip
    # What the others are compared with.
    running += [job.start(spark, query, root, f"{places.at(LOCAL)}/{query}", f"{LOCAL}-{query}", rows="200")
                for query in job.QUERIES if (LOCAL, query) not in CASES]  # fmt: skip
    for one in running:
        assert one.awaitTermination(300), f"{one.name} has not ended: {one.status}"
    return Ran(store, killed_at, went_on_at, forks)


@pytest.mark.parametrize(("place", "query"), CASES)
def test_a_query_goes_on_from_its_checkpoint_after_kill_9_and_loses_and_repeats_nothing(
    ran: Ran, places: Places, place: str, query: str
) -> None:
    """C1, S2: Spark's state, Spark's own log, and the boundary that is taken from there."""
    places.at(place)
    name = f"{place}-{query}"
    assert ran.went_on_at[name] >= ran.killed_at[name] >= 0
    assert rows_of(ran.store.open(name)) == (counted() if query == "windows" else paired())


@pytest.mark.parametrize(("place", "query"), CASES)
def test_where_the_checkpoint_lies_changes_no_byte(ran: Ran, places: Places, place: str, query: str) -> None:
    """D9: batches were cut in other places, and boundaries read through another filesystem."""
    places.at(place)
    found = layout(ran.store.open(f"{place}-{query}"))
    assert found == layout(ran.store.open(f"{LOCAL}-{query}"))
    assert len(found) >= 4


@pytest.mark.parametrize(("place", "query"), CASES)
def test_a_fork_of_a_running_query_comes_to_what_its_parent_comes_to_behind_it(
    ran: Ran, places: Places, place: str, query: str
) -> None:
    """S1: on HDFS and S3 by copies."""
    places.at(place)
    forked, expected = ran.forks[f"{place}-{query}"]
    assert forked.linked == (place == LOCAL)
    assert rows_of(ran.store.open(f"fork-{place}-{query}")) == expected
    assert expected


def test_s3_copies_itself_what_a_fork_takes_over(ran: Ran, places: Places) -> None:
    places.at(S3)
    requests = places.s3_log.read_text()
    for query in (query for place, query in CASES if place == S3):
        begun = [line for line in requests.splitlines() if f"/{query}-fork/state/" in line and '"PUT ' in line]
        assert begun, "no state was copied"
        forked, _ = ran.forks[f"{S3}-{query}"]
        taken = f"/checkpoints/{query}/offsets/{forked.batch_id} "
        assert f'"PUT {taken}' in requests
        first_copy = requests.index(f'"PUT /checkpoints/{query}-fork/')
        assert f'"GET {taken}' not in requests[first_copy:], "an object went through the driver"


def summed(spark: SparkSession, store: holdfast.StreamStore, size: int) -> Flow:
    read = flow(spark, "a", root=str(store.root), partitions=2, maxRowsPerBatch="200")
    return read.aggregate(count(), sum_("value"), window=count_window(size), by="key")


@pytest.mark.parametrize("place", [HDFS, S3, *([LOCAL] if LONG else [])])
def test_a_changed_flow_is_refused_by_the_note_in_its_checkpoint(
    spark: SparkSession, places: Places, place: str, tmp_path: Path
) -> None:
    """C12."""
    store = holdfast.open(tmp_path / "streams")
    fill(store, "a", A[:100], end=False, until=2)
    at = f"{places.at(place)}/flow"
    where = {"checkpoint_location": at, "trigger": {"availableNow": True}, "bucket": "1s"}
    summed(spark, store, 10).write("sums", **where).awaitTermination()
    with pytest.raises(UsageError, match="it has changed") as refused:
        summed(spark, store, 11).write("sums", **where)
    assert f"remove {at}/identity" in str(refused.value)
    fork_checkpoint(checkpoint_folder(at), checkpoint_folder(f"{at}-fork"))
    fill(store, "a", A[100:])
    summed(spark, store, 10).write("sums", **where).awaitTermination()
    fork = {**where, "checkpoint_location": f"{at}-fork", "lineage": "fork", "fork_of": "sums"}
    for _ in range(2):  # The second start finds where it parted in its note.
        summed(spark, store, 10).write("forked", **fork).awaitTermination()
    assert rows_of(store.open("sums")) == by_tens(A)
    assert rows_of(store.open("forked")) == by_tens(A) - by_tens(A[:100])


def by_tens(rows: list[tuple[float, str, int]]) -> Counter[Row]:
    """Each ten rows of a key, at the time of the last of them."""
    waiting: dict[str, list[int]] = {}
    found: Counter[Row] = Counter()
    for t, key, value in rows:
        waiting.setdefault(key, []).append(value)
        if len(waiting[key]) == 10:
            found[(round((T0 + t) * 1e6), key, 10, sum(waiting.pop(key)))] += 1
    return found
