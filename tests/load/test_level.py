"""A partner that comes nearer is waited for; one that stands still is not, nor one that never arrives."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.load import mover
from holdfast.load.mover import Mover
from holdfast.load.partner import GuestReport
from holdfast.model.errors import PeerError
from holdfast.model.time import SECOND_US

OURS_US = 1000 * SECOND_US


class Partner:
    """Says one report after the other, 100 s apart."""

    partner = "ben"

    def __init__(self, reports: Iterator[tuple[str, int]]) -> None:
        self._reports, self.now_us, self.asked = reports, 0, 0

    async def guest(self, name: str) -> GuestReport:
        self.asked += 1
        self.now_us += 100 * SECOND_US
        state, boundary_s = next(self._reports)
        return GuestReport(state, boundary_s * SECOND_US)


def wait_for(partner: Partner, monkeypatch: pytest.MonkeyPatch) -> None:
    task: Any = SimpleNamespace(
        task_id="counts",
        controller=SimpleNamespace(boundary_us=OURS_US),
        output=SimpleNamespace(definition=SimpleNamespace(bucket_us=SECOND_US)),
    )
    monkeypatch.setattr(mover, "monotonic_us", lambda: partner.now_us)
    monkeypatch.setattr(mover, "_LOOK_S", 0.0)
    asyncio.run(Mover({}, {})._level(task, partner, "anna.1.0"))  # type: ignore[arg-type]


def test_one_that_comes_nearer_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    reports = [("STARTING", 900), ("STABLE", 900), ("STABLE", 940), ("STABLE", 980), ("STABLE", 999)]
    partner = Partner(iter(reports))
    wait_for(partner, monkeypatch)
    assert partner.asked == len(reports), "500 s, though 120 s without progress would have been too long"


def test_one_that_stands_still_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    partner = Partner(iter([("STABLE", 900)] * 9))
    with pytest.raises(PeerError, match=r"ben has not caught up with counts in 300 s \(it is STABLE\); it stays here"):
        wait_for(partner, monkeypatch)
    assert partner.asked == 3


def test_one_that_never_arrives_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    partner = Partner(iter([("STABLE", boundary_s) for boundary_s in range(900, 990)]))
    with pytest.raises(PeerError, match="has not caught up with counts in 1000 s"):
        wait_for(partner, monkeypatch)


def test_one_that_has_failed_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    partner = Partner(iter([("STARTING", 900), ("FAILED", 900)]))
    with pytest.raises(PeerError, match=r"\(it is FAILED\); it stays here"):
        wait_for(partner, monkeypatch)
    assert partner.asked == 2
