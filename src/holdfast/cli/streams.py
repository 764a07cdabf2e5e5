"""holdfast streams"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from holdfast.cli.overview import overview, striped_overview
from holdfast.cli.session import Json, Root, Session
from holdfast.cli.units import age_text, size_text
from holdfast.clock import now_us, pause

_COLUMNS = ("name", "columns", "tuples", "size", "from", "to", "boundary", "writer", "branch", "retention")
_EVERY_US = 1_000_000


def command(
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Again every second, until Ctrl-C.")] = False,
    root: Root = None,
    json: Json = False,
) -> None:
    """Show all streams.

    \b
    holdfast streams
    holdfast streams --watch
    holdfast streams --json | jq .tuples
    """
    session = Session(root, json)
    while True:
        facts = [overview(session.store, name, now_us()) for name in session.store.names()]
        facts += [striped_overview(session.store, name, now_us()) for name in session.store.striped_names()]
        facts.sort(key=lambda fact: str(fact["name"]))
        if watch and not json and session.out.is_terminal:
            session.out.clear()
        _show(session, facts)
        if not watch:
            return
        pause(_EVERY_US)


def _show(session: Session, facts: list[dict[str, Any]]) -> None:
    if session.json:
        for fact in facts:
            session.emit(**fact)
    elif not facts:
        print(f"no streams below {session.store.root}; make one with `holdfast create`")
    else:
        session.table(_COLUMNS, [_row(fact) for fact in facts])


def _row(f: dict[str, Any]) -> list[str]:
    if "error" in f:
        return [f["name"], f"damaged: {f['error']}", *[""] * 8]
    if "stripes" in f:
        sums = [f["name"], f["columns"], str(f["tuples"]), size_text(f["bytes"])]
        return [*sums, "-", "-", _boundary(f), "-", "-", f["dealt"]]
    return [
        f["name"], f["columns"], str(f["tuples"]), size_text(f["bytes"]), _short(f["first_stime"]),
        _short(f["last_stime"]), _boundary(f),
        f["writer"] or "-", (f["branch"] and _short(f["branch"])) or "-", f["retained"],
    ]  # fmt: skip


def _boundary(fact: dict[str, Any]) -> str:
    age = fact["boundary_age_us"]
    return "ended" if fact["closed"] else "-" if age is None else f"{age_text(age)} ago"


def _short(instant: str | None) -> str:
    """To the second: the rest is noise at a glance."""
    return instant.partition(".")[0] if instant else "-"
