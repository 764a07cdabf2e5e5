"""Monte Carlo on Spark gives what it gives in one process, and what can be computed (003 §6.5)."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from benches.monte_carlo import Point, run_points

from holdfast.load.contract_value import SELLERS, SPIKES, Measured, Pareto, Sums, cost, gradient, spikes, trades


def kernel(spike: str, runs: int, rng: np.random.Generator) -> Sums:
    return spikes(SPIKES[spike], SELLERS["uniform"], 6, runs, rng)


def test_spark_adds_up_what_one_process_would(spark):
    found = run_points(spark, [Point(name, partial(kernel, name)) for name in SPIKES], 10_001, shares=3, seed=5)
    for number, name in enumerate(SPIKES):
        shares = [
            kernel(name, runs, np.random.default_rng((5, number, s))) for s, runs in enumerate((3334, 3334, 3333))
        ]
        alone = shares[0].plus(shares[1]).plus(shares[2])
        assert found[name].runs == alone.runs == 10_001
        for mine, theirs in ((found[name].overload, alone.overload), (found[name].overloaded, alone.overloaded)):
            assert np.allclose(mine, theirs)


def test_distributions_have_the_means_that_6_10_says():
    rng = np.random.default_rng(0)
    for loads in (*SELLERS.values(), Pareto(0.14, 0.01, 10.0)):
        drawn = loads.draw(rng, (400_000,))
        assert drawn.min() >= loads.low
        assert drawn.max() <= loads.high
        assert drawn.mean() == pytest.approx(loads.mean, rel=0.02)
        assert np.median(drawn) == pytest.approx(loads.median, rel=0.02)


def test_6_11_without_contracts_every_spike_overloads_and_6_5_more_help_less_and_less():
    sums = spikes(SPIKES["a"], SELLERS["light"], 20, 100_000, np.random.default_rng(1))
    chance, magnitude = sums.overloaded / sums.runs, sums.overload / sums.runs
    assert chance[0] == 1
    assert (np.diff(chance) <= 0).all()
    assert (np.diff(magnitude, 2) > -0.01).all()
    assert magnitude[0] == pytest.approx(1.0, abs=0.05)


def test_one_spike_and_known_sellers_can_be_counted_by_hand():
    sums = spikes(Measured((1.0,)), Measured((0.75,)), 5, 100, np.random.default_rng(0))
    assert (sums.overload / 100).tolist() == [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
    assert (sums.overloaded / 100).tolist() == [1, 1, 1, 1, 0, 0]


def test_what_a_buyer_saves_is_its_cost_less_the_price():
    sums = trades(Measured((0.9,)), Measured((0.25,)), 0.5, 3, 10, np.random.default_rng(0))
    moved = [0.0, 0.25, 0.4, 0.4]
    assert np.allclose(sums.moved / 10, moved)
    for n, x in enumerate(moved):
        kept = float(cost(np.array([0.9]))[0] - cost(np.array([0.9 - x]))[0])
        assert sums.saved[n] / 10 == pytest.approx(kept - x * gradient(0.5))
