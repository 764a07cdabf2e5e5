"""A subscriber's sequence, planned in batches: the same tuples, and after a crash the same batch (D1–D4, D15, S2)."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.model.errors import UsageError
from holdfast.model.tuples import TupleType
from holdfast.protocol.dpc.messages import StreamReport
from holdfast.protocol.dpc.states import StreamState
from holdfast.stream.merge import FOREVER_US
from holdfast.stream.reader import cut, with_header
from holdfast.stream.report import ReportWriter
from holdfast.stream.sequence_plan import NO_LIMITS, Limits, SequenceOffset, SequencePlan, parse_offset
from holdfast.stream.store import Stream, StreamStore
from tests.faults.units import QuietDisk
from tests.stream import test_rows  # noqa: F401  # Imported by `tentative`, where hypothesis would not like it.
from tests.stream.test_subscriber import SECOND, filled, polled, send, tentative

#: (type, id, n): as much of a tuple as tells it from all others.
Tuple = tuple[TupleType, int, int | None]


def told(batches: list[pa.RecordBatch]) -> list[Tuple]:
    return [
        (TupleType(r["tuple_type"]), r["tuple_id"], r["n"]) for batch in batches for r in batch.to_pylist()
    ]  # fmt: skip


def batch_of(plan: SequencePlan, offset: SequenceOffset) -> list[Tuple]:
    """The batch that ends at the offset."""
    found: list[pa.RecordBatch] = []
    for step in offset.steps:
        if step.kind == TupleType.INSERTION:
            assert step.last is not None
            for extent in plan.stable(step):
                for fields, part in cut(extent.fields, plan.main.read(extent), step.first, step.last):
                    found.append(with_header(fields, part, TupleType.INSERTION, plan.schema))
        else:
            found += plan.others(step, offset)
    return told(found)


class Query:
    """What Spark does with a source: notes an offset, runs the batch, notes that it ran; after a crash from there."""

    def __init__(self, stream: Stream, limits: Limits = NO_LIMITS) -> None:
        self.stream, self.limits = stream, limits
        self.plan = SequencePlan(stream)
        self.log: list[str] = [self._text(self.plan.begin(-(2**62)))]

    @staticmethod
    def _text(offset: SequenceOffset) -> str:
        return json.dumps(offset.as_json())

    @property
    def last(self) -> SequenceOffset:
        return parse_offset(json.loads(self.log[-1]), self.stream)

    def next(self) -> bool:
        """Plan the next batch; False if there is nothing new."""
        before = self.last
        after = self.plan.after(before, self.limits)
        if after is before:
            return False
        self.log.append(self._text(after))
        return True

    def run(self) -> list[Tuple]:
        return batch_of(self.plan, self.last)

    def all(self) -> list[Tuple]:
        found: list[Tuple] = []
        while self.next():
            found += self.run()
        return found

    def restart(self) -> None:
        self.plan.close()
        self.plan = SequencePlan(self.stream)


@dataclass
class Table:
    """A consumer that keeps what it was told, and applies a batch once."""

    stable: list[int] = field(default_factory=list)
    tentative: list[int] = field(default_factory=list)
    batches: set[int] = field(default_factory=set)

    def apply(self, number: int, batch: list[Tuple]) -> None:
        if number in self.batches:
            return
        self.batches.add(number)
        for kind, id, n in batch:
            if kind is TupleType.UNDO:
                assert id == len(self.stable), "an UNDO names the last stable tuple"
                self.tentative.clear()
            elif kind is TupleType.INSERTION:
                assert n is not None
                self.stable.append(n)
            elif kind is TupleType.TENTATIVE:
                assert n is not None
                self.tentative.append(n)
        self.check()

    def check(self) -> None:
        assert self.stable == list(range(len(self.stable)))
        begin = self.tentative[0] if self.tentative else 0
        assert self.tentative == list(range(begin, begin + len(self.tentative))), "no gap in what is tentative"
        assert not self.tentative or begin >= len(self.stable)


class Scene:
    """One stream, its producer's doings, and a report where there is one."""

    def __init__(self, root: Path) -> None:
        self.stream = filled(root, 0)
        self.main, self.end = 0, 0
        self.reports = ReportWriter(self.stream.folder, QuietDisk())
        self.report: StreamReport | None = None

    def do(self, what: str, how: int) -> None:
        if what == "stable":
            send(self.stream, range(self.main, self.main + how))
            self.main += how
        elif what == "fork" and self.stream.branch() is None:
            self.stream.create_branch(self.main * SECOND)
            self.end = self.main
        elif what == "grow" and self.stream.branch() is not None:
            tentative(self.stream, range(self.end, self.end + how))
            self.end += how
        elif what == "drop":
            self.stream.drop_branch()
        elif what == "report":
            state = (StreamState.STABLE, StreamState.UP_FAILURE, StreamState.STABILIZATION)[how - 1]
            self.report = StreamReport("s", state, self.main * SECOND, False)

    def alive(self) -> None:
        """Not a question of how long a test takes."""
        if self.report is not None:
            self.reports.publish(self.report)


DOINGS = st.tuples(st.sampled_from(["stable", "fork", "grow", "grow", "drop", "report"]), st.integers(1, 3))
#: What is done, and then: a look, a new process, or a crash amid a batch that was applied (2) or not (3).
SCHEDULE = st.lists(st.tuples(DOINGS, st.integers(0, 3)), max_size=14)


def on_scene(check: Callable[[Scene, list[Any]], None], schedule: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as root:
        check(Scene(Path(root)), schedule)


@settings(max_examples=40, deadline=None)
@given(schedule=SCHEDULE)
def test_a_query_is_told_what_a_subscriber_is_told(schedule: list[Any]) -> None:
    """D15. Also one that is started again, unless the branch of what it holds is gone."""

    def check(scene: Scene, schedule: list[Any]) -> None:
        query = Query(scene.stream)
        with scene.stream.subscribe(tentative=True) as subscriber:
            for (what, how), then in schedule:
                scene.do(what, how)
                branch = scene.stream.branch()
                if then and (branch is None or branch.id == query.last.state.branch):
                    holds = query.plan.position_of(query.last).tentative
                    if branch is not None or not holds:
                        query.restart()
                scene.alive()
                assert query.all() == told(list(subscriber.poll()))

    on_scene(check, schedule)


@settings(max_examples=60, deadline=None)
@given(schedule=SCHEDULE, rows_max=st.sampled_from([None, 1, 2]))
def test_whoever_applies_each_batch_once_holds_a_prefix_and_what_is_tentative_behind_it(
    schedule: list[Any], rows_max: int | None
) -> None:
    """D1, D2, S2: with crashes before and after a batch was applied, and branches that vanish at any moment."""

    def check(scene: Scene, schedule: list[Any]) -> None:
        query, table = Query(scene.stream, Limits(rows=rows_max)), Table()

        def catch_up() -> None:
            while query.next():
                table.apply(len(query.log), query.run())

        for (what, how), then in schedule:
            if then >= 2 and query.next():
                if then == 2:
                    table.apply(len(query.log), query.run())
                scene.do(what, how)
                scene.alive()
                query.restart()
                table.apply(len(query.log), query.run())
            else:
                scene.do(what, how)
                scene.alive()
                if then == 1:
                    query.restart()
            catch_up()
        scene.report = None
        scene.reports.path.unlink(missing_ok=True)
        send(scene.stream, range(scene.main, scene.main + 1), end=True)
        catch_up()
        assert (table.stable, table.tentative) == (list(range(scene.main + 1)), [])

    on_scene(check, schedule)


def test_a_batch_that_is_run_again_is_the_same_although_more_has_come(tmp_path: Path) -> None:
    stream = filled(tmp_path, 2)
    stream.create_branch(2 * SECOND)
    tentative(stream, range(2, 4))
    query = Query(stream)
    assert query.next()
    first = query.run()
    tentative(stream, range(4, 6))
    send(stream, range(2, 5))
    query.restart()
    assert query.run() == first
    assert [n for _, _, n in first] == [0, 1, 2, 3]
    assert [(k.name, n) for k, _, n in query.all()][:2] == [("UNDO", None), ("INSERTION", 2)]


def test_a_batch_whose_branch_is_gone_is_run_without_it_and_an_undo_follows(tmp_path: Path) -> None:
    stream = filled(tmp_path, 2)
    stream.create_branch(2 * SECOND)
    tentative(stream, range(2, 4))
    query = Query(stream)
    assert query.next()
    stream.drop_branch()
    stream.create_branch(2 * SECOND)
    tentative(stream, range(2, 3))
    query.restart()
    assert [n for _, _, n in query.run()] == [0, 1]
    assert query.next()
    assert [(k.name, id, n) for k, id, n in query.run()] == [
        ("UNDO", 2, None), ("REC_DONE", 0, None), ("TENTATIVE", 1, 2),
    ]  # fmt: skip
    assert not query.next()


def test_a_branch_that_vanishes_between_plan_and_batch_is_taken_back(tmp_path: Path) -> None:
    """Without a crash: the process that planned the batch finds nothing to read."""
    stream = filled(tmp_path, 2)
    stream.create_branch(2 * SECOND)
    tentative(stream, range(2, 4))
    query = Query(stream)
    assert query.next()
    stream.drop_branch()
    assert [n for _, _, n in query.run()] == [0, 1]
    assert query.next()
    assert [(k.name, id) for k, id, _ in query.run()] == [("UNDO", 2)]


def test_what_is_there_when_it_was_frozen_is_planned_and_no_more(tmp_path: Path) -> None:
    stream = filled(tmp_path, 2)
    stream.create_branch(2 * SECOND)
    tentative(stream, range(2, 4))
    query = Query(stream)
    query.plan.freeze()
    send(stream, range(2, 5))
    tentative(stream, range(4, 6))
    assert [n for _, _, n in query.all()] == [0, 1, 2, 3]
    query.restart()
    assert query.next()


def test_an_offset_of_another_stream_or_of_another_kind_of_query_is_refused(tmp_path: Path) -> None:
    store = StreamStore(tmp_path, disk=QuietDisk())
    stream = filled(tmp_path, 2)
    offset = json.loads(Query(stream).log[0])
    with pytest.raises(UsageError, match="without option tentative"):
        parse_offset({"format": 1, "until_us": 5}, stream)
    with pytest.raises(UsageError, match="another version"):
        parse_offset({**offset, "format": 3}, stream)
    store.delete("s")
    with pytest.raises(UsageError, match="made anew under its name"):
        parse_offset(offset, filled(tmp_path, 2))


def test_a_stream_that_is_shorter_than_the_checkpoint_says_so(tmp_path: Path) -> None:
    stream = filled(tmp_path / "a", 2)
    query = Query(stream)
    query.all()
    shorter = filled(tmp_path / "b", 1)
    offset = msgspec.structs.replace(query.last, stream=shorter.definition.id)
    with pytest.raises(UsageError, match="has not come"):
        SequencePlan(shorter).after(offset)
    with pytest.raises(UsageError, match="has not come"):
        batch_of(SequencePlan(shorter), offset)


def test_a_stream_that_ends_without_another_tuple_still_has_an_offset_behind_its_end(tmp_path: Path) -> None:
    stream = filled(tmp_path, 2)
    query = Query(stream)
    query.all()
    assert "until_us" not in query.last.as_json()
    send(stream, range(0), end=True)
    assert query.next()
    assert query.run() == []
    assert query.last.until_us == FOREVER_US
    assert not query.next()
    # One that an older version has noted is followed by it as well.
    query.log.append(Query._text(msgspec.structs.replace(query.last, until_us=None)))
    assert query.next()
    assert query.last.until_us == FOREVER_US


def test_a_query_goes_on_behind_a_stream_that_was_closed_before_its_boundary(tmp_path: Path) -> None:
    """The end of a closed stream is that of its last bucket, which may lie behind what was promised before."""
    stream = filled(tmp_path, 2)
    with stream.producer(stime="stime", boundary_every="1h") as producer:
        producer.advance(9 * SECOND)
        producer.close(end=False)
    query = Query(stream)
    assert query.next()
    first = query.run()
    with stream.subscribe() as subscriber:
        assert polled(subscriber) == [0, 1]
        position = subscriber.position
    send(stream, range(0), end=True)
    query.restart()
    assert query.run() == first
    assert query.all() == []
    with stream.subscribe(after=position) as subscriber:
        assert polled(subscriber) == []
        assert subscriber.finished
