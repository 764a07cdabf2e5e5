"""From the address of an archive to its object store."""

from __future__ import annotations

from urllib.parse import urlsplit

from holdfast.model.errors import UsageError
from holdfast.stream.archive.folder import FolderObjects
from holdfast.stream.archive.objects import FOLDER, ObjectStore, check_url


def open_objects(url: str) -> ObjectStore:
    """The store at that address. Nothing is asked of it yet."""
    url = check_url(url)
    if urlsplit(url).scheme in FOLDER:
        return FolderObjects(url)
    try:
        from holdfast.stream.archive.cloud import CloudObjects
    except ImportError as error:
        raise UsageError(
            f"an archive at {url} needs the package obstore; install holdfast-streams[archive] ({error})"
        ) from None
    return CloudObjects(url)
