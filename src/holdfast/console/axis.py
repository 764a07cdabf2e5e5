"""An axis of time: which stretch is shown, where an instant lies on it, where it is labelled."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.console.recording import Recording
from holdfast.model.time import SECOND_US

#: Steps that people read easily, in microseconds: 1, 2, 5 and tens of them up to minutes, then clock-like ones.
_STEPS_US = [
    *(n * unit for unit in (1_000, 10_000, 100_000, SECOND_US) for n in (1, 2, 5)),
    *(n * SECOND_US for n in (10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 43200, 86400)),
]


@dataclass(frozen=True, slots=True)
class Axis:
    """The stretch [low, high), counted from `zero`."""

    low_us: int
    high_us: int
    zero_us: int

    @property
    def span_us(self) -> int:
        """How much is shown."""
        return self.high_us - self.low_us

    def share(self, us: int) -> float:
        """Where an instant lies: 0 at the low end, 1 at the high end, outside of that if it is not shown."""
        return (us - self.low_us) / self.span_us

    def cell(self, us: int, cells: int) -> int | None:
        """The same in whole cells, None if it is not shown."""
        at = (us - self.low_us) * cells // self.span_us
        return at if 0 <= at < cells else None

    def ticks(self, count_max: int) -> list[int]:
        """At most so many instants to label, at round distances from zero."""
        wanted = self.span_us / max(1, count_max)
        step = next((s for s in _STEPS_US if s >= wanted), -(-int(wanted) // 86_400_000_000) * 86_400_000_000)
        first = -((self.zero_us - self.low_us) // step) * step
        return list(range(self.zero_us + first, self.high_us, step))

    def text(self, us: int) -> str:
        """An instant as people read it, counted from zero.

        >>> Axis(0, 60_000_000, 0).text(2_500_000), Axis(0, 600_000_000, 0).text(90_000_000)
        ('2.5 s', '1:30')
        """
        us -= self.zero_us
        if self.span_us < 240 * SECOND_US:
            return f"{us / SECOND_US:.3f}".rstrip("0").rstrip(".") + " s"
        minutes, seconds = divmod(us // SECOND_US, 60)
        return f"{minutes}:{seconds:02}" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"


def wall_axis(recording: Recording, now_us: int, window_us: int | None = None) -> Axis:
    """The stretch of wall time to show: the whole run, or its last `window_us`.

    A run that is still growing is shown on an axis a little too long, so that the picture stands still between steps.
    """
    began = recording.began_us if recording.began_us is not None else now_us
    now = max(now_us, began + 1)
    if window_us is not None and now - began > window_us:
        return Axis(now - window_us, now, began)
    wanted = now - began
    step = 5 * SECOND_US if wanted < 60 * SECOND_US else 15 * SECOND_US
    while step * 20 < wanted:
        step *= 2
    return Axis(began, began + (wanted // step + 1) * step, began)


def stime_axis(recording: Recording, wall: Axis) -> Axis:
    """The stretch of stime that arrived within the wall time shown; very old history is left out."""
    stimes = [cell.stime_us for cell in recording.cells() if wall.low_us <= cell.wall_us < wall.high_us]
    if not stimes:
        return Axis(wall.low_us, wall.high_us, wall.zero_us)
    high = max(stimes) + recording.slot_us
    low = max(min(stimes), high - 2 * wall.span_us)
    if wall.low_us - wall.span_us <= low and high <= wall.high_us:
        return Axis(min(low, wall.low_us), wall.high_us, wall.zero_us)  # Sources that stamp by the clock: one scale.
    return Axis(low, high, low)
