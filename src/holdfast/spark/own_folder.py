"""Where temporary things of this user lie: scratch, scripts, the settings of pools."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from holdfast.model.errors import StorageError


def own_folder() -> Path:
    """A folder for temporary things of this user that nobody else can write to."""
    folder = Path(tempfile.gettempdir()) / f"holdfast-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    owned = folder.lstat()
    if not stat.S_ISDIR(owned.st_mode) or owned.st_uid != os.getuid() or owned.st_mode & 0o077:
        raise StorageError(f"{folder} must be a folder that only this user can write to; remove it, or set TMPDIR")
    return folder
