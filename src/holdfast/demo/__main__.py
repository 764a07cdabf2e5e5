"""One of three inputs of a Spark query is cut off for a while: results go on, and are right in the end.

Everything happens in a temporary folder and ends by itself.
"""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from holdfast.demo.failure import demonstrate


def run(*, cut_s: float, max_delay: str, keep: Path | None, report: Path, live: bool | None = None) -> bool:
    """Whether every claim held. The live page is offered where somebody sits at a terminal, unless `live` says so."""
    console = Console()
    live = console.is_terminal if live is None else live
    root = keep or Path(tempfile.mkdtemp(prefix="holdfast-demo-"))
    root.mkdir(parents=True, exist_ok=True)
    try:
        with _errors_to(root / "spark.log"):
            return demonstrate(console, root, max_delay, cut_s, report.absolute(), live)
    finally:
        if keep is None:
            shutil.rmtree(root, ignore_errors=True)


@contextmanager
def _errors_to(log: Path) -> Iterator[None]:
    """Python workers that Spark ends while they talk say so at length; that belongs in a file, not into the picture."""
    logging.basicConfig(level=logging.WARNING)
    kept = os.dup(2)
    try:
        with log.open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    except BaseException:
        os.dup2(kept, 2)
        sys.stderr.write(log.read_text(errors="replace")[-4000:])
        raise
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m holdfast.demo", description=__doc__)
    parser.add_argument("--seconds", type=float, default=20, help="how long the input is cut off (default 20)")
    parser.add_argument("--max-delay", default="4s", help="X: what a failure may add to latency (default 4s)")
    parser.add_argument("--keep", type=Path, help="keep the streams in this folder instead of a temporary one")
    parser.add_argument("--report", type=Path, default=Path("holdfast-demo.html"), help="where to write the page")
    parser.add_argument("--console", action=argparse.BooleanOptionalAction, default=None,
                        help="a live page in the browser (default: at a terminal)")  # fmt: skip
    a = parser.parse_args()
    return 0 if run(cut_s=a.seconds, max_delay=a.max_delay, keep=a.keep, report=a.report, live=a.console) else 1


if __name__ == "__main__":
    raise SystemExit(main())
