"""Table 4.3 row by row, and over every combination of states."""

from __future__ import annotations

from itertools import product

import pytest

from holdfast.protocol.dpc.signals import Lane
from holdfast.protocol.dpc.states import StreamState
from holdfast.protocol.dpc.switch import RESTING, Source, choose

S, U, Z, F = StreamState.STABLE, StreamState.UP_FAILURE, StreamState.STABILIZATION, StreamState.FAILURE
P, Q, R = (Source(name, Lane.MAIN) for name in "pqr")


def level(source: Source) -> int:
    return {"p": 1, "q": 2, "r": 3}[source.replica]


@pytest.mark.parametrize(
    ("curr", "bck", "states", "rows", "now", "behind"),
    [
        (P, None, {P: S, Q: U}, (1,), P, None),
        (P, Q, {P: S, Q: Z}, (1,), P, None),
        (P, None, {P: U, Q: S}, (2, 1), Q, None),
        (P, R, {P: U, Q: S, R: Z}, (2, 1), Q, None),
        (P, Q, {P: U, Q: Z}, (3,), P, Q),
        (P, Q, {P: U, Q: U}, (4,), P, None),
        (P, None, {P: U}, (4,), P, None),
        (P, None, {P: U, Q: Z}, (5, 3), P, Q),
        (P, None, {P: Z}, (6,), P, None),
        (P, None, {P: Z, Q: U}, (7, 3), Q, P),
        (P, Q, {P: Z, Q: Z}, (8, 6), Q, None),
        (P, Q, {P: Z, Q: Z, R: U}, (8, 7, 3), R, Q),
        (P, None, {Q: U}, (9, 4), Q, None),
        (P, None, {Q: U, R: Z}, (9, 5, 3), Q, R),
        (P, None, {Q: Z}, (10, 6), Q, None),
        (P, None, {}, (11,), P, None),
        (None, None, {P: S}, (2, 1), P, None),
    ],
)
def test_each_row_of_table_4_3(curr, bck, states, rows, now, behind):
    choice, taken = choose(curr, bck, states, level)
    assert (taken, choice.curr, choice.bck) == (rows, now, behind)


def test_curr_and_bck_change_places_when_bck_is_better():
    choice, _ = choose(P, Q, {P: Z, Q: S}, level)
    assert (choice.row, choice.curr, choice.bck) == (1, Q, None)


def test_every_combination_of_states_comes_to_rest_on_the_best_curr():
    """Property 1 of §4.11.1 for one hop: STABLE over UP_FAILURE over STABILIZATION, whatever was held before."""
    held = (None, P, Q, R)
    for p, q, r in product((S, U, Z, F), repeat=3):
        states = {source: state for source, state in ((P, p), (Q, q), (R, r)) if state != F}
        for curr, bck in product(held, held):
            if bck is not None and bck == curr:
                continue
            choice, _ = choose(curr, bck, states, level)
            assert choice.row in RESTING
            best = min(states.values(), default=F)
            assert states.get(choice.curr, F) == best
            wants_corrections = best == U and Z in states.values()
            assert (choice.bck is not None) == wants_corrections
            if wants_corrections:
                assert states[choice.bck] == Z


def test_a_held_source_follows_its_replica_to_another_lane():
    main, branch = Source("p", Lane.MAIN), Source("p", Lane.BRANCH)
    choice, _ = choose(main, None, {branch: U}, level)
    assert choice.curr == branch


def test_a_replica_with_a_fork_is_curr_and_bck_at_once():
    main, branch = Source("p", Lane.MAIN), Source("p", Lane.BRANCH)
    choice, _ = choose(branch, None, {main: Z, branch: U}, level)
    assert (choice.row, choice.curr, choice.bck) == (3, branch, main)
