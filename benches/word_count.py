"""Word count on three nodes, a checkpoint after every word: 002 §4.2 and its figures 4.5 to 4.7, by store.

An adapter sends words into a stream at a fixed rate; three nodes, each a process, take the words that are theirs by
hash and keep a count per word in a user-defined operator's place: after every event the word's state goes to the node's
SafeKeeper, which keeps it in the store under test. Latency of a write: from the hand-over until it is durable. Then the
nodes are killed and start again, and read every state that they had: latency of a read; the counts must be those of the
words that were sent.

The text has three machines, NFS, Redis and HBase on a fourth; here nodes are processes of one machine and stores lie on
its disk, every write synced, but for HBase's, whose gateway cannot promise that. `--nfs FOLDER` puts the stores of
files there instead. Then the rate of a store that has a file per state, by how many states there are (figure 4.7);
`benches.stores` has the log's.

    python -m benches.word_count [--quick] [--nfs FOLDER]
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import random
import shutil
import statistics
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from tests.checkpoint.servers import RedisServer

import holdfast
from benches.report import console, finish, table
from benches.store_contenders import Absent, hbase_server
from benches.stores import drive
from holdfast.checkpoint.safekeeper import Outcome, Result, SafeKeeper
from holdfast.checkpoint.store import CheckpointStore, Entry
from holdfast.checkpoint.stores.files import FilesStore
from holdfast.checkpoint.stores.hbase import HBaseStore
from holdfast.checkpoint.stores.log import LogStore
from holdfast.checkpoint.stores.redis import RedisStore
from holdfast.stream.disk import VolatileDisk

NODES = 3
#: Events per second that the text's file store could just bear.
RATE = 400
STATES = 1000
_PAUSE_S = 0.005


class Found(NamedTuple):
    """What one node says at the end of one life."""

    latencies_us: list[int]
    outcomes: dict[str, int]
    counts: dict[str, int]


def opened(kind: str, place: str, node: int) -> CheckpointStore:
    if kind == "redis":
        return RedisStore(place)
    if kind == "hbase":
        return HBaseStore.at(place)
    folder = Path(place) / str(node)
    return FilesStore(folder) if kind == "files" else LogStore(folder)


def count_words(root: str, kind: str, place: str, node: int, said: Connection) -> None:
    """A node: its words, counted, each count saved."""
    latencies: list[int] = []
    outcomes: Counter[str] = Counter()

    def ended(result: Result) -> None:
        outcomes[result.outcome.value] += 1
        if result.outcome is Outcome.DURABLE:
            latencies.append(result.latency_us)

    counts: dict[str, int] = {}
    with opened(kind, place, node) as store:
        keeper = SafeKeeper(store, capacity=4096, on_result=ended)
        subscriber = holdfast.open(root).open("words").subscribe()
        said.send("there")
        while not subscriber.finished:
            for batch in subscriber.poll():
                for word in batch.column("word").to_pylist():
                    if zlib.crc32(word.encode()) % NODES == node:
                        counts[word] = n = counts.get(word, 0) + 1
                        keeper.save(b"%d/%s" % (node, word.encode()), n, b"%020d" % n)
            time.sleep(_PAUSE_S)
        keeper.flush()
        said.send(Found(latencies, dict(outcomes), counts))
        said.recv()  # Killed here: nothing is closed in order.


def recover(kind: str, place: str, node: int, words: list[str], said: Connection) -> None:
    """The same node in its next life: each state when its word comes again."""
    latencies, counts = [], {}
    with opened(kind, place, node) as store:
        for word in words:
            began = time.perf_counter()
            saved = store.get(b"%d/%s" % (node, word.encode()))
            latencies.append(round(1e6 * (time.perf_counter() - began)))
            counts[word] = int(saved.value) if saved is not None else 0
    said.send(Found(latencies, {}, counts))


def started(target: object, *given: object) -> tuple[multiprocessing.process.BaseProcess, Connection]:
    here, there = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=target, args=(*given, there))  # type: ignore[arg-type]
    process.start()
    return process, here


def trial(root: Path, kind: str, place: str, events: int, rate: float) -> dict[str, object]:
    chance = random.Random(2)
    words = [f"word{chance.randrange(STATES):04d}" for _ in range(events)]
    stream = holdfast.open(root).create("words", "word string", bucket="20ms")
    producer = stream.producer()
    nodes = [started(count_words, str(root), kind, place, node) for node in range(NODES)]
    for _, told in nodes:
        told.recv()
    began = time.perf_counter()
    for n, word in enumerate(words):
        if (wait := began + n / rate - time.perf_counter()) > 0:
            time.sleep(wait)
        producer.send_async({"word": word})
    producer.close()
    lives = [told.recv() for _, told in nodes]
    took = time.perf_counter() - began
    for process, _ in nodes:
        process.kill()
        process.join()
    again = [started(recover, kind, place, node, list(life.counts)) for node, life in enumerate(lives)]
    reads = [told.recv() for _, told in again]
    for process, _ in again:
        process.join()
    truth = Counter(words)
    right = all(reads[node].counts[w] == truth[w] for node, life in enumerate(lives) for w in life.counts)
    written = [us for life in lives for us in life.latencies_us]
    read = [us for life in reads for us in life.latencies_us]
    outcomes: Counter[str] = Counter()
    for life in lives:
        outcomes.update(life.outcomes)
    return {"write": round(statistics.mean(written) / 1000, 3), "read": round(statistics.mean(read) / 1000, 4),
            "write_p95": round(sorted(written)[int(0.95 * len(written))] / 1000, 3), "outcomes": dict(outcomes),
            "events_per_s": round(events / took), "states": len(read), "recovered_right": right}  # fmt: skip


@contextlib.contextmanager
def stored(kind: str, folder: Path) -> Iterator[str]:
    """Where the nodes keep their states."""
    if kind == "hbase":
        with hbase_server(folder) as address:
            yield f"{address}/words"
        return
    folder.mkdir(parents=True)
    if kind != "redis":
        yield str(folder)
        return
    server = RedisServer(folder)
    try:
        yield server.address
    finally:
        server.stop()


def files_by_states(folder: Path, sizes: tuple[int, ...], seconds: float) -> dict[int, int]:
    """Figure 4.7: durable writes per second of 64 callers into so many files."""
    found = {}
    for states in sizes:
        place = folder / f"by-{states}"
        with FilesStore(place, disk=VolatileDisk()) as store:
            store.put_many(Entry(b"word%07d" % k, 0, b"0" * 20) for k in range(states))
        with FilesStore(place) as store:

            def act(i: int, n: int, chance: random.Random, store: FilesStore = store, states: int = states) -> object:
                return store.put(b"word%07d" % chance.randrange(states), 64 * (n + 1) + i, b"1" * 20)

            found[states] = round(drive(act, 64, seconds, 1 << 30)[0])
        shutil.rmtree(place)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benches.word_count", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="2,000 events instead of 10,000")
    parser.add_argument("--rate", type=float, default=RATE)
    parser.add_argument("--folder", type=Path, default=Path(), help="where to write (a real disk; default: here)")
    parser.add_argument("--nfs", type=Path, help="a folder on an NFS mount, for the stores of files")
    given = parser.parse_args()
    events = 2_000 if given.quick else 10_000
    kinds = [kind for kind in ("files", "log", "redis", "hbase") if kind != "redis" or shutil.which("redis-server")]
    found: dict[str, dict[str, object]] = {}
    with (
        tempfile.TemporaryDirectory(dir=given.folder, prefix=".bench-") as scratch,
        tempfile.TemporaryDirectory(dir=given.nfs or given.folder, prefix=".bench-") as kept,
    ):
        for kind in kinds:
            root = Path(scratch).resolve() / kind
            place = Path(kept if kind in ("files", "log") else scratch).resolve()
            try:
                with stored(kind, place / f"{kind}-store") as at:
                    found[kind] = trial(root, kind, at, events, given.rate)
                console.print(kind, found[kind])
            except Absent as absent:
                console.print(f"{kind} left out: {absent}")
        sizes = (1_000, 10_000) if given.quick else (1_000, 10_000, 100_000)
        by_states = files_by_states(Path(scratch).resolve(), sizes, 1.0 if given.quick else 3.0)
    shown = [[k, f["write"], f["write_p95"], f["read"], f"{f['recovered_right']}"] for k, f in found.items()]
    table(
        f"{events} words at {given.rate:g} a second, three nodes: ms", ["", "write", "95 %", "read", "recovered"], shown
    )
    finish("word_count", latency_ms={kind: {"write": f["write"], "read": f["read"]} for kind, f in found.items()},
           write_over={kind: round(f["write"] / found["log"]["write"], 2) for kind, f in found.items()},
           recovered_right=all(bool(f["recovered_right"]) for f in found.values()), on_nfs=given.nfs is not None,
           files_writes_per_s_by_keys=by_states, detail={"trials": found})  # fmt: skip


if __name__ == "__main__":
    main()
