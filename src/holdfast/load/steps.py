"""The named points of a movement, at which a test may have the process killed.

HOLDFAST_KILL_AT=NAME:FILE ends the process with SIGKILL when it first gets to that point; FILE is made then, and while
it is there nothing happens any more. Without the variable, a point is one look at None.
"""

from __future__ import annotations

import os
import signal

#: In the order in which they come, and on whose side.
OWNER_LEAVING = ("copied", "sent", "level", "noted", "stopped", "following")
GUEST_COMING = ("half", "unpacked", "installed", "started")
OWNER_COMING_BACK = ("fetched", "filed", "taken-up", "unnoted", "back")
GUEST_GOING = ("handed", "dropping", "dropped")

_at, _, _once = os.environ.get("HOLDFAST_KILL_AT", "").partition(":")


def reached(step: str) -> None:
    """The process is at this point."""
    if step == _at and not os.path.exists(_once):
        with open(_once, "x"):
            pass
        os.kill(os.getpid(), signal.SIGKILL)
