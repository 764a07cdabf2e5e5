"""What a host keeps does not grow with a failure: mirrors, branch, worth and plan, in real files (003 §4.9)."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.protocol.dpc.states import NodeState
from holdfast.sim.week import BUCKET_US, CAPACITY, DAY, WINDOW, grown, week
from holdfast.stream import branch, tentative, worth

DAYS = 9 / 24


def test_nothing_grows_while_an_input_is_away_and_the_end_of_it_is_corrected(tmp_path: Path) -> None:
    hours, host = week(tmp_path, DAYS)
    assert grown(hours) == {}
    assert min(min(sizes.values()) for sizes in hours[1:]) > 0, "each kind of file was there"
    assert host.core.state is NodeState.STABLE
    assert host.core.stable >= host.boundary_us // BUCKET_US - 1
    assert DAYS * DAY - 2 * (CAPACITY + WINDOW) < host.skips[-1] <= DAYS * DAY - CAPACITY + 5
    assert hours[-1] != host.sizes(), "the branch is gone"
    assert host.sizes()["branch"] == 0


def test_what_is_not_cut_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(branch, "AutomaticRetention", lambda *_, **__: None)
    monkeypatch.setattr(worth, "_STEP_BYTES", 1 << 30)
    monkeypatch.setattr(tentative, "PLAN_BYTES", 1 << 30)
    hours, _ = week(tmp_path, DAYS)
    assert sorted(grown(hours)) == ["branch", "plan", "worth"]
