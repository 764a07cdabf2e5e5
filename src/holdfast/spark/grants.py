"""What the tasks of one query may ask of the process that holds its streams, and the secret with which they ask.

Where executors see the folder of the streams, they read and write there. Where they do not, they ask `stream_host` in
the driver. Rules:
1. The planner of a query, which runs beside the driver, makes the grant: the folders that the query reads, and where
   its results and the state of its operator go. It is signed with a key that only the driver's user on the driver's
   machine can read. Tasks get the grant and its signature, together the token, and can ask for nothing else (X1, X2).
2. A grant ends with its query: with the process that plans it, where there is one as long as it runs (`PROCESS`), or
   with the run that first shows it (`RUN`). That of a frame, over which queries may be started again and again, counts
   for those that run (`FRAME`). That of a plain `spark.read` ends with the session, because Spark may run such a read
   again at any time (`SESSION`).
3. A task goes by the folder if it sees what the planner saw: the planner leaves a marker in each (`folder_marker`), and
   the task looks for it. A copy of the folder is another folder.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from holdfast.model.errors import UsageError
from holdfast.spark.archived_segments import ArchivedPlace
from holdfast.spark.folder_marker import is_seen, marked
from holdfast.spark.process_birth import own_process

#: Names the file that has the driver's address and key. It stands in the environment of everything that Spark starts;
#: the file itself is there only beside the driver.
VARIABLE = "HOLDFAST_STREAM_HOST"
#: How a session chooses: by what each task sees, always the folder, or always the host.
AUTO, FOLDER, HOST = "auto", "folder", "host"
CHOICES = (AUTO, FOLDER, HOST)
PROCESS, RUN, FRAME, SESSION = "process", "run", "frame", "session"
_SIGNATURE = hashlib.sha256().digest_size


class HostNote(msgspec.Struct, frozen=True):
    """The content of that file."""

    address: str
    key: bytes
    choice: str
    certificate: str = ""
    """PEM, where the address is https: the only one that tasks trust."""
    process: tuple[int, int] = (0, 0)
    """The driver's."""


class Grant(msgspec.Struct, frozen=True, array_like=True):
    """Rule 1."""

    id: str
    ends: str
    process: tuple[int, int] = (0, 0)
    """Number and beginning of the process that it ends with."""
    reads: tuple[str, ...] = ()
    """Folders of the streams."""
    results: str = ""
    """Folder of the stream that results are staged for."""
    stage: bytes = b""
    """An operator with state, as `stage_files` describes it."""
    checkpoint: str = ""
    """A checkpoint on a filesystem that only the driver can reach."""


class Way(NamedTuple):
    """How a task gets at its query's streams. Made by the planner, and sent with the tasks."""

    address: str
    token: str
    certificate: str
    choice: str
    markers: tuple[str, ...]
    archived: tuple[ArchivedPlace, ...] = ()
    """Of what this task reads: segments that the disk has no longer."""

    def sees_folder(self) -> bool:
        """Rule 3."""
        return self.choice != HOST and all(map(is_seen, self.markers))


def way_for(
    streams: Sequence[str], ends: str, *, results: str = "", stage: bytes = b"", scratch: str = "", checkpoint: str = ""
) -> Way | None:
    """The way for tasks of a query over these folders of streams; None where no host serves: there is the folder."""
    note = noted_host()
    if note is None:
        return None
    folders = [Path(folder) for folder in (*streams, results) if folder]
    if scratch and not (results and Path(scratch).is_relative_to(results)):  # Else whoever sees the stream sees it.
        Path(scratch).mkdir(parents=True, exist_ok=True)
        folders.append(Path(scratch))
    beside = Path(os.environ[VARIABLE])
    markers = () if note.choice == HOST else tuple(marked(f, note.key, note.process, beside) for f in folders)
    grant = Grant(secrets.token_hex(16), ends, own_process() if ends == PROCESS else (0, 0), tuple(streams), results,
                  stage, checkpoint)  # fmt: skip
    return Way(note.address, sign(grant, note.key), note.certificate, note.choice, markers)


def noted_host() -> HostNote | None:
    """Whom this process's driver has to serve its streams, if anybody."""
    file = os.environ.get(VARIABLE)
    if not file:
        return None
    try:
        return msgspec.msgpack.decode(Path(file).read_bytes(), type=HostNote)
    except FileNotFoundError:  # Not beside the driver, or its session has ended.
        return None


def sign(grant: Grant, key: bytes) -> str:
    body = msgspec.msgpack.encode(grant)
    return base64.urlsafe_b64encode(hmac.digest(key, body, "sha256") + body).decode()


def granted(token: str, key: bytes) -> Grant | None:
    """The grant of a token; None if it is not one of ours."""
    try:
        raw = base64.urlsafe_b64decode(token)
        signature, body = raw[:_SIGNATURE], raw[_SIGNATURE:]
        if not hmac.compare_digest(signature, hmac.digest(key, body, "sha256")):
            return None
        return msgspec.msgpack.decode(body, type=Grant)
    except (ValueError, msgspec.MsgspecError):
        return None


def checked_choice(given: str) -> str:
    if given not in CHOICES:
        raise UsageError(f"spark.holdfast.executors must be one of {', '.join(CHOICES)}; got {given!r}")
    return given
