"""A running node moves between hosts that share nothing but a port, and nobody can tell from its output (B7, B8)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.load.federation import Federation, Owner, plainly

TO_BEN = "to: ben, price: 0.1 to 5.0, period: 4s"
FROM_ANNA = "from: anna, price: 0.1 to 5.0, period: 4s"


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Federation]:
    owners = [Owner("anna", ["m1"], [TO_BEN]), Owner("ben", [], [FROM_ANNA])]
    federation = Federation(tmp_path, owners)
    try:
        yield federation
    finally:
        federation.end()


@pytest.mark.slow
def test_a_node_moves_there_and_back_and_its_output_is_that_of_one_that_stayed(two: Federation) -> None:
    two.start()
    two.wait(lambda: two.runs_at("anna", "counts-m1") == "anna", "the node to run at home")
    two.wait(lambda: (c := two.ask("anna", "/v1/contracts")) and c["contracts"][0]["agreed"], "ben's consent")
    assert "offered to ben" in two.place("anna", "counts-m1", "ben")
    two.wait(lambda: two.runs_at("anna", "counts-m1") == "ben", "the node to run at ben's")
    there = two.ask("ben")
    assert there is not None
    assert [task["owner"] for task in there["tasks"]] == ["anna"]
    seen = len(two.results("anna", "counts-m1"))
    two.wait(lambda: len(two.results("anna", "counts-m1")) > seen + 21, "results from ben's")
    two.place("anna", "counts-m1", "anna")
    two.wait(lambda: two.runs_at("anna", "counts-m1") == "anna", "the node to run at home again")
    two.wait(lambda: two.ask("ben")["tasks"] == [], "ben to let go")  # type: ignore[index]
    two.finish("anna", "counts-m1")
    assert plainly(two.results("anna", "counts-m1")) == two.sources["m1"].expected()
    anna, ben = two.ask("anna"), two.ask("ben")
    assert anna is not None
    assert ben is not None
    assert anna["balances"]["ben"] == -ben["balances"]["anna"] < 0, "B8: both ledgers say the same, and it was paid for"
