"""What the verbs of deployments share on the command line.

Those verbs import what they need when they run: deployments and their protocol would make every other verb start a
quarter slower.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

File = Annotated[Path, typer.Argument(metavar="FILE", help="The deployment, a YAML file.")]
Hosts = Annotated[
    list[str] | None, typer.Option("--host", metavar="NAME", help="Only this host; may be given several times.")
]
LogFormat = Annotated[
    str | None,
    typer.Option(
        "--log-format", metavar="text|json", envvar="HOLDFAST_LOG_FORMAT", help="How hosts write their log lines."
    ),
]


def choose_log_format(format: str | None) -> None:
    """For this process and the hosts that it starts; a word that is none is refused before anything starts."""
    if format is not None:
        from holdfast.host.log_lines import VARIABLE, check_format

        os.environ[VARIABLE] = check_format(format)
