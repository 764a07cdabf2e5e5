"""Makes the sink that a text names: `sqlite:///totals.db`, `postgresql://…`, `kafka://broker:9092`, `delta:totals/`, …

The command line and the deployment file know sinks by these. An address may hold a password, so no message repeats it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.model.errors import UsageError
from holdfast.sinks.configured_sink import ConfiguredSink
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
    every: str | None = None,
    config_file: Path | None = None,
    position: Path | None = None,
    folder: Path = Path(),
) -> Sink:
    """`table` is that of a database, or the topic. Relative paths begin at `folder`. `config_file` has settings of the
    client: of Kafka, of Delta's object store, of Iceberg's catalog, or a webhook's headers; `position` is the file in
    which a webhook's is kept."""
    scheme, colon, rest = address.partition(":")
    if not colon or scheme not in _TAKES:
        raise UsageError(
            "the address of a sink must begin with sqlite:///, duckdb:///, postgresql://, kafka://, delta:, iceberg:, "
            f"parquet: or https://; got {scheme!r}"
        )
    if not rest.strip("/"):
        raise UsageError(f"the address of a sink must say where behind {scheme}:; got nothing")
    asked = {"key": key, "tentative": tentative, "add_columns": add_columns, "every": every, "config_file": config_file,
             "position": position}  # fmt: skip
    given: dict[str, Any] = {word: value for word, value in asked.items() if value}
    for word in given:
        if word not in _TAKES[scheme]:
            raise UsageError(f"a sink {scheme}: takes no {word}, {_WHY[word]}; leave it out")
    if scheme == "kafka":  # It reads its file itself.
        return kafka(rest.removeprefix("//").rstrip("/"), table, **given)
    given.pop("config_file", None)
    if scheme in ("sqlite", "duckdb"):
        if not rest.startswith("///"):
            raise UsageError(f"the address must look like {scheme}:///a.db or {scheme}:////srv/a.db; got {address:.99}")
        path = folder / rest.removeprefix("///")
        return (sqlite if scheme == "sqlite" else duckdb)(path, table, **given)
    if scheme in ("postgresql", "postgres"):
        return postgres(address, table, **given)
    if scheme == "parquet":
        return parquet(folder / rest, **given)
    if scheme == "delta":
        return _configured(delta, "storage", config_file, rest if "://" in rest else folder / rest, given)
    if scheme == "iceberg":
        return _configured(iceberg, "catalog", config_file, rest, given)
    return _configured(webhook, "headers", config_file, address, given)


def _configured(
    make: Callable[..., Sink], word: str, file: Path | None, target: str | Path, given: dict[str, Any]
) -> Sink:
    """The sink; with a file, its settings are the argument `word`."""
    if file is None:
        return make(target, **given)
    return ConfiguredSink(lambda settings: make(target, **{word: settings}, **given), file)


_TABLE = frozenset(("key", "tentative", "add_columns"))
_APPENDED = frozenset(("tentative", "add_columns", "every", "config_file"))
_HOOK = frozenset(("tentative", "config_file", "position"))
#: What can be asked of each kind of target.
_TAKES = {
    "sqlite": _TABLE, "duckdb": _TABLE | {"every"}, "postgresql": _TABLE, "postgres": _TABLE,
    "kafka": frozenset(("key", "tentative", "config_file")),
    "delta": _APPENDED, "iceberg": _APPENDED,
    "http": _HOOK, "https": _HOOK,
    "parquet": frozenset(("every",)),
}  # fmt: skip
_WHY = {
    "key": "since rows are appended to it",
    "tentative": "since what it holds cannot be taken back",
    "add_columns": "since it has no columns of its own to lack",
    "every": "since it takes changes as they come",
    "config_file": "since it has no settings of a client",
    "position": "since it holds its position itself",
}
