"""The store that outlives the machine, as one partition of an operator in an executor has it.

Rules:
1. It is opened when it is first needed: with a policy of best effort, most batches need nothing of it.
2. What must come from it or must be in it before a batch may go on is waited for while its server is away: with growing
   pauses, saying so, for as long as it takes. That is how *exact* holds the stream back, and how a machine without
   scratch waits for its states; a server that restarts never fails a query.
3. What need not be saved now is tried once (`once`). Whoever tries counts what is dropped.
4. In a folder, one process at a time has the store. Another one, such as a task that is just ending, is waited for.
5. A log of which something acknowledged was damaged opens for best effort with what is left, saying so; for *exact* it
   does not open.
"""

from __future__ import annotations

import contextlib
import shutil
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from holdfast.checkpoint.policy import NoCheckpoint
from holdfast.checkpoint.slots import Slots
from holdfast.checkpoint.store import CheckpointStore, Entry, Saved
from holdfast.checkpoint.stores import open_store
from holdfast.checkpoint.stores.log import LogStore
from holdfast.model.errors import CorruptLog, PeerError, StorageError, StreamBusy

if TYPE_CHECKING:
    from holdfast.spark.keyed import Keyed

#: Between two tries: a server that restarts is found soon, one that is away for long is not asked all the time.
_PAUSE_S_FIRST, _PAUSE_S_MAX = 0.05, 5.0
#: Between two words about a store that is away.
_TELL_S = 60.0
#: How long another process may have the store of a partition.
_BUSY_S = 20.0

T = TypeVar("T")


class Stored(Protocol):
    """As much of an operator as its store must know."""

    @property
    def name(self) -> str: ...
    @property
    def store(self) -> str | None: ...
    @property
    def exact(self) -> bool:
        """Whether an earlier state than the newest is an error (rule 5)."""


class Far:
    """See the module. `slots` may be handed around; nothing is opened before it is asked for something."""

    def __init__(self, plan: Stored, query: str, partition: str) -> None:
        self._plan, self.query, self.partition = plan, query, partition
        self.exact = plan.exact
        self._store = _Reached(plan.name, address_of(plan, query, partition), self.exact)
        self.slots = Slots(self._store, prefix_of(plan, query, partition), exact=self.exact)

    @contextlib.contextmanager
    def once(self) -> Iterator[Slots]:
        """Rule 3: a server that is away raises `PeerError` at once."""
        self._store.patient = False
        try:
            yield self.slots
        finally:
            self._store.patient = True

    def names(self) -> list[str]:
        """Of all partitions that ever had a store for this query."""
        folder = folder_of(self._plan, self.query)
        if folder is not None:
            return sorted(path.name for path in folder.glob("*"))
        whole = query_prefix(self._plan, self.query)
        return sorted({key[len(whole) :].split(b"/", 1)[0].decode() for key, _ in self._store.scan(whole)})

    @contextlib.contextmanager
    def of(self, partition: str) -> Iterator[Slots]:
        """That of another partition, as patient as this one."""
        other = Far(self._plan, self.query, partition)
        other._store.patient = self._store.patient
        try:
            yield other.slots
        finally:
            other.close()

    def forget(self, partition: str) -> None:
        """Nobody will ask for this one again."""
        folder = folder_of(self._plan, self.query)
        if folder is not None:
            _remove(folder / partition)
            return
        with self.of(partition) as slots:
            slots.clear()

    def forget_all(self, partitions: Iterable[str] | None = None) -> None:
        """Nobody will ask for this query again: for these partitions, or for whichever there are."""
        folder = folder_of(self._plan, self.query)
        if folder is not None:
            _remove(folder)
            return
        with self.once():
            for name in self.names() if partitions is None else partitions:
                self.forget(name)

    def close(self) -> None:
        self._store.close()


@contextlib.contextmanager
def far_of(plan: Keyed, query: str, partition: str) -> Iterator[Far | None]:
    """That of a partition; None if the policy saves nothing."""
    if plan.store is None or isinstance(plan.checkpoint, NoCheckpoint):
        yield None
        return
    far = Far(plan, query, partition)
    try:
        yield far
    finally:
        far.close()


def _remove(folder: Path) -> None:
    try:
        shutil.rmtree(folder)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise StorageError(f"{folder} must go: nobody needs it any more; it could not be removed: {error}") from error


def folder_of(plan: Stored, query: str) -> Path | None:
    """Where the partitions' stores are, for a store in folders."""
    kind, _, rest = (plan.store or "").partition(":")
    return Path(rest) / plan.name / query if kind in ("log", "files", "rocksdb") else None


def address_of(plan: Stored, query: str, partition: str) -> str:
    folder = folder_of(plan, query)
    assert plan.store is not None
    return plan.store if folder is None else f"{plan.store}/{plan.name}/{query}/{partition}"


def query_prefix(plan: Stored, query: str) -> bytes:
    return f"{plan.name}/{query}/".encode()


def prefix_of(plan: Stored, query: str, partition: str) -> bytes:
    return b"" if folder_of(plan, query) is not None else query_prefix(plan, query) + f"{partition}/".encode()


class _Reached(CheckpointStore):
    """A store that is opened when it is needed and waited for while it is away."""

    durability = "that of the store behind it"

    def __init__(self, operator: str, address: str, exact: bool) -> None:
        self._operator, self._address, self._exact = operator, address, exact
        self._store: CheckpointStore | None = None
        self.patient = True

    def _write(self, entries: Sequence[Entry]) -> list[bool]:
        return self._asked(lambda store: store.put_many(entries))

    def _read(self, keys: Sequence[bytes]) -> list[Saved | None]:
        def all_of_them(store: CheckpointStore) -> list[Saved | None]:
            found = store.get_many(keys)
            return [found.get(key) for key in keys]

        return self._asked(all_of_them)

    def scan(self, prefix: bytes = b"") -> list[tuple[bytes, int]]:
        return self._asked(lambda store: store.scan(prefix))

    def purge(self, prefix: bytes) -> None:
        self._asked(lambda store: store.purge(prefix))

    def close(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None

    def _asked(self, ask: Callable[[CheckpointStore], T]) -> T:
        pause, begun, told = _PAUSE_S_FIRST, time.monotonic(), None
        while True:
            try:
                answer = ask(self._opened())
            except PeerError as error:
                if not self.patient:
                    raise
                now = time.monotonic()
                if told is None or now - told >= _TELL_S:
                    warnings.warn(
                        f"{self._operator}: waits for its store, {now - begun:.0f} s so far: {error}", RuntimeWarning,
                        stacklevel=2,
                    )  # fmt: skip
                    told = now
                time.sleep(pause)
                pause = min(2 * pause, _PAUSE_S_MAX)
            else:
                if told is not None:
                    waited = time.monotonic() - begun
                    warnings.warn(
                        f"{self._operator}: its store is back after {waited:.1f} s", RuntimeWarning, stacklevel=2
                    )
                return answer

    def _opened(self) -> CheckpointStore:
        until = time.monotonic() + _BUSY_S
        while self._store is None:
            try:
                self._store = self._open()
            except StreamBusy:
                if time.monotonic() > until:
                    raise
                time.sleep(0.01)
        return self._store

    def _open(self) -> CheckpointStore:
        try:
            return open_store(self._address)
        except CorruptLog:
            kind, _, folder = self._address.partition(":")
            if self._exact or kind != "log":
                raise
        store = LogStore(folder, accept_damage=True)
        warnings.warn(
            f"{self._operator}: goes on with what is left of its store (best effort): {'; '.join(store.damage)}",
            RuntimeWarning, stacklevel=2,
        )  # fmt: skip
        return store
