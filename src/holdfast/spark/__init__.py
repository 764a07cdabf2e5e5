"""Holdfast on Spark. Nothing else of Holdfast imports pyspark (tests/test_map.py).

`session` makes a SparkSession with the settings that streams like; `register` adds the format "holdfast" to one that
exists; `read_stream` reads streams with a watermark that follows their boundaries; `to_stripes` writes results to a
striped one; `flow` starts a chain of Holdfast's own operators, `flow_of` does so on a streaming DataFrame, as in a
node; `udop` and `barrier` put operators of yours into a query.

They are imported on first use: Spark's workers come through this package too, and most of them read or write a stream
and need none of the operators, which take 50 MB of memory in each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.model.first_use import import_on_first_use

if TYPE_CHECKING:
    from holdfast.spark.flow import Flow, flow, flow_of
    from holdfast.spark.frames import read_stream
    from holdfast.spark.keyed import barrier, deadlines, udop
    from holdfast.spark.session import SETTINGS, register, session
    from holdfast.spark.to_stripes import to_stripes

__all__ = [
    "SETTINGS", "Flow", "barrier", "deadlines", "flow", "flow_of", "read_stream", "register", "session", "to_stripes",
    "udop",
]  # fmt: skip

_HOMES = {
    "Flow": "flow", "flow": "flow", "flow_of": "flow", "read_stream": "frames",
    "SETTINGS": "session", "barrier": "keyed", "deadlines": "keyed", "register": "session", "session": "session",
    "to_stripes": "to_stripes", "udop": "keyed",
}  # fmt: skip
import_on_first_use(__name__, {name: f"{__name__}.{home}" for name, home in _HOMES.items()})
