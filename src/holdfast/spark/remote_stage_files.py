"""The state of an operator whose task does not see the streams' folder: at the driver's, as in a folder that all see.

The worker that wrote a version keeps it, and asks only whether it is still the one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from holdfast.model.errors import PeerError
from holdfast.spark import control
from holdfast.spark.grants import Way
from holdfast.spark.host_client import HostClient, goes_by_folder
from holdfast.spark.stage_files import Dealt, StageFiles, StageNote
from holdfast.spark.versions import Version, decoded, encoded

#: Versions that a worker keeps: more than it has partitions of living queries.
_VERSIONS_MAX = 64
#: Connections that a worker keeps from task to task, one for each living query; it runs one task at a time.
_CLIENTS_MAX = 8
_clients: dict[str, HostClient] = {}


class _Kept(NamedTuple):
    position_us: int
    tag: str
    version: Version


_kept: dict[tuple[str, str, str, int], _Kept] = {}


def stage_files_for(way: Way | None, note: StageNote) -> StageFiles:
    """Those of a task: in the folder if it sees that, else at the host."""
    return StageFiles(note) if way is None or goes_by_folder(way) else RemoteStageFiles(way, note)


class RemoteStageFiles(StageFiles):
    """The files of one stage, asked for."""

    def __init__(self, way: Way, note: StageNote) -> None:
        super().__init__(note)
        known = _clients.pop(way.token) if way.token in _clients else HostClient(way)
        known.belong()
        self._client = _clients[way.token] = known
        while len(_clients) > _CLIENTS_MAX:
            _clients.pop(next(iter(_clients))).close()

    def load(self, partition: int, position_us: int) -> Version | None:
        scratch = self._note.scratch
        if not scratch.shared:
            return scratch.load(partition, position_us)
        kept = [_kept.get(self._key(lineage, partition)) for lineage in (scratch.lineage, *scratch.parents)]
        known = next((k for k in kept if k is not None and k.position_us == position_us), None)
        answer = self._client.ask("GET", self._version(partition, position_us), headers={
            "If-None-Match": known.tag if known is not None else "none",
        })  # fmt: skip
        if answer.status == 304 and known is not None:
            return known.version
        return decoded(answer.data) if answer.status == 200 else None

    def store(self, partition: int, position_us: int, version: Version) -> None:
        scratch = self._note.scratch
        if not scratch.shared:
            scratch.store(partition, position_us, version)
            return
        asked = self._client.ask("PUT", self._version(partition, position_us), encoded(version))
        key = self._key(scratch.lineage, partition)
        _kept.pop(key, None)
        _kept[key] = _Kept(position_us, msgspec.json.decode(asked.data)["tag"], version)
        while len(_kept) > _VERSIONS_MAX:
            del _kept[next(iter(_kept))]

    def _version(self, partition: int, position_us: int) -> str:
        """Of a frame's, the host has to be told the query: the token was made before there was one."""
        query = self._note.scratch.lineage.partition("/")[2]
        return f"/v1/version?partition={partition}&position_us={position_us}{f'&query={query}' if query else ''}"

    def _key(self, lineage: str, partition: int) -> tuple[str, str, str, int]:
        return self._note.scratch.folder, lineage, self._note.operator, partition

    def mark(self, partition: int, position_us: int) -> int | None:
        found: int | None = self._found(f"/v1/mark?partition={partition}&position_us={position_us}", int | None)
        return found

    def dealt(self, position_us: int) -> Dealt:
        found: Dealt = self._found(f"/v1/dealt?position_us={position_us}", Dealt)
        return found

    def bodies(self, partition: int, position_us: int) -> Iterator[bytes]:
        data = memoryview(
            self._client.ask("GET", f"/v1/checkpoints?partition={partition}&position_us={position_us}").data
        )
        at = 0
        while at < len(data):
            size = int.from_bytes(data[at : at + 8], "little")
            yield bytes(data[at + 8 : at + 8 + size])
            at += 8 + size

    def stage(self, message: control.Message, body: bytes) -> bytes:
        if len(body) <= control.INLINE_BYTES:
            return control.inline(message, body)
        answer = self._client.ask("PUT", f"/v1/checkpoints?position_us={message.position_us}", body)
        return control.staged(message, str(msgspec.json.decode(answer.data)["name"]), body)

    def _found(self, path: str, kind: Any) -> Any:
        answer = self._client.ask("GET", path)
        if answer.status != 200:
            raise PeerError(f"the driver's host does not know {path}; it must be of the same version as this executor")
        return msgspec.msgpack.decode(answer.data, type=kind)
