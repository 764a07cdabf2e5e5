"""holdfast host"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.deployed import File, LogFormat, choose_log_format

if TYPE_CHECKING:
    from holdfast.engine import Engine


def command(
    file: File,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Which of its hosts to be.")],
    log_format: LogFormat = None,
) -> None:
    """Be one host of a deployment, until Ctrl-C. `holdfast up` starts all of them in the background.

    \b
    holdfast host netmon.yaml a
    holdfast host netmon.yaml a --log-format json
    """
    choose_log_format(log_format)
    be_host(file, name)


def be_host(file: Path, name: str, engine: Engine | None = None) -> None:
    """The same for programs; another engine than Spark may run the nodes."""
    from holdfast.cli.running import claimed
    from holdfast.host.deployment import load_deployment

    deployment = load_deployment(file)
    spec = deployment.host(name)
    deployment.keyring()  # A host without its token would run and refuse everybody.
    with claimed(spec):
        from holdfast.host.deployed import run_host
        from holdfast.load.host_extension import check_all_at_home, load_manager

        extend = None
        if spec.load is None:
            check_all_at_home(deployment, spec)
        else:
            extend = load_manager(deployment, spec)
        run_host(deployment, name, extend, engine)
