"""Holdfast on Spark. Nothing else of Holdfast imports pyspark (tests/test_map.py).

`session` makes a SparkSession with the settings that streams like; `register` adds the format "holdfast" to one that
exists; `read_stream` reads streams with a watermark that follows their boundaries; `flow` starts a chain of Holdfast's
own operators, `flow_of` does so on a streaming DataFrame, as in a node; `udop` and `barrier` put operators of yours
into a query.

They are imported on first use: Spark's workers come through this package too, and most of them read or write a stream
and need none of the operators, which take 50 MB of memory in each.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.spark.flow import Flow, flow, flow_of
    from holdfast.spark.frames import read_stream
    from holdfast.spark.keyed import barrier, deadlines, udop
    from holdfast.spark.session import SETTINGS, register, session

__all__ = [
    "SETTINGS", "Flow", "barrier", "deadlines", "flow", "flow_of", "read_stream", "register", "session", "udop",
]  # fmt: skip

_HOMES = {
    "Flow": "flow", "flow": "flow", "flow_of": "flow", "read_stream": "frames",
    "SETTINGS": "session", "barrier": "keyed", "deadlines": "keyed", "register": "session", "session": "session",
    "udop": "keyed",
}  # fmt: skip


class _Package(ModuleType):
    """`flow` and `session` are functions, although the modules that they come from have the same names: whoever imports
    those must not hide the functions, which Python would do."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
        setattr(self, name, found)
        return found


sys.modules[__name__].__class__ = _Package
