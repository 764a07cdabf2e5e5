"""What every bench prints: a table for people, and one line of JSON last, for programs."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable

from rich.console import Console
from rich.table import Table

_plain = Console()
#: A file has no width of its own: tables are not to be cut to that of an imagined terminal.
console = _plain if _plain.is_terminal else Console(width=160)


def table(title: str, columns: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    shown = Table(title=title)
    for i, column in enumerate(columns):
        shown.add_column(column, justify="left" if i == 0 else "right")
    for row in rows:
        shown.add_row(
            *(f"{v:,.2f}" if isinstance(v, float) else f"{v:,}" if isinstance(v, int) else str(v) for v in row)
        )
    console.print(shown)


def finish(name: str, **figures: object) -> None:
    """The last line of a bench."""
    machine = {"cores": len(os.sched_getaffinity(0)), "python": platform.python_version()}
    print(json.dumps({"bench": name, **figures, "machine": machine}), flush=True)
