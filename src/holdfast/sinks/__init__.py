"""Sinks: tables and other targets outside that hold what a stream says, corrected in place.

from holdfast.sinks import sqlite

app.sink("active_sources", sqlite("results.db", "active", key=["window_start", "source"], tentative=True))
"""

from __future__ import annotations

from holdfast.sinks.delta_sink import delta
from holdfast.sinks.duckdb_sink import duckdb
from holdfast.sinks.foreach_sink import foreach
from holdfast.sinks.iceberg_sink import iceberg
from holdfast.sinks.kafka_sink import kafka
from holdfast.sinks.parquet_sink import parquet
from holdfast.sinks.postgres_sink import postgres
from holdfast.sinks.runner import run_sink
from holdfast.sinks.sink import Changes, Sink, Source
from holdfast.sinks.sqlite_sink import sqlite
from holdfast.sinks.webhook_sink import webhook

__all__ = [
    "Changes",
    "Sink",
    "Source",
    "delta",
    "duckdb",
    "foreach",
    "iceberg",
    "kafka",
    "parquet",
    "postgres",
    "run_sink",
    "sqlite",
    "webhook",
]
