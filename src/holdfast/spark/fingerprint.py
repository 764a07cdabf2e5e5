"""Fingerprints of Python functions: whether one still does what it did, told in another process and another year.

Rules:
1. Code counts by its instructions with the names and constants that they use: not by file, line, comments or docstring.
   So do the functions and classes of the user's own that it calls, by whatever way they are reached: globals, closures,
   defaults, attributes of a module of theirs, an import inside the function, behind a cache.
2. Values count where their text is the same in every process: None, numbers, text, bytes, dates, decimals, enums,
   patterns, arrays of numbers, and lists, tuples, sets, dictionaries and dataclasses of such. Of anything else (a
   model, a frame, a connection) only the type counts: an unchanged function that is refused does more harm than a
   changed model that is not noticed.
3. The user's own is what lies outside Python's and the installed packages' folders, and what belongs to the package
   that the node itself is from. Of everything else the name counts, so that an upgrade of pandas changes nothing.
4. A text that is an absolute path counts by its last part: another host has its files elsewhere. One whose first
   folder is not on this machine is no path of a file (`/api/v1/users`), and counts as it is.
5. Instructions are Python's own affair: those of another version are not compared (`PYTHON`).
"""

from __future__ import annotations

import array
import collections
import copyreg
import dataclasses
import datetime
import decimal
import dis
import enum
import fractions
import functools
import hashlib
import importlib
import importlib.util
import ipaddress
import operator
import os
import re
import site
import sys
import sysconfig
import types
import uuid
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any

import numpy as np
import pyarrow as pa

#: Instructions can be compared between interpreters that agree on this.
PYTHON = f"{sys.implementation.cache_tag}-{importlib.util.MAGIC_NUMBER[:2].hex()}"
#: How deep values and calls are followed: beyond that lies data, not a definition.
_DEPTH_MAX = 12
_PLAIN = (bool, int, float, complex, bytes, datetime.date, datetime.time, datetime.timedelta, datetime.tzinfo,
          decimal.Decimal, type(None), type(Ellipsis), range)  # fmt: skip
#: Values that say by themselves what they are made from, by the protocol of `copy`.
_MADE_FROM = (re.Pattern, fractions.Fraction, uuid.UUID, bytearray, array.array, collections.deque,
              types.SimpleNamespace, operator.itemgetter, operator.attrgetter, operator.methodcaller,
              ipaddress.IPv4Address, ipaddress.IPv6Address, ipaddress.IPv4Network, ipaddress.IPv6Network)  # fmt: skip
_PATH = re.compile(r"(?:file:)?(/[^\s/]+)(?:/[^\s/]+)*/?")
_DIGITS = 16
#: Modules of Holdfast's that a user's function may name and that notes of before know by another name: what they hold
#: is what it was. The package's name stands apart, so that who renames a module by its whole name leaves these alone.
_NAMED_BEFORE = {
    f"holdfast.operators.{now}": f"holdfast.operators.{before}"
    for now, before in {"join_kernel": "joined", "keyed_barrier": "paired", "state_parts": "parted"}.items()
}
#: What functools.cache and functools.lru_cache make of a function.
_CACHED = type(functools.cache(abs))


def fingerprint(value: Any, own: str = "", by_name: tuple[type, ...] = ()) -> str:
    """A short text that stays the same for as long as the function, class or object computes the same.

    `own` is the name of a module: what belongs to its package counts as the user's, wherever it is installed. Of
    classes that extend one of `by_name`, only the name counts.
    """
    digest = hashlib.sha256()
    for line in _Described(own.partition(".")[0], by_name).lines(value, 0):
        digest.update(line.encode() + b"\n")
    return digest.hexdigest()[:_DIGITS]


def plain_path(text: str) -> str:
    """Rule 4."""
    match = _PATH.fullmatch(text)
    return PurePath(text).name if match and os.path.isdir(match[1]) else text


class _Described:
    """One walk over everything that a function is made of. Whatever was met before is not described again."""

    def __init__(self, package: str, by_name: tuple[type, ...]) -> None:
        self._package, self._by_name = package, by_name
        self._met: dict[int, int] = {}
        self._kept: list[Any] = []  # So that no other object gets the id of one that was met.

    def lines(self, value: Any, depth: int) -> Iterator[str]:
        if isinstance(value, str):
            yield f"text {plain_path(value)!r}"
        elif isinstance(value, enum.Enum):
            yield f"enum {type(value).__qualname__}.{value.name}"
        elif isinstance(value, _PLAIN):
            yield f"{type(value).__name__} {value!r}"
        elif isinstance(value, types.ModuleType):
            yield f"module {_NAMED_BEFORE.get(value.__name__, value.__name__)}"
        elif depth > _DEPTH_MAX:
            yield f"a {type(value).__name__}"
        elif id(value) in self._met:
            yield f"number {self._met[id(value)]}"
        else:
            self._met[id(value)] = len(self._met)
            self._kept.append(value)
            yield from self._parts(value, depth + 1)

    def _parts(self, value: Any, depth: int) -> Iterator[str]:
        computes = getattr(type(value), "computes", None)
        if isinstance(value, types.CodeType):
            yield from self._code(value, depth)
        elif isinstance(value, types.FunctionType):
            yield from self._function(value, depth)
        elif isinstance(value, type):
            yield from self._class(value, depth)
        elif isinstance(value, types.MethodType):
            yield from self._all("method", (value.__func__, value.__self__), depth)
            if not self._is_own(type(value.__self__)):  # Spark's own, around an object of the user's.
                held = getattr(value.__self__, "__dict__", {})
                theirs = [
                    v for _, v in sorted(held.items()) if isinstance(v, types.FunctionType) or self._is_own(type(v))
                ]
                yield from self._all("held", theirs, depth)
        elif isinstance(value, functools.partial):
            yield from self._all("partial", (value.func, value.args, value.keywords), depth)
        elif isinstance(value, staticmethod | classmethod):
            yield from self._all(type(value).__name__, (value.__func__,), depth)
        elif isinstance(value, property):
            yield from self._all("property", (value.fget, value.fset), depth)
        elif isinstance(value, functools.cached_property):
            yield from self._all("cached_property", (value.func,), depth)
        elif isinstance(value, _CACHED):
            yield from self._all("cached", (value.__wrapped__,), depth)
        elif isinstance(value, list | tuple):
            yield from self._all(type(value).__name__, value, depth)
        elif isinstance(value, set | frozenset):
            yield f"set {sorted(self._apart(item, depth) for item in value)}"
        elif isinstance(value, Mapping):
            keyed = {self._apart(key, depth): item for key, item in value.items()}
            for key in sorted(keyed):
                yield f"key {key}"
                yield from self.lines(keyed[key], depth)
        elif isinstance(value, _MADE_FROM):
            reduce = copyreg.dispatch_table.get(type(value))
            made_from = reduce(value) if reduce is not None else value.__reduce_ex__(2)
            parts = [list(part) if isinstance(part, Iterator) else part for part in made_from[1:]]
            yield from self._all(type(value).__qualname__, parts, depth)
        elif isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject:
            held = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
            yield f"{type(value).__qualname__} {value.dtype} {value.shape} {held}"
        elif isinstance(value, pa.Schema | pa.Field | pa.DataType):
            yield f"schema {value}"
        elif isinstance(value, PurePath):
            yield f"path {value.name}"
        elif isinstance(computes, property):
            yield from self._all(type(value).__qualname__, (value.computes,), depth)
        elif dataclasses.is_dataclass(value):
            fields = {f.name: getattr(value, f.name, None) for f in dataclasses.fields(value)}
            yield from self._all(type(value).__qualname__, (type(value), fields), depth)
        elif self._is_own(type(value)):
            # Whatever else a program keeps at hand may hold counters and clocks.
            known = _attributes(value) if _is_definition(value) else {}
            yield from self._all("object", (type(value), known), depth)
        else:
            yield f"a {_whole_name(type(value))}"

    def _all(self, word: str, values: Any, depth: int) -> Iterator[str]:
        yield f"{word} of {len(values)}"
        for value in values:
            yield from self.lines(value, depth)

    def _apart(self, value: Any, depth: int) -> str:
        """A member of a set: the numbers of what was met before would depend on the order."""
        return "|".join(_Described(self._package, self._by_name).lines(value, depth))

    def _function(self, function: types.FunctionType, depth: int) -> Iterator[str]:
        if isinstance(dispatched := getattr(function, "registry", None), Mapping):  # functools.singledispatch
            yield from self.lines(dict(dispatched), depth)
        if not self._is_own(function):
            yield f"function {_whole_name(function)}"
            for cell in function.__closure__ or ():  # A decorator has the user's function there.
                if _is_definition(content := _content(cell)):
                    yield from self.lines(content, depth)
            return
        yield "function"
        yield from self._code(function.__code__, depth)
        yield from self.lines(function.__defaults__, depth)
        yield from self.lines(function.__kwdefaults__, depth)
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            yield f"closure {name}"
            yield from self.lines(_content(cell), depth)
        for name in sorted(_names(function.__code__)):
            if name in function.__globals__:
                yield f"global {name}"
                yield from self._global(function.__globals__[name], function, depth)
        for name in sorted(set(_imported(function))):
            yield f"import {name}"
            module = self._own_module(name)
            if module is not None:
                yield from self._global(module, function, depth)

    def _global(self, value: Any, user: types.FunctionType, depth: int) -> Iterator[str]:
        yield from self.lines(value, depth)
        if isinstance(value, types.ModuleType) and self._is_own_module(value) and depth <= _DEPTH_MAX:
            for name in sorted(_names(user.__code__) & set(vars(value))):
                yield f"of {value.__name__}: {name}"
                yield from self._global(vars(value)[name], user, depth + 1)

    def _own_module(self, name: str) -> types.ModuleType | None:
        """A module that a function imports when it runs, as a worker would; None if it is not the user's."""
        try:
            spec = importlib.util.find_spec(name)
            file = None if spec is None else spec.origin
            own = name.partition(".")[0] == self._package or (file is not None and _outside(file))
            return importlib.import_module(name) if own else None
        except Exception:  # It may be there in workers only, or fail in any way of its own.
            return None

    def _code(self, code: types.CodeType, depth: int) -> Iterator[str]:
        yield f"code of {code.co_argcount} {code.co_posonlyargcount} {code.co_kwonlyargcount} {code.co_flags & 0x2F}"
        yield f"exceptions {code.co_exceptiontable.hex()}"
        for step in dis.get_instructions(code):
            if step.opname in ("RESUME", "NOP", "CACHE"):
                continue
            if isinstance(step.argval, types.CodeType):
                yield step.opname
                yield from self._code(step.argval, depth)
            elif isinstance(step.argval, frozenset | tuple):
                yield f"{step.opname} {self._apart(step.argval, depth)}"
            elif isinstance(step.argval, str):
                yield f"{step.opname} {plain_path(step.argval)!r}"
            else:
                yield f"{step.opname} {step.argval!r}"

    def _class(self, given: type, depth: int) -> Iterator[str]:
        if not self._is_own(given):
            yield f"class {_whole_name(given)}"
            return
        yield f"class {given.__qualname__}"
        if issubclass(given, self._by_name):
            return
        for base in given.__bases__:
            yield from self.lines(base, depth)
        for name, value in sorted(vars(given).items()):
            if (name.startswith("__") and not callable(value)) or name in ("_abc_impl", "__annotate_func__"):
                continue
            yield f"attribute {name}"
            yield from self.lines(value, depth)

    def _is_own(self, value: Any) -> bool:
        """Rule 3, of a function or class."""
        module = getattr(value, "__module__", None) or ""
        top = module.partition(".")[0]
        if top in ("builtins", "holdfast", "pyspark"):
            return False
        if top == self._package or module in ("__main__", "__mp_main__"):
            return True
        code = getattr(value, "__code__", None)
        file = code.co_filename if code is not None else getattr(sys.modules.get(module), "__file__", None)
        return _outside(file) if file else top not in sys.stdlib_module_names

    def _is_own_module(self, module: types.ModuleType) -> bool:
        top = module.__name__.partition(".")[0]
        file = getattr(module, "__file__", None)
        return top == self._package or (top not in ("holdfast", "pyspark") and file is not None and _outside(file))


def _whole_name(value: Any) -> str:
    return f"{_NAMED_BEFORE.get(value.__module__, value.__module__)}.{value.__qualname__}"


def _names(code: types.CodeType) -> set[str]:
    """Everything that a function, or one inside it, may look up."""
    found = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= _names(constant)
    return found


def _imported(function: types.FunctionType) -> Iterator[str]:
    """Names of the modules that a function, or one inside it, imports when it runs."""
    package = function.__globals__.get("__package__") or ""
    waiting = [function.__code__]
    while waiting:
        code = waiting.pop()
        waiting += [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
        steps = list(dis.get_instructions(code))
        for n, step in enumerate(steps):
            if step.opname == "IMPORT_NAME" and n >= 2:
                level, wanted = steps[n - 2].argval, steps[n - 1].argval
                base = f"{package.rsplit('.', level - 1)[0]}." if level and package else ""
                name = f"{base}{step.argval}".rstrip(".")
                yield name
                yield from (f"{name}.{part}" for part in wanted or ())  # What is taken from it may be a module.


def _attributes(value: Any) -> dict[str, Any]:
    slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    return {**{n: getattr(value, n) for n in slots if hasattr(value, n)}, **getattr(value, "__dict__", {})}


def _is_definition(value: Any) -> bool:
    """Something that computes: what can be called, or extends a class that Spark or Holdfast calls."""
    bases = {kind.__module__.partition(".")[0] for kind in type(value).__mro__}
    return callable(value) or bool(bases & {"holdfast", "pyspark"})


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # Nothing was put into it yet.
        return None


@functools.cache
def _installed() -> tuple[str, ...]:
    folders = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    folders |= {*site.getsitepackages(), site.getusersitepackages()}
    return tuple(f"{folder.rstrip('/')}/" for folder in folders if folder)


def _outside(file: str) -> bool:
    return not file.startswith(_installed()) and not file.startswith("<frozen")
