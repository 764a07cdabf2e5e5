"""`holdfast explain`: what protects each operator and node of a program, and what that promises."""

from __future__ import annotations

import importlib.util
import json
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer

from holdfast.app import App
from holdfast.checkpoint.derive import Protection
from holdfast.checkpoint.policy import Guarantee
from holdfast.checkpoint.protect import Protected
from holdfast.cli.looking import Looking
from holdfast.diagram import NodeSpec
from holdfast.host.app_file import said
from holdfast.model.errors import HoldfastError, UsageError
from holdfast.model.time import duration_text

#: Operators of Holdfast's own inside it say for themselves what protects them.
_NODE_SAVES = "Spark saves its state with every batch, in the checkpoint below its host's root"


def command(
    program: Annotated[str, typer.Argument(help="A Python file or module that defines operators or nodes.")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per line.")] = False,
) -> None:
    """Show the checkpoint policy of each operator and node, what it saves, and its guarantee.

    \b
    holdfast explain pipeline.py
    holdfast explain my.package.pipeline --json

    Operators and applications are found among the names that the program defines, also in lists, tuples and
    dictionaries. Nothing is started and nothing written: the program is read up to where it would.
    """
    module, ended = _load(program)
    operators, nodes = protections(module), nodes_of(module)
    if not operators and not nodes:
        where = f"; it was read up to where it would {ended}" if ended else ""
        raise UsageError(
            f"{program} defines no operators and no nodes{where}; assign them to names of the module, such as model = "
            f"udop(…) or app = App(…)"
        )
    for node in nodes:
        print(json.dumps(_node_facts(node)) if as_json else _node_text(node))
    for protection in operators:
        print(json.dumps(_facts(protection)) if as_json else _text(protection))


def nodes_of(module: ModuleType) -> list[NodeSpec]:
    """Those of all applications among a module's names, each once."""
    apps = {id(value): value for value in vars(module).values() if isinstance(value, App)}
    return [node for app in apps.values() for node in app.diagram().nodes]


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


def _load(program: str) -> tuple[ModuleType, str | None]:
    """What the program defines, and what it would have done then. An error of its own is told as a sentence that names
    the line."""
    path = Path(program)
    looking = Looking(program)
    spec: ModuleSpec | None
    if path.suffix != ".py":
        if path.exists() or "/" in program:
            raise UsageError(f"a program must be a file that ends in .py or a module on the path; got {program}")
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
        raise UsageError(f"{program} cannot be run: {said(error)}; it must run by itself to be explained") from error
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


def _node_facts(node: NodeSpec) -> dict[str, Any]:
    return {"node": node.name, "inputs": list(node.inputs), "output": node.output, "replicas": node.replicas,
            "max_delay": duration_text(node.max_delay_us), "saves": _NODE_SAVES,
            "guarantee": Guarantee.EXACT.value}  # fmt: skip


def _node_text(node: NodeSpec) -> str:
    return (
        f"{node.name} (node of {', '.join(node.inputs)}, writes {node.output}): {_NODE_SAVES}; guarantee: "
        f"{Guarantee.EXACT.value}; in a failure tentative results within {duration_text(node.max_delay_us)}; replicas: "
        f"{node.replicas}"
    )


def _facts(p: Protection) -> dict[str, Any]:
    return {"operator": p.operator, "kind": p.kind, "state": p.state.value, "policy": p.policy, "saves": p.saves,
            "guarantee": p.guarantee.value, "store": p.store}  # fmt: skip


def _text(p: Protection) -> str:
    where = f" into {p.store}" if p.store else ""
    return (
        f"{p.operator} ({p.kind}, {p.state.value}): {p.policy} saves {p.saves}{where}; guarantee: {p.guarantee.value}"
    )
