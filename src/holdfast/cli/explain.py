"""`holdfast explain`: what an application promises, what a failure would do to it, and what protects each operator."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.session import Session
from holdfast.model.errors import UsageError

if TYPE_CHECKING:
    from holdfast.app import App
    from holdfast.cli.program import Program
    from holdfast.explain.failure import Effect
    from holdfast.explain.promise import NodePromise
    from holdfast.host.catalog import Catalog


def command(
    program: Annotated[
        str, typer.Argument(help="A Python file or module that defines operators or nodes, or a deployment (.yaml).")
    ],
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write it as a page instead, with the diagram.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per line.")] = False,
) -> None:
    """Show what each node promises, what each failure would do to its readers, and what protects each operator.

    \b
    holdfast explain netmon.py                  all in one process
    holdfast explain netmon.yaml                as deployed: replicas, hosts, links
    holdfast explain netmon.yaml --html netmon.html
    holdfast explain my.package.pipeline --json

    A block per node says how long a failure may last unseen (X), when tentative results begin, whom each replica reads,
    what a chain adds, where state is saved and what it takes to have it back. The table behind it has a row for each
    host, link and source that may fail: its readers see nothing, switch to another replica, get tentative results, or
    hear nothing. It is computed by the rules that the nodes follow when they run, for one failure that lasts.

    Operators and applications are found among the names that the program defines, also in lists, tuples and
    dictionaries. Nothing is started and nothing written but the page that is asked for: the program is read up to where
    it would, and functions of nodes are called over frames that only note what is asked of them.
    """
    from holdfast.cli.program import read_program

    read = read_program(program)
    catalogs = [(app, catalog) for app, catalog in read.catalogs if catalog.diagram.nodes]
    if not read.protections and not catalogs:
        where = f"; it was read up to where it would {read.ended}" if read.ended else ""
        raise UsageError(
            f"{program} defines no operators and no nodes{where}; assign them to names of the module, such as model = "
            f"udop(…) or app = App(…)"
        )
    if html is not None:
        _page(read, catalogs, html)
        return
    for app, catalog in catalogs:
        _explain(read, app, catalog, as_json)
    _operators(read, as_json)


def _page(read: Program, catalogs: list[tuple[App, Catalog]], file: Path) -> None:
    from holdfast.explain.page import explained_html

    if len(catalogs) != 1:
        raise UsageError(f"a page shows one application; {read.text} defines {len(catalogs)}; name a deployment of one")
    ((app, catalog),) = catalogs
    file.write_text(explained_html(catalog, *_looked_at(read, app, catalog)), encoding="utf-8")
    print(f"{file}: {catalog.diagram.app} explained")


def _looked_at(read: Program, app: App, catalog: Catalog) -> tuple[tuple[NodePromise, ...], list[Effect]]:
    """What each node promises, and what each failure does."""
    from holdfast.cli.program import known_buckets, operators_of, sink_places
    from holdfast.explain.failure import effect, failures
    from holdfast.explain.promise import promises

    promised = promises(catalog, known_buckets(app, catalog), operators_of(read.text, catalog.diagram.nodes))
    sinks = sink_places(app, catalog)
    return promised, [effect(catalog, failure, sinks) for failure in failures(catalog, sinks)]


def _explain(read: Program, app: App, catalog: Catalog, as_json: bool) -> None:
    from holdfast.explain import facts, text

    promised, effects = _looked_at(read, app, catalog)
    if as_json:
        for promise in promised:
            print(json.dumps(facts.node_facts(promise)))
        for one in effects:
            print(json.dumps(facts.failure_facts(one)))
        return
    print(catalog.diagram.to_text(), end="\n\n")
    for promise in promised:
        print(text.node_block(promise), end="\n\n")
    Session(None, False).table(("if this fails", "readers of", "see"), text.failure_rows(effects))
    print(f"\n{text.failure_summary(effects)}")


def _operators(read: Program, as_json: bool) -> None:
    from holdfast.explain import facts, text

    for protection in read.protections:
        print(json.dumps(facts.operator_facts(protection)) if as_json else text.operator_line(protection))
