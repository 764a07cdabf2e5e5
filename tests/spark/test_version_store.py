"""A flow's operator whose versions go to a store (`every`): what is restored after a loss, from what, and how far back.

No Spark: partitions run batch by batch, beside retention that lets go of what is not needed (`stage_runs`). The oracle
works results out tuple by tuple.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.checkpoint.slots import WentBack
from holdfast.clock import pause
from holdfast.model.errors import PeerError, StateLost, StorageError, UsageError
from holdfast.model.time import BEGINNING_US
from holdfast.operators.windows import count_window, time_window
from holdfast.spark import durable_state, version_store
from holdfast.spark.durable import begin_life, life_in, query_name
from holdfast.spark.fork import fork_checkpoint
from holdfast.spark.save_figures import Newest
from holdfast.spark.version_store import VersionStore, positions_in
from holdfast.spark.versions import _memory
from tests.checkpoint.servers import RedisServer
from tests.spark.stage_runs import SECOND, Clock, Server, StageRun, expected, one_server, rows_of, told_time

WINDOWS: dict[str, Any] = {"count": count_window(7), "time": time_window("3s", "1s"), "sort": 4}
GIVEN = rows_of(20)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    return one_server(monkeypatch)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Nothing but the tests' own keeps versions in memory, and whoever hands a checkpoint over waits for it."""
    _memory.clear()
    monkeypatch.delenv("SPARK_REUSE_WORKER", raising=False)
    return told_time(monkeypatch)


def undisturbed(run: StageRun, batches: int) -> None:
    assert sorted(run.results) == expected(run.given, run.window, run.at(batches))
    assert len(run.results) > 20


def stored(run: StageRun, partition: int = 0) -> list[int]:
    """The positions that the store has of a partition, in batches."""
    far = VersionStore(run.durable).far(run.durable.own or "", f"{partition}-of-{run.durable.partitions}")
    found = positions_in(far.slots, 2**60)
    far.close()
    return [0 if at == BEGINNING_US else at // SECOND - 1 for at in found]


def until_it_fails(run: StageRun, number: int, kind: type[Exception], said: str) -> int:
    """Run on from a batch until one fails; which."""
    for at in range(number, number + 8):
        try:
            run.batch(at, run.at(at), run.at(at + 1))
        except kind as error:
            if said not in str(error):
                raise
            return at
    raise AssertionError("no batch has failed")


@pytest.mark.parametrize("window", WINDOWS.values(), ids=list(WINDOWS))
@pytest.mark.parametrize("address", ["log:{}/far", "files:{}/far", "redis://somewhere"])
def test_a_flow_that_loses_its_scratch_goes_on_from_the_store_as_if_nothing_had_been(
    tmp_path: Path, clock: Clock, server: Server, window: Any, address: str
) -> None:
    """C1: checkpoints are periodic, and the state is exact all the same."""
    run = StageRun(tmp_path, GIVEN, clock, address=address.format(tmp_path), window=window)
    for number in range(16):
        if number in (1, 2, 9, 10, 14):
            run.lose()
        run.batch(number, run.at(number), run.at(number + 1))
    undisturbed(run, 16)
    assert run.removed_us > 6 * SECOND, "and input was let go meanwhile"


def test_on_a_real_server_that_is_killed_comes_back_and_has_a_password_of_its_own(tmp_path: Path, clock: Clock) -> None:
    """No message has the password in it."""
    server = RedisServer(tmp_path, "quite-secret")
    try:
        run = StageRun(tmp_path, GIVEN, clock, address=server.address)
        run.run(0, 8)
        server.kill()
        with pytest.warns(RuntimeWarning, match="1 checkpoints dropped so far") as told:
            run.run(8, 11)
        run.lose()
        with pytest.raises(PeerError, match=r"redis at redis://127.0.0.1:\d+/0 did not do its part") as away:
            run.run(11, 12)
        server.start()
        run.run(11, 15)
        undisturbed(run, 15)
        assert "quite-secret" not in f"{away.value}{[str(warning.message) for warning in told]}"
        wrong = StageRun(tmp_path / "wrong", GIVEN, clock, address=server.address_with("guessed"))
        with pytest.raises(UsageError, match="must let us in"):
            wrong.run(0, 1)
    finally:
        server.stop()


def test_a_killed_process_goes_on_from_scratch_and_asks_no_store(tmp_path: Path, clock: Clock, server: Server) -> None:
    run = StageRun(tmp_path, GIVEN, clock)
    run.run(0, 6)
    run.kill()
    server.away = True
    with pytest.warns(RuntimeWarning, match="1 checkpoints dropped"):
        run.run(6, 7)
    server.away = False
    run.run(7, 10)
    undisturbed(run, 10)


def test_a_damaged_version_on_scratch_is_made_again_from_the_store(
    tmp_path: Path, clock: Clock, server: Server
) -> None:
    run = StageRun(tmp_path, GIVEN, clock)
    run.run(0, 8)
    run.kill()
    for path in (tmp_path / "scratch").rglob(f"{run.at(8)}.state"):
        path.write_bytes(path.read_bytes()[:-9] + b"damaged!!")
    with pytest.raises(StateLost, match="needed from"):  # The planner looks at lengths; the query is started again.
        run.run(8, 9)
    run.kill()
    run.run(8, 12)
    undisturbed(run, 12)


@pytest.mark.parametrize("torn", [False, True], ids=["a flipped bit", "torn while it was written"])
def test_a_damaged_version_in_the_store_costs_the_one_before_it_and_more_input_but_no_result(
    tmp_path: Path, clock: Clock, server: Server, torn: bool
) -> None:
    """C6, L8: what the older of the two needs is still there."""
    run = StageRun(tmp_path, GIVEN, clock)
    run.run(0, 8)
    assert stored(run) == [7, 4]
    run.lose()
    if torn:
        run.run(8, 11)
        server.left = 1
        with pytest.raises(UsageError, match="gone"):  # The batch has failed, and with it its machine.
            run.run(11, 12)
        server.left = 1 << 30
        run.lose()
        assert stored(run)[0] == 7, "what was torn took the place of the older one"
        run.run(11, 14)
    else:
        assert server.damage_newest(b"op/out.main/") == 2
        with pytest.warns(RuntimeWarning, match="damaged in the store; an earlier one is used"):
            run.run(8, 14)
        assert run.again_s[0] == 4
    undisturbed(run, 14)


def test_a_version_of_one_position_is_never_taken_for_that_of_another(
    tmp_path: Path, clock: Clock, server: Server
) -> None:
    """C7: each piece says of which it is, whatever the marks beside it say."""
    run = StageRun(tmp_path, GIVEN, clock, partitions=1)
    run.run(0, 8)
    older = next(kept for key, kept in server._kept.items() if key.endswith(b"/s01") and kept[1])
    newer = next(kept for key, kept in server._kept.items() if key.endswith(b"/s00") and kept[1])
    older, newer = sorted((older, newer))
    for key, kept in list(server._kept.items()):
        if kept == newer:
            server._kept[key] = (newer[0], older[1])
    run.lose()
    with pytest.warns(RuntimeWarning, match="damaged in the store"):
        run.run(8, 12)
    undisturbed(run, 12)


@pytest.mark.parametrize("window", WINDOWS.values(), ids=list(WINDOWS))
def test_another_number_of_partitions_takes_its_groups_from_the_store_and_then_has_its_own(
    tmp_path: Path, clock: Clock, server: Server, window: Any
) -> None:
    """C13."""
    run = StageRun(tmp_path, GIVEN, clock, window=window, partitions=3)
    at = 0
    for partitions in (3, 2, 5, 2, 1):
        run.in_partitions(partitions)
        run.run(at, at + 3)
        run.lose()
        at += 3
    undisturbed(run, 15)
    assert {key.split(b"/")[2].rpartition(b"-")[2] for key in server._kept} >= {b"1", b"2"}
    run.run(15, 19)
    assert {key.split(b"/")[2] for key in server._kept} == {b"partitions", b"0-of-1"}, "what others left is gone"
    undisturbed(run, 19)


def test_a_fork_begins_with_what_its_parent_has_saved_up_to_its_root_and_then_has_its_own(
    tmp_path: Path, clock: Clock, server: Server
) -> None:
    """S1: neither writes to what is the other's, nor takes up what the other has done since."""
    parent = StageRun(tmp_path, GIVEN, clock)
    parent.run(0, 8)
    root = parent.at(8)
    other = [*[row for row in GIVEN if row[0] < root], *[(t, k + 1, v) for t, k, v in GIVEN if t >= root]]
    fork = StageRun(tmp_path, other, clock, stream="forked", lineage="fork", parents=("main",),
                    before=(("out.main", root),))  # fmt: skip
    parent.lose()
    fork.run(8, 10)
    parent.run(8, 14)
    fork.lose()
    fork.run(10, 14)
    undisturbed(parent, 14)
    before = expected(GIVEN, parent.window, root)
    assert sorted(before + fork.results) == expected(other, fork.window, fork.at(14))


def test_a_fork_in_a_node_saves_nothing_and_is_restored_at_its_root_alone(
    tmp_path: Path, clock: Clock, server: Server
) -> None:
    parent = StageRun(tmp_path, GIVEN, clock)
    parent.run(0, 8)
    root, kept = parent.at(8), dict(server._kept)
    parent.lose()
    fork = StageRun(tmp_path, GIVEN, clock, lineage="fork-1-abcd", parents=("main",), own=None,
                    before=(("out.main", root),))  # fmt: skip
    fork.run(8, 11)
    assert sorted(expected(GIVEN, fork.window, root) + fork.results) == expected(GIVEN, fork.window, fork.at(11))
    assert server._kept == kept
    fork.lose()
    with pytest.raises(StateLost, match="is lost, and it has no checkpoints there"):
        fork.run(11, 12)


def test_a_fork_never_takes_up_what_its_parent_has_saved_since(tmp_path: Path, clock: Clock, server: Server) -> None:
    parent = StageRun(tmp_path, GIVEN, clock)
    parent.run(0, 14)
    root = parent.at(8)
    parent.lose()
    for own in (None, "forked.fork"):
        fork = StageRun(tmp_path, GIVEN, clock, stream="forked", lineage="fork", parents=("main",), own=own,
                        before=(("out.main", root),))  # fmt: skip
        with pytest.raises(StateLost, match="has no checkpoint that it could be made of again"):
            fork.run(8, 9)
        with pytest.raises(StateLost, match="is lost"):
            fork.run(12, 13)


def test_a_planner_that_does_not_see_scratch_reads_again_at_each_start_as_far_as_the_store_can_say(
    tmp_path: Path, clock: Clock, server: Server
) -> None:
    """On a cluster whose machines have a scratch each. Away, the store is asked by those who lack their versions."""
    run = StageRun(tmp_path, GIVEN, clock)
    run.run(0, 8)
    run.spec = msgspec.structs.replace(run.spec, always=True)
    for away, again_s in ((False, 4), (True, 0)):
        run.in_partitions(2)
        server.away = away
        assert run.at(8) - run.planner.again_us(run.at(8)) == again_s * SECOND
        assert run.planner.again_us(run.at(9)) == run.at(9)


def test_input_is_needed_until_two_checkpoints_of_every_partition_are_behind_it(
    tmp_path: Path, clock: Clock, server: Server
) -> None:
    """L8: the planner never passes what is durable, however far the batches are."""
    run = StageRun(tmp_path, GIVEN, clock)
    needed = []
    for number in range(12):
        run.batch(number, run.at(number), run.at(number + 1))
        needed.append(run.planner.needed_us(run.at(number + 1)))
        oldest = min(min(stored(run, partition)) for partition in (0, 1))
        assert needed[-1] == run.at(oldest)
    assert needed[4] == BEGINNING_US
    assert needed == sorted(needed)
    assert needed[-1] > 5 * SECOND


def test_whoever_must_not_wait_for_the_store_goes_by_what_it_had_when_it_was_looked_at_last(
    tmp_path: Path, clock: Clock, server: Server
) -> None:
    """L8: which can only be too little."""
    run = StageRun(tmp_path, GIVEN, clock, every_s=1e-6)
    run.run(0, 8)
    run.planner.needed_by_now_us(run.at(8))
    run.planner._looking.join()  # type: ignore[union-attr]
    assert run.planner.needed_by_now_us(run.at(8)) == run.at(7)
    server.away = True
    run.planner._looking.join()  # type: ignore[union-attr]
    assert run.planner.needed_by_now_us(run.at(8)) == run.at(7)


def test_batches_go_on_while_the_store_is_away_and_a_restore_that_needs_it_says_so(
    tmp_path: Path, clock: Clock, server: Server
) -> None:
    run = StageRun(tmp_path, GIVEN, clock)
    run.run(0, 5)
    server.away = True
    with pytest.warns(RuntimeWarning, match="op: 1 checkpoints dropped so far: the server somewhere is away"):
        run.run(5, 10)
    assert run.removed_us == BEGINNING_US
    run.lose()
    with pytest.raises(PeerError, match="somewhere is away"):
        run.run(10, 11)
    server.away = False
    run.run(10, 19)
    undisturbed(run, 19)
    assert run.removed_us > 8 * SECOND


def test_a_store_that_was_away_from_the_beginning_has_it_later_and_until_then_a_loss_is_said(
    tmp_path: Path, clock: Clock, server: Server
) -> None:
    run = StageRun(tmp_path, GIVEN, clock)
    server.away = True
    with pytest.warns(RuntimeWarning, match="checkpoints dropped so far"):
        run.run(0, 4)
    server.away = False
    scratch = tmp_path / "kept"
    shutil.copytree(tmp_path / "scratch", scratch)
    run.lose()
    with pytest.raises(StateLost, match=r"lost, and redis://somewhere has no checkpoint that it could be made of"):
        run.run(4, 5)
    shutil.copytree(scratch, tmp_path / "scratch")
    run.run(4, 8)
    run.lose()
    run.run(8, 12)
    undisturbed(run, 12)


def test_a_store_that_refuses_us_is_said_by_the_first_batch(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(address: str) -> Server:
        raise UsageError("the password is wrong")

    monkeypatch.setattr(durable_state, "open_store", refuse)
    with pytest.raises(UsageError, match="the password is wrong"):
        StageRun(tmp_path, GIVEN, clock).run(0, 1)


def test_exact_saves_each_batch_so_that_nothing_is_read_again(tmp_path: Path, clock: Clock, server: Server) -> None:
    run, kept = StageRun(tmp_path, GIVEN, clock, always=True), tmp_path / "kept"
    for number in range(10):
        run.lose()
        run.batch(number, run.at(number), run.at(number + 1))
        if number == 2:
            shutil.copytree(tmp_path / "scratch", kept)
        assert stored(run) == [number + 1, number]
    assert run.removed_us == run.at(9)
    undisturbed(run, 10)
    run.removed_us = BEGINNING_US
    run.lose()
    with pytest.raises(StateLost, match="has no checkpoint"):
        run.batch(3, run.at(3), run.at(4))
    shutil.copytree(kept, tmp_path / "scratch")
    run.kill()
    with pytest.raises(WentBack, match="a query must not go back by more than one batch"):
        run.batch(3, run.at(3), run.at(4))


def test_a_checkpoint_that_comes_late_never_replaces_a_newer_one(tmp_path: Path, clock: Clock, server: Server) -> None:
    """C8."""
    run = StageRun(tmp_path, GIVEN, clock, partitions=1)
    late: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(version_store, "keep_beside", late.append)
        run.run(0, 5)
    run.run(5, 10)
    newest = stored(run)
    for begun in (late[0].begun, late[0].version):
        how = version_store.VersionCheckpoint(
            run.durable, 0, late[0].position_us, late[0].state, late[0].version, late[0].told, begun
        ).save()
        assert (how.outcome, stored(run)) == ("older", newest)
        assert "redis://somewhere has a later one" in how.error


def test_a_version_of_many_pieces_is_saved_and_comes_back(
    tmp_path: Path, clock: Clock, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it shrinks again: what a larger one left is not mixed in."""
    monkeypatch.setattr(version_store, "PIECE_BYTES", 700)
    run = StageRun(tmp_path, GIVEN, clock, window=count_window(7), every_s=1e-6)
    run.run(0, 4)
    assert any(key.endswith(b"/s20") for key in server._kept)
    monkeypatch.setattr(version_store, "PIECE_BYTES", 1 << 20)
    run.run(4, 7)
    run.lose()
    run.run(7, 9)
    monkeypatch.setattr(version_store, "PIECE_BYTES", 500)
    run.run(9, 11)
    run.lose()
    run.run(11, 13)
    undisturbed(run, 13)


def test_what_the_store_has_of_an_earlier_policy_does_not_count(tmp_path: Path, clock: Clock, server: Server) -> None:
    """Between two times with the policy, input may have gone that it would need."""
    run = StageRun(tmp_path, GIVEN, clock)
    run.run(0, 5)
    with_policy, run.durable = run.durable, None  # type: ignore[assignment]
    run.spec = msgspec.structs.replace(run.spec, durable=None)
    for number in range(5, 9):
        run.results += [
            row for p in (0, 1) for row in run.task(p, number, run.at(number), run.at(number + 1), run.at(number))
        ]
    run.removed_us = run.at(9)
    run.durable = with_policy
    run.in_partitions(2)
    run.run(9, 10)
    run.lose()
    run.run(10, 14)
    undisturbed(run, 14)


@pytest.mark.parametrize("partitions", [2, 3], ids=["as many partitions", "others"])
def test_a_query_that_begins_is_refused_where_the_store_has_what_it_cannot_have_saved(
    tmp_path: Path, clock: Clock, server: Server, partitions: int
) -> None:
    """C12: should somebody have put back the note of what another query is called there. Nothing is touched."""
    run = StageRun(tmp_path, GIVEN, clock, partitions=partitions)
    run.run(0, 8)
    again = StageRun(tmp_path / "again", GIVEN, clock, window=count_window(50), partitions=partitions)
    for numbers in (partitions, partitions + 1):
        again.in_partitions(numbers)
        with pytest.raises(UsageError, match=r"must have nothing of a query that begins; it has versions up to 1970"):
            again.run(0, 1)
    assert stored(run)
    run.lose()
    run.run(8, 10)
    undisturbed(run, 10)


def test_a_first_batch_that_is_executed_again_meets_what_it_has_saved_itself(
    tmp_path: Path, clock: Clock, server: Server
) -> None:
    run = StageRun(tmp_path, GIVEN, clock, every_s=1e-6, partitions=3)
    run.task(0, 0, run.at(0), run.at(1), run.at(0))
    run.lose()
    run.in_partitions(2)
    run.run(0, 6)
    run.lose()
    run.run(6, 9)
    undisturbed(run, 9)


def test_each_query_has_a_life_of_its_own_and_a_fork_knows_those_that_it_comes_from(tmp_path: Path) -> None:
    """C12, S1: a fork that is made again, and a query whose checkpoint was removed, take up nothing of those before."""

    def begin(folder: Path) -> None:
        for name in ("offsets/0", "commits/0", "metadata"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text("{}")

    parent, first, second = (tmp_path / name for name in ("parent", "first", "second"))
    assert life_in(parent, "main") is None
    begin(parent)
    own = begin_life(parent, "main")
    assert begin_life(parent, "main") == life_in(parent, "main") == own
    for fork in (first, second):
        fork_checkpoint(parent, fork)
        assert life_in(fork, "main") == own
        assert life_in(fork, "fork") is None
    lives = {begin_life(fork, "fork") for fork in (first, second)}
    assert len(lives | {own}) == 3
    assert len({query_name("id", "fork", life) for life in lives}) == 2
    shutil.rmtree(parent)
    assert begin_life(parent, "main") != own


def test_who_finds_later_versions_than_it_has_come_to_is_refused_until_they_are_gone(
    tmp_path: Path, clock: Clock, server: Server
) -> None:
    """C12: best effort, too; whoever saved them, they are never taken for its own, nor left to stop it in silence."""
    late: list[Any] = []
    other = StageRun(tmp_path / "other", [(t, k, v + 1) for t, k, v in GIVEN], clock, partitions=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(version_store, "keep_beside", late.append)
        other.run(0, 12)
    _memory.clear()
    server._kept.clear()
    run = StageRun(tmp_path, GIVEN, clock, partitions=1)
    run.run(0, 2)
    late[-1].save()
    failed = until_it_fails(run, 2, WentBack, "a query must not go back by more than one batch")
    run.kill()
    with pytest.raises(WentBack, match="redis://somewhere has a later one"):
        run.batch(failed, run.at(failed), run.at(failed + 1))
    server._kept.clear()
    run.run(failed, 12)
    run.lose()
    run.run(12, 14)
    undisturbed(run, 14)


def test_partitions_whose_store_was_away_leave_what_others_have_saved_to_whom_needs_it(
    tmp_path: Path, clock: Clock, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C13: the machine dies when one of the new partitions has saved, and the other has not."""
    run = StageRun(tmp_path, GIVEN, clock, partitions=3)
    run.run(0, 8)
    run.in_partitions(2)
    server.away = True
    with pytest.warns(RuntimeWarning, match="checkpoints dropped"):
        run.run(8, 9)
    server.away = False
    whole = version_store.VersionCheckpoint.save

    def save(checkpoint: Any, *, patient: bool = False) -> Any:
        if checkpoint.partition == 1:
            raise UsageError("the machine is gone")
        return whole(checkpoint, patient=patient)

    with monkeypatch.context() as patch:
        patch.setattr(version_store.VersionCheckpoint, "save", save)
        failed = until_it_fails(run, 9, UsageError, "the machine is gone")
    run.lose()
    run.run(failed, 16)
    undisturbed(run, 16)


def test_a_partition_whose_store_was_away_keeps_two_versions_though_nobody_tells_it_of_the_first(
    tmp_path: Path, clock: Clock, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C8: it runs on another machine each time. The word of how a checkpoint ended lies where that was saved."""
    run = StageRun(tmp_path, GIVEN, clock, partitions=1)
    server.away = True
    with pytest.warns(RuntimeWarning, match="checkpoints dropped"):
        run.run(0, 2)
    server.away = False
    here = version_store.keep_beside

    def elsewhere(checkpoint: Any) -> None:
        here(checkpoint)
        checkpoint.told.unlink(missing_ok=True)

    monkeypatch.setattr(version_store, "keep_beside", elsewhere)
    run.run(2, 12)
    assert len(stored(run)) == 2
    run.lose()
    assert server.damage_newest(b"op/out.main/") == 1
    with pytest.warns(RuntimeWarning, match="damaged in the store"):
        run.run(12, 14)
    undisturbed(run, 14)


def test_what_a_restore_found_damaged_is_replaced_first_and_does_not_let_input_go(
    tmp_path: Path, clock: Clock, server: Server
) -> None:
    """C6, L8: the next save is torn, and the good version is still there."""
    run = StageRun(tmp_path, GIVEN, clock, partitions=1)
    run.run(0, 8)
    assert stored(run) == [7, 4]
    run.lose()
    server.damage_newest(b"op/out.main/")
    with pytest.warns(RuntimeWarning, match="damaged in the store"):
        run.run(8, 9)
    assert stored(run) == [4]
    assert run.planner.needed_us(run.at(9)) == BEGINNING_US
    server.left = 1
    failed = until_it_fails(run, 9, UsageError, "gone")
    server.left = 1 << 30
    run.lose()
    assert stored(run) == [4]
    run.run(failed, 16)
    undisturbed(run, 16)


def test_one_version_alone_lets_no_input_go(tmp_path: Path, clock: Clock, server: Server) -> None:
    """L8: it may be damaged."""
    run = StageRun(tmp_path, GIVEN, clock, partitions=1)
    server.away = True
    with pytest.warns(RuntimeWarning, match="checkpoints dropped"):
        run.run(0, 2)
    server.away = False
    for number in range(2, 12):
        run.batch(number, run.at(number), run.at(number + 1))
        assert (run.removed_us > BEGINNING_US) == (len(stored(run)) > 1)
    assert run.removed_us > BEGINNING_US


def test_what_cannot_be_removed_is_said(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    run = StageRun(tmp_path, GIVEN, clock, address=f"log:{tmp_path}/far")
    run.run(0, 5)

    def refuse(path: Any, ignore_errors: bool = False) -> None:
        if not ignore_errors:
            raise OSError(39, "Directory not empty")

    monkeypatch.setattr(durable_state.shutil, "rmtree", refuse)
    far = VersionStore(run.durable).far("out.main", "partitions")
    with pytest.raises(StorageError, match=r"0-of-2 must go: .* not empty"):
        far.forget("0-of-2")
    run.in_partitions(3)
    run.run(5, 14)
    assert stored(run)[0] >= 12, "checkpoints go on meanwhile"
    assert len(stored(run)) == 2
    monkeypatch.undo()
    far.forget("7-of-8")
    run.run(14, 18)
    assert {path.name.partition("-of-")[2] for path in (tmp_path / "far").glob("op/out.main/*-of-*")} == {"3"}
    run.lose()
    run.run(18, 19)
    undisturbed(run, 19)


def test_exact_waits_for_its_store_in_the_first_batch_too(
    tmp_path: Path, clock: Clock, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.away = True
    pauses = 0

    def come_back(seconds: float) -> None:
        nonlocal pauses
        pauses += 1
        server.away = pauses < 3

    monkeypatch.setattr(durable_state.time, "sleep", come_back)
    run = StageRun(tmp_path, GIVEN, clock, always=True)
    with pytest.warns(RuntimeWarning, match="waits for its store"):
        run.run(0, 1)
    assert pauses == 3
    assert stored(run) == [1, 0]


def test_runs_of_one_batch_each_acknowledge_input_as_well(
    tmp_path: Path, clock: Clock, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L8: each has a planner of its own, and asks it once; a server takes its time."""
    answer = server._read
    monkeypatch.setattr(server, "_read", lambda keys: (pause(2000), answer(keys))[1])
    run = StageRun(tmp_path, GIVEN, clock, every_s=1e-6)
    for number in range(6):
        run.kill()
        run.batch(number, run.at(number), run.at(number + 1))
        run.kill()
        acknowledged = run.planner.needed_by_now_us(run.at(number + 1))
        assert acknowledged == run.at(number)


def test_another_store_begins_with_what_the_operator_has_then(tmp_path: Path, clock: Clock, server: Server) -> None:
    run = StageRun(tmp_path, GIVEN, clock)
    run.run(0, 8)
    moved = StageRun(tmp_path, GIVEN, clock, address=f"log:{tmp_path}/far")
    moved.run(8, 9)
    moved.lose()
    moved.run(9, 12)
    moved.results += run.results
    undisturbed(moved, 12)


def test_what_it_comes_to_is_told_with_each_batch(tmp_path: Path, clock: Clock, server: Server) -> None:
    run = StageRun(tmp_path, GIVEN, clock)
    told: dict[Any, Any] = {}
    added = Newest()

    class Figures:
        def add(self, value: Any) -> None:
            told.update(added.addInPlace(told, value))

    run.figures = Figures()
    run.run(0, 10)
    first = told["q", "op", 0]
    assert (first.partitions, first.durable, first.dropped, first.missed) == (2, 3, 0, 0)
    assert first.met == 3
    assert first.bytes > 100
    assert first.restore_s is None
    run.lose()
    run.run(10, 11)
    assert told["q", "op", 1].restore_s > 0


def test_nobody_needs_what_a_query_has_left_and_it_can_be_removed(tmp_path: Path, clock: Clock, server: Server) -> None:
    for address in ("redis://somewhere", f"log:{tmp_path}/far"):
        run = StageRun(tmp_path / address[:3], GIVEN, clock, address=address)
        versions = VersionStore(run.durable)
        assert not versions.knows("out.main")
        run.run(0, 5)
        assert versions.knows("out.main")
        versions.forget("out.main")
        assert not versions.knows("out.main")
    assert not server._kept
    assert not list((tmp_path / "far" / "op").iterdir())
