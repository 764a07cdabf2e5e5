"""Requests that nobody waits for: queued by callers, committed by one thread as quickly as the disk takes them.

Rules:
1. A future is done when its request is durable, or was refused. Requests are committed in the order in which they came.
2. At most `OUTSTANDING_MAX` are under way; whoever brings one more waits until there is room (X4).
3. The thread begins with the first request and ends with `close`, which waits for all.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Generic, TypeVar

from holdfast.model.errors import UsageError

I = TypeVar("I")  # noqa: E741
R = TypeVar("R")

#: Requests under way: enough to fill a commit while the one before it is synced, few enough to be little memory.
OUTSTANDING_MAX = 4096


class SendWindow(Generic[I, R]):
    """`commit` gets what has gathered and returns one result, or raised error, for each."""

    def __init__(self, name: str, commit: Callable[[Sequence[I]], Sequence[R | BaseException]]) -> None:
        self._name, self._commit = name, commit
        self._waiting: deque[tuple[I, Future[R]]] = deque()
        self._room = threading.Semaphore(OUTSTANDING_MAX)
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False

    def put(self, item: I) -> Future[R]:
        """Take a request; wait only where too many are under way."""
        future: Future[R] = Future()
        self._room.acquire()
        with self._changed:
            if self._closed:
                self._room.release()
                raise UsageError(f"{self._name} was closed while this was sent; open a new producer")
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            self._waiting.append((item, future))
            self._changed.notify()
        return future

    def close(self) -> None:
        """Return when everything that was put has its answer."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                taken = list(self._waiting)
                self._waiting.clear()
            if not taken:
                return
            # Whoever cancelled a future in time takes its request back.
            live = [(item, future) for item, future in taken if future.set_running_or_notify_cancel()]
            self._answer(live)
            self._room.release(len(taken))

    def _answer(self, live: list[tuple[I, Future[R]]]) -> None:
        if not live:
            return
        try:
            results = self._commit([item for item, _ in live])
        except BaseException as error:
            results = [error] * len(live)
        for (_, future), result in zip(live, results, strict=True):
            if isinstance(result, BaseException):
                future.set_exception(result)
            else:
                future.set_result(result)
