"""A recording counts what a client received: what was new and how late, what was tentative, how long it stayed so."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast.console.recording import Recording
from holdfast.model.errors import UsageError
from holdfast.model.tuples import TupleType
from holdfast.stream.store import StreamStore
from tests.console.conftest import BUCKET, RATE, SCHEMA, SECOND, START, TRANSIT, Script, control, tuples
from tests.faults.units import QuietDisk
from tests.stream.test_subscriber import send, tentative

#: What waits at the cut waits this long in the script, then arrives with the latency of its first tuple.
LONGEST = 10 * BUCKET + TRANSIT
NORMAL = BUCKET + TRANSIT


def test_the_failure_of_figure_5_4_is_told_as_it_was(figure_5_4: Script) -> None:
    recording = figure_5_4.recording
    assert recording.stable == (15 + 20 + 2 + 10) * SECOND // BUCKET * 3 * RATE
    assert recording.tentative == 80 * 2 * RATE + 8 * 3 * RATE
    assert (recording.standing, recording.state) == (0, "STABLE")
    [failure] = recording.failures()
    assert failure.healed_us is not None
    assert failure.healed_us - failure.cut_us == 20 * SECOND
    assert failure.to_correct_us == 2 * SECOND + 60_000
    assert failure.tentative == recording.tentative
    assert [c.type for c in recording.controls] == [TupleType.UNDO, TupleType.REC_DONE]


def test_corrections_are_not_new_and_do_not_count_as_late(figure_5_4: Script) -> None:
    latency = figure_5_4.recording.latency()
    assert latency is not None
    assert latency.us_max == LONGEST  # A correction of the first bucket after the cut came 22 s after its stime.
    assert latency.tuples == figure_5_4.recording.stable - 80 * RATE  # All but what the cut source added later.
    before = figure_5_4.recording.latency(until_us=figure_5_4.recording.failures()[0].cut_us)
    assert before is not None
    assert before.us_max == NORMAL


def test_what_a_second_failure_delivers_again_is_not_new(script: Script) -> None:
    script.normal(2).fail(6).recording.take(control(TupleType.UNDO), script.now)
    script.recording.take(control(TupleType.REC_DONE), script.now)
    known = script.recording.latency()
    for bucket in range(script.stable_next, script.next):
        script.recording.take(tuples(TupleType.TENTATIVE, bucket, (1, 2)), script.now + SECOND)
    assert script.recording.latency() == known


def test_a_tentative_tuple_counts_until_it_is_undone(script: Script) -> None:
    script.normal(1).fail(5, heal=False)
    assert script.recording.state == "TENTATIVE"
    assert script.recording.standing == script.recording.tentative == 20 * 2 * RATE
    script.recording.take(control(TupleType.UNDO), script.now)
    assert (script.recording.standing, script.recording.state) == (0, "CORRECTING")
    script.recording.take(control(TupleType.REC_DONE), script.now)
    assert script.recording.state == "STABLE"


def test_without_a_failure_there_is_none(script: Script) -> None:
    recording = script.normal(5).recording
    assert (recording.failures(), recording.corrections, recording.tentative) == ([], [], 0)
    assert {held.type for held in recording.held()} == {TupleType.INSERTION}


def test_a_failure_that_the_delay_masks_has_nothing_to_correct(script: Script) -> None:
    script.normal(2).fail(2).normal(2).fail(6).correct(1)
    masked, other = script.recording.failures()
    assert (masked.tentative, masked.corrected_us, masked.to_correct_us) == (0, None, None)
    assert other.to_correct_us == SECOND + 60_000


def test_overlapping_failures_are_one_until_the_last_is_healed() -> None:
    """Figure 5-6(a)."""
    recording = Recording()
    recording.mark(0, "cut monitor1")
    recording.mark(5 * SECOND, "cut monitor3")
    recording.mark(10 * SECOND, "healed monitor1")
    assert [f.healed_us for f in recording.failures()] == [None]
    recording.mark(15 * SECOND, "healed monitor3")
    assert [(f.cut_us, f.healed_us) for f in recording.failures()] == [(0, 15 * SECOND)]


def test_a_failure_during_recovery_has_corrections_of_its_own(script: Script) -> None:
    """Figure 5-6(b): REC_DONE is forced, and later corrections belong to the second failure."""
    script.normal(2).fail(6).correct(1).fail(6).correct(1).normal(1)
    first, second = script.recording.failures()
    assert first.tentative + second.tentative == script.recording.tentative
    assert first.corrected_us is not None
    assert first.corrected_us < second.cut_us + SECOND
    assert second.to_correct_us == SECOND + 60_000


def test_an_empty_recording_can_be_asked_anything() -> None:
    recording = Recording()
    recording.take(pa.RecordBatch.from_pylist([], SCHEMA), START)
    recording.take(control(TupleType.BOUNDARY), START)
    assert (recording.state, recording.latency(), recording.held(), recording.cells()) == ("EMPTY", None, [], [])
    assert (recording.began_us, recording.ended_us) == (None, None)


def test_holes_are_what_the_cut_source_would_have_sent(figure_5_4: Script) -> None:
    recording = figure_5_4.recording
    undone = recording.controls[0].wall_us
    slots = [held for held in recording.held(undone - 1) if held.type is TupleType.TENTATIVE]
    assert sum(held.expected - held.tuples for held in slots) == 80 * RATE
    assert all(held.expected == held.tuples for held in recording.held())


def test_a_batch_of_many_kinds_counts_as_its_parts_do(script: Script) -> None:
    parts = [tuples(TupleType.INSERTION, 0), tuples(TupleType.TENTATIVE, 1), control(TupleType.UNDO),
             tuples(TupleType.INSERTION, 1), control(TupleType.REC_DONE)]  # fmt: skip
    together = Recording(bucket_us=BUCKET)
    together.take(pa.Table.from_batches(parts).combine_chunks().to_batches()[0], START)
    for part in parts:
        script.recording.take(part, START)
    assert together.to_json() == script.recording.to_json()


def test_memory_is_bounded_and_counts_stay_exact() -> None:
    recording = Recording(bucket_us=BUCKET, cells_max=300)
    script = Script(recording)
    for _ in range(30):
        script.normal(3).fail(6).correct(1)
    assert len(recording.cells()) <= 300
    latency = recording.latency()
    assert latency is not None
    assert latency.us_max == LONGEST
    assert recording.stable == script.next * 3 * RATE == sum(c.tuples for c in recording.cells() if c.type == 1)
    assert len(recording.failures()) == 30


def test_a_saved_recording_says_the_same_and_takes_no_more(figure_5_4: Script, tmp_path: Path) -> None:
    recording = figure_5_4.recording
    recording.save(tmp_path / "run.json")
    loaded = Recording.load(tmp_path / "run.json")
    assert loaded.to_json() == recording.to_json()
    assert loaded.failures() == recording.failures()
    assert loaded.held() == recording.held()
    assert loaded.stable_fingerprint() == recording.stable_fingerprint()
    with pytest.raises(UsageError, match="cannot take more"):
        loaded.take(tuples(TupleType.INSERTION, 0), 0)


@pytest.mark.parametrize("data", [b"", b"{}", b"[1]", b'{"holdfast_recording": 99}', b'{"holdfast_recording": 1}'])
def test_a_file_that_is_no_recording_is_refused(data: bytes) -> None:
    with pytest.raises(UsageError):
        Recording.from_json(data)


def test_a_clock_that_is_ahead_makes_negative_latencies_and_no_error() -> None:
    recording = Recording()
    recording.take(tuples(TupleType.INSERTION, 0), START - SECOND)
    latency = recording.latency()
    assert latency is not None
    assert latency.us_max == -SECOND


def test_latencies_agree_with_a_plain_list_of_tuples() -> None:
    chance, recording, plain = random.Random(7), Recording(), []
    for i in range(300):
        wall = START + i * 100_000 + chance.randrange(100_000)
        batch = tuples(TupleType.INSERTION, chance.randrange(10_000))
        recording.take(batch, wall)
        plain += [wall - stime.value for stime in batch.column("stime")]
    latency = recording.latency()
    assert latency is not None
    plain.sort()
    assert (latency.tuples, latency.us_max) == (len(plain), plain[-1])
    median = plain[(len(plain) - 1) // 2]
    assert median <= latency.us_median <= median + 2 * recording.slot_us


def test_a_real_subscriber_is_recorded_through_a_branch(tmp_path: Path) -> None:
    stream = StreamStore(tmp_path, disk=QuietDisk()).create("s", "n bigint", bucket="1s")
    send(stream, range(3))
    recording = Recording(bucket_us=SECOND)
    with stream.subscribe(tentative=True) as subscriber:

        def poll(wall_s: int) -> None:
            for batch in subscriber.poll():
                recording.take(batch, wall_s * SECOND)

        poll(4)
        recording.mark(4 * SECOND, "cut monitor3")
        stream.create_branch(3 * SECOND)
        tentative(stream, range(3, 6))
        poll(7)
        assert (recording.stable, recording.standing) == (3, 3)
        recording.mark(8 * SECOND, "healed")
        send(stream, range(3, 7))
        stream.drop_branch()
        poll(9)
    assert (recording.stable, recording.standing, recording.tentative, recording.state) == (7, 0, 3, "STABLE")
    assert [f.to_correct_us for f in recording.failures()] == [SECOND]
    latency = recording.latency()
    assert latency is not None
    assert (latency.tuples, latency.us_max) == (7, 4 * SECOND)
