"""How a task of an executor that does not see the streams' folder asks `stream_host` beside the driver.

Rules:
1. Events are asked for in portions, a few ahead of what was taken: no more than that is ever in memory (X4). Each is
   compared with the checksum that the planner gave (L4). A portion that does not match is asked for once more, and the
   host then looks it up anew: what it holds of the archive may be what is damaged. What only the archive has, an
   executor that can reads from there (`archived_segments`).
2. What several tasks of one executor need, as those of an operator that reads its streams itself, lies in a folder of
   the executor's once one of them has brought it; Spark removes the folder with the executor. It is compared before it
   is put there and when it is taken from there: otherwise one wrong byte would fail every later try on this executor.
3. Tasks that see the folder go by it, and say so to the host once: nobody else could tell which way they took.
4. A connection that breaks is made again a few times; then the task fails and Spark tries it again. A query that has
   ended, and what retention has removed, are said at once.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import http.client
import os
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import msgspec
import pyarrow as pa
from pyspark import TaskContext

from holdfast.model.errors import CorruptLog, HoldfastError, PeerError, Removed
from holdfast.spark.archived_segments import ArchivedSegments
from holdfast.spark.grants import Way
from holdfast.stream.frame import HEADER_SIZE, crc32c, padded
from holdfast.stream.index import Fields
from holdfast.stream.merge import Bodies, Piece

#: Bytes that a task asks for at once; one event may be larger than that.
PORTION_BYTES = 4 << 20
#: Events that lie closer together than this are sent with what is between them, most often a header.
_GAP_BYTES = 4096
#: Portions asked for ahead (rule 1).
_AHEAD = 2
#: Pauses between tries (rule 4): some twelve seconds in all.
_PAUSES_S = (0.05, 0.2, 0.8, 1.6, 3.2, 6.4)
_ANSWER_S_MAX = 60.0
#: Smaller answers come through Python's own buffer.
_AT_ONCE_BYTES = 64 << 10
#: What the shared portions of one executor may take (rule 2), and where they lie below its folder.
_CACHE_BYTES_MAX = 512 << 20
_CACHE = "holdfast-portions"
#: Where tasks say that they go by the folder (rule 3), and queries of which this process has said it.
FOLDER_PATH = "/v1/folder"
_SAID_MAX = 256
_said: dict[str, None] = {}


class _Again(Exception):
    """The host is busy."""


class HostClient:
    """One connection, for one thread."""

    def __init__(self, way: Way) -> None:
        self._way = way
        self._connection: http.client.HTTPConnection | None = None
        self._headers = {"Authorization": f"Bearer {way.token}"}
        self.belong()

    @property
    def address(self) -> str:
        return self._way.address

    def belong(self) -> None:
        """To the task that runs now: whoever keeps a client may have had it for a task of an earlier run."""
        context = TaskContext.get()
        run = context.getLocalProperty("spark.jobGroup.id") if context is not None else None
        self._headers["Holdfast-Run"] = run or ""

    def ask(
        self, method: str, path: str, body: bytes | Sequence[bytes] = b"", headers: dict[str, str] | None = None
    ) -> Answer:
        """The answer, 200, 304 or 404; anything else is an error."""
        for pause in (*_PAUSES_S, None):
            try:
                return self._asked(method, path, body, headers or {})
            except (OSError, http.client.HTTPException, _Again) as error:
                self.close()
                if pause is None:
                    raise PeerError(
                        f"{self._way.address}, where the driver serves its streams, must answer executors; "
                        f"{method} {path.partition('?')[0]}: {error or type(error).__name__}; look whether it runs and "
                        f"whether this machine reaches it, or let executors see the folder of the streams"
                    ) from error
                time.sleep(pause)
        raise AssertionError

    def _asked(self, method: str, path: str, body: bytes | Sequence[bytes], headers: dict[str, str]) -> Answer:
        if self._connection is None:
            self._connection = _connect(self._way)
        size = len(body) if isinstance(body, bytes) else sum(map(len, body))
        said = {**self._headers, **headers, "Content-Length": str(size)}
        self._connection.request(method, path, body if isinstance(body, bytes) else iter(body), said)
        response = self._connection.getresponse()
        data = _whole(response, self._connection)
        if response.status in (200, 304, 404):
            return Answer(response.status, data, response.headers.get("ETag") or "")
        try:
            why = str(msgspec.json.decode(data)["error"])
        except (msgspec.MsgspecError, KeyError, TypeError):
            why = f"status {response.status}"
        if response.status in (429, 503):
            raise _Again(why)
        if response.status == 410:
            raise Removed(why)
        raise PeerError(f"{self._way.address} refused what a task asked for: {why}")

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class Answer(NamedTuple):
    status: int
    data: pa.Buffer
    tag: str


def _connect(way: Way) -> http.client.HTTPConnection:
    parts = urlsplit(way.address)
    assert parts.hostname is not None
    if parts.scheme == "http":
        return http.client.HTTPConnection(parts.hostname, parts.port, timeout=_ANSWER_S_MAX)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # The certificate itself came from the driver, by Spark's own way: nobody else has its key, whatever its name is.
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(cadata=way.certificate)
    return http.client.HTTPSConnection(parts.hostname, parts.port, timeout=_ANSWER_S_MAX, context=context)


def _whole(response: http.client.HTTPResponse, connection: http.client.HTTPConnection) -> pa.Buffer:
    """The body, in memory that Arrow uses again: new pages cost as much as the copy."""
    if response.length is None:
        return pa.py_buffer(response.read())
    found = pa.allocate_buffer(response.length)
    data, at = memoryview(found).cast("B"), 0
    if isinstance(connection, http.client.HTTPSConnection) or response.length < _AT_ONCE_BYTES:
        while at < len(data) and (read := response.readinto(data[at:])):
            at += read
    else:
        # All of it in one call, without Python in between: the other thread decodes meanwhile.
        first = response.fp.read1(_AT_ONCE_BYTES)
        data[: len(first)], at = first, len(first)
        while at < len(data) and (read := connection.sock.recv_into(data[at:], len(data) - at, socket.MSG_WAITALL)):
            at += read
        response.length = 0
        response.read()
    if at < len(data):
        raise http.client.IncompleteRead(b"", len(data) - at)
    return found


def goes_by_folder(way: Way) -> bool:
    """Rule 3."""
    sees = way.sees_folder()
    if sees and way.token not in _said:
        _said[way.token] = None
        while len(_said) > _SAID_MAX:
            del _said[next(iter(_said))]
        # Nobody waits for it: the host may not be in reach of who does not need it.
        threading.Thread(target=_say_folder, args=(HostClient(way),), name="way", daemon=True).start()
    return sees


def _say_folder(client: HostClient) -> None:
    with contextlib.suppress(OSError, http.client.HTTPException, HoldfastError, _Again):
        client._asked("PUT", FOLDER_PATH, b"", {})
    client.close()


# Events ---------------------------------------------------------------------------------------------------------------


def bodies_for(way: Way | None, *, shared: bool = False) -> Bodies:
    """The events that a task reads: from the folder if it sees that, else from the host. `shared`: other tasks of this
    executor read the same ones."""
    return Bodies() if way is None or goes_by_folder(way) else RemoteBodies(way, shared=shared)


class Portion(NamedTuple):
    """What is asked for at once: parts of segments, and where in the answer each event begins."""

    ranges: list[tuple[str, int, int]]
    begins: list[int]
    lengths: list[int]
    size: int
    sums: list[int]
    """Of the events: a stream that was made anew, or copied again, has others at the same place."""

    def fits(self, data: pa.Buffer) -> bool:
        """Whether these are the events' bytes."""
        if data.size != self.size:
            return False
        events = zip(self.begins, self.lengths, self.sums, strict=True)
        return all(crc32c(data.slice(begin, length)) == crc for begin, length, crc in events)


def portions(events: Sequence[tuple[Path, Fields]]) -> Iterator[Portion]:
    """Events put together until they are worth a question."""
    ranges: list[tuple[str, int, int]] = []
    begins: list[int] = []
    lengths: list[int] = []
    sums: list[int] = []
    size = 0
    for path, fields in events:
        at, length, name = fields.offset + HEADER_SIZE, padded(fields.length), str(path)
        if ranges and size + length > PORTION_BYTES:
            yield Portion(ranges, begins, lengths, size, sums)
            ranges, begins, lengths, size, sums = [], [], [], 0, []
        gap = at - ranges[-1][1] - ranges[-1][2] if ranges and ranges[-1][0] == name else -1
        if 0 <= gap <= _GAP_BYTES:
            ranges[-1] = (name, ranges[-1][1], at + length - ranges[-1][1])
            size += gap
        else:
            ranges.append((name, at, length))
        begins.append(size)
        lengths.append(length)
        sums.append(fields.body_crc)
        size += length
    if ranges:
        yield Portion(ranges, begins, lengths, size, sums)


class RemoteBodies(Bodies):
    """Rules 1 and 2."""

    def __init__(self, way: Way, *, shared: bool = False) -> None:
        super().__init__()
        self._client, self._cache = HostClient(way), _cache_folder() if shared else None
        self._archived = ArchivedSegments(way.archived)
        self._thread: ThreadPoolExecutor | None = None
        self._left: deque[Portion] = deque()
        self._coming: deque[tuple[Portion, Future[pa.Buffer]]] = deque()
        self._portion = pa.py_buffer(b"")
        self._begins: deque[int] = deque()

    def expect(self, events: Sequence[tuple[Path, Fields]]) -> None:
        self._left.extend(portions(events))
        self._fetch_ahead()

    def raw(self, path: Path, fields: Fields) -> pa.Buffer:
        if not self._begins:
            portion, coming = self._coming.popleft()
            self._portion, self._begins = coming.result(), deque(portion.begins)
            self._fetch_ahead()
        return self._portion.slice(self._begins.popleft(), padded(fields.length))

    def _fetch_ahead(self) -> None:
        while self._left and len(self._coming) < _AHEAD:
            if self._thread is None:
                self._thread = ThreadPoolExecutor(1, "portions")
            portion = self._left.popleft()
            self._coming.append((portion, self._thread.submit(self._fetch, portion)))

    def _fetch(self, portion: Portion) -> pa.Buffer:
        if self._cache is None:
            return self._ask(portion)
        name = hashlib.sha256(repr((portion.ranges, portion.sums)).encode()).hexdigest()
        with (self._cache / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # Whoever comes second waits for the bytes, and does not ask again.
            file = self._cache / name
            with contextlib.suppress(OSError):
                kept = pa.py_buffer(file.read_bytes())
                if portion.fits(kept):
                    return kept
            found = self._ask(portion)
            with contextlib.suppress(OSError):  # A full disk is no reason to fail.
                file.write_bytes(found)
                _make_room(self._cache)
            return found

    def _ask(self, portion: Portion) -> pa.Buffer:
        """Rule 1."""
        for anew in (False, True):
            found = self._brought(portion, anew)
            if portion.fits(found):
                return found
        (name, begin, _), *_ = portion.ranges
        raise CorruptLog(
            f"{name} from byte {begin}: an event from {self._client.address} does not match its checksum, twice; run "
            f"`holdfast verify` there"
        )

    def _brought(self, portion: Portion, anew: bool) -> pa.Buffer:
        """From the archive what this executor can have from there, the rest from the host."""
        parts = [self._archived.read(*part, anew=anew) for part in portion.ranges]
        asked = [part for part, data in zip(portion.ranges, parts, strict=True) if data is None]
        path = "/v1/events?anew=1" if anew else "/v1/events"
        sent = self._client.ask("POST", path, msgspec.msgpack.encode(asked)).data if asked else pa.py_buffer(b"")
        if len(asked) == len(parts) or sent.size != sum(length for _, _, length in asked):
            return sent
        whole, at = bytearray(), 0
        for (_, _, length), data in zip(portion.ranges, parts, strict=True):
            if data is None:
                whole += sent.slice(at, length)
                at += length
            else:
                whole += data
        return pa.py_buffer(whole)

    def close(self) -> None:
        super().close()
        if self._thread is not None:
            self._thread.shutdown(wait=True, cancel_futures=True)
        self._left.clear()
        self._coming.clear()
        self._client.close()


def _cache_folder() -> Path | None:
    """Rule 2. Spark tells its workers the executor's folders."""
    local = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0]
    if not local:
        return None
    folder = Path(local, _CACHE)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return None
    return folder


def _make_room(folder: Path) -> None:
    """The oldest go: batches are read in order, and never again once all tasks have read them."""
    found = sorted((p.stat().st_mtime_ns, p.stat().st_size, p) for p in folder.iterdir() if p.suffix != ".lock")
    size = sum(length for _, length, _ in found)
    for _, length, path in found:
        if size <= _CACHE_BYTES_MAX:
            return
        size -= length
        for doomed in (path, path.with_suffix(".lock")):
            doomed.unlink(missing_ok=True)


def pieces_between(way: Way, since_us: int, until_us: int) -> list[Piece]:
    """What the streams of the query have between two times, as the host looks it up now."""
    client = HostClient(way)
    try:
        found = client.ask("GET", f"/v1/pieces?since_us={since_us}&until_us={until_us}").data
    finally:
        client.close()
    return msgspec.msgpack.decode(found, type=list[Piece])


# Results --------------------------------------------------------------------------------------------------------------


def stage_results(way: Way, query: str, batch: str, data: bytes) -> str:
    """Put a task's rows into the host's staging; what they are called there."""
    client = HostClient(way)
    try:
        answer = client.ask("PUT", f"/v1/results?query={query}&batch={batch}", data)
    finally:
        client.close()
    return str(msgspec.json.decode(answer.data)["name"])
