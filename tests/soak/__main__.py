"""Real Spark with random failures and load for an hour: nothing grows, and the results are those of a plain batch.

    make soak SOAK_MINUTES=60         or: python -m tests.soak --minutes 60 --seed 1

Ends with a table and one line of JSON; fails if something grew by 5 % or more between the second and the last quarter,
or if one result differs.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import median

from holdfast.clock import monotonic_us
from holdfast.model.time import SECOND_US
from tests.faults.trial import Trial
from tests.soak import samples
from tests.soak.samples import (
    GROWTH_MAX,
    HEAP_EVERY,
    BatchTimes,
    Sample,
    bytes_below,
    growth,
    live_heap,
    process_sizes,
)
from tests.soak.workload import Faults, deployed, expected, results

_EVERY_S = 5.0
#: Killed again and again, so its processes are younger than the soak: shown, and not judged.
KILLED = "b"


class Sampler(threading.Thread):
    """Looks every few seconds, whatever else happens."""

    def __init__(self, trial: Trial) -> None:
        super().__init__(name="sampler", daemon=True)
        self._hosts, self._end = trial.hosts, threading.Event()
        nodes = {"sums": "a", "counts": "b"}
        self._batches = {
            node: BatchTimes(trial.hosts.folder / host / ".holdfast" / "nodes" / node) for node, host in nodes.items()
        }
        self.samples: list[Sample] = []
        self.whole = False

    def run(self) -> None:
        while not self._end.wait(_EVERY_S):
            self.samples.append(self._sample())
            if len(self.samples) % HEAP_EVERY == 0:
                for host in set(self._hosts.names) - {KILLED}:
                    self.samples[-1] |= live_heap(host, self._hosts.pid(host))
        self.whole = True

    def _sample(self) -> Sample:
        found: Sample = {}
        for host in self._hosts.names:
            pid = self._hosts.pid(host)
            found |= {} if pid is None else process_sizes(host, pid)
            kept = [self._hosts.folder / host / "counts"] if host == "b" else []
            found[f"{host}: disk, MB"] = bytes_below(self._hosts.folder / host, kept) / (1 << 20)
        for node, times in self._batches.items():
            if new := times.new():
                found[f"{node}: batch, ms"] = median(new)
        return found

    def end(self) -> None:
        self._end.set()
        self.join()
        if not self.whole:
            raise RuntimeError("the sampler died: nothing can be said about what grew")


def judged(key: str) -> bool:
    """Whether a series must be flat."""
    return samples.judged(key) and not key.startswith(f"{KILLED} ")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="holdfast-soak-") as folder:
        trial = deployed(Path(folder))
        try:
            return soak(trial, chosen.minutes, chosen.seed)
        finally:
            trial.hosts.end()


def soak(trial: Trial, minutes: float, seed: int) -> int:
    begun, sampler, faults = monotonic_us(), Sampler(trial), Faults(trial, seed)
    sampler.start()
    while monotonic_us() - begun < minutes * 60 * SECOND_US:
        faults.one()
    sampler.end()
    trial.finish()
    got, wanted = results(trial.hosts), expected(trial.hosts)
    found = growth(sampler.samples)
    grown = {key: round(more, 3) for key, (_, _, more) in found.items() if judged(key) and more >= GROWTH_MAX}
    notes = {key: "  (killed)" for key in found if key.startswith(f"{KILLED} ")} | dict.fromkeys(grown, "  GROWN")
    print("", samples.table(found, notes), sep="\n")
    print(f"\nfailures: {dict(faults.done)}; settled after {median(faults.settled_s):.1f} s, at most"
          f" {max(faults.settled_s):.1f} s")  # fmt: skip
    client = trial.clients["counts"].recording
    print(json.dumps({
        "bench": "soak", "minutes": round((monotonic_us() - begun) / 6e7, 1), "seed": seed,
        "failures": sum(faults.done.values()), "sent": sum(feed.sent for feed in trial.hosts.feeds.values()),
        "results": len(got), "tentative": client.tentative, "equal": got == wanted, "grown": grown,
        "at": time.strftime("%Y-%m-%d"),
    }), flush=True)  # fmt: skip
    if got != wanted:
        first = next((pair for pair in zip(got, wanted, strict=False) if pair[0] != pair[1]), None)
        print(f"{len(got)} results, {len(wanted)} expected; the first that differ: {first}", file=sys.stderr)
    return 1 if grown or got != wanted else 0


if __name__ == "__main__":
    sys.exit(main())
