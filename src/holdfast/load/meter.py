"""What each task uses, measured from what its query says of its batches (003 §7.2.2).

Rules:
1. CPU is the share of time that batches take (`busy`), or rows times what a row costs (`rows`), in cores; bandwidth is
   what the output grows by, in MB/s; memory is what Spark says its state holds, in GiB.
2. CPU is counted per second of input, not of the clock: a task that has just moved makes up for lost time, and would
   else look like an overload, and be sent back.
3. Averages are exponential: a spike shorter than the time constant moves nothing.
4. What has not been watched for long enough is not known yet; whoever needs a number takes the one from the bargain.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from holdfast.engine import Reading
from holdfast.model.time import SECOND_US
from holdfast.protocol.load.usage import Usage

#: Shorter follows noise, longer comes too late for a spike. The seeds look every ten seconds at larger loads.
SMOOTHING_S = 4.0
#: Before this the first batches, which compile, would be taken for the rule.
_KNOWN_AFTER_US = 4 * SECOND_US
#: A query without a batch for so long is not between two batches: it does nothing.
_QUIET_S = 20.0


@dataclass(slots=True)
class _Average:
    begun_us: int
    at_us: int
    batch_id: int
    out_bytes: int
    busy: float = 0.0
    rows: float = 0.0
    bytes: float = 0.0
    memory: float = 0.0


class Meter:
    """Averages of all tasks of one host."""

    def __init__(self, measure: Literal["busy", "rows"], us_per_row: float) -> None:
        self._measure, self._us_per_row = measure, us_per_row
        self._tasks: dict[str, _Average] = {}

    def take(self, task_id: str, reading: Reading, out_bytes: int, now_us: int) -> None:
        """One more look; `out_bytes` counts what the output has grown by since it was first looked at."""
        known = self._tasks.get(task_id)
        if known is None or reading.batch_id < known.batch_id:
            self._tasks[task_id] = _Average(now_us, now_us, reading.batch_id, out_bytes)
            return
        dt = (now_us - known.at_us) / SECOND_US
        # Only the last batch is told; those between two looks are taken to be like it.
        batches = reading.batch_id - known.batch_id
        if dt <= 0 or (batches == 0 and dt < _QUIET_S):
            return
        share = 1.0 - math.exp(-dt / SMOOTHING_S)
        if reading.span_us != 0 or batches == 0:
            a_second = batches / dt if reading.span_us is None else bool(batches) * SECOND_US / reading.span_us
            known.busy += share * (reading.busy_ms / 1000 * a_second - known.busy)
            known.rows += share * (reading.rows * a_second - known.rows)
        known.bytes += share * (max(0, out_bytes - known.out_bytes) / dt - known.bytes)
        known.memory = reading.state_bytes / (1 << 30)
        known.at_us, known.batch_id, known.out_bytes = now_us, reading.batch_id, out_bytes

    def forget(self, task_id: str) -> None:
        """It does not run here any more."""
        self._tasks.pop(task_id, None)

    def rows_per_s(self, task_id: str) -> float:
        known = self._tasks.get(task_id)
        return 0.0 if known is None else known.rows

    def usage(self, task_id: str, now_us: int) -> Usage | None:
        """Rule 4."""
        known = self._tasks.get(task_id)
        if known is None or now_us - known.begun_us < _KNOWN_AFTER_US:
            return None
        cpu = known.busy if self._measure == "busy" else known.rows * self._us_per_row / SECOND_US
        return Usage(cpu, known.bytes / 1e6, known.memory)
