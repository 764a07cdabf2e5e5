"""What the text of the seeds (003 §5.4 to §5.6) says of availability and consistency, as curves.

The seeds' plots are pictures; their text gives laws and some numbers. The dashed curves are these laws with the seeds'
own settings:

1. Proc_new of anything that does not suspend is D plus the normal latency of 0.3 s (D = 2.7 s gives less than 3 s).
2. Reconciliation takes time in proportion to the failure and reaches D = 2.7 s at a failure of about 8 s; suspending
   adds it to the latency.
3. Process produces tentative tuples for the failure and the reconciliation; delay saves D; suspend the reconciliation.
   A failure shorter than D gives none.
4. In a chain, delay adds up (n·D), process does not: all nodes wait at the same time and each adds 0.3 s.
"""

from __future__ import annotations

SEED_NORMAL_S = 0.3
#: Rule 2.
SEED_RECONCILE = 2.7 / 8
#: Table 5.2: boundary interval → average processing delay, both in ms.
SEED_TABLE_52 = {50: 69, 100: 120, 150: 174, 200: 234, 250: 298, 300: 327}
SEED_DURATIONS = (2, 3, 5, 8, 10, 20, 30, 45, 60)


def seed_proc_new(policy: str, delay_s: float, failure_s: float) -> float:
    """Rules 1 and 2."""
    if failure_s <= delay_s:
        return failure_s + SEED_NORMAL_S
    during, after = policy.split(" & ")
    if during == "suspend":
        return failure_s * (1 + SEED_RECONCILE) + SEED_NORMAL_S
    reconcile = failure_s * SEED_RECONCILE if after == "suspend" else 0.0
    added = max(delay_s, reconcile) if during == "process" else delay_s + reconcile
    return added + SEED_NORMAL_S


def seed_tentative(policy: str, delay_s: float, failure_s: float) -> float:
    """Rule 3, in seconds of output."""
    during, after = policy.split(" & ")
    if failure_s <= delay_s or during == "suspend":
        return 0.0
    reconcile = 0.0 if after == "suspend" else failure_s * SEED_RECONCILE
    return max(0.0, failure_s + reconcile - (delay_s if "delay" in (during, after) else 0.0))
