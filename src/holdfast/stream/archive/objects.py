"""The object store behind an archive: what it must be able to do, and what its address looks like.

Rules:
1. A key is a path of plain names below the address. What `put` and `create` have returned from is durable and whole;
   a `put` that was cut short has left nothing, or what was there before.
2. `create` is the one compare-and-set: of several callers, one succeeds.
3. An address has no credentials in it: those come from the environment, or from a file that the environment names. So
   they stand in no stream's folder, no process list and no shell history.
4. Everything that goes wrong is a `StorageError` with one sentence; an object that is not there is `MissingObject`.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable
from urllib.parse import urlsplit

from holdfast.model.errors import StorageError, UsageError

#: What an address may begin with, and who takes it.
FOLDER, CLOUD = ("file",), ("s3", "gs", "az")


class MissingObject(StorageError):
    """There is no object under that key."""


class OnlyArchived(StorageError):
    """Only the archive has it, and whoever asks must not wait for that: a thread may."""


class ObjectStore(ABC):
    """Objects below one address."""

    def __init__(self, url: str) -> None:
        self.url = url

    @abstractmethod
    def put(self, key: str, parts: Iterable[bytes]) -> None:
        """Make `key` hold the parts, one after the other."""

    @abstractmethod
    def create(self, key: str, data: bytes) -> bool:
        """The same, only if there is no such object: False if there is (rule 2)."""

    @abstractmethod
    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        """Bytes from `start` to before `end`, or all."""

    @abstractmethod
    def sizes(self, prefix: str) -> dict[str, int]:
        """Every object below the prefix (a path, "" for all), with its size, in the order of keys."""

    @abstractmethod
    def folders(self, prefix: str) -> list[str]:
        """The names directly below the prefix that have objects below them."""

    @abstractmethod
    def delete(self, keys: Iterable[str]) -> None:
        """Remove objects; one that is gone already is fine."""


def check_url(url: str) -> str:
    """The address of an archive without a slash at its end, refused if it is none (rule 3)."""
    parts = urlsplit(url)
    known = ", ".join(f"{scheme}://" for scheme in (*CLOUD, *FOLDER))
    if parts.scheme not in (*FOLDER, *CLOUD):
        raise UsageError(f"an archive must begin with one of {known} (such as s3://bucket/prefix); got {url!r}")
    if parts.query or parts.fragment or "@" in parts.netloc:
        raise UsageError(
            f"an archive must be an address without credentials and options; got {parts.scheme}://…; put them into the "
            f"environment (AWS_ACCESS_KEY_ID and so on), or into the file that HOLDFAST_ARCHIVE_CREDENTIALS names"
        )
    if parts.scheme in FOLDER and (parts.netloc or not parts.path.startswith("/")):
        raise UsageError(f"an archive in a folder must be file:///… with the whole path; got {url!r}")
    if parts.scheme in CLOUD and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", parts.netloc):
        raise UsageError(f"an archive must name its bucket, such as s3://bucket/prefix; got {url!r}")
    if ".." in parts.path.split("/"):
        raise UsageError(f"an archive must not have '..' in its path; got {url!r}")
    return url.rstrip("/")


def join(*parts: str) -> str:
    return "/".join(part for part in parts if part)
