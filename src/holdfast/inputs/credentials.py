"""Who a token stands for, and what he may do with it.

Rules (X1):
1. Tokens are compared in constant time, with all that are known.
2. A role says what may be asked. Operators may do everything. Peers are the hosts of one deployment: they pull streams
   and speak for replicas. Viewers may look at everything, readers at the streams that are named for them. Producers
   send. Partners have tokens of their own (`holdfast.load`).
3. A producer that has ids sends under these and nobody else does. One without may use any that is not another's, but
   only so many new ones in an hour: a log remembers the last thousand, and a flood of new ones would make it forget
   those whose retries it has to recognise.
"""

from __future__ import annotations

import hmac
import threading
import time
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from holdfast.inputs.token_file import TokenFile
from holdfast.model.errors import HoldfastError
from holdfast.stream.record import PRODUCERS_MAX

#: New producer ids of one token in an hour (rule 3): a quarter of what a log remembers.
FRESH_IDS_MAX = PRODUCERS_MAX // 4
_HOUR_S = 3600.0


class Role(Enum):
    OPERATOR = "operator"
    PEER = "peer"
    VIEWER = "viewer"
    READER = "reader"
    PRODUCER = "producer"


class Credential(NamedTuple):
    """One who has a token."""

    name: str
    role: Role
    streams: frozenset[str] | None = None
    """The streams that a reader may see; None: all."""
    ids: frozenset[str] | None = None
    """The ids that a producer sends under; None: any that is nobody else's."""

    @property
    def kept(self) -> bool:
        """Whether places for connections are kept for him."""
        return self.role in (Role.OPERATOR, Role.PEER)

    def sees(self, stream: str) -> bool:
        return self.streams is None or stream in self.streams


#: Where no token is asked for: whoever can reach this machine's own address.
ANYBODY = Credential("anybody", Role.PRODUCER)


class Keyring:
    """All tokens of one listener."""

    def __init__(self, entries: Sequence[tuple[Credential, TokenFile | str]]) -> None:
        self._entries = tuple(entries)

    def who(self, token: str) -> Credential | None:
        """Rule 1."""
        found = None
        for credential, source in self._entries:
            for known in (source,) if isinstance(source, str) else source.accepted():
                if hmac.compare_digest(token.encode(), known.encode()) and found is None:
                    found = credential
        return found

    @property
    def ids(self) -> frozenset[str]:
        """All producer ids that belong to somebody."""
        return frozenset().union(*(credential.ids or () for credential, _ in self._entries))


class NotYours(HoldfastError):
    """A producer id that this sender may not use."""


class ProducerIds:
    """Rule 3, for one input. May be used from any thread."""

    def __init__(self, keys: Keyring | None) -> None:
        self._taken = frozenset() if keys is None else keys.ids
        self._mutex = threading.Lock()
        self._fresh: dict[str, dict[str, float]] = {}

    def check(self, sender: Credential, id: str, known: bool) -> None:
        """Refuse an id that is another's, or one too many; `known` says whether the stream remembers it."""
        if sender.ids is not None:
            if id not in sender.ids:
                theirs = ", ".join(sorted(sender.ids))
                raise NotYours(f"{sender.name} must send under one of its ids, {theirs}; got {id!r}")
            return
        if id in self._taken:
            raise NotYours(f"the producer id {id!r} belongs to another sender; choose another one")
        if not known:
            self._count(sender, id)

    def _count(self, sender: Credential, id: str) -> None:
        with self._mutex:
            now_s, fresh = time.monotonic(), self._fresh.setdefault(sender.name, {})
            for old in [old for old, begun_s in fresh.items() if now_s - begun_s > _HOUR_S]:
                del fresh[old]
            if id not in fresh and len(fresh) >= FRESH_IDS_MAX:
                raise NotYours(
                    f"one sender may begin with {FRESH_IDS_MAX} new producer ids in an hour; {id!r} is one too many; "
                    "keep an id for each source, or give the sender a token with ids"
                )
            fresh.setdefault(id, now_s)
