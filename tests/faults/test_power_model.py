"""Power cuts at any step, with any state that rules of `power` permit (L1, L2, L3, L8)."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
from pathlib import Path

import pytest

from holdfast.model.errors import HoldfastError
from holdfast.stream.acks import acknowledge
from holdfast.stream.definition import Retention, define
from holdfast.stream.retention import retain
from holdfast.stream.store import StreamStore
from holdfast.stream.writer import LogWriter
from tests.faults.power import PowerCut, PowerDisk
from tests.faults.units import BUCKET_US, SCHEMA, QuietDisk, flat, judge, last_sent, open_log, removed_rows, send

#: Raise it for a long run: HOLDFAST_SEEDS=5000 pytest tests/faults/test_power_model.py
SEEDS = int(os.environ.get("HOLDFAST_SEEDS", "140"))
DEFINITION = define("s", SCHEMA, id=bytes(16).hex(), now_us=0, bucket="1ms")


class Life:
    """A log through several power cuts: what was sent, acknowledged, and given up for removal."""

    def __init__(self, base: Path, seed: int) -> None:
        self.base, self.chance = base, random.Random(seed)
        self.acked = self.sent = self.needless_us = 0
        self.writer: LogWriter | None = None

    def run(self, cuts: int) -> None:
        root = self.base / "0"
        root.mkdir(parents=True)
        for number in range(1, cuts + 1):
            disk = PowerDisk(root, self.chance.choice((self.chance.randint(1, 25), self.chance.randint(1, 120))))
            with contextlib.suppress(PowerCut):
                self._work(disk, root / "stream" / "main")
            if self.writer is not None:
                with contextlib.suppress(PowerCut):
                    self.writer.release(0)
            disk.dead = True
            after = self.base / str(number)
            disk.restart(after, self.chance)
            shutil.rmtree(root)
            root = after
            self._judge(root / "stream" / "main")

    def _work(self, disk: PowerDisk, folder: Path) -> None:
        self.writer = None
        size = self.chance.choice((512, 4096, 1 << 20))
        for _ in range(self.chance.randint(1, 30)):
            if self.writer is None:
                self.writer = open_log(folder, disk=disk, segment_bytes=size)
                known = last_sent(self.writer)
                assert self.acked <= known <= self.sent
                self.acked = known
                continue
            what = self.chance.random()
            if what < 0.8:
                self.sent = self.acked + 1
                send(self.writer, self.sent)
                self.acked = self.sent
            elif what < 0.9:
                writer, self.writer = self.writer, None
                writer.release(1)
            else:
                self.needless_us = max(self.needless_us, self.chance.randint(0, self.acked + 1) * BUCKET_US)
                acknowledge(folder.parent, "reader", self.needless_us, 1, disk)
                retain(folder, DEFINITION, 2, disk=disk, policy=Retention(size_bytes=self.chance.choice((1, 2048))))
        if disk.cut_at is not None:
            disk.dead = True

    def _judge(self, folder: Path) -> None:
        if not folder.exists():
            assert self.acked == 0
            return
        # A reader alone sees what was acknowledged, before any writer mended the end.
        judge(folder, self.acked, self.sent)
        needless = sum(1 for stime, _, _ in flat(list(range(1, self.sent + 1))) if stime < self.needless_us)
        assert removed_rows(folder) <= needless
        # On a copy: the life goes on from what the cut left, not from what the check mended.
        copy = folder.parent.parent / "copy"
        shutil.copytree(folder, copy)
        writer = open_log(copy, disk=QuietDisk())
        try:
            last = last_sent(writer)
            assert judge(copy, self.acked, self.sent) == last
            send(writer, last + 1)
            judge(copy, last + 1, last + 1)
        finally:
            writer.release(9)
            shutil.rmtree(copy)


@pytest.mark.parametrize("chunk", range(8))
def test_whatever_a_power_cut_leaves_every_acknowledged_unit_is_there(chunk: int, tmp_path: Path) -> None:
    """L1, L3, L8, over several cuts in a row, the later ones also while the log is being mended."""
    for seed in range(chunk * SEEDS // 8, (chunk + 1) * SEEDS // 8):
        try:
            Life(tmp_path / str(seed), seed).run(cuts=3)
        except (AssertionError, HoldfastError) as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        shutil.rmtree(tmp_path / str(seed))


def test_a_stream_that_was_created_and_acknowledged_survives_the_loss_of_every_unsynced_name(tmp_path: Path) -> None:
    """L1 from the very first folder on: the root itself may be new."""
    for seed in range(60):
        base = tmp_path / f"{seed}"
        base.mkdir()
        disk = PowerDisk(base)
        acked = 0
        stream = StreamStore(base / "deep" / "root", disk=disk).create("s", "n bigint")
        producer = stream.producer(boundary_every="1h")
        for n in range(1, 4):
            producer.send({"n": n})
            acked = n
        disk.dead = True
        with contextlib.suppress(PowerCut):
            producer.close(end=False)
        after = tmp_path / f"{seed}-after"
        disk.restart(after, random.Random(seed))
        store = StreamStore(after / "deep" / "root")
        with store.open("s").producer() as again:
            again.send({"n": acked + 1})
        assert [r.values["n"] for r in store.open("s").subscribe().rows()] == [1, 2, 3, 4], f"seed {seed}"
