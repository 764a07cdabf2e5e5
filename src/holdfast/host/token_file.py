"""A secret in a file of its own: read only if nobody else could, made so that nobody else can."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from holdfast.inputs.network import TOKEN_CHARS_MIN
from holdfast.model.errors import StorageError, UsageError

_TOKEN_BYTES_MAX = 4096


def read_token(path: Path) -> str:
    """The secret in the file."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            data = file.read(_TOKEN_BYTES_MAX + 1)
    except FileNotFoundError:
        raise UsageError(
            f"the token file {path} is not there; `holdfast up` makes it, or copy it from the host where it was made"
        ) from None
    except OSError as error:
        raise StorageError(f"the token file {path} cannot be read: {error.strerror}") from error
    if mode & 0o077:
        raise UsageError(
            f"the token file {path} must be its owner's alone; its mode is {mode & 0o777:o}; run "
            f"`chmod 600 {path}` and, if others could read it, make a new one"
        )
    token = data.decode("ascii", "replace").strip()
    if not TOKEN_CHARS_MIN <= len(token) <= _TOKEN_BYTES_MAX or not all("!" <= char <= "~" for char in token):
        raise UsageError(
            f"the token in {path} must be {TOKEN_CHARS_MIN} or more printable characters without "
            "spaces; remove the file and `holdfast up` makes a good one"
        )
    return token


def make_token(path: Path) -> bool:
    """Make the file unless there is one; True if it was made."""
    from holdfast.stream.disk import Disk

    if path.exists():
        return False
    if not path.parent.is_dir():
        raise UsageError(f"the folder of the token file {path} is not there; make it first")
    disk = Disk()
    # Nobody may read it for even a moment, and of two that make it at once one wins.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, secrets.token_urlsafe(32).encode() + b"\n")
        disk.sync(fd, temporary)
        made = disk.link(temporary, path)
        disk.sync_dir(path.parent)  # Other machines get copies of it: it must not vanish with a power cut.
        return made
    finally:
        os.close(fd)
        disk.unlink(temporary)
