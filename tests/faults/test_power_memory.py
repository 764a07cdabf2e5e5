"""Power cuts at any step of a stream that goes to memory and back: what is gone is named, and nothing comes twice."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast.stream import manifest as manifest_module
from holdfast.stream import memory as memory_module
from holdfast.stream.acks import acknowledge
from holdfast.stream.definition import Retention, define
from holdfast.stream.holes import read_holes
from holdfast.stream.losses import read_losses
from holdfast.stream.retention import retain
from holdfast.stream.writer import Event, LogWriter
from tests.faults.power import PowerCut, PowerDisk
from tests.faults.units import BUCKET_US, SCHEMA, STORED, STREAM_ID, QuietDisk, read_all

SEEDS = int(os.environ.get("HOLDFAST_SEEDS", "60"))
DEFINITION = define("s", SCHEMA, id=bytes(16).hex(), now_us=0, bucket="1ms")


class Toggle:
    """Memory or log, as the test says."""

    bucket_us = BUCKET_US

    def __init__(self) -> None:
        self.memory = False

    def in_memory(self, writer: LogWriter, now_us: int) -> bool:
        return self.memory


class Life:
    """A log through several power cuts: what `commit` has returned for, and what of it must be there."""

    def __init__(self, base: Path, seed: int, patch: pytest.MonkeyPatch) -> None:
        self.base, self.chance, self.patch = base, random.Random(seed), patch
        self.given: dict[int, int] = {}
        """The number in each tuple by its id."""
        self.durable: set[int] = set()
        self.lost: set[int] = set()
        self.underway: dict[int, int] = {}
        self.removed: set[int] = set()
        self.stime: dict[int, int] = {}
        self.boundary = -(2**62)
        self.numbers = itertools.count()
        self.toggle = Toggle()
        self.losses = 0

    def run(self, cuts: int) -> None:
        root = self.base / "0"
        root.mkdir(parents=True)
        for number in range(1, cuts + 1):
            for module in (manifest_module, memory_module):
                self.patch.setattr(module, "boot_id", lambda number=number: f"boot {number}")
            disk = PowerDisk(root, self.chance.choice((self.chance.randint(1, 40), self.chance.randint(1, 200))))
            with contextlib.suppress(PowerCut):
                self._work(disk, root / "stream" / "main")
            disk.dead = True
            after = self.base / str(number)
            disk.restart(after, self.chance)
            shutil.rmtree(root)
            root = after

    def _work(self, disk: PowerDisk, folder: Path) -> None:
        writer = self._open(folder, disk)
        self._judge(folder, writer)
        for _ in range(self.chance.randint(1, 40)):
            what = self.chance.random()
            if what < 0.7:
                self._send(writer)
            elif what < 0.85:
                self.toggle.memory = not self.toggle.memory
            elif what < 0.92:
                # Killed: the machine goes on, and so does its memory.
                writer._close_files()
                writer = self._open(folder, disk)
                self._judge(folder, writer)
                self.durable |= self.given.keys() - self.lost
            else:
                self._retain(folder, disk)

    def _open(self, folder: Path, disk: PowerDisk) -> LogWriter:
        return LogWriter.open(folder, STREAM_ID, now_us=1, disk=disk, segment_bytes=4096, persistence=self.toggle)

    def _send(self, writer: LogWriter) -> None:
        rows, first = self.chance.randint(1, 3), writer.state.next_tuple_id
        stime = max(writer.state.boundary_us, 0) + self.chance.choice((1, 300, BUCKET_US, 20_000_000))
        numbers = [next(self.numbers) for _ in range(rows)]
        columns = [pa.array([stime] * rows, STORED.field(0).type), pa.array(numbers), pa.array(["x" * 200] * rows)]
        body = pa.record_batch(columns, schema=STORED).serialize().to_pybytes()
        ids = range(first, first + rows)
        self.underway.update(zip(ids, numbers, strict=True))
        self.stime.update(dict.fromkeys(ids, stime))
        boundary = stime // BUCKET_US * BUCKET_US
        writer.commit([Event(stime // BUCKET_US, 0, rows, stime, stime, body)], now_us=1, boundary_us=boundary)
        assert self.given.keys().isdisjoint(ids)
        self.given.update(zip(ids, numbers, strict=True))
        self.boundary = max(self.boundary, boundary)
        if not writer.in_memory:
            self.durable |= self.given.keys() - self.lost

    def _retain(self, folder: Path, disk: PowerDisk) -> None:
        until = max(0, self.boundary - self.chance.choice((0, 5 * BUCKET_US)))
        self.removed |= {id for id in self.given if self.stime[id] < until}
        acknowledge(folder.parent, "reader", until, 1, disk)
        retain(folder, DEFINITION, 2, disk=disk, policy=Retention(acknowledged=True))

    def _gone(self, folder: Path) -> set[int]:
        losses = read_losses(folder)
        return {id for id in self.given if any(loss.id_first <= id < loss.id_next for loss in losses)}

    def _judge(self, folder: Path, writer: LogWriter) -> None:
        seen = read_all(folder)
        assert [id for id, _ in seen] == sorted({id for id, _ in seen})
        for id, (_, number, _) in seen:
            assert (self.given | self.underway)[id] == number  # No id stands for two tuples, ever.
        missing = self.given.keys() - {id for id, _ in seen} - self.removed
        gone = self._gone(folder)
        assert missing <= gone, "what is missing is named"
        assert not missing & self.durable, "what was durable is there"
        self.lost |= missing
        assert writer.state.next_tuple_id > max(self.given, default=0)
        assert writer.state.boundary_us >= self.boundary
        self.given |= {id: number for id, (_, number, _) in seen}
        self.losses = len(read_losses(folder))
        holes = read_holes(folder.parent)
        for id in missing:  # Within a hole, or in the bucket in which it begins.
            assert any(h.first_us - 2 * BUCKET_US <= self.stime[id] < h.upto_us for h in holes), (id, holes)


def test_power_cuts_in_memory_and_out_of_it_lose_nothing_unnamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L1 for what was durable; D10, D14 and L6 for the rest."""
    losses = 0
    for seed in range(SEEDS):
        life = Life(tmp_path / str(seed), seed, monkeypatch)
        try:
            life.run(cuts=5)
            life.patch.setattr(memory_module, "boot_id", lambda: "the last")
            life.patch.setattr(manifest_module, "boot_id", lambda: "the last")
            folder = tmp_path / str(seed) / "5" / "stream" / "main"
            if folder.exists():
                writer = LogWriter.open(folder, STREAM_ID, now_us=1, disk=QuietDisk())
                life._judge(folder, writer)
                writer.release(1)
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error
        losses += life.losses
        shutil.rmtree(tmp_path / str(seed))
    assert losses > SEEDS // 10  # The test has teeth only where something was lost.
