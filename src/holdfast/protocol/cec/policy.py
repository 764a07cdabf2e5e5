"""When windows are checkpointed (000 §4.2).

Rules:
1. A window is slow when it has been open for H (`slow_us`): a fast one closes soon and is not worth a Gcheck.
2. Each slow window is saved every T (`period_us`), at most M (`at_most`) in one shot, the least recently saved first:
   that moves the oldest position on and keeps the extent short.
3. Checkpoints may take a share of the operator's time (`budget`): what a shot cost is remembered, and the next one is
   made as small as the share demands. Gopen records are not subject to it: without them nothing could be restored.
4. Times are positions of the input (virtual time), so a policy needs no clock.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from holdfast.model.errors import UsageError
from holdfast.model.time import BEGINNING_US, duration_text, duration_us

#: Cost of saving one window before anything was measured, in seconds.
_COST_GUESS = 1e-6
#: Weight of the newest measurement.
_SMOOTHING = 0.3


@dataclass(frozen=True)
class Shot:
    """What to save at the end of a batch, besides the windows that have no footprint yet."""

    saved_until_us: int
    """Only windows whose last footprint is this old."""
    opened_until_us: int
    """Only windows that opened this long ago."""
    at_most: int


NO_SHOT = Shot(BEGINNING_US, BEGINNING_US, 0)
#: Every window. What was said of them before does not matter any more.
EVERYTHING = Shot(2**62, 2**62, 2**62)


@dataclass(frozen=True)
class Measured:
    """What an operator remembers of its own pace. Part of its state: it survives from batch to batch."""

    window_cost_s: float = _COST_GUESS
    """Seconds to save one window."""
    load: float = 0.0
    """Seconds of work per second of input."""
    load_cost_s: float = 2e-6
    """Seconds to load one window again: a guess until some were."""
    recovery_s: float = 0.0
    """Seconds that the last recovery took: loading windows, and computing the input behind them. 0: there was none."""

    def after(self, *, busy_s: float, span_us: int, saved: int, saving_s: float) -> Measured:
        found = self
        if saved > 100:
            found = replace(found, window_cost_s=_blend(self.window_cost_s, saving_s / saved))
        if 0 < span_us < 10**12:
            load = busy_s / (span_us / 1e6)
            found = replace(found, load=load if self.load == 0 else _blend(self.load, load))
        return found

    def restored(self, *, windows: int, loading_s: float, replaying_s: float = 0.0) -> Measured:
        """After a recovery: what loading has cost this time stands for the next."""
        found = replace(self, recovery_s=loading_s + replaying_s)
        return replace(found, load_cost_s=loading_s / windows) if windows > 100 else found

    def estimate_s(self, windows: int, extent_us: int) -> float:
        """How long a recovery would take: N windows are loaded, and the extent of input is computed again."""
        return windows * self.load_cost_s + extent_us / 1e6 * self.load


def _blend(old: float, new: float) -> float:
    return (1 - _SMOOTHING) * old + _SMOOTHING * new


@dataclass(frozen=True)
class Continuous:
    """Continuous eventual checkpoints. Make one with `continuous(...)`."""

    period_us: int = 10_000_000
    slow_us: int = 10_000_000
    at_most: int = 100_000
    budget: float = 0.05
    recover_within_us: int | None = None

    def __str__(self) -> str:
        """As it was written: what is not said is as by default."""
        usual, said = Continuous(), []
        if self.period_us != usual.period_us:
            said.append(f'period="{duration_text(self.period_us)}"')
        if self.slow_us != self.period_us:
            said.append(f'slow="{duration_text(self.slow_us)}"')
        if self.at_most != usual.at_most:
            said.append(f"at_most={self.at_most}")
        if self.budget != usual.budget:
            said.append(f"budget={self.budget}")
        if self.recover_within_us is not None:
            said.append(f'recover_within="{duration_text(self.recover_within_us)}"')
        return f"continuous({', '.join(said)})"

    def shot(self, position_us: int, batch_us: int, windows: int, busy_s: float, measured: Measured) -> Shot:
        """The shot at the end of a batch that took in `batch_us` of input and `busy_s` seconds of work so far."""
        policy = self.in_force(batch_us, windows, measured)
        affordable = int(self.budget * busy_s / max(measured.window_cost_s, 1e-9))
        return Shot(position_us - policy.period_us, position_us - policy.slow_us, min(policy.at_most, affordable))

    def in_force(self, batch_us: int, windows: int, measured: Measured) -> Continuous:
        """What it comes to for a batch of that much input: as it was given, or as the recovery time demands."""
        return self if self.recover_within_us is None else self.tuned(batch_us, windows, measured)

    def tuned(self, batch_us: int, windows: int, measured: Measured) -> Continuous:
        """T, H and M for the recovery time that was asked for.

        Recovery loads N windows and works through T of input again. What remains of the goal after loading divided by
        the work per second of input is how old the oldest footprint may be. Half of it is kept in hand, since a shot
        may come up to a batch late and machines differ. A window is slow at half of T: then it is saved before its
        Gopen is the oldest. M spreads all windows over T.
        """
        assert self.recover_within_us is not None
        goal_s = self.recover_within_us / 1e6 - windows * measured.load_cost_s
        load = max(measured.load, 1e-6)
        period_us = int(max(0.5 * goal_s / load * 1e6, batch_us))
        shots = max(1.0, period_us / max(batch_us, 1))
        return replace(self, period_us=period_us, slow_us=period_us // 2, at_most=int(windows / shots) + 1)


def continuous(
    *, period: str | float = "10s", slow: str | float | None = None, at_most: int = 100_000, budget: float = 0.05,
    recover_within: str | float | None = None,
) -> Continuous:  # fmt: skip
    """Checkpoint all along: T, H, M and the share of time, or a recovery time from which they follow.

    >>> continuous(recover_within="2s").recover_within_us
    2000000
    """
    period_us = duration_us(period)
    slow_us = period_us if slow is None else duration_us(slow)
    if period_us < 1 or slow_us < 0 or at_most < 0 or not 0 <= budget <= 1:
        raise UsageError(
            f"checkpoints need a positive period, a threshold and a number of 0 or more, and a budget from 0 to 1; got "
            f"{period!r}, {slow!r}, {at_most}, {budget}"
        )
    goal = None if recover_within is None else duration_us(recover_within)
    if goal is not None and goal < 1:
        raise UsageError(f"a recovery time must be positive; got {recover_within!r}")
    return Continuous(period_us, slow_us, at_most, budget, goal)
