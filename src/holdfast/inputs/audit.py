"""One line for every request that was refused, and for every one that changed something but a stream by its rows.

They go to the logger `holdfast.audit`, in a host's log beside everything else. No token is ever in them, and text that
others chose is cut and quoted. Refusals are bounded: a flood of them is counted instead of written.
"""

from __future__ import annotations

import logging
import threading
import time

log = logging.getLogger("holdfast.audit")

#: Refusals that are written in a second; the rest of it is one number.
LINES_MAX = 20


class Audit:
    """Of one listener. May be used from any thread."""

    def __init__(self, listener: str) -> None:
        self._listener = listener
        self._mutex = threading.Lock()
        self._second, self._lines, self._left_out = 0, 0, 0

    def refused(self, who: str | None, address: str, what: str, why: str) -> None:
        with self._mutex:
            second = int(time.monotonic())
            if second != self._second:
                if self._left_out:
                    log.warning("%s: %d more were refused", self._listener, self._left_out)
                self._second, self._lines, self._left_out = second, 0, 0
            self._lines += 1
            if self._lines > LINES_MAX:
                self._left_out += 1
                return
        log.warning("%s: refused %s from %s: %.200r: %.300s", self._listener, who or "a stranger", address, what, why)

    def changed(self, who: str, address: str, what: str) -> None:
        log.info("%s: %s from %s: %.200r", self._listener, who, address, what)
