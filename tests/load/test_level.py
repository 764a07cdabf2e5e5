"""A partner that comes nearer is waited for; one that stands still, falls behind or never arrives is not."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.load import mover
from holdfast.load.mover import Mover
from holdfast.load.partner import GuestReport
from holdfast.model.errors import PeerError
from holdfast.model.time import SECOND_US

#: What a report says: the guest's state, how far its output is, and how far ours was then, in seconds.
Said = tuple[str, int, int]


class Partner:
    """Says one report after the other, 100 s apart."""

    partner = "ben"

    def __init__(self, reports: Iterable[Said]) -> None:
        self._reports, self.now_us, self.asked = iter(reports), 0, 0
        self.ours = SimpleNamespace(boundary_us=0)

    async def guest(self, name: str) -> GuestReport:
        self.asked += 1
        self.now_us += 100 * SECOND_US
        state, theirs_s, ours_s = next(self._reports)
        self.ours.boundary_us = ours_s * SECOND_US
        return GuestReport(state, theirs_s * SECOND_US)


def wait_for(partner: Partner, monkeypatch: pytest.MonkeyPatch) -> None:
    task: Any = SimpleNamespace(
        task_id="counts",
        controller=partner.ours,
        output=SimpleNamespace(definition=SimpleNamespace(bucket_us=SECOND_US)),
    )
    monkeypatch.setattr(mover, "monotonic_us", lambda: partner.now_us)
    monkeypatch.setattr(mover, "_LOOK_S", 0.0)
    asyncio.run(Mover({}, {})._level(task, partner, "anna.1.0"))  # type: ignore[arg-type]


def test_one_that_comes_nearer_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    reports = [("STARTING", 900, 1000), ("STABLE", 900, 1100), ("STABLE", 1110, 1200), ("STABLE", 1250, 1300),
               ("STABLE", 1399, 1400)]  # fmt: skip
    partner = Partner(reports)
    wait_for(partner, monkeypatch)
    assert partner.asked == len(reports), "500 s, though 120 s without progress would have been too long"


def test_one_that_stands_still_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    partner = Partner([("STABLE", 900, 1000)] * 9)
    with pytest.raises(PeerError, match=r"ben has not caught up with counts in 300 s \(it is STABLE\); it stays here"):
        wait_for(partner, monkeypatch)
    assert partner.asked == 3


def test_one_that_is_slower_than_we_are_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    partner = Partner(("STABLE", 900 + 50 * i, 1000 + 100 * i) for i in range(20))
    with pytest.raises(PeerError, match="in 300 s"):
        wait_for(partner, monkeypatch)


def test_one_that_changes_its_state_back_and_forth_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    partner = Partner((("STABLE", "UP_FAILURE")[i % 2], 900, 1000) for i in range(20))
    with pytest.raises(PeerError, match="in 400 s"):
        wait_for(partner, monkeypatch)


def test_one_that_never_arrives_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    partner = Partner(("STABLE", boundary_s, 1000) for boundary_s in range(900, 990))
    with pytest.raises(PeerError, match="has not caught up with counts in 1000 s"):
        wait_for(partner, monkeypatch)


def test_one_that_has_failed_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    partner = Partner([("STARTING", 900, 1000), ("FAILED", 900, 1000)])
    with pytest.raises(PeerError, match=r"\(it is FAILED\); it stays here"):
        wait_for(partner, monkeypatch)
    assert partner.asked == 2
