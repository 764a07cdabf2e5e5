"""The prototype experiment of 003 §7.3: participants with hosts of their own share the load of a network monitor.

Seven tasks count connections by source, four over the traces of one network ("utah"), three over those of another
("mit"). Node 0 has the four, node 1 two, node 2 one; all have contracts with each other at one fixed price. The load of
utah rises in steps, then that of mit has a spike at node 1. Then a fourth participant joins, with twice the capacity,
which has a contract with node 2 alone, at a lower price (figure 7-10).

The seeds played recorded traces for 900 s on three machines. Here the traces are made, the loads follow figure 7-9, and
hosts are processes on one machine, each with a Spark session of its own; what a row costs is a constant, as in the
seeds' prototype (§7.2.2), so that what the machine does otherwise decides nothing.

Shown: every movement, the loads before and after, whether the allocation is acceptable at the end of each phase, and
whether the output of each task is, tuple by tuple and id by id, what the same input gives when nothing moves (counted
by plain Python from what was sent).

With --plain the same query is run by plain Python instead of Spark (`tests.load.plain_engine`), for machines that have
no room for four JVMs; everything else is the same.

    python -m benches.bpm_prototype [--phase 25] [--picture loads.html] [--plain]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import msgspec
from tests.load.federation import SECOND, Federation, Owner, plainly

from benches.report import console, finish, table
from holdfast.clock import now_us, pause
from holdfast.load.history import Movement, Sample
from holdfast.load.load_picture import write_load_picture

PRICE, LOWER, MARGIN = 6.25, 1.5, 0.05
#: A batch per bucket and task: with shorter ones seven queries of Spark leave nothing of two cores for a fourth JVM.
BUCKET = "4s"
#: What a row costs, in microseconds of a core of the contracts.
US_PER_ROW = 1000
UTAH, MIT = [f"utah{n}" for n in range(1, 5)], [f"mit{n}" for n in range(1, 4)]
HOMES = {"node0": UTAH, "node1": MIT[:2], "node2": MIT[2:], "node3": []}
#: What each trace asks for in each phase, in cores.
PHASES: list[tuple[str, dict[str, float]]] = [
    ("steady", {**dict.fromkeys(UTAH, 0.12), **dict.fromkeys(MIT, 0.10)}),
    ("utah rises", dict.fromkeys(UTAH, 0.18)),
    ("utah rises again", dict.fromkeys(UTAH, 0.24)),
    ("two traces of utah rise on", {"utah3": 0.40, "utah4": 0.40}),
    ("mit has a spike", {"mit1": 0.20, "mit2": 0.20}),
    ("the spike is over", {"mit1": 0.10, "mit2": 0.10}),
]
_SETTINGS = f"measure: rows\nus_per_row: {US_PER_ROW}\ninterval: 4s\nanswer: 2s\nmargin: {MARGIN}\npatience: 300s"


def owners() -> list[Owner]:
    known = ["node0", "node1", "node2"]
    found = []
    for name in known:
        contracts = [f"{way}: {other}, price: {PRICE}, period: 15s" for other in known if other != name
                     for way in ("to", "from")]  # fmt: skip
        if name == "node2":
            contracts.append(f"to: node3, price: {LOWER}, period: 15s")
        found.append(Owner(name, HOMES[name], contracts, _SETTINGS))
    larger = f"capacity: {{cpu: 2.0}}\n{_SETTINGS}"  # So that it takes a task of any size at that price.
    found.append(Owner("node3", [], [f"from: node2, price: {LOWER}, period: 15s"], larger))
    return found


def meet(one: str, other: str) -> bool:
    """Node 3 knows node 2 alone."""
    return "node3" not in (one, other) or "node2" in (one, other)


def loads(federation: Federation, names: list[str]) -> dict[str, dict[str, Any]]:
    return {name: said for name in names if (said := federation.ask(name)) is not None}


def runs_at_the_fourth(federation: Federation) -> bool:
    said = federation.ask("node2")
    return said is not None and any(task["at"] == "node3" for task in said["tasks"])


def overloaded(said: dict[str, Any]) -> bool:
    """Whether it would pay to be rid of a task at the price of the contracts."""
    limit = PRICE * (1 + MARGIN)
    return any(t["usage"]["cpu"] > 0.01 and t["marginal"] / t["usage"]["cpu"] > limit for t in said["tasks"])


def run(folder: Path, phase_s: float, plain: bool) -> dict[str, Any]:
    federation = Federation(folder, owners(), bucket=BUCKET, meet=meet, plain=plain)
    first = ["node0", "node1", "node2"]
    rows: list[list[object]] = []
    acceptable = []
    ends: list[int] = []

    def note(what: str, names: list[str]) -> None:
        said = loads(federation, names)
        over = [name for name, one in said.items() if overloaded(one)]
        ends.append(now_us())
        acceptable.append(not over or len(over) == len(said))
        tasks = sum(len([t for t in one["tasks"] if t["at"] == name]) for name, one in said.items())
        rows.append([what, *(f"{said[n]['load']['cpu']:.2f}" if n in said else "-" for n in HOMES), tasks,
                     "yes" if acceptable[-1] else ", ".join(over)])  # fmt: skip
        console.print(f"{what}: " + ", ".join(f"{n} {one['load']['cpu']:.2f}" for n, one in said.items()))

    try:
        for name, rate in PHASES[0][1].items():
            federation.sources[name].rate = rate * 1e6 / US_PER_ROW
        federation.start(*first)
        for name in first:
            for stream in HOMES[name]:
                federation.wait(lambda n=name, s=stream: federation.runs_at(n, f"counts-{s}") == n, f"{stream} to run")
        for what, change in PHASES:
            for name, rate in change.items():
                federation.sources[name].rate = rate * 1e6 / US_PER_ROW
            pause(round(phase_s * SECOND))
            note(what, first)
        federation.start("node3")
        joined = now_us()
        # A JVM more has to start before anything can move there.
        while now_us() - joined < 6 * phase_s * SECOND and not runs_at_the_fourth(federation):
            pause(SECOND)
        pause(round(phase_s / 2 * SECOND))
        note("a fourth has joined", list(HOMES))
        equal = check(federation)
        lines = [line for name in HOMES for line in history(federation, name)]
    finally:
        federation.end()
    return {"rows": rows, "acceptable": acceptable, "equal": equal, "lines": lines, "ends": ends}


def check(federation: Federation) -> int:
    """How many tasks have the output of one that never moved."""
    equal = 0
    for name, streams in HOMES.items():
        for stream in streams:
            federation.finish(name, f"counts-{stream}")
            same = plainly(federation.results(name, f"counts-{stream}")) == federation.sources[stream].expected()
            equal += same
            if not same:
                console.print(f"[red]counts-{stream} differs")
    return equal


def history(federation: Federation, name: str) -> list[Sample | Movement]:
    body = federation.client(name).call("GET", "/v1/load/history")
    return msgspec.json.decode(body, type=list[Sample | Movement])


def detail(found: dict[str, Any], moves: list[Movement], began_us: int) -> dict[str, object]:
    """Figure 7-9: loads over time, every fourth second, and the movements."""
    loads: dict[str, list[tuple[float, float]]] = {name: [] for name in HOMES}
    for line in sorted((s for s in found["lines"] if isinstance(s, Sample)), key=lambda s: s.at_us):
        at, mine = round((line.at_us - began_us) / SECOND, 1), loads[line.participant]
        if not mine or at - mine[-1][0] >= 4:
            mine.append((at, round(line.cpu, 3)))
    went = [[round((m.at_us - began_us) / SECOND, 1), m.task, m.source, m.target, m.back] for m in moves]
    return {"loads": loads, "moves": went,
            "phase_ends": [round((at - began_us) / SECOND, 1) for at in found["ends"]],
            "phases_shown": found["rows"]}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--phase", type=float, default=25.0, help="seconds of each phase")
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--keep", type=Path, help="a new folder for the hosts' files and logs, which stay there")
    parser.add_argument("--plain", action="store_true")
    asked = parser.parse_args()
    if asked.keep is not None:
        asked.keep.mkdir(parents=True)
    with tempfile.TemporaryDirectory() if asked.keep is None else nullcontext(asked.keep) as folder:
        found = run(Path(folder), asked.phase, asked.plain)
    moves = [line for line in found["lines"] if isinstance(line, Movement)]
    moves.sort(key=lambda move: move.at_us)
    began = min(line.at_us for line in found["lines"])
    table("Loads at the end of each phase", ["phase", *HOMES, "tasks", "acceptable"], found["rows"])
    table("Movements", ["after, s", "task", "from", "to", "price", "took, s"],
          [[(m.at_us - began) / SECOND, m.task, m.source, m.target + (" (back)" if m.back else ""), m.price,
            m.took_us / SECOND] for m in moves])  # fmt: skip
    if asked.picture is not None:
        write_load_picture(asked.picture, found["lines"], "The prototype experiment (003 §7.3)")
    finish(
        "bpm_prototype", detail=detail(found, moves, began),
        engine="plain" if asked.plain else "spark", movements=len(moves),
        acceptable_phases=sum(found["acceptable"]), phases=len(found["acceptable"]),
        outputs_equal=found["equal"], outputs=7, moved_to_the_fourth=sum(m.target == "node3" for m in moves),
        move_s_median=round(statistics.median([m.took_us / SECOND for m in moves]), 2) if moves else None,
    )  # fmt: skip


if __name__ == "__main__":
    main()
