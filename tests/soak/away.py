"""One input is away for an hour, for real: what a convergent node keeps does not grow with the failure (003 §4.9.4).

    python -m tests.soak.away --minutes 60

A host with Spark runs windows over two sources. One of them is cut off; the other goes on, and so do tentative results.
Every few seconds memory and disk are looked at: mirrors, branch, plans, worth. Then the source comes back, and what is
stable is compared with what was sent: everything outside the hole that the output itself declares.

Ends with a table and one line of JSON; fails if something grew by 5 % or more between the second and the last quarter
(on disk: and by more than a segment, since whole segments are removed), if there was a minute without tentative
results, or if one stable result differs.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import holdfast
from holdfast.clock import monotonic_us, now_us, pause
from holdfast.model.time import SECOND_US
from holdfast.stream.holes import Hole, read_holes
from tests.faults.deployment import Client, Hosts, wait_us
from tests.faults.trial import SETTLED_S_MAX, STARTED_S_MAX
from tests.soak.samples import (
    GROWTH_MAX,
    HEAP_EVERY,
    WHOLE_HEAP,
    Sample,
    bytes_below,
    growth,
    judged,
    live_heap,
    process_sizes,
    table,
)
from tests.soak.workload import instant
from tests.spark.processes import descendants

NODE, OUTPUT, AWAY = "counts", "counts", "m2"
BUCKET_S = 5
WINDOW_US = 10 * SECOND_US
#: What is kept of an input that waits, in minutes: so little that it is given up many times within the first quarter.
CAPACITY_MIN = 2
#: Rows of a source's sends, five a second. It is about time that passes, not about load.
ROWS = 3
#: So small that segments are filled and removed within minutes.
SEGMENT_BYTES = 1 << 15
#: Disks and batches go up and down as segments are filled; a quarter of an hour has many samples at this pace.
EVERY_US = 5 * SECOND_US
#: The longest time without a tentative result: X, a window and its bucket are 20 s; beginning anew takes Spark seconds.
SILENT_S_MAX = 60.0
APPLICATION = f"""
import holdfast
from pyspark.sql import functions as F

app = holdfast.App("away")


@app.node(inputs=["m1", "m2"], max_delay="5s", keepalive="500ms", convergent="10s", capacity="{CAPACITY_MIN}m",
          full="keep_last", retain="acknowledged")
def counts(c):
    return c.groupBy(F.window("stime", "10 seconds"), "source").agg(
        F.count("*").alias("n"), F.sum("bytes").alias("bytes"))
"""


def deployed(folder: Path) -> Hosts:
    hosts = Hosts(
        folder, APPLICATION, f"{BUCKET_S}s", ("m1", AWAY), {NODE: ["a"]}, java=WHOLE_HEAP,
        retention=holdfast.Retention(acknowledged=True), segment_bytes=SEGMENT_BYTES,
    )  # fmt: skip
    for feed in hosts.feeds.values():
        feed.rows = ROWS
        feed.start()
    hosts.start()
    hosts.wait_until("STABLE", "a", seconds=STARTED_S_MAX)
    return hosts


def sample(hosts: Hosts) -> Sample:
    """Memory and disk of the host, by what they are for."""
    folder = hosts.folder / "a"
    pid = hosts.pid("a")
    found = {} if pid is None else process_sizes("a", pid)
    node, output = folder / ".holdfast" / "nodes" / NODE, folder / OUTPUT
    parts = {
        "mirrors": [node / "inputs", node / "copies"],
        "branch": [output / "tentative"],
        "worth": [output / "tentative" / "worth"],
        "plans": list(node.glob("forks/*/plan")),
        "forks": [node / "forks"],
        "holes": [output / "holes"],
        "checkpoint": [node / "checkpoint"],
        "main": [output / "main"],
    }
    for name, places in parts.items():
        found[f"a: {name}, kB"] = sum(_bytes(place) for place in places) / 1024
    found["a: disk, kB"] = bytes_below(folder) / 1024
    return found


def _bytes(place: Path) -> int:
    try:
        return bytes_below(place) if place.is_dir() else os.lstat(place).st_blocks * 512
    except OSError:
        return 0


def cpu_s(hosts: Hosts) -> float:
    """What the processes of all hosts have used so far, without those that have ended."""
    ticks = 0
    for host in hosts.names:
        pid = hosts.pid(host)
        for number in [] if pid is None else [pid, *(child for child, _ in descendants(pid, forked=True))]:
            try:
                fields = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
                ticks += sum(map(int, fields[11:15]))
            except OSError:
                continue
    return ticks / os.sysconf("SC_CLK_TCK")


def away(hosts: Hosts, client: Client, minutes: float) -> tuple[list[Sample], float]:
    """The source is cut off for so long. What was seen, and the longest time without a tentative result."""
    samples: list[Sample] = []
    hosts.cut(f"{AWAY}>a", "a")
    begun = last = monotonic_us()
    silent_us, told = 0, client.recording.tentative
    with hosts.store("a").open(OUTPUT).subscribe(name="archive") as archive:
        while (now := monotonic_us()) - begun < minutes * 60 * SECOND_US:
            if client.recording.tentative != told:
                told, last = client.recording.tentative, now
            silent_us = max(silent_us, now - last)
            samples.append(sample(hosts))
            if len(samples) % HEAP_EVERY == 0:
                samples[-1] |= live_heap("a", hosts.pid("a"))
            for _ in archive.poll():
                pass
            archive.ack()  # What is stable has its reader, so that main is let go of.
            pause(EVERY_US)
    hosts.store("a").open(OUTPUT).forget("archive")
    hosts.heal(f"{AWAY}>a", "a")
    return samples, silent_us / SECOND_US


Result = tuple[int, str, int, int]
#: Of results that differ.
_SHOWN = 10


def results(hosts: Hosts, since_us: int) -> list[Result]:
    """Stable results from a window on: (its end, source, n, bytes)."""
    stream = hosts.store("a").open(OUTPUT)
    with stream.subscribe(start="beginning") as subscriber:
        rows = [row for batch in subscriber.poll() for row in subscriber.rows_of(batch)]
    found = [(instant(row.stime), row.values["source"], row.values["n"], row.values["bytes"]) for row in rows]
    return sorted(result for result in found if result[0] > since_us)


def expected(hosts: Hosts, holes: tuple[Hole, ...], since_us: int) -> list[Result]:
    """The same from what was sent, in plain Python, without the windows that end in a hole."""
    n: Counter[tuple[int, str]] = Counter()
    total: Counter[tuple[int, str]] = Counter()
    for feed in hosts.feeds.values():
        for at, first, count in feed.sends:
            end = at // WINDOW_US * WINDOW_US + WINDOW_US
            for k in range(first, first + count):
                n[end, f"s{k % 7}"] += 1
                total[end, f"s{k % 7}"] += k
    kept = [key for key in n if key[0] > since_us and not any(h.first_us <= key[0] < h.upto_us for h in holes)]
    return sorted((*key, n[key], total[key]) for key in kept)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak.away", description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=60)
    minutes = parser.parse_args().minutes
    with tempfile.TemporaryDirectory(prefix="holdfast-away-") as folder:
        hosts = deployed(Path(folder))
        try:
            return judge(hosts, minutes)
        finally:
            hosts.end()


def judge(hosts: Hosts, minutes: float) -> int:
    client = hosts.listen("a", OUTPUT)
    pause(2 * WINDOW_US)
    before_s, begun, cut_us = cpu_s(hosts), monotonic_us(), now_us()
    samples, silent_s = away(hosts, client, minutes)
    took_us = monotonic_us() - begun
    cpu = (cpu_s(hosts) - before_s) * SECOND_US / took_us
    settled = wait_us(lambda: (said := hosts.replica("a")) is not None and said.state == "STABLE", SETTLED_S_MAX)
    pause(2 * WINDOW_US)
    for feed in hosts.feeds.values():
        feed.end()
    client.join(60)
    if client.trouble is not None:
        raise client.trouble
    stream = hosts.store("a").open(OUTPUT)
    holes, first_us = read_holes(stream.folder), _kept_from_us(stream, cut_us)
    got, wanted = results(hosts, first_us), expected(hosts, holes, first_us)
    for name, rows in (("missing", set(wanted) - set(got)), ("not expected", set(got) - set(wanted))):
        print(f"{name}: {len(rows)}", *sorted(rows)[:_SHOWN], sep="\n    ")
    print("holes:", *holes, sep="\n    ")
    return told(samples, {
        "bench": "away", "minutes": round(took_us / 6e7, 1), "tentative": client.recording.tentative,
        "silent_s_max": round(silent_s, 1), "begun_anew": hosts.log("a").read_text().count("is gone; going on there"),
        "settled_s": None if settled is None else round(settled / SECOND_US, 1), "results": len(got),
        "equal": got == wanted, "cpu": round(cpu, 2), "at": time.strftime("%Y-%m-%d"),
    })  # fmt: skip


def _kept_from_us(stream: holdfast.Stream, cut_us: int) -> int:
    """From where on all stable results are there: what was acknowledged may be gone, in whole segments."""
    earliest_us = stream.reader().stime_min_us or 0
    return max(earliest_us, cut_us // WINDOW_US * WINDOW_US - WINDOW_US)


def told(samples: list[Sample], line: dict[str, object]) -> int:
    found = growth(samples)
    grown = {
        key: round(more, 3)
        for key, (before, after, more) in found.items()
        if judged(key) and more >= GROWTH_MAX and after - before > (SEGMENT_BYTES / 1024 if key.endswith("kB") else 0)
    }
    print("", table(found, dict.fromkeys(grown, "  GROWN")), sep="\n")
    print(json.dumps({**line, "grown": grown}), flush=True)
    on_time = isinstance(silent_s := line["silent_s_max"], float) and silent_s <= SILENT_S_MAX
    return 0 if on_time and line["equal"] and line["settled_s"] is not None and not grown else 1


if __name__ == "__main__":
    sys.exit(main())
