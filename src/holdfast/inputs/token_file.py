"""A secret in a file of its own: read only if nobody else could, made so that nobody else can.

Each line is one. The first is shown to others, every one is accepted. So a token is changed without a restart and
without a moment in which two machines disagree: put the new one on the first line everywhere, then remove the old one.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
import time
from pathlib import Path

from holdfast.model.errors import HoldfastError, StorageError, UsageError

log = logging.getLogger(__name__)

#: Shorter ones can be guessed over a network.
TOKEN_CHARS_MIN = 16
_TOKEN_BYTES_MAX = 4096
#: How often a file is looked at again: whoever changes a token waits for it, whoever sends thousands of requests does
#: not.
_LOOK_S = 1.0


class TokenFile:
    """A token file that is read again when it changes. May be used from any thread."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._mutex = threading.Lock()
        self._tokens = read_tokens(path)
        self._seen, self._looked_s = self._stat(), time.monotonic()

    def accepted(self) -> tuple[str, ...]:
        """All that may be shown to us. A file that cannot be read any more leaves what it said last."""
        with self._mutex:
            if time.monotonic() - self._looked_s >= _LOOK_S:
                self._looked_s = time.monotonic()
                seen = self._stat()
                if seen != self._seen:
                    self._seen = seen
                    self._read()
            return self._tokens

    def current(self) -> str:
        """The one to show to others."""
        return self.accepted()[0]

    def _read(self) -> None:
        try:
            self._tokens = read_tokens(self.path)
            log.info("the token file %s was read again", self.path)
        except HoldfastError as error:
            log.error("%s; what it said before stays in force", error)

    def _stat(self) -> tuple[int, int, int] | None:
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size


def read_token(path: Path) -> str:
    """The secret in the file that is shown to others."""
    return read_tokens(path)[0]


def read_tokens(path: Path) -> tuple[str, ...]:
    """All secrets in the file, the one that is shown to others first."""
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
    tokens = tuple(line.strip() for line in data.decode("ascii", "replace").split("\n") if line.strip())
    good = all(len(token) >= TOKEN_CHARS_MIN and all("!" <= char <= "~" for char in token) for token in tokens)
    if not tokens or not good or len(data) > _TOKEN_BYTES_MAX:
        raise UsageError(
            f"the token in {path} must be {TOKEN_CHARS_MIN} or more printable characters without "
            "spaces; remove the file and `holdfast up` makes a good one"
        )
    return tokens


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
