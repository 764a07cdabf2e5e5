"""How a deployment file says what keeps a target at what a stream says, and which host runs it.

sinks:
  active_sources.sqlite: b            # of the application (`app.sink`): where it runs
  totals:                             # of the file alone
    host: a                           # where set; otherwise the first that produces the stream
    stream: totals                    # where it is not the sink's own name
    to: "postgresql://ann@db/shop"    # as for `holdfast sink`: `holdfast.sinks.address`
    table: reports.totals             # where it is not named like the stream
    key: [shop]
    tentative: true
  past: {stream: totals, to: "delta:s3://shop/totals", every: 30s, config_file: store.properties}

Paths are relative to the file. Passwords have no place in it: PostgreSQL has a password file, and the settings of other
clients, a webhook's headers among them, have a file of their own (`config_file`: `holdfast.inputs.settings_file`).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from holdfast.diagram import check_node_name
from holdfast.model.errors import UsageError
from holdfast.model.time import instant_us

if TYPE_CHECKING:
    from holdfast.sinks.sink import SinkSpec


class SinkWords(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    to: str
    host: str | None = None
    stream: str | None = None
    table: str | None = None
    key: tuple[str, ...] = ()
    tentative: Literal["true", "false"] = "false"
    add_columns: Literal["true", "false"] = "false"
    every: str | None = None
    start: str = "beginning"
    position: str | None = None
    config_file: str | None = None


def check_sink(file: Path, name: str, said: SinkWords) -> SinkWords:
    """Refuse what can be seen to be wrong without the target."""
    check_node_name(name, f"the name of a sink in {file}", "rename it under sinks")
    sink_spec(file, name, said, file.parent)
    return said


def sink_spec(file: Path, name: str, said: SinkWords, notes: Path) -> SinkSpec:
    """The sink that the file describes. `notes` is a folder for the position behind what a webhook was told."""
    from holdfast.sinks.address import sink_at  # Not for who has none: it brings all of them with it.
    from holdfast.sinks.sink import SinkSpec

    stream = said.stream or name
    position = None if said.position is None else file.parent / said.position
    if position is None and said.to.startswith(("http:", "https:")):
        position = notes / f"{name}.position"
    try:
        if said.start not in ("beginning", "live"):
            instant_us(said.start)
        sink = sink_at(
            said.to, said.table or stream, key=said.key, tentative=said.tentative == "true",
            add_columns=said.add_columns == "true", every=said.every, position=position, folder=file.parent,
            config_file=None if said.config_file is None else file.parent / said.config_file,
        )  # fmt: skip
    except UsageError as error:
        raise UsageError(f"sink {name!r} in {file}: {error}") from None
    return SinkSpec(name, stream, sink, said.start)
