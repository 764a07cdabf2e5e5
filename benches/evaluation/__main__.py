"""The report: runs the benches, draws every figure and table of the texts beside ours, and judges their statements.

    python -m benches.evaluation                      short forms of all benches, then the page (`make report`)
    python -m benches.evaluation --full               full forms; what was measured undisturbed is published, and the
                                                      README's tables are made from it
    python -m benches.evaluation --only stores,persist
    python -m benches.evaluation --draw               run nothing: draw what is there

The page is out/report/index.html, with the results beside it; published results (benches/results) fill what the run
lacks. The last line is JSON with the score.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from benches.compare.machine import Own, elsewhere, usage
from benches.evaluation import readme
from benches.evaluation.figures import Shown, score, show
from benches.evaluation.page import write_page
from benches.evaluation.registry import FIGURES
from benches.evaluation.results import publish, sources, stamp
from benches.report import console, finish, machine, table

HOME = Path(__file__).parents[2]
OUT = HOME / "out" / "report"


class Bench(NamedTuple):
    """A bench in both forms: what is added to its command, and how long it may take."""

    name: str
    short: tuple[str, ...] = ("--quick",)
    full: tuple[str, ...] = ()
    short_s: int = 480
    full_s: int = 3600


#: All that figures and the table of the README are made from.
BENCHES = (
    Bench("persist"),
    Bench("persist_scaling"),
    Bench("cec_throughput"),
    Bench("stores", ("--quick", "--part", "load,keys,rebuild")),
    Bench("word_count"),
    Bench("random_writes"),
    Bench("dpc_tradeoff", (), ("--full",), 900, 7200),
    Bench("dpc_sequences"),
    Bench("reconcile"),
    Bench("bpm_contracts", ("--runs", "50000")),
    Bench("bpm_convergence"),
    Bench("bpm_explained"),
    Bench("bpm_prototype", ("--plain", "--phase", "20"), ("--phase", "40")),
    Bench("window_join"),
    Bench("output_deviation", ("--runs", "10")),
    Bench("deviation_on_spark"),
    Bench("log_append"),
    Bench("kafka_in", ("--records", "100000", "--rounds", "1")),
    Bench("sinks", ("--rows", "100000", "--rounds", "1", "--corrected", "2000")),
    Bench("spark_read", ("--rounds", "1")),
    Bench("microbatch", ("--batches", "12")),
    Bench("batch_growth", ()),
    Bench("dpc_overhead", ("--metrics", "--rounds", "1", "--rows", "1000000"), ("--metrics",)),
    Bench("cec_recovery", ("--windows", "10000", "--periods")),
    Bench("console", ("--nodes", "50", "--pages", "5", "--seconds", "10")),
    Bench("archive", ("--gb", "0.5", "--starts", "3")),
    Bench("remote_read", ("--megabytes", "128", "--rounds", "2")),
    # Its own page is written over by a full run only.
    Bench("compare", ("--together", "3", "--tries", "1", "--docs", "out/report/compare"), (), 1800, 7200),
)
#: Those that take a folder on an NFS mount.
ON_NFS = ("word_count", "random_writes")


def run(bench: Bench, full: bool, folder: Path, nfs: Path | None = None) -> str:
    """Run it in a session of its own; what went wrong, if anything did."""
    command = [sys.executable, "-m", f"benches.{bench.name}", *(bench.full if full else bench.short)]
    if nfs is not None and bench.name in ON_NFS:
        command += ["--nfs", str(nfs)]
    console.print(f"[bold]{' '.join(['python', *command[1:]])}")
    log = folder.parent / "logs" / f"{bench.name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    before = usage()
    with log.open("w") as out:
        process = subprocess.Popen(command, cwd=HOME, stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
                                   env={**os.environ, "BENCH_RESULTS": str(folder)})  # fmt: skip
        own, others = Own(process.pid), 0.0
        until = time.monotonic() + (bench.full_s if full else bench.short_s)
        try:
            while process.poll() is None:
                if time.monotonic() > until:
                    return f"it was not done in time; {log.relative_to(HOME)} has what it said"
                others = elsewhere(before, usage(own))
                time.sleep(0.5)
        finally:
            own.end()
            process.wait()
    if process.returncode:
        return f"it ended with {process.returncode}; {log.relative_to(HOME)} has what it said"
    stamp(folder / f"{bench.name}.json", full, others)
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benches.evaluation", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--draw", action="store_true", help="run nothing")
    parser.add_argument("--only", help="benches, separated by commas")
    parser.add_argument("--nfs", type=Path, help="a folder on an NFS mount, for the benches that can use one")
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    known = [bench.name for bench in BENCHES]
    asked = given.only.split(",") if given.only else known
    if unknown := sorted(set(asked) - set(known)):
        parser.error(f"--only must name benches of the report; got {', '.join(unknown)}; there are {', '.join(known)}")
    results = given.out / "results"
    results.mkdir(parents=True, exist_ok=True)
    troubles, seconds = {}, {}
    for bench in BENCHES if not given.draw else ():
        if bench.name not in asked:
            continue
        began = time.monotonic()
        if trouble := run(bench, given.full, results, given.nfs):
            troubles[bench.name] = trouble
            console.print(f"[red]{bench.name}: {trouble}")
        seconds[bench.name] = round(time.monotonic() - began)
        console.print(f"  {seconds[bench.name]} s")
    published = publish(results) if given.full else []
    if published:
        readme.write()
    shown = [show(figure, sources(results)) for figure in FIGURES]
    found = score(shown)
    page = given.out / "index.html"
    write_page(page, shown, found, machine(), time.strftime("%Y-%m-%d"))
    _print(shown)
    console.print(f"page: {page}" + (f"; published: {', '.join(published)}" if published else ""))
    finish("evaluation", **found._asdict(), benches_failed=troubles, seconds=seconds)
    sys.exit(bool(troubles))


def _print(shown: list[Shown]) -> None:
    rows = []
    for s in shown:
        holds = [j.holds for j in s.judged]
        rows.append([f"{s.figure.text} {s.figure.number}", "yes" if s.drawn else f"no: {s.missing}", len(holds),
                     holds.count(True), holds.count(False), holds.count(None)])  # fmt: skip
    table("Figures and tables of the texts", ["", "drawn", "statements", "hold", "differ", "not measured"], rows)


if __name__ == "__main__":
    main()
