"""Twins of a node of Holdfast's own operators that take turns in correcting (D1, D3, D5, D9, D11).

HOLDFAST_NODE_FAULTS=10 runs the failure ten times; without it, once.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast.clock import pause
from holdfast.console.verdict import all_corrected, none_after_done
from holdfast.model.time import SECOND_US
from tests.faults.deployment import Client, Hosts
from tests.faults.trial import Trial

RUNS = int(os.environ.get("HOLDFAST_NODE_FAULTS", "1"))
LONG_S = 8.0
TWINS = ("u1", "u2")
WINDOW_US = 2 * SECOND_US

APP = """
import holdfast
from holdfast.operators import count, sum_, time_window
from holdfast.spark import flow_of

app = holdfast.App("twins")

@app.node(inputs=["m1", "m2"], max_delay="4s", keepalive="200ms", stabilise="stagger", replicas=2)
def counts(c):
    return flow_of(c).aggregate(count(), sum_("bytes"), window=time_window("2s"), by="source")
"""
pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.timeout(900)]


class States(threading.Thread):
    """Looks whether both twins correct at the same time, and who does at all."""

    def __init__(self, hosts: Hosts) -> None:
        super().__init__(name="states", daemon=True)
        self._hosts, self._end = hosts, threading.Event()
        self.seen: set[str] = set()
        self.both = 0

    def run(self) -> None:
        while not self._end.wait(0.1):
            first, other, again = (self._corrects(host) for host in (*TWINS, TWINS[0]))
            self.seen |= {host for host, corrects in zip(TWINS, (first, other), strict=True) if corrects}
            self.both += first and other and again

    def _corrects(self, host: str) -> bool:
        replica = self._hosts.replica(host)
        return replica is not None and replica.state == "STABILIZATION"

    def end(self) -> None:
        self._end.set()
        self.join()


def counted(hosts: Hosts) -> Counter[tuple[str, int, int]]:
    """What the windows of all that was sent hold, in plain Python."""
    number: Counter[tuple[int, str]] = Counter()
    total: Counter[tuple[int, str]] = Counter()
    for feed in hosts.feeds.values():
        for at_us, first, rows in feed.sends:
            for k in range(first, first + rows):
                number[at_us // WINDOW_US, f"s{k % 7}"] += 1
                total[at_us // WINDOW_US, f"s{k % 7}"] += k
    return Counter((source, n, total[window, source]) for (window, source), n in number.items())


def written(hosts: Hosts, host: str) -> list[pa.RecordBatch]:
    found: list[pa.RecordBatch] = []
    with hosts.store(host).open("counts").subscribe(start="beginning") as subscriber:
        while not subscriber.finished:
            found += subscriber.poll()
    return found


def test_twins_take_turns_in_correcting_while_news_keep_coming(tmp_path: Path) -> None:
    def listen(hosts: Hosts) -> dict[str, Client]:
        return {"counts": hosts.listen_to_all("counts", "u1")}

    hosts = Hosts(tmp_path, APP, "1s", ["m1", "m2"], {"counts": list(TWINS)})
    trial = Trial(hosts, TWINS, listen)
    try:
        for _ in range(RUNS):
            states = States(hosts)
            with trial.failure("m1 cut off from both twins") as outcome:
                for twin in TWINS:
                    hosts.cut(f"m1>{twin}", twin)
                pause(round(LONG_S * SECOND_US))
                states.start()
                for twin in TWINS:
                    hosts.heal(f"m1>{twin}", twin)
            states.end()
            assert outcome.tentative["counts"] > 0
            assert states.seen, "somebody corrects"
            assert states.both == 0, "D11: who lets the other go first does not correct meanwhile"
        trial.finish()
        recording = trial.clients["counts"].recording
        assert all(check.passed for check in (all_corrected(recording), none_after_done(recording)))
        first, second = (pa.Table.from_batches(written(hosts, twin)) for twin in TWINS)
        assert first.equals(second), "D9"
        rows = [row for row in first.to_pylist() if row["source"] is not None]
        assert Counter((row["source"], row["count"], row["sum_bytes"]) for row in rows) == counted(hosts), "D1"
    finally:
        hosts.end()
