"""Count windows with Spark's own tool for state in Python, as its documentation suggests to write them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

AVERAGES = "item_id bigint, count bigint, avg_item_price double, stime timestamp"


class CountWindows(StatefulProcessor):
    def __init__(self, size: int) -> None:
        self.size = size

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.state = handle.getValueState("window", "count bigint, total bigint")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        count, total = self.state.get() if self.state.exists() else (0, 0)
        made: list[tuple[Any, ...]] = []
        for frame in rows:
            for price, stime in zip(frame["item_price"].tolist(), frame["stime"].tolist(), strict=True):
                count, total = count + 1, total + price
                if count == self.size:
                    made.append((key[0], count, total / count, stime))
                    count, total = 0, 0
        if count:
            self.state.update((count, total))
        else:
            self.state.clear()
        if made:
            yield pd.DataFrame(made, columns=["item_id", "count", "avg_item_price", "stime"])

    def close(self) -> None:
        pass
