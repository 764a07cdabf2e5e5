"""What the samples of earlier formats were written by: `python -m tests.stream.sample_streams FOLDER`, at the commit
that a sample is named after; the folder is packed with tar. `tests/spark/sample_job.py` makes those that need Spark.

A sample has the output of a node in the middle of a failure, with its branch, its report and what a reader has
acknowledged; a stream with an archive that has most of it; one that is persisted on demand; one with a column more than
it began with; one of a Holdfast that is not there yet; and checkpoint stores in files, in a log, and of a Redis server.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

import holdfast
from holdfast.checkpoint.store import CheckpointStore, Entry
from holdfast.checkpoint.stores import open_store
from holdfast.clock import now_us
from holdfast.model.schema import parse_schema
from holdfast.protocol.dpc.states import StreamState
from holdfast.stream.archive.archiver import archive_once
from holdfast.stream.definition import Retention
from holdfast.stream.sealed import seal
from tests.checkpoint.servers import RedisServer
from tests.stream.test_subscriber import SECOND, publish, send, tentative

#: Numbers in the archived stream, each with text enough that some of them fill a segment.
ARCHIVED, TEXT = range(30), "x" * 900


def corrected(store: holdfast.StreamStore) -> None:
    stream = store.create("corrected", "n bigint", bucket="1s")
    send(stream, range(2))
    with stream.subscribe(name="frame", resume=True, tentative=True) as subscriber:
        assert sum(batch.num_rows for batch in subscriber.poll()) == 2
        subscriber.ack()
    send(stream, range(2, 3))
    stream.create_branch(3 * SECOND)
    tentative(stream, range(3, 6))
    publish(stream, StreamState.UP_FAILURE)


def archived(store: holdfast.StreamStore, url: str) -> None:
    kept = Retention(size_bytes=6000)
    stream = store.create("archived", "n bigint, text string", bucket="1s", archive=url, retention=kept,
                          segment_bytes=4096)  # fmt: skip
    with stream.producer(boundary_every="1h", stime="stime") as producer:
        for n in ARCHIVED:
            producer.send({"n": n, "text": TEXT, "stime": n * SECOND}, seq=n)
        producer.close(end=True)
    archive_once(stream.folder / "main", stream.definition, clock=now_us)


def fill(saved: CheckpointStore) -> None:
    """Two versions of each key; the last one is gone."""
    for version in (1, 2):
        assert all(saved.put_many([Entry(b"key %d" % n, version, b"%d of %d" % (n, version)) for n in range(5)]))
    saved.put_many([Entry(b"key 4", 3, None)])


def main(root: Path) -> None:
    store = holdfast.open(root / "streams")
    corrected(store)
    (root / "archive").mkdir()
    archived(store, f"file://{root}/archive")
    send(store.create("on-demand", "n bigint", bucket="1s", persist="on_demand"), range(3))
    send(store.create("wider", "n bigint", bucket="1s"), range(3))
    store.add_columns("wider", parse_schema("n bigint, text string"))
    later = store.create("later", "n bigint").folder / "stream"
    later.write_bytes(seal(msgspec.structs.replace(store.open("later").definition, format=99)))
    for kind in ("files", "log"):
        with open_store(f"{kind}:{root}/{kind}") as saved:
            fill(saved)
    (root / "redis").mkdir()
    server = RedisServer(root / "redis")
    try:
        with open_store(server.address) as saved:
            fill(saved)
    finally:
        server.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
