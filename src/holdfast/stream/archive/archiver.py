"""The thread that archives a stream while somebody writes it.

Rules:
1. It never stands in a writer's way: a commit only wakes it. What it cannot do it says, and tries again, each time
   after twice as long; nothing is removed from the disk meanwhile (L8).
2. One for each stream and process; among the processes of a machine, who has the lock. It ends when there is nothing to
   do for a while, and is started again by the next segment.
3. What it did last, or why it could not, is noted beside the segments, for people (`archive_state`).
4. A clock that jumps ahead for a moment would make everything old, here as on the disk (`retention`, rule 5), and what
   goes from an archive is gone for good: where the last look was long ago, age is judged as of that one, and the next
   look is a minute later.
"""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path

import msgspec

from holdfast.clock import Clock, now_us
from holdfast.model.errors import Fenced, HoldfastError
from holdfast.model.time import SECOND_US
from holdfast.stream.archive.catalog import read_note
from holdfast.stream.archive.expiry import expire
from holdfast.stream.archive.ranges import opened
from holdfast.stream.archive.upload import Upload, Uploaded, alone, sound_note, waiting
from holdfast.stream.definition import Definition, Retention
from holdfast.stream.disk import Disk
from holdfast.stream.head import read_head

log = logging.getLogger(__name__)

#: After a failure; doubled with each further one, up to the other.
_AGAIN_S, _AGAIN_S_MAX = 1.0, 300.0
#: A thread without work stays for so long: the next segment of a busy stream comes within it.
_IDLE_S = 30.0
#: How often a writer has it look, even if no segment was sealed: another process may have left something.
EVERY_US = 60 * SECOND_US
#: How often the retention of an archive is applied: it costs some requests, and removes whole segments.
EXPIRE_EVERY_US = 600 * SECOND_US
#: So long after the last look the clock may have jumped (rule 4).
_LEAP_US = 3600 * SECOND_US
_STATE = "archive.state"


class ArchiveState(msgspec.Struct, frozen=True):
    """What the last run came to."""

    at_us: int = 0
    error: str | None = None
    failures: int = 0
    """In a row."""
    failing_since_us: int = 0
    errors_total: int = 0
    expired_us: int = 0
    """When the retention of the archive was last applied; a little earlier if it was not sure of the time."""


class Lag(msgspec.Struct, frozen=True):
    """What is sealed and not archived yet."""

    segments: int
    bytes: int
    since_us: int | None
    """When the oldest of it was sealed."""


def archive_state(folder: Path) -> ArchiveState:
    try:
        return msgspec.json.decode((folder / _STATE).read_bytes(), type=ArchiveState)
    except (FileNotFoundError, msgspec.MsgspecError):
        return ArchiveState()


def archive_lag(folder: Path) -> Lag:
    left = waiting(folder, read_note(folder))
    return Lag(len(left), sum(s.length or 0 for s in left), left[0].wall_us if left else None)


def archive_text(folder: Path, definition: Definition, now_us: int) -> str:
    """How the archive of a stream does, for people."""
    note, lag, state = read_note(folder), archive_lag(folder), archive_state(folder)
    has = "nothing yet" if note is None else f"{note.count} segments, {note.bytes / 1e6:.1f} MB"
    said = [f"archive {definition.archive} has {has}"]
    if definition.archive_retention != Retention():
        said[0] += f" ({definition.archive_retention.text})"
    if lag.since_us is not None:
        waits_s = max(0, now_us - lag.since_us) // SECOND_US
        said.append(f"{lag.segments} segments, {lag.bytes / 1e6:.1f} MB, wait to be archived since {waits_s} s")
    if state.error is not None:
        said.append(f"archiving fails since {(now_us - state.failing_since_us) // SECOND_US} s: {state.error}")
    return "; ".join(said)


def archive_once(
    folder: Path, definition: Definition, *, disk: Disk | None = None, clock: Clock = now_us, asked: bool = False
) -> Uploaded:
    """Archive what is sealed, and let go of what the archive's retention does not keep. Another run under way is left
    to do it. Whether it failed is noted. Somebody who has `asked` for it knows what time it is (rule 4)."""
    assert definition.archive is not None
    disk, before, now = disk or Disk(), archive_state(folder), clock()
    with alone(folder) as mine:
        due = definition.archive_retention != Retention() and abs(now - before.expired_us) >= EXPIRE_EVERY_US
        leapt = due and not asked and 0 < before.expired_us < now - _LEAP_US
        note = sound_note(folder)
        lost = note is None and read_head(folder).archived_seq > 0
        if not mine or not (due or lost or waiting(folder, note)):
            return Uploaded()
        try:
            objects = opened(definition.archive)
            done = Upload(folder, definition, objects, disk, now).run()
            if due:
                expire(folder, definition, objects, disk, before.expired_us if leapt else now)
        except (HoldfastError, OSError) as error:
            _note(folder, ArchiveState(now, str(error), before.failures + 1, before.failing_since_us or now,
                                       before.errors_total + 1, before.expired_us))  # fmt: skip
            raise
        expired_us = now - EXPIRE_EVERY_US + EVERY_US if leapt else now if due else before.expired_us
        _note(folder, ArchiveState(now, errors_total=before.errors_total, expired_us=expired_us))
        return done


def _note(folder: Path, state: ArchiveState) -> None:
    """Not synced: it says how things are, not what must be kept."""
    temporary = folder / f".{_STATE}.{os.getpid()}.tmp"
    try:
        temporary.write_bytes(msgspec.json.encode(state))
        Disk().rename(temporary, folder / _STATE)
    except (OSError, HoldfastError) as error:
        log.debug("%s: the state of the archive could not be noted: %s", folder, error)


class Archiver:
    """Of one stream in this process."""

    def __init__(self, folder: Path, definition: Definition) -> None:
        self._folder, self._definition = folder, definition
        self._mutex = threading.Lock()
        self._wanted = threading.Event()
        self._thread: threading.Thread | None = None
        self.woken_us = 0

    def wake(self, definition: Definition) -> None:
        """There may be something to do."""
        with self._mutex:
            self._definition = definition
            self._wanted.set()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=f"archive {definition.name}", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        pause_s = 0.0
        while True:
            # After a failure a new segment does not hasten the next attempt.
            if pause_s:
                threading.Event().wait(pause_s)
            elif not self._wanted.wait(_IDLE_S):
                with self._mutex:
                    if not self._wanted.is_set():
                        self._thread = None
                        return
            self._wanted.clear()
            pause_s = self._attempt(pause_s)

    def _attempt(self, pause_s: float) -> float:
        if not self._folder.is_dir():
            return 0.0  # The stream was deleted.
        try:
            archive_once(self._folder, self._definition)
        except Fenced as error:
            log.error("%s", error)  # No retry mends it; but an operator may, and a look costs little.
            return _AGAIN_S_MAX
        except (HoldfastError, OSError) as error:
            again_s = min(max(2 * pause_s, _AGAIN_S), _AGAIN_S_MAX)
            log.warning("stream %s is not archived for now, and is tried again in %.0f s: %s", self._definition.name,
                        again_s, error)  # fmt: skip
            return again_s
        except Exception:
            log.exception("stream %s is not archived for now", self._definition.name)
            return _AGAIN_S_MAX
        return 0.0


_archivers: dict[tuple[int, Path], Archiver] = {}
_mutex = threading.Lock()


def wake_archiver(folder: Path, definition: Definition, now_us: int, *, sealed: bool) -> None:
    """Have the stream archived in this process, soon: if a segment was sealed, and otherwise now and then."""
    key = (os.getpid(), folder)
    with _mutex:
        archiver = _archivers.get(key)
        if archiver is None:
            archiver = _archivers[key] = Archiver(folder, definition)
        elif not sealed and abs(now_us - archiver.woken_us) < EVERY_US:
            return
        archiver.woken_us = now_us
    archiver.wake(definition)
