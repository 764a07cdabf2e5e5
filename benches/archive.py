"""Whether a long history costs more than a short one, when most of it lies in an object store (S3, moto's server).

Two streams are filled through their writers and archived as they grow; the disk keeps the last segments only. Then
processes start on either in turn, each with nothing in its caches, and measure
- a reader that starts in the middle of the history, up to its first tuples; the requests that it makes; its memory
  after it has read on for a while;
- a host: the stream opened for writing and let go, measured for its status, and looked through for what to archive.

`start_growth` is the worst of these four, the long history over the short one. A hundred gigabytes are computed: the
catalog that such an archive would have is made, and its size and the time to read it are measured.

    python -m benches.archive                       5 GB beside 0.1 GB: some ten minutes
    python -m benches.archive --gb 0.5 --starts 3   a minute
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
from tests.s3_server import s3_server

import holdfast
from benches.report import console, finish, table
from holdfast.cli.overview import overview
from holdfast.clock import now_us
from holdfast.stream.archive import ranges
from holdfast.stream.archive.archiver import archive_once
from holdfast.stream.archive.catalog import ArchivedSegment, Catalog, decode_catalog, paged
from holdfast.stream.archive.object_stores import open_objects
from holdfast.stream.archive.objects import ObjectStore
from holdfast.stream.disk import VolatileDisk
from holdfast.stream.manifest import SegmentEntry
from holdfast.stream.pack import pack
from holdfast.stream.sealed import seal

SMALL_GB = 0.1
COLUMNS = "n bigint, text string"
SEGMENT_BYTES = 16 << 20
#: Of one event, about.
EVENT_BYTES = 256 << 10
ROW_BYTES = 128
SECOND = 1_000_000
T0_US = 1_700_000_000 * SECOND
#: What a reader reads on after its first tuples, so that its memory is that of one at work.
READ_ON_BYTES = 16 << 20


def rows_at(stream: holdfast.Stream, second: int) -> pa.RecordBatch:
    count = EVENT_BYTES // ROW_BYTES
    columns = [pa.array([T0_US + second * SECOND] * count, pa.timestamp("us", "UTC")),
               pa.array(range(second * count, (second + 1) * count), pa.int64()),
               pa.array([f"{second:0>{ROW_BYTES - 20}}"] * count)]  # fmt: skip
    return pa.RecordBatch.from_arrays(columns, schema=stream.definition.stored)


def fill(store: holdfast.StreamStore, name: str, url: str, gb: float) -> tuple[int, float]:
    """Seconds of stime that the stream has, and the rate at which it was archived in MB/s."""
    stream = store.create(name, COLUMNS, bucket="1s", archive=url, segment_bytes=SEGMENT_BYTES,
                          retention=holdfast.Retention(size_bytes=2 * SEGMENT_BYTES))  # fmt: skip
    seconds, archived, taken = max(8, round(gb * 1e9 / EVENT_BYTES)), 0, 0.0
    per_turn = 8 * SEGMENT_BYTES // EVENT_BYTES
    for begin in range(0, seconds, per_turn):
        writer = stream.writer()
        writer.disk, writer._retention = VolatileDisk(), None  # The disk is not what is measured.
        for second in range(begin, min(begin + per_turn, seconds)):
            writer.commit(pack(rows_at(stream, second), stream.definition), now_us=now_us(),
                          boundary_us=T0_US + (second + 1) * SECOND)  # fmt: skip
        writer.release(now_us())
        began = time.perf_counter()
        archived += archive_once(stream.folder / "main", stream.definition).bytes
        taken += time.perf_counter() - began
        stream.retain()
    return seconds, archived / 1e6 / taken if taken else 0.0


class CountingStore(ObjectStore):
    """Counts what is asked of a store."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner.url)
        self._inner, self.requests = inner, 0

    def put(self, key: str, parts: Iterable[bytes]) -> None:
        self.requests += 1
        self._inner.put(key, parts)

    def create(self, key: str, data: bytes) -> bool:
        self.requests += 1
        return self._inner.create(key, data)

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        self.requests += 1
        return self._inner.get(key, start, end)

    def sizes(self, prefix: str) -> dict[str, int]:
        self.requests += 1
        return self._inner.sizes(prefix)

    def folders(self, prefix: str) -> list[str]:
        self.requests += 1
        return self._inner.folders(prefix)

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            self.requests += 1
            self._inner.delete([key])


def start(root: str, name: str, middle: int) -> dict[str, float]:
    """One start, in a process of its own."""
    pa.array([1]).cast(pa.float64())  # What Arrow loads lazily is not ours to measure.
    store = holdfast.open(root)
    url = store.open(name).definition.archive
    assert url is not None
    ranges.process().stores[url] = counted = CountingStore(open_objects(url))
    began = time.perf_counter()
    with store.open(name).subscribe(bucket=T0_US // SECOND + middle) as subscriber:
        batches = subscriber.poll()
        first = next(batches)
        reader_ms, requests = (time.perf_counter() - began) * 1e3, counted.requests
        assert first.column("n")[0].as_py() == middle * (EVENT_BYTES // ROW_BYTES)
        read = first.nbytes
        for batch in batches:
            read += batch.nbytes
            if read > READ_ON_BYTES:
                break
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    began = time.perf_counter()
    stream = store.open(name)
    stream.writer().release(now_us())
    overview(store, name, now_us())
    archive_once(stream.folder / "main", stream.definition)
    return {"reader_ms": reader_ms, "requests": requests, "memory_mb": memory,
            "host_ms": (time.perf_counter() - began) * 1e3}  # fmt: skip


def started(root: str, name: str, middle: int) -> dict[str, float]:
    done = subprocess.run([sys.executable, "-m", "benches.archive", "--probe", root, name, str(middle)], check=True,
                          capture_output=True, text=True)  # fmt: skip
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def on_paper(gb: float, segment_bytes: int) -> dict[str, float]:
    """The catalog of so much: its size, and the time to read it."""
    count = round(gb * 1e9 / segment_bytes)
    catalog = Catalog(stream="0" * 32, files={"stream": "x" * 800})
    loose: list[ArchivedSegment] = []
    for n in range(count):
        name = f"{n * 500:016d}-00000001.seg"
        entry = SegmentEntry(name, n * 500, 1, segment_bytes, 10**6, T0_US + n * SECOND, T0_US + n * SECOND, T0_US, ())
        loose.append(ArchivedSegment(entry, (n + 1) * 500, f"0001/{name}", 2**31, 40_000))
        if len(loose) == 256:
            catalog, _ = paged(Catalog(**{**_fields(catalog), "segments": tuple(loose)}))
            loose = list(catalog.segments)
    data = seal(Catalog(**{**_fields(catalog), "segments": tuple(loose)}))
    began = time.perf_counter()
    for _ in range(20):
        decode_catalog(data, "")
    return {"gb": gb, "segments": count, "catalog_kb": len(data) / 1e3, "read_ms": (time.perf_counter() - began) * 50}


def _fields(catalog: Catalog) -> dict[str, object]:
    return {name: getattr(catalog, name) for name in catalog.__struct_fields__}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--gb", type=float, default=5.0)
    parser.add_argument("--starts", type=int, default=15)
    parser.add_argument("--probe", nargs=3, metavar=("ROOT", "NAME", "MIDDLE"))
    args = parser.parse_args()
    if args.probe:
        print(json.dumps(start(args.probe[0], args.probe[1], int(args.probe[2]))))
        return
    sizes = {"short": min(SMALL_GB, args.gb / 4), "long": args.gb}
    with tempfile.TemporaryDirectory() as folder, s3_server() as server:
        os.environ.update(server.environment)
        server.make_bucket("bench")
        store = holdfast.open(Path(folder) / "streams")
        seconds, rates = {}, {}
        for name, gb in sizes.items():
            seconds[name], rates[name] = fill(store, name, "s3://bench/streams", gb)
            console.print(f"{name}: {gb:g} GB archived at {rates[name]:.0f} MB/s")
        found: dict[str, list[dict[str, float]]] = {name: [] for name in sizes}
        for n in range(args.starts):
            for name in list(sizes)[:: 1 if n % 2 else -1]:
                found[name].append(started(str(store.root), name, seconds[name] // 2))
    median = {
        name: {what: statistics.median(each[what] for each in starts) for what in starts[0]}
        for name, starts in found.items()
    }
    growth = {what: median["long"][what] / median["short"][what] for what in median["short"]}
    rows = [(what, median["short"][what], median["long"][what], growth[what]) for what in growth]
    table("Starts", ("figure", f"{sizes['short']:g} GB", f"{sizes['long']:g} GB", "growth"), rows)
    paper = [on_paper(gb, 128 << 20) for gb in (1, 5, 100, 10_000)]
    table("On paper, segments of 128 MiB", tuple(paper[0]), [tuple(p.values()) for p in paper])
    rounded = {what: round(times, 3) for what, times in growth.items()}
    finish("archive", start_growth=max(rounded.values()), growth=rounded, starts=median, gb=sizes,
           archive_mb_s={name: round(rate, 1) for name, rate in rates.items()}, on_paper=paper)  # fmt: skip


if __name__ == "__main__":
    main()
