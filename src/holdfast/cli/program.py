"""A program or a deployment, read to be explained: run up to where it would do something, and no further."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from holdfast.app import App
from holdfast.checkpoint.derive import Protection
from holdfast.checkpoint.protect import Protected
from holdfast.cli.looking import Looking
from holdfast.diagram import NodeSpec
from holdfast.explain.failure import SinkPlace
from holdfast.explain.operators import Operators
from holdfast.host.app_file import pick_app
from holdfast.host.catalog import Catalog, placed_sinks
from holdfast.host.deployment import Deployment, load_deployment
from holdfast.model.errors import HoldfastError, UsageError, in_one_line
from holdfast.stream.store import StreamStore


@dataclass(frozen=True)
class Program:
    """What a program defines."""

    text: str
    """As the user has named it."""
    apps: tuple[App, ...]
    protections: tuple[Protection, ...]
    """Of operators among its names."""
    deployment: Deployment | None
    ended: str | None
    """What it would have done where it was stopped."""

    @property
    def catalogs(self) -> Iterator[tuple[App, Catalog]]:
        """Every application with where it runs."""
        for app in self.apps:
            yield app, Catalog(app.diagram(), self.deployment)


def read_program(text: str) -> Program:
    """A Python file, a module, or a deployment, whose application it is then."""
    if not text.endswith((".yaml", ".yml")):
        module, ended = _run(text, text)
        apps = {id(value): value for value in vars(module).values() if isinstance(value, App)}
        return Program(text, tuple(apps.values()), tuple(protections(module)), None, ended)
    deployment = load_deployment(text)
    where, _, name = deployment.app.rpartition(":") if ":" in deployment.app else (deployment.app, "", "")
    is_file = where.endswith(".py") or "/" in where
    if not is_file:
        sys.path.insert(0, str(deployment.file.parent))
    module, ended = _run(str(deployment.file.parent / where) if is_file else where, text)
    app = pick_app(module, deployment.app, name)
    return Program(text, (app,), tuple(protections(module)), deployment, ended)


def protections(module: ModuleType) -> list[Protection]:
    """Those of all operators among a module's names, in the order of definition, each once."""
    found: dict[int, Protection] = {}

    def look(value: Any) -> None:
        if isinstance(value, list | tuple):
            for item in value:
                look(item)
        elif isinstance(value, dict):
            look(list(value.values()))
        elif not isinstance(value, type) and isinstance(getattr(value, "protection", None), Protection):
            if isinstance(value, Protected):
                found[id(value.operator)] = value.protection  # It knows better than the operator by itself.
            else:
                found.setdefault(id(value), value.protection)

    for name, value in vars(module).items():
        if not name.startswith("__"):
            look(value)
    return list(found.values())


def known_buckets(app: App, catalog: Catalog) -> dict[str, int]:
    """Buckets of the sources: as they are described, or as they lie on a disk of this machine."""
    deployment = catalog.deployment
    described = {**app.sources, **({} if deployment is None else deployment.fed)}
    found = {stream: spec.bucket_us for stream, spec in described.items() if spec.bucket_us is not None}
    for stream in catalog.diagram.sources:
        homes = catalog.placement.homes[stream]
        for root in [app.root] if deployment is None else [deployment.host(home).root for home in homes]:
            store = StreamStore(root)
            if store.root.is_dir() and stream in store.names():
                found[stream] = store.open(stream).definition.bucket_us
    return found


def sink_places(app: App, catalog: Catalog) -> dict[str, SinkPlace]:
    """The sinks of the application and of its deployment, where they run."""
    return {
        name: SinkPlace(spec.stream, host, spec.sink.tentative)
        for name, (spec, host) in placed_sinks(app, catalog).items()
    }


def operators_of(program: str, nodes: tuple[NodeSpec, ...]) -> Mapping[str, Operators]:
    """The operators inside each node, found by calling its function over nothing."""
    from holdfast.spark.outline import outline

    found: dict[str, Operators] = {}
    for node in nodes:
        looking = Looking(program)
        made = None
        try:
            with looking:
                made = outline(node)
        except Exception as error:
            why = f"its function cannot be followed without Spark: {in_one_line(error)}"
            found[node.name] = Operators(unseen=why)
            continue
        if made is None:
            found[node.name] = Operators(unseen=f"its function would {looking.ended}")
        else:
            found[node.name] = Operators(made.methods, made.protections, None)
    return found


def _run(program: str, named: str) -> tuple[ModuleType, str | None]:
    """What the program defines, and what it would have done then. An error of its own is told as a sentence that names
    the line."""
    path = Path(program)
    looking = Looking(program)
    spec: ModuleSpec | None
    if path.suffix != ".py":
        if path.exists() or "/" in program:
            raise UsageError(
                f"a program must be a file that ends in .py, a module on the path, or a deployment that ends in .yaml; "
                f"got {program}"
            )
        spec = _found(program)
    else:
        if not path.is_file():
            raise UsageError(f"no file {path}; name a Python file or a module")
        spec = importlib.util.spec_from_file_location("__holdfast_program__", path)
        sys.path.insert(0, str(path.parent.absolute()))  # As Python itself does for a program.
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # Dataclasses look their module up while it runs.
    try:
        with looking:
            spec.loader.exec_module(module)
    except HoldfastError:
        raise
    except Exception as error:
        raise UsageError(
            f"{named} cannot be run: {in_one_line(error)}; it must run by itself to be explained"
        ) from error
    finally:
        sys.modules.pop(spec.name, None)
    return module, looking.ended


def _found(name: str) -> ModuleSpec:
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        spec, name = None, error.name
    if spec is None or spec.loader is None:
        raise UsageError(f"no module {name!r}; name a file that ends in .py or a module on the path")
    return spec
