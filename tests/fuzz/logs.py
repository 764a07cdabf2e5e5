"""Files of a stream that rot: exact data or an error; repair mends or says what is lost, and never invents."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa

import holdfast
from holdfast.stream.checking.repair import repair
from holdfast.stream.checking.verify import verify
from holdfast.stream.definition import Retention
from holdfast.stream.store import StreamStore
from tests.fuzz.target import Target, Wrong, mutated

_ROUND = 6


class Logs(Target):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        os.fdatasync = os.fsync = lambda fd: None  # The machine stays up here.
        self._roots = [self._build(folder / str(released), released) for released in (True, False)]
        self._expected = [_rows(root) for root in self._roots]

    def _build(self, root: Path, released: bool) -> Path:
        now = iter(range(1_000_000, 10**9, 700))
        stream = StreamStore(root, clock=lambda: next(now)).create(
            "s", "n bigint, text string", bucket="1ms", segment_bytes=4096
        )
        producer = stream.producer(boundary_every="1h", id="p")
        for n in range(20):
            producer.send_many([{"n": n, "text": "x" * (700 + n * 7 % 90)}, {"n": -n, "text": None}], seq=n)
        producer.advance(10**9)
        stream.retain(Retention(size_bytes=12_000))
        if released:
            producer.close(end=False)
        else:
            producer._ticker.stop()
            producer.writer._close_files()
        return root

    def round(self, chance: random.Random) -> None:
        for _ in range(_ROUND):
            which = chance.randrange(2)
            root, expected = self._roots[which], self._expected[which]
            work = self.folder / "work"
            shutil.rmtree(work, ignore_errors=True)
            shutil.copytree(root, work)
            about = self._damage(work, chance)
            found = self.refused_or("read", lambda work=work: _rows(work), about)
            if found is not None and found != expected:
                raise Wrong(f"read: {about}: other data came back: {len(found)} rows instead of {len(expected)}")
            self._mend(work, expected, about)

    def _damage(self, work: Path, chance: random.Random) -> str:
        kinds: dict[str, list[Path]] = {}
        for path in sorted(p for p in work.rglob("*") if p.is_file() and p.name != "retention.lock"):
            kinds.setdefault(path.suffix or path.name.split("-")[0], []).append(path)
        path = chance.choice(kinds[chance.choice(sorted(kinds))])
        data = path.read_bytes()
        changed = bytearray(data)
        if chance.random() < 0.5 and data:
            for _ in range(chance.choice([1, 3])):
                changed[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        else:
            changed = bytearray(mutated(data, chance))
        path.write_bytes(changed)
        return f"{path.relative_to(work)} of {len(data)} bytes changed"

    def _mend(self, work: Path, expected: list[Any], about: str) -> None:
        folder = work / "s" / "main"
        if not (work / "s").is_dir():
            return
        self.refused_or("verify", lambda: list(verify(work / "s")), about)
        done = self.refused_or("repair", lambda: repair(work / "s", now_us=10**9, apply=True, drop_damaged=True), about)
        if done is None or done.remaining or not folder.is_dir():
            return
        found = self.refused_or("read after repair", lambda: _rows(work), about)
        if found is None:
            raise Wrong(f"repair: {about}: it was called in order and cannot be read")
        rest = iter(expected)
        if not all(row in rest for row in found):
            raise Wrong(f"repair: {about}: rows came back that were never sent, or in another order")


def _rows(root: Path) -> list[Any]:
    stream = holdfast.open(root).open("s")
    with stream.subscribe() as subscriber:
        return list(pa.Table.from_batches(subscriber.poll(), subscriber.schema).to_pylist())
