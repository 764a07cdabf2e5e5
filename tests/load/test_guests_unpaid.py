"""A guest that is not paid for is put out, and its owner goes on without it: real hosts, a plain query (X7, B7)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from holdfast.protocol.load.messages import Message, Renew
from tests.load.pair import pair


def test_a_guest_that_is_not_paid_for_is_put_out_and_goes_on_at_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with pair(tmp_path, monkeypatch, period="1s") as two:
            await two.order("ben")
            await two.until(lambda: two.away is not None, "the node to run at Ben's")
            await two.results_come()
            (lease_id,) = two.ben.manager.core.book.leases
            words, say = two.anna.manager.outbox, two.anna.manager.outbox.put

            def without_money(to: str, message: Message) -> None:
                if not isinstance(message, Renew):
                    say(to, message)

            monkeypatch.setattr(words, "put", without_money)
            await two.until(lambda: lease_id not in two.ben.manager.tasks, "Ben to put it out")
            monkeypatch.setattr(words, "put", say)
            await two.until(lambda: two.away is None and two.note is None, "Anna to go on at home")
            await two.results_come()
            await two.until(lambda: lease_id not in two.anna.manager.core.book.leases, "the lease to end")
            owed = two.anna.manager.core.ledger.balance("ben")
            await two.until(lambda: not two.ben.manager.core.ledger.accounts, "the books to be closed")
            assert two.ben.manager.core.ledger.balance("anna") == -owed > 0
            await two.finish()

    asyncio.run(run())
