"""How operators in executors keep the deadlines of their checkpoints. Tasks are run by hand, with a clock by hand."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import LongType, StringType, StructType

from holdfast.checkpoint.deadlines import Kept
from holdfast.checkpoint.policy import every, none
from holdfast.model.errors import UsageError
from holdfast.spark.keyed import Keyed, deadlines, udop
from holdfast.spark.keyed_task import Task
from holdfast.spark.save_figures import Newest, Saving, Savings
from tests.spark.summing import Summing

SCHEMA = StructType().add("key", StringType()).add("sum", LongType())
SECOND = 1_000_000
T0 = 1_700_000_000 * SECOND


def operator(folder: Path, checkpoint: Any) -> Keyed:
    return udop("running", Summing, key="key", schema=SCHEMA, checkpoint=checkpoint, store=f"log:{folder}/far",
                scratch=str(folder / "near"))  # fmt: skip


class Told:
    """What tasks have said of their checkpoints, put together as Spark's driver does."""

    def __init__(self) -> None:
        self.value: Savings = {}

    def add(self, told: Savings) -> None:
        self.value = Newest().addInPlace(self.value, Newest().addInPlace({}, told))

    @property
    def only(self) -> Saving:
        (saving,) = self.value.values()
        return saving


class Clocked:
    """A partition whose batches begin and end when the test says."""

    def __init__(self, plan: Keyed, patch: pytest.MonkeyPatch) -> None:
        self.told: Any = Told()
        self._task, self._batch = Task(plan, to_arrow_schema(SCHEMA), figures=self.told), 0
        self._begin = self._end = 0
        patch.setattr("holdfast.spark.keyed_task.now_us", lambda: self._begin)
        patch.setattr("holdfast.spark.save_policy.now_us", lambda: self._end)

    def run(self, begin: float, end: float, value: int = 1) -> int:
        """The sum so far."""
        self._begin, self._end = (T0 + round(at * SECOND) for at in (begin, end))
        rows = pa.record_batch({"key": ["a"] if value else [], "value": [value] if value else []})
        rows = rows.cast(pa.schema([("key", pa.string()), ("value", pa.int64())]))
        found = [r["sum"] for out in self._task.run([rows], "q", self._batch, 0) for r in out.to_pylist()]
        self._batch += 1
        return int(found[-1]) if found else 0


@pytest.fixture
def clocked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clocked:
    return Clocked(operator(tmp_path, every("10s")), monkeypatch)


@pytest.mark.filterwarnings("ignore:.*deadlines missed")
def test_deadlines_stand_on_a_grid_and_are_judged_when_batches_end(clocked: Clocked, tmp_path: Path) -> None:
    """Tolerance half a second; 10 s is met early, since the next chance is a batch away; 20 s is met late."""
    plan = operator(tmp_path, every("10s"))
    for begin in range(0, 8, 2):
        clocked.run(begin, begin + 1)
    assert deadlines(plan, "q") == {}, "nothing was due"
    clocked.run(8.6, 9.6)
    assert deadlines(plan, "q") == {0: Kept(10 * SECOND, met=1)}
    clocked.run(19, 20.4)
    assert deadlines(plan, "q") == {0: Kept(10 * SECOND, met=2, late_us_max=400_000)}
    clocked.run(29, 29.4)
    clocked.run(30, 31)
    assert deadlines(plan, "q") == {0: Kept(10 * SECOND, met=2, missed=1, late_us_max=SECOND)}
    clocked.run(32, 33)
    clocked.run(60.1, 66)
    assert deadlines(plan, "q")[0].missed == 1 + 3, "those of 40, 50 and 60 s"
    clocked.run(69, 70)
    assert (deadlines(plan, "q")[0].met, deadlines(plan, "q")[0].late_us_max) == (3, 26 * SECOND)


@pytest.mark.filterwarnings("ignore:.*deadlines missed")
def test_a_deadline_that_passed_while_there_was_nothing_to_save_is_neither_met_nor_missed(
    clocked: Clocked, tmp_path: Path
) -> None:
    plan = operator(tmp_path, every("10s"))
    clocked.run(0, 1)
    clocked.run(9, 10)
    clocked.run(3600, 3601)
    clocked.run(3609, 3610)
    assert deadlines(plan, "q") == {0: Kept(10 * SECOND, met=2)}
    clocked.run(3611, 3612)
    clocked.run(7200, 7201)
    assert deadlines(plan, "q")[0].missed == 359, "here something was unsaved all the time, and no batch came"


@pytest.mark.filterwarnings("ignore:.*")
def test_the_driver_is_told_what_became_of_checkpoints_without_opening_the_store(
    clocked: Clocked, tmp_path: Path
) -> None:
    clocked.run(0, 1)
    assert clocked.told.only == Saving(0), "nothing was due"
    clocked.run(9, 12)
    saving = clocked.told.only
    assert (saving.missed, saving.late_us_max) == (1, 2 * SECOND)
    # Without a worker that lasts, the task waits for the store.
    assert (saving.durable, saving.dropped, saving.waiting) == (1, 0, False)
    assert saving.bytes > 0
    assert saving.restore_s is None, "the state was at hand"
    clocked.run(13, 13.1, value=0)
    assert clocked.told.only.bytes == saving.bytes, "of the newest checkpoint"
    shutil.rmtree(tmp_path / "near")
    assert clocked.run(14, 15) == 3, "as of the checkpoint, and one more"
    restored = clocked.told.only
    assert restored.restore_s > 0
    assert (restored.durable, restored.missed) == (1, 1)
    clocked.run(16, 17)
    assert clocked.told.only.restore_s == restored.restore_s, "of the last time that it had to"
    shutil.rmtree(tmp_path / "far")
    (tmp_path / "far").write_text("not a folder")
    clocked.run(29, 30)
    assert clocked.told.only.dropped == 1


def test_a_missed_deadline_is_said_at_once_and_then_ever_more_rarely(clocked: Clocked) -> None:
    clocked.run(0, 1)
    with pytest.warns(RuntimeWarning, match="running: 1 deadlines missed so far, by 2000000 µs at most"):
        clocked.run(9, 12)


def test_a_clock_that_is_set_back_does_not_stop_checkpoints(clocked: Clocked, tmp_path: Path) -> None:
    clocked.run(86_400, 86_401)
    clocked.run(0, 1)
    clocked.run(9, 10)
    assert deadlines(operator(tmp_path, every("10s")), "q") == {0: Kept(10 * SECOND, met=1)}


@pytest.mark.filterwarnings("ignore:.*")
def test_counts_survive_the_machine_as_of_the_last_checkpoint(clocked: Clocked, tmp_path: Path) -> None:
    plan = operator(tmp_path, every("10s"))
    clocked.run(0, 1)
    clocked.run(9, 12)
    clocked.run(19, 20.1)
    before = deadlines(plan, "q")[0]
    assert (before.met, before.missed) == (1, 1)
    shutil.rmtree(tmp_path / "near")
    assert clocked.run(100, 101) == 4
    clocked.run(109, 110)
    assert deadlines(plan, "q")[0] == Kept(10 * SECOND, 2, 1, before.late_us_max)


def test_only_policies_that_have_deadlines_or_drop_report_any(tmp_path: Path) -> None:
    for policy in (every("1s", exact=True), none):
        with pytest.raises(UsageError, match="only policies of best effort have deadlines"):
            deadlines(operator(tmp_path, policy), "q")
    assert deadlines(operator(tmp_path, every(events=3)), "q") == {}
    assert not (tmp_path / "far").exists(), "asking leaves nothing behind"
