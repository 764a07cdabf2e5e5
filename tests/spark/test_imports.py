"""What a worker of Spark's holds in memory: not what only others need."""

from __future__ import annotations

import subprocess
import sys

import pytest

#: What only Holdfast's own operators need: 30 MB in every process.
OPERATORS = ("polars", "holdfast.spark.stage", "holdfast.spark.flow")


@pytest.mark.parametrize("module", ["holdfast.spark.format", "holdfast.spark.source", "holdfast.spark.sink"])
def test_a_worker_that_reads_or_writes_streams_does_not_import_the_operators(module: str) -> None:
    code = f"import sys, {module}; print(*(name for name in {OPERATORS} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_functions_are_not_hidden_by_the_modules_of_their_names() -> None:
    code = (
        "import holdfast.spark.session, holdfast.spark.flow; from holdfast.spark import flow, session; "
        "import holdfast.spark as package; print(callable(flow), callable(session), callable(package.flow))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True"] * 3
