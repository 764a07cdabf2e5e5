"""Places for connections: who may hold how many, counted from the moment they are accepted.

Rules (X4, X6):
1. A connection is a stranger until its token was compared. Strangers have places of their own; when those are taken, or
   an address has taken its share of them, the one that has waited longest goes and the new one stays. So silence,
   unfinished handshakes included, keeps nobody out who says who he is.
2. Then it counts for its token. Each token has a share, and all of them together leave places that only operators and
   peers can take: whatever others do, a host can be looked at, stopped and heard by its twins.

May be used from any thread.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

from holdfast.model.errors import HoldfastError

#: A descriptor and a few kilobytes each; far below the 1,024 files that a process may open by default.
CONNECTIONS_MAX = 256
#: Of those, for operators and peers alone.
KEPT = 64
#: For one token of anybody else: two clients with full pools.
TOKEN_MAX = 128
#: Strangers need a place for a round trip or two. Beside `CONNECTIONS_MAX`.
STRANGERS_MAX = 64
#: Of those, for one address: a flood from one machine evicts itself.
ADDRESS_MAX = 32


class Crowded(HoldfastError):
    """All places that this token may take are taken."""


class Places:
    """The places of one listener."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._strangers: dict[Place, None] = {}
        self._of_address: Counter[str] = Counter()
        self._of_token: Counter[str] = Counter()
        self._kept = 0

    def enter(self, address: str, end: Callable[[], object]) -> Place:
        """A place for a new connection; `end` closes it, from any thread, and may be called when it is closed."""
        place = Place(self, address, end)
        with self._mutex:
            victim = self._victim(address)
            if victim is not None:
                self._forget(victim)
            self._strangers[place] = None
            self._of_address[address] += 1
        if victim is not None:
            victim.end()
        return place

    def _victim(self, address: str) -> Place | None:
        """Rule 1."""
        if self._of_address[address] < ADDRESS_MAX:
            if len(self._strangers) < STRANGERS_MAX:
                return None
            address = self._of_address.most_common(1)[0][0]
        return next(place for place in self._strangers if place.address == address)

    def known(self, place: Place, token: str, kept: bool) -> None:
        """Rule 2; `Crowded` if the token has no place left, and then the connection stays what it was."""
        with self._mutex:
            if place.token == token or place.left:
                return
            others = self._of_token.total() - self._kept
            if not kept and (self._of_token[token] >= TOKEN_MAX or others >= CONNECTIONS_MAX - KEPT):
                raise Crowded(
                    f"one token may hold {TOKEN_MAX} connections and all but operators and peers "
                    f"{CONNECTIONS_MAX - KEPT}; they are taken; close some, or ask again later"
                )
            if kept and self._of_token.total() >= CONNECTIONS_MAX:
                raise Crowded(f"all {CONNECTIONS_MAX} connections are taken; close some, or ask again later")
            self._forget(place)
            place.left, place.token, place.kept = False, token, kept
            self._of_token[token] += 1
            self._kept += kept

    def leave(self, place: Place) -> None:
        with self._mutex:
            self._forget(place)

    def _forget(self, place: Place) -> None:
        if place.left:
            return
        place.left = True
        if place.token is not None:
            self._of_token[place.token] -= 1
            self._kept -= place.kept
        else:
            del self._strangers[place]
            self._of_address[place.address] -= 1
            self._of_address += Counter()  # Without those that have none: addresses come and go.


class Place:
    """One connection."""

    def __init__(self, places: Places, address: str, end: Callable[[], object]) -> None:
        self._places, self.address, self.end = places, address, end
        self.token: str | None = None
        self.kept = self.left = False

    def known(self, token: str, *, kept: bool = False) -> None:
        """Its token was compared; `token` names it, `kept` says whether it may take the places that are kept."""
        self._places.known(self, token, kept)

    def leave(self) -> None:
        """The connection is closed."""
        self._places.leave(self)
