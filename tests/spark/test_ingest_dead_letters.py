"""What an ingest query cannot give to its stream is put aside, once, however often Spark runs the batch (K1)."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException

import holdfast
from holdfast.clock import now_us
from holdfast.inputs.feed import DeadLetters
from holdfast.inputs.source import EngineSource
from holdfast.model.errors import EarlyTuple, LateTuple, SchemaError, StorageError, UsageError
from holdfast.model.schema import STIME_TYPE
from holdfast.spark.failure import is_permanent
from holdfast.spark.ingest import SparkInput
from holdfast.spark.ingest_dead_letters import put_aside
from holdfast.spark.sink import StreamSink
from holdfast.stream.writer import LogWriter

SECOND = 1_000_000
T0 = 1_700_000_000 * SECOND
SCHEMA = pa.schema([("n", pa.int64()), ("ts", STIME_TYPE)])


class Ingest:
    """The sink of an ingest query, its batches run by hand."""

    def __init__(self, folder: Path, **options: str) -> None:
        self.root, self.note, self.letters_path = folder / "streams", folder / "s.put-aside", folder / "dead.jsonl"
        letters = {} if options.pop("letters", "yes") == "no" else {"deadLetters": str(self.letters_path)}
        given = {
            "root": str(self.root), "stream": "s", "create": "true", "stime": "ts", "boundary": "data", "slack": "1s",
            "bucket": "1s", "putAside": str(self.note), **letters,
        }  # fmt: skip
        self._given = given | options

    def run(self, batch: int, *rows: tuple[int, int | None]) -> None:
        """One batch of numbers and seconds after `T0`, as a driver would that has just started."""
        self.run_times(batch, *((n, None if s is None else T0 + s * SECOND) for n, s in rows))

    def run_times(self, batch: int, *rows: tuple[int, int | None]) -> None:
        columns = [pa.array([n for n, _ in rows]), pa.array([t for _, t in rows], pa.int64()).cast(STIME_TYPE)]
        self.run_record(batch, pa.RecordBatch.from_arrays(columns, schema=SCHEMA))

    def run_record(self, batch: int, record: pa.RecordBatch) -> None:
        sink = StreamSink(self._given, record.schema)
        sink.commit([sink._target.take(iter([record]), "query", "run", str(batch))], batch)

    def stream(self) -> list[int]:
        """The numbers that are there, whether their bucket is closed or not."""
        stream = holdfast.open(self.root).open("s")
        writer = stream.writer()
        pending = writer.pending
        writer.release(now_us())
        waiting = [r["n"] for r in pa.ipc.open_stream(pending).read_all().to_pylist()] if pending else []
        reader = stream.reader()
        return sorted(waiting + [n for e in reader.extents(-(2**62), 2**62) for n in reader.read(e)["n"].to_pylist()])

    def letters(self) -> list[dict[str, Any]]:
        if not self.letters_path.exists():
            return []
        return [json.loads(line) for line in self.letters_path.read_text().splitlines()]

    def dead(self) -> list[int]:
        return [letter["row"]["n"] for letter in self.letters()]


@pytest.fixture
def ingest(tmp_path: Path) -> Ingest:
    return Ingest(tmp_path)


class Killed(Exception):
    pass


@contextlib.contextmanager
def killed_at(owner: type, name: str, instead: Callable[..., object] | None = None) -> Iterator[None]:
    """A method ends as if the process were killed in it, before its work or after what is done `instead`."""

    def end(self: Any, *args: Any, **options: Any) -> None:
        if instead is not None:
            instead(self, *args, **options)
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, end)
        try:
            yield
        except Killed:
            return
    raise AssertionError(f"{name} was not called")


def half(letters: DeadLetters, at: int, text: bytes) -> None:
    letters._append(text[: len(text) // 2])


STEPS = {
    "before the unit": (LogWriter, "commit", None),
    "behind the unit": (LogWriter, "commit", LogWriter.commit),
    "amid the letters": (DeadLetters, "complete", half),
    "behind the letters": (DeadLetters, "complete", DeadLetters.complete),
}


def test_late_early_and_timeless_rows_are_put_aside_with_the_reason_and_the_others_go_on(ingest: Ingest) -> None:
    ingest.run(0, (1, 0), (2, 10))
    ahead = now_us() + 2 * 3600 * SECOND
    ingest.run_times(1, (3, T0 + 5 * SECOND), (4, ahead), (5, None), (6, T0 + 11 * SECOND))
    ingest.run(2, (7, 12))
    assert ingest.stream() == [1, 2, 6, 7]
    late, early, timeless = sorted(ingest.letters(), key=lambda letter: letter["row"]["n"])
    assert late == {
        "where": "batch 1 of the ingest query of stream s", "batch": 1,
        "error": "it comes after the boundary 2023-11-14T22:13:29.000000Z; declare more slack, or let it be dropped "
                 "(late='drop')",
        "row": {"stime": "2023-11-14T22:13:25Z", "n": 3, "ts": "2023-11-14T22:13:25Z"},
    }  # fmt: skip
    assert "too far ahead of the clock" in early["error"]
    assert "stime must not be null" in timeless["error"]
    assert timeless["row"] == {"stime": None, "n": 5, "ts": None}
    assert put_aside(ingest.note) == (2, 1)


def test_a_batch_of_nothing_but_refused_rows_leaves_the_boundary_where_it_was(ingest: Ingest) -> None:
    ingest.run(0, (1, 0), (2, 10))
    boundary_us = holdfast.open(ingest.root).open("s").reader().boundary_us
    ingest.run(1, (3, None))
    ingest.run_times(2, (4, now_us() + 2 * 3600 * SECOND))
    ingest.run(3, (5, 2))
    assert holdfast.open(ingest.root).open("s").reader().boundary_us == boundary_us
    assert ingest.stream() == [1, 2]
    assert ingest.dead() == [3, 4, 5]


@pytest.mark.parametrize("step", STEPS)
def test_a_batch_that_is_run_again_puts_aside_the_same_rows_once_k1(step: str, ingest: Ingest) -> None:
    ingest.run(0, (1, 0), (2, 10))
    ingest.run(1, (3, 1), (4, 11))
    with killed_at(*STEPS[step]):
        ingest.run(2, (5, 2), (6, 12), (7, None), (8, 3))
    for _ in range(2):
        ingest.run(2, (5, 2), (6, 12), (7, None), (8, 3))
    ingest.run(3, (9, 13))
    assert ingest.stream() == [1, 2, 4, 6, 9]
    assert sorted(ingest.dead()) == [3, 5, 7, 8]
    assert put_aside(ingest.note) == (3, 1)


def test_what_is_judged_otherwise_at_the_second_run_is_in_one_of_the_two_k1(
    ingest: Ingest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock and the boundary move on while the process is away."""
    clock_us = [now_us()]
    monkeypatch.setattr("holdfast.spark.sink.now_us", lambda: clock_us[0])
    first_us = clock_us[0]
    ingest.run_times(0, (1, first_us - 60 * SECOND))
    rows = [(2, first_us - 50 * SECOND), (3, first_us + 3601 * SECOND)]
    with killed_at(LogWriter, "commit"):
        ingest.run_times(1, *rows)  # 3 is early.
    clock_us[0] += 10 * SECOND
    ingest.run_times(1, *rows)  # Now it is in time.
    assert (ingest.stream(), ingest.dead(), put_aside(ingest.note)) == ([1, 2, 3], [], (0, 0))
    with killed_at(LogWriter, "commit", LogWriter.commit):
        ingest.run_times(2, (4, first_us), (5, first_us + 3700 * SECOND))  # Late and early.
    clock_us[0] += 1000 * SECOND  # Whatever the clock says: the log has settled it.
    ingest.run_times(2, (4, first_us), (5, first_us + 3700 * SECOND))
    assert (ingest.stream(), ingest.dead(), put_aside(ingest.note)) == ([1, 2, 3], [4, 5], (2, 0))


def test_late_rows_can_be_dropped_and_counted(tmp_path: Path) -> None:
    ingest = Ingest(tmp_path, late="drop")
    ingest.run(0, (1, 0), (2, 10))
    ingest.run(1, (3, 1), (4, None))
    assert (ingest.stream(), ingest.dead()) == ([1, 2], [4])
    assert put_aside(ingest.note) == (1, 1)
    bare = Ingest(tmp_path / "bare", late="drop", letters="no")
    bare.run(0, (1, 0), (2, 10))
    bare.run(1, (3, 1), (4, 11))
    assert bare.stream() == [1, 2, 4]
    assert put_aside(bare.note) == (1, 0)


def test_without_dead_letters_the_first_such_row_stops_the_query(tmp_path: Path) -> None:
    ingest = Ingest(tmp_path, letters="no")
    ingest.run(0, (1, 0), (2, 10))
    with pytest.raises(LateTuple, match="comes after its boundary"):
        ingest.run(1, (3, 1))
    with pytest.raises(SchemaError, match="stime must not be null"):
        ingest.run(1, (3, None))
    with pytest.raises(EarlyTuple, match="ahead of the clock"):
        ingest.run_times(1, (3, now_us() + 2 * 3600 * SECOND))
    assert ingest.stream() == [1, 2]


def test_times_that_python_does_not_have_are_put_aside_as_well(ingest: Ingest) -> None:
    ingest.run(0, (1, 0), (2, 10))
    ingest.run_times(1, (3, 2**60), (4, 2**62 + 5), (5, -(2**60)))
    assert sorted(ingest.dead()) == [3, 4, 5]
    assert all(letter["row"]["stime"] for letter in ingest.letters())


def record_of(**columns: Any) -> pa.RecordBatch:
    """Rows that Spark can make and no reader can take, from 1 on, with such values as are given."""
    rows = len(next(iter(columns.values())))
    arrays = [pa.array(range(1, rows + 1)), pa.array([T0 + n * SECOND for n in range(rows)], STIME_TYPE)]
    return pa.record_batch([*arrays, *columns.values()], names=["n", "ts", *columns])


NOT_TEXT = pa.array([b"a", b"\xff", b"b", None]).view(pa.string())
UNFIT = {
    "text": (NOT_TEXT, "column 'x' must be string; got text that is not UTF-8; decode it"),
    "nested text": (pa.ListArray.from_arrays([0, 1, 2, 3, 4], NOT_TEXT), "column 'x' must be list.*not UTF-8"),
    "date": (pa.array([0, 2_932_897, 1, None], pa.date32()), "column 'x' must be date.* in the years 1 to 9999; got a"),
    "time": (pa.array([0, 2**60, 1, None], STIME_TYPE), "column 'x' must be timestamp.* in the years 1 to 9999; got a"),
}


@pytest.mark.parametrize("what", UNFIT)
def test_a_row_that_no_reader_could_take_is_put_aside_and_the_others_go_on_x5(what: str, ingest: Ingest) -> None:
    """Spark makes such text with a cast. Committed, it damaged the stream for good: readers and mirrors died of it."""
    values, why = UNFIT[what]
    ingest.run_record(0, record_of(x=values))
    assert ingest.stream() == [1, 3, 4]
    assert put_aside(ingest.note) == (0, 1)
    (letter,) = ingest.letters()
    assert re.search(why, letter["error"])
    assert letter["row"]["n"] == 2
    assert what != "text" or letter["row"]["x"] == {"text": "\N{REPLACEMENT CHARACTER}", "base64": "/w=="}


@pytest.mark.parametrize("what", UNFIT)
def test_a_result_that_no_reader_could_take_stops_a_query_without_dead_letters_x5(what: str, tmp_path: Path) -> None:
    ingest, (values, why) = Ingest(tmp_path, letters="no"), UNFIT[what]
    with pytest.raises(SchemaError, match=why) as said:
        ingest.run_record(0, record_of(x=values))
    text = f"Traceback (most recent call last):\nholdfast.model.errors.SchemaError: {said.value}\n"
    assert is_permanent(StreamingQueryException(text)), "another start would meet the same rows"
    ingest.run_record(0, record_of(x=values.take([0, 2])))
    assert ingest.stream() == [1, 2]


def test_a_time_beyond_all_years_moves_no_boundary_where_any_is_allowed(tmp_path: Path) -> None:
    ingest = Ingest(tmp_path, maxAhead="none")
    ingest.run_times(0, (1, T0), (2, 2**60), (3, 2**61))
    ingest.run(1, (4, 1))
    assert (ingest.stream(), ingest.dead()) == ([1, 4], [2, 3])


def test_a_file_that_was_taken_away_is_begun_anew(ingest: Ingest) -> None:
    ingest.run(0, (1, 0), (2, 10))
    ingest.run(1, (3, 1))
    ingest.letters_path.unlink()
    ingest.run(2, (4, 2))
    assert ingest.dead() == [4]
    assert put_aside(ingest.note) == (2, 0)


def test_a_stream_that_has_ended_takes_nothing_and_says_so(ingest: Ingest) -> None:
    ingest.run(0, (1, 0), (2, 10))
    holdfast.open(ingest.root).open("s").producer(stime="stime").close()
    with pytest.raises((LateTuple, UsageError)):
        ingest.run(1, (3, 20))
    assert ingest.dead() == []


def test_a_stream_that_lacks_batches_of_its_query_is_not_filled_from_the_middle_k1(
    ingest: Ingest, tmp_path: Path
) -> None:
    """It was deleted, or brought back from an older copy, and the checkpoint of its query was not."""
    commits = tmp_path / "home" / "s.checkpoint" / "commits"
    commits.mkdir(parents=True)
    (commits.parent / "metadata").write_text('{"id": "query"}')
    source = EngineSource(lambda spark: None, "ts", slack_us=0, idle_us=None, trigger_us=None)

    def start() -> None:
        SparkInput(source, "s", holdfast.open(ingest.root), commits.parent.parent, None, None)._check_checkpoint()  # type: ignore[arg-type]

    start()  # A first batch that nobody has committed comes again.
    ingest.run(0, (1, 0))
    ingest.run(1, (2, 1))
    (commits / "0").touch()
    start()
    (commits / "1").touch()
    start()
    StreamSink(ingest._given, SCHEMA).commit([], 2)  # A batch without tasks does not know whose it is.
    ingest.run(3, (3, 2))
    for batch in (2, 3):
        (commits / str(batch)).touch()
    start()
    (commits / "4").touch()
    with pytest.raises(UsageError, match=r"up to 4, .* by its checkpoint .*; it has them up to 3: an older"):
        start()
    with pytest.raises(UsageError, match=r"up to 4.* remove both, to fill it from the beginning of the source"):
        ingest.run(5, (4, 3))
    holdfast.open(ingest.root).delete("s")
    with pytest.raises(UsageError, match=r"it has none of them: it was removed, .* remove that folder as well"):
        start()
    with pytest.raises(UsageError, match="it has none of them"):
        ingest.run(5, (4, 3))
    assert ingest.stream() == []


def test_a_note_of_another_format_is_refused(ingest: Ingest) -> None:
    ingest.run(0, (1, 0), (2, 10))
    ingest.run(1, (3, 1))
    text = ingest.note.read_text()
    ingest.note.write_text(text.replace('"format":1', '"format":2'))
    with pytest.raises(StorageError, match="has format 2; this Holdfast reads 1"):
        ingest.run(2, (4, 2))
    ingest.note.write_text("torn")
    with pytest.raises(StorageError, match="cannot be read"):
        put_aside(ingest.note)


def test_dropping_needs_a_file_that_counts(tmp_path: Path) -> None:
    given = {"root": str(tmp_path), "stream": "s", "create": "true", "stime": "ts", "late": "drop"}
    with pytest.raises(UsageError, match="need putAside"):
        StreamSink(given, SCHEMA)
