"""Whether a partner has signed the same is known of those who answer, and only of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.host.link import Refused
from holdfast.load import outbox
from holdfast.load.outbox import Outbox
from holdfast.model.errors import PeerError
from holdfast.protocol.load.contract import Contract
from holdfast.protocol.load.usage import Usage

CONTRACT = Contract("anna.ben.1", "anna", "ben", 1.0, 1.0, 10_000_000, None, True, Usage(1.0, 0.0, 0.0))


class Ben:
    """Answers as it is told to."""

    def __init__(self) -> None:
        self.trouble: PeerError | None = None
        self.down = False
        self.asked = 0

    async def consent(self) -> tuple[str, ...]:
        self.asked += 1
        if self.down:
            raise PeerError("ben could not be reached")
        return (CONTRACT.contract_id,)

    async def tell(self, message: Any) -> None:
        if self.trouble is not None:
            raise self.trouble


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.005)


def spoken(ben: Ben, then: Callable[[Outbox], Any]) -> list[str]:
    """What `then` finds once Ben has agreed; who was said not to hear."""
    unheard: list[str] = []

    async def run() -> None:
        said = Outbox({"ben": ben}, (CONTRACT,), unheard.append)  # type: ignore[dict-item]
        said.start()
        try:
            await until(lambda: said.agreed)
            assert said.agreed == {"ben": (CONTRACT.contract_id,)}
            await then(said)
        finally:
            said.stop()

    asyncio.run(run())
    return unheard


@pytest.fixture(autouse=True)
def _seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "_CONSENTED_S", 3600.0)  # So that nothing is asked again without a reason.


def test_a_partner_that_goes_away_is_asked_again_as_soon_as_it_does_not_hear() -> None:
    ben = Ben()

    async def goes_away(said: Outbox) -> None:
        ben.down, ben.trouble = True, PeerError("ben could not be reached")
        said.put("ben", object())  # type: ignore[arg-type]
        await until(lambda: said.agreed["ben"] == "ben could not be reached")

    assert spoken(ben, goes_away) == ["ben"]


def test_a_word_that_was_lost_leaves_the_consent_of_one_who_answers() -> None:
    ben = Ben()

    async def stumbles(said: Outbox) -> None:
        ben.trouble = PeerError("ben did not answer in time")
        said.put("ben", object())  # type: ignore[arg-type]
        await until(lambda: ben.asked == 2)
        assert said.agreed == {"ben": (CONTRACT.contract_id,)}

    assert spoken(ben, stumbles) == ["ben"]


def test_a_partner_that_refuses_has_answered() -> None:
    ben = Ben()

    async def refuses(said: Outbox) -> None:
        ben.trouble = Refused(403, "not under these clauses")
        said.put("ben", object())  # type: ignore[arg-type]
        said.put("ben", object())  # type: ignore[arg-type]
        await until(lambda: said._waiting["ben"].empty())
        assert said.agreed == {"ben": (CONTRACT.contract_id,)}
        assert ben.asked == 1

    spoken(ben, refuses)
