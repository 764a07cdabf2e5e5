"""Finds the application that a deployment names: `netmon.py`, `netmon.py:app`, `package.module` or with `:app`.

Rules:
1. A file is run afresh, never from cached bytecode, and not left among the imported modules. Spark then ships the
   functions in it by value, so that its workers need not find the file. What the file itself imports from its folder
   they do find: the folder is put on the path of this process and of those it starts.
2. Without a name the module must hold exactly one App.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any, TypeGuard

from holdfast.diagram import Application
from holdfast.model.errors import HoldfastError, UsageError, in_one_line

if TYPE_CHECKING:
    from holdfast.app import App


def load_app(target: str, folder: Path) -> App:
    """The App that `target` means, seen from `folder`."""
    where, name = target, ""
    if ":" in target:
        where, _, name = target.rpartition(":")
    if where.endswith(".py") or "/" in where:
        module = _run_file(folder / where, target)
    else:
        _reachable(folder)
        try:
            module = importlib.import_module(where)
        except HoldfastError:
            raise
        except Exception as error:
            raise UsageError(f"the application {target!r} cannot be imported: {in_one_line(error)}") from error
    return pick_app(module, target, name)


class _Afresh(SourceFileLoader):
    """Compiles the source each time. Cached bytecode is told by second and length, so that `max_delay="20s"`, changed
    to "10s" and back within a second, would still be "10s"."""

    def get_code(self, fullname: str) -> CodeType | None:
        code: CodeType = self.source_to_code(self.get_data(self.path), self.path)
        return code


def _run_file(path: Path, target: str) -> ModuleType:
    if not path.is_file():
        raise UsageError(f"the application {target!r} must be a file; there is none at {path}; check app: in the file")
    _reachable(path.parent)
    name = f"holdfast_app_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path, loader=_Afresh(name, str(path)))
    if spec is None or spec.loader is None:
        raise UsageError(f"the application {target!r} must be a Python file; got {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # Dataclasses look their module up while it runs.
    try:
        spec.loader.exec_module(module)
    except HoldfastError:
        raise
    except Exception as error:
        raise UsageError(f"the application {path} cannot be run: {in_one_line(error)}") from error
    finally:
        sys.modules.pop(name, None)
    return module


def _reachable(folder: Path) -> None:
    text = str(folder.resolve())
    if text not in sys.path:
        sys.path.insert(0, text)
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if text not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([text, *paths])


def pick_app(module: ModuleType, target: str, name: str) -> App:
    """The App of that name in a module, or the only one."""
    if name:
        app = getattr(module, name, None)
        if not _is_app(app):
            raise UsageError(f"{target!r} must name an App; got {type(app).__name__}; check the part behind the colon")
        return app
    found = {id(value): (key, value) for key, value in vars(module).items() if _is_app(value)}
    if len(found) != 1:
        names = ", ".join(key for key, _ in found.values()) or "none"
        raise UsageError(
            f"the application {target!r} must hold one App; got {names}; make one with holdfast.App(…), or name which "
            f"with '{target}:NAME'"
        )
    ((_, app),) = found.values()
    return app


def _is_app(value: Any) -> TypeGuard[App]:
    """Whether it is what a user has made with holdfast.App. Not by that class: it is the one that starts hosts."""
    return isinstance(value, Application)
