"""Checkpoints beside the stream: the keeper of a Python worker saves what tasks hand over (002 §3.1, figure 3.1).

Rules:
1. A task of best effort hands over what nobody changes any more, and goes on; the store is not on its way. One queue
   stands in front of it (`Pending`): a newer checkpoint of a partition takes the place of the one that waits, and when
   the queue is full, the oldest goes.
2. Each is tried once: the store is opened, written and closed, so that another worker may have it next. What the store
   does not take is the task's to hand over again, with what has become of it since.
3. What a checkpoint holds, and whether the store may have it, is its own: changed states of a user-defined operator
   (`holdfast.spark.save_policy`), or a version of a flow's (`holdfast.spark.version_store`).
4. How it ended is written to a file of this machine, for the task of the next batch, whichever worker has it.
5. The task itself saves (`keep_now`), and ends with the store's error if that is one that no retry can mend: the
   checkpoint after a refusal, so that each of Spark's attempts meets it, and none once it was put right; and all where
   a worker ends with its task, as Spark has it without `spark.python.worker.reuse`: then there is nothing beside it.

*Exact* does not come here: its batch may not go on before the store has it (`holdfast.spark.save_policy`).
"""

from __future__ import annotations

import contextlib
import os
import threading
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Literal

import msgspec

from holdfast.checkpoint.pending import Pending
from holdfast.checkpoint.slots import WentBack
from holdfast.model.errors import PeerError, StorageError, UsageError
from holdfast.stream.disk import VolatileDisk

#: Partitions that may wait in one worker; each once. A worker seldom serves more than the partitions of a few queries.
_WAITING_MAX = 64


class Checkpoint(ABC):
    """What a task hands over (rule 3)."""

    version: int
    """A later one of the partition has a greater one."""
    told: Path
    """Where the keeper says how it ended; each partition has its own."""

    @property
    def key(self) -> bytes:
        return str(self.told).encode()

    @abstractmethod
    def save(self) -> Ended:
        """Try it once. Errors of the store are for the keeper to sort out."""


class Ended(msgspec.Struct, array_like=True, frozen=True):
    """Rule 4."""

    version: int
    outcome: Literal["durable", "dropped", "older", "went back", "refused"]
    error: str = ""
    base: int = 0
    states: list[bytes] = []
    parts: list[bytes] = []
    size: int = 0
    """What was written, where the task did not know."""

    @property
    def refused(self) -> bool:
        """For good: no retry mends it."""
        return self.outcome in ("went back", "refused")


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
        return checkpoint.save()
    except WentBack as error:
        return Ended(checkpoint.version, "went back", str(error))
    except (PeerError, StorageError) as error:
        return Ended(checkpoint.version, "dropped", str(error))
    except BaseException as error:  # Such as a wrong password. The thread must live on, and the task say it.
        return Ended(checkpoint.version, "refused", str(error))


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
