"""The named points of a movement or a rebuilding, at which a test may have the process killed.

HOLDFAST_KILL_AT=FILE: when the process gets to the point whose name stands in FILE, it takes the file away and ends by
SIGKILL. Without the variable, a point is one look at an empty text.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

#: In the order in which they come, by whose process gets there.
OWNER_LEAVING = ("copied", "sent", "level", "noted", "stopped", "following")
GUEST_COMING = ("half", "unpacked", "installed", "started")
OWNER_COMING_BACK = ("fetched", "filed", "taken-up", "unnoted", "back")
GUEST_GOING = ("handed", "dropping", "dropped")
#: Of a replica that is rebuilt from its twin; "handed" is the twin's.
REBUILT = ("fetched", "copied", "filed", "taken-up")
#: Of a definition that is swapped in after a trial.
SWAPPED = ("swap-copied", "swap-stopped", "swap-ordered", "filed", "taken-up", "swapped")

_file = os.environ.get("HOLDFAST_KILL_AT", "")


def reached(step: str) -> None:
    """The process is at this point."""
    if _file and os.path.exists(_file) and Path(_file).read_text() == step:
        os.unlink(_file)
        os.kill(os.getpid(), signal.SIGKILL)
