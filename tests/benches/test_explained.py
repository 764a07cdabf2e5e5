"""The changes under which statements of 003 §7.1 are tried again are what they claim to be."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from benches.bpm_explained import (
    CHANGES,
    HR,
    LIGHT,
    QUESTIONS,
    UF,
    ChanceSim,
    Job,
    OrderedSim,
    answer,
    chosen,
    lowered,
    simulate,
)
from benches.evaluation.figures import Grid, show
from benches.evaluation.registry import FIGURES
from benches.evaluation.results import read_all, sources
from benches.load_levels import LevelSim
from benches.load_topology import LEVELS, build, connect, diameter, left_over

from benches import bpm_explained, bpm_statements


@pytest.mark.parametrize("even", [False, True])
def test_a_chosen_graph_is_connected_and_has_the_contracts_it_must(even: bool) -> None:
    graph = chosen(300, 4, np.random.default_rng(3), 2, even)
    assert int(graph.degrees.min()) >= 4
    assert diameter(graph) < 20
    for node in range(graph.nodes):
        partners = graph.of(node).tolist()
        assert node not in partners
        assert len(partners) == len(set(partners))
        assert all(node in graph.of(other).tolist() for other in partners)


def test_candidates_make_a_tree_narrower() -> None:
    def wide(candidates: int) -> float:
        return float(np.mean([diameter(chosen(400, 1, np.random.default_rng(s), candidates, False)) for s in range(5)]))

    assert wide(2) < wide(1)


def test_lowered_capacities_lie_between_80_and_100_and_prices_follow() -> None:
    system = build(connect(200, 3, np.random.default_rng(0)), HR, LEVELS[LIGHT], np.random.default_rng(1))
    low = lowered(system)
    assert int(low.capacity.min()) >= 80
    assert int(low.capacity.max()) <= 100
    assert (low.price_high - low.price_low == 5).all()
    owners = np.repeat(np.arange(200), low.graph.degrees)
    assert (low.price_high <= low.capacity[owners]).all()


def test_no_order_of_offers_creates_or_loses_load() -> None:
    system = build(connect(200, 3, np.random.default_rng(0)), UF, LEVELS[LIGHT], np.random.default_rng(1))
    for kind in (LevelSim, OrderedSim, ChanceSim):
        sim = kind(system)
        sim.run()
        assert int(sim.loads.sum()) == int(system.load.sum())
        assert left_over(sim.loads, system.capacity, False) < left_over(system.load, system.capacity, False)


def test_every_question_is_a_statement_that_is_checked() -> None:
    source = Path(bpm_statements.__file__).read_text()
    for question in QUESTIONS:
        assert f'"{question.said}"' in source


def test_an_answer_names_what_makes_a_statement_hold() -> None:
    question = next(q for q in QUESTIONS if q.said.startswith("fixed, light load, two"))
    values = dict.fromkeys(CHANGES, 0.053) | {"narrow topology": 0.049, "other reading": 0.05}
    assert answer(values, question).startswith("Holds with narrow topology; read otherwise")
    assert answer(dict.fromkeys(values, 0.07), question).startswith("Holds with none")


def test_a_simulation_is_decided_by_its_job() -> None:
    job = Job("narrow topology", 0, UF, LIGHT, 2)
    assert simulate(job) == simulate(job)


def test_the_bench_answers_for_every_statement(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(bpm_explained, "NODES", 40)
    monkeypatch.setattr(sys, "argv", ["bpm_explained", "--quick", "--processes", "0"])
    monkeypatch.setenv("BENCH_RESULTS", str(tmp_path))
    bpm_explained.main()
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert said["statements"] == len(QUESTIONS) + 1
    (result,) = read_all(tmp_path)
    for question in QUESTIONS:
        assert set(result("values", question.said)) - {"other reading"} == set(CHANGES)
        assert result("why", question.said).startswith("Holds with")
    figures = [figure for figure in FIGURES if figure.number in ("figure 7-1", "figure 7-2", "figure 7-3")]
    for figure in figures:
        parts = show(figure, sources(tmp_path)).parts
        assert any(isinstance(part, Grid) and "bound" in part.columns for part in parts), figure.number
