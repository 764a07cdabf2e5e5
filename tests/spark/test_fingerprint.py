"""Fingerprints of functions: the same in every process, another one when the code is."""

from __future__ import annotations

import hashlib
import importlib
import subprocess
import sys
import textwrap
import types
from pathlib import Path

import pytest

from holdfast.spark.fingerprint import _NAMED_BEFORE, fingerprint
from tests.spark.processes import REPOSITORY, environment

BASE = """
import math
from dataclasses import dataclass
LIMIT = 5
NAMES = {"b", "a", "c"}
RATES = {"EUR": 1.1, "USD": 1.0}
PLACE = "/srv/a/model.bin"
class Model:
    def __init__(self): self.loaded_at = id(self)
MODEL = Model()
@dataclass
class Setting:
    factor: int = 2
SETTING = Setting()
def helper(x):
    return x * SETTING.factor
def f(x, step=3):
    "Says what it does."
    if x in NAMES or x in (1, 2, 3): return math.floor(RATES["EUR"])
    return helper(x) + LIMIT + step + len(PLACE) + bool(MODEL)
"""
CHANGES = {
    "a constant of the module": ("LIMIT = 5", "LIMIT = 6"),
    "a number in the code": ("(1, 2, 3)", "(1, 2, 4)"),
    "a default": ("step=3", "step=4"),
    "what another function does": ("return x * S", "return x + S"),
    "a field of a dataclass": ("factor: int = 2", "factor: int = 3"),
    "a value of a dictionary": ("1.1", "1.2"),
    "a member of a set": ('"c"}', '"d"}'),
}
SAME = {
    "a comment": ("LIMIT = 5", "LIMIT = 5  # of them"),
    "a docstring": ('"Says what it does."', '"Says it otherwise."'),
    "empty lines": ("def f(", "\n\n\ndef f("),
    "where a file lies": ("/srv/a/model.bin", "/home/b/model.bin"),
    "what nothing uses": ("LIMIT = 5", "LIMIT = 5\nOTHER = 7"),
}


#: What a program is made of, with a place for what changes: {0} is 2, and then 3.
WAYS = {
    "a pattern": "import re\nP = re.compile('a{{{0}}}')\ndef f(x): return P.match(x)",
    "a function behind a cache": "import functools\n@functools.cache\ndef g(x): return x * {0}\ndef f(x): return g(x)",
    "a number of NumPy's": "import numpy as np\nK = np.int64({0})\ndef f(x): return x * K",
    "an array of numbers": "import numpy as np\nK = np.array([1.5, {0}])\ndef f(x): return K.dot(x)",
    "a fraction": "from fractions import Fraction\nK = Fraction({0}, 7)\ndef f(x): return x * K",
    "a namespace": "import types\nC = types.SimpleNamespace(k={0})\ndef f(x): return x * C.k",
    "which field is taken": "import operator\nG = operator.itemgetter({0})\ndef f(x): return G(x)",
    "a queue": "from collections import deque\nQ = deque([{0}])\ndef f(x): return x in Q",
    "an object with slots":
        "class C:\n  __slots__ = ('k',)\n  def __call__(self, x): return self.k\nf = C()\nf.k = {0}",
    "a cached property":
        "import functools\nclass C:\n  @functools.cached_property\n  def k(self): return {0}\ndef f(x): return C().k",
    "one of several functions by type":
        "import functools\n@functools.singledispatch\ndef g(x): return 1\n@g.register\ndef _(x: int): return {0}\n"
        "def f(x): return g(x)",
    "the path of an address": "K = '/v{0}/users'\ndef f(x): return x.startswith(K)",
}  # fmt: skip


def made(source: str) -> str:
    scope: dict[str, object] = {"__name__": "__main__"}
    exec(compile(source, "/home/user/program.py", "exec"), scope)
    return fingerprint(scope["f"])


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_that_matters_gives_another_fingerprint(what: str) -> None:
    assert made(BASE.replace(*CHANGES[what])) != made(BASE)


@pytest.mark.parametrize("what", WAYS)
def test_what_a_function_uses_counts_by_whatever_way_it_is_held(what: str) -> None:
    assert made(WAYS[what].format(2)) == made(WAYS[what].format(2))
    assert made(WAYS[what].format(2)) != made(WAYS[what].format(3))


@pytest.mark.parametrize("user", [
    "def f(x):\n  from mylib.scores import score\n  return score(x)",
    "def f(x):\n  import mylib.scores\n  return mylib.scores.score(x)",
    "def f(x):\n  def inner(y):\n    from mylib import scores\n    return scores.score(y)\n  return inner(x)",
    "import mylib.scores\ndef f(x): return mylib.scores.score(x)",
])  # fmt: skip
def test_what_a_function_imports_counts(user: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Imports inside a function are usual for what runs in workers."""
    package = tmp_path / "mylib"
    package.mkdir()
    (package / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    found = []
    for text in ("return x * 2", "return x * 2  # and nothing else", "return x * 3"):
        (package / "scores.py").write_text(f"def score(x):\n  {text}\ndef other():\n  {text}\n")
        for name in ("mylib", "mylib.scores"):
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        found.append(made(user))
    assert found[0] == found[1] != found[2]


@pytest.mark.parametrize("what", SAME)
def test_a_change_that_does_not_matter_gives_the_same(what: str) -> None:
    assert BASE.replace(*SAME[what]) != BASE
    assert made(BASE.replace(*SAME[what])) == made(BASE)


def test_another_process_with_other_hashes_gives_the_same(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(BASE + "\nfrom holdfast.spark.fingerprint import fingerprint\nprint(fingerprint(f))\n")
    told = set()
    for seed in ("1", "2"):
        done = subprocess.run([sys.executable, str(program)], cwd=REPOSITORY, check=True, capture_output=True,
                              text=True, env={**environment(), "PYTHONHASHSEED": seed})  # fmt: skip
        told.add(done.stdout.strip())
    assert told == {made(BASE)}


def test_functions_of_a_package_count_by_name_unless_it_is_the_nodes_own() -> None:
    """An upgrade of a library changes nothing; a node that is installed as a package is looked into all the same."""
    assert fingerprint(textwrap.indent) != fingerprint(textwrap.indent, own="textwrap")


#: Literals, apart from the package's name: a replacement of names of modules must not come by here.
MOVED = {
    ("join_kernel", "keep_time"): "joined",
    ("keyed_barrier", "paired"): "paired",
    ("keyed_barrier", "PairedPrototype"): "paired",
    ("state_parts", "Parted"): "parted",
}


@pytest.mark.parametrize(("now", "name"), MOVED)
def test_what_only_moved_to_another_module_counts_as_it_did(now: str, name: str) -> None:
    """A node of an earlier version goes on: its notes name the module of then."""
    before = f"holdfast.operators.{MOVED[now, name]}"
    moved = getattr(importlib.import_module(f"holdfast.operators.{now}"), name)
    then, other = (type(name, (), {"__module__": module}) for module in (before, "holdfast.elsewhere"))
    kind = "class" if isinstance(moved, type) else "function"
    assert fingerprint(moved) == hashlib.sha256(f"{kind} {before}.{name}\n".encode()).hexdigest()[:16]
    if isinstance(moved, type):
        assert fingerprint(moved) == fingerprint(then) != fingerprint(other)
    module = types.ModuleType(before)
    assert fingerprint(importlib.import_module(f"holdfast.operators.{now}")) == fingerprint(module)


def test_every_module_that_moved_is_pinned_under_another_name() -> None:
    pinned = {f"holdfast.operators.{now}": f"holdfast.operators.{before}" for (now, _), before in MOVED.items()}
    assert pinned == _NAMED_BEFORE
    assert all(now != before for now, before in _NAMED_BEFORE.items())
