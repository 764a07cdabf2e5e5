"""Segments that the disk has no longer, as executors that do not see the streams' folder read them.

Rules:
1. The planner, which sees what the archive has, says where each lies; never with credentials. An executor that has its
   own asks the object store, so that a long past does not pass the driver.
2. One that has none, or cannot reach the store, asks the driver's host, and leaves the store alone for a while.
3. Nothing here compares checksums: `host_client` does, and asks anew for what does not match.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

from holdfast.model.errors import HoldfastError
from holdfast.stream.archive.objects import MissingObject, join
from holdfast.stream.archive.ranges import opened, process
from holdfast.stream.archive.view import view_at
from holdfast.stream.merge import Piece, Source, path_of

#: What shows that a process has credentials for a store. Without any, the libraries would ask for those of the machine
#: for many seconds, and most often in vain.
_CREDENTIALS = {
    "s3": ("AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS"),
    "gs": ("GOOGLE_",),
    "az": ("AZURE_",),
}
_FILE = "HOLDFAST_ARCHIVE_CREDENTIALS"
#: Rule 2. A store that is away costs a task twenty seconds before it asks the host.
_PAUSE_S = 300.0
_left_alone_until: dict[str, float] = {}


class ArchivedPlace(NamedTuple):
    """Where one lies (rule 1)."""

    path: str
    """As the planner would find it on its disk."""
    url: str
    key: str
    size: int


def archived_places(sources: Sequence[Source], pieces: Iterable[Piece]) -> tuple[ArchivedPlace, ...]:
    """Of the segments of these pieces that only the archive has."""
    found = []
    for piece in {(piece.source, piece.segment): piece for piece in pieces}.values():
        path = path_of(sources, piece)
        archive = view_at(path.parent)
        if archive is None or path.exists():
            continue
        with contextlib.suppress(HoldfastError):  # Whoever needs it is told then.
            segment = archive.find(path.name)
            if segment is not None:
                key = join(archive.place, segment.key)
                found.append(ArchivedPlace(str(path), archive.url, key, segment.entry.length or 0))
    return tuple(found)


class ArchivedSegments:
    """As a task reads them."""

    def __init__(self, places: Iterable[ArchivedPlace]) -> None:
        self._places = {place.path: place for place in places}

    def read(self, path: str, begin: int, length: int, *, anew: bool) -> bytes | None:
        """A part of a segment, not from what is held of it if `anew`; None if the host must be asked for it."""
        place = self._places.get(path)
        if place is None or not _is_tried(place.url):
            return None
        try:
            objects = opened(place.url)
            if anew:
                process().cache.forget(objects, place.key)
            data = process().cache.read(objects, place.key, begin, begin + length, place.size)
        except MissingObject:  # Retention was faster: the host says so.
            return None
        except HoldfastError:
            _left_alone_until[place.url] = time.monotonic() + _PAUSE_S
            return None
        return data if len(data) == length else None


def _is_tried(url: str) -> bool:
    """Rule 2."""
    needed = _CREDENTIALS.get(urlsplit(url).scheme)
    if needed is not None and _FILE not in os.environ and not any(name.startswith(needed) for name in os.environ):
        return False
    return time.monotonic() >= _left_alone_until.get(url, 0.0)
