"""What a reader is handed: UNDO and REC_DONE where they belong, nowhere else."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.tuples import TupleType
from holdfast.protocol.dpc.sequence import Delivery, Sequence

INSERTION, TENTATIVE, UNDO, REC_DONE = (
    TupleType.INSERTION,
    TupleType.TENTATIVE,
    TupleType.UNDO,
    TupleType.REC_DONE,
)


def test_without_failures_there_are_only_insertions():
    sequence = Sequence(3)
    assert sequence.stable(3) == (Delivery(INSERTION, 3),)
    assert sequence.caught_up() == ()


def test_undo_names_the_first_bucket_that_is_no_longer_valid():
    sequence = Sequence(0)
    sequence.stable(0)
    sequence.tentative(1, True)
    sequence.tentative(2, True)
    assert sequence.stable(1) == (Delivery(UNDO, 1), Delivery(INSERTION, 1))
    assert sequence.stable(2) == (Delivery(INSERTION, 2),)
    assert sequence.caught_up() == (Delivery(REC_DONE, 3),)


def test_news_during_corrections_are_taken_back_before_main_reaches_them():
    sequence = Sequence(0)
    sequence.tentative(0, True)
    sequence.stable(0)
    assert sequence.tentative(5, True) == (Delivery(TENTATIVE, 5),)
    assert [sequence.stable(b)[0].kind for b in range(1, 5)] == [INSERTION] * 4
    assert sequence.caught_up() == ()
    assert sequence.stable(5) == (Delivery(UNDO, 5), Delivery(INSERTION, 5))


def test_a_failure_during_recovery_forces_rec_done_before_the_next_tentative_bucket():
    sequence = Sequence(0)
    sequence.tentative(0, True)
    sequence.stable(0)
    assert sequence.tentative(1, False) == (Delivery(REC_DONE, 1), Delivery(TENTATIVE, 1))
    assert sequence.tentative(2, False) == (Delivery(TENTATIVE, 2),)
    assert sequence.stable(1) == (Delivery(UNDO, 1), Delivery(INSERTION, 1))


def test_a_tentative_bucket_that_main_has_or_that_was_seen_is_dropped():
    sequence = Sequence(4)
    assert sequence.tentative(3, True) == ()
    sequence.tentative(6, True)
    assert sequence.tentative(5, True) == ()
    assert sequence.tentative(6, True) == ()


STEPS = st.lists(
    st.one_of(
        st.just(("stable", 0, True)),
        st.tuples(st.just("tentative"), st.integers(0, 30), st.booleans()),
        st.just(("caught_up", 0, True)),
    ),
    max_size=60,
)


@given(STEPS)
def test_whatever_comes_the_reader_holds_a_stable_prefix_and_a_tentative_rest(steps):
    """D1, D2 and D4 as a model: the oracle is a list and a set."""
    sequence, stable, tentative, correcting = Sequence(0), [], set(), False
    for what, bucket, going_on in steps:
        if what == "stable":
            out = sequence.stable(len(stable))
        elif what == "tentative":
            out = sequence.tentative(bucket, going_on)
        else:
            out = sequence.caught_up()
        for index, step in enumerate(out):
            if step.kind == INSERTION:
                assert step.bucket == len(stable)
                assert not any(held <= step.bucket for held in tentative)
                stable.append(step.bucket)
            elif step.kind == TENTATIVE:
                assert step.bucket >= len(stable)
                assert step.bucket not in tentative
                assert not (correcting and not going_on)
                tentative.add(step.bucket)
            elif step.kind == UNDO:
                assert tentative
                assert step.bucket == len(stable)
                tentative.clear()
                correcting = True
            else:
                assert correcting
                assert not tentative or out[index + 1].kind == TENTATIVE
                correcting = False
    assert sequence.outstanding == bool(tentative)
    assert sequence.correcting == correcting
