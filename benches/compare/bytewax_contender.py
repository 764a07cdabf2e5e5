"""Bytewax: the three folders as partitions of one source, one windowed count on an event clock."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any

import bytewax.operators as op
from bytewax.dataflow import Dataflow
from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
from bytewax.operators.windowing import EventClock, TumblingWindower, count_window
from bytewax.outputs import DynamicSink, StatelessSinkPartition
from bytewax.run import cli_main

from benches.compare.contender import ready, result
from benches.compare.workload import EPOCH_MS, INPUTS, WINDOW_MS, new_lines

ALIGNED = datetime.fromtimestamp(EPOCH_MS / 1000, UTC)
_LOOK = timedelta(milliseconds=50)


class Folder(StatefulSourcePartition[dict[str, Any], None]):
    def __init__(self, folder: Path) -> None:
        self._folder, self._seen = folder, set[str]()
        self._next = datetime.now(UTC)

    def next_batch(self) -> list[dict[str, Any]]:
        self._next = datetime.now(UTC) + _LOOK
        return new_lines(self._folder, self._seen)

    def next_awake(self) -> datetime:
        return self._next

    def snapshot(self) -> None:
        return None


class Folders(FixedPartitionedSource[dict[str, Any], None]):
    def __init__(self, root: Path) -> None:
        self._root = root

    def list_parts(self) -> list[str]:
        return list(INPUTS)

    def build_part(self, step_id: str, for_part: str, resume_state: None) -> Folder:
        return Folder(self._root / for_part)


class Shown(StatelessSinkPartition[tuple[str, tuple[int, int]]]):
    def write_batch(self, items: list[tuple[str, tuple[int, int]]]) -> None:
        for key, (number, count) in items:
            result(EPOCH_MS + number * WINDOW_MS, key, count)


class Client(DynamicSink[tuple[str, tuple[int, int]]]):
    def build(self, step_id: str, worker_index: int, worker_count: int) -> Shown:
        return Shown()


def flow(root: Path, wait: timedelta) -> Dataflow:
    made = Dataflow("compare")
    rows = op.input("rows", made, Folders(root))
    clock = EventClock(
        ts_getter=lambda row: datetime.fromtimestamp(row["ts"] / 1000, UTC),
        wait_for_system_duration=wait,
        to_system_utc=lambda _: None,  # The plan's event time is not today's: windows close when rows come.
    )
    windower = TumblingWindower(length=timedelta(milliseconds=WINDOW_MS), align_to=ALIGNED)
    counted = count_window("count", rows, clock, windower, key=lambda row: row["key"])
    op.output("client", counted.down, Client())
    return made


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("root", type=Path)
    parser.add_argument("--wait-ms", type=int, required=True)
    given = parser.parse_args()
    ready(version("bytewax"))
    cli_main(flow(given.root, timedelta(milliseconds=given.wait_ms)))


if __name__ == "__main__":
    main()
