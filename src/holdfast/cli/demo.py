"""holdfast demo"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer


def command(
    seconds: Annotated[float, typer.Option(help="How long the input is cut off.", min=1)] = 20,
    max_delay: Annotated[str, typer.Option(help="X: what a failure may add to latency.")] = "4s",
    keep: Annotated[Path | None, typer.Option(help="Keep the streams in this folder.")] = None,
    report: Annotated[Path, typer.Option(help="Where to write the page.")] = Path("holdfast-demo.html"),
    console: Annotated[
        bool | None, typer.Option(help="A live page in the browser.", show_default="at a terminal")
    ] = None,
) -> None:
    """Watch a failure: three inputs, one of them cut off and healed, drawn as it happens, with a verdict.

    \b
    holdfast demo
    holdfast demo --seconds 60 --max-delay 2s
    holdfast demo --console
    """
    from holdfast.demo.__main__ import run

    if not run(cut_s=seconds, max_delay=max_delay, keep=keep, report=report, live=console):
        sys.exit(1)
