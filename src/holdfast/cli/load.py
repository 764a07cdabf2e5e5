"""holdfast load"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast.cli.deployed import File
from holdfast.cli.session import Json, Session
from holdfast.clock import pause

_EVERY_US = 1_000_000
_COLUMNS = ("participant", "task", "runs at", "rows/s", "cpu", "MB/s", "state GiB", "marginal cost", "lease", "price")


def command(
    file: File,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Again every second, until Ctrl-C.")] = False,
    picture: Annotated[
        Path | None, typer.Option(help="Draw loads and movements over time into this file, as HTML.")
    ] = None,
    json: Json = False,
) -> None:
    """Show how loaded the hosts of a deployment are, and what each node costs where it runs.

    Marginal cost is what a node adds to the cost of its host's load; a host moves a node to a partner when that is more
    than the contract's price for it. "runs at" names the partner of a node that has moved.

    \b
    holdfast load anna.yaml
    holdfast load anna.yaml --watch
    holdfast load anna.yaml --picture load.html
    """
    from holdfast.cli.sharing import ask, sharing_hosts, somebody
    from holdfast.host.deployment import load_deployment
    from holdfast.model.errors import PeerError

    session, deployment = Session(None, json), load_deployment(file)
    asked = sharing_hosts(deployment)
    if picture is not None:
        _draw(session, somebody(ask(asked, "/v1/load/history")), picture)
        return
    while True:
        answers = ask(asked, "/v1/load")
        if not watch:
            somebody(answers)
        if watch and not json and session.out.is_terminal:
            session.out.clear()
        rows: list[list[str]] = []
        for answer in answers:
            if isinstance(answer, PeerError):
                session.note(str(answer))
            elif json:
                session.emit(**answer)
            else:
                rows += _rows(answer)
        if not json:
            session.table(_COLUMNS, rows)
        if not watch:
            return
        pause(_EVERY_US)


def _rows(said: dict[str, Any]) -> list[list[str]]:
    total, capacity = said["load"], said["capacity"]
    rows = [[said["participant"], "all", "", "", f"{total['cpu']:.3f} of {capacity['cpu']:g}",
             f"{total['bandwidth']:.3f}", f"{total['memory']:.3f}", f"cost {said['cost']:.3f}", "", ""]]  # fmt: skip
    for task in said["tasks"]:
        use, here = task["usage"], task["at"] == said["participant"]
        lease = "-" if task["lease"] is None else f"{task['lease']} {task['lease_state']}"
        lease = "ended" if task.get("ended") and task["lease"] is None else lease
        name = task["task"] if task["owner"] == said["participant"] else f"{task['definition']} of {task['owner']}"
        figures = [f"{task['rows_per_s']:.0f}", f"{use['cpu']:.3f}", f"{use['bandwidth']:.3f}", f"{use['memory']:.3f}",
                   f"{task['marginal']:.3f}"]  # fmt: skip
        price = "-" if task["price"] is None else f"{task['price']:.3g}"
        rows.append(["", name, task["at"], *(figures if here else ["-"] * len(figures)), lease, price])
    return rows


def _draw(session: Session, answers: Sequence[Any], path: Path) -> None:
    import msgspec

    from holdfast.load.history import Movement, Sample
    from holdfast.load.load_picture import write_load_picture
    from holdfast.model.errors import PeerError

    lines: list[Sample | Movement] = []
    for answer in answers:
        if isinstance(answer, PeerError):
            session.note(str(answer))
        else:
            lines += msgspec.convert(answer, list[Sample | Movement])
    write_load_picture(path, lines)
    session.say(f"{path}: {len(lines)} measurements and movements drawn", file=str(path), lines=len(lines))
