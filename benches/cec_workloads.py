"""The inputs that operator benches share: the seeds' three applications (000 §4.2) and time windows over many keys."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

import holdfast
from holdfast.operators.windows import Window, count_window, time_window

T0 = 1_700_000_000_000_000
COLUMNS = "item_id bigint, item_price bigint, item_descr string"


class Workload(NamedTuple):
    name: str
    keys: int
    window: Window
    rows: int
    """In one batch."""
    batches: int
    batch_us: int = 2_000_000

    def items(self, random: np.random.Generator) -> np.ndarray:
        if self.name.startswith("mixed"):
            # 100 ids come often and 10 rarely, so that their windows are slow.
            often = random.integers(0, 100, self.rows)
            return np.where(random.random(self.rows) < 0.002, random.integers(100, 110, self.rows), often)
        return random.integers(0, self.keys, self.rows)


APPLICATIONS = {
    "fast": Workload("fast", 1000, count_window(1), 500_000, 6),
    "slow": Workload("slow", 2, count_window(1000), 500_000, 6),
    "mixed": Workload("mixed", 110, count_window(10), 500_000, 6),
}


def windows(keys: int, rows: int, batches: int) -> Workload:
    """Time windows of five batches."""
    return Workload(f"time_{keys}", keys, time_window("10s"), rows, batches)


def fill(store: holdfast.StreamStore, w: Workload, seed: int = 0, *, end: bool = True) -> holdfast.Stream:
    """A stream with the workload's tuples, evenly spread over time, one bucket per batch."""
    stream = store.create(w.name.replace("_", "-"), COLUMNS, bucket="1s")
    random = np.random.default_rng(seed)
    producer = stream.producer(stime="stime", slack="0s")
    for b in range(w.batches):
        stimes = T0 + b * w.batch_us + np.arange(w.rows) * w.batch_us // w.rows
        producer.send_batch(pa.table({
            "stime": pa.array(stimes, pa.timestamp("us", "UTC")), "item_id": w.items(random),
            "item_price": random.integers(1, 100, w.rows), "item_descr": pa.repeat("an item for sale", w.rows),
        }))  # fmt: skip
    if not end:
        producer.advance(T0 + w.batches * w.batch_us)
    producer.close(end=end)
    return stream


def root_of(folder: str) -> Path:
    return Path(folder).absolute()
