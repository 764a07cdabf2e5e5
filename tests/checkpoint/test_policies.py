"""Policies, what is derived from them, and deadlines (004 §4, §4.2)."""

from __future__ import annotations

import threading
import warnings

import pytest

from holdfast.checkpoint.deadlines import Deadlines
from holdfast.checkpoint.derive import StateKind, derive
from holdfast.checkpoint.policy import Guarantee, every, groups, none, upstream
from holdfast.checkpoint.scheduler import Scheduler
from holdfast.model.errors import UsageError


def test_each_policy_names_its_guarantee() -> None:
    assert [p.guarantee for p in (none, every("10s"), every(events=100), groups(512, every="1s"), upstream())] == [
        Guarantee.NOTHING, Guarantee.BEST_EFFORT, Guarantee.BEST_EFFORT, Guarantee.BEST_EFFORT, Guarantee.EXACT,
    ]  # fmt: skip
    assert every("10s", exact=True).guarantee is Guarantee.EXACT


def test_a_policy_reads_as_it_is_written() -> None:
    for text in (
        'every("10s")',
        "every(events=100)",
        'groups(512, every="1s")',
        "upstream()",
        'every("1s", exact=True)',
    ):
        assert str(eval(text, {"every": every, "groups": groups, "upstream": upstream})) == text


@pytest.mark.parametrize("wrong", [lambda: every(), lambda: every("1s", events=3), lambda: every("0s"),
                                   lambda: every(events=0), lambda: groups(0, every="1s"),
                                   lambda: every(events="3"), lambda: groups("64", every="1s")])  # fmt: skip
def test_nonsense_is_refused(wrong: object) -> None:
    with pytest.raises(UsageError):
        wrong()  # type: ignore[operator]


def test_what_is_saved_follows_from_type_and_annotation() -> None:
    """004 §4: nothing for a stateless functor, the variables of a stateful one, windows, upstream for a barrier."""
    assert derive("f", "functor", StateKind.NONE, every("1s")).saves == "nothing: it has no state"
    assert derive("f", "functor", StateKind.VARIABLES, every("1s")).saves == "its variables"
    assert derive("j", "join", StateKind.SLIDING, groups(64, every="1s")).saves.startswith("the groups of 64")
    assert derive("u", "user-defined operator", StateKind.KEYED, none).saves == "nothing"
    enforced = derive("b", "barrier", StateKind.IN_FLIGHT, None)
    assert (enforced.policy, enforced.guarantee) == ("upstream()", Guarantee.EXACT)
    with pytest.raises(UsageError, match="upstream"):
        derive("b", "barrier", StateKind.IN_FLIGHT, every("1s"))
    with pytest.raises(UsageError, match="does not protect"):
        derive("f", "functor", StateKind.VARIABLES, groups(64, every="1s"))
    with pytest.raises(UsageError, match="must be none"):
        derive("f", "functor", StateKind.VARIABLES, "10s")


def test_a_store_that_cannot_be_is_refused_where_the_operator_is_defined() -> None:
    for store, why in (("lgo:/far", "must begin with"), ("log:", "log:FOLDER"), ("memory:", "outlives its process")):
        with pytest.raises(UsageError, match=why):
            derive("u", "user-defined operator", StateKind.KEYED, every("1s"), store)
    for given, shown in (("log:/far", "log:/far"), ("redis://me:secret@far:6379/0", "redis://far:6379/0")):
        assert derive("u", "user-defined operator", StateKind.KEYED, every("1s"), given).store == shown


def test_the_earliest_deadline_is_served_first_and_a_late_one_does_not_push_the_others_back() -> None:
    deadlines = Deadlines()
    deadlines.add("slow", 100, 0)
    deadlines.add("quick", 30, 0)
    order = []
    for now in range(0, 301, 10):
        while (name := deadlines.begin(now)) is not None:
            order.append((now, name))
    assert order[:5] == [(30, "quick"), (60, "quick"), (90, "quick"), (100, "slow"), (120, "quick")]
    assert (deadlines.kept["quick"].met, deadlines.kept["quick"].missed) == (10, 0)
    assert deadlines.begin(455) == "quick"  # Due at 330: late, and those at 360, 390, 420, 450 went by.
    assert deadlines.kept["quick"].missed == 5
    assert deadlines.begin(455) == "slow"
    assert deadlines.begin(455) is None
    assert deadlines.next_us() == 480


def test_who_is_busy_past_a_deadline_may_begin_early_by_as_much_as_late() -> None:
    deadlines = Deadlines()
    deadlines.add("join", 1000, 0)
    assert deadlines.begin(949, 500) is None
    assert deadlines.begin(950, 49) is None
    assert deadlines.begin(950, 500) == "join"
    assert deadlines.next_us() == 2000
    assert (deadlines.kept["join"].met, deadlines.kept["join"].late_us_max) == (1, 0)


def test_one_thread_takes_all_checkpoints_and_a_failing_one_costs_the_others_nothing() -> None:
    scheduler = Scheduler()
    taken, enough = {"a": 0, "b": 0}, threading.Event()

    def take(name: str) -> None:
        taken[name] += 1
        if min(taken.values()) >= 5:
            enough.set()
        if name == "a":
            raise ValueError("the operator's own fault")

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        scheduler.add("a", 2_000, lambda: take("a"))
        scheduler.add("b", 5_000, lambda: take("b"))
        assert enough.wait(30)
        scheduler.close()
    assert "own fault" in str(told[0].message)
    report = scheduler.report()
    assert report["a"].met + report["a"].missed >= 5
    with pytest.raises(UsageError, match="a name of its own"):
        scheduler.add("a", 1, lambda: None)
