"""What incremental checkpoints cost a sliding-window join: the seeds' experiment (004 §5.2) on one machine.

Both inputs in equal parts. S1 has two integers and a text of 70 bytes, S2 an integer and a text of 10; S2 keeps no
window. Single windows match on 1,600 values, as table 1's rates imply; the per-group join has 50 windows of 1,024 and
S2 draws from 600 values. Checkpoints go to a durable log store.

The overhead is the share of the processor's time that checkpoints take, those of the keeper's and the store's threads
included, with an interval that is counted in processor time as well: what a core does that this join has for itself.
It is the sum over all turns, because the store collects its garbage in a few of them only. What it leaves out is how
much slower the join feeds because its caches and its interpreter were used for something else. So turns with and
without checkpoints follow each other; how many tuples less the ones take in per second of the processor is printed
beside it with its standard error, and the same by the clock on the wall with the least and the greatest of its pairs.
One per cent cannot be told by either on a machine that does other things. Deadlines are those of the wall.

    python -m benches.window_join [--quick] [--seconds S] [--only 65536 --only "per group"]
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
PER_GROUP = "per group"
#: Input rates of table 1 and of the per-group join without checkpoints, tuples per second.
SEEDS: dict[int | str, float] = {8192: 9350.94, 16384: 5054.39, 32768: 2503.25, 65536: 970.19, 131072: 889.64,
                                 PER_GROUP: 2026.52}  # fmt: skip
#: Tuples of each input in a batch: small enough that a checkpoint is never late by more than a batch.
BATCH = 2000
#: Seconds of the processor's time in a turn with or without checkpoints.
TURN_S = 3.0


class Measured(NamedTuple):
    """A turn by the clock on the wall."""

    rate: float
    met: int
    missed: int


class Turn(NamedTuple):
    """A turn in seconds of the processor."""

    tuples: int
    spent: float
    saving: float


class Compared(NamedTuple):
    rate: float
    """Tuples per second without checkpoints."""
    overhead: float
    slower: float
    """Tuples less per second of the processor, and the standard error of that."""
    slower_error: float
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


def spend(join: WindowJoin, data: Data, keeper: SafeKeeper | None, every_s: float, times: int) -> Turn:
    """Feed for some intervals of the processor's time, with a checkpoint after each, its storing included."""
    begun, mine, saving, count = time.process_time(), time.thread_time(), 0.0, 0
    for number in range(1, times + 1):
        while time.process_time() - begun < number * every_s:
            join.feed(*data.next())
            count += 2 * BATCH
        if keeper is not None:
            before = time.thread_time()
            join.checkpoint(keeper, now_us())
            saving += time.thread_time() - before
    if keeper is not None:
        keeper.flush()
    spent = time.process_time() - begun
    return Turn(count, spent, saving + spent - (time.thread_time() - mine))


def costs(join: WindowJoin, data: Data, keeper: SafeKeeper, every_s: float, turns: int) -> tuple[float, float, float]:
    """Share of the processor's time; by how much the rate in that time is less; the error of the latter."""
    times = max(1, int(TURN_S / every_s))
    pairs = []
    for turn in range(turns):
        pair: dict[bool, Turn] = {}
        for saves in (turn % 2 == 0, turn % 2 != 0):  # Who begins changes: a drift of the machine weighs on both.
            pair[saves] = spend(join, data, keeper if saves else None, every_s, times)
            join.checkpoint(keeper, now_us())  # What a turn without checkpoints left is nobody's cost.
            keeper.flush()
        pairs.append((pair[True], pair[False]))
    share = sum(saved.saving for saved, _ in pairs) / sum(saved.spent for saved, _ in pairs)
    less = [1 - (saved.tuples / saved.spent) / (plain.tuples / plain.spent) for saved, plain in pairs]
    error = statistics.stdev(less) / len(less) ** 0.5 if len(less) > 1 else float("nan")
    return share, statistics.mean(less), error


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
    share, slower, error = costs(join, data, keeper, every_s, 2 * rounds)
    plain, walls, met, missed = [], [], 0, 0
    for round in range(rounds):
        first = round % 2 == 0
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
    return Compared(statistics.median(plain), share, slower, error, met, missed, statistics.median(walls),
                    (min(walls), max(walls)))  # fmt: skip


class Setting(NamedTuple):
    window: int | str
    size: int
    every_s: float
    zipf: bool = False


def settings(quick: bool, only: list[str]) -> list[Setting]:
    windows = (8192, 32768, 131072) if quick else (8192, 16384, 32768, 65536, 131072)
    sizes = (512,) if quick else (512, 4096)
    all_ = [Setting(window, size, 1.0) for window in windows for size in sizes]
    all_ += [] if quick else [Setting(32768, size, 10.0) for size in sizes]
    all_ += [Setting(PER_GROUP, 256, 1.0, zipf) for zipf in (False, True)]
    return [s for s in all_ if not only or str(s.window) in only]


def measure(setting: Setting, folder: Path, seconds: float, rounds: int) -> Compared:
    window, size, every_s, zipf = setting
    seconds, rounds = (seconds, rounds) if every_s == 1 else (every_s + 0.5, 2)
    width, per = (1024, "k") if isinstance(window, str) else (window, None)
    return compare(folder, width, per, size, every_s, zipf, seconds, rounds)


def show(found: dict[Setting, Compared]) -> None:
    rows: list[list[object]] = []
    for (window, size, every_s, zipf), c in found.items():
        name = f"{window}{' Zipf' if zipf else ''}"
        rows.append([name, size, every_s, round(c.rate), round(c.rate / SEEDS[window], 1), f"{c.overhead:.2%}",
                     f"{c.slower:.1%} ± {c.slower_error:.1%}",
                     f"{c.wall:.1%} ({c.wall_range[0]:.1%} … {c.wall_range[1]:.1%})",
                     f"{c.met} of {c.met + c.missed}"])  # fmt: skip
    columns = ["window", "group", "every s", "tuples/s", "× seeds", "overhead", "slower", "by the wall", "deadlines"]
    table("sliding-window join with checkpoints", columns, rows)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benches.window_join", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="fewer settings, short turns")
    parser.add_argument("--seconds", type=float, default=4.2, help="length of a turn by the wall")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--only", action="append", default=[], help='a window, or "per group"; may be repeated')
    parser.add_argument("--folder", type=Path, default=Path())
    given = parser.parse_args()
    seconds, rounds = (2.2, 2) if given.quick else (given.seconds, given.rounds)
    found: dict[Setting, Compared] = {}
    with tempfile.TemporaryDirectory(dir=given.folder, prefix=".bench-") as scratch:
        for setting in settings(given.quick, given.only):
            found[setting] = measure(setting, Path(scratch) / "store", seconds, rounds)
    show(found)
    each = {s: c for s, c in found.items() if s.every_s == 1.0}
    large = {s: c.overhead for s, c in each.items() if isinstance(s.window, int) and s.window >= 32768}
    zipfed = found.get(Setting(PER_GROUP, 256, 1.0, True))
    figures: dict[str, object] = {}
    if large:
        figures["overhead_32768"] = max((round(o, 4) for s, o in large.items() if s.window == 32768), default=None)
        figures["overhead_32768_and_above_max"] = round(max(large.values()), 4)
    if zipfed is not None:
        figures["overhead_per_group"] = round(found[Setting(PER_GROUP, 256, 1.0)].overhead, 4)
        figures["overhead_per_group_zipf"] = round(zipfed.overhead, 4)
        figures["zipf_deadlines_met"] = zipfed.missed == 0 and zipfed.met > 0
    figures["deadlines_missed"] = sum(c.missed for c in found.values())
    figures["rate_over_seeds_min"] = round(min(c.rate / SEEDS[s.window] for s, c in found.items()), 1)
    detail = [{**s._asdict(), "tuples_per_s": round(c.rate), "overhead": round(c.overhead, 5), "met": c.met,
               "slower": round(c.slower, 4), "missed": c.missed} for s, c in found.items()]  # fmt: skip
    finish("window_join", detail={"settings": detail}, **figures)


if __name__ == "__main__":
    main()
