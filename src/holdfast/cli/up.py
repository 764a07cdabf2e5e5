"""holdfast up"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.deployed import File, Hosts
from holdfast.cli.session import Json, Session
from holdfast.cli.units import age_text
from holdfast.model.time import duration_us

if TYPE_CHECKING:
    from holdfast.cli.launch import Launched


def command(
    file: File,
    host: Hosts = None,
    wait: Annotated[str, typer.Option(help="How long a host may take to answer.")] = "2m",
    json: Json = False,
) -> None:
    """Start the hosts of a deployment in the background: all of this machine, or the named ones; all or none.

    \b
    holdfast up netmon.yaml
    holdfast up netmon.yaml --host a --host b
    """
    from holdfast.cli.launch import check_startable, chosen_hosts, launch_all
    from holdfast.host.catalog import Catalog
    from holdfast.host.deployment import load_deployment

    session = Session(None, json)
    wait_us = duration_us(wait)
    deployment = load_deployment(file)
    specs, away = chosen_hosts(deployment, host)
    if away:
        session.note(f"not started here, because their addresses are of other machines: {', '.join(away)}")
    Catalog(deployment.load_app().diagram(), deployment)  # What does not fit is said here and not in some log.
    if deployment.make_token():
        session.note(f"made the token {deployment.token_file}; hosts on other machines need a copy")
    for spec in specs:
        check_startable(spec)

    def up(host: Launched, took_us: int) -> None:
        name, url, pid = host.spec.name, host.spec.url, host.process.pid
        session.say(
            f"{name}: up at {url} after {age_text(took_us)} (pid {pid}, log {host.log})",
            host=name, url=url, pid=pid, log=str(host.log), took_us=took_us,
        )  # fmt: skip

    with _busy(session, f"starting {', '.join(spec.name for spec in specs)}"):
        launch_all(deployment, specs, wait_us, up)


@contextlib.contextmanager
def _busy(session: Session, text: str) -> Iterator[None]:
    """A sign of life while nothing else can be said."""
    if session.json:
        yield
    elif sys.stderr.isatty():
        with session.err.status(text):
            yield
    else:
        session.note(text)
        yield
