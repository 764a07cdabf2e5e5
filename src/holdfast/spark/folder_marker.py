"""A file by which an executor knows a folder: whoever finds it sees the very folder that the planner saw.

Paths and inode numbers are the same on machines that were made from one image, and so are files and their times. Rules:
1. A marker's name is drawn for one folder and one session, and nobody can guess it. A folder of that path on another
   machine does not have it, nor has a copy that was made before.
2. It goes with its session. Where the driver was killed, the next session of that machine that marks the folder removes
   it: the marker says whose it was.
3. Where the planner may not write, nothing is known: executors then ask the driver's host.
"""

from __future__ import annotations

import contextlib
import hmac
import socket
from pathlib import Path

from holdfast.spark.process_birth import begun

_PREFIX = ".seen-"
#: Beside the driver's note: the markers of its session, to be removed with it.
_LIST = "markers"


def marked(folder: Path, key: bytes, process: tuple[int, int], note: Path) -> str:
    """The marker of a folder for the session with that key, whose driver is that process and has that note; "" where
    there can be none."""
    path = folder / f"{_PREFIX}{hmac.digest(key, str(folder).encode(), 'sha256').hex()[:32]}"
    try:
        if not path.exists():
            _remove_orphans(folder)
            with note.with_name(_LIST).open("a") as known:
                known.write(f"{path}\0")
            path.write_text(f"{socket.gethostname()} {process[0]} {process[1]}\n")
    except OSError:
        return ""
    return str(path)


def is_seen(marker: str) -> bool:
    return marker != "" and Path(marker).exists()


def remove_markers(note: Path) -> None:
    """Those of the session that has this note."""
    listed = note.with_name(_LIST)
    with contextlib.suppress(FileNotFoundError):
        for marker in listed.read_text().split("\0")[:-1]:
            with contextlib.suppress(OSError):
                Path(marker).unlink()
        listed.unlink()


def _remove_orphans(folder: Path) -> None:
    """Rule 2."""
    for path in folder.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError, ValueError):
            host, pid, birth = path.read_text().rsplit(maxsplit=2)
            if host == socket.gethostname() and begun(int(pid)) != int(birth):
                path.unlink()
