"""Makes bytes durable and changes names on disk; those few who do so for themselves stand in tests/test_map.py.

Everything that a power cut can come between passes through a `Disk`, so that a test can stop before, inside or after
each step (L1, L3, L9). The real one is a thin layer over system calls.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
from collections.abc import Sequence
from pathlib import Path

from holdfast.model.errors import StorageError, UsageError

#: Linux refuses longer vectors (IOV_MAX); longer writes are cut into several calls.
_VECTOR_MAX = 1024
#: What goes past the page cache is aligned to this, in memory and in the file: as much as any file system asks for.
PAGE = 4096
#: 0 where the system does not know it.
_O_DIRECT = getattr(os, "O_DIRECT", 0)


class Disk:
    """System calls, with errors turned into one sentence."""

    def write(self, fd: int, path: Path, offset: int, parts: Sequence[bytes]) -> int:
        """Write `parts` one after another at `offset`; return the number of bytes."""
        total = sum(map(len, parts))
        done = 0
        try:
            if len(parts) <= _VECTOR_MAX:
                done = os.pwritev(fd, parts, offset)
            if done < total:
                whole = memoryview(b"".join(parts))
                while done < total:
                    done += os.pwrite(fd, whole[done:], offset + done)
        except OSError as error:
            raise storage_error("write", path, error) from error
        return total

    def write_direct(self, fd: int, path: Path, offset: int, block: memoryview) -> int:
        """Like `write`, past the page cache where the file system can: for what nobody will read soon.

        `offset`, and the memory and length of `block`, are multiples of `PAGE`. Nobody else writes with `fd` meanwhile.
        """
        done = 0
        try:
            flags = fcntl.fcntl(fd, fcntl.F_GETFL)
            fcntl.fcntl(fd, fcntl.F_SETFL, flags | _O_DIRECT)
            try:
                while done < len(block):
                    done += os.pwrite(fd, block[done:], offset + done)
            finally:
                fcntl.fcntl(fd, fcntl.F_SETFL, flags)
        except OSError as error:
            if error.errno != errno.EINVAL:  # That is how a file system says that it cannot.
                raise storage_error("write", path, error) from error
            return done + self.write(fd, path, offset + done, [bytes(block[done:])])
        return done

    def reserve(self, fd: int, path: Path, offset: int, length: int) -> bool:
        """Fill a stretch with zeros, durably: to overwrite written blocks is twice as quick to sync as to grow a file.

        False if there was no room for it: then the file is as before. A failed sync is a failed sync (L9).
        """
        try:
            self.write(fd, path, offset, [bytes(length)])
        except StorageError:
            self.truncate(fd, path, offset)
            return False
        self.sync(fd, path)
        return True

    def sync(self, fd: int, path: Path) -> None:
        """Return only when the file's bytes and length are on stable storage."""
        try:
            os.fdatasync(fd)
        except OSError as error:
            raise storage_error("make durable", path, error) from error

    def sync_dir(self, path: Path) -> None:
        """Return only when the names in the folder are on stable storage."""
        with _reported("make durable", path):
            fd = os.open(path, os.O_RDONLY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

    def create(self, path: Path) -> int:
        """Create a new file for reading and writing; refuse an existing one."""
        with _reported("create", path):
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, file_mode())

    def truncate(self, fd: int, path: Path, length: int) -> None:
        with _reported("cut", path):
            os.ftruncate(fd, length)

    def link(self, old: Path, new: Path) -> bool:
        """Give `old` the second name `new`, only if nobody has that name: the one atomic compare-and-set we rely on."""
        try:
            os.link(old, new)
        except FileExistsError:
            return False
        except OSError as error:
            if isinstance(error, FileNotFoundError) and new.parent.exists():
                return False  # A writer that opened meanwhile swept `old` away.
            raise storage_error("publish", new, error) from error
        return True

    def rename(self, old: Path, new: Path) -> None:
        with _reported("rename", old):
            os.rename(old, new)

    def unlink(self, path: Path) -> None:
        """Remove a name; one that is gone already is fine."""
        with _reported("remove", path), contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def make_dir(self, path: Path) -> None:
        """Make a folder and those above it that are missing; each new name is durable on return."""
        missing = [p for p in (path, *path.parents) if not p.exists()]
        for new in reversed(missing):
            with _reported("create", new):
                make_private(new)
            self.sync_dir(new.parent)

    def replace_file(self, path: Path, data: bytes) -> None:
        """Make `path` hold `data`, whole or not at all, durably."""
        temporary = self._temporary(path, data)
        self.rename(temporary, path)
        self.sync_dir(path.parent)

    def publish_file(self, path: Path, data: bytes) -> bool:
        """Like `replace_file`, but only the first caller succeeds: False if `path` exists already."""
        temporary = self._temporary(path, data)
        won = self.link(temporary, path)
        self.unlink(temporary)
        if won:
            self.sync_dir(path.parent)
        return won

    def _temporary(self, path: Path, data: bytes) -> Path:
        temporary = path.with_name(f".{path.name}.{os.getpid()}-{os.urandom(4).hex()}.tmp")
        fd = self.create(temporary)
        try:
            self.write(fd, temporary, 0, [data])
            self.sync(fd, temporary)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        finally:
            os.close(fd)
        return temporary


def file_mode() -> int:
    """What others may do with new files: nothing, unless HOLDFAST_UMASK says otherwise (027: the group may read)."""
    return 0o666 & ~_umask()


def make_private(folder: Path) -> None:
    """Make one folder that is its owner's, as `file_mode` says; one that is there stays as it is."""
    try:
        os.mkdir(folder, 0o777 & ~_umask())
    except FileExistsError:
        if not folder.is_dir():
            raise


def _umask() -> int:
    text = os.environ.get("HOLDFAST_UMASK", "077")
    if not re.fullmatch("0?[0-7]{3}", text):
        raise UsageError(f"HOLDFAST_UMASK must be three octal digits such as 077 or 027; got {text!r}")
    return int(text, 8)


class VolatileDisk(Disk):
    """For tentative branches: they are thrown away after a failure, so waiting for the platter buys nothing."""

    def reserve(self, fd: int, path: Path, offset: int, length: int) -> bool:
        return False

    def write_direct(self, fd: int, path: Path, offset: int, block: memoryview) -> int:
        return self.write(fd, path, offset, [bytes(block)])

    def sync(self, fd: int, path: Path) -> None:
        pass

    def sync_dir(self, path: Path) -> None:
        pass


def storage_error(verb: str, path: Path, error: OSError) -> StorageError:
    advice = {
        28: "free some space and send again",
        122: "raise the quota and send again",
        30: "the filesystem is read-only: remount it or choose another root",
        13: "give this user the right to write there or choose another root",
        5: "the disk reports errors: check it before you go on",
        24: "raise the limit on open files (ulimit -n)",
    }.get(error.errno or 0, "check the path and the disk")
    reason = error.strerror or type(error).__name__
    return StorageError(f"could not {verb} {path}: {reason}; nothing acknowledged was lost; {advice}")


@contextlib.contextmanager
def _reported(verb: str, path: Path):  # type: ignore[no-untyped-def]
    try:
        yield
    except OSError as error:
        raise storage_error(verb, path, error) from error
