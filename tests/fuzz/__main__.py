"""Command line of the fuzzer: `python -m tests.fuzz --help` teaches it."""

from __future__ import annotations

import argparse
import json
import secrets
import sys
import threading
import time

from tests.fuzz.run import HANG_S, TARGETS, Children, Totals, child
from tests.fuzz.types import TYPES

_EPILOG = """
what it does
  Everything that comes from outside is tried with random and damaged values, each kind in a child process: rows, JSON,
  CSV, Arrow bodies and frames (inputs), records of Kafka (avro, protobuf), messages of PostgreSQL (postgres), messages
  between hosts (wire), parcels, files of a stream (logs), schema text (schema), deployments and contracts (yaml). A
  child that dies counts as a crash, one that is silent as a hang, and as wrong a value that was taken and came back
  different, or an error that is none of Holdfast's own.

examples
  python -m tests.fuzz --seconds 120                        all targets, two at a time
  python -m tests.fuzz --seconds 60 --target inputs          one of them
  python -m tests.fuzz --target inputs --seed 4711           one round again, as it was printed
  python -m tests.fuzz --values 100000                       until each type of column has had so many values

reading the result
  The last line is JSON: `tried`, `crashes`, `hangs`, `wrong`; the last three must be 0. `least_per_type` says how many
  values the type with the fewest has had.
"""

#: Of the time that there is; the doors for values deserve most of it.
_SHARES = {"inputs": 0.38, "avro": 0.07, "protobuf": 0.07, "postgres": 0.08, "wire": 0.1, "logs": 0.12,
           "parcels": 0.05, "schema": 0.07, "yaml": 0.06}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(
        "python -m tests.fuzz", epilog=_EPILOG, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60, help="how long, for all targets together (default 60)")
    parser.add_argument("--target", choices=list(TARGETS), help="only this one")
    parser.add_argument("--seed", type=int, help="play this round again; needs --target")
    parser.add_argument("--first", type=int, help="seed of the first round (default: a random one)")
    parser.add_argument("--values", type=int, help="go on until each column type has had so many values")
    parser.add_argument("--rounds", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--hang-seconds", type=float, default=HANG_S, help="silence that counts as a hang")
    parser.add_argument("--child", choices=list(TARGETS), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(args.child, args.seed, args.rounds)
        return 0
    if args.seed is not None and args.target is None:
        parser.error("--seed needs --target: seeds count per target")
    first = args.seed if args.seed is not None else args.first if args.first is not None else secrets.randbits(32)
    rounds = 1 if args.seed is not None else args.rounds
    totals = Totals()
    begun = time.monotonic()
    _run([args.target] if args.target else list(_SHARES), args, first, rounds, totals)
    while args.values and not any(totals.failures.values()) and _least(totals) < args.values:
        first += 1_000_000
        _run(["inputs"], args, first, None, totals)
    counts = {kind: len(found) for kind, found in totals.failures.items()}
    tried = sum(n for what, n in totals.tried.items() if not _is_type(what))
    said = {"tried": tried, **counts, "rounds": totals.rounds, "least_per_type": _least(totals), "first": first,
            "seconds": round(time.monotonic() - begun, 1)}  # fmt: skip
    print(json.dumps(said))
    return 1 if any(counts.values()) else 0


def _run(names: list[str], args: argparse.Namespace, first: int, rounds: int | None, totals: Totals) -> None:
    """Two workers take targets in turn; each target gets its share of their time."""
    shares = {name: _SHARES.get(name, 1.0) for name in names}
    whole = sum(shares.values())
    lanes = [
        [(name, first + 500_000 * lane, args.seconds * share / whole) for name, share in shares.items()]
        for lane in range(1 if rounds else 2)
    ]

    def work(lane: list[tuple[str, int, float]]) -> None:
        for name, seed, seconds in lane:
            Children(name, seed, totals, rounds, args.hang_seconds).run(seconds)

    threads = [threading.Thread(target=work, args=(lane,)) for lane in lanes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _is_type(what: str) -> bool:
    return what.removeprefix("inputs: ") in TYPES


def _least(totals: Totals) -> int:
    return min(totals.tried[f"inputs: {word}"] for word in TYPES)


if __name__ == "__main__":
    sys.exit(main())
