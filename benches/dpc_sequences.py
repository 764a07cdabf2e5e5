"""What a client sees of one failure, of two at once, and of one during a recovery: figures 5-4 and 5-6 of 003.

A node passes three inputs on (the union of figure 5-5). Three acts, with everything corrected and calm in between:

- single: one input is cut off and comes back (5-4);
- overlapping: input 1 is cut off, then input 3; 1 comes back first, then 3 (5-6 a);
- during recovery: input 1 is cut off; in the moment in which it comes back, input 3 is cut off (5-6 b).

Written down is what comes when: by buckets, stable or tentative, and each UNDO and REC_DONE. Checked is what the text
says: nothing is corrected before all failures have healed, every correction ends with REC_DONE, no stable tuple comes
twice, and in the end nothing is tentative.

    python -m benches.dpc_sequences [--quick]
"""

from __future__ import annotations

import argparse
import tempfile
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

import holdfast
from benches.report import finish, table
from holdfast.clock import monotonic_us, now_us, pause
from holdfast.demo.failure import JAVA_OPTIONS
from holdfast.demo.monitors import COLUMNS, MONITORS, Monitor
from holdfast.host.embedded import Running
from holdfast.model.time import SECOND_US
from holdfast.model.tuples import TupleType
from holdfast.spark.engine import node_session

BUCKET = "250ms"
DELAY = "2s"
_LAG_US = 1_500_000
_POLL_US, _CALM_US, _PATIENCE_US = 20_000, 3 * SECOND_US, 90 * SECOND_US
FIRST, LAST = MONITORS[0], MONITORS[-1]


class Client(threading.Thread):
    """A subscriber who writes down kinds, stimes and arrivals."""

    def __init__(self, stream: holdfast.Stream) -> None:
        super().__init__(name="client", daemon=True)
        self._subscriber = stream.subscribe(start="live", tentative=True)
        self._end = threading.Event()
        self.seen: list[tuple[int, str, int]] = []
        """(arrival, kind, stime), a line for each kind and bucket that came at once."""
        self.stable: dict[int, int] = {}
        """Stable tuples by id, and how often each came."""
        self.tentative_left, self.lag_us = 0, 0
        self.trouble: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            while not self._end.wait(_POLL_US / 1e6):
                for batch in self._subscriber.poll():
                    self._take(batch, now_us())
        except BaseException as error:
            self.trouble = error
        finally:
            self._subscriber.close()

    def _take(self, batch: pa.RecordBatch, at_us: int) -> None:
        kinds, ids = (batch.column(name).to_pylist() for name in ("tuple_type", "tuple_id"))
        stimes = batch.column("stime").cast(pa.int64()).to_pylist()
        for kind, number, stime in zip(kinds, ids, stimes, strict=True):
            name = TupleType(kind).name
            if name == "UNDO":
                self.tentative_left = 0
            elif name == "TENTATIVE":
                self.tentative_left += 1
            elif name == "INSERTION":
                self.stable[number] = self.stable.get(number, 0) + 1
                self.lag_us = at_us - stime
            cell = (at_us, name, (stime or 0) // 250_000 * 250_000)
            if not self.seen or self.seen[-1] != cell:
                self.seen.append(cell)

    def end(self) -> None:
        self._end.set()
        self.join()


def passed_on(connections: DataFrame) -> DataFrame:
    return connections.select("stime", "source", "bytes")


def wait_until_calm(running: Running, client: Client) -> None:
    """Everything is corrected, and has been for a while."""
    deadline, since = monotonic_us() + _PATIENCE_US, monotonic_us()
    while monotonic_us() < min(deadline, since + _CALM_US):
        if client.trouble is not None:
            raise client.trouble
        late = client.lag_us > _LAG_US  # What the start of Spark has left to do would look like a failure's delay.
        if late or client.tentative_left or any(r["state"] != "STABLE" for r in running.status()["replicas"]):
            since = monotonic_us()
        pause(_POLL_US)


def act(running: Running, client: Client, script: list[tuple[float, str, str]]) -> dict[str, Any]:
    """Cut and heal by the script (seconds, verb, input); what the client saw, from two seconds before."""
    pause(2 * SECOND_US)
    begun, marks = now_us(), []
    for at_s, verb, name in script:
        pause(max(0, begun + round(at_s * SECOND_US) - now_us()))
        (running.fail if verb == "cut" else running.heal)(name)
        marks.append([round((now_us() - begun) / SECOND_US, 2), f"{verb} {name}"])
    wait_until_calm(running, client)
    mine = [(at, kind, stime) for at, kind, stime in client.seen if at >= begun - 2 * SECOND_US]
    points: dict[str, list[list[float]]] = {}
    for at, kind, stime in mine:
        y = 0.0 if kind in ("UNDO", "REC_DONE") else round((stime - begun) / SECOND_US, 2)
        points.setdefault(kind, []).append([round((at - begun) / SECOND_US, 2), y])
    healed = max(at for at, text in marks if text.startswith("heal"))
    undo = [at for at, _ in points.get("UNDO", [])]
    done = [at for at, _ in points.get("REC_DONE", [])]
    return {"points": points, "marks": marks, "undo_s": undo, "rec_done_s": done, "healed_s": healed,
            "first_tentative_s": min((at for at, _ in points.get("TENTATIVE", [])), default=None)}  # fmt: skip


def scripts(quick: bool) -> dict[str, list[tuple[float, str, str]]]:
    t = 4.0 if quick else 6.0
    return {
        "single": [(0, "cut", LAST), (2 * t, "heal", LAST)],
        "overlapping": [(0, "cut", FIRST), (t, "cut", LAST), (2 * t, "heal", FIRST), (3 * t, "heal", LAST)],
        "during recovery": [(0, "cut", FIRST), (t + 2, "heal", FIRST), (t + 2, "cut", LAST), (2 * t + 4, "heal", LAST)],
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benches.dpc_sequences", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="shorter failures")
    given = parser.parse_args()
    spark = node_session("bench-dpc-sequences", spark_driver_extraJavaOptions=JAVA_OPTIONS)
    spark.sparkContext.setLogLevel("OFF")
    found: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(dir=".", prefix=".bench-") as scratch:
        root = Path(scratch).absolute()
        store = holdfast.open(root)
        monitors = [Monitor(store.create(name, COLUMNS, bucket=BUCKET), n) for n, name in enumerate(MONITORS)]
        for monitor in monitors:
            monitor.start()
        app = holdfast.App("sequences", root=root)
        app.node(inputs=MONITORS, name="union", max_delay=DELAY)(passed_on)
        try:
            with app.start(spark=spark) as running:
                running.wait_until_stable("90s")
                client = Client(store.open("union"))
                try:
                    wait_until_calm(running, client)
                    for name, script in scripts(given.quick).items():
                        found[name] = act(running, client, script)
                finally:
                    client.end()
        finally:
            for monitor in monitors:
                monitor.end()
    spark.stop()
    twice = sum(1 for times in client.stable.values() if times > 1)
    table("what a client saw", ["", "first tentative, s", "last healed, s", "UNDO, s", "REC_DONE, s"],
          [[name, str(f["first_tentative_s"]), f["healed_s"], str(f["undo_s"]), str(f["rec_done_s"])]
           for name, f in found.items()])  # fmt: skip
    finish("dpc_sequences", stable_twice=twice, stable=len(client.stable), tentative_left=client.tentative_left,
           corrections={name: len(f["undo_s"]) for name, f in found.items()},
           detail={"acts": found, "delay_s": 2.0})  # fmt: skip


if __name__ == "__main__":
    main()
