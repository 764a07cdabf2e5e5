"""Which tests are run in which phase, and which files are begun first.

Phases:
- `alone`: what is marked so, because it measures delays.
- `beside`: what only computes. It measures nothing, waits for nobody, and does not mind when it is interrupted; so it
  is run beside the tests that are alone, in the time that they leave. A few minutes of it, and without JVMs: two
  threads may share a core, so that what gives way still makes the others slower.
- `extended`: what brings up clusters, brokers and hosts of its own, and every example (`make test-extended`).
- `together`: all the others.

Order:
1. Files of a few folders that start no JVM come first: meanwhile an archive of classes is made for JVMs
   (class_archive.py).
2. Those of tests/spark: as long as a worker has only these, they share one JVM.
3. Those that take longest, so that none of them is left for the end and runs alone. `make test` names the longest files
   at its end; a file that is missing here costs time, nothing else.
"""

from __future__ import annotations

from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
#: Longer than the archive takes.
WITHOUT_JVM = ("model", "protocol", "stream")
BESIDE = (
    "faults/test_cuts.py", "faults/test_flips.py", "faults/test_power_memory.py", "faults/test_power_model.py",
    "operators", "sim", "stream/test_archive.py", "stream/test_archive_kills.py", "stream/test_repair.py",
    "stream/test_verify.py",
)  # fmt: skip
EXTENDED = (
    "docs/test_examples.py", "hadoop", "inputs/test_kafka_copies.py", "spark/test_cluster.py", "spark/test_islands.py",
)  # fmt: skip
LONGEST = (
    "docs/test_docs.py",
    "inputs/test_kafka_copies.py", "spark/test_fork.py", "host/test_embedded.py", "host/test_changed_nodes.py",
    "load/test_real_movement.py", "docs/test_examples.py", "cli/test_verbs.py",
    "spark/test_stage.py", "spark/test_tentative_source.py", "sinks/test_kafka_sink.py", "cli/test_bad_input.py",
    "spark/test_sink.py", "spark/test_keyed.py", "checkpoint/test_stores.py", "docs/test_running.py",
    "cli/test_check.py", "console/test_page.py", "faults/test_changed_deployment.py", "faults/test_rebuild.py",
    "faults/test_kill.py", "fuzz/test_fuzz.py", "spark/test_partitions.py",
    "inputs/test_kafka.py", "load/test_load_of_its_own_accord.py", "load/test_movement_that_fails.py",
    "host/test_engine.py", "sinks/test_duckdb.py", "sinks/test_postgres.py", "host/test_flow_nodes.py",
    "cli/test_deployed.py", "faults/test_cuts.py", "spark/test_source.py", "stream/test_repair.py",
    "host/test_client.py", "operators/test_crashes.py", "sinks/test_iceberg.py", "load/test_state_that_moves.py",
    "sim/test_load_schedules.py", "suite/test_suite.py", "faults/test_load_moves.py",
)  # fmt: skip


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--phase", help="run the tests of this phase alone")


def phase_of(item: pytest.Item) -> str:
    path = item.path.relative_to(TESTS).as_posix() if item.path.is_relative_to(TESTS) else ""

    def within(paths: tuple[str, ...]) -> bool:
        return any(path == one or path.startswith(f"{one}/") for one in paths)

    if item.get_closest_marker("alone") is not None:
        return "alone"
    return "beside" if within(BESIDE) else "extended" if within(EXTENDED) else "together"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if phase := config.getoption("--phase"):
        left = [item for item in items if phase_of(item) != phase]
        items[:] = [item for item in items if phase_of(item) == phase]
        config.hook.pytest_deselected(items=left)
    if phase == "alone":
        return  # Those that mind others most come last, when nobody is beside them any more: tests/spark.
    turn = {TESTS / file: n for n, file in enumerate(LONGEST)}

    def key(item: pytest.Item) -> tuple[int, int]:
        folder = item.path.relative_to(TESTS).parts[0] if item.path.is_relative_to(TESTS) else ""
        group = 0 if folder in WITHOUT_JVM else 1 if folder == "spark" else 2
        return group, turn.get(item.path, len(turn))

    items.sort(key=key)
