"""Crashes at every point of a batch: what is restored from the log equals what was lost (C1–C6).

One operator runs over a stream's log with a real writer. At random it dies: before its unit is written, in the middle
of it (the torn rest stays in the file), or after it. The next one finds nothing but the log. The results of the whole
history are compared with those of an operator that never died, and the log with a ledger kept by hand.

In a second test scratch survives: batches that the log has already are executed once more, and what that leaves behind
is what the next batch starts from, until scratch is lost after all. In a third the number of partitions changes on the
way.

HOLDFAST_CRASHES=1000 for the full number.
"""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import holdfast
from holdfast.operators.footprints import blocks_of, replay, restore, save
from holdfast.operators.functions import avg, count, sum_
from holdfast.operators.join_kernel import JoinKernel, keep_last, keep_time
from holdfast.operators.kernel import aggregate_kernel
from holdfast.operators.numbering import partition_of
from holdfast.operators.plan import Plan
from holdfast.operators.sorting import SortKernel
from holdfast.operators.windows import Window, count_window, landmark, time_window
from holdfast.protocol.cec.policy import Continuous, Measured, Shot
from holdfast.spark import control
from holdfast.spark.stage import Batch, Output, Stage, StagePlan
from holdfast.spark.versions import KEPT, Scratch, Version, _memory
from holdfast.stream.control import ControlLog, operator_number
from holdfast.stream.record import Control

CRASHES = int(os.environ.get("HOLDFAST_CRASHES", "6"))
BEGIN = -(2**62)
BUCKET = 100_000
SECOND = 1_000_000


def items(kind: str, chance: random.Random) -> int:
    if kind == "mixed":
        return chance.randrange(100) if chance.random() > 0.02 else 100 + chance.randrange(10)
    return chance.randrange(2) if kind == "slow" else chance.randrange(20)


def tuples_of(kind: str, chance: random.Random, batches: int) -> list[tuple[int, ...]]:
    """(stime, group, value, side, number), in processing order: by bucket, then number."""
    rows, values = [], 10 if kind == "sort" else 1000  # Many equal ones: the oldest leaves first.
    for i in range(batches * 40):
        stime = i * BUCKET // 40 // 4 * 4 + chance.randrange(4)
        rows.append((stime, items(kind, chance), chance.randrange(values), chance.randrange(2), i))
    return sorted(rows, key=lambda r: (r[0] // BUCKET, r[4]))


WINDOWS: dict[str, Window] = {"fast": count_window(1), "slow": count_window(100), "mixed": count_window(10),
                              "sliding": time_window("1s", "300ms"), "overlapping": count_window(10, 4),
                              "timed out": count_window(10, timeout="250ms"), "landmark": landmark(),
                              "from the first": time_window("500ms", "200ms", align="first")}  # fmt: skip


class Operator:
    """What a process holds: a kernel, its blocks, and nothing else."""

    def __init__(self, kind: str, root: Path) -> None:
        self.kind = kind
        self.stream = holdfast.open(root).open("out")
        self.blocks: Any = {}
        if kind == "join":
            self.kernel: Any = JoinKernel(keep_time("700ms"), keep_last(3), ("_h",), ("_v0",), ("_v1",))
            self.panes = False
        elif kind == "sort":
            self.kernel, self.panes = SortKernel(5, ("_h",), ("_v1", "_w")), False
        else:
            plan = Plan((count(), sum_("v").alias("s"), avg("v").alias("a")), (None, 0, 0), {0: pl.Float64()})
            self.kernel, self.panes = aggregate_kernel(WINDOWS[kind], plan, ("_h",))

    def frame(self, rows: list[tuple[int, ...]]) -> pl.DataFrame:
        made: dict[str, Any] = {"_h": [r[1] for r in rows], "_t": [r[0] for r in rows]}
        shape: dict[str, Any] = {"_h": pl.Int64, "_t": pl.Int64}
        if self.kind in ("join", "sort"):
            made |= {"_side": [r[3] for r in rows], "_w": [r[4] for r in rows], "_v0": [r[2] for r in rows],
                     "_v1": [r[2] for r in rows]}  # fmt: skip
            shape |= {"_side": pl.Int64, "_w": pl.Int64, "_v0": pl.Int64, "_v1": pl.Int64}
        else:
            made["_v0"] = [r[2] / 7 for r in rows]
            shape["_v0"] = pl.Float64
        return pl.DataFrame(made, schema=shape)

    def recover(self, tuples: list[tuple[int, ...]]) -> int:
        """From the log alone; returns the position to go on from."""
        log = ControlLog(self.stream.reader())
        newest = log.latest(operator_number("op"), 1)
        if not newest:
            return BEGIN
        position, oldest = newest[0].position_us, newest[0].since_us
        bodies = [b.read() for f, b in log.backwards(operator_number("op"), 0) if f.position_us >= oldest]
        restored = restore(bodies, "op", position, self.kernel.by_group)
        assert restored.since_us == oldest
        again = self.frame([t for t in tuples if oldest <= t[0] < position])
        self.blocks = replay(self.kernel, restored, blocks_of(restored.table, self.panes), again, position)
        return position


def canonical(blocks: Any) -> list[Any]:
    """Open windows without their bookkeeping; numbers of a join's tuples count only relative to each other."""
    rows = []
    for number, block in blocks.items():
        names = sorted(c for c in block.columns if c not in ("_o", "_s", "_f", "_q", "_l", "_r"))
        rows += [(number, r) for r in block.select(names).rows()]
    return sorted(rows, key=repr)


@pytest.mark.parametrize("kind", ["fast", "slow", "mixed", "sliding", "join", "sort"])
def test_no_crash_makes_a_difference(kind: str, tmp_path: Path) -> None:
    chance = random.Random(f"crashes {kind}")
    crashes = 0
    while crashes < CRASHES:
        crashes += history(kind, chance, tmp_path / str(crashes))


def history(kind: str, chance: random.Random, root: Path) -> int:
    """One stream from beginning to end, with some ten crashes."""
    batches = 24
    tuples = tuples_of(kind, chance, batches)
    holdfast.open(root).create("out", "n bigint", bucket="100ms")
    ends = [BUCKET * n for n in range(1, batches + 1)]
    want, states = undisturbed(kind, root, tuples, ends)
    results: dict[int, list[Any]] = {}
    operator = Operator(kind, root)
    position, crashes, ledger = BEGIN, 0, []
    while position < ends[-1]:
        writer, torn = operator.stream.writer(takeover=True), None
        while position < ends[-1]:
            left = [e for e in ends if e > position]
            end = left[min(chance.randrange(1, 4), len(left)) - 1]
            step = operator.kernel.step(operator.blocks, operator.frame([t for t in tuples if position <= t[0] < end]),
                                        position, end)  # fmt: skip
            shot = Shot(end - chance.randrange(4) * BUCKET, end - chance.randrange(4) * BUCKET,
                        chance.choice([0, 1, 5, 1000]))  # fmt: skip
            operator.blocks, saved = save(step, shot, end, "op", operator.kernel.by_group)
            fate = chance.choice(["before", "torn", "after", "live", "live", "live"])
            if fate == "before":
                break
            made = [] if step.results is None else sorted(step.results.rows())
            if fate == "torn":
                torn = end, made, saved
                tear(writer, saved, end, chance)
                break
            writer.commit([], now_us=end, boundary_us=end, control=[frame_of(saved, end)])
            results[end] = made
            ledger.append((end, saved))
            position = end
            assert canonical(operator.blocks) == states[end]
            if fate == "after":
                break
        else:
            break
        crashes += 1
        writer._close_files()  # As the kernel does for a process that is killed: nothing is released or noted.
        operator = Operator(kind, root)
        position = operator.recover(tuples)
        if torn is not None and position == torn[0]:
            # Only zeros were missing: the unit is whole, so it counts though nobody was told (L3).
            results[position] = torn[1]
            ledger.append((position, torn[2]))
        assert canonical(operator.blocks) == states.get(position, []), f"{kind}: restored at {position}"
    assert sorted(r for rows in results.values() for r in rows) == want
    check_log(operator, len(ledger))
    return crashes


def undisturbed(kind: str, root: Path, tuples: list[Any], ends: list[int]) -> tuple[list[Any], dict[int, Any]]:
    operator, found, states, position = Operator(kind, root), [], {}, BEGIN
    for end in ends:
        step = operator.kernel.step(operator.blocks, operator.frame([t for t in tuples if position <= t[0] < end]),
                                    position, end)  # fmt: skip
        operator.blocks = step.blocks
        found += [] if step.results is None else step.results.rows()
        states[end] = canonical(step.blocks)
        position = end
    return sorted(found), states


def frame_of(saved: Any, end: int) -> Control:
    return Control(operator_number("op"), 0, saved.rows, saved.windows, saved.since_us, end, saved.body)


def tear(writer: Any, saved: Any, end: int, chance: random.Random) -> None:
    """The process dies in the middle of its write: some bytes of the unit are in the file."""
    real = writer.disk.write

    def half(fd: int, path: Path, offset: int, parts: Any) -> int:
        data = b"".join(bytes(p) for p in parts)
        os.pwrite(fd, data[: chance.randrange(len(data))], offset)
        raise InterruptedError("died")

    writer.disk.write = half
    try:
        with pytest.raises(holdfast.StorageError):
            writer.commit([], now_us=end, boundary_us=end, control=[frame_of(saved, end)])
    finally:
        writer.disk.write = real


class Tasks:
    """The same operator as Spark runs it: each batch a task that finds its state on scratch, or else in the log."""

    def __init__(self, kind: str, root: Path, tuples: list[tuple[int, ...]]) -> None:
        self.operator, self.tuples = Operator(kind, root), tuples
        self.output, self.root = Output(str(root), "out"), root
        self.partitions = 1
        names: tuple[str, ...] = ("stime", *(["_w"] * (kind in ("sliding", "from the first"))), "_h", "count", "s", "a")
        names = {"join": ("stime", "_h", "_v0", "_v1"), "sort": ("stime", "_h", "_v1", "_w")}.get(kind, names)
        types = {"s": pa.float64(), "a": pa.float64()}
        self.schema = pa.schema([*((n, types.get(n, pa.int64())) for n in names), (control.COLUMN, pa.binary())])

    @property
    def scratch(self) -> Scratch:
        return Scratch(str(self.root / "scratch"), "op", self.partitions)

    def run(self, number: int, since: int, until: int, policy: Continuous) -> tuple[list[Any], list[Control]]:
        """Results and checkpoints of all partitions; the versions they leave behind lie on scratch."""
        done = [self._task(partition, number, since, until, policy) for partition in range(self.partitions)]
        return [row for rows, _ in done for row in rows], [frame for _, frames in done for frame in frames]

    def _task(
        self, partition: int, number: int, since: int, until: int, policy: Continuous
    ) -> tuple[list[Any], list[Control]]:
        def rows(start: int, end: int) -> pl.DataFrame:
            every = self.operator.frame([t for t in self.tuples if start <= t[0] < end])
            return every.filter(pl.Series(partition_of(every["_h"].to_numpy(), self.partitions) == partition))

        names = tuple(self.schema.names[:-1])
        plan = StagePlan("op", self.operator.kernel, self.operator.panes, self.schema, names, BUCKET, self.scratch,
                         policy, self.output)  # fmt: skip
        batch = Batch(since, until, rows(since, until), lambda position: rows(position, since))
        results, frames = [], []
        for out in Stage(plan, partition, number).run(batch):
            for row in out.to_pylist():
                raw = row.pop(control.COLUMN)
                if raw is None:
                    results.append(tuple(row.values()))
                else:
                    frames.append(control.decode(raw, self.operator.stream.folder / "staging"))
        return results, frames

    def lose(self) -> None:
        _memory.clear()
        shutil.rmtree(self.scratch.folder, ignore_errors=True)


@pytest.mark.parametrize("kind", ["fast", "slow", "mixed", "sliding", "join", "sort"])
def test_a_batch_executed_again_leaves_nothing_behind_that_the_log_does_not_know(kind: str, tmp_path: Path) -> None:
    """C1, C2: the log has the checkpoints of the first execution, scratch those of the second; they differ."""
    chance = random.Random(f"repeated {kind}")
    repeated = 0
    while repeated < CRASHES:
        repeated += repeated_history(kind, chance, tmp_path / str(repeated))


def repeated_history(kind: str, chance: random.Random, root: Path) -> int:
    batches = 24
    tuples = tuples_of(kind, chance, batches)
    holdfast.open(root).create("out", "n bigint", bucket="100ms")
    ends = [BUCKET * n for n in range(1, batches + 1)]
    want, states = undisturbed(kind, root, tuples, ends)
    tasks, found, repeated, since = Tasks(kind, root, tuples), [], 0, BEGIN
    for number, end in enumerate(ends):
        made, frames = tasks.run(number, since, end, drawn_policy(chance))
        writer = tasks.operator.stream.writer()
        writer.commit([], now_us=end, boundary_us=end, control=frames)
        writer.release(end)
        found += made
        while chance.random() < 0.4:
            repeated += 1
            assert tasks.run(number, since, end, drawn_policy(chance))[0] == made
        version = tasks.scratch.load(0, end)
        assert version is not None
        assert canonical(version.blocks) == states[end]
        if chance.random() < 0.3:
            tasks.lose()
        since = end
    assert sorted(found) == want
    return repeated


KINDS = ["fast", "slow", "mixed", "sliding", "overlapping", "timed out", "from the first", "landmark", "join", "sort"]


@pytest.mark.parametrize("kind", KINDS)
def test_another_number_of_partitions_makes_no_difference(kind: str, tmp_path: Path) -> None:
    """C13, C1, C2: from scratch, from the log alone, and when a batch is repeated with yet another number."""
    chance = random.Random(f"partitions {kind}")
    for case in range(max(1, CRASHES // 12)):
        _memory.clear()
        repartitioned_history(kind, chance, tmp_path / str(case))


def repartitioned_history(kind: str, chance: random.Random, root: Path) -> None:
    batches = 16
    tuples = tuples_of(kind, chance, batches)
    holdfast.open(root).create("out", "n bigint", bucket="100ms")
    ends = [BUCKET * n for n in range(1, batches + 1)]
    want, states = undisturbed(kind, root, tuples, ends)
    tasks, found, since = Tasks(kind, root, tuples), [], BEGIN
    for number, end in enumerate(ends):
        if chance.random() < 0.4:
            tasks.partitions = chance.choice([1, 2, 3, 4, 8])
        if chance.random() < 0.2:
            tasks.run(number, since, end, drawn_policy(chance))  # Cut off before its unit was written.
            tasks.partitions = chance.choice([1, 2, 3, 4, 8])
        made, frames = tasks.run(number, since, end, drawn_policy(chance))
        writer = tasks.operator.stream.writer()
        writer.commit([], now_us=end, boundary_us=end, control=frames)
        writer.release(end)
        found += made
        versions = [tasks.scratch.load(partition, end) for partition in range(tasks.partitions)]
        assert sorted((row for v in versions for row in canonical(v.blocks)), key=repr) == states[end]  # type: ignore[union-attr]
        if chance.random() < 0.3:
            tasks.lose()
        since = end
    assert sorted(found) == want


def test_versions_of_other_numbers_go_when_all_that_stay_are_newer(tmp_path: Path) -> None:
    scratch, block = Scratch(str(tmp_path), "op", 3), pl.DataFrame({"_h": [1, 2, 3], "_o": 0, "_s": 0})
    for partition in range(3):
        mine = block.filter(pl.Series(partition_of(block["_h"].to_numpy(), 3) == partition))
        scratch.store(partition, 10, Version({0: mine} if len(mine) else {}, Measured()))
    two = Scratch(str(tmp_path), "op", 2)
    assert two.has(10)
    assert sorted(h for p in range(2) for b in two.load(p, 10).blocks.values() for h in b["_h"]) == [1, 2, 3]  # type: ignore[union-attr]
    next(tmp_path.rglob("1-of-3/10.state")).unlink()
    _memory.clear()
    assert not two.has(10), "a part is no state"
    assert two.load(0, 10) is None
    for position in range(20, 20 + KEPT + 1):
        for partition in range(2):
            two.store(partition, position, Version({}, Measured()))
    assert sorted(p.name for p in (tmp_path / "op" / "main").iterdir()) == ["0-of-2", "1-of-2"]


def test_versions_of_an_earlier_holdfast_are_dealt_out_anew(tmp_path: Path) -> None:
    """They do not say among how many they are; it was as many as there are now, or they are not taken."""
    block = pl.DataFrame({"_h": [1, 2, 3], "_o": 0, "_s": 0})
    scratch = Scratch(str(tmp_path), "op", 2)
    scratch.store(0, 10, Version({0: block}, Measured(), mark=7))
    scratch.store(1, 10, Version({}, Measured(), mark=7))
    for partition in range(2):
        (tmp_path / "op" / "main" / f"{partition}-of-2").rename(tmp_path / "op" / "main" / str(partition))
    _memory.clear()
    found = [scratch.load(partition, 10) for partition in range(2)]
    assert sorted(h for v in found for b in v.blocks.values() for h in b["_h"]) == [1, 2, 3]  # type: ignore[union-attr]
    assert {v.mark for v in found} == {None}  # type: ignore[union-attr]
    assert Scratch(str(tmp_path), "op", 3).load(0, 10) is None


def drawn_policy(chance: random.Random) -> Continuous:
    """What a shot can afford differs from one execution to the next; here it is chance and not the clock."""
    return Continuous(chance.choice([1, BUCKET]), chance.choice([0, 2 * BUCKET]), chance.choice([0, 1, 5, 1000]), 1.0)


def check_log(operator: Operator, frames: int) -> None:
    """C4 and C5, by hand: every window is opened before it is checked or closed, and N is right on every record."""
    import io

    import msgspec

    log = ControlLog(operator.stream.reader())
    bodies = [b.read() for _, b in log.backwards(operator_number("op"), 0)][::-1]
    assert len(bodies) == frames
    open_: set[Any] = set()
    for body in bodies:
        _, _, _, windows, _, saved, closed, _ = msgspec.msgpack.decode(body)
        gone = pl.read_ipc_stream(io.BytesIO(closed)).select("_h", "_w").rows() if closed else []
        for number, window in gone:
            mine = {k for k in open_ if k[1] == window and number in (None, k[0])}
            assert mine, f"R without Gopen: {number}, {window}"
            open_ -= mine
        if saved:
            for number, window, sort in pl.read_ipc_stream(io.BytesIO(saved)).select("_h", "_w", "_g").rows():
                implicit = operator.kind in ("join", "sort")
                assert sort in (1, 2)
                # A count window that closed and began anew in one batch is opened again without an R between.
                assert implicit or (number, window) in open_ or sort == 1
                open_.add((number, window))
        assert len(open_) == windows
    assert list(operator.stream.subscribe().poll()) == []
