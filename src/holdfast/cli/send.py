"""holdfast send"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast.cli.feeding import Inputs, Options
from holdfast.cli.session import Json, Name, Root, Session
from holdfast.cli.source_feed import columns_of, feed_from, names_of
from holdfast.cli.units import counted
from holdfast.clock import monotonic_us, pause
from holdfast.inputs.kafka import kafka as kafka_source
from holdfast.inputs.postgres_changes import postgres_changes
from holdfast.inputs.source import Source
from holdfast.inputs.token_file import read_token
from holdfast.model.time import MAX_AHEAD, closed_until
from holdfast.stream.producer import Producer

#: A bucket that ends this soon is waited for, so that what was sent can be seen at once.
_BUCKET_US_MAX = 2_000_000
_LOOK_US = 5_000


def _see_out(producer: Producer) -> None:
    """Readers see whole buckets: stay until the last one is closed by the clock, if that is not far away."""
    size = producer.definition.bucket_us
    until = closed_until(producer.boundary_us, size) + size
    deadline = monotonic_us() + 2 * _BUCKET_US_MAX
    while size <= _BUCKET_US_MAX and producer.boundary_us < until and monotonic_us() < deadline:
        pause(_LOOK_US)


def command(
    context: typer.Context,
    name: Name,
    file: Annotated[str | None, typer.Argument(metavar="[FILE|-]", help="Where rows come from.")] = None,
    format: Annotated[str | None, typer.Option(help="json (lines) or csv; otherwise by the file's name.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for what is appended, like tail -F.")] = False,
    stime: Annotated[str | None, typer.Option(help="Column that says when; otherwise the time of arrival.")] = None,
    stime_unit: Annotated[str, typer.Option(help="Of an integer column: s, ms or us.")] = "us",
    slack: Annotated[str, typer.Option(help="How much disorder to expect with --stime, such as 5s.")] = "0s",
    late: Annotated[str, typer.Option(help="refuse what is later than that, or drop it.")] = "refuse",
    idle: Annotated[
        str, typer.Option(help="With --stime: after so long without rows, such as 5s, the boundary follows the clock.")
    ] = "wait",
    max_ahead: Annotated[
        str, typer.Option(help="With --stime: refuse rows further ahead of the clock; none takes any.")
    ] = MAX_AHEAD,
    dead_letters: Annotated[
        Path | None, typer.Option(help="File for rows that do not fit; go on without them.")
    ] = None,
    tcp: Annotated[int | None, typer.Option(metavar="PORT", help="Take JSON lines by TCP (0: any port).")] = None,
    http: Annotated[int | None, typer.Option(metavar="PORT", help="Take POSTs by HTTP (0: any port).")] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    token_file: Annotated[Path | None, typer.Option(help="File with what senders must show.")] = None,
    token: Annotated[
        str | None, typer.Option(envvar="HOLDFAST_TOKEN", help="The same; others on this machine can see it.")
    ] = None,
    senders: Annotated[
        Path | None, typer.Option(help="File that gives each sender a token, and ids of its own.")
    ] = None,
    certificate: Annotated[Path | None, typer.Option(help="For TLS, with --key.")] = None,
    key: Annotated[Path | None, typer.Option(help="For TLS, with --certificate.")] = None,
    kafka: Annotated[
        str | None, typer.Option(metavar="BROKER:PORT,…", help="Read a topic of Kafka, each record exactly once.")
    ] = None,
    topic: Annotated[str | None, typer.Option(help="With --kafka: the topic, if not named like the stream.")] = None,
    value: Annotated[str, typer.Option(help="With --kafka: json, avro or columns.")] = "json",
    avro_schema: Annotated[Path | None, typer.Option(help="With --value avro: the file of its schema.")] = None,
    registry: Annotated[
        str | None, typer.Option(metavar="URL", help="With --value avro: the schema registry instead.")
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PART=COLUMN",
            help="With --kafka: key, topic, partition, offset, timestamp or headers. With --postgres: a column "
            "to take, and its name in the stream.",
        ),
    ] = None,
    kafka_config: Annotated[
        Path | None, typer.Option(help="With --kafka: file of name=value settings of its client, for SASL and TLS.")
    ] = None,
    begin: Annotated[
        str, typer.Option(help="At first: with --kafka earliest, latest or a time; with --postgres the first two.")
    ] = "earliest",
    tombstones: Annotated[str, typer.Option(help="With --kafka: records without a value: row or skip.")] = "row",
    until_read: Annotated[
        bool, typer.Option("--until-read", help="With --kafka and --postgres: end when all that is there was read.")
    ] = False,
    postgres: Annotated[
        str | None, typer.Option(metavar="URL", help="Read the changes of a table, each exactly once.")
    ] = None,
    table: Annotated[str | None, typer.Option(help="With --postgres: the table, if not named like the stream.")] = None,
    publication: Annotated[
        str | None, typer.Option(help="With --postgres: one that is there; otherwise it is made.")
    ] = None,
    generate: Annotated[float | None, typer.Option(metavar="RATE", help="Invent rows, so many a second.")] = None,
    count: Annotated[int | None, typer.Option(help="With --generate: how many in all.")] = None,
    seed: Annotated[int, typer.Option(help="With --generate: the same seed, the same rows.")] = 0,
    id: Annotated[str | None, typer.Option(help="Name of this sender, for resuming.")] = None,
    again: Annotated[bool, typer.Option("--again", help="Send the file from its beginning once more.")] = False,
    end: Annotated[bool, typer.Option("--end", help="End the stream afterwards: nothing can follow.")] = False,
    takeover: Annotated[bool, typer.Option("--takeover", help="Fence whoever writes now.")] = False,
    root: Root = None,
    json: Json = False,
) -> None:
    """Send rows from a file, standard input, the network, Kafka, PostgreSQL or a generator, each durable when counted.

    A file that is sent again goes on where it was, so nothing comes twice. Ctrl-C ends cleanly.

    \b
    echo '{"source": "10.0.0.1", "bytes": 512}' | holdfast send monitor1
    holdfast send monitor1 rows.csv --stime at --slack 5s
    holdfast send monitor1 rows.csv --stime at --slack 5s --idle 30s --follow
    holdfast send monitor1 rows.csv --end
    holdfast send monitor1 /var/log/flows.json --follow --dead-letters bad.json
    holdfast send monitor1 --http 8080 --tcp 9000
    holdfast send monitor1 --generate 1000 --count 10000
    holdfast send orders --kafka broker:9092 --topic orders --slack 2s --dead-letters bad.json
    holdfast send orders --kafka broker:9092 --stime at --column key=customer --kafka-config tls.conf
    holdfast send orders --postgres postgresql://ann@db/shop --table sales.orders

    With --kafka, stime is the record's timestamp, or the column that --stime names. With --postgres it is the commit's
    time, the table says the stream's columns, and unless it is --begin latest the stream begins with the rows that the
    table has. Their places are committed with the rows they brought: whoever is killed, nothing is lost and nothing
    comes twice.
    """
    session = Session(root, json)
    if kafka is not None or postgres is not None:
        if file is not None or tcp is not None or http is not None or generate is not None or takeover or end:
            raise typer.BadParameter(
                "--kafka and --postgres go without FILE, --tcp, --http, --generate, --takeover and --end"
            )
        if kafka is not None and postgres is not None:
            raise typer.BadParameter("--kafka or --postgres, not both: a stream has one writer")
        said = context.get_parameter_source("slack")
        common: dict[str, Any] = {
            "stime_unit": stime_unit, "late": late, "idle": idle, "id": id, "dead_letters": dead_letters,
            "max_ahead": None if max_ahead == "none" else max_ahead,
            **({"slack": slack} if said is not None and said.name != "DEFAULT" else {}),
        }  # fmt: skip
        if kafka is not None:
            described: Source = kafka_source(
                kafka, topic=topic or name, value=value,  # type: ignore[arg-type]
                stime=stime or "timestamp", columns=columns_of(column or ()),
                tombstones=tombstones, begin=begin,  # type: ignore[arg-type]
                config_file=kafka_config, avro_schema=avro_schema, registry=registry, **common,
            )  # fmt: skip
        else:
            assert postgres is not None
            if begin not in ("earliest", "latest"):
                raise typer.BadParameter(f"--begin must be earliest or latest; got {begin!r}")
            described = postgres_changes(
                postgres, table=table or name, columns=names_of(column or ()), snapshot=begin == "earliest",
                publication=publication, stime=stime or "commit", **common,
            )  # fmt: skip
        feed_from(session, name, described, until_read=until_read)
        return
    if topic is not None or column or kafka_config is not None or until_read:
        raise typer.BadParameter(
            "--topic, --column, --kafka-config and --until-read go with --kafka BROKER:PORT or --postgres URL"
        )
    source = context.get_parameter_source("token")
    if token is not None and source is not None and source.name == "COMMANDLINE":
        session.note("--token can be seen by everybody on this machine; use --token-file, or HOLDFAST_TOKEN")
    if token_file is not None:
        if token is not None:
            raise typer.BadParameter("--token-file goes without --token and HOLDFAST_TOKEN; got both")
        token = read_token(token_file)
    if format not in (None, "json", "csv"):
        raise typer.BadParameter(f"--format must be json or csv; got {format!r}")
    if late not in ("refuse", "drop"):
        raise typer.BadParameter(f"--late must be refuse or drop; got {late!r}")
    if idle != "wait" and stime is None:
        raise typer.BadParameter("--idle goes with --stime; times of arrival follow the clock anyway")
    options = Options(
        file=file, format=format, follow=follow, dead_letters=dead_letters, tcp=tcp, http=http, host=host, token=token,
        senders=senders, certificate=certificate, key=key, rate=generate, rows_max=count, seed=seed, id=id, again=again,
    )  # fmt: skip
    options.check()
    stream = session.store.open(name)
    # Over the network a full stream is the sender's to wait for, not ours.
    patience = "1s" if options.listens else "30s"
    producer = stream.producer(takeover=takeover, stime=stime, slack=slack,
                               stime_unit=stime_unit, late=late,  # type: ignore[arg-type]
                               idle=idle, max_ahead=None if max_ahead == "none" else max_ahead,
                               full_timeout=patience)  # fmt: skip
    finished = False
    try:
        with Inputs(session, producer, options) as inputs:
            sent = inputs.run()
        finished = True
        if sent.rows and stime is None and not end:
            _see_out(producer)
    finally:
        producer.close(end=end and finished)
    text = f"{name}: {counted(sent.rows, 'tuple')} sent"
    if sent.duplicates:
        text += f", {sent.duplicates} were there before"
    if sent.late or sent.dead:
        text += f", {sent.late} too late or early, {sent.dead} did not fit"
    if inputs.resumed and not any(sent):
        text += f"; {file} was sent before (--again sends it once more)"
    if end:
        text += "; the stream has ended"
    session.say(text, stream=name, tuples=sent.rows, duplicates=sent.duplicates, late=sent.late, dead=sent.dead,
                ended=end)  # fmt: skip
