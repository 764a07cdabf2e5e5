"""One replica against a world that fails: full disks, half-made beginnings, forks that cannot be fed. No Spark here:
the queries do what the test says, everything else is real."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import holdfast
import holdfast.host.controller as controllers
import holdfast.host.fork_runner as forks
from holdfast.clock import monotonic_us, pause
from holdfast.engine import Coverage, Failure, Fork, Query
from holdfast.host.controller import Controller
from holdfast.host.fork_runner import ForkRunner
from holdfast.host.intake import DirectIntake
from holdfast.host.link import Cuts
from holdfast.model.errors import CorruptLog, PeerError, SchemaError, StorageError
from holdfast.model.time import BEGINNING_US
from holdfast.protocol.dpc.effects import ExtendFork, Part, Send, StopFork, TentativeBucket
from holdfast.protocol.dpc.messages import Ack, KeepaliveReply, KeepaliveRequest, StreamReport
from holdfast.protocol.dpc.plan import InputPlan, NodePlan, OutputPlan
from holdfast.protocol.dpc.signals import ForkCompleted, ForkFailed, ForkPrepared, ForkSignal, InputGap, Lane
from holdfast.protocol.dpc.states import NodeState, StreamState
from holdfast.spark.node import SparkQueries
from holdfast.spark.query_start import Beginning, begin_anew, load_beginning
from holdfast.stream.acks import acknowledge
from holdfast.stream.decision import Decision
from holdfast.stream.disk import Disk
from holdfast.stream.holes import read_holes
from holdfast.stream.identity import Identity, changed, note_identity, read_identity
from holdfast.stream.pack import pack
from holdfast.stream.report import ReportWriter, read_report, report_path
from holdfast.stream.store import Stream
from holdfast.stream.tentative import PlanReader
from holdfast.stream.worth import Worth, Worths
from holdfast.stream.writer import LogWriter
from tests.host.scripted_engine import ScriptedQueries, ScriptedQuery
from tests.stream.test_rows import stored_batch

SECOND = 1_000_000


def replica(
    tmp_path: Path, say: Callable[[str, Send], None] = lambda *_: None, keeps_state: bool = False
) -> tuple[Controller, ScriptedQueries]:
    store = holdfast.open(tmp_path / "streams")
    source = store.create("s", "n bigint", bucket="1s")
    source.writer().commit([], now_us=1, boundary_us=5 * SECOND)
    output = store.create("out", "n bigint", bucket="1s")
    home = tmp_path / "home"
    queries: Any = ScriptedQueries(home)
    queries.keeps_state = keeps_state
    plan = NodePlan("node@here", (InputPlan("s", ("s@here",)),), OutputPlan("out", ("s",), ("reader@here",)),
                    bucket_us=SECOND, window_us=2 * SECOND)  # fmt: skip
    intakes = {"s": DirectIntake(source, "s@here", SECOND, Cuts())}
    return Controller(plan, queries, intakes, output, home, say), queries


def until(controller: Controller, condition: Callable[[], object]) -> None:
    deadline = monotonic_us() + 60 * SECOND
    while not condition():
        assert monotonic_us() < deadline, "it did not come true"
        controller.pulse()
        pause(5_000)


def test_readers_on_this_machine_see_what_the_replica_publishes_from_its_first_look_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D12, D15: a host that was killed left a branch and a report; the next one drops the branch, says that it has
    nothing to give, and is STABLE when it is level. Then its input falls silent."""
    asked: list[str] = []
    controller, _ = replica(tmp_path, lambda _, send: asked.append(send.to))
    output = controller.output
    output.create_branch(5 * SECOND)
    ReportWriter(output.folder).publish(StreamReport("out", StreamState.STABILIZATION, 0, True))
    said: list[tuple[StreamState, bool]] = []
    write = ReportWriter.publish

    def publish(writer: ReportWriter, report: StreamReport) -> None:
        said.append((report.state, output.branch() is None))
        write(writer, report)

    monkeypatch.setattr(ReportWriter, "publish", publish)
    until(controller, lambda: said)
    assert said == [(StreamState.FAILURE, True)]
    assert read_report(report_path(output.folder)).state is StreamState.FAILURE
    source = KeepaliveReply((StreamReport("s", StreamState.STABLE, 5 * SECOND, False),))

    def answered() -> bool:
        while asked:
            controller.deliver(asked.pop(), source)
        return len(said) > 2

    until(controller, answered)
    states = [state for state, _ in said]
    assert states[:2] == [StreamState.FAILURE, StreamState.STABLE]
    assert states[2] in (StreamState.UP_FAILURE, StreamState.FAILURE)
    os.utime(report_path(output.folder), (1, 1))
    until(controller, lambda: report_path(output.folder).stat().st_mtime > 1)
    controller.stop_queries()
    controller.close()


def commit(writer: LogWriter, stream: Stream, seconds: list[float], boundary: int | None) -> None:
    """Tuples that hold their own time in milliseconds."""
    batch = stored_batch(stream.definition, [round(s * SECOND) for s in seconds], n=[round(s * 1000) for s in seconds])
    events = pack(batch, stream.definition) if seconds else []
    writer.commit(events, now_us=1, boundary_us=None if boundary is None else boundary * SECOND)


def test_a_reader_on_this_machine_goes_through_a_failure_and_its_corrections(tmp_path: Path) -> None:
    """D1 to D4, D15, from the core's first suspicion to the reader's REC_DONE. The test writes what Spark would."""
    asked: list[str] = []
    controller, queries = replica(tmp_path, lambda _, send: asked.append(send.to))
    output, source = controller.output, holdfast.open(tmp_path / "streams").open("s")
    into, main = source.writer(takeover=True), output.writer()
    commit(main, output, [4.5], 5)
    reader, got = output.subscribe(tentative=True), []

    def read(*wanted: str) -> Callable[[], bool]:
        def seen() -> bool:
            boundary_us = source.reader().boundary_us
            while asked:
                report = StreamReport("s", StreamState.STABLE, boundary_us, False)
                controller.deliver(asked.pop(), KeepaliveReply((report,)))
            for row in (row for batch in reader.poll() for row in reader.rows_of(batch)):
                got.append(f"{row.type.name} {row.values['n']}" if row.values else row.type.name)
            return got == list(wanted)

        return seen

    until(controller, read("INSERTION 4500"))
    until(controller, lambda: read()() or (controller.core and controller.core.state is NodeState.STABLE))
    commit(into, source, [5.2], None)  # A tuple whose bucket nobody closes.
    until(controller, lambda: read()() or controller._forking.state == "running")
    branch = output.branch_writer()
    commit(branch, output, [5.2], 6)
    before = ("INSERTION 4500", "TENTATIVE 5200")
    until(controller, read(*before))
    commit(into, source, [5.3], 7)
    until(controller, lambda: read()() or (controller.core and controller.core.state is NodeState.STABILIZATION))
    commit(main, output, [5.2, 5.3], 6)
    corrected = (*before, "UNDO", "INSERTION 5200", "INSERTION 5300")
    until(controller, read(*corrected))
    commit(main, output, [], 7)
    queries.commit(1, 7 * SECOND)
    until(controller, read(*corrected, "REC_DONE"))
    assert output.branch() is None
    controller.stop_queries()
    controller.close()


def test_a_beginning_that_could_not_be_made_is_tried_again_and_the_query_never_goes_on_where_the_gap_is(
    tmp_path: Path,
) -> None:
    controller, queries = replica(tmp_path)
    until(controller, lambda: controller.core)
    queries.refused = 1
    controller.tell(InputGap("s", 9 * SECOND))
    until(controller, lambda: "anew" in queries.log and queries.log[-1] == "start")
    assert queries.log == ["start", "stop", "refused", "stop", "anew", "start"]
    (hole,) = read_holes(controller.output.folder)
    assert (hole.first_us, hole.upto_us) == (BEGINNING_US, 11 * SECOND)
    controller.stop_queries()
    controller.close()


def test_a_query_that_stops_before_it_has_committed_anything_is_started_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    controller, queries = replica(tmp_path)
    shutil.rmtree(queries.checkpoint / "commits")
    started: list[ScriptedQuery] = []

    def start() -> Query:
        started.append(ScriptedQuery(queries.log))
        return started[-1]

    queries.start_stable = start  # type: ignore[method-assign]
    until(controller, lambda: started)
    started[0].active = False
    until(controller, lambda: len(started) == 2)
    assert "node@here: the stable query stopped (no reason given); starting it again in 1 s" in caplog.text
    assert controller.core is None
    (queries.checkpoint / "commits").mkdir()
    queries.commit(0, 5 * SECOND)
    until(controller, lambda: controller.core)
    controller.stop_queries()


def test_a_query_that_dies_of_what_no_start_can_mend_fails_the_replica_with_its_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller, queries = replica(tmp_path)

    def refused() -> Any:
        queries.log.append("start")
        raise SchemaError("a result needs an stime")

    monkeypatch.setattr(queries, "start_stable", refused)
    assert controller.begins
    until(controller, lambda: controller.trouble)
    assert (controller.begins, controller.may_return) == (False, False)
    assert controller.status()["state"] == "FAILED"
    assert "a result needs an stime" in controller.status()["why"]
    for _ in range(20):
        controller.pulse()
    assert queries.log.count("start") == 1
    controller.close()


def test_a_query_that_dies_of_what_may_pass_says_how_often_it_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controllers, "_RESTART_US_MIN", 1000)
    monkeypatch.setattr(controllers, "_RESTART_US_MAX", 1000)
    controller, queries = replica(tmp_path)

    def away() -> Any:
        raise PeerError("the server is away")

    monkeypatch.setattr(queries, "start_stable", away)
    until(controller, lambda: "3 times so far" in controller.status().get("why", ""))
    assert controller.trouble is None
    controller.stop_queries()
    controller.close()


def dies_of(queries: Any, cause: str | None) -> None:
    """Whatever its queries stop of from now on has this cause in the batch."""
    queries.explain = lambda error: Failure("ZeroDivisionError: by zero (app.py line 3)", False, cause)


@pytest.mark.parametrize("cause", ["ZeroDivisionError (app.py line 3)", None], ids=["of the batch", "may pass"])
def test_a_query_that_dies_again_and_again_of_the_same_batch_fails_the_replica_and_of_what_may_pass_it_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cause: str | None
) -> None:
    for name in ("_RESTART_US_MIN", "_RESTART_US_MAX", "HEALTH_US"):
        monkeypatch.setattr(controllers, name, 1000)
    controller, queries = replica(tmp_path)
    dies_of(queries, cause)
    until(controller, lambda: controller.core)

    def die() -> None:
        deaths = controller.counts.deaths
        until(controller, lambda: controller._stable)
        assert controller._stable is not None
        controller._stable.active = False  # type: ignore[misc]
        until(controller, lambda: controller.counts.deaths > deaths)

    for _ in range(forks.CAUSE_DEATHS_MAX - 1):
        die()
    queries.commit(1, 6 * SECOND)  # It got over that batch: what it dies of next is another's.
    until(controller, lambda: controller._batch == 1)
    for _ in range(forks.CAUSE_DEATHS_MAX - 1):
        die()
    assert controller.trouble is None
    die()
    if cause is None:
        assert controller.trouble is None
        until(controller, lambda: "5 times so far" in controller.status().get("why", ""))
        controller.stop_queries()
    else:
        assert (controller.state, controller.may_return) == ("FAILED", False)
        why = controller.status()["why"]
        assert why.startswith("ZeroDivisionError: by zero (app.py line 3); the query has died of this 5 times")
        assert "in the same batch (2, of the input from 1970-01-01T00:00:06.000000Z on)" in why
    controller.close()


def test_forks_that_die_of_the_same_rows_are_not_started_for_ever_while_main_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once main has gone on, which may be spared those rows, they are."""
    for name in ("_RETRY_US", "_PAUSE_US_MAX", "HEALTH_US"):
        monkeypatch.setattr(forks, name, 1000)
    output = holdfast.open(tmp_path / "streams").create("out", "n bigint", bucket="1s")
    queries: Any = ScriptedQueries(tmp_path / "home")
    dies_of(queries, "ZeroDivisionError (app.py line 3)")
    stands = 5
    forking = ForkRunner(queries, output, SECOND, "node@here", lambda: stands)
    for fork in range(1, forks.CAUSE_DEATHS_MAX + 1):
        forking.prepare(fork)
        assert next_signal(forking) == ForkPrepared(fork, 5)
        assert forking._fork is not None
        assert forking._fork.started is not None
        forking._fork.started.query.active = False  # type: ignore[misc]
        assert next_signal(forking) == ForkFailed(fork)
    assert forking.given_up is not None
    assert "5 forks have died of this: ZeroDivisionError: by zero (app.py line 3)" in forking.given_up
    forking.prepare(6)
    for _ in range(20):
        assert forking.poll(monotonic_us() + 600 * SECOND) is None
    assert (forking.state, forking.counts.started) == ("preparing", 5)
    forking.stop(StopFork(6, drop_branch=False))
    assert forking.state == "none"
    forking.prepare(7)
    stands = 6
    assert next_signal(forking) == ForkPrepared(7, 5)
    assert (forking.given_up, forking.counts.started) == (None, 6)
    forking.close()


def test_a_batch_that_hangs_is_spoken_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(controllers, "HEALTH_US", 10_000)
    monkeypatch.setattr(controllers, "_LONG_US", 100_000)
    controller, queries = replica(tmp_path)
    until(controller, lambda: controller.core)
    queries.planned = lambda batch: batch == 1  # type: ignore[method-assign]
    until(controller, lambda: "batch 1 is not done after " in controller.status().get("why", ""))
    until(controller, lambda: caplog.text)
    for _ in range(10):
        controller._health_us = 0
        controller.pulse()
    assert caplog.text.count("node@here: batch 1 is not done") == 1, "said once"
    queries.commit(1, 6 * SECOND)
    until(controller, lambda: "is not done" not in controller.status().get("why", ""))
    controller.stop_queries()


def test_a_query_is_stopped_whatever_becomes_of_its_fork(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    controller, queries = replica(tmp_path)
    until(controller, lambda: controller.core)

    def refuse() -> None:
        raise StorageError("could not rename: Read-only file system")

    monkeypatch.setattr(controller.output, "drop_branch", refuse)
    with pytest.raises(StorageError, match="Read-only"):
        controller.stop_queries()
    assert queries.log == ["start", "stop"]


def test_a_fork_that_hangs_does_not_keep_the_query_from_being_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forks, "_CLOSE_S", 0.2)
    controller, queries = replica(tmp_path)
    until(controller, lambda: controller.core)
    released = threading.Event()
    queries.start_fork = lambda fork: released.wait(60)  # type: ignore[method-assign, assignment, return-value]
    controller._forking.prepare(1)
    stopping = threading.Thread(target=controller.stop_queries, daemon=True)
    stopping.start()
    stopping.join(30)
    assert not stopping.is_alive()
    assert queries.log == ["start", "stop"]
    released.set()


@pytest.mark.parametrize("hangs", ["start", "first batch"])
def test_a_fork_that_never_gets_ready_has_failed_and_the_next_one_can_start(tmp_path: Path, hangs: str) -> None:
    output = holdfast.open(tmp_path / "streams").create("out", "n bigint", bucket="1s")
    queries: Any = ScriptedQueries(tmp_path / "home")
    forking, real, released = ForkRunner(queries, output, SECOND, "node@here"), queries.start_fork, threading.Event()

    asked = threading.Event()

    def start(fork: int) -> Fork:
        if hangs == "start":
            assert released.wait(60)
        return real(fork)  # type: ignore[no-any-return]

    queries.start_fork, queries.ready = start, lambda fork: asked.set()
    forking.prepare(1)
    if hangs == "first batch":
        while not asked.is_set():
            assert forking.poll(monotonic_us()) is None
    assert forking.poll(monotonic_us() + 600 * SECOND) is None
    assert forking.state == "none"
    assert forking.poll(monotonic_us() + 700 * SECOND) == ForkFailed(1)
    queries.start_fork, queries.ready = real, lambda fork: True
    forking.prepare(2)
    signal = None
    while signal is None:
        signal = forking.poll(monotonic_us())
    assert signal == ForkPrepared(2, 5)
    released.set()
    forking.close()


def ready_fork(tmp_path: Path) -> tuple[ForkRunner, Any]:
    """Fork 1, ready and idle."""
    output = holdfast.open(tmp_path / "streams").create("out", "n bigint", bucket="1s")
    queries: Any = ScriptedQueries(tmp_path / "home")
    forking = ForkRunner(queries, output, SECOND, "node@here", kept_us=90 * SECOND)
    forking.prepare(1)
    assert next_signal(forking) == ForkPrepared(1, 5)
    return forking, queries


def next_signal(forking: ForkRunner) -> ForkSignal:
    signal = None
    while signal is None:
        signal = forking.poll(monotonic_us())
    return signal


def test_a_fork_that_follows_main_has_no_branch_before_something_of_it_is_to_be_seen(tmp_path: Path) -> None:
    forking, queries = ready_fork(tmp_path)

    def bucket(number: int, emit: bool) -> TentativeBucket:
        return TentativeBucket(number, (Part("s", Lane.MAIN, None, 0, True),), emit, 1.0)

    forking.extend(ExtendFork(1, (bucket(5, False), bucket(6, False))), [(6 * SECOND, ()), (7 * SECOND, ())])
    plan = PlanReader(tmp_path / "home" / "forks" / "1" / "plan")
    plan.refresh()
    assert plan.until_us == 7 * SECOND
    assert (forking.state, forking._output.branch()) == ("ready", None)
    queries.fork_commits(1, 1, 7 * SECOND)
    assert next_signal(forking) == ForkCompleted(1, 7)
    forking.extend(ExtendFork(1, (bucket(7, False), bucket(8, True))), [(8 * SECOND, ()), (9 * SECOND, ())])
    root = forking._output.branch()
    assert root is not None
    assert root.kept_us == 90 * SECOND
    assert (forking.state, root.root_us) == ("running", 8 * SECOND)
    forking.close()
    assert forking._output.branch() is None


def test_what_a_fork_was_given_unseen_counts_in_what_its_first_results_are_worth(tmp_path: Path) -> None:
    """003 §5.8.3: the results of bucket 8 cover the three before it, of which nobody has seen the first two."""
    forking, queries = ready_fork(tmp_path)
    queries.coverage = Coverage(3 * SECOND, 0, 3 * SECOND)
    forking.extend(ExtendFork(1, (lacking(5), lacking(6, 0.4, "t"))), [(6 * SECOND, ()), (7 * SECOND, ())])
    forking.extend(ExtendFork(1, (lacking(7, 0.7, "u"), lacking(8))), [(8 * SECOND, ()), (9 * SECOND, ())])
    assert told(forking) == {
        7: Worth(7, 0.8, ("s",), 0.4, ("t",)), 8: Worth(8, 0.7, ("s",), 0.4, ("t", "u")),
        9: Worth(9, 0.7, ("s",), 0.4, ("t", "u")),
    }  # fmt: skip
    forking.close()


def test_results_that_lie_behind_their_input_are_worth_what_went_in_from_the_first_of_the_branch_on(
    tmp_path: Path,
) -> None:
    """003 §5.8.3: of windows that have the time of their beginning, the branch begins with those that main has not
    ended. These said that nothing was missing, and the note of what they lacked stood where they end."""
    forking, queries = ready_fork(tmp_path)
    queries.coverage = Coverage(0, 3 * SECOND, 3 * SECOND)
    queries.promised_us = lambda until_us: until_us - 3 * SECOND
    forking.extend(ExtendFork(1, (lacking(5), lacking(6))), [(6 * SECOND, ()), (7 * SECOND, ())])
    forking.extend(ExtendFork(1, (lacking(7, 0.7, "u"), lacking(8))), [(8 * SECOND, ()), (9 * SECOND, ())])
    root = forking._output.branch()
    assert root is not None
    assert root.root_us == 4 * SECOND
    assert told(forking) == {
        4: Worth(4, 1.0, ("s",), 1.0), 5: Worth(5, 0.9, ("s",), 0.7, ("u",)), 6: Worth(6, 0.9, ("s",), 0.7, ("u",))
    }  # fmt: skip
    forking.close()


def lacking(number: int, worth: float = 1.0, *missing: str) -> TentativeBucket:
    """A bucket that is seen from 7 on."""
    return TentativeBucket(number, (Part("s", Lane.MAIN, None, 0, True),), number >= 7, worth, worth, missing)


def told(forking: ForkRunner) -> dict[int, Worth]:
    root = forking._output.branch()
    assert root is not None
    return Worths(forking._output.folder).read(root.id)


def test_results_that_are_filed_until_the_query_has_stopped_do_not_lie_in_the_hole(tmp_path: Path) -> None:
    """They are stable and there; a reader that is told of a gap would pass them over (D1)."""
    controller, queries = replica(tmp_path)

    class Filing(ScriptedQuery):
        def stop(self) -> None:
            super().stop()
            controller.output.writer().commit([], now_us=1, boundary_us=7 * SECOND)

    queries.start_stable = lambda: Filing(queries.log)  # type: ignore[method-assign]
    until(controller, lambda: controller.core)
    controller.tell(InputGap("s", 9 * SECOND))
    until(controller, lambda: "anew" in queries.log)
    (hole,) = read_holes(controller.output.folder)
    assert (hole.first_us, hole.upto_us) == (7 * SECOND, 11 * SECOND)
    controller.stop_queries()
    controller.close()


@pytest.mark.parametrize("record", ["", "v1\n", 'v1\n{}\n{"format": 1, "unt', "v1\n[]\n{}\n"])
def test_a_record_of_spark_that_a_power_cut_has_torn_is_said_and_ends_no_host(tmp_path: Path, record: str) -> None:
    controller, queries = replica(tmp_path)
    (queries.checkpoint / "offsets" / "0").write_text(record)
    until(controller, lambda: controller.trouble)
    status = controller.status()
    assert status["state"] == "FAILED"
    assert "offsets/0: Spark's record of the batch cannot be read" in status["why"]
    controller.stop_queries()
    controller.close()


def test_trouble_that_a_message_brings_up_stops_the_replica_and_is_not_the_messengers(tmp_path: Path) -> None:
    said: list[Send] = []

    def say(sender: str, send: Send) -> None:
        said.append(send)
        raise CorruptLog("the log of the source is damaged")

    controller, _ = replica(tmp_path, say)
    deadline = monotonic_us() + 60 * SECOND
    while controller.core is None:  # Not one pulse further: the first to speak is the message's own turn.
        assert monotonic_us() < deadline
        controller._begin(monotonic_us())
    controller.deliver("reader@here", Ack("out", SECOND))
    assert said
    assert controller.trouble == "the log of the source is damaged"
    assert controller.status()["state"] == "FAILED"
    controller.stop_queries()
    controller.close()


def test_a_disk_that_is_full_fails_the_replica_and_not_the_host(tmp_path: Path) -> None:
    def say(sender: str, send: Send) -> None:
        raise OSError(28, "No space left on device")

    controller, _ = replica(tmp_path, say)
    until(controller, lambda: controller.trouble)
    assert "No space left" in str(controller.trouble)
    controller.stop_queries()
    controller.close()


@pytest.mark.parametrize("keeps_state", [False, True])
def test_input_that_an_operators_state_relies_on_is_not_acknowledged(tmp_path: Path, keeps_state: bool) -> None:
    """L8: what is lost is made again from checkpoints and from the input since the oldest of them."""
    acks: list[int] = []

    def say(sender: str, send: Send) -> None:
        if isinstance(send.message, Ack):
            acks.append(send.message.upto_us)

    controller, queries = replica(tmp_path, say, keeps_state)
    queries.needed = 2 * SECOND
    until(controller, lambda: controller.core)
    writer = controller._intakes["s"].stream.writer(takeover=True)
    writer.commit([], now_us=1, boundary_us=100 * SECOND)
    for batch, second in ((1, 99), (2, 100)):
        queries.commit(batch, second * SECOND)
        until(controller, lambda second=second: controller.core and controller.core.stable == second)
    reached_us = 2 * SECOND if keeps_state else 100 * SECOND
    until(controller, lambda: acks and acks[-1] == reached_us)
    assert max(acks) == reached_us
    controller.stop_queries()
    controller.close()


def test_a_fork_that_cannot_be_fed_has_failed_and_main_goes_on(tmp_path: Path) -> None:
    output = holdfast.open(tmp_path / "streams").create("out", "n bigint", bucket="1s")
    queries: Any = ScriptedQueries(tmp_path / "home")
    forking = ForkRunner(queries, output, SECOND, "node@here")
    forking.prepare(1)
    signal = None
    while signal is None:
        signal = forking.poll(monotonic_us())
    assert isinstance(signal, ForkPrepared)
    plan = tmp_path / "home" / "forks" / "1" / "plan"
    plan.mkdir()  # Nobody can write a plan there.
    bucket = TentativeBucket(5, (Part("s", Lane.MAIN, None, 0, True),), True, 1.0)
    forking.extend(ExtendFork(1, (bucket,)), [(6 * SECOND, ())])
    assert forking.poll(monotonic_us() + 60 * SECOND) == ForkFailed(1)
    forking.close()
    assert output.branch() is None


class Full(Disk):
    def replace_file(self, path: Path, data: bytes) -> None:
        raise StorageError("could not write: the disk is full")


def test_the_old_checkpoint_goes_only_when_the_new_beginning_is_durable(tmp_path: Path) -> None:
    """Killed in between, a query without checkpoint would publish wrong results as stable ones (D1)."""
    (tmp_path / "checkpoint" / "commits").mkdir(parents=True)
    with pytest.raises(StorageError):
        begin_anew(tmp_path, Beginning(), 7, 9, Full())
    assert (tmp_path / "checkpoint" / "commits").is_dir()
    assert load_beginning(tmp_path) == Beginning()
    anew = begin_anew(tmp_path, Beginning(), 7, 9)
    assert not (tmp_path / "checkpoint").exists()
    assert load_beginning(tmp_path) == anew


def test_a_checkpoint_that_a_killed_host_left_behind_is_removed_at_the_next_start(tmp_path: Path) -> None:
    anew = begin_anew(tmp_path, Beginning(), 7, 9)
    for name in ("checkpoint", "checkpoint-1"):
        (tmp_path / name).mkdir()
    assert load_beginning(tmp_path) == anew
    assert [p.name for p in tmp_path.glob("checkpoint*")] == ["checkpoint-1"]


def test_a_query_that_begins_anew_behind_a_gap_is_compared_with_what_it_computed_before(tmp_path: Path) -> None:
    """C12: it goes on in the same process, so its new checkpoint gets no note from a start."""
    app = holdfast.App("one", root=tmp_path)
    app.node(inputs="s", output="out", name="one", boundaries="exact", begin="2026-01-01")(lambda rows: rows)
    spark: Any = None
    queries = SparkQueries(spark, app.diagram().node("one"), (), tmp_path, tmp_path / "home")
    note_identity(queries.checkpoint, Identity(("a window of 10 s",)))
    queries.begin_anew(7 * SECOND, 9 * SECOND)
    (queries.checkpoint / "offsets").mkdir(parents=True)
    (queries.checkpoint / "offsets" / "0").touch()
    again = SparkQueries(spark, app.diagram().node("one"), (), tmp_path, tmp_path / "home")
    assert changed(again.checkpoint, Identity(("a window of 20 s",)))
    # Nor is it forgotten with a start that had read nothing.
    offset = json.dumps({"format": 1, "until_us": BEGINNING_US})
    (again.checkpoint / "offsets" / "0").write_text(f"v1\n{{}}\n{offset}\n")
    (again.checkpoint / "commits").mkdir()
    (again.checkpoint / "commits" / "0").touch()
    again._forget_start()
    assert not (again.checkpoint / "offsets").exists()
    assert read_identity(again.checkpoint) == Identity(("a window of 10 s",))


def test_a_fork_that_cannot_be_started_leaves_nothing_on_the_disk(tmp_path: Path) -> None:
    app = holdfast.App("one", root=tmp_path)
    app.node(inputs="s", output="out", name="one", boundaries="exact")(lambda rows: rows)
    spark: Any = None
    queries = SparkQueries(spark, app.diagram().node("one"), (), tmp_path, tmp_path / "home")
    with pytest.raises(FileNotFoundError):
        queries.start_fork(3)  # The stable query has no checkpoint yet.
    assert list((tmp_path / "home" / "forks").iterdir()) == []


def test_what_a_killed_fork_has_staged_goes_with_it_and_nothing_else_does(tmp_path: Path) -> None:
    app = holdfast.App("one", root=tmp_path)
    app.node(inputs="s", output="out", name="one", boundaries="exact")(lambda rows: rows)
    spark: Any = None
    queries = SparkQueries(spark, app.diagram().node("one"), (), tmp_path, tmp_path / "home")
    checkpoint, staging = tmp_path / "home" / "forks" / "3" / "checkpoint", tmp_path / "out" / "staging"
    for folder in (checkpoint, staging):
        folder.mkdir(parents=True)
    (checkpoint / "metadata").write_text(json.dumps({"id": "abc-1"}))
    for name in ("abc-1.7.0123.arrow", "abc-12.7.0123.arrow"):
        (staging / name).touch()
    queries.clear_forks()
    assert [p.name for p in staging.iterdir()] == ["abc-12.7.0123.arrow"]
    assert not (tmp_path / "home" / "forks").exists()


# -- where a replica begins, and how far it may go ---------------------------------------------------------------------


def truncated(tmp_path: Path) -> holdfast.Stream:
    """An input with tuples at 0 to 9 s, of which those before 6 s are gone."""
    stream = holdfast.open(tmp_path / "streams").create("s", "n bigint", bucket="1s", segment_bytes=4096)
    writer = stream.writer()
    for second in range(10):
        columns = [pa.array([second * SECOND], pa.timestamp("us", "UTC")), pa.array([second])]
        events = pack(pa.RecordBatch.from_arrays(columns, schema=stream.definition.stored), stream.definition)
        writer.commit(events, now_us=1, boundary_us=(second + 1) * SECOND)
        if second == 5:
            writer.roll(1)
    writer.release(1)
    assert stream.retain(holdfast.Retention(size_bytes=1)).rows == 6
    return stream


def fresh(
    tmp_path: Path, source: holdfast.Stream, window_us: int | None, until_us: int = BEGINNING_US, **output: Any
) -> tuple[Controller, ScriptedQueries]:
    """A replica that has read nothing yet, or its input up to `until_us`."""
    results = holdfast.open(tmp_path / "results").create("out", "n bigint", bucket="1s", exist_ok=True)
    home = tmp_path / "home"
    queries: Any = ScriptedQueries(home)
    queries.commit(0, until_us)
    plan = NodePlan("node@here", (InputPlan("s", ("s@here",)),), OutputPlan("out", ("s",), **output),
                    bucket_us=SECOND, window_us=window_us)  # fmt: skip
    intakes = {"s": DirectIntake(source, "s@here", SECOND, Cuts())}

    def say(_: str, send: Send) -> None:
        if isinstance(send.message, KeepaliveRequest):
            controller.deliver(send.to, KeepaliveReply((StreamReport("s", StreamState.STABLE, 100 * SECOND, False),)))

    controller = Controller(plan, queries, intakes, results, home, say)
    return controller, queries


def test_a_fresh_replica_on_truncated_input_stops_and_says_what_to_do(tmp_path: Path) -> None:
    """D18."""
    controller, _ = fresh(tmp_path, truncated(tmp_path), None)
    until(controller, lambda: controller.trouble)
    assert controller.core is None
    said = controller.status()
    assert said["state"] == "FAILED"
    assert "input s" in said["why"]
    assert "begin='1970-01-01T00:00:05.000001Z'" in said["why"]
    controller.stop_queries()
    controller.close()


def test_a_fresh_convergent_replica_on_truncated_input_begins_behind_the_gap_and_says_so(tmp_path: Path) -> None:
    """D18."""
    controller, queries = fresh(tmp_path, truncated(tmp_path), 2 * SECOND)
    until(controller, lambda: "anew" in queries.log and queries.log[-1] == "start")
    (hole,) = read_holes(controller.output.folder)
    assert (hole.first_us, hole.upto_us) == (BEGINNING_US, 8 * SECOND)
    controller.stop_queries()
    controller.close()


def test_a_replica_that_was_told_where_to_begin_or_has_begun_goes_on_there(tmp_path: Path) -> None:
    controller, _ = fresh(tmp_path, truncated(tmp_path), None, until_us=7 * SECOND)
    until(controller, lambda: controller.core)
    assert controller.core is not None
    assert (controller.core.stable, controller.trouble) == (7, None)
    controller.stop_queries()
    controller.close()


class SilentIntake(DirectIntake):
    """Of a stream whose host is away until it answers."""

    answers = False

    def first_us(self) -> int | None:
        return super().first_us() if self.answers else None


def with_one_away(
    tmp_path: Path, *, window_us: int | None = None, until_us: int = BEGINNING_US
) -> tuple[Controller, SilentIntake]:
    """A replica of two inputs: `near` begins at 5 s, `far` began at 2 s and is silent."""
    store, intakes = holdfast.open(tmp_path / "streams"), dict[str, DirectIntake]()
    for name, begins in (("near", 5), ("far", 2)):
        stream = store.create(name, "n bigint", bucket="1s")
        commit(stream.writer(), stream, [begins + 0.5], 9)
        kind = SilentIntake if name == "far" else DirectIntake
        intakes[name] = kind(stream, f"{name}@here", SECOND, Cuts())
    queries: Any = ScriptedQueries(tmp_path / "home")
    queries.commit(0, until_us)
    plan = NodePlan("node@here", (InputPlan("near", ("near@here",)), InputPlan("far", ("far@there",))),
                    OutputPlan("out", ("near", "far")), bucket_us=SECOND, window_us=window_us)  # fmt: skip
    output = store.create("out", "n bigint", bucket="1s")
    controller = Controller(plan, queries, intakes, output, tmp_path / "home", lambda *_: None)
    far = intakes["far"]
    assert isinstance(far, SilentIntake)
    return controller, far


@pytest.mark.parametrize("window_us", [None, 2 * SECOND])
def test_a_fresh_replica_waits_until_every_input_has_said_where_it_begins(
    tmp_path: Path, window_us: int | None
) -> None:
    """D9, D18: it began where those that had answered begin, later than its twin, and said nothing."""
    controller, far = with_one_away(tmp_path, window_us=window_us)
    until(controller, lambda: controller.query is not None)
    for _ in range(3):
        controller.pulse()
    said = controller.status()
    assert (controller.core, said["state"], said["waits_for"]) == (None, "WAITING", "inputs")
    assert "far" in said["why"]
    assert "near" not in said["why"]
    far.answers = True
    until(controller, lambda: controller.core)
    assert controller.core is not None
    assert controller.core.stable == 2
    controller.stop_queries()
    controller.close()


def test_a_replica_that_has_state_waits_for_no_inputs_beginning(tmp_path: Path) -> None:
    controller, _ = with_one_away(tmp_path, until_us=7 * SECOND)
    until(controller, lambda: controller.core)
    assert controller.core is not None
    assert controller.core.stable == 7
    controller.stop_queries()
    controller.close()


def whole(tmp_path: Path) -> holdfast.Stream:
    stream = holdfast.open(tmp_path / "streams").create("s", "n bigint", bucket="1s")
    writer = stream.writer()
    writer.commit([], now_us=1, boundary_us=100 * SECOND)
    writer.release(1)
    return stream


def results_from_the_beginning(tmp_path: Path, until_s: int) -> None:
    """What an earlier life has written, all of which is kept."""
    out = holdfast.open(tmp_path / "results").create("out", "n bigint", bucket="1s")
    writer = out.writer()
    columns = [pa.array([0, (until_s - 1) * SECOND], pa.timestamp("us", "UTC")), pa.array([1, 2])]
    events = pack(pa.RecordBatch.from_arrays(columns, schema=out.definition.stored), out.definition)
    writer.commit(events, now_us=1, boundary_us=until_s * SECOND)
    writer.release(1)


def test_a_restart_goes_by_what_readers_have_acknowledged_and_not_by_what_the_log_still_holds(tmp_path: Path) -> None:
    results_from_the_beginning(tmp_path, 60)
    acknowledge(tmp_path / "results" / "out", "replicas", 55 * SECOND, 1, Disk())
    options = {"readers": ("reader@down",), "capacity_us": 20 * SECOND}
    controller, _ = fresh(tmp_path, whole(tmp_path), None, until_us=60 * SECOND, **options)
    reads = Decision(controller._queries.decision)
    until(controller, lambda: reads.until_us == 75 * SECOND)
    reads.close()
    controller.stop_queries()
    controller.close()


def test_a_replica_that_nobody_reads_is_not_held_up_by_its_capacity(tmp_path: Path) -> None:
    results_from_the_beginning(tmp_path, 60)
    controller, _ = fresh(tmp_path, whole(tmp_path), None, until_us=60 * SECOND, capacity_us=20 * SECOND)
    reads = Decision(controller._queries.decision)
    until(controller, lambda: reads.until_us == 100 * SECOND)
    reads.close()
    controller.stop_queries()
    controller.close()


def test_a_replica_that_waits_for_its_readers_says_so(tmp_path: Path) -> None:
    results_from_the_beginning(tmp_path, 60)
    options = {"readers": ("reader@down",), "capacity_us": 20 * SECOND}
    controller, _ = fresh(tmp_path, whole(tmp_path), None, until_us=60 * SECOND, **options)
    until(controller, lambda: controller.core is not None and controller.status().get("waits_for") == "readers")
    assert "out holds 20s that reader@down has not acknowledged" in controller.status()["why"]
    controller.stop_queries()
    controller.close()
