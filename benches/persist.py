"""What it costs to persist a stream always, on demand, or never, while a reader takes all of it (000 §3.1, §3.3).

One process produces, callers are threads that send and wait; a reader in a process of its own, known by name, takes and
acknowledges everything meanwhile. "on_demand" so stays in memory. The modes take turns, several rounds, and the median
of the ratios within a round counts, because a disk has moods. Three looks, each beside what the text measured on
Borealis over PVFS2 in 2010 (other machines, a network between them: what compares are the ratios):

1. single records of 1 KiB from 1 and 16 producers;
2. units of 16 tuples of 256 bytes to 4 KiB, as in its figures 3.5 and 3.6 and table 3.1;
3. a consumer that is killed and comes back, as in its figure 3.10: what the receiver gets over time.

And 100 consumers killed one after the other while they read: everything that was sent must have reached one of them.
Last, one thread with `send_async` beside 64 that wait, always persisted.

    python -m benches.persist            all of it
    python -m benches.persist --quick    a shorter look
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

import holdfast
from benches.log_append import RECORD, measure, rate, without_waiting
from benches.report import console, finish, table
from holdfast.stream.producer import Producer

MODES: tuple[Literal["always", "on_demand", "never"], ...] = ("always", "on_demand", "never")
PRODUCERS = (1, 16)
SIZES = (256, 1024, 4096)
UNIT = 16
NAME = "db"

#: Of 000, in MB/s: figure 3.5 and 3.6 and table 3.1 (4 KiB, units of 16, one node), 3.8 (nodes in a row), 3.10.
SEED = {
    "3.5: one node of 2 cores, not persisted": 63,
    "3.6: the same, persisted synchronously": 28,
    "3.6: persisted without waiting for the disk": 36,
    "table 3.1: 8 cores, not persisted": 75,
    "table 3.1: 8 cores, persisted synchronously": 50,
    "3.7: one store, 8 writers, names kept up asynchronously": 86,
    "3.7: one store, 8 writers, names kept up synchronously": 68,
    "3.8: 8 nodes in a row, not persisted": 52,
    "3.8: 8 nodes in a row, persisted on one server": 10,
    "3.9: the same 8 nodes, all together": 80,
    "3.10: before the consumer is killed": 26,
    "3.10: while it reads what was stored meanwhile": 20,
    "3.10: when it has caught up": 25,
}


class Dropped(logging.Handler):
    """Counts what "never" drops because the reader is not quick enough, instead of a line for each segment."""

    tuples = 0

    def emit(self, record: logging.LogRecord) -> None:
        if "is full" in record.msg and isinstance(record.args, tuple):
            self.tuples += int(str(record.args[1]))


# -- readers, in processes of their own ------------------------------------------------------------------------------


def read(root: str, out: int) -> None:
    """Take everything, note the ranges of ids, then acknowledge; what is noted was taken by somebody."""
    subscriber = holdfast.open(root).open("bench").subscribe(name=NAME, resume=True)
    os.write(out, b"there\n")
    while not subscriber.finished:
        for batch in subscriber.poll():
            ids = batch.column("tuple_id")
            os.write(out, b"%d-%d\n" % (ids[0].as_py(), ids[-1].as_py()))
        subscriber.ack()
        time.sleep(0.005)
    os.write(out, b"end\n")


def nursery(root: str) -> None:
    """Starts a reader for every line of its input: a fork is there at once, a new Python takes a second."""
    children = []
    for line in sys.stdin:
        if (pid := os.fork()) == 0:
            try:
                read(root, os.open(line.strip(), os.O_WRONLY | os.O_CREAT | os.O_APPEND))
            finally:
                os._exit(0)
        children.append(pid)
        print(pid, flush=True)
    for pid in children:  # Nobody has waited for them yet, so the numbers are still theirs.
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


class Readers:
    """The nursery, and what its readers have noted."""

    def __init__(self, root: Path) -> None:
        self._root, self._count = root, 0
        self._process = subprocess.Popen([sys.executable, "-m", "benches.persist", "--nursery", str(root)], text=True,
                                         stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # fmt: skip

    def start(self) -> tuple[int, Path]:
        """A reader that is there: its process and its notes."""
        self._count += 1
        notes = self._root / f".notes-{self._count}"
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{notes}\n")
        self._process.stdin.flush()
        pid = int(self._process.stdout.readline())
        wait(lambda: notes.exists() and notes.read_bytes().startswith(b"there\n"))
        return pid, notes

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def wait(done: object, timeout_s: float = 60.0) -> None:
    until = time.monotonic() + timeout_s
    while not done():  # type: ignore[operator]
        if time.monotonic() > until:
            raise TimeoutError("what the bench waits for did not come")
        time.sleep(0.002)


def taken(notes: Path) -> list[tuple[int, int]]:
    """The ranges of ids that a reader has noted; one that was cut off while it was noted does not count."""
    lines = notes.read_text().splitlines(keepends=True)
    return [(int(a), int(b)) for a, _, b in (line.partition("-") for line in lines if line.endswith("\n")) if b]


@contextlib.contextmanager
def produced(folder: Path, mode: Literal["always", "on_demand", "never"]) -> Iterator[Producer]:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    stream = holdfast.open(folder).create("bench", "payload binary", bucket="50ms", persist=mode)
    with stream.producer() as producer:
        yield producer


# -- 1 and 2: rates --------------------------------------------------------------------------------------------------


def rates(folder: Path, mode: Literal["always", "on_demand", "never"], seconds: float) -> dict[str, float]:
    """Records per second from 1 and 16 producers, and MB/s of units by the size of their tuples."""
    found: dict[str, float] = {}
    units = {size: pa.record_batch({"payload": pa.array([os.urandom(size)] * UNIT, pa.binary())}) for size in SIZES}
    with produced(folder, mode) as producer:
        readers = Readers(folder)
        try:
            readers.start()
            if mode == "on_demand":
                wait(lambda: producer.send((RECORD,)) and producer.writer.in_memory)
            for callers in PRODUCERS:
                found[f"{callers}"] = rate(lambda _: producer.send((RECORD,)), callers, seconds)
            for size, unit in units.items():
                calls = rate(lambda _, unit=unit: producer.send_batch(unit), 1, seconds)  # type: ignore[misc]
                found[f"{size} B"] = calls * UNIT * size / 1e6
            found["in memory"] = float(producer.writer.in_memory)
        finally:
            producer.close()
            readers.close()
    return found


# -- 3: a consumer that comes back -----------------------------------------------------------------------------------


def comes_back(folder: Path, seconds: float) -> dict[str, Any]:
    """Figure 3.10: killed, away for a while, back. Bytes that the receiver has, sampled every 50 ms."""
    samples: list[tuple[float, int]] = []
    unit = pa.record_batch({"payload": pa.array([os.urandom(4096)] * UNIT, pa.binary())})
    stop, begun = threading.Event(), time.monotonic()
    notes: list[Path] = []

    def mark() -> float:
        rows = sum(b - a + 1 for path in list(notes) for a, b in taken(path))
        samples.append((time.monotonic() - begun, rows * 4096))
        return samples[-1][0]

    def watch() -> None:
        while not stop.wait(0.05):
            mark()

    with produced(folder, "on_demand") as producer:
        readers = Readers(folder)

        def send() -> None:
            while not stop.is_set():
                producer.send_batch(unit)
                time.sleep(0.002)  # Some 26 MB/s, as in the figure: a source's pace, not the disk's.

        try:
            pid, path = readers.start()
            notes.append(path)
            threads = [threading.Thread(target=work) for work in (send, watch)]
            for thread in threads:
                thread.start()
            wait(lambda: producer.writer.in_memory)
            begin = mark()
            time.sleep(seconds)
            os.kill(pid, signal.SIGKILL)
            killed = mark()
            wait(lambda: not producer.writer.in_memory)
            spilled = time.monotonic() - begun
            time.sleep(seconds)
            _, path = readers.start()
            notes.append(path)
            back = mark()
            wait(lambda: producer.writer.in_memory)
            level = mark()
            time.sleep(seconds)
            end = mark()
            stop.set()
            for thread in threads:
                thread.join()
        finally:
            stop.set()
            producer.close()
            readers.close()

    samples.sort()

    def between(a: float, b: float) -> float:
        inside = [s for s in samples if a <= s[0] <= b]
        return (inside[-1][1] - inside[0][1]) / (inside[-1][0] - inside[0][0]) / 1e6 if len(inside) > 1 else 0.0

    first = next((at for at, size in samples if at > back and size > _at(samples, back)), level)
    return {
        "samples": [[round(at, 2), size] for at, size in samples[:: max(1, len(samples) // 200)]],
        "before_mb_s": between(begin, killed), "noticed_ms": (spilled - killed) * 1000, "away_s": back - killed,
        "first_tuple_ms": (first - back) * 1000, "caught_up_s": level - back, "catching_up_mb_s": between(back, level),
        "after_mb_s": between(level, end),
    }  # fmt: skip


def _at(samples: list[tuple[float, int]], moment: float) -> int:
    return max((size for at, size in samples if at <= moment), default=0)


# -- killed ----------------------------------------------------------------------------------------------------------


def killed(folder: Path, kills: int, seed: int = 7) -> dict[str, int]:
    """Consumers killed while they read from memory, at a moment that nobody chose."""
    chance, stop = random.Random(seed), threading.Event()
    notes: list[Path] = []
    spills = 0
    with produced(folder, "on_demand") as producer:
        readers = Readers(folder)

        def send() -> None:
            while not stop.is_set():
                producer.send((RECORD,))
                time.sleep(0.0005)

        sender = threading.Thread(target=send)
        sender.start()
        try:
            for _ in range(kills):
                pid, path = readers.start()
                notes.append(path)
                wait(lambda: producer.writer.in_memory)
                time.sleep(chance.uniform(0, 0.1))
                os.kill(pid, signal.SIGKILL)
                time.sleep(chance.uniform(0, 0.15))
                spills += not producer.writer.in_memory
            _, path = readers.start()
            notes.append(path)
            stop.set()
            sender.join()
            sent = producer.writer.state.next_tuple_id - 1
            producer.close()
            wait(lambda: path.read_bytes().endswith(b"end\n"))
        finally:
            stop.set()
            readers.close()
    ids = [n for one in notes for a, b in taken(one) for n in range(a, b + 1)]
    return {"sent": sent, "lost": sent - len(set(ids)), "again": len(ids) - len(set(ids)), "spilled": spills}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benches.persist", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="one short round, ten killed consumers")
    parser.add_argument("--folder", type=Path, default=Path(), help="where to write (a real disk; default: here)")
    parser.add_argument("--nursery", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.nursery is not None:
        nursery(given.nursery)
        return
    dropped = Dropped()
    logging.getLogger("holdfast").addHandler(dropped)
    seconds, rounds, kills = (0.5, 1, 10) if given.quick else (1.5, 3, 100)
    with tempfile.TemporaryDirectory(dir=given.folder, prefix=".bench-") as scratch:
        folder = Path(scratch) / "run"
        found: dict[str, list[dict[str, float]]] = {mode: [] for mode in MODES}
        for _ in range(rounds):
            for mode in MODES:
                found[mode].append(rates(folder, mode, seconds))
        again = comes_back(folder, 2 * seconds)
        received = again.pop("samples")
        fell = killed(folder, kills)
        of_async = [without_waiting(folder, seconds) / measure(folder, "Holdfast", 64, seconds) for _ in range(rounds)]
    median = {m: {k: statistics.median(one[k] for one in found[m]) for k in found[m][0]} for m in MODES}

    def ratio(mode: str, what: str) -> float:
        pairs = zip(found[mode], found["always"], strict=True)
        return round(statistics.median(ours[what] / always[what] for ours, always in pairs), 2)

    over = {c: ratio("on_demand", str(c)) for c in PRODUCERS}
    show(median, again, fell, kills)
    finish(
        "persist",
        detail={"received": received},
        on_demand_over_always=min(over.values()),
        lost_on_demand=fell["lost"],
        async_ratio=round(statistics.median(of_async), 2),
        on_demand_over_always_producers=over,
        never_over_always_producers={c: ratio("never", str(c)) for c in PRODUCERS},
        on_demand_over_always_units={f"{s} B": ratio("on_demand", f"{s} B") for s in SIZES},
        never_over_always_units={f"{s} B": ratio("never", f"{s} B") for s in SIZES},
        never_dropped_tuples=dropped.tuples,
        in_memory_to_the_end=all(one["in memory"] for one in found["on_demand"]),
        records_per_s={m: {c: round(median[m][str(c)]) for c in PRODUCERS} for m in MODES},
        unit_mb_per_s={m: {f"{s} B": round(median[m][f"{s} B"], 1) for s in SIZES} for m in MODES},
        killed={"consumers": kills, **fell},
        comes_back={k: round(v, 2) for k, v in again.items()},
    )


def show(median: dict[str, dict[str, float]], again: dict[str, float], fell: dict[str, int], kills: int) -> None:
    rows = [[m, *(round(median[m][str(c)]) for c in PRODUCERS)] for m in MODES]
    table("single records of 1 KiB, a reader connected: records/s", ["persist", *map(str, PRODUCERS)], rows)
    sizes = [[m, *(round(median[m][f"{s} B"], 1) for s in SIZES)] for m in MODES]
    table(f"units of {UNIT} tuples, one producer: MB/s", ["persist", *(f"{s} B" for s in SIZES)], sizes)
    table("a consumer killed and back", ["", ""], [[k, round(v, 2)] for k, v in again.items()])
    table(f"{kills} killed consumers", ["", "tuples"], [[k, v] for k, v in fell.items() if k != "spilled"])
    table("000, figures 3.5 to 3.10: Borealis over PVFS2, 4 KiB tuples in units of 16, MB/s", ["figure", "MB/s"],
          [[k, v] for k, v in SEED.items()])  # fmt: skip
    kept = {"000": SEED["3.6: the same, persisted synchronously"] / SEED["3.5: one node of 2 cores, not persisted"]}
    kept["ours"] = median["always"]["4096 B"] / median["never"]["4096 B"]
    console.print(f"persisted over not persisted, 4 KiB: {kept['000']:.2f} there, {kept['ours']:.2f} here")


if __name__ == "__main__":
    main()
