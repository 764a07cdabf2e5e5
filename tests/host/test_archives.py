"""A host gives its streams the archives that the deployment names, and brings them up to date."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from holdfast.clock import pause
from holdfast.host.archives import look_after
from holdfast.host.deployment import load_deployment
from holdfast.host.intake import Feed
from holdfast.host.stream_server import StreamServer
from holdfast.model.errors import UsageError
from holdfast.protocol.dpc.signals import Lane
from holdfast.stream.archive.archiver import archive_lag, archive_once
from holdfast.stream.archive.catalog import read_note
from holdfast.stream.archive.folder import FolderObjects
from holdfast.stream.definition import ArchivePolicy, Retention
from holdfast.stream.store import Stream, StreamStore

FILE = """
app: app.py
hosts: {a: {address: "127.0.0.1:7401", root: "a/"}}
sources: {left: a}
"""


def test_the_file_says_where_each_stream_goes_and_what_each_tier_keeps(tmp_path: Path) -> None:
    path = tmp_path / "d.yaml"
    archives = 'archives: {left: "s3://b/x/", out: {url: "file:///mnt", disk_age: 2d, size: 2GB}}\n'
    path.write_text(FILE + archives)
    found = load_deployment(path).archives
    assert found["left"] == ArchivePolicy("s3://b/x")
    assert found["out"] == ArchivePolicy(
        "file:///mnt", Retention(age_us=172_800_000_000), Retention(size_bytes=2 * 10**9)
    )
    path.write_text(FILE + "archives: {left: nowhere}\n")
    with pytest.raises(UsageError, match="an archive must begin with"):
        load_deployment(path)


def test_a_stream_that_was_there_before_is_archived_too(tmp_path: Path) -> None:
    (tmp_path / "archive").mkdir()
    store = StreamStore(tmp_path / "streams")
    stream = store.create("s", "n bigint, text string", bucket="1s", segment_bytes=4096)
    with stream.producer() as producer:
        for n in range(60):
            producer.send({"n": n, "text": "x" * 500})
        producer.close(end=False)
    policy = ArchivePolicy(f"file://{tmp_path}/archive", Retention(size_bytes=5000))
    said: dict[str, str] = {}
    look_after(store, {"s": policy, "other": policy}, said)
    assert store.open("s").definition.archive == policy.url
    while archive_lag(stream.folder / "main").segments:
        pause(5_000)
    note = read_note(stream.folder / "main")
    assert note is not None
    assert note.rows > 40
    look_after(store, {"s": ArchivePolicy(f"file://{tmp_path}/elsewhere")}, said)
    assert "cannot move" in said["s"]


def test_a_stream_that_cannot_be_looked_at_costs_a_warning_and_the_others_are_archived(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store, woken = StreamStore(tmp_path / "streams"), ArchivePolicy(f"file://{tmp_path}/archive")
    for name in ("bad", "good"):
        store.create(name, "n bigint", archive=f"file://{tmp_path}/before")
    (store.open("bad").folder / "main" / "archived").mkdir(parents=True)  # No file to read.
    look_after(store, {"bad": woken, "good": woken}, {})
    assert "stream bad is not archived" in caplog.text
    assert store.open("good").definition.archive == woken.url


def archived(tmp_path: Path) -> Stream:
    """Only its last segment is on the disk."""
    (tmp_path / "archive").mkdir()
    store = StreamStore(tmp_path / "streams")
    stream = store.create("s", "n bigint, text string", bucket="1s", segment_bytes=4096,
                          archive=f"file://{tmp_path}/archive")  # fmt: skip
    with stream.producer(stime="stime", slack="0s") as producer:
        for n in range(60):
            producer.send({"n": n, "text": "x" * 500, "stime": n * 1_000_000})
        producer.close()
    while archive_lag(stream.folder / "main").segments:
        archive_once(stream.folder / "main", stream.definition)
        pause(5_000)
    assert stream.retain(Retention(size_bytes=1)).segments > 5
    return stream


def slow(monkeypatch: pytest.MonkeyPatch, release: threading.Event) -> list[str]:
    """The archive answers when it is told to; who asked from which thread."""
    asked, plain = [], FolderObjects.get

    def get(self: FolderObjects, key: str, start: int = 0, end: int | None = None) -> bytes:
        asked.append(threading.current_thread().name)
        assert release.wait(60)
        return plain(self, key, start, end)

    monkeypatch.setattr(FolderObjects, "get", get)
    return asked


def test_a_host_serves_the_past_without_waiting_for_the_archive_in_its_loop(tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    archived(tmp_path)
    release = threading.Event()
    asked = slow(monkeypatch, release)

    async def run() -> list[int]:
        serving = StreamServer(StreamStore(tmp_path / "streams"))
        first = asyncio.ensure_future(serving.wait("s", Lane.MAIN, 0, 5))
        while not asked:
            await asyncio.sleep(0.001)  # The loop goes on.
        assert (await serving.wait("s", Lane.MAIN, 60_000_000, 0)).events == (), "what needs no archive is answered"
        release.set()
        found = [await first]
        while found[-1].events:
            found.append(await serving.wait("s", Lane.MAIN, found[-1].cursor, 0))
        assert (await serving.last("s", 40))[0] == 20
        serving.close()
        return [e.first_tuple_id or 0 for p in found for e in p.events]

    assert asyncio.run(run()) == list(range(1, 61))
    assert threading.main_thread().name not in asked


def test_a_node_learns_of_its_past_without_waiting_for_the_archive(tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    stream, release = archived(tmp_path), threading.Event()
    asked = slow(monkeypatch, release)
    feed = Feed(stream, 1_000_000)
    feed.begin(0)
    while not asked:
        assert feed.poll() is None
        pause(1_000)
    release.set()
    while (told := feed.poll()) is None:
        pause(1_000)
    assert [a.tuples for a in told[1]] == [1] * 60
    assert threading.main_thread().name not in asked
    assert feed.poll() is None, "nothing is told twice"
    feed.close()


def test_a_node_that_begins_again_further_back_is_told_from_there(tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """What a thread still counts for the beginning before says nothing of the time in front of that."""
    stream, release = archived(tmp_path), threading.Event()
    asked = slow(monkeypatch, release)
    feed = Feed(stream, 1_000_000)
    feed.begin(30_000_000)
    while not asked:
        assert feed.poll() is None
        pause(1_000)
    feed.begin(0)
    release.set()
    while (told := feed.poll()) is None:
        pause(1_000)
    assert [a.tuples for a in told[1]] == [1] * 60
