"""From what the user described to what runs."""

from __future__ import annotations

from holdfast.operators.count_windows import CountedAggregate
from holdfast.operators.footprints import Kernel
from holdfast.operators.landmarks import LandmarkAggregate
from holdfast.operators.plan import Plan
from holdfast.operators.stateful_windows import GeneralAggregate
from holdfast.operators.time_windows import TimedAggregate
from holdfast.operators.windows import CountWindow, Landmark, TimeWindow, Window


def aggregate_kernel(window: Window, plan: Plan, keys: tuple[str, ...]) -> tuple[Kernel, bool]:
    """The kernel for a window, and whether its blocks have a column `_w` of their own."""
    if isinstance(window, TimeWindow) and window.by_stime:
        return TimedAggregate(window, plan, keys), False
    if isinstance(window, CountWindow) and window.advance == window.size and window.timeout_us is None:
        return CountedAggregate(window, plan, keys), False
    if isinstance(window, Landmark):
        return LandmarkAggregate(window, plan, keys), False
    return GeneralAggregate(window, plan, keys), True
