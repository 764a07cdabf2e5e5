"""Objects in S3, Google Cloud Storage or Azure, and whatever speaks like them, by the library obstore.

Credentials, endpoints and regions come from the environment under the names that each of them has anyway
(AWS_ACCESS_KEY_ID, AWS_ENDPOINT, AWS_REGION, GOOGLE_SERVICE_ACCOUNT, AZURE_STORAGE_ACCOUNT_KEY, …), from the machine's
own role, or from lines `NAME=value` of the file that HOLDFAST_ARCHIVE_CREDENTIALS names.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    NotFoundError,
    NotSupportedError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)
from obstore.store import from_url

from holdfast.model.errors import StorageError, UsageError
from holdfast.stream.archive.objects import MissingObject, ObjectStore

CREDENTIALS = "HOLDFAST_ARCHIVE_CREDENTIALS"
#: Parts of an upload: S3 wants 5 MiB at least, and takes 10,000 of them.
_PART_BYTES, _PARTS_AT_ONCE = 8 << 20, 4
#: A request is repeated for so long; whoever waits is told then, and decides whether to go on.
_PATIENCE = timedelta(seconds=20)
#: What obstore raises for an object that is not there: Python's own error, whatever its documentation says.
_MISSING = (NotFoundError, FileNotFoundError)


class CloudObjects(ObjectStore):
    def __init__(self, url: str) -> None:
        super().__init__(url)
        config: dict[str, Any] = credentials()
        if urlsplit(url).scheme == "s3":
            # Compared by the store when it takes the bytes: what was changed on the way is refused.
            config.setdefault("aws_checksum_algorithm", "sha256")
            config.setdefault("aws_region", os.environ.get("AWS_REGION", "us-east-1"))
        endpoint = config.get("aws_endpoint") or os.environ.get("AWS_ENDPOINT") or os.environ.get("AWS_ENDPOINT_URL")
        plain = str(endpoint or "").startswith("http://")
        try:
            self._store: Any = from_url(
                url, config=config, client_options={"allow_http": plain, "timeout": _PATIENCE * 3},
                retry_config={"max_retries": 6, "retry_timeout": _PATIENCE},
            )  # fmt: skip
        except (BaseError, ValueError) as error:
            raise UsageError(f"archive {url}: it cannot be opened: {_first(error)}") from None
        self._pid = os.getpid()

    def put(self, key: str, parts: Iterable[bytes]) -> None:
        with self._said("write", key):
            obstore.put(self._store, key, iter(parts), use_multipart=True, chunk_size=_PART_BYTES,
                        max_concurrency=_PARTS_AT_ONCE)  # fmt: skip

    def create(self, key: str, data: bytes) -> bool:
        with self._said("write", key):
            try:
                obstore.put(self._store, key, data, mode="create", use_multipart=False)
            except (AlreadyExistsError, PreconditionError):
                return False
            except (NotSupportedError, NotImplementedError) as error:
                raise StorageError(
                    f"archive {self.url}: the store must be able to refuse a write where something is (If-None-Match), "
                    f"so that two hosts cannot both archive a stream; this one is not: {_first(error)}"
                ) from None
        return True

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        with self._said("read", key):
            if end is None and not start:
                return bytes(obstore.get(self._store, key).bytes())
            if end is None:
                end = int(obstore.head(self._store, key)["size"])
            return bytes(obstore.get_range(self._store, key, start=start, end=end)) if end > start else b""

    def sizes(self, prefix: str) -> dict[str, int]:
        with self._said("list", prefix):
            found = {m["path"]: int(m["size"]) for some in obstore.list(self._store, prefix or None) for m in some}
        return dict(sorted(found.items()))

    def folders(self, prefix: str) -> list[str]:
        with self._said("list", prefix):
            found = obstore.list_with_delimiter(self._store, prefix or None)["common_prefixes"]
        return sorted(path.rstrip("/").rpartition("/")[2] for path in found)

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            with self._said("remove", key), contextlib.suppress(*_MISSING):
                obstore.delete(self._store, key)

    @contextlib.contextmanager
    def _said(self, verb: str, key: str) -> Iterator[None]:
        if self._pid != os.getpid():
            raise StorageError(f"archive {self.url}: it was opened by another process; open it anew in this one")
        try:
            yield
        except _MISSING:
            raise MissingObject(f"archive {self.url}: there is no {key} (or no such bucket)") from None
        except (PermissionDeniedError, UnauthenticatedError) as error:
            raise StorageError(
                f"archive {self.url}: not allowed to {verb} {key}: {_first(error)}; check the credentials in the "
                f"environment, or in the file that {CREDENTIALS} names"
            ) from None
        except BaseError as error:
            raise StorageError(
                f"archive {self.url}: could not {verb} {key}: {_first(error)}; nothing was removed from the disk"
            ) from None


def credentials() -> dict[str, Any]:
    """The settings of the file that the environment names, if it does. They win over the environment."""
    name = os.environ.get(CREDENTIALS)
    if not name:
        return {}
    path = Path(name)
    try:
        mode, text = path.stat().st_mode, path.read_text()
    except OSError as error:
        raise UsageError(f"{CREDENTIALS} must name a file that can be read; {path}: {error.strerror}") from None
    if stat.S_IMODE(mode) & 0o077:
        raise UsageError(f"{path} holds credentials and must be its owner's alone; run chmod 600 {path}")
    found: dict[str, Any] = {}
    for number, line in enumerate(text.splitlines(), 1):
        key, equals, value = line.strip().partition("=")
        if not key or key.startswith("#"):
            continue
        if not equals:
            raise UsageError(f"{path}: line {number} must be NAME=value")
        found[key.strip().lower()] = value.strip()
    return found


def _first(error: Exception) -> str:
    """The sentence of an error without the tree behind it, and without what might be a secret in a request."""
    return str(error).strip().partition("\n")[0][:300]
