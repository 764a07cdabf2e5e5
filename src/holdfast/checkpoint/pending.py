"""A bounded queue of checkpoints, at most one per key: what waits in front of the serialiser and of the store.

Rules:
1. A newer checkpoint of a key takes the place in the queue of the one that waits: nobody will miss the older.
2. An older one than that which waits is refused: older never overwrites newer, here neither (C8).
3. When full, either the oldest goes (S4's way, 002 §3.2: a fresh state is worth more than a stale one), or the caller
   waits until there is room. What goes is handed back, to be counted and told: nothing disappears silently.
4. A closed queue takes nothing more: what is put is handed back; what waits can still be taken.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable
from typing import Generic, Literal, Protocol, TypeVar


class Versioned(Protocol):
    @property
    def key(self) -> bytes: ...
    @property
    def version(self) -> int: ...


T = TypeVar("T", bound=Versioned)
WhenFull = Literal["drop_oldest", "wait"]


class Pending(Generic[T]):
    def __init__(self, capacity: int, when_full: WhenFull) -> None:
        self._capacity, self._when_full = capacity, when_full
        self._items: OrderedDict[bytes, T] = OrderedDict()
        self._changed = threading.Condition()
        self._closed = False

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: T) -> tuple[T | None, T | None]:
        """What this item superseded or was superseded by, and what was dropped for want of room."""
        return self.put_all((item,))[0]

    def put_all(self, items: Iterable[T]) -> list[tuple[T | None, T | None]]:
        """Like `put` for each, but whoever takes is woken once: threads that wake cost more than what they do here."""
        with self._changed:
            ends = [self._put(item) for item in items]
            self._changed.notify_all()
            return ends

    def _put(self, item: T) -> tuple[T | None, T | None]:
        if self._closed:
            return None, item
        waiting = self._items.get(item.key)
        if waiting is not None:
            if waiting.version > item.version:
                return item, None
            self._items[item.key] = item
            return waiting, None
        dropped = None
        if len(self._items) >= self._capacity:
            if self._when_full == "drop_oldest":
                dropped = self._items.popitem(last=False)[1]
            else:
                self._changed.notify_all()  # Of what was put before this one: room comes from those who take.
                self._changed.wait_for(
                    lambda: len(self._items) < self._capacity or item.key in self._items or self._closed
                )
                return self._put(item)  # Somebody else may have put one of this key meanwhile.
        self._items[item.key] = item
        return None, dropped

    def take(self, at_most: int) -> list[T]:
        """The oldest ones, waiting for the first; nothing once the queue is closed and empty."""
        with self._changed:
            self._changed.wait_for(lambda: self._items or self._closed)
            taken = [self._items.popitem(last=False)[1] for _ in range(min(at_most, len(self._items)))]
            self._changed.notify_all()
            return taken

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
