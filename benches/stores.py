"""Checkpoint stores under the seeds' load (002 §4.1): 10,000 operations on 1,000 keys of 1 KiB, 1 to 64 callers.

Everybody makes every checkpoint durable before its caller goes on; `benches.store_contenders` says how. In each round
all contenders run one after another, in the opposite order in every second one, each after a warm-up in a folder of its
own. A ratio is taken within a round, and the median over the rounds counts; the smallest and the greatest are printed
beside it. HBase comes last and for itself: its gateway cannot promise a synced write on a local disk.

    python -m benches.stores                       everything
    python -m benches.stores --part load           throughput and latency (figures 4.1, 4.5, 4.6, 5.1)
    python -m benches.stores --part keys,rebuild   write rate by keys (4.7), time to rebuild the index (4.2)
    python -m benches.stores --part hbase          HBase beside the log (4.6)
    python -m benches.stores --quick               a shorter look
"""

from __future__ import annotations

import argparse
import contextlib
import random
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benches.report import console, finish, table
from benches.store_contenders import CONTENDERS, VALUE, Absent, Contender, hbase, hbase_server, present
from holdfast.checkpoint.store import Entry
from holdfast.checkpoint.stores.log import LogStore
from holdfast.stream.disk import VolatileDisk

KEYS = 1000
CALLERS = (1, 4, 16, 64)
SIZES = (1_000, 10_000, 100_000, 1_000_000)
#: Before a cell is measured: threads, caches and the first blocks of a file are there.
WARM_S = 0.15


def drive(act: Callable[[int, int, random.Random], object], callers: int, seconds: float, most: int) -> list[float]:
    """Let callers act until the time is up or each did its part.

    Operations per second, their mean milliseconds, and how many a second of processor time would do.
    """
    done, spent = [0] * callers, [0.0] * callers
    begin, until = threading.Barrier(callers + 1), [0.0]

    def work(i: int) -> None:
        chance = random.Random(i)
        begin.wait()
        for n in range(most // callers):
            before = time.perf_counter()
            if before > until[0]:
                return
            act(i, n, chance)
            spent[i] += time.perf_counter() - before
            done[i] += 1

    threads = [threading.Thread(target=work, args=(i,)) for i in range(callers)]
    for thread in threads:
        thread.start()
    until[0] = time.perf_counter() + seconds
    started, busy = time.perf_counter(), time.process_time()
    begin.wait()
    for thread in threads:
        thread.join()
    took, busy = time.perf_counter() - started, time.process_time() - busy
    return [sum(done) / took, 1000 * sum(spent) / max(1, sum(done)), sum(done) / busy]


def load(contender: Contender, callers: int, writes: float, seconds: float, first: int = 0) -> list[float]:
    """The seeds' load. Versions begin at `first`, so that a store sees every write as newer."""

    def act(i: int, n: int, chance: random.Random) -> object:
        key = b"user%04d" % chance.randrange(KEYS)
        return contender.put(key, first + n * 64 + i) if chance.random() < writes else contender.get(key)

    return drive(act, callers, seconds, 10_000)


def batches(contender: Contender, seconds: float) -> list[float]:
    """One caller with 64 checkpoints at a time: what is left of the differences when everybody may share a sync."""
    rate, ms, per_busy = drive(
        lambda i, n, chance: contender.put_many([b"user%04d" % k for k in chance.sample(range(KEYS), 64)], n + 1),
        1, seconds, 10_000,
    )  # fmt: skip
    return [64 * rate, ms, 64 * per_busy]


def fresh(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


Cells = dict[tuple[str, int, float], list[list[float]]]


def all_loads(folder: Path, names: Sequence[str], rounds: int, seconds: float) -> Cells:
    """Cells by contender, callers and share of writes; 0 callers stands for batches."""
    found: Cells = {}
    plan = [(callers, 1.0) for callers in (*CALLERS, 0)] * rounds + [(c, 0.9) for c in CALLERS] * max(1, rounds // 2)
    for turn, (callers, writes) in enumerate(plan):
        forth = turn // len(CALLERS) % 2 == 0
        for name in names if forth else reversed(names):
            with CONTENDERS[name](fresh(folder)) as contender:
                contender.put(b"user0000", 0)
                load(contender, callers or 1, writes, WARM_S)
                got = load(contender, callers, writes, seconds, 1 << 20) if callers else batches(contender, seconds)
                found.setdefault((name, callers, writes), []).append(got)
    return found


def rates_by_keys(folder: Path, rounds: int, seconds: float) -> dict[int, list[list[float]]]:
    """Durable writes at 64 callers into logs that hold so many keys, in turns."""
    found: dict[int, list[list[float]]] = {keys: [] for keys in SIZES}
    with contextlib.ExitStack() as held:
        stores = {}
        for keys in SIZES:
            store = stores[keys] = held.enter_context(LogStore(fresh(folder / str(keys))))
            for at in range(0, keys, 5000):
                store.put_many(Entry(b"user%07d" % k, 0, b"x" * 50) for k in range(at, min(keys, at + 5000)))
            store.maintain()
        for turn in range(rounds + 1):
            for keys in SIZES if turn % 2 else reversed(SIZES):
                got = _writes(stores[keys], keys, seconds, turn << 32)
                if turn:  # The first one warms up.
                    found[keys].append(got)
    return found


def _writes(store: LogStore, keys: int, seconds: float, first: int) -> list[float]:
    return drive(
        lambda i, n, chance: store.put(b"user%07d" % chance.randrange(keys), first + n * 64 + i, VALUE),
        64, seconds, 1 << 30,
    )  # fmt: skip


def rebuild(folder: Path, keys: int, tail: int) -> tuple[tuple[float, float], tuple[float, float]]:
    """Milliseconds to open a log of so many keys of 70 bytes: from flush and tail, and from the log alone.

    Each by the clock on the wall and by processor time: one thread reads what is in memory, so on a machine that does
    other things the second says what the first would be without them.
    """
    # Unsynced: how it was written does not matter to who reads it.
    store = LogStore(fresh(folder), flush_records=1 << 30, disk=VolatileDisk())
    for at in range(0, keys, 64):
        store.put_many(Entry(b"user%07d" % k, 1, b"x" * 48) for k in range(at, min(keys, at + 64)))
    store.maintain()
    for at in range(0, tail, 64):
        store.put_many(Entry(b"user%07d" % (k * 7919 % keys), 2, b"y" * 48) for k in range(at, at + 64))
    store._closing = True  # As a crash would leave it: without the flush of an orderly end.
    store._due.set()
    store._segments.close()
    store._owner.release()

    def opened() -> tuple[float, float]:
        begun, busy = time.perf_counter(), time.process_time()
        again = LogStore(folder, background=False)
        took = 1000 * (time.perf_counter() - begun), 1000 * (time.process_time() - busy)
        assert len(again._index.base) == keys
        again._segments.close()
        again._owner.release()
        return took

    def median(times: int) -> tuple[float, float]:
        walls, busy = zip(*(opened() for _ in range(times)), strict=True)
        return statistics.median(walls), statistics.median(busy)

    with_flush = median(9)
    (folder / "index").unlink()
    return with_flush, median(3)


def show_loads(found: Cells, names: Sequence[str]) -> dict[str, object]:
    rate = {cell: statistics.median(v[0] for v in values) for cell, values in found.items()}
    for writes in (1.0, 0.9):
        columns = [c for c in (*CALLERS, 0) if (names[0], c, writes) in found]
        rows: list[list[object]] = [
            [name, *(
                f"{rate[name, c, writes]:,.0f} ({statistics.median(v[1] for v in found[name, c, writes]):.2f} ms)"
                for c in columns
            )]
            for name in names
        ]  # fmt: skip
        heads = ["", *(f"{c} callers" if c else "64 in a call" for c in columns)]
        table(f"{writes:.0%} writes: operations per second (mean latency)", heads, rows)

    def ratios(other: str, callers: int) -> list[float]:
        pairs = zip(found["log", callers, 1.0], found[other, callers, 1.0], strict=True)
        return sorted(mine[0] / theirs[0] for mine, theirs in pairs)

    others = [n for n in names if n not in ("log", "files")]
    over_files = ratios("files", 64)
    ahead = {c: {n: round(statistics.median(ratios(n, c)), 2) for n in others} for c in (*CALLERS, 0)}
    return {
        "log_over_files": round(statistics.median(over_files), 1),
        "log_over_files_range": [round(over_files[0], 1), round(over_files[-1], 1)],
        "log_ahead_of_all": all(ratio > 1 for ratio in ahead[64].values()),
        "log_over": {"64 in a call" if c == 0 else str(c): ratios for c, ratios in ahead.items()},
        "log_writes_per_s": {c: round(rate["log", c, 1.0]) for c in CALLERS},
        "files_writes_per_s": {c: round(rate["files", c, 1.0]) for c in CALLERS},
    }


def medians(found: Cells) -> dict[str, dict[str, dict[str, list[float]]]]:
    """Operations per second and mean milliseconds by share of writes, contender and callers."""
    made: dict[str, dict[str, dict[str, list[float]]]] = {}
    for (name, callers, writes), cells in found.items():
        mine = made.setdefault(f"{writes:g}", {}).setdefault(name, {})
        mine[str(callers)] = [round(statistics.median(c[k] for c in cells), 3) for k in (0, 1)]
    return made


def show_keys(found: dict[int, list[list[float]]]) -> dict[str, object]:
    rows: list[list[object]] = []
    for keys, cells in found.items():
        walls = sorted(cell[0] for cell in cells)
        busy = statistics.median(cell[2] for cell in cells)
        rows.append([f"{keys:,}", round(statistics.median(walls)), round(walls[0]), round(walls[-1]), round(busy)])
    table("log, 64 callers, by keys", ["keys", "writes/s", "least", "most", "per s of processor time"], rows)
    pairs = list(zip(found[SIZES[0]], found[SIZES[-1]], strict=True))
    flat = sorted(many[0] / few[0] for few, many in pairs)
    return {
        "rate_1m_over_1k_keys": round(statistics.median(flat), 2),
        "rate_1m_over_1k_range": [round(flat[0], 2), round(flat[-1], 2)],
        "rate_1m_over_1k_by_processor_time": round(statistics.median(many[2] / few[2] for few, many in pairs), 2),
    }


def show_hbase(folder: Path, seconds: float) -> dict[str, object]:
    rates: dict[str, dict[int, int]] = {"hbase": {}, "log": {}}
    try:
        with hbase_server(folder / "hbase") as address:
            for callers in (1, 16, 64):
                for name, opened in (
                    ("hbase", lambda: hbase(address)),
                    ("log", lambda: CONTENDERS["log"](fresh(folder / "log"))),
                ):
                    with opened() as contender:
                        load(contender, callers, 1.0, 2 * WARM_S)
                        rates[name][callers] = round(load(contender, callers, 1.0, 2 * seconds, 1 << 20)[0])
    except Absent as absent:
        console.print(f"HBase left out: {absent}")
        return {"hbase": str(absent)}
    rows = [[name, *by.values()] for name, by in rates.items()]
    table("HBase, not synced, beside the log, synced: writes per second", ["", "1", "16", "64 callers"], rows)
    return {"hbase_unsynced_writes_per_s": rates["hbase"]}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benches.stores", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="two short rounds")
    parser.add_argument("--part", default="load,keys,rebuild,hbase", help="some of load, keys, rebuild, hbase")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.8, help="length of a cell")
    parser.add_argument("--folder", type=Path, default=Path(), help="where to write (a real disk; default: here)")
    given = parser.parse_args()
    rounds, seconds = (2, 0.4) if given.quick else (given.rounds, given.seconds)
    figures: dict[str, object] = {}
    detail: dict[str, object] = {}
    with tempfile.TemporaryDirectory(dir=given.folder, prefix=".bench-") as scratch:
        folder = Path(scratch).resolve() / "run"
        parts = given.part.split(",")
        if "load" in parts:
            names = present()
            cells = all_loads(folder, names, rounds, seconds)
            figures |= show_loads(cells, names)
            detail["loads"] = medians(cells)
        if "keys" in parts:
            by_keys = rates_by_keys(folder, rounds, seconds)
            figures |= show_keys(by_keys)
            detail["writes_per_s_by_keys"] = {k: round(statistics.median(c[0] for c in v)) for k, v in by_keys.items()}
            shutil.rmtree(folder)
        if "rebuild" in parts:
            by_size = {keys: rebuild(folder, keys, min(keys, 65_536)) for keys in SIZES}
            flush, log = by_size[SIZES[-1]]
            detail["rebuild_ms"] = {keys: [round(one[0], 1) for one in both] for keys, both in by_size.items()}
            rows = [["flush and 65,536 records", *map(round, flush)], ["the log alone", *map(round, log)]]
            table("index of 1,000,000 keys", ["from", "ms", "ms of processor time"], rows)
            figures |= {"index_rebuild_1m_ms": round(flush[0]), "index_rebuild_1m_processor_ms": round(flush[1]),
                        "index_from_log_alone_1m_ms": round(log[0])}  # fmt: skip
        if "hbase" in parts:
            figures |= show_hbase(folder, seconds)
    finish("stores", detail=detail, **figures)


if __name__ == "__main__":
    main()
