"""Makes the sink that a text names: `sqlite:///totals.db`, `postgresql://…`, `kafka://broker:9092`, `delta:totals/`, …

The command line and the deployment file know sinks by these. An address may hold a password, so no message repeats it.
"""

from __future__ import annotations

from pathlib import Path

from holdfast.model.errors import UsageError
from holdfast.sinks.delta_sink import delta
from holdfast.sinks.duckdb_sink import duckdb
from holdfast.sinks.iceberg_sink import iceberg
from holdfast.sinks.kafka_sink import kafka
from holdfast.sinks.parquet_sink import parquet
from holdfast.sinks.postgres_sink import postgres
from holdfast.sinks.sink import Sink
from holdfast.sinks.sqlite_sink import sqlite
from holdfast.sinks.webhook_sink import webhook


def sink_at(
    address: str,
    table: str,
    *,
    key: tuple[str, ...] = (),
    tentative: bool = False,
    add_columns: bool = False,
    config_file: Path | None = None,
    position: Path | None = None,
    folder: Path = Path(),
) -> Sink:
    """`table` is that of a database, or the topic. Relative paths begin at `folder`; `position` is the file in which a
    webhook's is kept."""
    scheme, colon, rest = address.partition(":")
    if not colon or scheme not in _TAKES:
        raise UsageError(
            "the address of a sink must begin with sqlite:///, duckdb:///, postgresql://, kafka://, delta:, iceberg:, "
            f"parquet: or https://; got {scheme!r}"
        )
    if not rest.strip("/"):
        raise UsageError(f"the address of a sink must say where behind {scheme}:; got nothing")
    asked = {"key": key, "tentative": tentative, "add_columns": add_columns, "config_file": config_file}
    for word, value in asked.items():
        if value and word not in _TAKES[scheme]:
            raise UsageError(f"a sink {scheme}: takes no {word}, {_WHY[word]}; leave it out")
    if scheme == "kafka":
        brokers = rest.removeprefix("//").rstrip("/")
        return kafka(brokers, table, key=key, tentative=tentative, config_file=config_file)
    if scheme in ("sqlite", "duckdb"):
        if not rest.startswith("///"):
            raise UsageError(f"the address must look like {scheme}:///a.db or {scheme}:////srv/a.db; got {address:.99}")
        make = sqlite if scheme == "sqlite" else duckdb
        path = folder / rest.removeprefix("///")
        return make(path, table, key=key, tentative=tentative, add_columns=add_columns)
    if scheme in ("postgresql", "postgres"):
        return postgres(address, table, key=key, tentative=tentative, add_columns=add_columns)
    if scheme == "delta":
        place = rest if "://" in rest else folder / rest
        return delta(place, tentative=tentative, add_columns=add_columns)
    if scheme == "iceberg":
        return iceberg(rest, tentative=tentative, add_columns=add_columns)
    if scheme == "parquet":
        return parquet(folder / rest)
    return webhook(address, tentative=tentative, position=position)


_TABLE = frozenset(("key", "tentative", "add_columns"))
_APPENDED = frozenset(("tentative", "add_columns"))
#: What can be asked of each kind of target.
_TAKES = {
    "sqlite": _TABLE, "duckdb": _TABLE, "postgresql": _TABLE, "postgres": _TABLE,
    "kafka": frozenset(("key", "tentative", "config_file")),
    "delta": _APPENDED, "iceberg": _APPENDED,
    "http": frozenset(("tentative",)), "https": frozenset(("tentative",)),
    "parquet": frozenset[str](),
}  # fmt: skip
_WHY = {
    "key": "since rows are appended to it",
    "tentative": "since what it holds cannot be taken back",
    "add_columns": "since it has no columns of its own to lack",
    "config_file": "which has the settings of a client of Kafka",
}
