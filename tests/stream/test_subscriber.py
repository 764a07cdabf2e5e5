"""The client proxy: any start, history into live without a gap or a repeat, main and branch as one (L6, D1–D4)."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from holdfast.model.errors import CorruptLog, Removed, UsageError
from holdfast.model.tuples import TupleType
from holdfast.protocol.dpc.messages import StreamReport
from holdfast.protocol.dpc.states import StreamState
from holdfast.stream.acks import acknowledge
from holdfast.stream.definition import Retention
from holdfast.stream.frame import crc32c
from holdfast.stream.holes import note_hole
from holdfast.stream.losses import Loss, add_losses
from holdfast.stream.position import Position
from holdfast.stream.report import ReportWriter, report_path
from holdfast.stream.store import Stream, StreamStore
from holdfast.stream.subscriber import Row, Subscriber
from holdfast.stream.worth import Worth, note_worth
from tests.faults.units import QuietDisk

SECOND = 1_000_000


def filled(root: Path, buckets: int = 10, **options: object) -> Stream:
    """One tuple per bucket of a second: n in bucket n."""
    stream = StreamStore(root, disk=QuietDisk()).create("s", "n bigint", **{"bucket": "1s", **options})
    send(stream, range(buckets))
    return stream


def send(stream: Stream, numbers: range, end: bool = False) -> None:
    with stream.producer(stime="stime", boundary_every="1h") as producer:
        for n in numbers:
            producer.send({"n": n, "stime": n * SECOND})
        if len(numbers):
            producer.advance((numbers[-1] + 1) * SECOND)
        producer.close(end=end)


def polled(subscriber: Subscriber) -> list[object]:
    """What a poll says: numbers, tentative ones as text, control tuples by name."""
    said: list[object] = []
    for batch in subscriber.poll():
        for record in batch.to_pylist():
            kind = TupleType(record["tuple_type"])
            if kind == TupleType.INSERTION:
                said.append(record["n"])
            elif kind == TupleType.TENTATIVE:
                said.append(f"~{record['n']}")
            elif kind == TupleType.UNDO:
                said.append(f"UNDO after {record['tuple_id']}")
            else:
                said.append(kind.name)
    return said


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [*range(10)]),
        ({"start": "beginning", "end": 4}, [0, 1, 2, 3]),
        ({"start": "1970-01-01T00:00:07"}, [7, 8, 9]),
        ({"start": 7.5}, [8, 9]),
        ({"bucket": 8}, [8, 9]),
        ({"start": "live"}, []),
    ],
)
def test_a_subscription_starts_where_it_is_told(
    options: dict[str, object], expected: list[int], tmp_path: Path
) -> None:
    stream = filled(tmp_path)
    with stream.subscribe(**options) as subscriber:
        assert polled(subscriber) == expected
        send(stream, range(10, 12))
        if "end" in options:
            assert subscriber.finished
        else:
            assert polled(subscriber) == [10, 11]
    with pytest.raises(UsageError, match="start must be"):
        stream.subscribe(start="whenever")


def test_from_history_to_live_there_is_no_gap_and_no_repeat(tmp_path: Path) -> None:
    """L6: the subscriber crosses over while the producer goes on, rolls, closes and comes back."""
    stream = filled(tmp_path, 200, segment_bytes=4096)
    got: list[int] = []

    def follow() -> None:
        with stream.subscribe() as subscriber:
            got.extend(row.values["n"] for row in subscriber.rows(timeout="30s"))

    thread = threading.Thread(target=follow)
    thread.start()
    for start in range(200, 600, 50):
        send(stream, range(start, start + 50), end=start == 550)
    thread.join(30)
    assert got == list(range(600))


def test_the_portions_in_which_one_polls_do_not_change_what_comes(tmp_path: Path) -> None:
    whole = filled(tmp_path / "a", 0)
    with whole.subscribe() as subscriber:
        portions = []
        for start in range(0, 30, 3):
            send(whole, range(start, start + 3))
            portions += polled(subscriber)
    assert portions == list(range(30))


def test_whoever_stops_half_way_finds_the_rest_at_the_next_poll(tmp_path: Path) -> None:
    """L6: leaving a loop is no reason for a gap."""
    stream = filled(tmp_path)
    with stream.subscribe() as subscriber:
        first = next(subscriber.poll()).column("n").to_pylist()
        second = next(iter(subscriber)).column("n").to_pylist()
        assert first + second + polled(subscriber) == list(range(10))


def test_an_acknowledgement_covers_only_what_was_delivered(tmp_path: Path) -> None:
    """L8: acknowledging inside the loop must not give up what is still to come."""
    stream = filled(tmp_path)
    with stream.subscribe(name="reader") as subscriber:
        for batch in subscriber.poll():
            subscriber.ack()
            known = stream.acks().get("reader")
            assert known is None or known.until_us <= batch.column("n").to_pylist()[0] * SECOND
        subscriber.ack()
        assert stream.acks()["reader"].until_us == 10 * SECOND
    with stream.subscribe() as nameless, pytest.raises(UsageError, match="name"):
        nameless.ack()


def test_what_cannot_be_read_is_reported_at_every_poll_and_never_passed_over(tmp_path: Path) -> None:
    """L4, L6."""
    stream = filled(tmp_path)
    path = next(stream.folder.glob("main/*.seg"))
    raw = path.read_bytes()
    bodies = [i + 64 for i in range(0, len(raw), 64) if raw[i + 8 : i + 10] == b"\x01\x01"]
    with stream.subscribe() as subscriber:
        at = bodies[6] + 9
        path.write_bytes(raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :])
        said = []
        for _ in range(3):
            with pytest.raises(CorruptLog):
                said += polled(subscriber)
        assert subscriber.position_us < 10 * SECOND
    path.write_bytes(raw)


def test_boundaries_are_delivered_when_asked_for(tmp_path: Path) -> None:
    stream = filled(tmp_path, 3)
    with stream.subscribe(boundaries=True) as subscriber:
        assert polled(subscriber) == [0, 1, 2, "BOUNDARY"]
        assert polled(subscriber) == []


def tentative(stream: Stream, numbers: range) -> None:
    from holdfast.stream.pack import pack
    from tests.stream.test_rows import stored_batch

    writer = stream.branch_writer()
    try:
        for n in numbers:
            events = pack(stored_batch(stream.definition, [n * SECOND], n=[n]), stream.definition)
            writer.commit(events, now_us=1, boundary_us=(n + 1) * SECOND)
    finally:
        writer.release(1)


def publish(stream: Stream, state: StreamState) -> None:
    ReportWriter(stream.folder, QuietDisk()).publish(StreamReport(stream.name, state, 0, False))


def test_stable_tentative_undo_corrections_as_they_come_done(tmp_path: Path) -> None:
    """Figure 4-6, through files: D1, D2, D3, D4, D15."""
    stream = filled(tmp_path, 3)
    publish(stream, StreamState.STABLE)
    with stream.subscribe(tentative=True) as subscriber, stream.subscribe() as stable_only:
        assert polled(subscriber) == [0, 1, 2]
        publish(stream, StreamState.UP_FAILURE)
        stream.create_branch(3 * SECOND)
        tentative(stream, range(3, 5))
        assert polled(subscriber) == ["~3", "~4"]
        assert not subscriber.finished
        tentative(stream, range(5, 6))
        assert polled(subscriber) == ["~5"]
        publish(stream, StreamState.STABILIZATION)
        send(stream, range(3, 4))
        assert polled(subscriber) == ["UNDO after 3", 3]
        tentative(stream, range(6, 7))
        assert polled(subscriber) == ["~6"]
        send(stream, range(4, 7))
        assert polled(subscriber) == [4, 5, "UNDO after 6", 6]
        stream.drop_branch()
        assert polled(subscriber) == []
        publish(stream, StreamState.STABLE)
        assert polled(subscriber) == ["REC_DONE"]
        send(stream, range(7, 9), end=True)
        assert polled(subscriber) == [7, 8]
        assert subscriber.finished
        assert polled(stable_only) == list(range(9))


def test_a_branch_that_goes_on_in_another_failure_is_followed_again(tmp_path: Path) -> None:
    """D4, D5: another failure strikes before main is level. What an UNDO took back comes again."""
    stream = filled(tmp_path, 3)
    publish(stream, StreamState.UP_FAILURE)
    with stream.subscribe(tentative=True) as subscriber:
        stream.create_branch(3 * SECOND)
        tentative(stream, range(3, 7))
        assert polled(subscriber) == [0, 1, 2, "~3", "~4", "~5", "~6"]
        publish(stream, StreamState.STABILIZATION)
        send(stream, range(3, 5))
        assert polled(subscriber) == ["UNDO after 3", 3, 4]
        publish(stream, StreamState.UP_FAILURE)
        tentative(stream, range(7, 8))
        assert polled(subscriber) == ["REC_DONE", "~5", "~6", "~7"]
        publish(stream, StreamState.STABILIZATION)
        send(stream, range(5, 8))
        assert polled(subscriber) == ["UNDO after 5", 5, 6, 7]


def test_the_branch_of_a_dead_producer_is_not_followed_and_a_restart_corrects_what_was(tmp_path: Path) -> None:
    """D15: killed in the middle of a failure; report and branch stay behind."""
    stream = filled(tmp_path, 3)
    publish(stream, StreamState.UP_FAILURE)
    stream.create_branch(3 * SECOND)
    tentative(stream, range(3, 5))
    with stream.subscribe(tentative=True) as subscriber:
        assert polled(subscriber) == [0, 1, 2, "~3", "~4"]
        before = time.time() - 60
        os.utime(report_path(stream.folder), (before, before))
        with stream.subscribe(tentative=True) as newcomer:
            assert polled(newcomer) == [0, 1, 2]
        stream.drop_branch()  # As a host does when it starts.
        publish(stream, StreamState.FAILURE)
        assert polled(subscriber) == []
        send(stream, range(3, 4))
        assert polled(subscriber) == ["UNDO after 3", 3]
        send(stream, range(4, 5))
        publish(stream, StreamState.STABLE)
        assert polled(subscriber) == [4, "REC_DONE"]


def test_a_stream_that_ends_before_its_branch_does_leaves_nothing_tentative(tmp_path: Path) -> None:
    """D3: otherwise a reader would wait for ever for corrections that cannot come."""
    stream = filled(tmp_path, 3)
    publish(stream, StreamState.UP_FAILURE)
    stream.create_branch(3 * SECOND)
    tentative(stream, range(3, 6))
    with stream.subscribe(tentative=True) as subscriber:
        assert polled(subscriber) == [0, 1, 2, "~3", "~4", "~5"]
        send(stream, range(0), end=True)
        assert polled(subscriber) == ["UNDO after 3", "REC_DONE"]
        assert subscriber.finished


def test_a_stream_with_a_branch_and_no_report_is_corrected_when_main_has_passed_the_branch(tmp_path: Path) -> None:
    """Written before there were reports: the branch counts its failures, and nobody says how the producer does."""
    stream = filled(tmp_path, 3)
    root = stream.create_branch(3 * SECOND)
    tentative(stream, range(3, 6))
    old = {"id": root.id, "root_us": root.root_us, "created_us": root.created_us, "format": 1, "failure": 2}
    text = msgspec.json.format(msgspec.json.encode(old), indent=1)
    (stream.folder / "tentative" / "branch").write_bytes(text + b"\n%08x\n" % crc32c(text))
    with stream.subscribe(tentative=True) as subscriber, stream.subscribe() as stable_only:
        assert polled(subscriber) == [0, 1, 2, "~3", "~4", "~5"]
        send(stream, range(3, 5))
        assert polled(subscriber) == ["UNDO after 3", 3, 4]
        send(stream, range(5, 6))
        assert polled(subscriber) == [5, "REC_DONE"]
        tentative(stream, range(6, 7))
        assert polled(subscriber) == []
        stream.drop_branch()
        send(stream, range(6, 7), end=True)
        assert polled(subscriber) == [6]
        assert subscriber.finished
        assert polled(stable_only) == list(range(7))


def test_what_a_damaged_report_says_is_not_believed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """L4: stable tuples go on; nothing tentative is shown, and no correction closed, until there is another report."""
    stream = filled(tmp_path, 3)
    publish(stream, StreamState.UP_FAILURE)
    stream.create_branch(3 * SECOND)
    tentative(stream, range(3, 5))
    path = report_path(stream.folder)
    raw = path.read_bytes()
    path.write_bytes(raw.replace(b"UP_FAILURE", b"UP_FAILURF"))
    with stream.subscribe(tentative=True) as subscriber:
        assert polled(subscriber) == [0, 1, 2]
        assert "does not match its checksum" in caplog.text
        publish(stream, StreamState.UP_FAILURE)
        assert polled(subscriber) == ["~3", "~4"]
        path.write_bytes(b"x" * 10_000)
        send(stream, range(3, 5))
        assert polled(subscriber) == ["UNDO after 3", 3, 4]
        publish(stream, StreamState.STABLE)
        assert polled(subscriber) == ["REC_DONE"]


def test_buckets_without_tentative_tuples_are_not_undone(tmp_path: Path) -> None:
    """D2: UNDO is absent if none were sent."""
    stream = filled(tmp_path, 1)
    with stream.subscribe(tentative=True) as subscriber:
        assert polled(subscriber) == [0]
        stream.create_branch(SECOND)
        writer = stream.branch_writer()
        writer.commit([], now_us=1, boundary_us=3 * SECOND)
        writer.release(1)
        assert polled(subscriber) == []
        send(stream, range(1, 4))
        assert polled(subscriber) == [1, 2, 3]


def test_an_end_holds_for_the_branch_as_well(tmp_path: Path) -> None:
    stream = filled(tmp_path, 2)
    stream.create_branch(2 * SECOND)
    tentative(stream, range(2, 9))
    with stream.subscribe(tentative=True, end=4) as subscriber:
        assert polled(subscriber) == [0, 1, "~2", "~3"]
        send(stream, range(2, 6))
        assert polled(subscriber) == ["UNDO after 2", 2, 3, "REC_DONE"]
        assert subscriber.finished


def test_a_branch_dropped_while_it_is_read_is_no_error(tmp_path: Path) -> None:
    stream = filled(tmp_path, 1)
    stream.create_branch(SECOND)
    tentative(stream, range(1, 6))
    with stream.subscribe(tentative=True) as subscriber:
        view = subscriber._look._branch_view

        def dropped(end_us: int | None) -> object:
            seen = view(end_us)
            stream.drop_branch()
            return seen

        subscriber._look._branch_view = dropped  # type: ignore[method-assign, assignment]
        said = polled(subscriber)
        subscriber._look._branch_view = view  # type: ignore[method-assign]
        assert said[0] == 0
        send(stream, range(1, 7))
        after = polled(subscriber)
        assert [s for s in after if isinstance(s, int)] == list(range(1, 7))
        assert ("REC_DONE" in after) == any(isinstance(s, str) for s in said)


def test_a_range_that_was_never_written_is_said_and_not_taken_for_empty(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """D14"""
    stream = filled(tmp_path, 4)
    note_hole(stream.folder, -(2**62), 0, QuietDisk())
    note_hole(stream.folder, 4 * SECOND, 7 * SECOND, QuietDisk())
    early, late = stream.subscribe(start=1.0), stream.subscribe(start="beginning")
    assert polled(early) == [1, 2, 3]
    assert early.holes == []
    send(stream, range(7, 9))
    assert polled(early) == [7, 8]
    assert polled(early) == []
    assert [(h.first_us, h.upto_us) for h in early.holes] == [(4 * SECOND, 7 * SECOND)]
    assert caplog.text.count("the input for them was gone") == 1
    assert polled(late) == [0, 1, 2, 3, 7, 8]
    assert len(late.holes) == 2


# Positions --------------------------------------------------------------------------------------------------------


class Life:
    """A consumer that keeps its rows and its position, and can be killed between any two tuples."""

    def __init__(self) -> None:
        self.stable: list[int] = []
        self.tentative: list[int] = []
        self.position: str | None = None
        self.said: list[str] = []

    def take(self, row: Row) -> None:
        self.said.append(row.type.name)
        if row.type is TupleType.INSERTION:
            self.stable.append(row.values["n"])
        elif row.type is TupleType.TENTATIVE:
            self.tentative.append(row.values["n"])
        elif row.type is TupleType.UNDO:
            assert row.id == len(self.stable), "UNDO names the consumer's last stable tuple, whoever gave it that"
            self.tentative.clear()
        elif row.type is TupleType.REC_DONE:
            assert not self.tentative
        self.position = row.position


def story(stream: Stream) -> list[Callable[[], object]]:
    """Stable, a failure, corrections with news, another failure amid them, healed, ended. Several tuples per bucket."""

    def several(first: int, upto: int, end: bool = False) -> None:
        with stream.producer(stime="stime", boundary_every="1h") as producer:
            for n in range(first, upto):
                producer.send({"n": n, "stime": n * SECOND // 3})
            producer.advance(-(-upto * SECOND // 3))
            producer.close(end=end)

    return [
        lambda: several(0, 9),
        lambda: publish(stream, StreamState.UP_FAILURE),
        lambda: (stream.create_branch(3 * SECOND), tentative(stream, range(3, 5))),
        lambda: tentative(stream, range(5, 6)),
        lambda: (publish(stream, StreamState.STABILIZATION), several(9, 12)),
        lambda: tentative(stream, range(6, 8)),
        lambda: publish(stream, StreamState.UP_FAILURE),
        lambda: tentative(stream, range(8, 9)),
        lambda: (publish(stream, StreamState.STABILIZATION), several(12, 24)),
        lambda: (several(24, 27), stream.drop_branch(), publish(stream, StreamState.STABLE)),
        lambda: several(27, 33, end=True),
    ]


@pytest.mark.parametrize("seed", range(20))
def test_a_consumer_that_resumes_at_any_tuple_gets_what_one_without_a_break_gets(seed: int, tmp_path: Path) -> None:
    """D1 to D4, L6: killed between any two tuples, with tentative ones in its hands or amid corrections."""
    chance = random.Random(seed)
    stream = filled(tmp_path, 0)
    life = Life()
    subscriber = stream.subscribe(tentative=True)
    for step in story(stream):
        step()
        while True:
            rows = subscriber.rows(timeout=0)
            killed = False
            for row in rows:
                life.take(row)
                if chance.random() < 0.2:
                    subscriber.close()
                    held, at = list(life.tentative), len(life.said)
                    subscriber = stream.subscribe(tentative=True, after=life.position)
                    killed = True
                    again = subscriber.rows(timeout=0)
                    for row in again:
                        life.take(row)
                        break
                    if held and len(life.said) > at:
                        assert life.said[at] == "UNDO", "what it holds from before is taken back first"
                    again.close()
                    break
            if not killed:
                break
    assert life.stable == list(range(33))
    assert not life.tentative
    assert subscriber.finished
    assert life.said.count("UNDO") == 0 or life.said[len(life.said) - life.said[::-1].index("UNDO") :].count("REC_DONE")


def test_a_position_is_that_of_the_tuple_before_the_break_within_a_bucket_and_between(tmp_path: Path) -> None:
    stream = filled(tmp_path, 0)
    story(stream)[0]()
    with stream.subscribe() as subscriber:
        positions = [row.position for row in subscriber.rows(timeout=0)]
        end = subscriber.position
    for n, position in enumerate(positions):
        with stream.subscribe(after=position) as again:
            assert polled(again) == list(range(n + 1, 9))
    with stream.subscribe(after=end) as again:
        assert polled(again) == []
        send(stream, range(9, 10))
        assert polled(again) == [9]


def test_a_named_subscriber_resumes_behind_its_last_acknowledgement(tmp_path: Path) -> None:
    stream = filled(tmp_path)
    with stream.subscribe(name="db", resume=True) as subscriber:
        for row in subscriber.rows(timeout=0):
            if row.values["n"] == 6:
                break
            subscriber.ack()
    with stream.subscribe(name="db", resume=True) as subscriber:
        assert polled(subscriber) == [6, 7, 8, 9]
    with stream.subscribe(name="db") as from_the_beginning:
        assert polled(from_the_beginning) == [*range(10)]
    with pytest.raises(UsageError, match="resume needs the name"):
        stream.subscribe(resume=True)


def test_an_acknowledgement_from_before_there_were_positions_is_resumed_at_its_bucket(tmp_path: Path) -> None:
    stream = filled(tmp_path)
    acknowledge(stream.folder, "db", 4 * SECOND, 1, QuietDisk())
    with stream.subscribe(name="db", resume=True) as subscriber:
        assert polled(subscriber) == [4, 5, 6, 7, 8, 9]


def test_a_named_subscriber_that_held_tentative_tuples_is_told_to_take_them_back(tmp_path: Path) -> None:
    stream = filled(tmp_path, 3)
    publish(stream, StreamState.UP_FAILURE)
    stream.create_branch(3 * SECOND)
    tentative(stream, range(3, 5))
    with stream.subscribe(name="db", resume=True, tentative=True) as subscriber:
        assert polled(subscriber) == [0, 1, 2, "~3", "~4"]
        subscriber.ack()
    stream.drop_branch()
    send(stream, range(3, 5))
    publish(stream, StreamState.STABLE)
    with stream.subscribe(name="db", resume=True, tentative=True) as subscriber:
        assert polled(subscriber) == ["UNDO after 3", 3, 4, "REC_DONE"]
        subscriber.ack()
    with stream.subscribe(name="db", resume=True, tentative=True) as subscriber:
        assert polled(subscriber) == []


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda text: "", "unchanged"),
        (lambda text: text[:-1] + ("0" if text[-1] != "0" else "1"), "unchanged"),
        (lambda text: text.replace(":s:", ":t:"), "unchanged"),
        (lambda text: signed(text.replace("position:1:", "position:3:")), "version 3"),
        (lambda text: signed(text.replace(":s:", ":t:")), "one of t"),
        (lambda text: signed(text.replace(":1000000:", ":2000000:", 1)), "another stream"),
        (lambda text: signed(text.replace(":4000000:", ":44000000:")), "has not come"),
    ],
)
def test_a_position_that_is_none_of_the_streams_is_refused_with_a_sentence(
    spoil: Callable[[str], str], why: str, tmp_path: Path
) -> None:
    stream = filled(tmp_path)
    with stream.subscribe() as subscriber:
        position = [row.position for row in subscriber.rows(timeout=0)][4]
    with pytest.raises(UsageError, match=why):
        stream.subscribe(after=spoil(position))


def signed(text: str) -> str:
    said = text.rpartition(":")[0]
    return f"{said}:{crc32c(said.encode()):08x}"


def test_a_position_whose_tuples_were_removed_is_refused_and_not_skipped(tmp_path: Path) -> None:
    stream = filled(tmp_path, 200, segment_bytes=4096)
    with stream.subscribe() as subscriber:
        position = [row.position for row in subscriber.rows(timeout=0)][4]
    assert stream.retain(Retention(size_bytes=1)).rows > 10
    with pytest.raises(Removed, match="removed by retention"):
        stream.subscribe(after=position)


def test_what_tentative_tuples_are_worth_is_in_columns_on_request(tmp_path: Path) -> None:
    """003 §5.8.3."""
    stream = filled(tmp_path, 2)
    publish(stream, StreamState.UP_FAILURE)
    stream.create_branch(2 * SECOND)
    note_worth(stream.folder, stream.definition, [Worth(2, 0.7, ("a",), 0.5, ("b",))])
    tentative(stream, range(2, 4))
    with stream.subscribe(tentative=True, worth=True) as subscriber:
        batches = list(subscriber.poll())
        names = subscriber.schema.names[-3:]
        found = {name: [value for batch in batches for value in batch.column(name).to_pylist()] for name in names}
        assert found == {
            "worth": [None, None, 0.7, None], "worth_least": [None, None, 0.5, None],
            "worth_missing": [None, None, ["b"], None],
        }  # fmt: skip
        stime = batches[-2].column("stime")[0].as_py()
        assert subscriber.worth(stime) == Worth(2, 0.7, ("a",), 0.5, ("b",))
    for name in ("worth", "worth_least", "worth_missing"):
        own = StreamStore(tmp_path / name).create("s", f"{name} double")
        with pytest.raises(UsageError, match=f"has a column {name} of its own"):
            own.subscribe(worth=True)


def test_a_position_whose_tuple_is_not_there_is_refused_unless_it_can_be_gone(tmp_path: Path) -> None:
    stream = filled(tmp_path, 200, segment_bytes=4096)
    here, other = Position(9 * SECOND, 9, 8 * SECOND), Position(9 * SECOND, 9, 7 * SECOND)
    stream.subscribe(after=here.text("s", SECOND)).close()
    with pytest.raises(UsageError, match=r"tuple 9 at .*00:00:07.*which stream s has not got: it was made anew since"):
        stream.subscribe(after=other.text("s", SECOND))
    reader = stream.reader()
    assert [reader.has_tuple(9, second * SECOND) for second in (7, 8)] == [False, True]
    assert reader.has_tuple(1000, 8 * SECOND) is False
    add_losses(stream.folder / "main", (Loss("a", 1, 1, 900, 1001),), QuietDisk())
    assert reader.has_tuple(1000, 8 * SECOND) is None, "a repair has given it up"
    stream.retain(Retention(size_bytes=1))
    reader.refresh()
    assert reader.has_tuple(1, 7 * SECOND) is None, "retention has removed it"
    reader.close()
