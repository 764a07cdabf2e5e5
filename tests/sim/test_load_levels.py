"""The quick simulator makes the core's decisions; topologies and loads are those of 003 §7.1.2."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from benches.load_levels import DynamicSim, LevelSim
from benches.load_topology import (
    LEVELS,
    System,
    Variant,
    acceptable,
    build,
    capacities,
    connect,
    diameter,
    left_over,
    loads,
)

from tests.sim.level_stage import Movements, stage


def small(seed: int, variant: Variant, nodes: int = 24) -> System:
    """A system like those of table 7.2 with a fifth of the tasks: nodes of 16 to 24 tasks, a range of 3."""
    rng = np.random.default_rng(seed)
    graph = connect(nodes, 2, rng)
    system = build(graph, variant, LEVELS[seed % 4], rng)
    fifth = np.maximum(system.price_high // 5, 1)
    low = fifth - 3 if variant.ranged else fifth
    return replace(system, capacity=system.capacity // 5, price_low=low, price_high=fifth, load=system.load // 5)


@pytest.mark.parametrize("variant", list(Variant))
@pytest.mark.parametrize(("seed", "extra"), [(1, 0), (2, 0), (3, 2), (4, 1)])
def test_every_movement_is_the_one_that_cores_make(variant, seed, extra):
    system = small(seed, variant)
    quick = LevelSim(system, extra=extra, keep=True, exact=True)
    quick.run(20_000_000)
    world, seen = stage(system, extra), Movements()
    world.watchers.append(seen)
    for name in world.hosts:
        world.start(name)
    world.run(quick.now_us)
    assert [movement[:4] for movement in quick.trace.movements] == seen.found
    assert quick.load == [len(host.running) for host in world.hosts.values()]
    assert len(seen.found) > 3


@pytest.mark.parametrize("variant", [Variant.UNIFORM_FIXED, Variant.HETEROGENEOUS_FIXED])
def test_leaving_out_hopeless_rounds_changes_nothing_with_fixed_prices(variant):
    for seed in range(4):
        rng = np.random.default_rng(seed)
        system = build(connect(200, 3, rng), variant, LEVELS[seed], rng)
        quick, exact = LevelSim(system, keep=True), LevelSim(system, keep=True, exact=True)
        quick.run()
        exact.run()
        assert quick.trace.movements == exact.trace.movements


@pytest.mark.parametrize("variant", [Variant.UNIFORM_RANGE, Variant.HETEROGENEOUS_RANGE])
def test_with_ranges_it_ends_as_near_to_acceptable(variant):
    apart = []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        level = LEVELS[seed % 4]
        system = build(connect(150, 3, rng), variant, level, rng)
        quick, exact = LevelSim(system), LevelSim(system, exact=True)
        quick.run()
        exact.run()
        left = [left_over(sim.loads, system.capacity, level.overloaded) for sim in (quick, exact)]
        apart.append(left[0] - left[1])
    assert abs(float(np.mean(apart))) < 0.002
    assert max(map(abs, apart)) < 0.01


def stuck(system: System, load: list[int]) -> bool:
    """Whether no pair of partners can move a task: the oracle, from §7.1.2 and the proof of theorem 2."""
    graph = system.graph
    for i in range(graph.nodes):
        for c in range(graph.starts[i], graph.starts[i + 1]):
            mine, theirs = load[i], load[graph.partners[c]]
            low, high = system.price_low[c], system.price_high[c]
            if mine > low and (theirs < low or (theirs < high and mine >= theirs + 2)):
                return False
    return True


@pytest.mark.parametrize("variant", list(Variant))
def test_a_run_ends_only_when_no_pair_can_move_anything(variant):
    for seed, level in enumerate(LEVELS):
        rng = np.random.default_rng(seed)
        system = build(connect(300, 2, rng), variant, level, rng)
        sim = LevelSim(system)
        sim.run()
        assert stuck(system, sim.load)
        assert sum(sim.load) == system.load.sum()


def test_uniform_ranges_reach_acceptable_allocations_with_two_contracts():
    """§7.1.3, on a smaller system."""
    rng = np.random.default_rng(5)
    system = build(connect(300, 2, rng), Variant.UNIFORM_RANGE, LEVELS[0], rng)
    sim = LevelSim(system)
    assert not acceptable(sim.loads, system.capacity)
    sim.run()
    assert acceptable(sim.loads, system.capacity)


def test_topologies_are_connected_and_have_the_least_number_of_contracts():
    for least in (1, 3, 10):
        graph = connect(400, least, np.random.default_rng(least))
        assert graph.degrees.min() == least
        assert diameter(graph) < 40
        for node in (0, 17, 399):
            assert all(node in graph.of(int(other)) for other in graph.of(node))


def test_the_diameter_is_the_longest_shortest_way():
    ring = connect(2, 1, np.random.default_rng(0))
    assert diameter(ring) == 1
    starts = np.array([0, 1, 3, 5, 6])
    chain = type(ring)(starts, np.array([1, 0, 2, 1, 3, 2]))
    assert diameter(chain) == 3


def test_initial_loads_have_the_shares_of_table_7_3():
    rng = np.random.default_rng(0)
    for level in LEVELS:
        drawn = loads(200_000, level, rng)
        assert drawn.min() >= 1
        assert drawn.max() <= 300
        assert drawn.mean() / 100 == pytest.approx(level.share, rel=0.05)


def test_capacities_are_those_of_table_7_2():
    rng = np.random.default_rng(0)
    assert set(capacities(50, Variant.UNIFORM_RANGE, rng)) == {100}
    spread = capacities(20_000, Variant.HETEROGENEOUS_FIXED, rng)
    assert (spread.min(), spread.max()) == (80, 120)


def test_load_that_varies_is_mostly_absorbed():
    """§7.1.5, on a smaller system and a shorter time."""
    rng = np.random.default_rng(1)
    graph = connect(80, 6, rng)
    system = build(graph, Variant.UNIFORM_RANGE, LEVELS[0], rng)
    for returns in (False, True):
        sim = DynamicSim(system, np.random.default_rng(2), returns=returns)
        varied, moved = sim.vary(((30, 2.0),), 90).between(30, 90)
        assert varied > 3000
        assert moved < 0.25 * varied
