"""What earlier versions have written opens, and queries go on from it: `tests/spark/samples` has what each left.

`tests.spark.sample_job` says what is in a sample, and has the definitions that made it.
"""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import LongType, StringType, StructType

import holdfast
from holdfast.spark.arrivals import operators_in
from holdfast.spark.keyed_task import Task
from holdfast.spark.scratch import of_this_boot
from holdfast.spark.versions import scratch_folder
from tests.spark.conftest import tuples
from tests.spark.sample_job import HALF, ROWS, feed, operators, run_flow, run_operator

SAMPLES = sorted(Path(__file__).with_name("samples").glob("*.tar.gz"))


@pytest.fixture(params=SAMPLES, ids=lambda path: path.name.partition(".")[0])
def sample(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A sample, as if it had been written here and since this machine was started."""
    with tarfile.open(request.param) as archive:
        archive.extractall(tmp_path, filter="data")
    (boot,) = (tmp_path / "scratch").iterdir()
    boot.rename(boot.with_name(of_this_boot(tmp_path / "none").name))
    (versions,) = (tmp_path / "versions").iterdir()
    versions.rename(scratch_folder(str(tmp_path / "streams"), "windows", tmp_path / "versions", local=True))
    return tmp_path


def windows(rows: list[tuple[float, str, int]]) -> list[tuple[str, int, int]]:
    """Each four tuples of a key, and how they add up."""
    found = []
    for key in sorted({key for _, key, _ in rows}):
        values = [value for _, k, value in rows if k == key]
        found += [(key, 4, sum(values[i : i + 4])) for i in range(0, len(values) // 4 * 4, 4)]
    return found


def sums(rows: list[tuple[float, str, int]]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for _, key, value in rows:
        found.setdefault(key, []).append((found.get(key) or [0])[-1] + value)
    return found


@pytest.mark.parametrize("lost", [False, True], ids=["scratch", "log"])
def test_a_flow_goes_on_from_what_an_earlier_version_left(spark: SparkSession, sample: Path, lost: bool) -> None:
    """Its stream with control frames, Spark's checkpoint with its note, and versions on scratch or none."""
    output = holdfast.open(sample / "streams").open("windows")
    before = tuples(output)
    assert sorted(row[-3:] for row in before) == windows(ROWS[:HALF])
    if lost:
        shutil.rmtree(sample / "versions")
    feed(sample, second=True)
    run_flow(spark, sample, "windows", "checkpoint-windows")
    after = tuples(output)
    assert after[: len(before)] == before
    assert sorted(row[-3:] for row in after) == windows(ROWS)


@pytest.mark.parametrize(
    ("name", "lost"), [("exact", "scratch"), ("unsaved", "store")], ids=["from the store", "from scratch"]
)
def test_an_operator_goes_on_from_what_an_earlier_version_left(
    spark: SparkSession, sample: Path, name: str, lost: str
) -> None:
    shutil.rmtree(sample / lost)
    feed(sample, second=True)
    found: dict[str, list[int]] = {}
    for key, value in run_operator(spark, sample, name):
        found.setdefault(key, []).append(value)
    before = sums(ROWS[:HALF])
    assert found == {key: values[len(before[key]) :] for key, values in sums(ROWS).items()}


def test_states_in_parts_that_an_earlier_version_left_in_a_store_come_back(spark: SparkSession, sample: Path) -> None:
    shutil.rmtree(sample / "scratch")
    feed(sample, second=True)
    expected = set()
    for _, key, b in ROWS[HALF:]:
        if b % 3 == 0:
            expected |= {(key, a, b) for a in [v for _, k, v in ROWS[:b] if k == key and v % 3][-5:]}
    assert set(run_operator(spark, sample, "pairs")) == expected


def test_states_that_an_earlier_version_sent_to_another_host_arrive(sample: Path) -> None:
    came = operators_in(sample / "parcel")
    assert came
    schema = to_arrow_schema(StructType().add("key", StringType()).add("sum", LongType()))
    task = Task(operators(sample)["unsaved"], schema, 1, None, came)
    rows: Any = pa.record_batch({"key": ["a", "b"], "value": [10, 20]})
    assert [r for out in task.run([rows], "here", 1, 0) for r in out.to_pylist()] == [
        {"key": "a", "sum": 14}, {"key": "b", "sum": 22},
    ]  # fmt: skip
