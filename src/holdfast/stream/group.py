"""Group commit: callers that come while a commit is under way share the next one.

There is no thread of its own. The first caller leads: it takes everybody who is waiting, commits for all, wakes them,
and passes the lead to the first who came meanwhile. A single caller therefore pays nothing for the machinery, and
sixty-four pay one fdatasync together.

Callers who were served together come back together, one after another. The first of them would lead alone, and the
others would wait for a second sync; so a leader waits for as many as shared the last commit, while they keep coming.
"""

from __future__ import annotations

import _thread
import threading
import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from holdfast.model.errors import StorageError

I = TypeVar("I")  # noqa: E741
R = TypeVar("R")

#: Callers served by one commit at most, so that a flood of them cannot delay the first one without bound.
GROUP_MAX = 4096
#: How long a leader waits for the next one of those it expects: about one sync of a quick disk, so that waiting for
#: somebody who does not come never costs more than the sync that it would have saved.
GAP_S = 0.0002
#: And for all of them: a trickle of callers must not hold up the first one.
GATHER_S_MAX = 0.02


class _Ticket(Generic[I, R]):
    done = False
    results: Sequence[R | BaseException] = ()
    error: BaseException | None = None
    wake: _thread.LockType | None = None

    def __init__(self, items: Sequence[I]) -> None:
        self.items = items


class GroupCommit(Generic[I, R]):
    """`commit` gets all items of a group and returns one result, or raised error, for each."""

    def __init__(self, commit: Callable[[Sequence[I]], Sequence[R | BaseException]]) -> None:
        self._commit = commit
        self._mutex = threading.Lock()
        self._queue: list[_Ticket[I, R]] = []
        self._leader: _Ticket[I, R] | None = None
        self._group: list[_Ticket[I, R]] = []
        """Those for whom the leader commits now."""
        self._expected = 1
        """How many the last commit served."""
        self._wanted = 0
        """While a leader waits for company: the length of the queue at which the bell rings."""
        self._bell = _thread.allocate_lock()
        self._bell.acquire()

    def submit(self, item: I) -> R:
        """Return the item's result once its group is committed."""
        (result,) = self.submit_all((item,))
        if isinstance(result, BaseException):
            raise result
        return result

    def submit_all(self, items: Sequence[I]) -> Sequence[R | BaseException]:
        """The same for several items of one caller, in their order; each has a result or an error of its own."""
        ticket: _Ticket[I, R] = _Ticket(items)
        alone = False
        try:
            with self._mutex:
                if self._leader is None and not self._queue and self._expected == 1:
                    self._leader, self._group = ticket, [ticket]  # Nobody waits and nobody is expected.
                    alone = True
                elif self._leader is None:
                    self._queue.append(ticket)
                    self._leader = ticket
                else:
                    self._queue.append(ticket)
                    ticket.wake = _thread.allocate_lock()
                    ticket.wake.acquire()
                    if len(self._queue) == self._wanted:
                        self._wanted = 0
                        self._bell.release()
            if ticket.wake is not None:
                ticket.wake.acquire()  # Held until our group is committed or the lead is ours.
            if alone:
                self._commit_group(ticket)
            elif not ticket.done:
                self._lead(ticket)
        except BaseException:  # Ctrl-C: nobody may wait for us to lead.
            self._leave(ticket)
            raise
        if ticket.error is not None:
            raise ticket.error
        return ticket.results

    def _gather(self) -> None:
        """Wait for those who are expected, as long as they keep coming."""
        with self._mutex:
            came = len(self._queue)
            if came >= self._expected:
                return
            self._wanted = self._expected
        until = time.monotonic() + GATHER_S_MAX
        while not self._bell.acquire(timeout=GAP_S):
            before, came = came, len(self._queue)
            if came == before or time.monotonic() > until:
                break
        self._stop_gathering()

    def _stop_gathering(self) -> None:
        with self._mutex:
            self._wanted = 0
            self._bell.acquire(blocking=False)  # It may have rung, heard or not; from now on it is silent.

    def _lead(self, leader: _Ticket[I, R]) -> None:
        if len(self._queue) < self._expected:
            self._gather()
        with self._mutex:
            self._group, self._queue = self._queue[:GROUP_MAX], self._queue[GROUP_MAX:]
        self._expected = len(self._group)
        self._commit_group(leader)

    def _commit_group(self, leader: _Ticket[I, R]) -> None:
        """Commit for the group, then wake it."""
        group = self._group
        try:
            if len(group) == 1:
                leader.results = self._commit(leader.items)
            else:
                self._commit_all(group)
        except BaseException as error:
            for ticket in group:
                # Ctrl-C is meant for the thread that got it; the others learn that they cannot know.
                ticket.error = error if isinstance(error, Exception) or ticket is leader else _unknown()
        with self._mutex:
            self._finish()

    def _commit_all(self, group: list[_Ticket[I, R]]) -> None:
        results = self._commit([item for ticket in group for item in ticket.items])
        at = 0
        for ticket in group:
            ticket.results = results[at : at + len(ticket.items)]
            at += len(ticket.items)
        assert at == len(results)

    def _leave(self, ticket: _Ticket[I, R]) -> None:
        with self._mutex:
            if ticket in self._queue:
                self._queue.remove(ticket)
            if self._leader is ticket:
                self._wanted = 0
                self._bell.acquire(blocking=False)
                for other in self._group:
                    if not other.results and other.error is None:
                        other.error = _unknown()
                self._finish()
            elif self._leader is not None:
                _wake(self._leader)  # We may have been stopped between naming and waking it; twice does no harm.

    def _finish(self) -> None:
        """Under the mutex: wake the group and whoever leads next. Harmless when an interrupted one is done again."""
        for ticket in self._group:
            ticket.done = True
            _wake(ticket)
        self._group = []
        self._leader = self._queue[0] if self._queue else None
        if self._leader is not None:
            _wake(self._leader)


def _wake(ticket: _Ticket[I, R]) -> None:
    if ticket.wake is not None and ticket.wake.locked():
        ticket.wake.release()


def _unknown() -> StorageError:
    return StorageError(
        "the commit was interrupted by another thread; whether it was written is not known; "
        "send again with the same sequence number"
    )
