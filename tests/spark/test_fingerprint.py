"""Fingerprints of functions: the same in every process, another one when the code is."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from holdfast.spark.fingerprint import fingerprint
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


def made(source: str) -> str:
    scope: dict[str, object] = {"__name__": "__main__"}
    exec(compile(source, "/home/user/program.py", "exec"), scope)
    return fingerprint(scope["f"])


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_that_matters_gives_another_fingerprint(what: str) -> None:
    assert made(BASE.replace(*CHANGES[what])) != made(BASE)


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
