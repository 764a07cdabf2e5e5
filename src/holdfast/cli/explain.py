"""`holdfast explain`: what protects each operator of a program, and what that promises."""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer

from holdfast.checkpoint.derive import Protection
from holdfast.checkpoint.protect import Protected
from holdfast.host.app_file import said
from holdfast.model.errors import HoldfastError, UsageError


def command(
    program: Annotated[str, typer.Argument(help="A Python file or module that defines operators. It is run.")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per line.")] = False,
) -> None:
    """Show the checkpoint policy of each operator, what it saves, and its guarantee.

    \b
    holdfast explain pipeline.py
    holdfast explain my.package.pipeline --json

    Operators are found among the names that the program defines, also in lists, tuples and dictionaries.
    """
    found = protections(_load(program))
    if not found:
        raise UsageError(f"{program} defines no operators; assign them to names of the module, such as model = udop(…)")
    for protection in found:
        print(json.dumps(_facts(protection)) if as_json else _text(protection))


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


def _load(program: str) -> ModuleType:
    """The program, run. What it raises itself is told as a sentence that names the line."""
    try:
        return _run(program)
    except HoldfastError:
        raise
    except Exception as error:
        raise UsageError(f"{program} cannot be run: {said(error)}; it must run by itself to be explained") from error


def _run(program: str) -> ModuleType:
    path = Path(program)
    if path.suffix != ".py":
        if path.exists() or "/" in program:
            raise UsageError(f"a program must be a file that ends in .py or a module on the path; got {program}")
        try:
            return importlib.import_module(program)
        except ModuleNotFoundError as error:
            if f"{program}.".startswith(f"{error.name}."):
                raise UsageError(
                    f"no module {error.name!r}; name a file that ends in .py or a module on the path"
                ) from None
            raise
    if not path.is_file():
        raise UsageError(f"no file {path}; name a Python file or a module")
    spec = importlib.util.spec_from_file_location("__holdfast_program__", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent.absolute()))  # As Python itself does for a program.
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.pop(0)
    return module


def _facts(p: Protection) -> dict[str, Any]:
    return {"operator": p.operator, "kind": p.kind, "state": p.state.value, "policy": p.policy, "saves": p.saves,
            "guarantee": p.guarantee.value, "store": p.store}  # fmt: skip


def _text(p: Protection) -> str:
    where = f" into {p.store}" if p.store else ""
    return (
        f"{p.operator} ({p.kind}, {p.state.value}): {p.policy} saves {p.saves}{where}; guarantee: {p.guarantee.value}"
    )
