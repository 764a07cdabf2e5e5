"""holdfast mend-boundary"""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli.session import Json, Name, Root, Session
from holdfast.cli.units import counted
from holdfast.clock import now_us
from holdfast.model.time import duration_shown, instant_text, instant_us


def command(
    name: Name,
    to: Annotated[str, typer.Option(help="now, or a time: where the boundary shall lie.")] = "now",
    apply: Annotated[bool, typer.Option("--apply", help="Do it; otherwise only say what would be done.")] = False,
    root: Root = None,
    json: Json = False,
) -> None:
    """Take back a boundary that lies ahead because a wrong time was written. Shows the plan first; --apply does it.

    Tuples before the new boundary stay as they are. Those beyond it keep their ids and values and get the new boundary
    as their stime, so that readers see them at last. Readers that had come further are refused and must start anew.
    The old files are kept in the stream's folder `damaged`. Stop the producer first; look at the clock, too.

    \b
    holdfast mend-boundary monitor1
    holdfast mend-boundary monitor1 --apply
    holdfast mend-boundary monitor1 --to 2026-03-01T12:00 --apply
    """
    from holdfast.stream.checking.boundary_mend import mend_boundary

    session = Session(root, json)
    stream = session.store.open(name)
    now = now_us()
    found = mend_boundary(
        stream.folder, stream.definition, now if to == "now" else instant_us(to), now_us=now, apply=apply
    )
    verb = "done" if apply else "would"
    span = ""
    if found.first_us is not None and found.last_us is not None:
        span = f" (they are at {instant_text(found.first_us)} to {instant_text(found.last_us)})"
    session.say(f"{verb}: take the boundary back from {instant_text(found.was_us)} to {instant_text(found.to_us)}, by "
                f"{duration_shown(found.was_us - found.to_us)}", stream=name, was=instant_text(found.was_us),
                to=instant_text(found.to_us), applied=apply)  # fmt: skip
    session.say(f"{verb}: give {counted(found.moved, 'tuple')} the new boundary as stime{span}", stream=name,
                moved=found.moved, applied=apply)  # fmt: skip
    for subscriber in found.subscribers:
        session.say(f"{verb}: take the acknowledgement of {subscriber} back to the new boundary; it must start anew",
                    stream=name, subscriber=subscriber, applied=apply)  # fmt: skip
    session.say(f"{name}: readers that had read beyond {instant_text(found.to_us)} {'are' if apply else 'would be'} "
                f"refused and must start anew; those before it go on", stream=name, applied=apply)  # fmt: skip
    if not apply:
        session.say(f"{name}: nothing was changed; add --apply to do this", stream=name, applied=apply)
