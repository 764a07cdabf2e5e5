"""Command line of the simulator of contracts: `python -m holdfast.sim.load --help` teaches it."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from contextlib import ExitStack

from holdfast.sim.load.many import run_many
from holdfast.sim.load.planted import BUGS, planted
from holdfast.sim.load.run import run
from holdfast.sim.load.scenario import HOSTILE, KINDS, draw

_EPILOG = """
what it does
  Each seed is a random graph of contracts between two to seven participants with tasks, prices and clauses. The real
  core runs at every participant, under virtual time. In half of the graphs messages are lost, late and repeated, hosts
  crash between any two effects, and movements fail; then everything is healed. Checkers B1 to B6 and B8 judge. In
  every tenth graph some participants cheat (they do not pay, pay for nothing, call movements failed, vanish,
  overcharge, forge), and X7 is judged: at an honest seller nobody runs unpaid for more than three periods.

examples
  python -m holdfast.sim.load --graphs 10000          all that is promised
  python -m holdfast.sim.load --seed 528              one graph again
  python -m holdfast.sim.load --plant never-counters  let a known bug loose: the checkers must find it

reading the result
  The last line is JSON. `violations` must be 0; `judged` says how often each invariant was put to the test.

planted bugs
""" + "".join(f"  {name:22} {bug.label:4} {bug.text}\n" for name, bug in BUGS.items())


def replay(seed: int, kind: str, plant: str) -> int:
    """One graph again, and what was found."""
    with ExitStack() as stack:
        if plant:
            stack.enter_context(planted(plant))
        scenario = draw(seed, kind)
        outcome = run(scenario)
    print(f"seed {seed}, {scenario.kind}, {'with' if scenario.faulty else 'without'} faults")
    for contract in scenario.contracts:
        clauses = "" if contract.onward else ", not further"
        clauses += "" if contract.permits is None else f", only {' '.join(contract.permits)}"
        print(f"  {contract.contract_id}: {contract.price_low:.4g} to {contract.price_high:.4g}{clauses}")
    for name, way in scenario.cheats.items():
        print(f"  {name} cheats: {way}")
    for crash in scenario.crashes:
        how = "at once" if crash.effects is None else f"after {crash.effects} more effects"
        print(f"  {crash.at_us / 1e6:.3f} s: {crash.participant} crashes {how}, for {crash.down_us / 1e6:.2f} s")
    for violation in outcome.violations[:20]:
        print(f"VIOLATION {violation.label} at {violation.time_us / 1e6:.3f} s: {violation.text}")
    print(json.dumps({"seed": seed, "violations": len(outcome.violations), "moves": outcome.moves,
                      "tasks": outcome.loads}))  # fmt: skip
    return 1 if outcome.violations else 0


def main(argv: list[str] | None = None) -> int:
    """Run it."""
    parser = argparse.ArgumentParser(
        prog="python -m holdfast.sim.load",
        description="Simulate participants under random contracts and faults, and check what must always hold.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--graphs", type=int, default=1000, help="how many (default 1000)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default 0)")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="default: one per core")
    parser.add_argument("--seed", type=int, help="only this one, in detail")
    parser.add_argument("--kind", choices=(*KINDS, HOSTILE), default="", help="only this kind of graph")
    parser.add_argument("--plant", choices=tuple(BUGS), default="", help="let a planted bug loose")
    args = parser.parse_args(argv)
    if args.graphs < 1 or args.processes < 1:
        parser.error(f"--graphs and --processes must be 1 or more; got {args.graphs} and {args.processes}")
    if args.seed is not None:
        return replay(args.seed, args.kind, args.plant)
    began = time.monotonic()
    totals = run_many(args.first, args.graphs, args.processes, args.kind, args.plant)
    for seed, label, text in sorted(totals.failed)[:20]:
        print(f"VIOLATION {label}, seed {seed}: {text}")
    print(json.dumps(totals.report(time.monotonic() - began)))
    return 1 if totals.failed else 0


if __name__ == "__main__":
    sys.exit(main())
