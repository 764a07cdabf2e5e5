"""One thread per process that takes checkpoints when they are due (`holdfast.checkpoint.protect` gives them to it).

`take` is called with the scheduler's thread and must leave the operator alone quickly: take a snapshot under the
operator's lock, hand it to a SafeKeeper, return.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable

from holdfast.checkpoint.deadlines import Deadlines, Kept
from holdfast.clock import Clock, monotonic_us


class Scheduler:
    def __init__(self, clock: Clock = monotonic_us) -> None:
        self._clock = clock
        self._deadlines = Deadlines()
        self._take: dict[str, Callable[[], object]] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False

    def add(self, name: str, every_us: int, take: Callable[[], object]) -> None:
        with self._changed:
            self._deadlines.add(name, every_us, self._clock())
            self._take[name] = take
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="holdfast-checkpoints", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def remove(self, name: str) -> None:
        with self._changed:
            self._deadlines.remove(name)
            self._take.pop(name, None)

    def report(self) -> dict[str, Kept]:
        """Deadlines met and missed, per operator."""
        with self._changed:
            return {name: Kept(k.every_us, k.met, k.missed, k.late_us_max) for name, k in self._deadlines.kept.items()}

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                name = None if self._closed else self._deadlines.begin(self._clock())
                if name is None:
                    if self._closed:
                        return
                    due = self._deadlines.next_us()
                    self._changed.wait(None if due is None else max(0, due - self._clock()) / 1e6)
                    continue
                take = self._take[name]
            try:
                take()
            except Exception as error:  # One operator's fault must not cost the others their checkpoints.
                warnings.warn(f"the checkpoint of {name} failed: {error}", RuntimeWarning, stacklevel=1)


_scheduler: Scheduler | None = None
_mutex = threading.Lock()


def scheduler() -> Scheduler:
    """The one of this process."""
    global _scheduler
    with _mutex:
        if _scheduler is None:
            _scheduler = Scheduler()
        return _scheduler
