"""Executors that do not see the folder of the streams get the same bytes from the driver's host, and nothing else."""

from __future__ import annotations

import io
import os
import pickle
import resource
import shutil
import socket
import subprocess
import sys
import threading
import time
import types
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import polars as pl
import pytest

import holdfast
from holdfast.clock import now_us
from holdfast.inputs.http_server import ImpatientProtocol
from holdfast.inputs.network import Access
from holdfast.model.errors import PeerError, StorageError, UsageError
from holdfast.protocol.cec.policy import Measured
from holdfast.spark import archived_segments, control, host_client, remote_stage_files, stream_host
from holdfast.spark.cluster_security import make_certificate, serving
from holdfast.spark.grants import (
    AUTO,
    FRAME,
    HOST,
    PROCESS,
    RUN,
    SESSION,
    VARIABLE,
    Grant,
    Way,
    checked_choice,
    noted_host,
    sign,
    way_for,
)
from holdfast.spark.hadoop_path import HadoopFiles, HadoopPath, checkpoint_folder
from holdfast.spark.host_client import HostClient, RemoteBodies, bodies_for, pieces_between, stage_results
from holdfast.spark.remote_stage_files import RemoteStageFiles, stage_files_for
from holdfast.spark.sink import Target
from holdfast.spark.source import RangeReader, Task
from holdfast.spark.stage_files import Output, StageFiles, StageNote
from holdfast.spark.stream_host import StreamHost
from holdfast.spark.versions import Scratch, Version
from holdfast.spark.wal import batch_boundary, read_wal
from holdfast.stream.archive import ranges
from holdfast.stream.archive.archiver import archive_once
from holdfast.stream.definition import Retention
from holdfast.stream.disk import Disk
from holdfast.stream.merge import Bodies, Merge, PieceReader, path_of
from tests.spark.conftest import fill
from tests.spark.processes import wait_for

FOREVER = 2**62


class Runs:
    """The runs that are active."""

    def __init__(self) -> None:
        self.active: set[str] = set()

    def __call__(self) -> set[str]:
        return self.active


@pytest.fixture
def runs() -> Runs:
    return Runs()


@pytest.fixture
def host(tmp_path: Path, runs: Runs, monkeypatch: pytest.MonkeyPatch) -> Iterator[StreamHost]:
    note = tmp_path / "host"
    host = StreamHost(Access(), "127.0.0.1", HOST, note, runs)
    monkeypatch.setenv(VARIABLE, str(note))
    yield host
    host.close()


def given(way: Way | None) -> Way:
    assert way is not None
    return way


def rows_of(merge: Merge, bodies: Bodies) -> list[dict[str, object]]:
    reader = PieceReader(merge.sources, stream_column=True, bodies=bodies)
    try:
        return [row for batch in reader.read(merge.pieces(-FOREVER, FOREVER), -FOREVER, FOREVER)
                for row in batch.to_pylist()]  # fmt: skip
    finally:
        reader.close()


def test_what_the_host_sends_is_what_lies_in_the_folder(
    host: StreamHost, store: holdfast.StreamStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_client, "PORTION_BYTES", 4096)  # Many portions, and events that are larger than one.
    streams = [fill(store, name, [(i * 0.01, f"k{i % 7}", i) for i in range(2000)]) for name in ("a", "b")]
    merge = Merge(streams)
    way = given(way_for([s.folder for s in merge.sources], PROCESS))
    assert rows_of(merge, RemoteBodies(way)) == rows_of(merge, Bodies())
    assert pieces_between(way, -FOREVER, FOREVER) == merge.pieces(-FOREVER, FOREVER)
    assert host.bytes_sent > 0


def archived(store: holdfast.StreamStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Merge:
    """A stream of which the archive alone has the most, and nothing of it is held yet."""
    monkeypatch.setattr("holdfast.stream.retention.wake_archiver", lambda *args, **options: None)
    monkeypatch.setattr(ranges, "_process", None)
    (tmp_path / "archive").mkdir()
    stream = fill(store, "a", [(i * 0.1, "k" * 500, i) for i in range(500)], archive=f"file://{tmp_path}/archive",
                  segment_bytes=16 << 10, retention=Retention(size_bytes=64 << 10))  # fmt: skip
    archive_once(stream.folder / "main", stream.definition, disk=Disk(), clock=now_us)
    stream.retain()
    merge = Merge([stream])
    paths = {path_of(merge.sources, piece) for piece in merge.pieces(-FOREVER, FOREVER)}
    assert any(not path.exists() for path in paths)
    return merge


def test_what_left_the_disk_comes_from_the_archive(
    host: StreamHost, store: holdfast.StreamStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    merge = archived(store, tmp_path, monkeypatch)
    way = given(way_for([s.folder for s in merge.sources], PROCESS))
    found = rows_of(merge, RemoteBodies(way))
    assert found == rows_of(merge, Bodies())
    assert [row["value"] for row in found] == list(range(500))


@pytest.mark.skipif(shutil.which("openssl") is None, reason="making a certificate needs openssl")
def test_the_same_over_tls_with_the_one_certificate_that_the_driver_has_told(
    store: holdfast.StreamStore, tmp_path: Path, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"spark.driver.host": "192.0.2.1", "spark.driver.bindAddress": "127.0.0.1", "spark.authenticate": "true"}
    access, advertised = serving(settings, tmp_path)
    assert (access.certificate, advertised) == (tmp_path / "executors.pem", "192.0.2.1")
    note, merge = tmp_path / "host", Merge([fill(store, "a", [(i * 0.01, "k" * 500, i) for i in range(5000)])])
    host = StreamHost(access, "127.0.0.1", HOST, note, runs)
    monkeypatch.setenv(VARIABLE, str(note))
    try:
        way = given(way_for([s.folder for s in merge.sources], PROCESS))
        assert way.address.startswith("https://")
        assert rows_of(merge, RemoteBodies(way)) == rows_of(merge, Bodies())
        make_certificate(tmp_path / "other.pem", tmp_path / "other.key")
        stranger = way._replace(certificate=(tmp_path / "other.pem").read_text())
        monkeypatch.setattr(host_client, "_PAUSES_S", ())
        with pytest.raises(PeerError, match="certificate verify failed"):
            rows_of(merge, RemoteBodies(stranger))
    finally:
        host.close()


def test_executors_are_served_in_the_clear_only_where_nobody_else_is(tmp_path: Path) -> None:
    """X1."""
    for settings in ({"spark.driver.host": "127.0.0.1"}, {"spark.driver.host": "x", "spark.authenticate": "false"}):
        assert serving(settings, tmp_path)[0].certificate is None
    inside = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "0.0.0.0"}
    assert serving(inside, tmp_path)[0].host == "127.0.0.1"  # Executors come from this machine: so does everybody.
    given = {"spark.driver.host": "x", "spark.holdfast.certificate": "c.pem", "spark.holdfast.key": "k.pem"}
    access, _ = serving({**given, "spark.holdfast.port": "7500"}, tmp_path)
    assert (access.certificate, access.key, access.port) == (Path("c.pem"), Path("k.pem"), 7500)
    with pytest.raises(UsageError, match="must be a port"):
        serving({**given, "spark.holdfast.port": "any"}, tmp_path)
    with pytest.raises(UsageError, match="must be one of auto, folder, host"):
        checked_choice("driver")


def test_tasks_of_one_executor_share_what_one_of_them_has_brought(
    host: StreamHost, store: holdfast.StreamStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "executor"))
    merge = Merge([fill(store, "a", [(i * 0.01, "k", i) for i in range(2000)])])
    way = given(way_for([s.folder for s in merge.sources], PROCESS))
    found = [rows_of(merge, RemoteBodies(way, shared=True)) for _ in range(3)]
    assert found[0] == found[1] == found[2] == rows_of(merge, Bodies())
    events = [(path_of(merge.sources, piece), piece.fields) for piece in merge.pieces(-FOREVER, FOREVER)]
    assert host.bytes_sent == sum(portion.size for portion in host_client.portions(events))


def test_what_an_executor_keeps_of_a_stream_is_not_taken_for_one_that_was_made_anew(
    host: StreamHost, store: holdfast.StreamStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "executor"))
    for key in ("k", "l"):
        merge = Merge([fill(store, "a", [(i * 0.01, key, i) for i in range(50)])])
        way = given(way_for([s.folder for s in merge.sources], PROCESS))
        assert {row["key"] for row in rows_of(merge, RemoteBodies(way, shared=True))} == {key}
        merge.close()
        store.delete("a")


def test_a_damaged_byte_on_the_way_is_found(
    host: StreamHost, store: holdfast.StreamStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L4."""
    merge = Merge([fill(store, "a", [(0.0, "k", 1)])])
    way = given(way_for([s.folder for s in merge.sources], PROCESS))
    asked = HostClient.ask

    def damaged(self: HostClient, *args: object) -> host_client.Answer:
        answer = asked(self, *args)  # type: ignore[arg-type]
        data = bytearray(answer.data)
        data[-1] ^= 1
        return answer._replace(data=host_client.pa.py_buffer(bytes(data)))

    monkeypatch.setattr(HostClient, "ask", damaged)
    with pytest.raises(holdfast.HoldfastError, match="does not match its checksum"):
        rows_of(merge, RemoteBodies(way))


def flip(data: bytes) -> bytes:
    """With one wrong bit, in the body of its last event."""
    return data[:-1] + bytes([data[-1] ^ 1])


def test_a_damaged_byte_in_what_an_executor_keeps_is_brought_again(
    host: StreamHost, store: holdfast.StreamStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L4: otherwise every retry on that executor would fail."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "executor"))
    merge = Merge([fill(store, "a", [(0.0, "k", 1)])])
    way = given(way_for([s.folder for s in merge.sources], PROCESS))
    expected = rows_of(merge, RemoteBodies(way, shared=True))
    (kept,) = (p for p in (tmp_path / "executor").rglob("*") if p.is_file() and p.suffix != ".lock")
    sound = kept.read_bytes()
    kept.write_bytes(flip(sound))
    assert rows_of(merge, RemoteBodies(way, shared=True)) == expected
    assert kept.read_bytes() == sound


def test_a_damaged_answer_is_asked_for_again_and_not_kept(
    host: StreamHost, store: holdfast.StreamStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "executor"))
    merge = Merge([fill(store, "a", [(0.0, "k", 1)])])
    way = given(way_for([s.folder for s in merge.sources], PROCESS))
    asked, paths = HostClient.ask, list[str]()

    def damaged_once(self: HostClient, method: str, path: str, body: bytes = b"") -> host_client.Answer:
        answer = asked(self, method, path, body)
        paths.append(path)
        return answer if len(paths) > 1 else answer._replace(data=host_client.pa.py_buffer(flip(bytes(answer.data))))

    monkeypatch.setattr(HostClient, "ask", damaged_once)
    for _ in range(2):
        assert rows_of(merge, RemoteBodies(way, shared=True)) == rows_of(merge, Bodies())
    assert paths == ["/v1/events", "/v1/events?anew=1"]


def test_a_damaged_byte_in_what_the_host_holds_of_an_archive_is_brought_again(
    host: StreamHost, store: holdfast.StreamStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    merge = archived(store, tmp_path, monkeypatch)
    before = rows_of(merge, Bodies())
    way = given(way_for([s.folder for s in merge.sources], PROCESS))
    assert rows_of(merge, RemoteBodies(way)) == before
    blocks = ranges.process().cache._blocks
    assert blocks
    for block, data in blocks.items():
        blocks[block] = bytes(byte ^ 1 for byte in data)
    for _ in range(2):
        assert rows_of(merge, RemoteBodies(way)) == before


def test_of_an_archive_the_host_holds_a_few_megabytes_at_a_time(
    host: StreamHost, store: holdfast.StreamStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X4: a task may ask for a whole segment, and for many of them."""
    monkeypatch.setattr(stream_host, "ARCHIVED_BYTES_MAX", 4096)
    merge = archived(store, tmp_path, monkeypatch)
    brought: list[int] = []
    read = stream_host._bring

    def counted(parts: list[stream_host._Part]) -> bytes:
        found = read(parts)
        brought.append(len(found))
        return found

    monkeypatch.setattr(stream_host, "_bring", counted)
    way = given(way_for([s.folder for s in merge.sources], PROCESS))
    assert rows_of(merge, RemoteBodies(way)) == rows_of(merge, Bodies())
    assert len(brought) > 10
    assert max(brought) <= 4096


def archived_task(store: holdfast.StreamStore) -> tuple[RangeReader, Task]:
    reader = RangeReader({"root": str(store.root), "path": "a,b", "tasks": "1"})
    (task,) = reader.partitions()
    assert isinstance(task, Task)
    return reader, task


def test_an_executor_that_can_reads_from_the_archive_itself(
    host: StreamHost, store: holdfast.StreamStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the rest from the host, also where they take turns."""
    archived(store, tmp_path, monkeypatch)
    near = fill(store, "b", [(i * 0.5, "l", 500 + i) for i in range(100)])
    expected = rows_of(Merge([store.open("a"), near]), Bodies())
    assert len(expected) == 600
    reader, task = archived_task(store)
    brought: list[int] = []
    bring = stream_host._bring
    monkeypatch.setattr(stream_host, "_bring", lambda parts: brought.append(1) or bring(parts))
    monkeypatch.setattr(archived_segments, "_left_alone_until", {})

    def rows() -> list[dict[str, object]]:
        return [row for batch in reader.read(task) for row in batch.to_pylist()]

    assert rows() == expected
    assert not brought
    assert 0 < host.bytes_sent < sum(path.stat().st_size for path in (near.folder / "main").glob("*.seg"))
    blocks = ranges.process().cache._blocks
    for block, data in blocks.items():
        blocks[block] = bytes(byte ^ 1 for byte in data)
    assert rows() == expected
    assert not brought
    # Another executor does not see the store, and asks the host.
    way = given(task.way)
    task.way = way._replace(archived=tuple(p._replace(url=f"file://{tmp_path}/elsewhere") for p in way.archived))
    assert rows() == expected
    assert brought


def test_a_store_for_which_an_executor_has_no_credentials_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("AWS_", "HOLDFAST_ARCHIVE_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(archived_segments, "_left_alone_until", {})
    monkeypatch.setattr(archived_segments, "opened", lambda url: pytest.fail("it was asked"))
    place = archived_segments.ArchivedPlace("/streams/a/main/0.seg", "s3://bucket/streams", "a/0.seg", 100)
    assert archived_segments.ArchivedSegments([place]).read(place.path, 0, 8, anew=False) is None
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "me")
    with pytest.raises(pytest.fail.Exception, match="it was asked"):
        archived_segments.ArchivedSegments([place]).read(place.path, 0, 8, anew=False)


def test_an_archive_that_is_away_is_said(
    host: StreamHost, store: holdfast.StreamStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    merge = archived(store, tmp_path, monkeypatch)
    way = given(way_for([s.folder for s in merge.sources], PROCESS))
    (tmp_path / "archive").rename(tmp_path / "away")
    with pytest.raises(PeerError, match="the folder is not there; mount it"):
        rows_of(merge, RemoteBodies(way))


def test_a_disk_that_is_slow_to_take_an_upload_keeps_no_other_executor_waiting(
    host: StreamHost, store: holdfast.StreamStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = fill(store, "a", [(0.0, "k", 1)])
    way = given(way_for([str(stream.folder)], SESSION, results=str(stream.folder)))
    begun, go_on = threading.Event(), threading.Event()
    opened = Path.open

    class Slow(io.FileIO):
        def write(self, data: object) -> int:
            begun.set()
            assert go_on.wait(30)
            return super().write(data)  # type: ignore[call-overload]

    def slow(path: Path, mode: str = "r", *args: object, **options: object) -> object:
        if path.parent.name == "staging":
            return io.BufferedWriter(Slow(path, mode))
        return opened(path, mode, *args, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(Path, "open", slow)
    with ThreadPoolExecutor(1) as pool:
        upload = pool.submit(stage_results, way, "q", "3", bytes(2 << 20))
        assert begun.wait(30)
        try:
            asked = HostClient(way)
            monkeypatch.setattr(host_client, "_ANSWER_S_MAX", 5.0)
            monkeypatch.setattr(host_client, "_PAUSES_S", ())
            assert asked.ask("GET", "/v1/pieces?since_us=0&until_us=0").status == 200
            asked.close()
        finally:
            go_on.set()
        assert (stream.folder / "staging" / upload.result()).stat().st_size == 2 << 20


@pytest.fixture
def auto(tmp_path: Path, runs: Runs, monkeypatch: pytest.MonkeyPatch) -> Iterator[StreamHost]:
    """Tasks find out which way they take."""
    note = tmp_path / "driver" / "host"
    note.parent.mkdir()
    host = StreamHost(Access(), "127.0.0.1", AUTO, note, runs)
    monkeypatch.setenv(VARIABLE, str(note))
    yield host
    host.close()


def test_a_folder_is_taken_if_it_is_the_same_and_not_only_called_the_same(
    auto: StreamHost, store: holdfast.StreamStore
) -> None:
    """Not on a machine that was made from the same image, where even inode numbers and times are the same."""
    stream = fill(store, "a", [(0.0, "k", 1)])
    (stream.folder / "state").mkdir()
    copy = stream.folder.with_name("copy")
    shutil.copytree(stream.folder, copy)
    scratch = store.root / "scratch"
    way = given(way_for([str(stream.folder)], PROCESS, scratch=str(scratch)))
    assert way.sees_folder()
    assert type(bodies_for(way)) is Bodies
    for folder in (scratch, stream.folder):
        for marker in folder.glob(".seen-*"):
            os.rename(marker, marker.with_name("kept"))
            assert not way.sees_folder()
            marker.with_name(".seen-another").touch()
            assert not way.sees_folder()
            os.rename(marker.with_name("kept"), marker)
    assert way.sees_folder()
    stream.folder.rename(store.root / "away")
    copy.rename(stream.folder)
    assert type(bodies_for(way)) is RemoteBodies


def test_markers_of_folders_go_with_the_session_or_with_the_next_one_where_it_was_killed(
    auto: StreamHost, store: holdfast.StreamStore, tmp_path: Path
) -> None:
    stream = fill(store, "a", [(0.0, "k", 1)])
    killed, elsewhere = stream.folder / ".seen-killed", stream.folder / ".seen-elsewhere"
    killed.write_text(f"{socket.gethostname()} {os.getpid()} 1\n")  # Of an earlier process of that number.
    elsewhere.write_text(f"another {os.getpid()} 1\n")
    for _ in range(2):
        assert given(way_for([str(stream.folder)], PROCESS)).sees_folder()
    assert not killed.exists()
    assert len(list(stream.folder.glob(".seen-*"))) == 2
    auto.close()
    assert list(stream.folder.glob(".seen-*")) == [elsewhere]


def test_a_folder_that_cannot_be_marked_is_not_taken(auto: StreamHost, tmp_path: Path) -> None:
    assert not given(way_for([str(tmp_path / "none")], PROCESS)).sees_folder()


def test_the_driver_says_once_which_way_the_tasks_of_a_query_take(
    auto: StreamHost, store: holdfast.StreamStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "holdfast.spark.stream_host")

    def said() -> list[str]:
        return [r.getMessage() for r in caplog.records if r.name == "holdfast.spark.stream_host"]

    merge = Merge([fill(store, "a", [(0.0, "k", 1)])])
    way = given(way_for([s.folder for s in merge.sources], PROCESS))
    for _ in range(2):
        bodies_for(way).close()
    wait_for(said, "the driver to say it")
    for path in Path(merge.sources[0].folder).glob(".seen-*"):
        path.unlink()
    for _ in range(2):
        rows_of(merge, bodies_for(way))
    assert said() == [
        "executors at 127.0.0.1 see the folder of a: they read and write there",
        f"executors at 127.0.0.1 do not see the folder of a: they ask {auto.address}",
    ]


def test_a_reader_that_takes_nothing_is_dropped_and_others_are_served(
    host: StreamHost, store: holdfast.StreamStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X4."""
    monkeypatch.setattr(ImpatientProtocol, "answer_s_max", 0.3)
    stream = fill(store, "a", [(0.0, "k", 1)])
    long = stream.folder / "main" / "long"
    long.touch()
    os.truncate(long, 256 << 20)  # More than sockets hold.
    way = given(way_for([str(stream.folder)], PROCESS))
    body = msgspec.msgpack.encode([(str(long), 0, 256 << 20)])
    parts = urlsplit(way.address)
    with socket.create_connection((parts.hostname, parts.port)) as silent:
        head = f"POST /v1/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {way.token}\r\n"
        silent.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        assert silent.recv(12) == b"HTTP/1.1 200"
        wait_for(lambda: not host._server.server_state.connections, "the silent reader to be dropped")
    assert rows_of(Merge([stream]), RemoteBodies(way)) == rows_of(Merge([stream]), Bodies())


def test_a_portion_of_many_parts_needs_no_more_files_than_it_has_segments(
    host: StreamHost, store: holdfast.StreamStore
) -> None:
    """Of two streams that are merged, every other event is of the same segment."""
    streams = [fill(store, name, [(0.0, "k", 1)]) for name in ("a", "b")]
    client = HostClient(given(way_for([str(s.folder) for s in streams], PROCESS)))
    segments = [next((s.folder / "main").glob("*.seg")) for s in streams]
    parts = [(str(segments[n % 2]), 0, 8) for n in range(3000)]
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(limits[0], 1024), limits[1]))
    try:
        found = client.ask("POST", "/v1/events", msgspec.msgpack.encode(parts)).data
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        client.close()
    assert bytes(found) == b"".join(s.read_bytes()[:8] for s in segments) * 1500


def test_a_task_that_finds_no_place_asks_again(
    host: StreamHost, store: holdfast.StreamStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.inputs.places.TOKEN_MAX", 1)
    stream = fill(store, "a", [(0.0, "k", 1)])
    way = given(way_for([str(stream.folder)], PROCESS))
    first, second = HostClient(way), HostClient(way)
    asked = "/v1/pieces?since_us=0&until_us=0"
    assert first.ask("GET", asked).status == 200
    refused: list[float] = []

    def pause(seconds: float) -> None:
        refused.append(seconds)
        first.close()
        wait_for(lambda: not host._server.server_state.connections, "the first to be gone")

    monkeypatch.setattr(host_client, "time", types.SimpleNamespace(sleep=pause))
    assert second.ask("GET", asked).status == 200
    assert refused
    second.close()


def test_a_query_over_a_thousand_streams_is_heard(host: StreamHost, store: holdfast.StreamStore) -> None:
    """Its token names them all, and comes in several packets."""
    stream = fill(store, "a", [(0.0, "k", 1)])
    way = given(way_for([str(stream.folder), *(f"/data/streams/monitor-{n:05}" for n in range(1000))], PROCESS))
    body = msgspec.msgpack.encode([(str(next((stream.folder / "main").glob("*.seg"))), 0, 8)])
    head = f"POST /v1/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {way.token}\r\n"
    said = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
    parts = urlsplit(way.address)
    with socket.create_connection((parts.hostname, parts.port)) as split:
        for begin in range(0, len(said), 8192):
            split.sendall(said[begin : begin + 8192])
            time.sleep(0.005)
        assert split.recv(12) == b"HTTP/1.1 200"


def test_a_token_opens_the_folders_of_its_query_and_no_others(
    host: StreamHost, store: holdfast.StreamStore, caplog: pytest.LogCaptureFixture
) -> None:
    """X1, X2."""
    a, b = (fill(store, name, [(0.0, "k", 1)]) for name in ("a", "b"))
    way = given(way_for([str(a.folder)], PROCESS))
    with pytest.raises(PeerError, match="does not read"):
        rows_of(Merge([b]), RemoteBodies(way))
    sneaky = HostClient(way)
    for path in (f"{a.folder}/main/../../b/stream", f"{a.folder}/../../host", "/etc/passwd", "x"):
        with pytest.raises(PeerError, match="does not read"):
            sneaky.ask("POST", "/v1/events", msgspec.msgpack.encode([(path, 0, 64)]))
    for refused in ("/v1/results?query=q&batch=1", "/v1/version?partition=0&position_us=1"):
        with pytest.raises(PeerError, match="this token is not"):
            sneaky.ask("PUT", refused, b"x")
    forged = way._replace(token=sign(Grant("x" * 32, SESSION, reads=(str(b.folder),)), b"a key of one's own"))
    with pytest.raises(PeerError, match="must carry the token"):
        rows_of(Merge([b]), RemoteBodies(forged))
    audited = [record.getMessage() for record in caplog.records if record.name == "holdfast.audit"]
    assert sum(line.startswith("stream host: refused a query from 127.0.0.1: 'P") for line in audited) == 7
    assert audited[-1].startswith("stream host: refused a stranger from 127.0.0.1: 'POST /v1/events'")


def test_a_token_ends_with_the_process_that_plans_its_query(host: StreamHost, store: holdfast.StreamStore) -> None:
    stream = fill(store, "a", [(0.0, "k", 1)])
    code = "import sys, pickle; from holdfast.spark.grants import way_for, PROCESS; "
    code += f"sys.stdout.buffer.write(pickle.dumps(way_for([{str(stream.folder)!r}], PROCESS)))"
    made = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout
    with pytest.raises(PeerError, match="has ended"):
        rows_of(Merge([stream]), RemoteBodies(pickle.loads(made)))


def test_a_token_of_a_run_is_for_that_run_and_ends_with_it(
    host: StreamHost, store: holdfast.StreamStore, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = store.create("out", "value bigint")
    way = given(way_for((), RUN, results=str(stream.folder)))
    with pytest.raises(PeerError, match="has ended"):
        stage_results(way, "q", "3", b"rows")
    runs.active = {"", "another"}  # A task outside of Spark says no run.
    way = given(way_for((), RUN, results=str(stream.folder)))
    name = stage_results(way, "q", "3", b"rows")
    assert (stream.folder / "staging" / name).read_bytes() == b"rows"
    assert name.startswith("q.3.")
    client = HostClient(way)
    client._headers["Holdfast-Run"] = "another"
    with pytest.raises(PeerError, match="has ended"):
        client.ask("PUT", "/v1/results?query=q&batch=4", b"rows")
    runs.active = set()
    with pytest.raises(PeerError, match="has ended"):
        stage_results(way, "q", "5", b"rows")
    assert [p.name for p in (stream.folder / "staging").iterdir()] == [name]


def test_a_token_of_a_frame_is_for_all_queries_over_it_that_run(
    host: StreamHost, store: holdfast.StreamStore, runs: Runs
) -> None:
    stream = store.create("out", "value bigint")
    way = given(way_for((), FRAME, results=str(stream.folder)))
    client = HostClient(way)
    for run in ("first", "second"):
        runs.active = {run}
        client._headers["Holdfast-Run"] = run
        assert client.ask("PUT", "/v1/results?query=q&batch=1", b"rows").status == 200
    client._headers["Holdfast-Run"] = "first"
    with pytest.raises(PeerError, match="has ended"):
        client.ask("PUT", "/v1/results?query=q&batch=2", b"rows")


def test_a_worker_that_is_used_again_says_the_run_of_its_task(
    host: StreamHost, store: holdfast.StreamStore, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A query that is stopped and started again over the same frame has the same token and another run."""
    stream = store.create("out", "value bigint")
    note = StageNote("sum", Scratch(str(stream.folder / "state"), "sum", 2), Output(str(store.root), "out"))
    way = given(way_for((), FRAME, results=str(stream.folder), stage=note.encode(), scratch=note.scratch.folder))
    for run in ("first", "second"):
        runs.active = {run}
        task = types.SimpleNamespace(getLocalProperty=lambda name, run=run: run)
        monkeypatch.setattr(host_client.TaskContext, "get", lambda task=task: task)
        assert stage_files_for(way, note).load(0, 1000) is None


def test_what_a_killed_driver_has_left_of_an_upload_goes_with_its_batch(store: holdfast.StreamStore) -> None:
    stream = store.create("out", "value bigint")
    target = Target({"root": str(store.root), "path": "out"}, stream.definition.stored)
    staging = stream.folder / "staging"
    staging.mkdir()
    for name in (".q.3.ab.arrow", "q.3.cd.arrow", ".q.4.ef.arrow", ".control.ab.30.ctl", ".control.cd.40.ctl"):
        (staging / name).touch()
    target.discard("q", "3")
    control.discard(staging, 30)
    assert {path.name for path in staging.iterdir()} == {".q.4.ef.arrow", ".control.cd.40.ctl"}


def test_versions_of_a_state_are_kept_at_the_host(host: StreamHost, store: holdfast.StreamStore) -> None:
    stream = store.create("out", "value bigint")
    note = StageNote("sum", Scratch(str(stream.folder / "state"), "sum", 2), Output(str(store.root), "out"))
    way = given(way_for((), SESSION, results=str(stream.folder), stage=note.encode(), scratch=note.scratch.folder))
    remote, near = stage_files_for(way, note), StageFiles(note)
    assert isinstance(remote, RemoteStageFiles)
    block = pl.DataFrame({"_h": [1, 2, 3], "_v0": [1.5, None, 2.5]})
    version = Version({7: block}, Measured(), 12)
    assert remote.load(0, 1000) is None
    remote.store(0, 1000, version)
    kept = remote.load(0, 1000)
    assert kept is version  # It is still the one: nothing travelled.
    found = near.load(0, 1000)
    assert found is not None
    assert found.mark == 12
    assert found.blocks[7].equals(block)
    other = Version({7: block.with_columns(pl.lit(4.0).alias("_v0"))}, Measured(), 13)
    near.store(0, 1000, other)  # Another worker has it now.
    again = remote.load(0, 1000)
    assert again is not None
    assert again.mark == 13
    near.store(1, 1000, version)
    assert note.scratch.has(1000)
    assert remote.mark(0, 1000) is None
    assert remote.dealt(1000) == near.dealt(1000)
    assert list(remote.bodies(0, 1000)) == []


def test_a_query_over_a_frame_has_versions_of_its_own_at_the_host(host: StreamHost, tmp_path: Path) -> None:
    """The token is the frame's, made before there was a query; it does not lead out of the frame's folder."""
    note = StageNote("sum", Scratch(str(tmp_path / "state"), "sum", 2, "frame-of-sums", per_query=True), None)
    way = given(way_for((), SESSION, stage=note.encode(), scratch=note.scratch.folder))
    versions = [Version({7: pl.DataFrame({"_h": [n]})}, Measured(), made_by="{}") for n in (1, 2)]
    for query, version in zip("ab", versions, strict=True):
        mine = StageNote("sum", note.scratch.of_query(query), None)
        stage_files_for(way, mine).store(0, 1000, version)
        remote_stage_files._kept.clear()
        found = stage_files_for(way, mine).load(0, 1000)
        assert found is not None
        assert (found.blocks[7]["_h"].to_list(), found.made_by) == (version.blocks[7]["_h"].to_list(), "{}")
    for query in ("", "&query=..", "&query=a/b"):
        with pytest.raises(PeerError, match="name one"):
            HostClient(way).ask("GET", f"/v1/version?partition=0&position_us=1000{query}")


def test_a_version_that_is_too_long_is_refused_and_leaves_nothing(
    host: StreamHost, store: holdfast.StreamStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X4: it goes to the disk as it comes."""
    monkeypatch.setattr(stream_host, "UPLOAD_BYTES_MAX", 1 << 20)
    stream = store.create("out", "value bigint")
    note = StageNote("sum", Scratch(str(stream.folder / "state"), "sum", 2), Output(str(store.root), "out"))
    client = HostClient(given(way_for((), SESSION, results=str(stream.folder), stage=note.encode())))
    whole = bytes(1 << 20)
    with pytest.raises(PeerError, match="may stage 1048576 bytes at most"):
        client.ask("PUT", "/v1/version?partition=0&position_us=7", whole + b"x")
    assert [path for path in (stream.folder / "state").rglob("*") if path.is_file()] == []
    assert client.ask("PUT", "/v1/version?partition=0&position_us=7", whole).status == 200
    (kept,) = [path for path in (stream.folder / "state").rglob("*") if path.is_file()]
    assert kept.stat().st_size == 1 << 20


def test_sparks_own_state_in_a_checkpoint_that_is_not_the_drivers_is_refused(
    store: holdfast.StreamStore, tmp_path: Path
) -> None:
    stream = store.create("out", "value bigint")
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    given = {"root": str(store.root), "path": "out", "checkpointlocation": f"file://{checkpoint}"}
    target = Target(given, stream.definition.stored)
    assert target.take(iter([]), "q", "r", "0").record is None
    (checkpoint / "state").mkdir()
    (checkpoint / "offsets").mkdir()
    (checkpoint / "offsets" / "7").write_text("the driver's record of batch 7")
    seen = target.take(iter([]), "q", "r", "7")
    target.check_record([seen], 7)
    checkpoint.rename(tmp_path / "the driver's")
    assert target.take(iter([]), "q", "r", "7").rows == 0  # Nothing of Spark's state came here.
    (checkpoint / "state").mkdir(parents=True)
    with pytest.raises(UsageError, match="needs a checkpoint that executors and driver share"):
        target.take(iter([]), "q", "r", "7")
    (checkpoint / "offsets").mkdir()
    (checkpoint / "offsets" / "7").write_text("an older record of batch 7, in a copy")
    other = target.take(iter([]), "q", "r", "7")
    shutil.rmtree(checkpoint)
    (tmp_path / "the driver's").rename(checkpoint)
    target.check_record([seen], 7)
    with pytest.raises(UsageError, match="needs a checkpoint that executors and driver share"):
        target.check_record([seen, other], 7)


class FolderFiles(HadoopFiles):
    """A filesystem of somebody's, which only the driver reaches: below a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def _path(self, uri: str) -> Path:
        return self._folder / uri.removeprefix("far://away/")

    def read(self, uri: str) -> bytes:
        return self._path(uri).read_bytes()

    def is_folder(self, uri: str) -> bool | None:
        path = self._path(uri)
        return path.is_dir() if path.exists() else None


def test_a_process_without_a_jvm_reads_the_record_of_a_batch_through_the_driver(
    host: StreamHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyspark.SparkContext._active_spark_context", None)
    monkeypatch.setattr(stream_host, "hadoop_path", lambda uri: HadoopPath(uri, FolderFiles(tmp_path)))
    for name, until_us in (("mine", 5_000_000), ("other", 7_000_000)):
        (tmp_path / name / "offsets").mkdir(parents=True)
        (tmp_path / name / "offsets" / "3").write_text(f'v1\n{{"batchWatermarkMs":17}}\n{{"until_us":{until_us}}}')
    mine = checkpoint_folder("far://away/mine")
    assert read_wal(mine, 3) == (17, [5_000_000])
    assert batch_boundary("far://away/mine", 3, "auto", lambda: 0) == 5_000_000
    (tmp_path / "mine" / "state").mkdir()
    assert (mine / "state").is_dir()
    assert batch_boundary("far://away/mine", 3, "auto", lambda: 0) == 17_000
    with pytest.raises(StorageError, match="it is not there"):
        read_wal(mine, 4)
    for outside in ("../other/offsets/3", "/../../other"):
        with pytest.raises(PeerError, match="this token is not for"):
            (mine / outside).read_bytes()
    monkeypatch.delenv(VARIABLE)
    with pytest.raises(StorageError, match="is reached through the driver"):
        checkpoint_folder("far://away/mine")


def test_nobody_serves_where_no_session_on_a_cluster_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert way_for(["x"], PROCESS) is None
    monkeypatch.setenv(VARIABLE, str(tmp_path / "gone"))
    assert noted_host() is None
    assert type(bodies_for(None)) is Bodies
