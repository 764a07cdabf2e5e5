"""Partners that speak TLS with certificates of their own making: a movement there and back, and who is not let in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import aiohttp
import pytest

from holdfast.model.errors import PeerError
from tests.load.federation import Federation, certificate
from tests.load.pair import pair

pytestmark = pytest.mark.slow  # Real hosts with their deadlines: not beside others.


def test_a_node_moves_there_and_back_over_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with pair(tmp_path, monkeypatch, tls=True) as two:
            await two.to_ben()
            await two.order("anna")
            await two.at_home()
            await two.results_come()
            await _not_in_the_clear(two.federation.owners["ben"].port)
            await two.finish()

    asyncio.run(run())


async def _not_in_the_clear(port: int) -> None:
    async with aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.ClientError):
            await session.get(f"http://127.0.0.1:{port}/v1/partners/anna/contracts")


def other_authority(two: Federation) -> None:
    """Anna was given the certificate of somebody else."""
    certificate(two.folder, "carl")
    _reworded(two, "anna", "../ben.pem", "../carl.pem")


def other_address(two: Federation) -> None:
    """Ben's certificate is for another address than the one he answers at."""
    certificate(two.folder, "ben", "192.0.2.1")


def no_authority(two: Federation) -> None:
    """Anna relies on the authorities of her machine; Ben's certificate is of his own making."""
    _reworded(two, "anna", ", ca: ../ben.pem", "")


def other_token(two: Federation) -> None:
    """The token that the two share is not the same."""
    (two.folder / "anna-other.token").write_text("a-token-that-nobody-has-handed-over\n")
    (two.folder / "anna-other.token").chmod(0o600)
    _reworded(two, "anna", "anna-ben.token", "anna-other.token")


def in_the_clear(two: Federation) -> None:
    """Ben answers without TLS."""
    file = two.file("ben")
    file.write_text(file.read_text().replace(", tls: {cert: ../ben.pem, key: ../ben.key, ca: ../ben.pem}", ""))


def _reworded(two: Federation, name: str, old: str, new: str) -> None:
    file = two.folder / name / "terms.yaml"
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (other_authority, r"carl\.pem vouches for, and does not \(self.signed certificate\)"),
        (no_authority, r"an authority that this machine trusts vouches for, and does not \(self.signed certificate\)"),
        (other_address, r"certificate for this address .* and does not \(IP address mismatch"),
        (other_token, r"does not know us by our token; ben must name anna as a partner and have the same token"),
        (in_the_clear, r"it does not answer with TLS"),
    ],
)  # fmt: skip
def test_a_partner_that_does_not_prove_itself_gets_nothing_and_the_order_is_refused_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Federation], None], said: str
) -> None:
    async def run() -> None:
        async with pair(tmp_path, monkeypatch, tls=True, spoil=spoil) as two:
            manager = two.anna.manager
            await two.until(lambda: "ben" in manager.outbox.agreed, "an answer, or the reason why there is none")
            with pytest.raises(PeerError, match=f"partner 'ben' cannot be reached, so counts-m1 stays: .*{said}"):
                manager.place(two.node, "ben")
            assert not two.ben.manager.tasks
            await two.finish()

    asyncio.run(run())
