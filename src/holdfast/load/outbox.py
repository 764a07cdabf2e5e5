"""What the core has to say to partners, on its way out in order, and whether they have signed the same contracts.

Rules:
1. Messages to one partner are said one after the other. What does not get through is dropped: the core repeats what
   matters.
2. Consent is asked for at the beginning and from then on, and at once of a partner that did not hear; without it an
   offer would only be refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping

from holdfast.host.link import Refused
from holdfast.load.partner import PartnerLink
from holdfast.model.errors import PeerError
from holdfast.protocol.load.contract import Contract
from holdfast.protocol.load.messages import Message

log = logging.getLogger(__name__)

#: How often partners are asked whether they have the same contracts, until they have, and afterwards.
_CONSENT_S, _CONSENTED_S = 3.0, 10.0
#: Messages that wait for one partner; beyond it the oldest are left out.
_MESSAGES_MAX = 256


class Outbox:
    """All partners of one participant. `unheard` is told who does not hear."""

    def __init__(
        self, partners: Mapping[str, PartnerLink], contracts: tuple[Contract, ...], unheard: Callable[[str], None]
    ) -> None:
        self._partners, self._contracts, self._unheard = partners, contracts, unheard
        self._waiting: dict[str, asyncio.Queue[Message]] = {name: asyncio.Queue(_MESSAGES_MAX) for name in partners}
        self._doubts = {name: asyncio.Event() for name in partners}
        self._workers: list[asyncio.Task[None]] = []
        self.agreed: dict[str, tuple[str, ...] | str] = {}
        """Contracts that each partner has with us, or why that is not known."""

    def start(self) -> None:
        for name in self._partners:
            self._workers += [asyncio.ensure_future(self._speak(name)), asyncio.ensure_future(self._ask(name))]

    def stop(self) -> None:
        for worker in self._workers:
            worker.cancel()

    def put(self, to: str, message: Message) -> None:
        """Say this soon."""
        words = self._waiting[to]
        if words.full():
            words.get_nowait()
        words.put_nowait(message)

    async def _speak(self, name: str) -> None:
        """Rule 1."""
        heard = True
        while True:
            message = await self._waiting[name].get()
            try:
                await self._partners[name].tell(message)
                heard = True
            except PeerError as error:
                if heard:
                    log.info("%s does not hear: %s", name, error)
                if not isinstance(error, Refused):
                    self._doubts[name].set()
                heard = False
                self._unheard(name)

    async def _ask(self, name: str) -> None:
        """Rule 2."""
        ours = {c.contract_id for c in self._contracts if name in (c.buyer, c.seller)}
        while True:
            try:
                theirs: tuple[str, ...] | str = await self._partners[name].consent()
            except PeerError as error:
                theirs = str(error)
            self.agreed[name] = theirs
            if isinstance(theirs, str) or not ours <= set(theirs):
                await asyncio.sleep(_CONSENT_S)
                continue
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._doubts[name].wait(), _CONSENTED_S)
            self._doubts[name].clear()
