"""Group commit: callers that come while a commit is under way share the next one.

There is no thread of its own. The first caller leads: it takes everybody who is waiting, commits for all, wakes them,
and passes the lead to the first who came meanwhile. A single caller therefore pays nothing for the machinery, and
sixty-four pay one fdatasync together.
"""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

I = TypeVar("I")  # noqa: E741
R = TypeVar("R")

#: Callers served by one commit at most, so that a flood of them cannot delay the first one without bound.
GROUP_MAX = 4096


class _Ticket(Generic[I, R]):
    __slots__ = ("done", "error", "item", "result", "wake")

    def __init__(self, item: I) -> None:
        self.item = item
        self.done = False
        self.result: R | None = None
        self.error: BaseException | None = None
        self.wake: _thread.LockType | None = None


class GroupCommit(Generic[I, R]):
    """`commit` gets all items of a group and returns one result, or raised error, for each."""

    def __init__(self, commit: Callable[[Sequence[I]], Sequence[R | BaseException]]) -> None:
        self._commit = commit
        self._mutex = threading.Lock()
        self._queue: list[_Ticket[I, R]] = []
        self._led = False

    def submit(self, item: I) -> R:
        """Return the item's result once its group is committed."""
        ticket: _Ticket[I, R] = _Ticket(item)
        with self._mutex:
            self._queue.append(ticket)
            leads, self._led = not self._led, True
            if not leads:
                ticket.wake = _thread.allocate_lock()
                ticket.wake.acquire()
        if ticket.wake is not None:
            try:
                ticket.wake.acquire()  # Held until our group is committed or the lead is ours.
            except BaseException:  # Ctrl-C: nobody may wait for us to lead.
                self._leave(ticket)
                raise
        if not ticket.done:
            self._lead()
        if ticket.error is not None:
            raise ticket.error
        return ticket.result  # type: ignore[return-value]

    def _leave(self, ticket: _Ticket[I, R]) -> None:
        assert ticket.wake is not None
        with self._mutex:
            if ticket not in self._queue:
                return
            self._queue.remove(ticket)
            if ticket.wake.locked():
                return
            heir = self._pass_lead()
        if heir is not None:
            heir.release()

    def _pass_lead(self) -> _thread.LockType | None:
        """Under the mutex: choose who leads next; the caller wakes it."""
        self._led = bool(self._queue)
        return self._queue[0].wake if self._queue else None

    def _lead(self) -> None:
        with self._mutex:
            group, self._queue = self._queue[:GROUP_MAX], self._queue[GROUP_MAX:]
        try:
            results = self._commit([t.item for t in group])
            for ticket, result in zip(group, results, strict=True):
                if isinstance(result, BaseException):
                    ticket.error = result
                else:
                    ticket.result = result
        except BaseException as error:
            for ticket in group:
                ticket.error = error
        for ticket in group:
            ticket.done = True
        with self._mutex:
            heir = self._pass_lead()
        if heir is not None:
            heir.release()
        for ticket in group:
            if ticket.wake is not None and ticket.wake.locked():
                ticket.wake.release()
