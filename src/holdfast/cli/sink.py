"""holdfast sink"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.session import Json, Name, Root, Session
from holdfast.cli.units import counted
from holdfast.model.errors import UsageError

if TYPE_CHECKING:
    from holdfast.sinks.runner import Origin


def command(
    name: Name,
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="sqlite:///FILE, duckdb:///FILE, postgresql://…, kafka://BROKER:PORT, delta:FOLDER, iceberg:NAME, "
            "parquet:FOLDER, https://….",
        ),
    ],
    table: Annotated[
        str | None, typer.Option(help="Of a database, or the topic; otherwise named like the stream.")
    ] = None,
    key: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="One row per key, the last; once per column. Otherwise a row per tuple."),
    ] = None,
    tentative: Annotated[
        bool, typer.Option("--tentative", help="With what may still change, told apart by a column of that name.")
    ] = False,
    add_columns: Annotated[
        bool, typer.Option("--add-columns", help="Add columns that the table lacks, instead of refusing.")
    ] = False,
    every: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="How long to gather for one commit or file, such as 30s: DuckDB, Delta, Iceberg, Parquet.",
        ),
    ] = None,
    config_file: Annotated[
        Path | None,
        typer.Option(
            "--config-file",
            "--kafka-config",
            metavar="FILE",
            help="File of name=value lines: settings of Kafka's client, of Delta's object store or of "
            "Iceberg's catalog, or headers of a webhook. ${NAME} is a variable of the environment.",
        ),
    ] = None,
    position: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Of a webhook: where its position is kept; otherwise in this folder, named after stream and address.",
        ),
    ] = None,
    start: Annotated[
        str, typer.Option("--from", help="beginning, live or a time; for a target that holds nothing yet.")
    ] = "beginning",
    subscriber: Annotated[
        str | None, typer.Option("--name", help="Let retention wait for this sink, under this name.")
    ] = None,
    deployment: Annotated[
        Path | None,
        typer.Option("--deployment", "-d", metavar="FILE", help="Read it from the hosts of this deployment instead."),
    ] = None,
    root: Root = None,
    json: Json = False,
) -> None:
    """Keep a table, or another target, at what a stream says, until Ctrl-C or until the stream has ended.

    Stable rows stay. With --tentative, rows that may still change come as well, at once, and are replaced in place when
    the failure has healed: whoever looks at the table sees the stable rows and the current guesses, never half a
    correction, never a row twice. The table holds the position of its reader, in the same transaction as the rows:
    killed at any moment and started again, the sink goes on where the table is. Two of them never write to the same
    table: the later one takes over, the earlier one stops and says so.

    The table is made if it is not there. One that is there must have the stream's columns, in types that keep every
    value as it is, and a unique index on the key. Errors that may pass (a database that is away) are tried again;
    others end with a sentence.

    A folder of Parquet files takes stable rows only, and a webhook may get the last request again after a kill;
    docs/connect.md has the table of what each promises.

    What ps or the shell's history should not show (a password, a token) has its place in the file of --config-file.

    \b
    holdfast sink totals sqlite:///totals.db --tentative
    holdfast sink totals postgresql://ann@db.example/shop --table totals --key shop --tentative
    holdfast sink totals kafka://broker:9092 --table shop-totals --key shop --tentative
    holdfast sink totals delta:totals_delta --tentative
    holdfast sink totals iceberg:shop.totals --tentative
    holdfast sink totals parquet:totals/
    holdfast sink totals delta:s3://shop/totals --every 30s --config-file store.properties
    holdfast sink totals https://example.org/hook --tentative --config-file headers --position totals.place
    holdfast sink active_sources sqlite:///active.db --deployment netmon.yaml --tentative
    """
    from holdfast.sinks.address import sink_at
    from holdfast.sinks.runner import LocalOrigin, SinkRunner

    session = Session(root, json)
    try:
        sink = sink_at(target, table or name, key=tuple(key or ()), tentative=tentative, add_columns=add_columns,
                       every=every, config_file=config_file, position=position)  # fmt: skip
    except UsageError as error:
        raise typer.BadParameter(str(error)) from None
    origin: Origin
    if deployment is None:
        session.store.open(name)  # A name that is wrong is said at once; a host may be about to make its stream.
        origin = LocalOrigin(session.store, name)
    else:
        from holdfast.host.deployment import load_deployment
        from holdfast.host.sinks import NetworkOrigin

        origin = NetworkOrigin(load_deployment(deployment), name)
    runner = SinkRunner(name, name, origin, sink, start=start, subscriber=subscriber)
    if sys.stderr.isatty():
        session.note(
            f"{name} goes into {sink.target}, {sink.promise}; stop it with Ctrl-C, it goes on at the next start"
        )
    try:
        runner.run()
    finally:
        origin.close()
    rows = runner.status()["rows"]
    session.say(f"{name}: {counted(rows, 'row')} taken; the stream has ended", stream=name, rows=rows, ended=True)
