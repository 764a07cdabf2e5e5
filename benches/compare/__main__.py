"""One of three inputs falls silent for 20 s and comes back: what did a client have at every moment?

The same files go to each contender, one after another (or a few together), with the same windowed count. Writes
docs/compare.md and its pictures; the last line is JSON.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benches.compare.contenders import CONTENDERS, Contender, install
from benches.compare.judge import Figures
from benches.compare.machine import BUSY_MAX, wait_until_quiet
from benches.compare.page import DEADLINE_S, write_page
from benches.compare.records import Record, absent, keep, kept, record_of
from benches.compare.run import HOME, Failed, run
from benches.compare.workload import Plan
from benches.report import console, finish, table


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benches.compare", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--only", help="run these contenders (names with commas); the others are as they were last")
    parser.add_argument("--draw", action="store_true", help="run nothing; make the page from what was kept")
    parser.add_argument("--environments", type=Path, default=HOME / ".compare",
                        help="where the peers' environments are, or are made (default .compare)")  # fmt: skip
    parser.add_argument("--kept", type=Path, default=HOME / "out" / "compare",
                        help="where what each contender said is kept (default out/compare)")  # fmt: skip
    parser.add_argument("--docs", type=Path, default=HOME / "docs", help="where to write the page (default docs)")
    parser.add_argument("--tries", type=int, default=3, help="so often at most, beside others (default 3)")
    parser.add_argument("--together", type=int, default=1,
                        help="run so many at once; for each, the others count as other work (default 1)")  # fmt: skip
    parser.add_argument("--patience", type=float, default=60,
                        help="wait so many seconds for a quiet machine; then it is taken as it is, and the page says "
                        "how busy it was (default 60)")  # fmt: skip
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # Contenders end with us.
    names = [contender.name for contender in CONTENDERS]
    chosen = [] if given.draw else given.only.split(",") if given.only else names
    if strangers := set(chosen) - set(names):
        parser.error(f"--only must name some of {', '.join(names)}; got {', '.join(sorted(strangers))}")
    plan = Plan()
    (given.docs / "img").mkdir(parents=True, exist_ok=True)

    def one(contender: Contender) -> None:
        record = quietest(contender, plan, given.environments, given.tries, given.patience)
        keep(given.kept, contender.name, plan, record)

    with ThreadPoolExecutor(given.together) as pool:
        list(pool.map(one, mixed([contender for contender in CONTENDERS if contender.name in chosen])))
    records = {name: kept(given.kept, name, plan) or absent("it was not run yet") for name in names}
    figures, left_out = write_page(given.docs, records, plan)
    table(f"rows of the result, due {DEADLINE_S:g} s after their window", ["", *Figures._fields],
          [[name, *f] for name, f in figures.items()])  # fmt: skip
    for name, reason in left_out.items():
        console.print(f"{name} is missing: {reason}")
    finish("compare", **{name: f._asdict() for name, f in figures.items()}, left_out=left_out)


def mixed(contenders: Sequence[Contender]) -> list[Contender]:
    """One of each system in turn, so that those that run together are not all of the heaviest."""
    seen: Counter[str] = Counter()
    turns = []
    for contender in contenders:
        turns.append(seen[contender.module])
        seen[contender.module] += 1
    return [contenders[n] for n in sorted(range(len(contenders)), key=turns.__getitem__)]


def quietest(contender: Contender, plan: Plan, environments: Path, tries: int, patience_s: float) -> Record:
    """A run beside which little else ran, or the best of some."""
    if contender.peer is not None and (reason := install(contender.peer, environments)) is not None:
        return absent(reason)
    runs: list[Record] = []
    while len(runs) < tries and not (runs and runs[-1].elsewhere <= BUSY_MAX):
        wait_until_quiet(patience_s)
        console.print(f"{contender.name}: {plan.stopped_at_s} s …")
        try:
            runs.append(record_of(run(contender, plan, environments)))
        except Failed as failure:
            return absent(str(failure))
        console.print(f"  others took {runs[-1].elsewhere:.0%} of the machine")
    return min(runs, key=lambda record: record.elsewhere)


if __name__ == "__main__":
    main()
