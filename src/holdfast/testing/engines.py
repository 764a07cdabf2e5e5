"""The conformance suite of engines: subclass it, say how to make yours, and run it with pytest.

    class TestMine(EngineConformance):
        def engine(self): return MyEngine()
        def counts(self, rows): ...     # what a node's function would be on it: see `EngineConformance.counts`

The oracle counts the input in plain Python. Whatever is stopped, forked, copied or begun anew, results are those of a
run without any of it.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from holdfast.app import App
from holdfast.clock import monotonic_us, now_us, pause
from holdfast.engine import Engine, Fork, Progress, Query
from holdfast.host.catalog import node_plan
from holdfast.host.controller import Controller
from holdfast.host.intake import DirectIntake
from holdfast.host.link import Cuts
from holdfast.model.errors import Removed, StorageError, UnknownStream, UsageError
from holdfast.model.time import BEGINNING_US, END_OF_TIME_US, closed_until
from holdfast.protocol.dpc.plan import InputPlan, OutputPlan
from holdfast.stream.branch import branch_folder
from holdfast.stream.decision import Decision
from holdfast.stream.merge import FOREVER_US
from holdfast.stream.reader import LogReader
from holdfast.stream.store import Stream, StreamStore
from holdfast.stream.tentative import PlannedPiece, PlanWriter

_SECOND = 1_000_000
_T0 = 1_700_000_000 * _SECOND
#: Results of one second: source, number of rows, sum of bytes.
Group = list[tuple[str, int, int]]


class Input:
    """A stream of seconds that are all different, and what their counts are."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self._producer = stream.producer(id="suite", stime="stime", slack="1h")
        self._seconds = 0

    @staticmethod
    def rows(second: int) -> list[tuple[int, str, int]]:
        return [(_T0 + second * _SECOND + k * 50_000, "abc"[k % 3], second * 100 + k) for k in range(3 + second % 4)]

    def feed(self, upto: int) -> None:
        """Seconds up to this one are complete."""
        while self._seconds < upto:
            rows = self.rows(self._seconds)
            self._producer.send_many([{"stime": datetime.fromtimestamp(at / 1e6, UTC), "source": source, "bytes": size}
                                      for at, source, size in rows])  # fmt: skip
            self._seconds += 1
            self._producer.advance(_T0 + self._seconds * _SECOND)

    def end(self) -> None:
        self._producer.close(end=True)

    @classmethod
    def expected(cls, seconds: range) -> list[Group]:
        groups = []
        for second in seconds:
            number: Counter[str] = Counter(source for _, source, _ in cls.rows(second))
            total: Counter[str] = Counter()
            for _, source, size in cls.rows(second):
                total[source] += size
            groups.append(sorted((source, number[source], total[source]) for source in number))
        return groups


class Branch(NamedTuple):
    """What a fork has given, from the root of its branch to what that promised."""

    root_us: int
    boundary_us: int
    by_time: dict[int, Group]

    def part_of(self, main: dict[int, Group]) -> dict[int, Group]:
        return {at: group for at, group in main.items() if self.root_us <= at < self.boundary_us}


class Replica:
    """One replica of the suite's node, without a host."""

    def __init__(self, engine: Engine, folder: Path, function: Callable[..., Any], patience_s: float) -> None:
        self.engine, self.folder, self._patience_us = engine, folder, round(patience_s * _SECOND)
        app = App("suite", root=folder)
        app.node(inputs=["in"], output="out", name="counts")(function)
        self.node, self.store, self.home = app.diagram().node("counts"), StreamStore(folder), folder / ".home"
        self.home.mkdir(exist_ok=True)
        self._started: list[Query] = []
        self.input = Input(self.store.create("in", "source string, bytes bigint", bucket="1s"))
        self.set_up()

    def set_up(self) -> None:
        """As a host does at its start."""
        self.queries = self.engine.queries(self.node, [self.input.stream], self.folder, self.home)
        self.output = self.queries.create_output(_SECOND)
        self.decision = Decision(self.queries.decision)

    def decide(self, second: int) -> None:
        self.decision.decide(_T0 + second * _SECOND)

    def until(self, condition: Callable[[], object], query: Query | None = None) -> None:
        deadline = monotonic_us() + self._patience_us
        while not condition():
            if query is not None and not query.active:
                raise AssertionError(f"it stopped: {query.failure()}")
            assert monotonic_us() < deadline, "it did not come true"
            pause(10_000)

    def start(self) -> Query:
        self._started.append(self.queries.start_stable())
        return self._started[-1]

    def reaches(self, query: Query, second: int) -> None:
        """It has read so far, and its output promises what it can promise then: an engine may need a batch more."""
        until_us = _T0 + second * _SECOND
        self.until(lambda: (self.queries.position().until_us or BEGINNING_US) >= until_us, query)
        promised_us = closed_until(self.queries.promised_us(until_us), _SECOND)
        self.until(lambda: _boundary_us(self.output.reader()) >= promised_us, query)
        # The commit follows the results.
        self.until(lambda: not self.queries.planned(self.queries.position().batch_id + 1), query)

    def ends(self, query: Query) -> None:
        """Everything is read and filed, and the output has ended."""
        self.input.end()
        self.decision.decide(FOREVER_US)
        self.until(lambda: _boundary_us(self.output.reader()) >= FOREVER_US, query)
        query.stop()

    def __enter__(self) -> Replica:
        return self

    def __exit__(self, *_: object) -> None:
        for query in self._started:
            query.stop()

    def controller(self) -> Controller:
        """What a host would have run it."""
        inputs, output = (InputPlan("in", ("in@here",)),), OutputPlan("out", ("in",))
        intakes = {"in": DirectIntake(self.input.stream, "in@here", _SECOND, Cuts())}
        plan = node_plan(self.node, "counts@here", inputs, output, _SECOND)
        return Controller(plan, self.queries, intakes, self.output, self.home, lambda *_: None)

    # -- forks -------------------------------------------------------------------------------------------------------

    def fork(self, number: int) -> Fork:
        """One of the stable query, ready."""
        fork = self.queries.start_fork(number)
        self._started.append(fork.query)
        self.until(lambda: self.queries.ready(fork), fork.query)
        assert fork.root_us == self.queries.position().until_us
        return fork

    def lead(self, fork: Fork, seconds: range) -> None:
        """The fork reads these seconds, which come next for it."""
        plan, end_us = PlanWriter(fork.plan), _T0 + seconds.stop * _SECOND
        plan.append([(_T0 + (second + 1) * _SECOND, self._pieces(second)) for second in seconds])
        self.until(lambda: self._read(fork) >= end_us, fork.query)
        plan.close()

    def release(self, fork: Fork, seconds: range) -> Branch:
        """What the fork gives for these seconds; then it ends."""
        root_us = closed_until(self.queries.promised_us(_T0 + seconds[0] * _SECOND), _SECOND)
        self.output.create_branch(root_us, id=fork.branch)
        self.lead(fork, seconds)
        promised_us = closed_until(self.queries.promised_us(_T0 + seconds.stop * _SECOND), _SECOND)
        self.until(lambda: _boundary_us(self._branch()) >= promised_us, fork.query)
        found = Branch(root_us, _boundary_us(self._branch()), _by_time(self._branch()))
        for _ in range(2):
            self.queries.stop_fork(fork)
        assert not fork.query.active
        assert not fork.checkpoint.exists()
        self.output.drop_branch()
        return found

    def _branch(self) -> LogReader:
        branch = LogReader(branch_folder(self.output.folder), self.output.definition.schema, _SECOND)
        branch.refresh()
        return branch

    def _read(self, fork: Fork) -> int:
        progress = self.queries.progress(fork.batch_id, fork)
        return BEGINNING_US if progress is None or progress.until_us is None else progress.until_us

    def _pieces(self, second: int) -> tuple[PlannedPiece, ...]:
        reader = self.input.stream.reader()
        start_us = _T0 + second * _SECOND
        found = reader.extents(start_us, start_us + _SECOND)
        reader.close()
        return tuple(PlannedPiece(0, str(reader.folder / extent.segment), extent.fields) for extent in found)

    # -- results -----------------------------------------------------------------------------------------------------

    def by_time(self) -> dict[int, Group]:
        return _by_time(self.output.reader())

    def results(self) -> list[Group]:
        return list(self.by_time().values())

    def beyond_coverage(self) -> list[int]:
        """Results of seconds of which the engine says that other input went into them."""
        before_us, after_us, step_us = self.queries.coverage
        inclusive_us = 0 if step_us else 1
        beyond = []
        for second, at in enumerate(self.by_time()):
            first_us = _T0 + second * _SECOND
            early = before_us is not None and first_us < at - before_us
            if early or first_us + _SECOND > at + after_us + inclusive_us or (step_us and at % step_us):
                beyond.append(second)
        return beyond


def _boundary_us(reader: LogReader) -> int:
    """What a log promises."""
    reader.close()
    return reader.boundary_us


def _by_time(reader: LogReader) -> dict[int, Group]:
    """What a log has, in the order of the results' time."""
    found: dict[int, Group] = {}
    for _, batch in reader.scan(BEGINNING_US, END_OF_TIME_US):
        stimes = batch.column(0).cast(pa.int64()).to_pylist()
        for stime_us, row in zip(stimes, batch.to_pylist(), strict=True):
            found.setdefault(stime_us, []).append((row["source"], row["n"], row["bytes"]))
    reader.close()
    return {stime_us: sorted(found[stime_us]) for stime_us in sorted(found)}


class EngineConformance(ABC):
    """Tests of the rules of `holdfast.engine`."""

    #: How long one step may take on a crowded machine.
    patience_s = 120.0

    @abstractmethod
    def engine(self) -> Engine:
        """One that can be started, or was."""

    @abstractmethod
    def counts(self, rows: Any) -> Any:
        """The function of a node: for each second of stime and each `source`, the number of rows as `n` and the sum of
        their `bytes`, once the second is over."""

    def _replica(self, folder: Path) -> Replica:
        engine = self.engine()
        engine.start()
        return Replica(engine, folder, self.counts, self.patience_s)

    def test_a_query_reads_what_was_decided_and_goes_on_after_a_stop_to_the_end_of_its_input(
        self, tmp_path: Path
    ) -> None:
        """S2: nothing is missing, nothing comes twice."""
        with self._replica(tmp_path) as replica:
            replica.input.feed(6)
            assert replica.queries.position() == Progress(-1, None)
            replica.decide(3)
            query = replica.start()
            replica.reaches(query, 3)
            first = replica.queries.position()
            assert first.until_us == _T0 + 3 * _SECOND, "no further than was decided"
            assert replica.queries.planned(first.batch_id)
            assert replica.queries.progress(first.batch_id) is None
            assert replica.queries.progress(first.batch_id - 1) == first
            replica.decide(5)
            replica.reaches(query, 5)
            second = replica.queries.progress(first.batch_id)
            assert second is not None
            assert second.batch_id > first.batch_id
            replica.until(lambda: query.reading() is not None, query)
            for _ in range(2):
                query.stop()
            assert (query.active, query.failure()) == (False, None)
            replica.input.feed(8)
            replica.set_up()
            assert replica.queries.position() == second, "where it stands is durable"
            again = replica.start()
            replica.ends(again)
            assert replica.results() == Input.expected(range(8))
            assert replica.output.reader().closed

    def test_forks_in_turn_give_what_the_stable_query_gives_and_change_nothing_of_it(self, tmp_path: Path) -> None:
        """S1."""
        with self._replica(tmp_path) as replica:
            replica.input.feed(6)
            replica.decide(3)
            query = replica.start()
            replica.reaches(query, 3)
            before = replica.queries.position()
            forks = [replica.release(replica.fork(number), range(3, 6)) for number in (1, 2)]
            assert replica.queries.position() == before
            replica.ends(query)
            assert replica.results() == Input.expected(range(6))
            assert not replica.beyond_coverage(), "what a tentative result is worth counts what went into it"
            until_us = _T0 + 6 * _SECOND
            assert replica.queries.coverage.after_us <= until_us - replica.queries.promised_us(until_us)
            for branch in forks:
                assert branch.by_time, "a fork gives something"
                assert branch.by_time == branch.part_of(replica.by_time())

    def test_a_fork_that_has_followed_the_stable_query_gives_what_one_started_then_gives(self, tmp_path: Path) -> None:
        """D17: the results that waited at its start, and those that it computed on the way, are where they belong."""
        with self._replica(tmp_path) as replica:
            replica.input.feed(9)
            replica.decide(3)
            query = replica.start()
            replica.reaches(query, 3)
            early = replica.fork(1)
            replica.decide(6)
            replica.reaches(query, 6)
            for seconds in (range(3, 5), range(5, 6)):
                replica.lead(early, seconds)
                assert replica.output.branch() is None
            followed = replica.release(early, range(6, 9))
            assert followed == replica.release(replica.fork(2), range(6, 9))
            replica.ends(query)
            assert followed.by_time, "a fork gives something"
            assert followed.by_time == followed.part_of(replica.by_time())

    def test_what_is_stopped_while_it_starts_leaves_nothing_running(self, tmp_path: Path) -> None:
        with self._replica(tmp_path) as replica:
            replica.input.feed(4)
            replica.decide(2)
            query = replica.start()
            query.stop()
            assert not query.active
            query = replica.start()
            replica.reaches(query, 2)
            fork = replica.queries.start_fork(1)
            stopping = [threading.Thread(target=replica.queries.stop_fork, args=[fork]) for _ in range(2)]
            for thread in stopping:
                thread.start()
            for thread in stopping:
                thread.join()
            assert not fork.query.active
            left = replica.queries.start_fork(2)
            left.query.stop()  # As if its host had been killed.
            replica.queries.clear_forks()
            assert not left.checkpoint.exists()
            replica.ends(query)
            assert replica.results() == Input.expected(range(4))

    def test_a_copy_goes_on_elsewhere_where_the_stable_query_stood(self, tmp_path: Path) -> None:
        with self._replica(tmp_path) as replica:
            replica.input.feed(6)
            replica.decide(3)
            query = replica.start()
            replica.reaches(query, 3)
            copied = tmp_path / ".copy"
            waiting = replica.queries.copy_to(copied)
            replica.decide(5)
            replica.reaches(query, 5)
            query.stop()
            replica.engine.renew(copied)
            writer = replica.output.writer(takeover=True)
            boundary_us = writer.state.boundary_us
            writer.commit([], now_us=now_us(), pending=waiting.since(boundary_us))
            writer.release(now_us())
            replica.engine.take_up(replica.home, copied, boundary_us)
            replica.set_up()
            assert replica.queries.position().until_us == _T0 + 3 * _SECOND
            query = replica.start()
            replica.ends(query)
            assert replica.results() == Input.expected(range(6)), "what was filed already is left out"

    def test_a_query_that_begins_anew_starts_there_and_leaves_out_what_is_not_right_yet(self, tmp_path: Path) -> None:
        """D18."""
        with self._replica(tmp_path) as replica:
            replica.input.feed(8)
            replica.decide(2)
            query = replica.start()
            replica.reaches(query, 2)
            query.stop()
            replica.queries.begin_anew(_T0 + 4 * _SECOND, _T0 + 6 * _SECOND)
            assert replica.queries.position() == Progress(-1, None)
            query = replica.start()
            replica.ends(query)
            expected = Input.expected(range(8))
            found = replica.results()
            assert found[-2:] == expected[-2:]
            assert all(group in expected for group in found), "whole seconds only"
            assert expected[3] not in found
            assert expected[4] not in found

    def test_a_failure_that_no_start_can_mend_fails_the_replica_with_its_sentence(self, tmp_path: Path) -> None:
        with self._replica(tmp_path) as replica:
            replica.input.feed(2)
            explain = replica.queries.explain
            for passing in (StorageError("full"), UnknownStream("none"), Removed("gone"), OSError("away"), None):
                assert not explain(passing).permanent
            assert explain(UsageError("a sentence"))[:2] == ("a sentence", True)
            replica.store.delete("out")  # And somebody makes another one of that name.
            replica.store.create("out", "other string", bucket="1s")
            controller = replica.controller()

            def failed() -> bool:
                controller.pulse()
                return controller.trouble is not None

            replica.until(failed)
            status = controller.status()
            assert status["state"] == "FAILED"
            assert "stream out has the columns (other string)" in status["why"]
            assert "\n" not in status["why"]
            controller.stop_queries()
            controller.close()
