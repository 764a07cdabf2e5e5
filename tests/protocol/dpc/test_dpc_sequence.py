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


def told(*steps: tuple[Delivery, ...]) -> list[str]:
    """Buckets by number, UNDO and REC_DONE by the bucket that they name."""
    lines = []
    for step in [step for some in steps for step in some]:
        here = f"{step.bucket}" if step.bucket == step.end else f"{step.bucket}..{step.end}"
        lines.append(f"{step.kind.name} {here}")
    return lines


def test_without_failures_there_are_only_insertions():
    sequence = Sequence(3)
    assert told(sequence.stable(4), sequence.stable(4), sequence.stable(9)) == ["INSERTION 3..4", "INSERTION 4..9"]
    assert sequence.caught_up() == ()


def test_undo_names_the_first_bucket_that_is_no_longer_valid():
    sequence = Sequence(0)
    sequence.stable(1)
    sequence.tentative(1, 3)
    assert told(sequence.stable(2)) == ["UNDO 1", "INSERTION 1..2"]
    assert told(sequence.stable(3)) == ["INSERTION 2..3"]
    assert told(sequence.caught_up()) == ["REC_DONE 3"]


def test_a_reader_that_resumes_amid_corrections_gets_their_end():
    sequence = Sequence(2, goal=5)
    assert told(sequence.stable(4)) == ["INSERTION 2..4"]
    assert sequence.caught_up() == (), "some of what it held is not replaced yet"
    assert told(sequence.stable(6), sequence.caught_up()) == ["INSERTION 4..6", "REC_DONE 6"]


def test_a_reader_that_resumes_while_the_failure_lasts_is_told_the_branch_from_where_main_ends():
    sequence = Sequence(2, goal=5)
    assert told(sequence.stop_short(), sequence.tentative(1, 6)) == ["REC_DONE 2", "TENTATIVE 2..6"]
    assert told(sequence.stable(3)) == ["UNDO 2", "INSERTION 2..3"]


def test_news_during_corrections_are_taken_back_before_main_reaches_them():
    sequence = Sequence(0)
    sequence.tentative(0, 1)
    sequence.stable(1)
    assert told(sequence.tentative(5, 6)) == ["TENTATIVE 5..6"]
    assert told(sequence.stable(3), sequence.stable(5)) == ["INSERTION 1..3", "INSERTION 3..5"]
    assert sequence.caught_up() == ()
    assert told(sequence.stable(6)) == ["UNDO 5", "INSERTION 5..6"]


def test_main_that_passes_news_in_one_step_delivers_what_lies_before_them_first():
    sequence = Sequence(0)
    sequence.tentative(0, 1)
    sequence.stable(1)
    sequence.tentative(5, 6)
    assert told(sequence.stable(9)) == ["INSERTION 1..5", "UNDO 5", "INSERTION 5..9"]


def test_corrections_are_not_complete_before_main_has_passed_what_they_replace():
    """D3. A producer may be STABLE as far as its inputs go while its last results are still on their way."""
    sequence = Sequence(0)
    sequence.tentative(0, 4)
    sequence.stable(3)
    assert sequence.caught_up() == ()
    sequence.stable(4)
    assert told(sequence.caught_up()) == ["REC_DONE 4"]


def test_at_the_end_of_a_stream_nothing_tentative_is_left_and_corrections_are_complete():
    """Whatever was tentative beyond the last stable bucket: nobody would ever correct it."""
    sequence = Sequence(0)
    sequence.tentative(0, 4)
    sequence.stable(3)
    assert told(sequence.ended()) == ["REC_DONE 3"]
    sequence.tentative(5, 6)
    assert told(sequence.ended()) == ["UNDO 3", "REC_DONE 3"]
    assert sequence.ended() == ()


def test_a_failure_during_recovery_closes_the_corrections_and_the_branch_begins_where_main_ends():
    """D4: what an UNDO took back and main does not have comes again, as part of the new failure."""
    sequence = Sequence(0)
    sequence.tentative(0, 4)
    sequence.stable(1)
    sequence.tentative(4, 5)
    assert told(sequence.stop_short()) == ["UNDO 1", "REC_DONE 1"]
    assert told(sequence.tentative(0, 6)) == ["TENTATIVE 1..6"]
    assert sequence.stop_short() == ()
    assert told(sequence.stable(2)) == ["UNDO 1", "INSERTION 1..2"]


def test_a_failure_during_recovery_undoes_nothing_if_nothing_tentative_is_left():
    sequence = Sequence(0)
    sequence.tentative(0, 1)
    sequence.stable(1)
    assert told(sequence.stop_short()) == ["REC_DONE 1"]


def test_a_tentative_bucket_that_main_has_or_that_was_seen_is_dropped():
    sequence = Sequence(4)
    assert sequence.tentative(3, 4) == ()
    sequence.tentative(6, 7)
    assert sequence.tentative(5, 7) == ()
    assert told(sequence.tentative(2, 9)) == ["TENTATIVE 7..9"]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("stable"), st.integers(0, 30), st.just(0)),
        st.tuples(st.just("tentative"), st.integers(0, 30), st.integers(1, 4)),
        st.just(("stop_short", 0, 0)),
        st.just(("caught_up", 0, 0)),
    ),
    max_size=60,
)


@given(STEPS)
def test_whatever_comes_the_reader_holds_a_stable_prefix_and_a_tentative_rest(steps):
    """D1 to D4 as a model: the oracle is a number and two sets."""
    sequence, stable, tentative, undone, correcting = Sequence(0), 0, set(), set(), False
    for what, bucket, count in steps:
        if what == "stable":
            out = sequence.stable(bucket)
        elif what == "tentative":
            out = sequence.tentative(bucket, bucket + count)
        elif what == "stop_short":
            out = sequence.stop_short()
        else:
            out = sequence.caught_up()
        for step in out:
            if step.kind == INSERTION:
                assert step.bucket == stable < step.end
                assert not any(held < step.end for held in tentative)
                stable = step.end
            elif step.kind == TENTATIVE:
                fresh = set(range(step.bucket, step.end))
                assert step.bucket >= stable
                assert fresh
                assert not fresh & tentative
                tentative |= fresh
            elif step.kind == UNDO:
                assert tentative
                assert step.bucket == stable
                undone |= tentative
                tentative, correcting = set(), True
            else:
                assert correcting
                assert not tentative
                assert what == "stop_short" or all(held < stable for held in undone)
                correcting, undone = False, set()
    assert sequence.outstanding == bool(tentative)
    assert sequence.correcting == correcting
