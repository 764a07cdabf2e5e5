"""A streaming source of Spark fills a stream, each batch once (K1)."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import holdfast
from holdfast.inputs.source import DiedOfRows, EngineSource
from holdfast.model.errors import PeerError, UsageError
from holdfast.model.time import BEGINNING_US
from holdfast.spark.ingest import SparkInput
from tests.spark.processes import REPOSITORY, descendants, environment

KILLS = int(os.environ.get("HOLDFAST_SPARK_KILLS", "1"))


def until(condition: Callable[[], object], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come true"
        time.sleep(0.05)


@pytest.mark.slow
def test_files_that_spark_reads_become_a_stream_once_over_restarts_k1(spark: SparkSession, tmp_path: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()

    def put(name: str, *rows: tuple[int, int]) -> None:
        lines = [json.dumps({"n": n, "ts": f"2026-01-01T00:00:{second:02}Z"}) for n, second in rows]
        (tmp_path / name).write_text("\n".join(lines))
        (tmp_path / name).rename(files / name)

    def clicks(session: SparkSession) -> DataFrame:
        return session.readStream.schema("n bigint, ts timestamp").json(str(files))

    app = holdfast.App("shop", root=tmp_path / "streams")
    app.source("clicks", clicks, stime="ts", slack="2s", bucket="1s")

    def numbers() -> list[int]:
        with_stream = holdfast.open(app.root).open("clicks").subscribe()
        try:
            return [row.values["n"] for row in with_stream.rows(timeout=0)]
        finally:
            with_stream.close()

    put("a.json", (1, 1), (3, 5), (2, 2))
    with app.start(spark=spark) as running:
        until(lambda: running.status()["sources"][0].get("rows") == 3)
        until(lambda: numbers() == [1, 2])
    put("b.json", (4, 4), (5, 9))
    with app.start(spark=spark) as running:
        until(lambda: numbers() == [1, 2, 4, 3])
        assert running.status()["sources"][0]["state"] == "RUNNING"
    shutil.rmtree(app.root / ".holdfast" / "sources" / "clicks.checkpoint")
    with pytest.raises(UsageError, match="must be filled by the query that began it"):
        app.start(spark=spark)

    silent = holdfast.App("shop", root=tmp_path / "silent")
    silent.source("clicks", clicks, stime="ts", slack="2s", bucket="1s", idle="100ms")
    with silent.start(spark=spark):
        until(lambda: "clicks" in holdfast.open(silent.root).names())
        stream = holdfast.open(silent.root).open("clicks")
        until(lambda: len(list(stream.subscribe().rows(timeout=0))) == 5)
    holdfast.open(silent.root).delete("clicks")
    with pytest.raises(UsageError, match="must have the batches of the query that fills it"):
        silent.start(spark=spark)


JSON_SCHEMA = "n bigint, ts timestamp"


def line(n: int, ts: str | None) -> str:
    return json.dumps({"n": n, "ts": ts}) + "\n"


@pytest.mark.slow
def test_rows_that_are_late_early_or_without_a_time_do_not_stop_the_source(spark: SparkSession, tmp_path: Path) -> None:
    """D19: the early one would make all others late."""
    files = tmp_path / "files"
    files.mkdir()

    def put(name: str, *lines: str) -> None:
        (tmp_path / name).write_text("".join(lines))
        (tmp_path / name).rename(files / name)

    app = holdfast.App("shop", root=tmp_path / "streams")
    app.source("clicks", lambda s: s.readStream.schema(JSON_SCHEMA).json(str(files)), stime="ts", slack="2s")
    with app.start(spark=spark, metrics_port=0) as running:

        def source() -> dict[str, Any]:
            return running.status()["sources"][0]

        put("a.json", line(1, "2026-01-01T00:00:01Z"), line(2, "2026-01-01T00:00:09Z"))
        until(lambda: source().get("rows") == 2)
        bad = [line(3, "2026-01-01T00:00:02Z"), line(4, "9998-01-01T00:00:00Z"), line(5, "yesterday")]
        put("b.json", *bad, line(6, "2026-01-01T00:00:10Z"))
        until(lambda: source().get("rows") == 6)
        put("c.json", line(7, "2026-01-01T00:01:00Z"))
        stream = holdfast.open(app.root).open("clicks")
        until(lambda: [row.values["n"] for row in stream.subscribe().rows(timeout=0)] == [1, 2, 6])
        assert (source()["state"], source()["late"], source()["dead"]) == ("RUNNING", 2, 1)
        letters = [json.loads(text) for text in Path(source()["dead_letters"]).read_text().splitlines()]
        assert sorted(letter["row"]["n"] for letter in letters) == [3, 4, 5]
        url = f"http://127.0.0.1:{running.metrics_port}/metrics"
        with urllib.request.urlopen(url) as answer:
            told = answer.read().decode()
        assert 'holdfast_source_late_rows_total{stream="clicks"} 2.0' in told
        assert 'holdfast_source_dead_rows_total{stream="clicks"} 1.0' in told


@pytest.mark.slow
def test_without_dead_letters_a_row_that_lies_years_ahead_stops_the_source_with_a_sentence(
    spark: SparkSession, tmp_path: Path
) -> None:
    """D19: it would make all others late."""
    files = tmp_path / "files"
    files.mkdir()
    (files / "a.json").write_text(line(1, "2026-01-01T00:00:01Z") + line(2, "9998-01-01T00:00:00Z"))

    def clicks(session: SparkSession) -> DataFrame:
        return session.readStream.schema(JSON_SCHEMA).json(str(files))

    app = holdfast.App("shop", root=tmp_path / "streams")
    app.source("clicks", clicks, stime="ts", dead_letters=None)

    def run() -> None:
        with app.start(spark=spark) as running:
            until(lambda: running.status()["sources"][0]["state"] == "FAILED")
            running.wait_until_stable()

    with pytest.raises(UsageError, match="ahead of the clock"):  # By the start or by the wait: the first that can know.
        run()
    allowed = holdfast.App("shop", root=tmp_path / "allowed")
    allowed.source("clicks", clicks, stime="ts", max_ahead=None)
    with allowed.start(spark=spark) as running:
        until(lambda: running.status()["sources"][0].get("rows") == 2)


class Feeding:
    """Puts files of ten lines into a folder as time goes by; in each one has no time and one comes late."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._end = folder, threading.Event()
        (folder / "files").mkdir()
        self.files = 0

    def put(self, *lines: str) -> None:
        path = self._folder / f"{self.files:06}.json"
        path.write_text("".join(lines))
        path.rename(self._folder / "files" / path.name)
        self.files += 1

    def _run(self) -> None:
        while not self._end.wait(0.2):
            first = 10 * self.files
            now = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.files)
            timely = [line(first + n, (now + timedelta(milliseconds=n)).isoformat()) for n in range(8)]
            self.put(*timely, line(first + 8, None), line(first + 9, "2026-01-01T00:00:00Z"))

    @contextmanager
    def on(self) -> Iterator[None]:
        thread = threading.Thread(target=self._run)
        thread.start()
        try:
            yield
        finally:
            self._end.set()
            thread.join()


def boundary(root: Path, name: str) -> int:
    store = holdfast.open(root)
    if name not in store.names():
        return BEGINNING_US
    with closing(store.open(name).reader()) as reader:
        return reader.boundary_us


def ids(root: Path, name: str, column: str) -> list[int]:
    store = holdfast.open(root)
    if name not in store.names():
        return []
    with store.open(name).subscribe() as subscriber:
        return [row.values[column] for row in subscriber.rows(timeout=0)]


def kill(process: subprocess.Popen[str], first: str, pause_s: float) -> None:
    """The driver's Python, its JVM, or both at once; a moment later what is left."""
    below = descendants(process.pid, forked=True)
    jvms = [pid for pid, command in below if "java" in command.split(" ")[0]]
    everything = [process.pid, *(pid for pid, _ in below)]
    for victims in ({"python": [process.pid], "java": jvms}.get(first, everything), everything):
        for pid in victims:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        threading.Event().wait(pause_s)
    process.wait()


@pytest.mark.slow
@pytest.mark.timeout(300 + 120 * KILLS)
def test_killed_drivers_lose_and_repeat_nothing_of_files_and_of_rate_k1(tmp_path: Path) -> None:
    """`HOLDFAST_SPARK_KILLS=20` at length."""
    root, chance, feeding = tmp_path / "streams", random.Random(KILLS), Feeding(tmp_path)

    def start() -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.spark.ingest_job", str(root), str(tmp_path / "files")]
        with (tmp_path / "log").open("a") as log:
            return subprocess.Popen(command, cwd=REPOSITORY, env=environment(), stdout=log, stderr=log, text=True)

    def both_grow(process: subprocess.Popen[str]) -> None:
        before = [boundary(root, name) for name in ("lines", "numbers")]

        def grown() -> bool:
            assert process.poll() is None, (tmp_path / "log").read_text()[-3000:]
            return all(boundary(root, n) > known for n, known in zip(("lines", "numbers"), before, strict=True))

        until(grown, 240)

    with feeding.on():
        for turn in range(KILLS):
            process = start()
            try:
                both_grow(process)
                threading.Event().wait(chance.random())
            finally:
                kill(process, ("all", "python", "java")[turn % 3], chance.random() / 2)
        process = start()
        try:
            both_grow(process)
        except BaseException:
            kill(process, "all", 0)
            raise
    total = 10 * feeding.files
    feeding.put(line(total, "2026-01-01T20:00:00Z"))  # It closes all buckets before it.
    letters = root / ".holdfast" / "sources" / "lines.dead-letters.jsonl"

    def dead() -> list[int]:
        lines = letters.read_text().splitlines(keepends=True) if letters.exists() else []
        return [json.loads(text)["row"]["n"] for text in lines if text.endswith("\n")]

    try:
        until(lambda: len(ids(root, "lines", "n")) + len(dead()) >= total, 240)
    finally:
        kill(process, "all", 0)
    assert sorted(ids(root, "lines", "n") + dead()) == list(range(total))
    assert len(dead()) > feeding.files  # Not only those without a time.
    numbers = ids(root, "numbers", "value")
    assert sorted(numbers) == list(range(len(numbers)))


class Reports:
    """A query that says it had so many rows in the batches of these numbers."""

    status: ClassVar = {"isDataAvailable": False, "isTriggerActive": False, "message": ""}

    def __init__(self, *batches: tuple[int, int]) -> None:
        self.recentProgress = [
            SimpleNamespace(batchId=number, numInputRows=rows, inputRowsPerSecond=0.0) for number, rows in batches
        ]
        self.lastProgress = self.recentProgress[-1]


def test_rows_that_come_after_a_silence_are_counted_and_end_it(tmp_path: Path) -> None:
    """While nothing comes, Spark reports the number of the batch that is to be the next. A source that was taken for
    silent has its boundary follow the clock: all that came then was late."""
    source = EngineSource(lambda spark: None, "ts", slack_us=0, idle_us=0, trigger_us=None)
    ingest = SparkInput(source, "s", holdfast.open(tmp_path), tmp_path, None, None)  # type: ignore[arg-type]
    ingest._look(Reports((0, 2), (1, 0)))  # type: ignore[arg-type]
    silent_since_us = ingest._data_us
    ingest._look(Reports((0, 2), (1, 0), (1, 4), (2, 0)))  # type: ignore[arg-type]
    assert (ingest.status()["rows"], ingest.status()["batch"]) == (6, 1)
    assert ingest._data_us > silent_since_us


class Died:
    """A query that has ended with an error of Spark's."""

    def __init__(self, text: str) -> None:
        self._text = text

    def awaitTermination(self, seconds: float) -> bool:
        raise StreamingQueryException(self._text)

    def stop(self) -> None:
        pass


@pytest.mark.parametrize(
    ("text", "kind", "died_of"),
    [
        ("[DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012", DiedOfRows, "DIVIDE_BY_ZERO"),
        ("[CAST_INVALID_INPUT] The value 'x' of the type STRING. SQLSTATE: 22018", DiedOfRows, "CAST_INVALID_INPUT"),
        ("java.io.IOException: No space left on device", PeerError, None),
        ("[UNSUPPORTED_FEATURE.X] It is not supported.", UsageError, None),
    ],
)
def test_what_a_batch_has_died_of_is_told_with_the_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, kind: type[Exception], died_of: str | None
) -> None:
    source = EngineSource(lambda spark: None, "ts", slack_us=0, idle_us=0, trigger_us=None)
    ingest = SparkInput(source, "s", holdfast.open(tmp_path), tmp_path, None, None)  # type: ignore[arg-type]

    def start(self: SparkInput, session: Any) -> Died:
        (tmp_path / "s.checkpoint" / "commits").mkdir(parents=True)
        for n in (0, 11, 9):
            (tmp_path / "s.checkpoint" / "commits" / str(n)).touch()
        return Died(text)

    monkeypatch.setattr(SparkInput, "_start", start)
    with pytest.raises(kind, match="the ingest query of stream s: ") as said:
        ingest.run()
    assert type(said.value) is kind
    if isinstance(said.value, DiedOfRows):
        assert (said.value.cause, said.value.batch) == (died_of, 12)


def test_what_is_no_source_is_refused_where_it_is_written_down(tmp_path: Path) -> None:
    app = holdfast.App("shop", root=tmp_path)
    with pytest.raises(UsageError, match="must say which column is its time"):
        app.source("clicks", lambda spark: spark.readStream)
    with pytest.raises(UsageError, match="must be a description such as"):
        app.source("clicks", "broker:9092", stime="ts")  # type: ignore[arg-type]
    app.source("clicks", lambda spark: spark.readStream, stime="ts")
    with pytest.raises(UsageError, match="must have one source"):
        app.source("clicks", lambda spark: spark.readStream, stime="ts")
    for more in ({"slack": "2s"}, {"dead_letters": None}, {"late": "drop"}):
        with pytest.raises(UsageError, match="must stand in its description"):
            app.source("orders", holdfast.kafka("b:1", topic="orders"), **more)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="must be 'refuse' or 'drop'; got 'lift'"):
        app.source("orders", lambda spark: spark.readStream, stime="ts", late="lift")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="has a source"):
        app.node(inputs=["a"], output="clicks", name="cleaned")(lambda frame: frame)
