"""Runs all tests and says what was checked: `make test`, or `python -m tests.suite [PHASE…] [--OPTION OF PYTEST…]`.

Rules:
1. Three tests at a time on two cores, since one of them always waits for a bucket, a JVM or a peer (the phase
   `together`). Those that measure delays (marked `alone`) come last, one by one; `beside` them, in the time that they
   leave, what only computes. `extended` is left to `make test-extended` (tests/suite/order.py).
2. A failure is a failure. Only a test marked `alone` may be run again, because it measures real time on a machine that
   may not be ours alone; each second run is listed at the end, and more than two tests that need one fail the run.
3. A worker that died is a failure, whatever the tests on it said.
4. At the end stands a table of promises: how many tests of each were run, how many were skipped, and why.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import IO, NamedTuple

from tests.suite.class_archive import SharedClasses
from tests.suite.order import BESIDE, EXTENDED, TESTS
from tests.suite.promises import promises
from tests.suite.record import Record, read_records

#: A file for a worker, in an order of our own (tests/suite/order.py).
_BY_FILE = ("--dist", "loadfile", "--no-loadscope-reorder")
PHASES = {
    "together": ["-n", "3", *_BY_FILE],
    "beside": ["-n", "2", *_BY_FILE],
    "alone": [],
    "extended": ["-n", "2", *_BY_FILE],
}


def _words(phase: str) -> list[str]:
    """For pytest, with the files that have the tests, where they are known: to look into all takes ten seconds."""
    words = ["-p", "tests.suite.order", f"--phase={phase}", *PHASES[phase]]
    if phase == "alone":
        files = [file for file in sorted(Path("tests").rglob("test_*.py")) if "mark.alone" in file.read_text()]
        return words + [str(file) for file in files]
    known = {"beside": BESIDE, "extended": EXTENDED}.get(phase, ())
    return words + [str(TESTS / path) for path in known if Path.cwd() in TESTS.parents]


#: More than this many tests that fail at first are no accident of timing.
AGAIN_MAX = 2
#: Files that are named for the time they take.
_LONGEST = 20
#: What pytest returns if all tests passed, if some failed, and if it was left with none.
PASSED, FAILED, NONE = 0, 1, 5


class _Started(NamedTuple):
    """A run of pytest under way."""

    phase: str
    record: Path
    begun: float
    process: subprocess.Popen[bytes]


class Suite:
    """The runs of pytest so far, and what they found."""

    def __init__(self, options: Sequence[str], folder: Path, *, whole: bool) -> None:
        self._options, self._folder, self.whole = list(options), folder, whole
        self.records: dict[str, Record] = {}
        self.again: list[Record] = []
        self.trouble: list[str] = []
        self.seconds: dict[str, float] = {}
        self._begun = time.monotonic()

    @property
    def took_s(self) -> float:
        return time.monotonic() - self._begun

    def run(self, phase: str) -> None:
        """One phase; then what may be run again."""
        self._finish(self._start(phase, _words(phase)))
        self._run_again(phase)

    def run_beside(self, phase: str, beside: str) -> None:
        """The same, and another phase in the time that it leaves, which is told when both are done."""
        with open(self._folder / "said", "w+") as said:
            started = self._start(beside, _words(beside), said)
            try:
                self.run(phase)
                self._finish(started)
            finally:  # Whoever is interrupted leaves nothing running.
                if started.process.poll() is None:
                    started.process.terminate()
            print(said.seek(0) or said.read(), flush=True)

    def _run_again(self, phase: str) -> None:
        failed = [record for record in self.records.values() if record.outcome == "failed" and record.alone]
        if phase == "alone" and failed:
            self._second_runs(failed)

    def _second_runs(self, failed: list[Record]) -> None:
        if len(failed) > AGAIN_MAX:
            self.trouble.append(f"{len(failed)} tests marked alone failed; at most {AGAIN_MAX} may be run again")
            return
        self.again = failed
        self._finish(self._start("again", [record.test for record in failed]))

    def _start(self, name: str, words: Sequence[str], out: IO[str] | None = None) -> _Started:
        """With `out` it says everything there, and has the processors when nobody else wants them."""
        file = self._folder / name
        print(f"\n== {name}", file=out, flush=True)
        command = [sys.executable, "-m", "pytest", "-p", "tests.suite.record", f"--record={file}"]
        begun, idly = time.monotonic(), [] if out is None else ["nice", "-n", "19"]
        process = subprocess.Popen([*idly, *command, *self._options, *words], stdout=out, stderr=out)
        return _Started(name, file, begun, process)

    def _finish(self, started: _Started) -> None:
        name, file, begun, process = started
        code = process.wait()
        self.seconds[name] = time.monotonic() - begun
        if code not in (PASSED, FAILED, NONE):
            self.trouble.append(f"pytest ended with {code} in the phase {name}")
        for record in read_records(file):
            if record.test:
                self.records[record.test] = record
            else:
                self.trouble.append(record.why)

    @property
    def failed(self) -> list[Record]:
        return [record for record in self.records.values() if record.outcome == "failed"]


def promise_table(records: Sequence[Record], *, whole: bool = True) -> list[str]:
    """A line for each promise, and one more for each reason to have skipped a test of it. If it was not the `whole`
    suite, those that it says nothing of are left out."""
    lines = [f"{'promise':72} {'run':>5} {'skipped':>8}"]
    for label, sentence in promises().items():
        own = [record for record in records if label in record.labels]
        skipped = [record for record in own if record.outcome == "skipped"]
        run = len(own) - len(skipped)
        if not own and not whole:
            continue
        said = f"{label:3} {sentence}"
        said = said if len(said) <= 72 else said[:71] + "…"
        lines.append(f"{said:72} {run:5} {len(skipped):8}" + ("" if run else "  NOT CHECKED"))
        lines += [f"{'':6}{count} skipped: {why}" for why, count in Counter(r.why for r in skipped).most_common()]
    return lines


def longest(records: Sequence[Record]) -> str:
    """The files that took longest, for whoever looks for time."""
    spent: Counter[str] = Counter()
    for record in records:
        spent[record.test.partition("::")[0].removeprefix("tests/")] += record.seconds  # type: ignore[assignment]
    return "seconds of the longest files: " + ", ".join(f"{file} {s:.0f}" for file, s in spent.most_common(_LONGEST))


def report(suite: Suite) -> list[str]:
    """What is said at the end, after everything that pytest has said."""
    records = list(suite.records.values())
    counts = Counter(record.outcome for record in records)
    spent = ", ".join(f"{name} {seconds / 60:.1f}" for name, seconds in suite.seconds.items())
    lines = ["", *promise_table(records, whole=suite.whole), "", longest(records)]
    lines += [f"run again: {r.test} ({r.why}): {suite.records[r.test].outcome} the second time" for r in suite.again]
    lines += [f"FAILED {record.test} ({record.why})" for record in suite.failed]
    lines += [f"FAILED {what}" for what in suite.trouble]
    lines.append(
        f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped, {len(suite.again)} run"
        f" again; minutes: {spent}; in all {suite.took_s / 60:.1f}"
    )
    return lines


def main(words: Sequence[str]) -> int:
    phases = [word for word in words if not word.startswith("-")]
    if unknown := set(phases) - set(PHASES):
        print(f"phases are {', '.join(PHASES)}; got {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    # Hundreds of processes import what is tested, and some workers all tests: it is compiled once.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    classes = SharedClasses()
    with tempfile.TemporaryDirectory(prefix="holdfast-suite-") as folder:
        suite = Suite([word for word in words if word.startswith("-")], Path(folder), whole=not phases)
        if phases:
            for phase in phases:
                suite.run(phase)
        else:
            suite.run("together")
            classes.close()  # Nothing that does not give way may run beside the others.
            suite.run_beside("alone", "beside")
    classes.close()
    if not suite.records:
        suite.trouble.append("no test was run")
    print("\n".join(report(suite)), flush=True)
    return 1 if suite.failed or suite.trouble else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
