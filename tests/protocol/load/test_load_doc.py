"""The document's table of steps is the one that runs."""

from __future__ import annotations

from pathlib import Path

from holdfast.protocol.load.leases import STEPS


def test_every_step_of_a_lease_is_in_the_document_and_no_other():
    text = (Path(__file__).parents[3] / "docs" / "load-sharing.md").read_text()
    rows = [line.strip("| \n").split(" | ") for line in text.splitlines() if line.startswith(("| buyer", "| seller"))]
    told = {(row[0], row[1]): tuple(row[2].split(", ")) for row in rows}
    ran = {(role.value, state.value): tuple(s.value for s in after) for (role, state), after in STEPS.items()}
    assert told == ran
