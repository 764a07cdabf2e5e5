"""What the bench of X says rests on what it should, and where not, it says that."""

from __future__ import annotations

from benches.dpc_figures import short_delays
from benches.dpc_tradeoff import Point, trials


def point(figure: str, added_s: float, depth: int = 1, others: float = 0.0) -> Point:
    return Point(figure, "process & process", 2.0, 5.0, depth, 250.0, 0.5, 0.5, 0.5 + added_s, 0, 0.0, 1.0, 1.0, 9,
                 others)  # fmt: skip


def test_whoever_asks_for_short_delays_by_name_gets_all_of_them_and_the_short_look_some() -> None:
    by_name = {trial.figure: trial.failures_s for trial in trials(False, ["x"])}
    assert set(by_name) == {"x:1s", "x:chain", "x:delay"}
    assert len(by_name["x:1s"]) == 10
    assert min(by_name["x:1s"]) == 2
    assert max(by_name["x:1s"]) == 30
    assert len(by_name["x:chain"]) >= 3
    assert by_name == {t.figure: t.failures_s for t in trials(True) if t.judged}
    assert [t.figure for t in trials(False, ["x:chain"])] == ["x:chain"]
    short = {t.figure: t.failures_s for t in trials(False)}
    assert {"5-8", "5-10", "5-14", "5.2"} < set(short)
    assert all(0 < len(short[figure]) < len(whole) for figure, whole in by_name.items())


def test_the_largest_delay_of_undisturbed_failures_counts_at_every_depth() -> None:
    points = [point("x:1s", 0.4), point("x:1s", 0.7), point("x:chain", 1.1), point("x:chain", 1.6, depth=4),
              point("x:delay", 1.7), point("x:delay", 2.25)]  # fmt: skip
    found, remarks = short_delays(points, {"x:1s": 2, "x:chain": 1, "x:delay": 2}, (0.04, 0.1))
    assert found == {"kept_1s": 0.7, "points_1s": 2, "kept_chain4_2s": 1.6, "points_chain4_2s": 1,
                     "delay_policy_excess": 0.25, "points_delay": 2, "warm_cost": 0.04}  # fmt: skip
    assert remarks == []


def test_a_figure_that_rests_on_fewer_failures_than_it_should_says_so() -> None:
    points = [point("x:1s", 0.4), point("x:1s", 1.9, others=0.5), point("x:chain", 2.5, others=0.2)]
    found, remarks = short_delays(points, {"x:1s": 2, "x:chain": 1}, (0.04, 0.3))
    assert found["kept_1s"] == 0.4
    assert found["points_1s"] == 1
    assert found["kept_chain4_2s"] is None
    assert [remark.partition(": ")[0] for remark in remarks[:2]] == [
        "kept_1s rests on 1 of 2 failures", "kept_chain4_2s rests on 0 of 1 failures"]  # fmt: skip
    assert "1.9" in remarks[0]
    assert "2.5" in remarks[1]
    assert "warm_cost was measured while other processes had 30%" in remarks[2]


def test_what_was_not_measured_is_not_mentioned() -> None:
    assert short_delays([], {}, None) == ({}, [])
