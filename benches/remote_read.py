"""Reading events from the driver's host, as executors do that do not see the folder, beside reading them from the
folder.

Both readers are the ones of an executor's task: the same pieces, the same checks and decoding, in a process of their
own. They take turns over the same bytes, which lie in the page cache; the median of the ratios counts. `--tls` sends
them as on a cluster that authenticates.

    python -m benches.remote_read [--megabytes 1024] [--rounds 5] [--tls]
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

import holdfast
from benches.memory_source import COLUMNS, ROWS_PER_EVENT, example
from benches.report import finish, table
from holdfast.inputs.network import Access
from holdfast.spark.cluster_security import make_certificate
from holdfast.spark.grants import HOST, SESSION, VARIABLE, Way, way_for
from holdfast.spark.host_client import RemoteBodies
from holdfast.spark.stream_host import StreamHost
from holdfast.stream.merge import Bodies, Merge, PieceReader

_FOREVER = 2**62


def serve(note: Path, tls: bool) -> int:
    """A host in a process of its own, as the driver is one."""
    pid = os.fork()
    if pid == 0:
        access = Access()
        if tls:
            access = access._replace(certificate=note.with_suffix(".pem"), key=note.with_suffix(".key"))
            make_certificate(note.with_suffix(".pem"), note.with_suffix(".key"))
        StreamHost(access, "127.0.0.1", HOST, note, set)
        while True:
            time.sleep(3600)
    while not note.exists():
        time.sleep(0.01)
    return pid


def seconds(merge: Merge, bodies: Bodies) -> float:
    pieces = merge.pieces(-_FOREVER, _FOREVER)
    begun = time.perf_counter()
    reader = PieceReader(merge.sources, stream_column=False, bodies=bodies)
    for _ in reader.read(pieces, -_FOREVER, _FOREVER):
        pass
    reader.close()
    return time.perf_counter() - begun


def measure(root: Path, megabytes: int, rounds: int, way: Way) -> tuple[int, dict[str, list[float]]]:
    stream = holdfast.open(root).open("bench")
    merge = Merge([stream])
    size = stream.reader().size_bytes
    found: dict[str, list[float]] = {"from the folder": [], "from the host": []}
    for n in range(rounds + 1):
        for name in found:
            took = seconds(merge, Bodies() if name == "from the folder" else RemoteBodies(way))
            if n:  # The first round fills the page cache.
                found[name].append(size / took / 1e6)
    return size, found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benches.remote_read", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--megabytes", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tls", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=".", prefix=".bench-") as scratch:
        root = Path(scratch).absolute()
        stream = holdfast.open(root).create("bench", COLUMNS, bucket="1s")
        with stream.producer() as producer:
            while stream.reader().size_bytes < given.megabytes * 1_000_000:
                for n in range(8):
                    producer.send_batch(example(ROWS_PER_EVENT, n))
        host = serve(root / "host", given.tls)
        try:
            os.environ[VARIABLE] = str(root / "host")
            way = way_for([str(stream.folder)], SESSION)
            assert way is not None
            size, found = measure(root, given.megabytes, given.rounds, way)
        finally:
            os.kill(host, 9)
            os.waitpid(host, 0)
    median = {name: statistics.median(values) for name, values in found.items()}
    table(f"{size / 1e6:,.0f} MB of events", ["", "MB/s"], [[name, round(rate)] for name, rate in median.items()])
    ratios = [far / near for near, far in zip(*found.values(), strict=True)]
    finish(
        "remote_read", http_ratio=round(statistics.median(ratios), 3), tls=given.tls,
        mb_per_s_folder=round(median["from the folder"]), mb_per_s_http=round(median["from the host"]),
    )  # fmt: skip


if __name__ == "__main__":
    main()
