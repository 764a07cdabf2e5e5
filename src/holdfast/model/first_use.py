"""Names of a package that are imported when they are first asked for: who needs none of them does not pay for them.

A function may have the name of the module that it comes from (`flow`, `functor`). Whoever imports such a module must
not hide the function, which Python would do.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any


def import_on_first_use(package: str, homes: Mapping[str, str]) -> None:
    """Let `package` have these names, each from its module."""

    class Package(ModuleType):
        def __setattr__(self, name: str, value: Any) -> None:
            if not (name in homes and isinstance(value, ModuleType)):
                super().__setattr__(name, value)

        def __getattr__(self, name: str) -> Any:
            if name not in homes:
                raise AttributeError(f"module {package!r} has no attribute {name!r}")
            found = getattr(importlib.import_module(homes[name]), name)
            setattr(self, name, found)
            return found

        def __reduce__(self) -> tuple[Any, ...]:
            """By name, as other modules: a user's operator that goes to Spark's workers may refer to it."""
            return importlib.import_module, (package,)

    sys.modules[package].__class__ = Package
