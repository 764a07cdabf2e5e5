"""holdfast plan"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from holdfast.cli.session import Json, Session
from holdfast.model.errors import UsageError

if TYPE_CHECKING:
    from holdfast.app import App
    from holdfast.host.catalog import Catalog

Loads = dict[str, float]


class _Usage(msgspec.Struct):
    cpu: float


class _Task(msgspec.Struct):
    definition: str
    at: str
    usage: _Usage


class _Measured(msgspec.Struct):
    """What counts of a line of `holdfast load --json`."""

    participant: str
    tasks: list[_Task]


def command(
    program: Annotated[str, typer.Argument(help="A deployment (.yaml), or a program for a single process.")],
    load: Annotated[
        list[str] | None, typer.Option(metavar="NODE=CORES", help="What one replica of a node takes; several times.")
    ] = None,
    loads: Annotated[
        Path | None, typer.Option(help="Measured loads: what `holdfast load FILE --json` printed; - for stdin.")
    ] = None,
    cores: Annotated[
        float | None, typer.Option(help="What each host has, where no contract file says it.", min=0.01)
    ] = None,
    json: Json = False,
) -> None:
    """Show which host carries what, how much more in its worst failure, and what that costs under its contracts.

    \b
    holdfast plan netmon.yaml
    holdfast plan netmon.yaml --load active_sources=0.4 --cores 2
    holdfast load anna.yaml --json | holdfast plan anna.yaml --loads -

    Every replica is a query, all the time; one that gives tentative results runs a second one, its fork, for as long as
    a failure lasts. "at worst" names the one failure, of a host, a link or a source, that makes a host run most of
    them. An input that is read from elsewhere is on disk once more, as a mirror.

    With loads, a host has them in quiet times and in its worst failure; keep room for the latter, or tentative results
    and corrections come late. A host with contracts also says what its load costs it, which nodes it would move to
    whom and what it would pay, and what it would take on for others. Nothing is started and nothing written. How many
    contracts to make is for `holdfast plan-contracts`.
    """
    from holdfast.cli.program import read_program

    given = _measured(loads) if loads is not None else {}
    read = read_program(program)
    catalogs = list(read.catalogs)
    if not catalogs:
        raise UsageError(f"{program} defines no application; assign one to a name, such as app = App(…)")
    session = Session(None, json)
    for app, catalog in catalogs:
        _plan(session, app, catalog, given | _given(load or (), catalog), cores)


def _plan(session: Session, app: App, catalog: Catalog, loads: Loads, cores: float | None) -> None:
    from holdfast.cli.program import known_buckets, sink_places
    from holdfast.explain.cost import host_costs
    from holdfast.explain.facts import host_facts
    from holdfast.explain.promise import buckets_of
    from holdfast.explain.text import host_block
    from holdfast.load.contract_file import load_terms

    deployed = () if catalog.deployment is None else catalog.deployment.hosts
    terms = {host.name: load_terms(host.load) for host in deployed if host.load is not None}
    capacities = {} if cores is None else dict.fromkeys(catalog.hosts, cores)
    capacities |= {host: said.capacity.cpu for host, said in terms.items()}
    costs = host_costs(
        catalog,
        buckets_of(catalog, known_buckets(app, catalog)),
        loads,
        sink_places(app, catalog),
        capacities,
        {host: said.plan for host, said in terms.items()},
    )
    for cost in costs:
        session.say(host_block(cost) + "\n", **host_facts(cost))
    unknown = [node.name for node in catalog.diagram.nodes if node.name not in loads]
    if unknown and not session.json:
        print(f"No load is known of {', '.join(unknown)}: measure it (--loads), or say --load {unknown[0]}=CORES.")


def _given(texts: Sequence[str], catalog: Catalog) -> Loads:
    """What --load says."""
    loads: Loads = {}
    for text in texts:
        node, _, number = text.partition("=")
        catalog.diagram.node(node)
        try:
            value = float(number)
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and value >= 0):
            raise UsageError(f"--load must be a node and the cores of one replica, such as {node}=0.4; got {text!r}")
        loads[node] = value
    return loads


def _measured(path: Path) -> Loads:
    """The most that any replica of a node was measured to take. One that runs at a partner's was not measured here."""
    name = "the input" if str(path) == "-" else str(path)
    try:
        lines = (sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()).splitlines()
        said = [msgspec.json.decode(line, type=_Measured) for line in lines if line.strip()]
    except OSError as error:
        raise UsageError(f"the loads {path} cannot be read: {error.strerror}; check the path") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UsageError(f"{name} must be what `holdfast load FILE --json` prints; {error}") from None
    loads: Loads = {}
    for task in (task for one in said for task in one.tasks if task.at == one.participant):
        loads[task.definition] = max(task.usage.cpu, loads.get(task.definition, 0.0))
    return loads
