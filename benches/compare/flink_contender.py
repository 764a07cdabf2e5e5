"""Flink: three file sources with bounded disorder, united, one windowed count, with and without idleness."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pyflink.common import Configuration, Duration, Time, Types, WatermarkStrategy
from pyflink.common.watermark_strategy import TimestampAssigner
from pyflink.datastream import DataStream, ProcessWindowFunction, StreamExecutionEnvironment
from pyflink.datastream.connectors.file_system import FileSource, StreamFormat
from pyflink.datastream.window import TumblingEventTimeWindows

from benches.compare.contender import ready, result_text
from benches.compare.workload import DISORDER_MS, INPUTS, WINDOW_MS

ROW = Types.TUPLE([Types.LONG(), Types.STRING()])
_LOOK_MS = 100


class EventTime(TimestampAssigner):
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        return value[0]


class Count(ProcessWindowFunction):
    def process(self, key: str, context: Any, elements: Iterable[Any]) -> Iterable[str]:
        yield result_text(context.window().start, key, sum(1 for _ in elements))


def parsed(line: str) -> tuple[int, str]:
    row = json.loads(line)
    return row["ts"], row["key"]


def followed(env: StreamExecutionEnvironment, folder: Path, strategy: WatermarkStrategy) -> DataStream:
    reading = FileSource.for_record_stream_format(StreamFormat.text_line_format(), str(folder))
    source = reading.monitor_continuously(Duration.of_millis(_LOOK_MS)).build()
    lines = env.from_source(source, WatermarkStrategy.no_watermarks(), folder.name)
    return lines.map(parsed, ROW).assign_timestamps_and_watermarks(strategy)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("root", type=Path)
    parser.add_argument("--idle-ms", type=int)
    parser.add_argument("--lateness-ms", type=int)
    given = parser.parse_args()
    settings = Configuration()
    settings.set_string("python.execution-mode", "thread")
    env = StreamExecutionEnvironment.get_execution_environment(settings)
    env.set_python_executable(sys.executable)
    env.set_parallelism(1)
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(DISORDER_MS))
    if given.idle_ms:
        strategy = strategy.with_idleness(Duration.of_millis(given.idle_ms))
    strategy = strategy.with_timestamp_assigner(EventTime())
    first, *others = [followed(env, given.root / name, strategy) for name in INPUTS]
    windows = first.union(*others).key_by(lambda row: row[1], Types.STRING())
    windows = windows.window(TumblingEventTimeWindows.of(Time.milliseconds(WINDOW_MS)))
    if given.lateness_ms:
        windows = windows.allowed_lateness(given.lateness_ms)
    windows.process(Count(), Types.STRING()).print()
    ready(version("apache-flink"))
    env.execute("compare")


if __name__ == "__main__":
    main()
