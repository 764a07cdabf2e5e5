"""How much a tentative bucket is worth: what share of the expected tuples went into it (003 §5.8.3, future work there).

Rules:
1. What an input is expected to bring is a moving average over its complete buckets.
2. A complete input counts 1, a missing one 0, a part by its share of the expectation; a tentative input counts what its
   producer said it is worth.
3. The whole is the mean over the inputs, weighted by what each is expected to bring.
"""

from __future__ import annotations

#: Weight of the newest complete bucket. Higher follows load changes sooner, lower evens out bursts.
_NEWEST = 0.2


class Expectation:
    """How many tuples one bucket of one input usually holds."""

    __slots__ = ("tuples",)

    def __init__(self) -> None:
        self.tuples: float | None = None

    def learn(self, tuples: int) -> None:
        """A complete bucket held so many."""
        self.tuples = float(tuples) if self.tuples is None else self.tuples + _NEWEST * (tuples - self.tuples)

    def share(self, tuples: int) -> float:
        """What part of the expected number these are, at most 1."""
        if not self.tuples:
            return 1.0 if tuples else 0.0
        return min(1.0, tuples / self.tuples)


def combine(shares: list[tuple[float | None, float]]) -> float:
    """The worth of a bucket from (expected tuples, share) per input.

    >>> combine([(10.0, 1.0), (30.0, 0.0)])
    0.25
    """
    weighted = [(expected if expected else 1.0, share) for expected, share in shares]
    total = sum(expected for expected, _ in weighted)
    return sum(expected * share for expected, share in weighted) / total
