"""The three ways to reconcile a state end where a run without a failure ends, and one that does not is found out."""

from __future__ import annotations

import pytest
from benches.reconcile import OPERATORS, STRATEGIES, Operator, Setting, behind, measure

from benches import reconcile


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda o: o.name)
@pytest.mark.parametrize(("state", "failure"), [(1, 3), (50, 7_000), (3_000, 100)])
def test_all_strategies_end_as_if_nothing_had_failed(operator: Operator, state: int, failure: int) -> None:
    found = measure(operator, state, failure, 1)
    assert set(found) == set(STRATEGIES)
    assert found["forking"]["quiet"] == 0
    assert found["undo/redo"]["bytes"] > 0


def test_a_strategy_that_keeps_what_was_tentative_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(s: Setting) -> reconcile.Corrected:
        """Goes on from the tentative state, as if that had never been wrong."""
        fork, _ = reconcile.feed(s.kernel, s.state, s.tentative, reconcile.LIVE)
        blocks, results = reconcile.feed(s.kernel, fork, s.stable, reconcile.BACKLOG)
        return reconcile.Corrected(0, 0, 0, 0, blocks, results)

    monkeypatch.setitem(reconcile.RUN, "forking", forgetful)
    with pytest.raises(AssertionError, match="forking gave other results"):
        measure(OPERATORS[0], 20, 500, 1)


def test_where_forking_is_not_the_first_is_said() -> None:
    even = {"correct_s": 1.0, "quiet": 0.0, "news_s": 1.0, "bytes": 10.0}
    by = {"undo/redo": {**even, "bytes": 4.0}, "checkpoint/redo": {**even, "correct_s": 0.97}, "forking": even}
    assert behind({"join": {"state": {1000: by}}}) == ["join, state 1,000: bytes of undo/redo is 4, forking 10"]
