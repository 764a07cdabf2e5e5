"""A movement is killed (-9) on either side at every one of its steps: one owner, nothing lost or twice, equal ledgers.

HOLDFAST_MOVES=20 kills twenty times at each of the eighteen steps; without it, once at two of them. There the query
is run by plain Python (`tests.load.plain_engine`), so that it is the movement that takes the time and not the starts of
JVMs. HOLDFAST_SPARK_MOVES=1 kills as often at each step with Spark. One federation serves a whole test.

Each is done with a node whose state is Spark's and with one of an operator of Holdfast's own, whose versions travel.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from holdfast.host.crash_points import GUEST_COMING, GUEST_GOING, OWNER_COMING_BACK, OWNER_LEAVING
from holdfast.load.remote_task import read_note
from tests.load.federation import MOVES, Federation, Owner

CLAUSES = "price: 0.1 to 5.0, period: 3s"
#: (who is killed, at which step, whether the node is on its way back)
EVERY = [
    *(("anna", step, False) for step in OWNER_LEAVING),
    *(("ben", step, False) for step in GUEST_COMING),
    *(("anna", step, True) for step in OWNER_COMING_BACK),
    *(("ben", step, True) for step in GUEST_GOING),
]
SPARK_MOVES = int(os.environ.get("HOLDFAST_SPARK_MOVES", "0"))
LONG_ONLY = pytest.mark.skipif(
    not MOVES, reason="the one with state is killed at other steps; HOLDFAST_MOVES=1 does both"
)
FEW = {
    "counts": [("anna", "noted", False), ("ben", "handed", True)],
    # Where the state is there, and nothing was computed from it yet.
    "tallies": [("ben", "installed", False), ("anna", "taken-up", True)],
}


@contextlib.contextmanager
def federation(folder: Path, plain: bool, kind: str) -> Iterator[Federation]:
    owners = [Owner("anna", ["m1"], [f"to: ben, {CLAUSES}"]), Owner("ben", [], [f"from: anna, {CLAUSES}"])]
    for owner in owners:
        owner.environment["HOLDFAST_KILL_AT"] = str(folder / f"kill-{owner.name}")
    made = Federation(folder, owners, plain=plain, kind=kind)
    try:
        yield made
    finally:
        made.end()


def node_of(two: Federation) -> str:
    return f"{two.kind}-m1"


def settle(two: Federation, where: str) -> None:
    """The node runs there, and the two agree on it."""
    node = node_of(two)
    two.wait(lambda: two.runs_at("anna", node) == where, f"{node} to run at {where}'s")
    home = two.folder / "anna" / "data" / ".holdfast" / "nodes" / node
    assert (read_note(home) is not None) == (where == "ben"), "B7: the file says who writes, and it says the same"
    if where == "anna":
        two.wait(lambda: (said := two.ask("ben")) and not said["tasks"], "ben to have let go of it")


def kill_at(two: Federation, victim: str, step: str, back: bool) -> None:
    """Let the victim die at that step, start it again, and let both come to rest where they were going."""
    target = "anna" if back else "ben"
    (two.folder / f"kill-{victim}").write_text(step)
    two.place("anna", node_of(two), target)
    two.wait(lambda: two.dead(victim), f"{victim} to die at {step!r}")
    two.kill(victim)  # The JVM and the workers that it has left behind.
    two.start(victim)
    settle(two, target)
    print(f"{victim} killed at {step!r}: the node runs at {target}'s", flush=True)


def go_through(two: Federation, kills: Sequence[tuple[str, str, bool]]) -> None:
    """Kill at all of these points, one after the other; then look at what came out."""
    two.start()
    settle(two, "anna")
    for victim, step, back in kills:
        two.wait(lambda: _agreed(two), "ben's consent")
        if (two.runs_at("anna", node_of(two)) == "ben") != back:
            two.place("anna", node_of(two), "ben" if back else "anna")
            settle(two, "ben" if back else "anna")
        kill_at(two, victim, step, back)
    two.place("anna", node_of(two), "anna")
    settle(two, "anna")
    two.finish("anna", node_of(two))
    two.check("anna", "m1")
    two.wait(lambda: not any(_leases(two, name) for name in ("anna", "ben")), "all leases to end")
    anna, ben = two.ask("anna"), two.ask("ben")
    assert anna is not None
    assert ben is not None
    assert anna["balances"]["ben"] == -ben["balances"]["anna"], "B8: both ledgers say the same"


def _agreed(two: Federation) -> bool:
    said = two.ask("anna", "/v1/contracts")
    return bool(said and said["contracts"][0]["agreed"])


def _leases(two: Federation, name: str) -> bool:
    said = two.ask(name, "/v1/contracts")
    return said is None or any(contract["leases"] for contract in said["contracts"])


@pytest.mark.slow
@pytest.mark.timeout(60 * 60 * 24 if MOVES else 600)
@pytest.mark.parametrize("kind", [pytest.param("counts", marks=LONG_ONLY), "tallies"])
def test_a_movement_that_is_killed_at_any_step_on_either_side_ends_as_if_nothing_had_been(
    tmp_path: Path, kind: str
) -> None:
    with federation(tmp_path, plain=True, kind=kind) as two:
        go_through(two, EVERY * MOVES if MOVES else FEW[kind])


@pytest.mark.slow
@pytest.mark.timeout(60 * 60 * 24)
@pytest.mark.skipif(not SPARK_MOVES, reason="JVMs take long to start; HOLDFAST_SPARK_MOVES=1 kills hosts with Spark")
@pytest.mark.parametrize("kind", ["counts", "tallies"])
def test_the_same_with_spark(tmp_path: Path, kind: str) -> None:
    with federation(tmp_path, plain=False, kind=kind) as two:
        go_through(two, EVERY * SPARK_MOVES)
