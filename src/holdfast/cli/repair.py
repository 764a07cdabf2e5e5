"""holdfast repair"""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli.session import Json, Name, Root, Session
from holdfast.cli.units import counted
from holdfast.clock import now_us
from holdfast.model.time import instant_text
from holdfast.stream.losses import Loss


def command(
    name: Name,
    apply: Annotated[bool, typer.Option("--apply", help="Do it; otherwise only say what would be done.")] = False,
    drop_damaged: Annotated[
        bool, typer.Option("--drop-damaged", help="Go on without tuples that cannot be read, and name them.")
    ] = False,
    root: Root = None,
    json: Json = False,
) -> None:
    """Put a damaged stream in order. Shows the plan first; --apply carries it out.

    Indexes, manifests, torn ends and leftovers are mended without loss. What cannot be read stays until --drop-damaged;
    then the old files are kept in the stream's folder `damaged`. Exit code 1 if something is still wrong.

    \b
    holdfast repair monitor1
    holdfast repair monitor1 --apply
    holdfast repair monitor1 --apply --drop-damaged
    """
    from holdfast.stream.checking.repair import repair

    session = Session(root, json)
    folder = session.folder(name)
    with session.progress(f"repair {name}", bytes=True) as show:
        report = repair(folder, now_us=now_us(), apply=apply, drop_damaged=drop_damaged, progress=show)
    verb = "done" if apply else "would"
    for action in report.actions:
        session.say(f"{verb}: {action.file}: {action.what}", stream=name, action=action.what, file=str(action.file),
                    applied=apply)  # fmt: skip
    for loss in report.losses:
        session.say(f"lost: {_loss_text(loss)}", stream=name, lost=loss.tuples, id_first=loss.id_first,
                    id_last=loss.id_next - 1, stime_min=_when(loss.stime_min_us), stime_max=_when(loss.stime_max_us),
                    segment=loss.segment, applied=apply)  # fmt: skip
    _conclude(session, name, bool(report.actions), [f.text for f in report.remaining], apply, drop_damaged)


def _conclude(
    session: Session, name: str, planned: bool, remaining: list[str], apply: bool, drop_damaged: bool
) -> None:
    if not apply and planned:
        session.say(f"{name}: nothing was changed; add --apply to do this", stream=name, problems=len(remaining))
        raise typer.Exit(1 if remaining else 0)
    for text in remaining:
        session.say(f"still wrong: {text}", stream=name, remaining=text)
    advice = "" if drop_damaged else "; restore from a replica, or give up what is lost with --drop-damaged"
    verdict = f"still wrong in {counted(len(remaining), 'place')}{advice}" if remaining else "in order"
    session.say(f"{name}: {verdict}", stream=name, problems=len(remaining))
    if remaining:
        raise typer.Exit(1)


def _loss_text(loss: Loss) -> str:
    if loss.tuples == 0:
        return f"no tuple, but commits {loss.seq_first} to {loss.seq_last}"
    span = "of unknown time"
    if loss.stime_min_us is not None and loss.stime_max_us is not None:
        span = f"from {instant_text(loss.stime_min_us)} to {instant_text(loss.stime_max_us)}"
    return f"{counted(loss.tuples, 'tuple')}, ids {loss.id_first} to {loss.id_next - 1}, {span}"


def _when(us: int | None) -> str | None:
    return None if us is None else instant_text(us)
