"""Checkpoints beside the stream: the keeper of a Python worker saves what tasks hand over (002 §3.1, figure 3.1).

Rules:
1. A task of best effort hands over bytes that nobody changes any more, and goes on; the store is not on its way. One
   queue stands in front of it (`Pending`): a newer checkpoint of a partition takes the place of the one that waits, and
   when the queue is full, the oldest goes. What serialises is the task itself, which has the states.
2. Each is tried once: the store is opened, written and closed, so that another worker may have it next. What the store
   does not take stays pending with the task, which hands it over again with all that has changed since.
3. A checkpoint holds what has changed since the store had the first of its `bases`; the others are those that were
   handed over since, by the same run. If the store has none of these, somebody else has saved meanwhile, where the
   partition ran before or runs now; then nothing is written, and the task is told what it does not know of. So one that
   comes late is never mixed with what went on without it (C7).
4. How it ended is written beside the partition's scratch, for the task of the next batch, whichever worker has it.
5. The task itself saves (`keep_now`), and ends with the store's error if that is one that no retry can mend: the
   checkpoint after a refusal, so that each of Spark's attempts meets it, and none once it was put right; and all where
   a worker ends with its task, as Spark has it without `spark.python.worker.reuse`: then there is nothing beside it.

*Exact* does not come here: its batch may not go on before the store has it (`holdfast.spark.save_policy`).
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from holdfast.checkpoint.pending import Pending
from holdfast.checkpoint.slots import BATCH, WentBack
from holdfast.checkpoint.store import VERSION_MAX
from holdfast.model.errors import PeerError, StorageError, UsageError
from holdfast.spark.durable_state import Far
from holdfast.stream.disk import VolatileDisk

if TYPE_CHECKING:
    from holdfast.spark.keyed import Keyed

#: Partitions that may wait in one worker; each once. A worker seldom serves more than the partitions of a few queries.
_WAITING_MAX = 64


@dataclass(frozen=True)
class Checkpoint:
    """What changed in a partition, as of `version` (rule 3)."""

    plan: Keyed
    query: str
    partition: str
    bases: tuple[int, ...]
    version: int
    states: Mapping[bytes, bytes | None]
    parts: Mapping[bytes, bytes | None]
    marks: Mapping[bytes, bytes]
    told: Path

    @property
    def key(self) -> bytes:
        return str(self.told).encode()


class Ended(msgspec.Struct, array_like=True, frozen=True):
    """Rule 4."""

    version: int
    outcome: Literal["durable", "dropped", "older", "went back", "refused"]
    error: str = ""
    base: int = 0
    states: list[bytes] = []
    parts: list[bytes] = []


def ended(told: Path) -> Ended | None:
    """How the newest checkpoint of a partition ended that has ended; None if none has, or that cannot be read."""
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        return _decode(told.read_bytes())
    return None


_decode = msgspec.msgpack.Decoder(Ended).decode


class Keeper:
    """One thread behind one queue."""

    def __init__(self) -> None:
        self._waiting: Pending[Checkpoint] = Pending(_WAITING_MAX, "drop_oldest")
        self._open = 0
        self._done = threading.Condition()
        threading.Thread(target=self._run, name="holdfast-keeper", daemon=True).start()

    def hand_over(self, checkpoint: Checkpoint) -> None:
        with self._done:
            self._open += 1
        for gone in self._waiting.put(checkpoint):
            if gone is not None:
                self._end(gone, Ended(gone.version, "dropped", "it waited too long behind others"))

    def flush(self) -> None:
        """Wait until all have ended."""
        with self._done:
            self._done.wait_for(lambda: not self._open)

    def _run(self) -> None:
        while True:
            for checkpoint in self._waiting.take(1):
                self._end(checkpoint, _saved(checkpoint))

    def _end(self, checkpoint: Checkpoint, how: Ended) -> None:
        _tell(checkpoint, how)
        with self._done:
            self._open -= 1
            self._done.notify_all()


def _tell(checkpoint: Checkpoint, how: Ended) -> None:
    # Scratch may be gone, and the query with it; then nobody asks. Who is told nothing hands it over again.
    with contextlib.suppress(Exception):
        VolatileDisk().replace_file(checkpoint.told, msgspec.msgpack.encode(how))


def _saved(checkpoint: Checkpoint) -> Ended:
    try:
        return _tried(checkpoint)
    except WentBack as error:
        return Ended(checkpoint.version, "went back", str(error))
    except (PeerError, StorageError) as error:
        return Ended(checkpoint.version, "dropped", str(error))
    except BaseException as error:  # Such as a wrong password. The thread must live on, and the task say it.
        return Ended(checkpoint.version, "refused", str(error))


def _tried(checkpoint: Checkpoint) -> Ended:
    far = Far(checkpoint.plan, checkpoint.query, checkpoint.partition)
    try:
        with far.once() as slots:
            newest = int(slots.mark(BATCH, VERSION_MAX) or 0)
            if newest not in checkpoint.bases:
                unknown = slots.leftovers(checkpoint.bases[0])
                return Ended(checkpoint.version, "older", "", newest, unknown.states, unknown.parts)
            slots.save(checkpoint.states, checkpoint.version, checkpoint.marks, checkpoint.parts)
            return Ended(checkpoint.version, "durable")
    finally:
        with contextlib.suppress(Exception):  # What was saved is safe, whatever comes of the connection.
            far.close()


_keeper: tuple[int, Keeper] | None = None


def keep_beside(checkpoint: Checkpoint) -> None:
    """Hand a checkpoint to the keeper of this process."""
    global _keeper
    if "SPARK_REUSE_WORKER" not in os.environ:
        keep_now(checkpoint)
        return
    if _keeper is None or _keeper[0] != os.getpid():  # A thread does not outlive a fork.
        _keeper = (os.getpid(), Keeper())
    _keeper[1].hand_over(checkpoint)


def keep_now(checkpoint: Checkpoint) -> None:
    """Rule 5."""
    how = _saved(checkpoint)
    if how.outcome == "went back":
        raise WentBack(how.error)
    if how.outcome == "refused":  # Not told: the next attempt is to find what the task was told before.
        raise UsageError(how.error)
    _tell(checkpoint, how)
