"""Persistent streams by unit, writers and nodes: figures 3.5, 3.7, 3.8 and 3.9 of 000 (`benches.persist`: the others).

1. Batching (3.5): a stream that is not persisted, units of 1 to 64 tuples of 256 bytes to 4 KiB, a reader of its own.
2. Metadata (3.7): 1 to 8 writers with a stream each, units of 16 tuples of 4 KiB, each synced; the log as it is, which
   writes into room that it reserved, so that a sync has data to bring out and nothing else, and the same log on a disk
   that reserves nothing and syncs the metadata of the file with each write.
3. Nodes in a row (3.8, 3.9): each a process that reads a stream, looks at a field of every tuple, and writes what
   passes to the next stream, persisted always or never; MB/s at the end. The source sends what fits a window between it
   and the end, so that nothing is dropped on the way.

    python -m benches.persist_scaling [--quick]
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

import holdfast
from benches.log_append import rate
from benches.persist import SIZES, Readers, produced, wait
from benches.report import finish, table
from holdfast.model.errors import HoldfastError
from holdfast.stream.disk import Disk, storage_error
from holdfast.stream.producer import Producer
from holdfast.stream.store import StreamStore

UNITS = (1, 16, 32, 64)
WRITERS = (1, 2, 4, 8)
TUPLE, UNIT = 4096, 16
Mode = Literal["always", "never"]
#: Bytes between source and end, for each node in the row: some buckets of what the fastest of them pass on.
_WINDOW = 8 << 20
_PAUSE_S = 0.002


class MetadataDisk(Disk):
    """A file grows with every write, and its metadata are synced with it."""

    def reserve(self, fd: int, path: Path, offset: int, length: int) -> bool:
        return False

    def sync(self, fd: int, path: Path) -> None:
        try:
            os.fsync(fd)
        except OSError as error:
            raise storage_error("make durable", path, error) from error


def unit_of(tuples: int, size: int) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(range(tuples), pa.int64()),
                            "payload": pa.array([os.urandom(size)] * tuples, pa.binary())})  # fmt: skip


def batching(folder: Path, seconds: float) -> dict[int, dict[int, float]]:
    found: dict[int, dict[int, float]] = {size: {} for size in SIZES}
    for size in SIZES:
        for tuples in UNITS:
            unit = unit_of(tuples, size).select(["payload"])
            with produced(folder, "never") as producer:
                readers = Readers(folder)
                try:
                    readers.start()
                    calls = rate(lambda _, unit=unit: producer.send_batch(unit), 1, seconds)  # type: ignore[misc]
                finally:
                    producer.close()
                    readers.close()
            found[size][tuples] = round(calls * tuples * size / 1e6, 2)
    return found


def each_its_own(producers: Sequence[Producer], unit: pa.RecordBatch) -> Callable[[object], object]:
    """A function that sends with the producer of the thread that calls it."""
    mine, free = threading.local(), iter(producers)

    def send(_: object) -> object:
        if not hasattr(mine, "producer"):
            mine.producer = next(free)
        return mine.producer.send_batch(unit)

    return send


def writers(folder: Path, seconds: float) -> dict[int, dict[str, float]]:
    found: dict[int, dict[str, float]] = {}
    unit = unit_of(UNIT, TUPLE)
    for count in WRITERS:
        for name, disk in (("data", Disk()), ("metadata", MetadataDisk())):
            shutil.rmtree(folder, ignore_errors=True)
            store = StreamStore(folder, disk=disk)
            producers = [store.create(f"s{i}", "n bigint, payload binary", bucket="50ms").producer()
                         for i in range(count)]  # fmt: skip
            calls = rate(each_its_own(producers, unit), count, seconds)
            for producer in producers:
                producer.close()
            found.setdefault(count, {})[name] = round(calls * UNIT * TUPLE / 1e6, 2)
    return found


def relay(root: str, number: int, ready: Event) -> None:
    """A node: reads stream `number`, writes the next one."""
    store = holdfast.open(root)
    subscriber = store.open(f"s{number}").subscribe(name="node", resume=True)
    with store.open(f"s{number + 1}").producer() as producer:
        ready.set()
        while not subscriber.finished:
            for batch in subscriber.poll():
                kept = batch.filter(pc.greater_equal(batch.column("n"), 0))
                producer.send_batch(kept.select(["n", "payload"]))
            subscriber.ack()
            time.sleep(_PAUSE_S)


def row_of_nodes(folder: Path, nodes: int, mode: Mode, seconds: float) -> float:
    """MB/s at the end of the row."""
    shutil.rmtree(folder, ignore_errors=True)
    store = holdfast.open(folder)
    for i in range(nodes + 1):
        store.create(f"s{i}", "n bigint, payload binary", bucket="20ms", persist=mode)
    context = multiprocessing.get_context("forkserver")
    ready = [context.Event() for _ in range(nodes)]
    processes = [context.Process(target=relay, args=(str(folder), i, ready[i]), daemon=True) for i in range(nodes)]
    last = store.open(f"s{nodes}").subscribe(name="end")
    unit, sent, got, stop = unit_of(UNIT, TUPLE), [0], [0], threading.Event()

    def receive() -> None:
        while not stop.is_set():
            try:
                got[0] += sum(batch.num_rows for batch in last.poll()) * TUPLE
                last.ack()
            except HoldfastError:
                if not stop.is_set():
                    raise
            time.sleep(_PAUSE_S)

    def send() -> None:
        while not stop.is_set():
            if sent[0] - got[0] < _WINDOW * (nodes + 1):
                producer.send_batch(unit)
                sent[0] += UNIT * TUPLE
            else:
                time.sleep(_PAUSE_S)

    with store.open("s0").producer() as producer:
        for process, there in zip(processes, ready, strict=True):
            process.start()
            there.wait(60)
        threads = [threading.Thread(target=work, daemon=True) for work in (receive, send)]
        for thread in threads:
            thread.start()
        wait(lambda: got[0] > 0)
        time.sleep(0.5)
        began, before = time.perf_counter(), got[0]
        time.sleep(seconds)
        moved = (got[0] - before) / (time.perf_counter() - began) / 1e6
        stop.set()
        for thread in threads:
            thread.join()
    for process in processes:
        process.join(30)
        if process.is_alive():
            process.kill()
    return round(moved, 2)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benches.persist_scaling", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="short turns")
    parser.add_argument("--folder", type=Path, default=Path(), help="where to write (a real disk; default: here)")
    given = parser.parse_args()
    seconds = 0.4 if given.quick else 2.0
    multiprocessing.set_forkserver_preload(["benches.persist_scaling"])
    with tempfile.TemporaryDirectory(dir=given.folder, prefix=".bench-") as scratch:
        folder = Path(scratch).resolve() / "run"
        units = batching(folder, seconds)
        by_writers = writers(folder, seconds)
        modes: tuple[Mode, ...] = ("never", "always")
        chain = {n: {mode: row_of_nodes(folder, n, mode, 4 * seconds) for mode in modes} for n in WRITERS}
    table("not persisted, by tuples in a unit: MB/s", ["bytes", *map(str, UNITS)],
          [[str(size), *by.values()] for size, by in units.items()])  # fmt: skip
    table("synced, by writers: MB/s", ["writers", "data", "data and metadata"],
          [[str(n), *by.values()] for n, by in by_writers.items()])  # fmt: skip
    table("nodes in a row: MB/s at the end", ["nodes", "not persisted", "persisted"],
          [[str(n), *by.values()] for n, by in chain.items()])  # fmt: skip
    finish("persist_scaling", batching=units, writers=by_writers, chain=chain,
           unit_16_over_1=round(units[TUPLE][16] / units[TUPLE][1], 2))  # fmt: skip


if __name__ == "__main__":
    main()
