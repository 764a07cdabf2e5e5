"""What incremental checkpoints cost a sliding-window join: the seeds' experiment (004 §5.2) on one machine.

Both inputs in equal parts. S1 has two integers and a text of 70 bytes, S2 an integer and a text of 10; S2 keeps no
window. Single windows match on 1,600 values, as table 1's rates imply; the per-group join has 50 windows of 1,024 and
S2 draws from 600 values. Checkpoints go to a durable log store.

The overhead is the share of the processor's time that checkpoints take, those of the keeper's and the store's threads
included, with an interval that is counted in processor time as well: what a core does that this join has for itself.
The median over the turns counts. One per cent cannot be told by comparing the rates of two turns on a machine that does
other things; that figure, by the clock on the wall, is printed beside it with how far its pairs lie apart. Deadlines
are those of the wall.

    python -m benches.window_join [--quick] [--seconds S]
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from benches.report import finish, table
from holdfast.checkpoint.deadlines import Deadlines
from holdfast.checkpoint.policy import groups
from holdfast.checkpoint.safekeeper import SafeKeeper
from holdfast.checkpoint.stores.log import LogStore
from holdfast.clock import monotonic_us, now_us
from holdfast.operators.window_join import Input, WindowJoin

S1 = pa.schema([("k", pa.int64()), ("g", pa.int64()), ("text", pa.string())])
S2 = pa.schema([("k", pa.int64()), ("note", pa.string())])
#: Input rates of table 1 and of the per-group join without checkpoints, tuples per second.
SEEDS = {8192: 9350.94, 16384: 5054.39, 32768: 2503.25, 65536: 970.19, 131072: 889.64, "per group": 2026.52}
#: Tuples of each input in a batch: small enough that a checkpoint is never late by more than a batch.
BATCH = 2000


class Measured(NamedTuple):
    """A turn by the clock on the wall."""

    rate: float
    met: int
    missed: int


class Compared(NamedTuple):
    rate: float
    """Tuples per second without checkpoints."""
    overhead: float
    met: int
    missed: int
    wall: float
    """Overhead by the clock on the wall, and the least and the greatest of its pairs."""
    wall_range: tuple[float, float]


class Data:
    """Batches made beforehand, used in turn."""

    def __init__(self, keys: int, right_keys: int, zipf: bool, seed: int) -> None:
        chance = np.random.default_rng(seed)
        self._at, self._pairs = 0, []
        texts = pa.array([f"{i:070d}" for i in range(1000)])
        notes = pa.array([f"{i:010d}" for i in range(1000)])
        for _ in range(24):
            left = (chance.zipf(1.2, BATCH) - 1) % keys if zipf else chance.integers(0, keys, BATCH)
            self._pairs.append((
                pa.record_batch([pa.array(left), pa.array(chance.integers(0, 100, BATCH)),
                                 texts.take(pa.array(chance.integers(0, 1000, BATCH)))], schema=S1),
                pa.record_batch([pa.array(chance.integers(0, right_keys, BATCH)),
                                 notes.take(pa.array(chance.integers(0, 1000, BATCH)))], schema=S2),
                chance.permutation(2 * BATCH) < BATCH,
            ))  # fmt: skip

    def next(self) -> tuple[pa.RecordBatch, pa.RecordBatch, np.ndarray]:  # type: ignore[type-arg]
        self._at += 1
        return self._pairs[self._at % len(self._pairs)]


def make(window: int, per: str | None, size: int, every_s: float) -> WindowJoin:
    return WindowJoin("join", Input(S1, window, per), Input(S2, 0), on="k", checkpoint=groups(size, every=every_s))


def drive(join: WindowJoin, data: Data, seconds: float, keeper: SafeKeeper | None, every_s: float) -> Measured:
    """Feed as fast as it goes; checkpoints at their deadlines, between batches, as in 004 §4.2."""
    deadlines = Deadlines()
    if keeper is not None:
        deadlines.add("join", int(every_s * 1e6), monotonic_us())
    begun, count = time.perf_counter(), 0
    while (now := time.perf_counter()) - begun < seconds:
        before = monotonic_us()
        left, right, order = data.next()
        join.feed(left, right, order)
        count += left.num_rows + right.num_rows
        after = monotonic_us()
        if keeper is not None and deadlines.begin(after, after - before) is not None:
            join.checkpoint(keeper, now_us())
    kept = deadlines.kept.get("join")
    return Measured(count / (now - begun), kept.met if kept else 0, kept.missed if kept else 0)


def cost(join: WindowJoin, data: Data, keeper: SafeKeeper, every_s: float, times: int) -> float:
    """The share of the processor's time that checkpoints take, one in each interval of that time."""
    begun, mine, saving = time.process_time(), time.thread_time(), 0.0
    for number in range(1, times + 1):
        while time.process_time() - begun < number * every_s:
            join.feed(*data.next())
        before = time.thread_time()
        join.checkpoint(keeper, now_us())
        saving += time.thread_time() - before
    keeper.flush()
    spent = time.process_time() - begun
    others = spent - (time.thread_time() - mine)
    return (saving + others) / spent


def compare(folder: Path, window: int, per: str | None, size: int, every_s: float, zipf: bool, seconds: float,
            rounds: int) -> Compared:  # fmt: skip
    keys, right_keys = (50, 600) if per else (1600, 1600)
    data = Data(keys, right_keys, zipf, window + size)
    shutil.rmtree(folder, ignore_errors=True)
    keeper = SafeKeeper(lambda: LogStore(folder), capacity=1 << 16)
    join = make(window, per, size, every_s)
    while join.position < 2 * window * (50 if per else 1) + 1:
        join.feed(*data.next())
    join.checkpoint(keeper, now_us())
    keeper.flush()
    shares = [cost(join, data, keeper, every_s, max(1, int(2 / every_s))) for _ in range(rounds)]
    plain, walls, met, missed = [], [], 0, 0
    for round in range(rounds):
        first = round % 2 == 0  # Who begins changes, so that a drift of the machine weighs on both.
        a = drive(join, data, seconds, keeper if first else None, every_s)
        b = drive(join, data, seconds, None if first else keeper, every_s)
        with_, without = (a, b) if first else (b, a)
        plain.append(without.rate)
        walls.append(1 - with_.rate / without.rate)
        met, missed = met + with_.met, missed + with_.missed
    keeper.flush()
    dropped = keeper.status().outcomes["dropped"]
    assert not dropped, f"{dropped} groups were dropped"
    keeper.close()
    return Compared(statistics.median(plain), statistics.median(shares), met, missed, statistics.median(walls),
                    (min(walls), max(walls)))  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benches.window_join", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="fewer configurations, short turns")
    parser.add_argument("--seconds", type=float, default=4.2, help="length of a turn")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--folder", type=Path, default=Path())
    given = parser.parse_args()
    seconds, rounds = (2.2, 4) if given.quick else (given.seconds, given.rounds)
    windows = (8192, 32768, 131072) if given.quick else (8192, 16384, 32768, 65536, 131072)
    sizes = (512,) if given.quick else (512, 4096)
    intervals = (1.0,) if given.quick else (1.0, 10.0)
    found: dict[tuple[object, int, float, bool], Compared] = {}
    with tempfile.TemporaryDirectory(dir=given.folder, prefix=".bench-") as scratch:
        folder = Path(scratch) / "store"
        for every_s in intervals:
            turn = seconds if every_s == 1 else 10.5
            turns = rounds if every_s == 1 else 2
            for window in windows if every_s == 1 else (32768,):
                for size in sizes:
                    found[window, size, every_s, False] = compare(
                        folder, window, None, size, every_s, False, turn, turns
                    )
        for zipf in (False, True):
            found["per group", 256, 1.0, zipf] = compare(folder, 1024, "k", 256, 1.0, zipf, seconds, rounds)
    rows: list[list[object]] = []
    for (window, size, every_s, zipf), c in found.items():
        seeds = SEEDS[window]  # type: ignore[index]
        name = f"{window}{' Zipf' if zipf else ''}"
        rows.append([name, size, every_s, round(c.rate), round(c.rate / seeds, 1), f"{c.overhead:.2%}",
                     f"{c.wall:.1%} ({c.wall_range[0]:.1%} … {c.wall_range[1]:.1%})",
                     f"{c.met} of {c.met + c.missed}"])  # fmt: skip
    columns = ["window", "group", "every s", "tuples/s", "× seeds", "overhead", "by the wall", "deadlines"]
    table("sliding-window join with checkpoints", columns, rows)
    large = [
        c.overhead for (w, s, e, _), c in found.items() if isinstance(w, int) and w >= 32768 and s == 512 and e == 1.0
    ]
    zipfed = found["per group", 256, 1.0, True]
    finish(
        "window_join",
        overhead_32768=round(found[32768, 512, 1.0, False].overhead, 4),
        overhead_32768_and_above_max=round(max(large), 4),
        overhead_per_group=round(found["per group", 256, 1.0, False].overhead, 4),
        overhead_per_group_zipf=round(zipfed.overhead, 4),
        zipf_deadlines_met=zipfed.missed == 0 and zipfed.met > 0,
        rate_over_seeds_min=round(min(c.rate / SEEDS[w] for (w, *_), c in found.items()), 1),  # type: ignore[index]
    )


if __name__ == "__main__":
    main()
