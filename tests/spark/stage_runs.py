"""An operator of a flow whose versions go to a store, run by hand as Spark would run it: no Spark, a batch in a moment.

Input that the planner says is not needed any more is removed after each batch, as retention would; whoever asks for it
fails (L8). Time is told: a batch takes a second, so that a policy of three seconds saves with every third.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import polars as pl
import pyarrow as pa
import pytest

import holdfast
from holdfast.checkpoint.store import Entry, Saved
from holdfast.checkpoint.stores.memory import MemoryStore
from holdfast.model.errors import PeerError, StateLost
from holdfast.operators.functions import count, sum_
from holdfast.operators.kernel import aggregate_kernel
from holdfast.operators.numbering import partition_of
from holdfast.operators.plan import Plan
from holdfast.operators.sorting import SortKernel
from holdfast.operators.windows import CountWindow, TimeWindow, Window
from holdfast.spark import durable_state, stage, version_store
from holdfast.spark.durable import Durable
from holdfast.spark.restore import Restore, Spec
from holdfast.spark.save_figures import Saving
from holdfast.spark.stage import Batch, Output, Stage, StagePlan
from holdfast.spark.versions import _memory
from tests.operators.reference import bsorted, count_windows, time_windows

SECOND = 1_000_000
#: (stime in µs, key, value), in processing order.
Row = tuple[int, int, int]
_NAMES = {
    "sort": ("stime", "_h", "_v1"),
    "time": ("stime", "_h", "count", "sum"),
    "count": ("stime", "_h", "count", "sum"),
}


def rows_of(seconds: int, keys: int = 30, seed: int = 1) -> list[Row]:
    chance = random.Random(seed)
    return [(SECOND + i * SECOND // 50, chance.randrange(keys), chance.randrange(1000)) for i in range(seconds * 50)]


class Server(MemoryStore):
    """Outlives those who use it; may be away, or gone in the middle of what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.away, self.left = False, 1 << 30

    def _write(self, entries: Sequence[Entry]) -> list[bool]:
        self._check()
        taken = super()._write(entries[: self.left])
        self.left -= len(taken)
        if len(taken) < len(entries):
            raise Killed("whoever wrote is gone")
        return taken

    def _read(self, keys: Sequence[bytes]) -> list[Saved | None]:
        self._check()
        return super()._read(keys)

    def _check(self) -> None:
        if self.away:
            raise PeerError("the server somewhere is away")

    def damage_newest(self, prefix: bytes, chance: random.Random | None = None) -> int:
        """Flip a byte of the newest piece of each partition that has two versions; of how many."""
        newest: dict[bytes, tuple[int, bytes, bytes]] = {}
        for key, (version, value) in self._kept.items():
            if value is not None and key.startswith(prefix) and b"/s" in key:
                newest[key[:-1]] = max(newest.get(key[:-1], (-1, b"", b"")), (version, key, value))
        two = [n for n, found in newest.items() if n + (b"1" if found[1].endswith(b"0") else b"0") in self._kept]
        for name in two:
            version, key, value = newest[name]
            raw = bytearray(value)
            raw[len(raw) // 2 if chance is None else chance.randrange(len(raw))] ^= 4
            self._kept[key] = (version, bytes(raw))
        return len(two)

    def close(self) -> None:
        """It stays."""


class Killed(BaseException):
    """The machine that wrote is gone."""


class Clock:
    """A batch takes a second."""

    def __init__(self) -> None:
        self.us = 1000 * SECOND

    def __call__(self) -> int:
        self.us += 1
        return self.us


def told_time(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(stage, "now_us", clock)
    monkeypatch.setattr(version_store, "now_us", clock)
    return clock


def one_server(monkeypatch: pytest.MonkeyPatch) -> Server:
    server, opened = Server(), durable_state.open_store
    monkeypatch.setattr(durable_state, "open_store", lambda a: server if a.startswith("redis") else opened(a))
    return server


class StageRun:
    """One query over one operator, in any number of partitions."""

    def __init__(
        self, root: Path, given: list[Row], clock: Clock, *, address: str = "redis://somewhere", every_s: float = 3,
        window: Window | int = 5, stream: str = "out", lineage: str = "main", always: bool = False,
        before: tuple[tuple[str, int], ...] = (), own: str | None = "", parents: tuple[str, ...] = (),
        partitions: int = 2, operator: str = "op", scratch: str = "scratch", arrived: str = "", arrived_of: int = 0,
    ) -> None:  # fmt: skip
        self.root, self.given, self.clock, self.window = root, given, clock, window
        self.every_us = round(every_s * SECOND)
        folder = str(root / scratch)
        self.spec = Spec(stream, operator, 1, folder, lineage, parents, arrived=arrived, arrived_of=arrived_of)
        name = own if own != "" else f"{stream}.{lineage}"
        self.durable = Durable(operator, address, self.every_us, 1, name, before, always)
        self.results: list[tuple[Any, ...]] = []
        self.removed_us = -(2**62)
        self.savings: list[Saving] = []
        self.figures: Any = None
        self.in_partitions(partitions)

    def in_partitions(self, partitions: int) -> None:
        """Start it again."""
        self.durable = msgspec.structs.replace(self.durable, partitions=partitions)
        self.spec = msgspec.structs.replace(self.spec, partitions=partitions, durable=self.durable)
        self.planner = Restore(self.spec, holdfast.open(self.root / "streams"))
        self.again_s: list[float] = []

    def kernel(self) -> tuple[Any, bool, str]:
        if isinstance(self.window, int):
            return SortKernel(self.window, ("_h",), ("_v1", "_w")), False, "sort"
        plan = Plan((count(), sum_("v").alias("sum")), (None, 0), {0: pl.Int64()})
        return *aggregate_kernel(self.window, plan, ("_h",)), "time" if isinstance(self.window, TimeWindow) else "count"

    def frame(self, since: int, until: int, partition: int) -> pl.DataFrame:
        assert since >= self.removed_us, "input that was let go is asked for (L8)"
        found = [(n, r) for n, r in enumerate(self.given) if since <= r[0] < until]
        data = {"_h": [r[1] for _, r in found], "_t": [r[0] for _, r in found], "_v0": [r[2] for _, r in found]}
        data |= {"_v1": data["_v0"], "_w": [n for n, _ in found]}
        frame = pl.DataFrame(data, schema=dict.fromkeys(data, pl.Int64))
        frame = frame if isinstance(self.window, int) else frame.drop("_v1", "_w")
        return frame.filter(
            pl.Series(partition_of(frame["_h"].to_numpy(), self.spec.partitions) == partition, dtype=pl.Boolean)
        )

    def batch(self, number: int, since: int, until: int, *, chance: random.Random | None = None) -> None:
        """A failure leaves no results, as if the batch had not been."""
        self.clock.us += SECOND
        read_from = self.planner.forked_us(since) if self.durable.own is None else self.planner.again_us(since)
        assert read_from >= self.removed_us, "input that was let go is read again (L8)"
        self.again_s.append((since - read_from) / SECOND if read_from > -(2**61) else -1)
        order = list(range(self.spec.partitions))
        if chance is not None:
            chance.shuffle(order)
        made = [row for partition in order for row in self.task(partition, number, since, until, read_from)]
        self.results += made
        if self.durable.own is not None:
            self.let_go(until)

    def let_go(self, until: int) -> None:
        try:
            self.removed_us = max(self.removed_us, self.planner.needed_us(until))
        except PeerError:
            return  # It stays for now.

    def task(self, partition: int, number: int, since: int, until: int, read_from: int) -> list[tuple[Any, ...]]:
        kernel, panes, kind = self.kernel()
        names = _NAMES[kind]
        schema = pa.schema([(name, pa.int64()) for name in names])
        output = Output(str(self.root / "streams"), self.spec.stream)
        plan = StagePlan(self.spec.operator, kernel, panes, schema, names, SECOND, self.spec.versions, None, output,
                         durable=self.durable, figures=self.figures)  # fmt: skip

        def again(position: int) -> pl.DataFrame:
            if position < read_from and self.durable.own is not None:  # A fork's operator may read itself.
                raise StateLost(f"read from {read_from} only, needed from {position}")
            return self.frame(position, since, partition)

        rows = Batch(since, until, self.frame(since, until, partition), again)
        found = Stage(plan, partition, number, query="q").run(rows)
        return [tuple(row.values()) for out in found for row in out.to_pylist()]

    def run(self, first: int, last: int) -> None:
        for number in range(first, last):
            self.batch(number, self.at(number), self.at(number + 1))

    @staticmethod
    def at(number: int) -> int:
        """Where the batch of that number begins: the first at the beginning of the stream."""
        return -(2**62) if number == 0 else (number + 1) * SECOND

    def lose(self) -> None:
        """The machine is gone, and with it scratch and memory. The query is started again."""
        _memory.clear()
        shutil.rmtree(self.spec.scratch, ignore_errors=True)
        self.in_partitions(self.spec.partitions)

    def kill(self) -> None:
        """The process is gone; its machine stays."""
        _memory.clear()
        self.in_partitions(self.spec.partitions)


def expected(given: list[Row], window: Window | int, until: int) -> list[tuple[Any, ...]]:
    """What comes out where nothing happens, worked out tuple by tuple."""
    rows = [row for row in given if row[0] < until]
    if isinstance(window, int):
        return sorted(bsorted(rows, window))
    if isinstance(window, TimeWindow):
        found = time_windows(rows, until, window.size_us, window.advance_us)
        return sorted((end, key, len(values), sum(values)) for end, _, key, values in found)
    assert isinstance(window, CountWindow)
    made = count_windows(rows, window.size, window.advance)
    return sorted((stime, key, len(values), sum(values)) for stime, key, values in made)
