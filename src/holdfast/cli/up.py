"""holdfast up"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.deployed import File, Hosts, LogFormat, choose_log_format
from holdfast.cli.session import Json, Session
from holdfast.cli.units import age_text
from holdfast.model.time import duration_us

if TYPE_CHECKING:
    from holdfast.cli.hosts import HostStatus
    from holdfast.cli.launch import Launched


def command(
    file: File,
    host: Hosts = None,
    wait: Annotated[str, typer.Option("--wait", help="How long a host and its replicas may take to answer.")] = "2m",
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Do not wait for replicas, only for hosts.")] = False,
    log_format: LogFormat = None,
    json: Json = False,
) -> None:
    """Start the hosts of a deployment in the background: all of this machine, or the named ones; all or none.

    A host is up when its replicas serve their readers, or can do nothing but wait for inputs that are not there.

    Hosts that are up read the file again, if it was edited: replicas that are new there are rebuilt from their twins,
    those that are gone are stopped, and so are hosts that are gone; all others run on.

    \b
    holdfast up netmon.yaml
    holdfast up netmon.yaml --host a --host b
    """
    from holdfast.cli.launch import answers, check_startable, chosen_hosts, launch_all
    from holdfast.cli.reloading import Stuck, reload_all, running_hosts, stop_gone, wait_for
    from holdfast.host.catalog import Catalog, placed_sinks
    from holdfast.host.deployment import load_deployment
    from holdfast.host.sources import source_specs

    choose_log_format(log_format)
    session = Session(None, json)
    wait_us = duration_us(wait)
    deployment = load_deployment(file)
    specs, away = chosen_hosts(deployment, host)
    if away:
        session.note(f"not started here, because their addresses are of other machines: {', '.join(away)}")
    app = deployment.load_app()
    catalog = Catalog(app.diagram(), deployment)  # What does not fit is said here and not in some log.
    placed_sinks(app, catalog)
    source_specs(app, deployment)
    if deployment.make_token():
        session.note(f"made the token {deployment.token_file}; hosts on other machines need a copy")
    running = running_hosts(deployment)
    specs = [spec for spec in specs if spec.name not in running]
    for spec in specs:
        check_startable(spec)
    told = reload_all(deployment, catalog, running)
    for said in told:
        words = (("new", said.started), ("stopped", said.stopped), ("at its next start", said.later))
        parts = [f"{what} {', '.join(names)}" for what, names in words if names]
        text = f"{said.host}: is up, and has read the file again{': ' if parts else ''}{'; '.join(parts)}"
        session.say(text, host=said.host, started=said.started, stopped=said.stopped, later=said.later)
    for name, how in stop_gone(deployment, told, wait_us).items():
        session.say(f"{name}: {how}", host=name, how=how)

    stuck = Stuck([], [])

    def up(host: Launched, took_us: int, status: HostStatus) -> None:
        name, url, pid = host.spec.name, host.spec.url, host.process.pid
        lines = [f"{name}: up at {url} after {age_text(took_us)} (pid {pid}, log {host.log})"]
        lines += [f"  {r.replica}: {r.state}{f', because {r.why}' if r.why else ''}" for r in status.replicas]
        replicas = [{"replica": r.replica, "state": r.state, "why": r.why} for r in status.replicas]
        session.say("\n".join(lines), host=name, url=url, pid=pid, log=str(host.log), took_us=took_us,
                    replicas=replicas)  # fmt: skip
        if no_wait:
            return
        for r in status.replicas:
            if r.state == "FAILED" or not (answers(r) or r.waits_for == "inputs"):
                kind = stuck.failed if r.state == "FAILED" else stuck.waiting
                kind.append(f"replica {r.replica} does not run: {r.why or r.state}; see {host.log}")

    starting = [*(spec.name for spec in specs), *(replica for said in told for replica in said.started)]
    if starting:
        with _busy(session, f"starting {', '.join(starting)}") as progress:
            launch_all(deployment, specs, wait_us, up, settle=not no_wait, progress=progress)
            if not no_wait:
                more = wait_for(deployment, told, wait_us, progress)
                stuck = Stuck(stuck.failed + more.failed, stuck.waiting + more.waiting)
    stuck.check()


@contextlib.contextmanager
def _busy(session: Session, text: str) -> Iterator[Callable[[str], None]]:
    """A sign of life while nothing else can be said: a line that changes, or lines where nobody looks."""
    if session.json:
        yield lambda said: None
    elif sys.stderr.isatty():
        with session.err.status(text) as line:
            yield lambda said: line.update(said or text)
    else:
        session.note(text)
        yield lambda said: session.note(said) if said else None
