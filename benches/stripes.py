"""Striped streams: appends with 1, 2 and 4 writers, and a Spark query that writes to stripes itself.

*Append.* A process for each stripe sends units as fast as it can, all durable: units of 1,000 records of 1 KiB, and
single records. Beside them two limits for as many processes: "disk" writes the same bytes with `write` and `fdatasync`
to a file each, "cores" appends the same units to logs that are not synced. `stripes_ratio` is four stripes over one, in
MB/s of large units; `records_ratio` the same in single records. Contenders take turns, and the median counts.

*Sink.* A query copies a stream of some size, once to a stream with one log, whose driver takes, orders and appends all
rows, and once to stripes (`to_stripes`), whose tasks do that. `sink_ratio` is the time of all batches, as Spark reports
it, without stripes over that with them: above 1, stripes are quicker.

    python -m benches.stripes               a GB through Spark: some ten minutes
    python -m benches.stripes --quick       a shorter look: 0.1 GB
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pyarrow as pa

import holdfast
from benches.report import console, finish, table
from holdfast.clock import now_us
from holdfast.stream.disk import Disk, VolatileDisk
from holdfast.stream.pack import pack
from holdfast.stream.producer import Producer
from holdfast.stream.writer import LogWriter

STRIPES = (1, 2, 4)
RECORD = os.urandom(1024)
LARGE, SMALL = 1_000, 1
CONTENDERS = ("disk", "cores", "stripes")
SECOND = 1_000_000
T0_US = 1_700_000_000 * SECOND
#: Of the stream that the query copies.
COLUMNS = "key string, text string"
ROW_BYTES, EVENT_ROWS = 256, 4_096


#: Appends one unit, durably.
Append = Callable[[], object]


@contextlib.contextmanager
def raw(folder: Path, rows: int) -> Iterator[Append]:
    block = RECORD * rows
    fd = os.open(folder / "raw", os.O_CREAT | os.O_WRONLY, 0o600)

    def append() -> None:
        os.write(fd, block)
        os.fdatasync(fd)

    yield append
    os.close(fd)


@contextlib.contextmanager
def log(stream: holdfast.Stream, rows: int, disk: Disk) -> Iterator[Append]:
    """A stripe as its process writes it."""
    writer = LogWriter.open(stream.folder / "main", stream.definition.id_bytes, now_us=now_us(), disk=disk)
    batch = pa.record_batch([pa.array([RECORD] * rows, pa.binary())], schema=stream.definition.schema)
    with Producer(stream.definition, writer) as producer:
        yield partial(producer.send, (RECORD,)) if rows == 1 else partial(producer.send_batch, batch)


def one_of(
    what: str, root: str, n: int, rows: int, seconds: float, start: Barrier, done: multiprocessing.Queue[float]
) -> None:
    """One process of several; its records per second."""
    stream = holdfast.open(root).open_striped("s").stripes[n]
    disk = Disk() if what == "stripes" else VolatileDisk()
    with raw(stream.folder, rows) if what == "disk" else log(stream, rows, disk) as append:
        append()
        start.wait()
        began, count = time.monotonic(), 0
        while time.monotonic() < began + seconds:
            append()
            count += rows
        done.put(count / (time.monotonic() - began))


def appended(what: str, stripes: int, rows: int, seconds: float) -> float:
    """Records per second of all processes together."""
    forking = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as root:
        holdfast.open(root).create_striped("s", "payload binary", stripes=stripes, bucket="1s")
        start, done = forking.Barrier(stripes), forking.Queue()
        parts = [
            forking.Process(target=one_of, args=(what, root, n, rows, seconds, start, done)) for n in range(stripes)
        ]
        for part in parts:
            part.start()
        total = sum(done.get() for _ in parts)
        for part in parts:
            part.join()
    return total


def appends(rounds: int, seconds: float) -> dict[int, dict[str, dict[int, float]]]:
    """Median records per second: by size of unit, contender and number of stripes."""
    found: dict[int, dict[str, dict[int, float]]] = {}
    for rows in (LARGE, SMALL):
        rates: dict[tuple[str, int], list[float]] = {}
        for _ in range(rounds):
            for what in CONTENDERS:
                for stripes in STRIPES:
                    rates.setdefault((what, stripes), []).append(appended(what, stripes, rows, seconds))
        found[rows] = {w: {n: statistics.median(rates[w, n]) for n in STRIPES} for w in CONTENDERS}
        title = f"Records of 1 KiB per second, units of {rows:,}"
        table(title, ("writers", *map(str, STRIPES)), [(w, *map(round, r.values())) for w, r in found[rows].items()])
    return found


def filled(store: holdfast.StreamStore, gb: float) -> None:
    """The input of the query: as quick as can be, for it is not what is measured."""
    stream = store.create("in", COLUMNS, bucket="1s")
    writer = stream.writer()
    writer.disk = VolatileDisk()
    events = max(1, round(gb * 1e9 / (EVENT_ROWS * ROW_BYTES)))
    for second in range(events):
        begin = T0_US + second * SECOND
        columns = [pa.array(range(begin, begin + EVENT_ROWS), pa.timestamp("us", "UTC")),
                   pa.array([f"k{n * 7919 % 997}" for n in range(EVENT_ROWS)]),
                   pa.array([f"{second * EVENT_ROWS + n:0>{ROW_BYTES - 24}}" for n in range(EVENT_ROWS)])]  # fmt: skip
        batch = pa.RecordBatch.from_arrays(columns, schema=stream.definition.stored)
        writer.commit(pack(batch, stream.definition), now_us=now_us(), boundary_us=begin + SECOND)
    writer.commit((), now_us=now_us(), closed=True)
    writer.release(now_us())


def copied(stripes: int, rounds: int, gb: float) -> dict[str, float]:
    """Median seconds of all batches of a copy, without and with stripes."""
    from holdfast.spark import session, to_stripes

    seconds: dict[str, list[float]] = {"one log": [], "stripes": []}
    with tempfile.TemporaryDirectory() as folder:
        store = holdfast.open(Path(folder) / "streams")
        filled(store, gb)
        rows = store.open("in").reader().rows
        spark = session("stripes")
        spark.sparkContext.setLogLevel("OFF")
        for turn in range(rounds + 1):  # The first one warms up, and does not count.
            for what in list(seconds)[:: 1 if turn % 2 else -1]:
                source = spark.readStream.format("holdfast").option("root", str(store.root)).load("in")
                frame = source.select("stime", "key", "text")
                if what == "stripes":
                    store.create_striped(
                        "out", "key string, text string", stripes=stripes, stripe_by="key", bucket="1s"
                    )
                    writer = to_stripes(frame, "out", root=store.root)
                else:
                    store.create("out", COLUMNS, bucket="1s")
                    writer = frame.writeStream.format("holdfast").options(root=str(store.root), stream="out")
                checkpoint = f"{folder}/ckpt-{what}-{turn}".replace(" ", "-")
                query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
                query.awaitTermination()
                taken = sum(p.durationMs["triggerExecution"] for p in query.recentProgress) / 1000
                assert sum(stream.reader().rows for stream in store.open_all("out")) == rows
                store.delete("out")
                if turn:
                    seconds[what].append(taken)
        spark.stop()
    return {what: statistics.median(taken) for what, taken in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--gb", type=float)
    args = parser.parse_args()
    rounds, gb = args.rounds or (1 if args.quick else 5), args.gb or (0.1 if args.quick else 1.0)
    found = appends(rounds, 1.5 if args.quick else 5.0)
    cores = len(os.sched_getaffinity(0))
    stripes = max(2, cores)
    copies = copied(stripes, max(1, rounds - 2), gb)
    table(f"A query that writes {gb:g} GB", ("to", "seconds"), list(copies.items()))
    large, small = found[LARGE]["stripes"], found[SMALL]["stripes"]
    ratios = {"stripes_ratio": round(large[4] / large[1], 2), "records_ratio": round(small[4] / small[1], 2),
              "sink_ratio": round(copies["one log"] / copies["stripes"], 2)}  # fmt: skip
    console.print(", ".join(f"{name} {ratio}" for name, ratio in ratios.items()))
    megabytes = {w: {n: round(r * 1024 / 1e6, 1) for n, r in rates.items()} for w, rates in found[LARGE].items()}
    records = {w: {n: round(r) for n, r in rates.items()} for w, rates in found[SMALL].items()}
    finish("stripes", **ratios, append_mb_s=megabytes, append_records_s=records, gb=gb, sink_stripes=stripes,
           sink_s={what: round(taken, 2) for what, taken in copies.items()})  # fmt: skip


if __name__ == "__main__":
    main()
