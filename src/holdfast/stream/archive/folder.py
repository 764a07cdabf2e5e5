"""Objects as files below a folder: a mounted NAS, another disk, or a test."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import unquote, urlsplit

from holdfast.model.errors import StorageError, UsageError
from holdfast.stream.archive.objects import MissingObject, ObjectStore
from holdfast.stream.disk import Disk, storage_error


class FolderObjects(ObjectStore):
    """Each object is one file, durable before `put` returns."""

    def __init__(self, url: str, disk: Disk | None = None) -> None:
        super().__init__(url)
        self.folder = Path(unquote(urlsplit(url).path))
        self._disk = disk or Disk()

    def put(self, key: str, parts: Iterable[bytes]) -> None:
        path = self._place(key)
        temporary = path.with_name(f".{path.name}.{os.getpid()}-{os.urandom(4).hex()}.tmp")
        fd = self._disk.create(temporary)
        try:
            at = 0
            for part in parts:
                at += self._disk.write(fd, temporary, at, [part])
            self._disk.sync(fd, temporary)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        finally:
            os.close(fd)
        self._disk.rename(temporary, path)
        self._disk.sync_dir(path.parent)

    def create(self, key: str, data: bytes) -> bool:
        return self._disk.publish_file(self._place(key), data)

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        path = self._path(key)
        try:
            with open(path, "rb") as file:
                file.seek(start)
                return file.read() if end is None else file.read(max(end - start, 0))
        except FileNotFoundError:
            raise self._missing(path) from None
        except OSError as error:
            raise storage_error("read", path, error) from error

    def sizes(self, prefix: str) -> dict[str, int]:
        top = self._path(prefix)
        found: dict[str, int] = {}
        for folder, _, names in os.walk(top):
            for name in names:
                path = Path(folder, name)
                with contextlib.suppress(FileNotFoundError):
                    if not (name.startswith(".") and name.endswith(".tmp")):
                        found[path.relative_to(self.folder).as_posix()] = path.stat().st_size
        return dict(sorted(found.items()))

    def folders(self, prefix: str) -> list[str]:
        try:
            return sorted(p.name for p in self._path(prefix).iterdir() if p.is_dir())
        except FileNotFoundError:
            return []
        except OSError as error:
            raise storage_error("list", self._path(prefix), error) from error

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._disk.unlink(self._path(key))

    def _place(self, key: str) -> Path:
        """The file of a key, with the folders above it. The archive's own folder must be there: one that is not is
        most often a disk that is not mounted, and what was written below it would be hidden when it is."""
        if not self.folder.is_dir():
            raise StorageError(f"archive {self.url}: the folder is not there; mount it, or make it once by hand")
        path = self._path(key)
        self._disk.make_dir(path.parent)
        return path

    def _path(self, key: str) -> Path:
        if any(part in ("", ".", "..") for part in key.split("/")) and key:
            raise UsageError(f"archive {self.url}: a key must be a path of plain names; got {key!r}")
        return self.folder / key

    def _missing(self, path: Path) -> StorageError:
        if not self.folder.is_dir():
            return StorageError(f"archive {self.url}: the folder is not there; mount it, and try again")
        return MissingObject(f"archive {self.url}: there is no {path.relative_to(self.folder)}")
