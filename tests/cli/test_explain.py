"""`holdfast explain`: every policy with its guarantee."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from holdfast.cli import looking
from holdfast.cli.main import app

PROGRAM = """
import pyarrow as pa
from holdfast.checkpoint.policy import every, groups, none
from holdfast.operators.barrier import Barrier
from holdfast.operators.functor import functor
from holdfast.operators.window_join import Input, WindowJoin

counted = functor("counted", lambda row, v: row, variables={"n": 0}, checkpoint=every("10s"))
plain = functor("plain", lambda row, v: row)
a, b = pa.schema([("k", pa.int64()), ("a", pa.string())]), pa.schema([("k", pa.int64()), ("b", pa.string())])
joins = [WindowJoin("pairs", Input(a, 100), Input(b, 0), on="k", checkpoint=groups(32, every="1s"))]
meet = {"gate": Barrier("gate", [pa.schema([("x", pa.int64())]), pa.schema([("y", pa.int64())])])}
lost = functor("lost", lambda row, v: row, variables={"n": 0}, checkpoint=none)
again = counted
"""


def test_explain_tells_what_is_saved_and_what_that_promises(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    result = CliRunner().invoke(app, ["explain", str(tmp_path / "program.py"), "--json"])
    assert result.exit_code == 0, result.output
    told = {line["operator"]: line for line in map(json.loads, result.output.splitlines())}
    assert {name: line["guarantee"] for name, line in told.items()} == {
        "counted": "best effort", "plain": "exact", "pairs": "best effort", "gate": "exact",
        "lost": "none: state is lost with its process",
    }  # fmt: skip
    assert told["pairs"]["policy"] == 'groups(32, every="1s")'
    assert told["gate"]["policy"] == "upstream()"
    people = CliRunner().invoke(app, ["explain", str(tmp_path / "program.py")])
    assert 'counted (functor, variables): every("10s") saves its variables; guarantee: best effort' in people.output


ON_SPARK = """
import pyarrow as pa
from holdfast.checkpoint.policy import every
from holdfast.operators.udop import UserOperator
from holdfast.spark.keyed import barrier, udop

class Model(UserOperator):
    def checkpoint(self): return b""
    def restore(self, saved): pass

model = udop("model", Model, key="k", schema="k string, y double", checkpoint=every("10s"), store="log:/far")
inputs = {"a": pa.schema([("x", pa.int64())]), "b": pa.schema([("y", pa.int64())])}
gate = barrier("gate", inputs, schema="x bigint, y bigint", store="log:/far")
"""


def test_operators_on_spark_are_explained_without_a_session_and_a_barrier_as_what_it_is(tmp_path: Path) -> None:
    """004 §4: upstream backup is enforced for a barrier."""
    (tmp_path / "program.py").write_text(ON_SPARK)
    result = CliRunner().invoke(app, ["explain", str(tmp_path / "program.py")])
    assert result.exit_code == 0, result.output
    assert result.output.splitlines() == [
        'model (user-defined operator, instances by key): every("10s") saves what checkpoint() gives, per key into '
        "log:/far; guarantee: best effort",
        "gate (barrier, tuples in flight): upstream() saves the tuples on their way, each once into log:/far; "
        "guarantee: exact",
    ]


PROTECTED = """
import pyarrow as pa
from holdfast.checkpoint.policy import every
from holdfast.checkpoint.protect import protect
from holdfast.checkpoint.safekeeper import SafeKeeper
from holdfast.checkpoint.scheduler import Scheduler
from holdfast.checkpoint.stores.memory import MemoryStore
from holdfast.operators.window_join import Input, WindowJoin

a, b = pa.schema([("k", pa.int64()), ("a", pa.string())]), pa.schema([("k", pa.int64()), ("b", pa.string())])
join = WindowJoin("pairs", Input(a, 100), Input(b, 0), on="k")
pairs = protect(join, every("1h"), SafeKeeper(MemoryStore()), by=Scheduler())
"""


def test_an_operator_that_is_protected_where_it_is_fed_is_explained_once_and_as_protected(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROTECTED)
    result = CliRunner().invoke(app, ["explain", str(tmp_path / "program.py")])
    assert result.output.splitlines() == [
        'pairs (join, sliding windows): every("1h") saves its windows, whole; guarantee: best effort'
    ]


def test_a_program_without_operators_or_none_at_all_is_said(tmp_path: Path) -> None:
    (tmp_path / "empty.py").write_text("x = 1")
    for program in (str(tmp_path / "empty.py"), str(tmp_path / "none.py"), "no.such.module"):
        result = CliRunner().invoke(app, ["explain", program])
        assert result.exit_code == 1
        assert "Traceback" not in result.output


def test_a_program_that_does_not_run_is_told_in_a_sentence_that_names_the_line(tmp_path: Path) -> None:
    for name, text, why in (
        ("absent.py", "\nimport nothing_of_the_kind\n", "ModuleNotFoundError: No module named 'nothing_of_the_kind'"),
        ("fails.py", "\nx = 1 / 0\n", "ZeroDivisionError: division by zero (fails.py line 2)"),
        ("open.py", "x = (", "SyntaxError"),
        ("notes.md", "", "must be a file that ends in .py"),
    ):
        (tmp_path / name).write_text(text)
        result = CliRunner().invoke(app, ["explain", str(tmp_path / name)])
        assert result.exit_code == 1
        assert why in result.output
        assert len(result.output.splitlines()) == 1


APPLICATION = """
import sys
import holdfast
assert sys.argv == [{program!r}], sys.argv
app = holdfast.App("netmon", root={root!r})

@app.node(inputs=["left", "right"], max_delay="2s", replicas=2)
def both(rows):
    return rows

{then}
print("was run")
"""


@pytest.mark.parametrize(
    "then",
    [
        "app.run()", "app.start(spark=None)", "holdfast.open({root!r}).create('s', 'k bigint')",
        "import subprocess; subprocess.run(['touch', {root!r}])", "open({root!r}, 'w')", "sys.exit(3)",
        "from holdfast.spark import session; session('x')",
    ],
)  # fmt: skip
def test_a_program_is_explained_up_to_where_it_would_do_something(tmp_path: Path, then: str) -> None:
    """Nothing is started and nothing written; nodes are explained as well."""
    program, root = tmp_path / "program.py", str(tmp_path / "streams")
    text = APPLICATION.format(program=str(program), root=root, then=then.format(root=root))
    program.write_text(text)
    result = CliRunner().invoke(app, ["explain", str(program), "--json"])
    assert result.exit_code == 0, result.output
    (told,) = map(json.loads, result.output.splitlines())
    assert (told["node"], told["inputs"], told["replicas"], told["guarantee"]) == (
        "both",
        ["left", "right"],
        2,
        "exact",
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["program.py"]


def test_a_program_that_only_waits_is_given_up_with_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looking, "_SECONDS", 1)
    (tmp_path / "program.py").write_text("import threading\nthreading.Event().wait()\n")
    result = CliRunner().invoke(app, ["explain", str(tmp_path / "program.py")])
    assert result.exit_code == 1
    assert "must come to its end to be explained" in result.stderr
