"""Keeps a host's log within bounds while it runs.

Python and the JVM write to the same open file, which cannot be exchanged under them. But they append: so the file is
copied to `host.log.1`, in place of the copy before, and emptied. A line that is written between the two is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
import sys
from pathlib import Path

#: Days of a quiet host, and enough of a noisy one to see what it was about; twice that is on disk.
LOG_BYTES_MAX = 16 << 20
_EVERY_S = 10.0


async def keep_bounded(path: Path, bytes_max: int = LOG_BYTES_MAX, every_s: float = _EVERY_S) -> None:
    """Until cancelled; does nothing where standard error is not that file, opened for appending."""
    while _is_ours(path):
        with contextlib.suppress(OSError):
            cut_log(path, bytes_max)
        await asyncio.sleep(every_s)


def cut_log(path: Path, bytes_max: int = LOG_BYTES_MAX) -> bool:
    """Begin the log anew if it is too long; True if it was."""
    try:
        if path.stat().st_size <= bytes_max:
            return False
    except FileNotFoundError:
        return False
    older = path.with_name(f"{path.name}.1")
    temporary = path.with_name(f".{path.name}.1")
    shutil.copyfile(path, temporary)
    temporary.chmod(0o600)
    temporary.rename(older)
    os.truncate(path, 0)
    return True


def _is_ours(path: Path) -> bool:
    try:
        fd = sys.stderr.fileno()
        appending = fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_APPEND
        return bool(appending) and os.path.samestat(os.fstat(fd), path.stat())
    except (OSError, ValueError, AttributeError):
        return False
