"""Callers that come together are committed together, and nobody waits for one who left."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Sequence

import pytest

from holdfast.model.errors import StorageError
from holdfast.stream.group import GROUP_MAX, GroupCommit
from tests.faults.interrupts import run_interrupted

WAIT = 20


class Gate:
    """A commit that waits until it is let through, and remembers its groups."""

    def __init__(self) -> None:
        self.entered, self.go = threading.Semaphore(0), threading.Semaphore(0)
        self.groups: list[list[int]] = []

    def __call__(self, items: Sequence[int]) -> list[int | BaseException]:
        self.groups.append(list(items))
        self.entered.release()
        assert self.go.acquire(timeout=WAIT)
        return [ValueError(str(i)) if i < 0 else i * 10 for i in items]


class Caller(threading.Thread):
    def __init__(self, group: GroupCommit[int, int], item: int) -> None:
        super().__init__(daemon=True)
        self.group, self.item = group, item
        self.answer: object = None
        self.start()

    def run(self) -> None:
        try:
            self.answer = self.group.submit(self.item)
        except BaseException as error:
            self.answer = error


def _queued(group: GroupCommit[int, int], count: int) -> None:
    for _ in range(WAIT * 1000):
        if len(group._queue) == count:
            return
        threading.Event().wait(0.001)
    raise AssertionError(f"{count} callers should be waiting; {len(group._queue)} are")


def test_those_who_come_during_a_commit_share_the_next_and_each_gets_its_own_answer() -> None:
    gate = Gate()
    group: GroupCommit[int, int] = GroupCommit(gate)
    first = Caller(group, 1)
    assert gate.entered.acquire(timeout=WAIT)
    others = [Caller(group, i) for i in (2, -3, 4)]
    _queued(group, 3)
    gate.go.release(2)
    for caller in (first, *others):
        caller.join(WAIT)
    assert gate.groups[0] == [1]
    assert sorted(gate.groups[1]) == [-3, 2, 4]
    assert [c.answer for c in (first, others[0], others[2])] == [10, 20, 40]
    assert str(others[1].answer) == "-3"


def test_sixty_four_threads_lose_and_double_nothing() -> None:
    seen: list[int] = []
    sizes: list[int] = []

    def commit(items: Sequence[int]) -> list[int | BaseException]:
        seen.extend(items)
        sizes.append(len(items))
        return [-i for i in items]

    group: GroupCommit[int, int] = GroupCommit(commit)
    answers: dict[int, int] = {}

    def work(base: int) -> None:
        for i in range(base, base + 100):
            answers[i] = group.submit(i)

    threads = [threading.Thread(target=work, args=(1 + 100 * t,)) for t in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    assert sorted(seen) == list(range(1, 6401))
    assert answers == {i: -i for i in range(1, 6401)}
    assert max(sizes) <= GROUP_MAX


def test_an_error_of_the_commit_reaches_all_of_its_group_and_not_the_next() -> None:
    calls = 0

    def commit(items: Sequence[int]) -> list[int | BaseException]:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise StorageError("full")
        return list(items)

    group: GroupCommit[int, int] = GroupCommit(commit)
    with pytest.raises(StorageError, match="full"):
        group.submit(1)
    assert group.submit(2) == 2


def test_ctrl_c_while_waiting_leaves_the_queue_and_the_others_go_on() -> None:
    gate = Gate()
    group: GroupCommit[int, int] = GroupCommit(gate)
    first = Caller(group, 1)
    assert gate.entered.acquire(timeout=WAIT)

    def interrupt() -> None:
        _queued(group, 1)
        os.kill(os.getpid(), signal.SIGINT)

    # A shell that starts the tests in the background makes them deaf to Ctrl-C.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        threading.Thread(target=interrupt, daemon=True).start()
        with pytest.raises(KeyboardInterrupt):
            group.submit(2)
    finally:
        signal.signal(signal.SIGINT, before)
    third = Caller(group, 3)
    _queued(group, 1)
    gate.go.release(2)
    first.join(WAIT)
    third.join(WAIT)
    assert (first.answer, third.answer) == (10, 30)
    assert gate.groups == [[1], [3]]


def test_ctrl_c_of_the_leader_is_not_raised_in_the_threads_of_others() -> None:
    calls = 0

    def commit(items: Sequence[int]) -> list[int | BaseException]:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise KeyboardInterrupt
        if calls == 1:
            entered.release()
            assert go.acquire(timeout=WAIT)
        return list(items)

    entered, go = threading.Semaphore(0), threading.Semaphore(0)
    group: GroupCommit[int, int] = GroupCommit(commit)
    first = Caller(group, 1)
    assert entered.acquire(timeout=WAIT)
    second, third = Caller(group, 2), Caller(group, 3)
    _queued(group, 2)
    go.release()
    for caller in (first, second, third):
        caller.join(WAIT)
    assert first.answer == 1
    assert sorted(type(c.answer).__name__ for c in (second, third)) == ["KeyboardInterrupt", "StorageError"]
    assert group.submit(4) == 4


def test_after_ctrl_c_at_any_line_of_a_submit_the_next_caller_is_served() -> None:
    reached, at = True, 0
    while reached:
        at += 1
        group: GroupCommit[int, int] = GroupCommit(list)
        reached = run_interrupted(lambda g=group: g.submit(1), at, ("stream/group.py",))
        after = Caller(group, 2)
        after.join(WAIT)
        assert after.answer == 2, f"interrupted in front of line {at}"
    assert at > 15


class Crowded(GroupCommit[int, int]):
    """While the first commit is under way, a second caller comes."""

    def __init__(self) -> None:
        super().__init__(self._serve)
        self.callers: list[Caller] = []

    def _serve(self, items: Sequence[int]) -> list[int | BaseException]:
        if not self.callers:
            self.callers.append(Caller(self, 2))
            _queued(self, 1)
        return list(items)


def test_a_waiting_caller_is_served_when_its_leader_was_interrupted_at_any_line() -> None:
    reached, at = True, 0
    while reached:
        at += 1
        group = Crowded()
        reached = run_interrupted(lambda g=group: g.submit(1), at, ("stream/group.py",))
        for caller in group.callers:
            caller.join(WAIT)
            assert caller.answer == 2, f"interrupted in front of line {at}"


def test_those_who_were_served_together_are_awaited_and_one_who_stays_away_only_once() -> None:
    gate = Gate()
    group: GroupCommit[int, int] = GroupCommit(gate)
    first = Caller(group, 1)
    assert gate.entered.acquire(timeout=WAIT)
    others = [Caller(group, i) for i in (2, 3, 4)]
    _queued(group, 3)
    gate.go.release(2)
    for caller in (first, *others):
        caller.join(WAIT)
    assert group._expected == 3
    gate.go.release(2)
    assert group.submit(5) == 50  # The others do not come: it goes alone, and the next one expects nobody.
    assert group._expected == 1
    assert group.submit(6) == 60
    assert gate.groups[2:] == [[5], [6]]
