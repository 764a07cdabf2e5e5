"""The archives of a host's streams: those that the deployment file names get one, and all are brought up to date.

Writers wake the thread that archives a stream when they seal a segment. A host does so for every stream of its own now
and then: one whose writer is gone, or that was begun before it had an archive, is archived as well.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from holdfast.clock import now_us
from holdfast.model.errors import HoldfastError
from holdfast.stream.archive.archiver import wake_archiver
from holdfast.stream.definition import ArchivePolicy
from holdfast.stream.store import StreamStore

log = logging.getLogger(__name__)

#: A look at some small files for each stream; a stream that was just made has nothing sealed for a while.
_EVERY_S = 5.0


async def keep_archives(store: StreamStore, policies: Mapping[str, ArchivePolicy]) -> None:
    """Until the host stops."""
    said: dict[str, str] = {}
    while True:
        await asyncio.to_thread(look_after, store, policies, said)
        await asyncio.sleep(_EVERY_S)


def look_after(store: StreamStore, policies: Mapping[str, ArchivePolicy], said: dict[str, str]) -> None:
    """One look at every stream; `said` has what was said before, so that it is not said again."""
    try:
        names = store.names()
    except HoldfastError as error:
        log.debug("no archives for now: %s", error)
        return
    for name in names:
        try:
            policy = policies.get(name)
            stream = store.open(name) if policy is None else store.change_archive(name, policy)
            if stream.definition.archive is not None:
                wake_archiver(stream.folder / "main", stream.definition, now_us(), sealed=False)
            said.pop(name, None)
        except (HoldfastError, OSError) as error:  # The host goes on, and so do the archives of the others.
            if said.get(name) != str(error):
                said[name] = str(error)
                log.warning("stream %s is not archived: %s", name, error)
