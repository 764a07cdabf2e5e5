"""The limit beside a bench of operators: polars in one process, over the same rows, without Spark or checkpoints.

It takes the same batches from the same log, checked as every reader checks them, groups them with as many threads as
there are cores, keeps the windows that are open in memory, and appends what has closed to a stream, one durable commit
a batch: the same way from log to log. The rate without the two logs, over rows that lie in memory, is taken as well.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import polars as pl
import pyarrow as pa

import holdfast
from benches.cec_workloads import T0, Workload
from holdfast.operators.windows import TimeWindow
from holdfast.stream.producer import Producer

KEYS = ("window_start", "item_id")
RESULTS = "window_start timestamp, item_id bigint, count bigint, avg_item_price double"


class Limit(NamedTuple):
    """Tuples per second, all batches but the first."""

    log_to_log: float
    in_memory: float
    results: int
    """Windows that closed."""


def limit(store: holdfast.StreamStore, w: Workload, out: str) -> Limit:
    """The workload of time windows by polars, both ways."""
    stream = store.open(w.name.replace("_", "-"))
    reader = stream.reader()
    reader.refresh()

    def rows(batch: int) -> pl.DataFrame:
        since = T0 + batch * w.batch_us
        return _frame([part for _, part in reader.scan(since, since + w.batch_us)])

    written = store.create(out, RESULTS, bucket="1s")
    with written.producer(stime="stime", slack="0s") as producer:
        from_log, results = _run(w, rows, lambda closed, until_us: _append(producer, closed, until_us))
    held = [rows(batch) for batch in range(w.batches)]
    reader.close()
    in_memory, _ = _run(w, held.__getitem__, lambda closed, until_us: None)
    return Limit(from_log, in_memory, results)


def _run(
    w: Workload, rows: Callable[[int], pl.DataFrame], append: Callable[[pl.DataFrame, int], None]
) -> tuple[float, int]:
    assert isinstance(w.window, TimeWindow)
    size = w.window.size_us
    start = (pl.col("stime").cast(pl.Int64) // size * size).alias("window_start")
    state, began, results = None, time.perf_counter(), 0
    for batch in range(w.batches):
        if batch == 1:
            began = time.perf_counter()
        new = rows(batch).lazy().group_by(start, "item_id")
        new = new.agg(pl.len().cast(pl.Int64).alias("c"), pl.col("item_price").sum().alias("s")).collect()
        if state is not None:
            new = pl.concat([state, new]).lazy().group_by(*KEYS).agg(pl.col("c").sum(), pl.col("s").sum()).collect()
        until_us = T0 + (batch + 1) * w.batch_us
        ended = pl.col("window_start") + size <= until_us
        closed, state = new.filter(ended), new.filter(~ended)
        results += len(closed)
        shaped = closed.select(
            (pl.col("window_start") + size).cast(pl.Datetime("us", "UTC")).alias("stime"),
            pl.col("window_start").cast(pl.Datetime("us", "UTC")), "item_id", pl.col("c").alias("count"),
            (pl.col("s") / pl.col("c")).alias("avg_item_price"),
        )  # fmt: skip
        append(shaped, until_us)
    return w.rows * (w.batches - 1) / (time.perf_counter() - began), results


def _append(producer: Producer, closed: pl.DataFrame, until_us: int) -> None:
    """Durable when it returns: the results, or else how far it has come."""
    if len(closed):
        producer.send_batch(closed.to_arrow())
    else:
        producer.advance(until_us)


def _frame(batches: list[pa.RecordBatch]) -> pl.DataFrame:
    frame = pl.from_arrow(pa.Table.from_batches(batches))
    assert isinstance(frame, pl.DataFrame)
    return frame
