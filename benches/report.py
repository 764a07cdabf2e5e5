"""What every bench prints: a table for people, and one line of JSON last, for programs.

With `BENCH_RESULTS` in the environment the same is written to a file of that folder, together with the detail from
which figures are drawn (`benches.evaluation`) and which would make the line too long.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from rich.console import Console
from rich.table import Table

#: Of the files in `benches/results`.
FORMAT = 1

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


def finish(name: str, detail: Mapping[str, object] | None = None, **figures: object) -> None:
    """The last line of a bench; `detail` goes into the file only."""
    print(json.dumps({"bench": name, **figures, "machine": machine()}), flush=True)
    if folder := os.environ.get("BENCH_RESULTS"):
        kept = {"format": FORMAT, "bench": name, "date": time.strftime("%Y-%m-%d"), "commit": _commit(),
                "command": command(), "machine": machine(), "figures": figures, "detail": detail or {}}  # fmt: skip
        Path(folder).mkdir(parents=True, exist_ok=True)
        (Path(folder) / f"{name}.json").write_text(json.dumps(kept, indent=1) + "\n")


def command() -> str:
    """As somebody would type it."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return " ".join(["python -m", spec.name if spec else Path(sys.argv[0]).name, *sys.argv[1:]])


def machine() -> dict[str, object]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {"cores": len(os.sched_getaffinity(0)), "memory_gib": round(memory / 2**30),
            "python": platform.python_version(),
            "system": f"{platform.system()} {platform.release().split('-')[0]}"}  # fmt: skip


def _commit() -> str:
    """The commit that was measured, with a plus if files were changed since."""
    asked = ["git", "describe", "--always", "--abbrev=7", "--exclude=*", "--dirty=+"]
    said = subprocess.run(asked, capture_output=True, text=True, cwd=Path(__file__).parent, check=False)
    return said.stdout.strip() or "unknown"
