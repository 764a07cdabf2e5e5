"""A running node moves between hosts that share nothing but a port, and nobody can tell from its output (B7, B8)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.load.federation import MOVES, Federation, Owner

TO_BEN = "to: ben, price: 0.1 to 5.0, period: 4s"
FROM_ANNA = "from: anna, price: 0.1 to 5.0, period: 4s"
SKIP = pytest.mark.skipif(not MOVES, reason="two JVMs start for each; HOLDFAST_MOVES=1 moves nodes of all kinds")
#: Tallies have both kinds of state: Spark's checkpoint, and versions of an operator of Holdfast's own.
KINDS = ["tallies", *(pytest.param(kind, marks=SKIP) for kind in ("counts", "sums"))]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", KINDS)
def test_a_node_moves_there_and_back_and_its_output_is_that_of_one_that_stayed(tmp_path: Path, kind: str) -> None:
    """One has its state in Spark, one in an operator of Holdfast's own, one in an operator of the user's."""
    owners = [Owner("anna", ["m1"], [TO_BEN]), Owner("ben", [], [FROM_ANNA])]
    two, node = Federation(tmp_path, owners, kind=kind), f"{kind}-m1"
    try:
        two.start()
        two.wait(lambda: two.runs_at("anna", node) == "anna", f"{node} to run at home")
        two.wait(lambda: (c := two.ask("anna", "/v1/contracts")) and c["contracts"][0]["agreed"], "ben's consent")
        _there_and_back(two, node)
        two.finish("anna", node)
        two.check("anna", "m1")
        anna, ben = two.ask("anna"), two.ask("ben")
        assert anna is not None
        assert ben is not None
        assert anna["balances"]["ben"] == -ben["balances"]["anna"] < 0, "B8: both ledgers say the same; it was paid for"
    finally:
        two.end()


def _there_and_back(two: Federation, node: str) -> None:
    assert "offered to ben" in two.place("anna", node, "ben")
    two.wait(lambda: two.runs_at("anna", node) == "ben", f"{node} to run at ben's")
    there = two.ask("ben")
    assert there is not None
    assert [task["owner"] for task in there["tasks"]] == ["anna"]
    seen = len(two.results("anna", node))
    two.wait(lambda: len(two.results("anna", node)) > seen + 21, "results from ben's")
    two.place("anna", node, "anna")
    two.wait(lambda: two.runs_at("anna", node) == "anna", f"{node} to run at home again")
    two.wait(lambda: two.ask("ben")["tasks"] == [], "ben to let go")  # type: ignore[index]
