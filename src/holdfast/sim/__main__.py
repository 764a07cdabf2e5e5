"""Command line of the simulator: `python -m holdfast.sim --help` teaches it."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from contextlib import ExitStack
from dataclasses import asdict

from holdfast.sim.faults import PROFILES, Plan, draw
from holdfast.sim.many import Totals, run_many
from holdfast.sim.planted import BUGS, planted
from holdfast.sim.run import run_plan
from holdfast.sim.shrink import active, shrink

_EPILOG = """
what it does
  Each schedule is a diagram of three sources, two chained nodes of two replicas each and a client, under virtual time.
  Faults strike for the first seconds (crashes, some of which take the disk with them, pauses, hanging queries, cuts,
  one-way cuts, partitions, slow links, lost and repeated messages, silent sources; many of them wait for a replica to
  be recovering or stabilising), then
  everything is healed. In some schedules nothing fails at all, and nobody may suspect anything.
  Readers on the machines of the last replicas follow the output as it lies on disk, too.
  Checkers D1 to D17 (docs/promises.md) judge every step, those of replicas that are rebuilt from their twins (D18)
  included; the world must settle in bounded time.

examples
  python -m holdfast.sim --seconds 60             as many schedules as a minute allows, on all cores
  python -m holdfast.sim --schedules 200          a fixed number: repeatable, whatever the machine
  python -m holdfast.sim --seed 4711              one schedule again, with its trace
  python -m holdfast.sim --seed 4711 --shrink     the smallest fault plan that still fails
  python -m holdfast.sim --plant undo-too-far     let a known bug loose: the checkers must find it

reading the result
  The last line is JSON. `violations` must be 0. `table_rows` lists the rows of table 4.3 that were taken,
  `pairs_missing` the pairs of replica state and fault kind that were not hit, `fork_steps` how often a fork that was
  kept ready followed main, `replicas_rebuilt` how many lost their disks and went on from their twins. A violation
  prints its seed: replay it with --seed.

planted bugs
""" + "".join(f"  {name:22} {bug.label:4} {bug.text}\n" for name, bug in BUGS.items())


def many(args: argparse.Namespace) -> Totals:
    """As many schedules as asked for, on as many processes as allowed."""
    count, seconds = args.schedules, None if args.schedules is not None else args.seconds
    return run_many(args.first, count, seconds, args.processes, args.profile, args.plant)


def replay(args: argparse.Namespace) -> int:
    """One schedule again: its plan, its trace, its verdict."""
    with ExitStack() as stack:
        if args.plant:
            stack.enter_context(planted(args.plant))
        plan = draw(args.seed, args.profile)
        outcome, lines = run_plan(plan, keep=True)
        if args.shrink and outcome.violations:
            plan = shrink(plan, outcome.violations[0].label)
            outcome, lines = run_plan(plan, keep=True)
    for line in lines:
        print(line)
    describe(plan)
    for violation in outcome.violations[:20]:
        print(f"VIOLATION {violation.label} at {violation.time_us / 1e6:.3f} s: {violation.text}")
    verdict = {"seed": args.seed, "violations": len(outcome.violations), "faults": len(active(plan))}
    print(json.dumps(verdict | {"tuples": outcome.tuples, "digest": outcome.digest}))
    return 1 if outcome.violations else 0


def describe(plan: Plan) -> None:
    """The plan for people."""
    print(f"seed {plan.seed}, profile {plan.profile}")
    for key, value in asdict(plan.setting).items():
        print(f"  {key} = {getattr(value, 'value', value)}")
    for fault in active(plan):
        wait = f", when {fault.watch} is {fault.when}" if fault.when else ""
        where = " ".join(fault.targets)
        print(f"  {fault.start_us / 1e6:.3f} s: {fault.kind} {where} for {fault.length_us / 1e6:.3f} s{wait}")


def arguments() -> argparse.ArgumentParser:
    """What can be asked for."""
    parser = argparse.ArgumentParser(
        prog="python -m holdfast.sim",
        description="Simulate whole diagrams under faults and check that what must always hold does hold.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to go on (default 60)")
    parser.add_argument("--schedules", type=int, help="run so many schedules instead")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default 0)")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="default: one per core")
    parser.add_argument("--seed", type=int, help="replay this one schedule and show its trace")
    parser.add_argument("--shrink", action="store_true", help="with --seed: look for the smallest plan that fails")
    parser.add_argument("--profile", choices=tuple(PROFILES), default="", help="only this kind of schedule")
    parser.add_argument("--plant", choices=tuple(BUGS), default="", help="let a planted bug loose")
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run it."""
    args = arguments().parse_args(argv)
    if args.seed is not None:
        return replay(args)
    began = time.monotonic()
    totals = many(args)
    for seed, label, text in sorted(totals.failed)[:20]:
        print(f"VIOLATION {label}, seed {seed}: {text}")
        plant = f" --plant {args.plant}" if args.plant else ""
        print(f"  replay: python -m holdfast.sim --seed {seed} --shrink{plant}")
    print(json.dumps(totals.report(time.monotonic() - began), ensure_ascii=False))
    return 1 if totals.failed else 0


if __name__ == "__main__":
    sys.exit(main())
