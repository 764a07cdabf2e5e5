"""The names that a user finds."""

from __future__ import annotations

import importlib
import pickle

import pytest
from pyspark import cloudpickle

import holdfast
from holdfast.model import errors


@pytest.mark.parametrize("package", ["holdfast", "holdfast.operators", "holdfast.spark"])
def test_every_public_name_is_listed_and_there(package: str) -> None:
    module = importlib.import_module(package)
    assert sorted(set(module.__all__)) == sorted(module.__all__)
    assert all(getattr(module, name) is not None for name in module.__all__)


def test_names_that_are_imported_on_first_use_are_listed() -> None:
    assert {"App", "connect"} <= set(dir(holdfast))


def test_every_error_that_a_user_can_meet_is_public() -> None:
    made = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, Exception)}
    assert made <= set(holdfast.__all__)


@pytest.mark.parametrize("package", ["holdfast.operators", "holdfast.spark"])
def test_a_function_that_uses_a_package_goes_to_sparks_workers(package: str) -> None:
    module = importlib.import_module(package)
    assert pickle.loads(cloudpickle.dumps(lambda: module))() is module


@pytest.mark.parametrize("name", ["functor", "keyed_join"])
def test_a_name_is_the_function_whoever_has_imported_the_module_of_that_name(name: str) -> None:
    package = importlib.import_module("holdfast.operators")
    module = importlib.import_module(f"holdfast.operators.{name}")
    assert getattr(package, name) is getattr(module, name)
