"""Serves the streams of the driver's machine to executors that do not see their folder.

Rules:
1. Every request shows the token of a query (`grants`), which says what may be asked; a token whose query has ended, or
   whose process is gone, is no token any more (X1). Where it listens and whether it needs TLS is for
   `cluster_security` to say.
2. Events are sent as they lie in the log. Whoever gets them compares the checksums that the planner gave it (L4), and
   asks for them anew where they do not match; then nothing is taken from what is held of the archive.
3. Memory is bounded (X4): events go from the file to the socket, or a few megabytes at a time from the archive, uploads
   to the disk as they come. A reader that takes nothing is dropped by `inputs.http_server`. The loop serves all
   executors: what waits for a disk waits in a thread.
4. Uploads are named here, never by who sends them (X2). What a task that was killed has left is removed with its batch.
5. Which way the tasks of a query take is told once for each query and address, also where that is the folder.
6. Whom it refuses is told to the audit log; what a query's tasks upload is the query's own.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import os
import re
import secrets
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgspec
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from holdfast.inputs.audit import Audit
from holdfast.inputs.http_server import HttpServer, ImpatientProtocol, connection_of, make_known
from holdfast.inputs.network import Access
from holdfast.inputs.places import Crowded
from holdfast.model.errors import HoldfastError, Removed, UsageError
from holdfast.spark.folder_marker import remove_markers
from holdfast.spark.grants import FRAME, HOST, PROCESS, RUN, Grant, HostNote, granted
from holdfast.spark.hadoop_path import HadoopPath, hadoop_path
from holdfast.spark.host_client import FOLDER_PATH
from holdfast.spark.process_birth import begun, own_process
from holdfast.stream.archive.catalog import ArchivedSegment
from holdfast.stream.archive.view import ArchiveView, view_at
from holdfast.stream.disk import Disk, VolatileDisk
from holdfast.stream.merge import Merge
from holdfast.stream.reader import gone
from holdfast.stream.store import StreamStore

log = logging.getLogger(__name__)

#: A token names all streams of its query: some hundred bytes each, a thousand of them.
_HEAD_BYTES_MAX = 256 << 10
#: A list of places of events: some 60 bytes each, thousands of them.
_QUESTION_BYTES_MAX = 4 << 20
#: What one task may upload at once; larger results of one task would not fit into the driver's memory either.
UPLOAD_BYTES_MAX = 4 << 30
_UPLOAD_S_MAX = 600.0
#: Of an upload, what is written at once: a thread for each packet would cost more than the write.
_WRITE_BYTES = 1 << 20
#: What one answer holds of the archive at a time; the cache of the process has its own bound.
ARCHIVED_BYTES_MAX = 4 << 20
#: Tokens whose run or readers are remembered.
_KNOWN_MAX = 4096
_QUERY = re.compile(r"[0-9a-z-]{1,64}")

Handler = Callable[[Request, Grant], Awaitable[Any]]


class Range(msgspec.Struct, frozen=True, array_like=True):
    """A part of a segment: some events that lie there one behind the other."""

    path: str
    begin: int
    length: int


class _No(HoldfastError):
    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class StreamHost:
    """See the module. `runs` names the runs of queries that are active."""

    def __init__(
        self, access: Access, advertised: str, choice: str, note: Path, runs: Callable[[], Collection[str]]
    ) -> None:
        self._key, self._runs, self._note, self._choice = secrets.token_bytes(32), runs, note, choice
        self._run_of: dict[str, str] = {}
        self._told: dict[tuple[str, str, bool], None] = {}
        self._audit = Audit("stream host")
        self._following = asyncio.Lock()
        self.bytes_sent = 0
        self._socket = access.listen()
        scheme = "https" if access.certificate is not None else "http"
        host = f"[{advertised}]" if ":" in advertised else advertised
        self.address = f"{scheme}://{host}:{self._socket.getsockname()[1]}"
        certificate = "" if access.certificate is None else access.certificate.read_text()
        said = msgspec.msgpack.encode(HostNote(self.address, self._key, choice, certificate, own_process()))
        VolatileDisk().replace_file(note, said)
        note.chmod(0o600)
        self._server = HttpServer(self._app(), access, graceful_s=1, head_bytes_max=_HEAD_BYTES_MAX)
        self._thread = threading.Thread(target=self._serve, name="stream-host", daemon=True)
        self._thread.start()

    def close(self) -> None:
        remove_markers(self._note)
        self._note.unlink(missing_ok=True)
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()

    def _serve(self) -> None:
        asyncio.run(self._served())

    async def _served(self) -> None:
        await self._server.serve(sockets=[self._socket])

    def _app(self) -> Starlette:
        def route(path: str, handler: Handler, method: str) -> Route:
            return Route(path, partial(self._answer, handler), methods=[method])

        return Starlette(routes=[
            route(FOLDER_PATH, self._put_folder, "PUT"),
            route("/v1/events", self._post_events, "POST"),
            route("/v1/pieces", self._get_pieces, "GET"),
            route("/v1/results", self._put_results, "PUT"),
            route("/v1/checkpoints", self._put_checkpoint, "PUT"),
            route("/v1/checkpoints", self._get_checkpoints, "GET"),
            route("/v1/dealt", self._get_dealt, "GET"),
            route("/v1/mark", self._get_mark, "GET"),
            route("/v1/checkpoint/file", self._get_checkpoint_file, "GET"),
            route("/v1/checkpoint/kind", self._get_checkpoint_kind, "GET"),
            route("/v1/version", self._get_version, "GET"),
            route("/v1/version", self._put_version, "PUT"),
        ])  # fmt: skip

    # Who may --------------------------------------------------------------------------------------------------------

    async def _answer(self, handler: Handler, request: Request) -> Any:
        try:
            return await handler(request, await self._admitted(request))
        except _No as error:
            return self._refused(request, error.status, error)
        except Removed as error:
            return JSONResponse({"error": str(error)}, 410)
        except Crowded as error:  # For now: more tasks run than have a place.
            return self._refused(request, 503, error)
        except HoldfastError as error:
            return JSONResponse({"error": f"{type(error).__name__}: {error}"}, 409)
        except (ClientDisconnect, TimeoutError):
            return JSONResponse({"error": "the request did not come whole and in time"}, 400)

    def _refused(self, request: Request, status: int, why: object) -> Response:
        """Rule 6."""
        who = "a query" if request.scope.get("holdfast.known") else None
        address = request.client.host if request.client else "?"
        self._audit.refused(who, address, f"{request.method} {request.url.path}", str(why))
        return JSONResponse({"error": str(why)}, status)

    async def _admitted(self, request: Request) -> Grant:
        """Rule 1."""
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        grant = granted(token, self._key) if scheme.lower() == "bearer" else None
        if grant is None:
            raise _No(401, "the header 'Authorization: Bearer …' must carry the token of a query of this driver")
        run = request.headers.get("holdfast-run", "")
        # Which runs are active the JVM says, for which nobody else should wait.
        asked = asyncio.to_thread(self._is_run, grant, run) if grant.ends in (RUN, FRAME) else None
        if not (self._has_process(grant) if asked is None else await asked):
            raise _No(401, "the query of this token has ended")
        request.scope["holdfast.known"] = True
        make_known(request, grant.id)
        self._tell(grant, request.client.host if request.client else "?", request.url.path == FOLDER_PATH)
        return grant

    @staticmethod
    def _has_process(grant: Grant) -> bool:
        pid, born = grant.process
        return grant.ends != PROCESS or begun(pid) == born

    def _is_run(self, grant: Grant, run: str) -> bool:
        if grant.ends == FRAME:
            return run in self._runs()
        known = self._run_of.setdefault(grant.id, run)
        while len(self._run_of) > _KNOWN_MAX:
            del self._run_of[next(iter(self._run_of))]
        return known == run and run in self._runs()

    def _tell(self, grant: Grant, address: str, folder: bool) -> None:
        """Rule 5."""
        if (grant.id, address, folder) in self._told:
            return
        self._told[grant.id, address, folder] = None
        while len(self._told) > _KNOWN_MAX:
            del self._told[next(iter(self._told))]
        names = ", ".join(Path(folder).name for folder in (*grant.reads, grant.results) if folder)
        if folder:
            log.info("executors at %s see the folder of %s: they read and write there", address, names)
        elif self._choice == HOST:
            log.info("executors at %s ask %s for %s: spark.holdfast.executors is host", address, self.address, names)
        else:
            log.info("executors at %s do not see the folder of %s: they ask %s", address, names, self.address)

    @staticmethod
    async def _put_folder(request: Request, grant: Grant) -> Response:
        return _bytes(b"")

    # Events ---------------------------------------------------------------------------------------------------------

    async def _post_events(self, request: Request, grant: Grant) -> Any:
        try:
            ranges = msgspec.msgpack.decode(await _body(request, _QUESTION_BYTES_MAX), type=list[Range])
        except msgspec.MsgspecError as error:
            raise _No(400, f"events are asked for as parts of segments; {error}") from None
        for part in ranges:
            path = Path(part.path)
            # Of its stream: below it lies the branch, in it the segment.
            folder = str(path.parents[1]) if len(path.parents) > 1 else ""
            if folder not in grant.reads or ".." in path.parts:
                raise _No(403, f"this query does not read {part.path}")
        return _Portion(self, ranges, anew=request.query_params.get("anew") == "1")

    async def _get_pieces(self, request: Request, grant: Grant) -> Response:
        """What stands in the log between two times: for a task that must read again what it lost."""
        since, until = _number(request, "since_us"), _number(request, "until_us")

        def look() -> bytes:
            merge = Merge([StreamStore(Path(folder).parent).open(Path(folder).name) for folder in grant.reads])
            try:
                return msgspec.msgpack.encode(merge.pieces(since, until))
            finally:
                merge.close()

        return _bytes(await asyncio.to_thread(look))

    # Results and state ----------------------------------------------------------------------------------------------

    async def _put_results(self, request: Request, grant: Grant) -> Response:
        query, batch = request.query_params.get("query", ""), _number(request, "batch")
        if not grant.results or not _QUERY.fullmatch(query):
            raise _No(403, "this token is not for results of that query")
        name = f"{query}.{batch}.{os.urandom(8).hex()}.arrow"
        staging = Path(grant.results, "staging")
        await self._upload(request, staging, name, durable=True)
        return JSONResponse({"name": name})

    async def _put_checkpoint(self, request: Request, grant: Grant) -> Response:
        note = _stage(grant)
        if note.output is None:
            raise _No(403, "this operator has no checkpoints")
        name = f"control.{os.urandom(8).hex()}.{_number(request, 'position_us')}.ctl"
        await self._upload(request, note.output.folder / "staging", name, durable=False)
        return JSONResponse({"name": name})

    async def _upload(self, request: Request, folder: Path, name: str, *, durable: bool) -> None:
        """Rule 4. As in the folder: results are synced; checkpoints are not, the driver copies them at once."""
        disk = Disk() if durable else VolatileDisk()

        def place(temporary: Path) -> None:
            disk.rename(temporary, folder / name)
            disk.sync_dir(folder)

        await asyncio.to_thread(disk.make_dir, folder)
        async with self._received(request, folder / f".{name}", disk) as temporary:
            await asyncio.to_thread(place, temporary)

    @contextlib.asynccontextmanager
    async def _received(self, request: Request, temporary: Path, disk: Disk) -> AsyncIterator[Path]:
        """The body in a file, for whoever puts it in its place (rule 3)."""
        connection = connection_of(request)
        if connection is not None:
            connection.give_body(_UPLOAD_S_MAX)
        size, held = 0, bytearray()
        try:
            with await asyncio.to_thread(temporary.open, "wb") as file:
                async for chunk in request.stream():
                    size += len(chunk)
                    if size > UPLOAD_BYTES_MAX:
                        raise _No(413, f"a task may stage {UPLOAD_BYTES_MAX} bytes at most")
                    held += chunk
                    if len(held) >= _WRITE_BYTES:
                        await asyncio.to_thread(file.write, held)
                        held = bytearray()
                await asyncio.to_thread(_finish, file, held, disk, temporary)
            yield temporary
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise

    async def _get_checkpoints(self, request: Request, grant: Grant) -> Any:
        """Each with its length in front, as they are found: there may be as many of them as there is state."""
        from holdfast.spark.stage_files import StageFiles

        found = StageFiles(_stage(grant)).bodies(_number(request, "partition"), _number(request, "position_us"))
        return StreamingResponse(part for body in found for part in (len(body).to_bytes(8, "little"), body))

    async def _get_dealt(self, request: Request, grant: Grant) -> Response:
        from holdfast.spark.stage_files import StageFiles

        found = await asyncio.to_thread(StageFiles(_stage(grant)).dealt, _number(request, "position_us"))
        return _bytes(msgspec.msgpack.encode(found))

    async def _get_mark(self, request: Request, grant: Grant) -> Response:
        from holdfast.spark.stage_files import StageFiles

        partition, position = _number(request, "partition"), _number(request, "position_us")
        async with self._following:  # Who follows a log keeps its place there, for one at a time.
            found = await asyncio.to_thread(StageFiles(_stage(grant)).mark, partition, position)
        return _bytes(msgspec.msgpack.encode(found))

    async def _get_version(self, request: Request, grant: Grant) -> Response:
        from holdfast.spark.versions import encoded

        scratch = _scratch(request, grant)
        partition, position = _number(request, "partition"), _number(request, "position_us")

        def look() -> tuple[str, bytes | None]:
            path = scratch.file(partition, position)
            if path is not None:
                with path.open("rb") as file:
                    tag = tag_of(os.fstat(file.fileno()))
                    return tag, None if tag == request.headers.get("if-none-match") else file.read()
            version = scratch.load(partition, position)  # Of other partitions, or from another host.
            return "", b"" if version is None else b"".join(encoded(version))

        tag, data = await asyncio.to_thread(look)
        if data is None:
            return Response(status_code=304)
        return _bytes(data, {"ETag": tag}) if data else Response(status_code=404)

    async def _put_version(self, request: Request, grant: Grant) -> Response:
        scratch = _scratch(request, grant)
        partition, position = _number(request, "partition"), _number(request, "position_us")
        async with self._received(request, scratch.beside(partition, position), VolatileDisk()) as temporary:
            written = await asyncio.to_thread(scratch.adopt, partition, position, temporary)
        return JSONResponse({"tag": tag_of(written)})

    # A checkpoint that lies elsewhere, for the process that commits results ------------------------------------------

    async def _get_checkpoint_file(self, request: Request, grant: Grant) -> Response:
        path = _in_checkpoint(request, grant)
        try:
            return _bytes(await asyncio.to_thread(path.read_bytes))
        except FileNotFoundError:
            return Response(status_code=404)

    async def _get_checkpoint_kind(self, request: Request, grant: Grant) -> Response:
        path = _in_checkpoint(request, grant)
        folder = await asyncio.to_thread(path.files.is_folder, path.uri)
        return Response(status_code=404) if folder is None else _bytes(b"folder" if folder else b"file")


class _Archived(NamedTuple):
    """A segment that is no longer on the disk."""

    archive: ArchiveView
    segment: ArchivedSegment


class _Part(NamedTuple):
    """A part of a segment, and what has it."""

    source: BinaryIO | _Archived
    begin: int
    length: int


class _Portion(Response):
    """Parts of segments, one behind the other, straight from their files; what only the archive has is brought as it is
    sent (rule 3)."""

    def __init__(self, host: StreamHost, ranges: list[Range], *, anew: bool) -> None:
        super().__init__()
        self._host, self._ranges, self._anew = host, ranges, anew

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        connection = connection_of(Request(scope))
        assert connection is not None, "it runs on our own server"
        with contextlib.ExitStack() as opened:
            try:
                steps = list(_steps(await asyncio.to_thread(self._open, opened)))
                # Most often an archive that is away shows now, when it still can be said.
                first = next((step for step in steps if isinstance(step, list)), None)
                brought = None if first is None else await asyncio.to_thread(_bring, first)
            except HoldfastError as error:
                status = 410 if isinstance(error, Removed) else 409
                await JSONResponse({"error": str(error)}, status)(scope, receive, send)
                return
            size = sum(part.length for part in self._ranges)
            self._host.bytes_sent += size  # Before whoever asked has them, and looks.
            headers = [(b"content-length", str(size).encode()), (b"content-type", b"application/octet-stream")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            try:
                await self._send(connection, steps, brought)
            except HoldfastError as error:
                log.warning("an answer to an executor was broken off: %s", error)
                connection.transport.abort()
                return
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    @staticmethod
    async def _send(connection: ImpatientProtocol, steps: list[_Part | list[_Part]], brought: bytes | None) -> None:
        for step in steps:
            if connection.transport.is_closing():
                return  # Whoever asked is gone: nothing more needs to be brought.
            if isinstance(step, _Part):
                assert not isinstance(step.source, _Archived)
                await connection.send_range(step.source, step.begin, step.length)
                continue
            data = brought if brought is not None else await asyncio.to_thread(_bring, step)
            brought = None
            await connection.send_range(io.BytesIO(data), 0, len(data))

    def _open(self, opened: contextlib.ExitStack) -> list[_Part]:
        """Each segment once, however many of its parts are asked for: streams that are merged take turns, event by
        event, and a process may have a thousand files."""
        segments: dict[str, tuple[BinaryIO | _Archived, int]] = {}
        found = []
        for part in self._ranges:
            if part.path not in segments:
                segments[part.path] = self._segment(Path(part.path), opened)
            source, size = segments[part.path]
            if part.begin < 0 or part.length < 0 or size < part.begin + part.length:
                raise UsageError(f"{part.path} has no {part.length} bytes at {part.begin}; ask as the planner says")
            found.append(_Part(source, part.begin, part.length))
        return found

    def _segment(self, path: Path, opened: contextlib.ExitStack) -> tuple[BinaryIO | _Archived, int]:
        """With its length."""
        file = _opened(path)
        if file is not None:
            opened.enter_context(file)
            return file, os.fstat(file.fileno()).st_size
        archive = view_at(path.parent)
        found = None if archive is None else archive.find(path.name)
        if archive is None or found is None:
            raise gone(path)
        if self._anew:
            archive.forget(found)
        return _Archived(archive, found), found.entry.length or 0


def _opened(path: Path) -> BinaryIO | None:
    """None: it is not on the disk."""
    try:
        return open(path, "rb", buffering=0)
    except FileNotFoundError:
        return None


def _steps(parts: list[_Part]) -> Iterator[_Part | list[_Part]]:
    """What is sent at once: a part of a file, or parts in the archive, as many bytes as may be in memory (rule 3)."""
    together: list[_Part] = []
    held = 0
    for part in parts:
        if not isinstance(part.source, _Archived):
            if together:
                yield together
                together, held = [], 0
            yield part
            continue
        for begin in range(part.begin, part.begin + part.length, ARCHIVED_BYTES_MAX):
            length = min(ARCHIVED_BYTES_MAX, part.begin + part.length - begin)
            if together and held + length > ARCHIVED_BYTES_MAX:
                yield together
                together, held = [], 0
            together.append(_Part(part.source, begin, length))
            held += length
    if together:
        yield together


def _bring(parts: list[_Part]) -> bytes:
    """These parts, from the archive."""
    found = bytearray()
    for source, begin, length in parts:
        assert isinstance(source, _Archived)
        found += source.archive.read(source.segment, begin, begin + length)
    return bytes(found)


def _finish(file: BinaryIO, rest: bytearray, disk: Disk, path: Path) -> None:
    file.write(rest)
    file.flush()
    disk.sync(file.fileno(), path)


def _stage(grant: Grant) -> Any:
    from holdfast.spark.stage_files import StageNote

    if not grant.stage:
        raise _No(403, "this token is not of a query with an operator of Holdfast's")
    return StageNote.decode(grant.stage)


def _scratch(request: Request, grant: Grant) -> Any:
    """Of a frame's, that of the query that the task belongs to."""
    scratch, query = _stage(grant).scratch, request.query_params.get("query", "")
    if not scratch.per_query:
        return scratch
    if not _QUERY.fullmatch(query):
        raise _No(403, "this token is for the queries over a frame; name one")
    return scratch.of_query(query)


def _in_checkpoint(request: Request, grant: Grant) -> HadoopPath:
    uri = request.query_params.get("uri", "")
    if not grant.checkpoint or not uri.startswith(f"{grant.checkpoint.rstrip('/')}/") or ".." in uri.split("/"):
        raise _No(403, f"this token is not for {uri[:200]}")
    return hadoop_path(uri)


def tag_of(written: os.stat_result) -> str:
    """What tells a file from another one of the same name."""
    return f"{written.st_ino}-{written.st_mtime_ns}"


def _number(request: Request, name: str) -> int:
    text = request.query_params.get(name, "")
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 19:
        raise _No(400, f"{name} must be a whole number; got {text[:40]!r}")
    return int(text)


async def _body(request: Request, bytes_max: int) -> bytes:
    connection = connection_of(request)
    if connection is not None:
        connection.give_body(_UPLOAD_S_MAX)
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > bytes_max:
            raise _No(413, f"a body may have {bytes_max} bytes at most")
    return bytes(body)


def _bytes(data: bytes, headers: dict[str, str] | None = None) -> Response:
    return Response(data, media_type="application/octet-stream", headers=headers)
