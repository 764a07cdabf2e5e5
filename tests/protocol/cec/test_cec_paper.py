"""Sentences of 000 chapter 4 and 001, each as a test. Where we differ, the test says so."""

from __future__ import annotations

import random

import pytest

from holdfast.model.errors import CorruptLog, UsageError
from holdfast.protocol.cec import Continuous, Measured, continuous
from tests.protocol.cec.ledger import BackwardScan, Closed, Ledger, Opened, Record, RecordKind, Tick

GOPEN, GCHECK, R = RecordKind


def plain(period: int = 10, slow: int = 10, at_most: int = 100) -> Ledger:
    return Ledger(Continuous(period_us=period, slow_us=slow, at_most=at_most))


def scan(records: list[Record]) -> BackwardScan:
    found = BackwardScan()
    for record in reversed(records):
        found.take(record)
    return found


def test_the_counter_rises_with_a_gopen_and_falls_with_a_result() -> None:
    """000 §4.2: "the counter of active windows is increased and a Gopen tuple is emitted"."""
    ledger = plain()
    assert ledger.handle(Opened(1), 0) == (Record(GOPEN, 1, 0, 1),)
    assert ledger.handle(Opened(2), 1) == (Record(GOPEN, 2, 1, 2),)
    assert ledger.handle(Closed(1), 2) == (Record(R, 1, 2, 1),)


def test_a_window_is_slow_only_after_h() -> None:
    ledger = plain(period=10, slow=50)
    ledger.handle(Opened(1), 0)
    assert all(ledger.handle(Tick(), t) == () for t in range(1, 50))
    assert [r.kind for t in range(50, 62) for r in ledger.handle(Tick(), t)] == [GCHECK, GCHECK]


def test_a_shot_takes_m_windows_the_least_recently_saved_first() -> None:
    """000 §4.2: N windows in S = N/M shots, one every T/S."""
    ledger = plain(period=100, slow=0, at_most=2)
    for w in range(6):
        ledger.handle(Opened(w), w)
    shots = {t: r for t in range(6, 260) if (r := ledger.handle(Tick(), t))}
    taken = [r.window for shot in shots.values() for r in shot]
    assert taken == [w % 6 for w in range(len(taken))]
    assert all(len(shot) <= 2 for shot in shots.values())
    assert len(taken) >= 7


def test_the_scan_skips_windows_that_are_known_to_have_closed() -> None:
    """001 §II.B, figure 2: the R is met before any checkpoint of its window."""
    records = [Record(GOPEN, 1, 0, 1), Record(GOPEN, 2, 1, 2), Record(GCHECK, 1, 2, 2), Record(R, 1, 3, 1),
               Record(GOPEN, 3, 4, 2)]  # fmt: skip
    found = scan(records).finish()
    assert dict(found.positions) == {2: 1, 3: 4}
    assert found.since_us == 1
    assert not found.applies(3, 4)
    assert found.applies(3, 5)
    assert found.applies(2, 2)


def test_a_position_is_applied_once_even_if_times_are_equal() -> None:
    """The seeds ignore t < t_i, which counts an equal time twice; we ignore positions up to and including p_i."""
    found = scan([Record(GOPEN, 1, 5, 1)]).finish()
    assert not found.applies(1, 5)


def test_the_scan_reads_no_further_than_it_must() -> None:
    """001: the extent ends at the oldest footprint of an open window."""
    records = [Record(GOPEN, w, w, w + 1) for w in range(50)]
    records += [Record(R, w, 50 + w, 49 - w) for w in range(50)]
    records += [Record(GOPEN, 7, 200, 1), Record(GCHECK, 7, 210, 1)]
    assert scan(records).finish().extent == 1


def test_a_log_that_lacks_a_window_is_refused() -> None:
    with pytest.raises(CorruptLog, match="2 windows were open"):
        scan([Record(GOPEN, 2, 1, 2)]).finish()


def test_a_window_is_not_opened_or_closed_twice() -> None:
    ledger = plain()
    ledger.handle(Opened(1), 0)
    with pytest.raises(UsageError, match="open already"):
        ledger.handle(Opened(1), 1)
    with pytest.raises(UsageError, match="not open"):
        ledger.handle(Closed(2), 1)


@pytest.mark.parametrize("seed", range(20))
def test_at_every_point_the_log_gives_the_open_windows_and_their_positions(seed: int) -> None:
    """C2, C3, C4 against a dictionary kept by hand."""
    chance = random.Random(seed)
    ledger = plain(chance.choice([5, 20, 100]), chance.choice([0, 10, 50]), chance.choice([1, 3, 100]))
    open_: dict[int, int] = {}
    log: list[Record] = []
    for now in range(400):
        window = chance.randrange(12)
        if window in open_ and chance.random() < 0.3:
            new = ledger.handle(Closed(window), now)
            del open_[window]
        elif window not in open_ and chance.random() < 0.5:
            new = ledger.handle(Opened(window), now)
            open_[window] = now
        else:
            new = ledger.handle(Tick(), now)
        for record in new:
            assert record.windows == len(open_)
            if record.kind == GCHECK:
                open_[record.window] = now
        log += new
        if log and chance.random() < 0.1:
            found = scan(log).finish()
            assert dict(found.positions) == open_
            assert found.since_us == (min(open_.values()) if open_ else None) == ledger.oldest_us


def test_a_shot_stays_within_its_share_of_time() -> None:
    """001 §II.B: "how much time to devote to checkpointing" is a parameter."""
    policy = continuous(period="1s", at_most=10**9, budget=0.05)
    shot = policy.shot(10**7, 10**6, 10**6, busy_s=1.0, measured=Measured(window_cost_s=1e-5))
    assert shot.at_most == 5000


def test_a_recovery_goal_gives_a_period_that_keeps_it() -> None:
    """Half a second of work per second of input: two seconds of recovery allow at most four of input."""
    policy = continuous(recover_within="2s")
    tuned = policy.tuned(500_000, 1000, Measured(load=0.5))
    assert tuned.period_us * 0.5 <= 2_000_000
    assert tuned.slow_us <= tuned.period_us
    assert tuned.at_most * (tuned.period_us / 500_000) >= 1000
    busier = policy.tuned(500_000, 1000, Measured(load=2.0))
    assert busier.period_us < tuned.period_us
    heavier = policy.tuned(500_000, 1000, Measured(load=0.5).restored(windows=1000, loading_s=1.0))
    assert heavier.period_us < tuned.period_us, "a second of the two goes into loading"
