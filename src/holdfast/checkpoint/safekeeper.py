"""The SafeKeeper: takes an operator's state off its hands and keeps it, beside the stream (002 §3.1, figure 3.1).

Rules:
1. `save` takes a reference to a state that nobody changes any more, or a function that gives its bytes, and returns.
   Two bounded queues follow, one in front of the serialiser, one in front of the store. Bytes in pieces may be views of
   memory that is much larger than they are; those that would have to wait for the store are copied, so that what waits
   keeps no memory but its own (X4).
2. A full queue drops its oldest checkpoint, or makes the caller wait: the policy's choice. Drops are counted and told.
   A policy that promises *exact* waits; dropping gives an earlier valid state only (C7).
3. Every checkpoint ends in one result, whatever fails and whenever the keeper is closed: DURABLE at the store's
   durability point and not before (C8), SUPERSEDED by a newer one, DROPPED, or FAILED because its bytes could not be
   made or the store refused them for a reason that does not pass.
4. A store that fails is tried again, with growing pauses, until it is back; the stream goes on meanwhile by rule 2.
   A store of files that gave up on its disk is opened anew, if the keeper was told how.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import NamedTuple, TypeAlias

from holdfast.checkpoint.histogram import Histogram, Summary
from holdfast.checkpoint.pending import Pending, WhenFull
from holdfast.checkpoint.store import CheckpointStore, EntryInPieces, Pieces, check_value
from holdfast.clock import monotonic_us
from holdfast.model.errors import PeerError, StorageError, UsageError

#: Checkpoints handed to the store with one wait.
_BATCH = 256
#: Checkpoints that the serialiser takes at a time, and the bytes after which it hands over what it has: enough that the
#: storer is woken and the disk synced seldom, little enough that the store has something to do meanwhile.
_SERIALISED_MAX = 256
_SERIALISED_BYTES = 8 << 20
_PAUSE_S_FIRST, _PAUSE_S_MAX = 0.02, 1.0


class Outcome(Enum):
    DURABLE = "durable"
    SUPERSEDED = "superseded"
    DROPPED = "dropped"
    FAILED = "failed"


class Result(NamedTuple):
    """How a checkpoint ended, told to the callback."""

    key: bytes
    version: int
    outcome: Outcome
    latency_us: int
    error: Exception | None = None


#: A state's bytes, which may be in pieces.
Value: TypeAlias = bytes | Pieces


class _Task(NamedTuple):
    key: bytes
    version: int
    state: Value | Callable[[], Value]
    since_us: int
    told: Callable[[Result], None] | None = None
    """Who waits for this one's result."""


#: Key, version and bytes, or a function that makes them, of what is to be saved.
State = tuple[bytes, int, Value | Callable[[], Value]]


class Status(NamedTuple):
    """What is shown of a keeper."""

    outcomes: dict[str, int]
    waiting: int
    store_problem: str | None
    """Why the store cannot be written right now."""
    retries: int
    serialising: Summary
    storing: Summary
    total: Summary


#: Those of this process that somebody holds, for whoever measures them.
_keepers: weakref.WeakSet[SafeKeeper] = weakref.WeakSet()
_mutex = threading.Lock()


def keepers() -> list[SafeKeeper]:
    """All of this process that are in use."""
    with _mutex:
        return list(_keepers)


class SafeKeeper:
    """Asynchronous checkpoints into one store."""

    def __init__(
        self, store: CheckpointStore | Callable[[], CheckpointStore], *, capacity: int = 1024,
        when_full: WhenFull = "drop_oldest", on_result: Callable[[Result], None] | None = None, storers: int = 1,
    ) -> None:  # fmt: skip
        if capacity < 1 or storers < 1 or when_full not in ("drop_oldest", "wait"):
            raise UsageError(
                f"a keeper needs room for a checkpoint, a storer, and 'drop_oldest' or 'wait'; got {capacity}, "
                f"{storers}, {when_full!r}"
            )
        self._reopen = store if not isinstance(store, CheckpointStore) else None
        self._store = store if isinstance(store, CheckpointStore) else store()
        self._on_result = on_result
        self._to_serialise: Pending[_Task] = Pending(capacity, when_full)
        self._to_store: Pending[_Task] = Pending(capacity, when_full)
        self._counts: Counter[Outcome] = Counter()
        self._retries = 0
        self._problem: str | None = None
        self._error: Exception | None = None
        self._saved = 0
        self._ended = threading.Condition()
        self._giving_up = threading.Event()
        self._mending = threading.Lock()
        self._serialising, self._storing, self._total = Histogram(), Histogram(), Histogram()
        self._serialiser = threading.Thread(target=self._serialise, name="holdfast-serialiser", daemon=True)
        self._storers = [
            threading.Thread(target=self._keep, name=f"holdfast-storer-{i}", daemon=True) for i in range(storers)
        ]
        for thread in (self._serialiser, *self._storers):
            thread.start()
        with _mutex:
            _keepers.add(self)

    @property
    def store(self) -> CheckpointStore:
        return self._store

    def save(self, key: bytes, version: int, state: Value | Callable[[], Value]) -> None:
        """Keep a state. Returns at once, or, where the policy is to wait, when there is room."""
        self.save_many(((key, version, state),))

    def save_all(self, states: Iterable[State]) -> list[Result]:
        """Save several and wait for their results, for an exact policy: what follows may rely on them."""
        states, results = list(states), []
        done = threading.Event()

        def told(result: Result) -> None:
            results.append(result)
            if len(results) == len(states):
                done.set()

        if states:
            self.save_many(states, told)
            done.wait()
        return results

    def save_many(self, states: Iterable[State], told: Callable[[Result], None] | None = None) -> None:
        """`save` for each of several states by key and version: the threads behind the queues are woken once."""
        now = monotonic_us()
        tasks = [_Task(key, version, state, now, told) for key, version, state in states]
        with self._ended:
            self._saved += len(tasks)
        ready = [task for task in tasks if not callable(task.state) and self._can_be_kept(task)]
        if ready:
            self._hand_over(ready)
        later = [task for task in tasks if callable(task.state)]
        if later:
            self._queue(self._to_serialise, later)

    def flush(self, timeout_s: float | None = None) -> bool:
        """Wait until everything saved so far has its result; False if the time was over before."""
        with self._ended:
            wanted = self._saved
            return self._ended.wait_for(lambda: sum(self._counts.values()) >= wanted, timeout_s)

    def status(self) -> Status:
        with self._ended:
            outcomes = {outcome.value: self._counts[outcome] for outcome in Outcome}
        waiting = len(self._to_serialise) + len(self._to_store)
        return Status(outcomes, waiting, self._problem, self._retries, self._serialising.summary(),
                      self._storing.summary(), self._total.summary())  # fmt: skip

    def close(self, *, patience_s: float = 10.0) -> None:
        """Let what waits reach the store, for as long as `patience_s`; what cannot is counted as dropped."""
        self._to_serialise.close()
        self._serialiser.join(patience_s)
        self._to_store.close()
        for storer in self._storers:
            storer.join(patience_s)
        self._giving_up.set()
        for storer in self._storers:
            storer.join()
        # It may have waited for room; the closed queue has given back to it what it still had.
        self._serialiser.join(patience_s)
        self._store.close()

    def _queue(self, queue: Pending[_Task], tasks: Sequence[_Task]) -> None:
        for superseded, dropped in queue.put_all(tasks):
            if superseded is not None:
                self._end((superseded,), Outcome.SUPERSEDED)
            if dropped is not None:
                self._end((dropped,), Outcome.DROPPED)

    def _hand_over(self, ready: list[_Task]) -> None:
        """To the store, which takes all of it at once unless it is behind."""
        if len(self._to_store):
            ready = [t._replace(state=b"".join(t.state)) if isinstance(t.state, tuple) else t for t in ready]
        self._queue(self._to_store, ready)

    def _serialise(self) -> None:
        while self._serialised():
            pass  # Nothing is named here, so nothing that was handed over is kept while there is nothing to do.

    def _serialised(self) -> bool:
        tasks = self._to_serialise.take(_SERIALISED_MAX)
        ready: list[_Task] = []
        size = 0
        took: list[int] = []
        begun = monotonic_us()
        for task in tasks:
            raw = self._bytes_of(task)
            ended = monotonic_us()
            if raw is not None:
                ready.append(_Task(task.key, task.version, raw, task.since_us, task.told))
                size += len(raw) if isinstance(raw, bytes) else sum(map(len, raw))
                took.append(ended - begun)
            begun = ended
            if size >= _SERIALISED_BYTES:
                self._hand_over(ready)
                ready, size = [], 0
        self._hand_over(ready)
        self._serialising.add_all(took)
        return bool(tasks)

    def _can_be_kept(self, task: _Task) -> bool:
        """One that no store takes must not cost those beside it."""
        try:
            check_value(task.state)  # type: ignore[arg-type]
        except UsageError as error:
            self._end((task,), Outcome.FAILED, error)
            return False
        return True

    def _bytes_of(self, task: _Task) -> Value | None:
        try:
            assert callable(task.state)
            raw = task.state()
            check_value(raw)
        except Exception as error:  # The operator's own code: its fault must not end the keeper.
            self._end((task,), Outcome.FAILED, error)
            return None
        return raw

    def _keep(self) -> None:
        while self._kept():
            pass

    def _kept(self) -> bool:
        tasks = self._to_store.take(_BATCH)
        pause = _PAUSE_S_FIRST
        while tasks and not self._stored(tasks):
            if self._giving_up.wait(pause):
                self._end(tasks, Outcome.DROPPED, self._error)
                break
            pause = min(2 * pause, _PAUSE_S_MAX)
            self._mend(self._error)
        return bool(tasks)

    def _stored(self, tasks: list[_Task]) -> bool:
        """Whether these have their results. Not if the store is away: then they may be tried again."""
        if self._giving_up.is_set():
            return False
        begun = monotonic_us()
        try:
            entries = [EntryInPieces(task.key, task.version, task.state) for task in tasks]  # type: ignore[arg-type]
            pairs = list(zip(tasks, self._store.put_many(entries), strict=True))
        except (PeerError, StorageError) as error:
            self._problem, self._error = str(error), error
            self._retries += 1
            return False
        except Exception as error:  # A store's own fault must not end the thread that all others wait for.
            self._end(tasks, Outcome.FAILED, error)
            return True
        self._problem = None
        self._storing.add(monotonic_us() - begun)
        self._end([task for task, durable in pairs if durable], Outcome.DURABLE)
        self._end([task for task, durable in pairs if not durable], Outcome.SUPERSEDED)
        return True

    def _mend(self, error: Exception | None) -> None:
        """A store that gave up on its files does not come back by itself (L9); a server does."""
        if self._reopen is None or isinstance(error, PeerError):
            return
        with self._mending:
            with contextlib.suppress(Exception):
                self._store.close()
            with contextlib.suppress(Exception):
                self._store = self._reopen()

    def _end(self, tasks: Sequence[_Task], outcome: Outcome, error: Exception | None = None) -> None:
        now = monotonic_us()
        if outcome is Outcome.DURABLE:
            self._total.add_all([now - task.since_us for task in tasks])
        for task in tasks:
            for tell in (self._on_result, task.told):
                if tell is not None:
                    with contextlib.suppress(Exception):  # A callback that fails is not the keeper's to mend.
                        tell(Result(task.key, task.version, outcome, now - task.since_us, error))
        if tasks:
            with self._ended:
                self._counts[outcome] += len(tasks)
                self._ended.notify_all()
