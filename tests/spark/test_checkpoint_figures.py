"""What checkpoints cost and are worth reaches who runs the query: in its progress, as a warning, as a status."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from pyspark.sql import Row, SparkSession

import holdfast
from holdfast.cli.board import checkpoints_text, saves_text
from holdfast.cli.hosts import CheckpointStatus, SavesStatus
from holdfast.clock import monotonic_us, pause
from holdfast.engine import Recovery, Saves
from holdfast.host.replica_status import status_of
from holdfast.model.time import BEGINNING_US
from holdfast.operators.footprints import Saved
from holdfast.operators.functions import count
from holdfast.operators.windows import time_window
from holdfast.protocol.cec.policy import Measured, continuous
from holdfast.spark.checkpoint_figures import OBSERVATION, Warnings, figures, recovery_of
from holdfast.spark.flow import flow
from holdfast.spark.node import reading_of
from holdfast.stream.merge import FOREVER_US
from tests.protocol.dpc.dpc_scene import two_inputs
from tests.spark.conftest import T0, fill

SECOND = 1_000_000
GOOD = Recovery(10, 5 * SECOND, 4.0, 1, 2, 3, 400, 10.0, 0.5, None, 2.0)
BROKEN = GOOD._replace(recovery_estimate_s=2.5)


def test_an_estimate_is_loading_the_windows_and_computing_the_extent_again() -> None:
    measured = Measured(load=0.5).restored(windows=1000, loading_s=2.0, replaying_s=1.0)
    saved = Saved(b"x" * 7, 6, 300, 10 * SECOND, 1, 2, 3)
    said = figures(saved, 14 * SECOND, continuous(recover_within="3s"), 8 * SECOND, measured)
    assert said == (300, 10 * SECOND, 4 * SECOND, 1, 2, 3, 7, 8 * SECOND, 300 * 0.002 + 4 * 0.5, 3.0, 3.0)
    ended = figures(saved, FOREVER_US, continuous(), 8 * SECOND, Measured(load=0.5))
    assert (ended.extent_us, ended.recovery_s, ended.recover_within_s) == (0, None, None)


def test_a_recovery_time_that_cannot_be_kept_is_said_with_the_figures() -> None:
    assert GOOD.broken_goal is None
    assert GOOD._replace(recover_within_s=None, recovery_estimate_s=9e9).broken_goal is None
    sentence = BROKEN.broken_goal
    assert sentence is not None
    assert "must take 2 s at most (recover_within); it would take some 2.5 s: 10 windows to load and 4 s" in sentence


def test_it_is_said_once_and_again_when_it_could_be_kept_in_between(caplog: pytest.LogCaptureFixture) -> None:
    warnings = Warnings()
    for found in (GOOD, BROKEN, BROKEN, GOOD, None, BROKEN, BROKEN):
        warnings.look("id", "query totals", found)
    warnings.look("other", "query others", BROKEN)
    assert [r.getMessage().partition(":")[0] for r in caplog.records] == [
        "query totals",
        "query totals",
        "query others",
    ]


def test_progress_of_other_queries_has_no_figures() -> None:
    assert recovery_of(None) is None
    assert recovery_of({"mine": Row(windows=3)}) is None
    assert recovery_of({OBSERVATION: Row(**dict.fromkeys(Recovery._fields))}) is None, "a batch without tasks"


def test_status_shows_what_checkpoints_cost_and_what_they_are_worth() -> None:
    core = two_inputs().core
    assert "checkpoints" not in status_of(core, "none", None)
    said = status_of(core, "none", None, BROKEN._replace(last_recovery_s=1.25))["checkpoints"]
    line = checkpoints_text(CheckpointStatus(**said))
    assert line.startswith("10 open windows, checkpoints reach back 4 s (T = 10 s), 6 records in 400 bytes")
    assert "would take some 2.5 s, the last one took 1.25 s; a recovery must take 2 s at most" in line


def test_status_shows_what_became_of_the_checkpoints_of_operators_in_workers() -> None:
    saved = Saves("mean", 40, 2, 9, 1, 0.5, 1, 400, None)
    line = saves_text(SavesStatus(**saved._asdict()))
    assert line == ("40 checkpoints in its store, 1 on their way, 2 dropped, 400 bytes; 9 deadlines met, 1 missed, "
                    "by 0.5 s at most")  # fmt: skip
    exact = saves_text(SavesStatus(**saved._replace(met=0, missed=0, last_restore_s=1.25)._asdict()))
    assert exact.endswith("400 bytes; its state last came back in 1.25 s")


def test_the_progress_of_a_flow_has_the_figures_of_all_its_partitions(
    spark: SparkSession, store: holdfast.StreamStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Twice, the second time without the state: then it has been restored, and says how long that took. Steps behind
    the operator leave the figures alone."""
    given = [(i * 0.01, f"k{i % 50}", i) for i in range(500)]
    progress = []
    for run, (begin, until) in enumerate(((0, 3.0), (300, 5.0))):
        fill(store, "in", given[begin : 300 if run == 0 else 500], end=False, until=until)
        made = flow(spark, "in", root=store.root, partitions=2, maxRowsPerBatch=100).aggregate(
            count(), window=time_window("1h"), by="key",
            checkpoint=continuous(recover_within=1e-6, period="1s", slow=0, budget=1.0),
        )  # fmt: skip
        query = made.filter("count > 0").write(
            "out", checkpoint_location=tmp_path / "c", trigger={"availableNow": True},
            scratch=tmp_path / f"scratch{run}", name=f"hours{run}",
        )  # fmt: skip
        query.awaitTermination()
        progress.append([p for p in query.recentProgress if "addBatch" in p.durationMs])
    first, last = (recovery_of(batches[-1].observedMetrics) for batches in progress)
    assert first is not None
    assert last is not None
    assert first.windows == last.windows == 50
    assert first.opened + first.checked > 0
    assert first.bytes > 0
    assert BEGINNING_US < first.since_us <= (T0 + 3) * SECOND
    assert first.extent_s == (T0 + 3) - first.since_us / 1e6
    assert (first.last_recovery_s, first.recover_within_s) == (None, 1e-6)
    assert last.last_recovery_s is not None
    assert last.last_recovery_s > 0
    assert last.recovery_estimate_s > 1e-6
    reading = reading_of(progress[1][-1])
    assert reading is not None
    assert reading.recovery == last

    def said() -> list[str]:
        return [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]

    deadline = monotonic_us() + 60 * SECOND  # Spark tells of batches when it comes to it.
    while not any("query hours1" in line for line in said()) and monotonic_us() < deadline:
        pause(50_000)
    assert any("query hours1: a recovery must take 1e-06 s at most" in line for line in said())
