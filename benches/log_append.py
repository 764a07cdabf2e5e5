"""Durable appends of 1 KiB records: Holdfast beside the raw disk and beside stores that are known to be fast.

Everybody makes every record durable before the caller goes on. One process, callers are threads; a caller sends one
record and waits. "raw" writes as many records as there are callers and calls fdatasync, in a loop: the limit of the
disk for groups of that size. "send_async" is one caller that does not wait for each: its rate until all are durable,
beside that of 64 who do. The last table is Arrow batches of 1,000 records from one caller. Contenders take turns,
several rounds, and the median counts, because a disk has moods.

    python -m benches.log_append            all contenders
    python -m benches.log_append --quick    a shorter look
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import socket
import sqlite3
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa

import holdfast
from benches.report import console, finish, table

RECORD = os.urandom(1024)
BATCH = 1000
CALLERS = (1, 16, 64)

#: Sends one record and returns when it is durable.
Send = Callable[[bytes], object]


@contextlib.contextmanager
def raw(folder: Path, group: int) -> Iterator[Send]:
    """One writer; each call stands for a whole group."""
    fd = os.open(folder / "raw", os.O_CREAT | os.O_WRONLY, 0o644)
    block = RECORD * group

    def send(_: bytes) -> None:
        os.write(fd, block)
        os.fdatasync(fd)

    yield send
    os.close(fd)


@contextlib.contextmanager
def log(folder: Path) -> Iterator[Send]:
    stream = holdfast.open(folder).create("bench", "payload binary", bucket="1s")
    with stream.producer() as producer:
        yield lambda record: producer.send((record,))


@contextlib.contextmanager
def rocksdb(folder: Path) -> Iterator[Send]:
    from rocksdict import Options, Rdict, WriteOptions

    options = Options(raw_mode=True)
    options.create_if_missing(True)
    db = Rdict(str(folder / "rocks"), options)
    durable = WriteOptions()
    durable.sync = True
    db.set_write_options(durable)
    counter = Counter()

    def send(record: bytes) -> None:
        db[counter.next()] = record

    yield send
    db.close()


@contextlib.contextmanager
def lmdb(folder: Path) -> Iterator[Send]:
    import lmdb as library

    env = library.open(str(folder / "lmdb"), map_size=4 << 30, sync=True, metasync=True)
    counter = Counter()

    def send(record: bytes) -> None:
        with env.begin(write=True) as transaction:
            transaction.put(counter.next(), record, append=True)

    yield send
    env.close()


@contextlib.contextmanager
def sqlite(folder: Path) -> Iterator[Send]:
    path = folder / "db"
    with sqlite3.connect(path) as db:
        db.execute("pragma journal_mode=wal")
        db.execute("create table log (id integer primary key, record blob)")
    mine = threading.local()
    turn = threading.Lock()  # SQLite has one writer; waiting in its busy handler would be slower still.

    def send(record: bytes) -> None:
        with turn:
            if not hasattr(mine, "db"):
                mine.db = sqlite3.connect(path, isolation_level=None)
                mine.db.execute("pragma synchronous=full")
            mine.db.execute("insert into log (record) values (?)", (record,))

    yield send


@contextlib.contextmanager
def redis(folder: Path) -> Iterator[Send]:
    import redis as library

    program = shutil.which("redis-server")
    if program is None:
        raise FileNotFoundError("redis-server")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = subprocess.Popen(
        [program, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--appendonly", "yes",
         "--appendfsync", "always", "--save", "", "--auto-aof-rewrite-percentage", "0"],
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        client = library.Redis(port=port, max_connections=128)
        while True:
            with contextlib.suppress(library.ConnectionError):
                client.ping()
                break
            time.sleep(0.05)
        yield lambda record: client.rpush("log", record)
        client.close()
    finally:
        server.terminate()
        server.wait()


class Counter:
    """Increasing keys for stores that need one."""

    def __init__(self) -> None:
        self._value, self._lock = 0, threading.Lock()

    def next(self) -> bytes:
        with self._lock:
            self._value += 1
            return self._value.to_bytes(8, "big")


STORES = {"RocksDB": rocksdb, "LMDB": lmdb, "SQLite": sqlite, "Redis": redis}


def rate(send: Send, callers: int, seconds: float) -> float:
    """Calls per second with that many callers, each waiting for its own."""
    done = [0] * callers
    begin, stop = threading.Barrier(callers + 1), threading.Event()

    def work(i: int) -> None:
        begin.wait()
        while not stop.is_set():
            send(RECORD)
            done[i] += 1

    threads = [threading.Thread(target=work, args=(i,)) for i in range(callers)]
    for thread in threads:
        thread.start()
    begin.wait()
    started = time.perf_counter()
    time.sleep(seconds)
    stop.set()
    for thread in threads:
        thread.join()
    return sum(done) / (time.perf_counter() - started)


def batches(folder: Path, seconds: float, ours: bool) -> float:
    """Records per second in batches of 1,000: Arrow batches through a producer, or the same bytes raw."""
    if not ours:
        with raw(folder, BATCH) as send:
            return BATCH * rate(send, 1, seconds)
    batch = pa.record_batch({"payload": pa.array([RECORD] * BATCH, pa.binary())})
    stream = holdfast.open(folder).create("bench", "payload binary", bucket="1s")
    with stream.producer() as producer:
        return BATCH * rate(lambda _: producer.send_batch(batch), 1, seconds)


def without_waiting(folder: Path, seconds: float) -> float:
    """Records per second of one caller with `send_async`, until the last of them is durable."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    stream = holdfast.open(folder).create("bench", "payload binary", bucket="1s")
    with stream.producer() as producer:
        producer.send((RECORD,))
        begun, sent = time.perf_counter(), 0
        while time.perf_counter() - begun < seconds:
            last = producer.send_async((RECORD,))
            sent += 1
        last.result()
        return sent / (time.perf_counter() - begun)


def measure(folder: Path, name: str, callers: int, seconds: float) -> float:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if name == "raw":
        with raw(folder, callers) as send:
            return callers * rate(send, 1, seconds)
    with (log if name == "Holdfast" else STORES[name])(folder) as send:
        send(RECORD)  # What a library loads on first use is not the disk's fault.
        return rate(send, callers, seconds)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benches.log_append", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="one short round")
    parser.add_argument("--folder", type=Path, default=Path(), help="where to write (a real disk; default: here)")
    given = parser.parse_args()
    seconds, rounds = (0.5, 1) if given.quick else (1.5, 5)
    names = ["raw", "Holdfast", *STORES]
    if shutil.which("redis-server") is None:
        console.print("redis-server is not installed; Redis is left out")
        names.remove("Redis")
    with tempfile.TemporaryDirectory(dir=given.folder, prefix=".bench-") as scratch:
        folder = Path(scratch) / "run"
        found: dict[tuple[str, int], list[float]] = {}
        of_batches: dict[bool, list[float]] = {True: [], False: []}
        of_async: list[float] = []
        for _ in range(rounds):
            for callers in CALLERS:
                for name in names:
                    found.setdefault((name, callers), []).append(measure(folder, name, callers, seconds))
            of_async.append(without_waiting(folder, seconds))
            for ours in (False, True):
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                of_batches[ours].append(batches(folder, seconds, ours))
    median = {key: statistics.median(values) for key, values in found.items()}
    rows: list[list[object]] = [[n, *(round(median[n, c]) for c in CALLERS)] for n in names]
    table("durable appends of 1 KiB, records per second", ["", *(f"{c} callers" for c in CALLERS)], rows)
    in_turn = statistics.median(of_async)
    table("one caller with send_async", ["", "records/s"], [["Holdfast", round(in_turn)]])
    ours, limit = statistics.median(of_batches[True]), statistics.median(of_batches[False])
    table("Arrow batches of 1,000 records", ["", "records/s"], [["raw", round(limit)], ["Holdfast", round(ours)]])
    stores = [n for n in names if n not in ("raw", "Holdfast")]
    ahead = {c: {n: round(median["Holdfast", c] / median[n, c], 2) for n in stores} for c in CALLERS}
    finish(
        "log_append",
        # Median of the ratios within a round, so that a slow minute of the disk weighs on both sides.
        ratio_raw=round(statistics.median(a / b for a, b in zip(of_batches[True], of_batches[False], strict=True)), 3),
        ahead_of_all_stores=all(r > 1 for at in ahead.values() for r in at.values()),
        async_ratio=round(statistics.median(a / b for a, b in zip(of_async, found["Holdfast", 64], strict=True)), 2),
        ratio_raw_callers={c: round(median["Holdfast", c] / median["raw", c], 2) for c in CALLERS},
        over_stores=ahead,
        records_per_s={f"{n} {c}": round(median[n, c]) for n in names for c in CALLERS},
        async_records_per_s=round(in_turn),
        batch_records_per_s=round(ours),
    )


if __name__ == "__main__":
    main()
