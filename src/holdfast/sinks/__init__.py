"""Sinks: tables and other targets outside that hold what a stream says, corrected in place.

from holdfast.sinks import sqlite

app.sink("active_sources", sqlite("results.db", "active", key=["window_start", "source"], tentative=True))
"""

from __future__ import annotations

from holdfast.sinks.sink import Changes, Sink, Source
from holdfast.sinks.sqlite_sink import sqlite

__all__ = ["Changes", "Sink", "Source", "sqlite"]
