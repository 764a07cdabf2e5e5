"""holdfast create"""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli.session import Json, Name, Root, Session
from holdfast.model.size import size_bytes
from holdfast.model.time import duration_us
from holdfast.stream.definition import BUCKET_DEFAULT, MEMORY_BYTES, Bound, Retention, StreamOptions


def command(
    name: Name,
    schema: Annotated[str, typer.Option(help="Columns as in Spark: 'source string, bytes bigint'.")],
    bucket: Annotated[str, typer.Option(help="How much time one bucket spans; results come bucket by bucket.")] = (
        BUCKET_DEFAULT
    ),
    partitions: Annotated[int, typer.Option(help="How many readers can share the work.")] = 1,
    partition_by: Annotated[str | None, typer.Option(help="Column whose equal values stay together.")] = None,
    retain_age: Annotated[str | None, typer.Option(help="Remove what is older, such as 7d.")] = None,
    retain_size: Annotated[str | None, typer.Option(help="Remove the oldest beyond this size, such as 10GB.")] = None,
    retain_acked: Annotated[bool, typer.Option(help="Remove what every subscriber acknowledged.")] = False,
    bound: Annotated[str | None, typer.Option(help="Never hold more than this; push back when full.")] = None,
    when_full: Annotated[str, typer.Option(help="block, or drop_oldest where newest matters most.")] = "block",
    persist: Annotated[
        str, typer.Option(help="always; on_demand: while a known reader is away or behind; or never.")
    ] = "always",
    memory: Annotated[
        str | None, typer.Option(help="With --persist: what may wait in memory for its readers, such as 64MB.")
    ] = None,
    archive: Annotated[
        str | None,
        typer.Option(help="Sealed segments go there: s3://bucket/prefix, file:///folder; --retain-… is for the disk."),
    ] = None,
    archive_age: Annotated[
        str | None, typer.Option(help="Remove what is older from the archive, such as 365d.")
    ] = None,
    archive_size: Annotated[str | None, typer.Option(help="Remove the oldest beyond this from the archive.")] = None,
    stripes: Annotated[
        int | None, typer.Option(help="Deal tuples to so many streams, NAME.s0 …, each with a writer of its own.")
    ] = None,
    stripe_by: Annotated[
        str | None, typer.Option(help="With --stripes: column whose equal values go to one stripe; otherwise in turn.")
    ] = None,
    exist_ok: Annotated[bool, typer.Option(help="Do nothing if it is there with these columns.")] = False,
    root: Root = None,
    json: Json = False,
) -> None:
    """Declare a stream.

    \b
    holdfast create monitor1 --schema "source string, bytes bigint" --bucket 1s
    holdfast create clicks --schema "user string, page string" --partitions 4 --partition-by user --retain-age 7d
    holdfast create ticks --schema "symbol string, price double" --persist on_demand
    holdfast create orders --schema "id bigint, total double" --archive s3://bucket/streams --retain-age 2d
    holdfast create calls --schema "caller string, seconds bigint" --stripes 4 --stripe-by caller
    """
    session = Session(root, json)
    if when_full not in ("block", "drop_oldest"):
        raise typer.BadParameter(f"--when-full must be block or drop_oldest; got {when_full!r}")
    if stripe_by is not None and stripes is None:
        raise typer.BadParameter("--stripe-by goes with --stripes")
    options: StreamOptions = {
        "bucket": bucket, "partitions": partitions, "partition_by": partition_by,
        "retention": _kept(retain_age, retain_size, retain_acked),
        "archive": archive, "archive_retention": _kept(archive_age, archive_size),
        "bound": None if bound is None else Bound(size_bytes(bound), when_full),  # type: ignore[arg-type]
        "persist": persist,  # type: ignore[typeddict-item]
        "memory_bytes": MEMORY_BYTES if memory is None else size_bytes(memory),
    }  # fmt: skip
    if stripes is not None:
        striped = session.store.create_striped(
            name, schema, stripes=stripes, stripe_by=stripe_by, exist_ok=exist_ok, **options
        )
        names = striped.dealing.names
        session.say(
            f"created {name} ({striped.definition.columns}) as {', '.join(names)} in {session.store.root}",
            name=name, columns=striped.definition.columns, folder=str(session.store.root), stripes=list(names),
        )  # fmt: skip
        return
    stream = session.store.create(name, schema, exist_ok=exist_ok, **options)
    session.say(
        f"created {name} ({stream.definition.columns}) in {stream.folder}",
        name=name, columns=stream.definition.columns, folder=str(stream.folder), id=stream.definition.id,
    )  # fmt: skip


def _kept(age: str | None, size: str | None, acknowledged: bool = False) -> Retention:
    return Retention(
        None if age is None else duration_us(age), None if size is None else size_bytes(size), acknowledged
    )
