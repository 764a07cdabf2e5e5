"""What the verbs of deployments share on the command line.

Those verbs import what they need when they run: deployments and their protocol would make every other verb start a
quarter slower.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

File = Annotated[Path, typer.Argument(metavar="FILE", help="The deployment, a YAML file.")]
Hosts = Annotated[
    list[str] | None, typer.Option("--host", metavar="NAME", help="Only this host; may be given several times.")
]
