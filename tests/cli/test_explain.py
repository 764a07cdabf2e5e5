"""`holdfast explain`: every policy with its guarantee."""

from __future__ import annotations

import json
import tempfile
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
    told, *failures = map(json.loads, result.output.splitlines())
    assert [line["failure"] for line in failures] == ["host here", "source left", "source right"]
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


def test_a_program_may_ask_where_temporary_files_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first who asks tries by writing one, as holdfast.spark does when it is imported."""
    (tmp_path / "program.py").write_text(f"import tempfile\nPLACE = tempfile.gettempdir()\n{PROGRAM}")
    monkeypatch.setattr(tempfile, "tempdir", None)
    result = CliRunner().invoke(app, ["explain", str(tmp_path / "program.py")])
    assert result.exit_code == 0, result.output
    assert "counted (functor, variables)" in result.output


DEPLOYED = """
import holdfast
from pyspark.sql import functions as F
from holdfast.operators import count, time_window
from holdfast.spark import flow_of

app = holdfast.App("netmon")

@app.node(inputs=["left", "right"], max_delay="3s", replicas=2)
def both(rows):
    return rows.groupBy(F.window("stime", "2 seconds")).count()

@app.node(inputs=["both"], max_delay="3s")
def totals(rows):
    return flow_of(rows).aggregate(count(), window=time_window("10s"))

app.run()
"""
HOSTS = """
app: program.py
hosts:
  src: {address: "127.0.0.1:7401", root: src}
  a:   {address: "127.0.0.1:7402", root: a}
  b:   {address: "127.0.0.1:7403", root: b}
sources: {left: src, right: a}
nodes: {both: [a, b], totals: [b]}
"""


def deployment(folder: Path) -> str:
    (folder / "program.py").write_text(DEPLOYED)
    (folder / "netmon.yaml").write_text(HOSTS)
    return str(folder / "netmon.yaml")


def test_a_deployment_is_explained_node_by_node_and_failure_by_failure(tmp_path: Path) -> None:
    """Nothing is started and nothing written."""
    file = deployment(tmp_path)
    result = CliRunner().invoke(app, ["explain", file, "--json"])
    assert result.exit_code == 0, result.output
    told = [json.loads(line) for line in result.output.splitlines()]
    both, totals = (line for line in told if "node" in line)
    assert [run["replica"] for run in both["runs"]] == ["both@a", "both@b"]
    assert both["operators"]["spark"] == ["groupBy", "count"]
    assert [own["policy"] for own in totals["operators"]["own"]] == ["continuous()"]
    assert (totals["depth"], totals["runs"][0]["reads"]) == (2, {"both": ["both@b", "both@a"]})
    seen = {line["failure"]: {n: e["sees"] for n, e in line["nodes"].items()} for line in told if "failure" in line}
    assert seen == {
        "host src": {"both": "tentative", "totals": "tentative"},
        "host a": {"both": "tentative", "totals": "tentative"},
        "host b": {"both": "nothing", "totals": "silence"},
        "link src-a": {"both": "switch", "totals": "nothing"},
        "link src-b": {"both": "nothing", "totals": "nothing"},
        "link a-b": {"both": "nothing", "totals": "tentative"},
        "source left": {"both": "tentative", "totals": "tentative"},
        "source right": {"both": "tentative", "totals": "tentative"},
    }
    assert sorted(path.name for path in tmp_path.iterdir()) == ["netmon.yaml", "program.py"]


def test_what_is_said_to_people_has_a_block_per_node_and_a_table_of_failures(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["explain", deployment(tmp_path)])
    words = " ".join(result.output.split())
    assert "tentative results begin 3s after it began" in words
    assert "both@b reads left@src, right@a" in words
    assert "had back: its open windows from the log of the results" in words
    assert "if this fails readers of see" in words
    assert "host b totals silence: its only replica runs there" in words
    assert "Silent for some readers, whatever X is: host b" in words


def test_the_page_has_the_diagram_and_a_cell_for_each_failure_and_reader_and_needs_nothing_else(tmp_path: Path) -> None:
    file, page = deployment(tmp_path), tmp_path / "netmon.html"
    result = CliRunner().invoke(app, ["explain", file, "--html", str(page)])
    assert result.exit_code == 0, result.output
    text = page.read_text()
    assert text.count("<td class='seen ") == 8 * 2
    assert text.count("<path class='way'") == 3
    assert "<td class='seen silence' title='silence: its only replica runs there;" in text
    assert "<script" not in text
    assert "http" not in text.replace("http-equiv", "")


def test_a_plan_says_what_each_host_carries_with_loads_that_are_given_or_measured(tmp_path: Path) -> None:
    file = deployment(tmp_path)
    asked = ["plan", file, "--load", "both=0.4", "--load", "totals=0.3", "--cores", "1", "--json"]
    result = CliRunner().invoke(app, asked)
    assert result.exit_code == 0, result.output
    src, a, b = map(json.loads, result.output.splitlines())
    assert (src["sources"], src["replicas"], src["sends"]) == (
        ["left"], [], [{"stream": "left", "to": "a"}, {"stream": "left", "to": "b"}],
    )  # fmt: skip
    assert (a["load"], a["load_at_worst"], a["overloaded_at_worst"]) == (0.4, 0.8, False)
    assert b["forks_at_worst"] == ["both@b", "totals@b"]
    assert b["overloaded_at_worst"]
    task = {"definition": "both", "at": "anna", "usage": {"cpu": 0.25, "bandwidth": 0, "memory": 0}}
    (tmp_path / "loads").write_text(json.dumps({"participant": "anna", "tasks": [task]}))
    people = CliRunner().invoke(app, ["plan", file, "--loads", str(tmp_path / "loads")]).output
    assert "load       0.25 cores, 0.50 in its worst failure" in people
    assert "No load is known of totals" in people


def test_a_plan_with_contracts_says_what_would_move_and_for_how_much(tmp_path: Path) -> None:
    file = Path(deployment(tmp_path))
    file.write_text(HOSTS.replace("root: b}", "root: b, load: terms.yaml}"))
    (tmp_path / "terms.yaml").write_text(
        "participant: anna\ncapacity: {cpu: 1.0}\npartners: {ben: {address: 'http://127.0.0.1:7502', token: t}}\n"
        "contracts: [{to: ben, price: 0.8 to 5.0, permits: [totals]}]\n"
    )
    result = CliRunner().invoke(app, ["plan", str(file), "--load", "both=0.5", "--load", "totals=0.4", "--json"])
    assert result.exit_code == 0, result.output
    (contract,) = json.loads(result.output.splitlines()[-1])["contracts"]
    assert (contract["with"], contract["would_move"]) == ("ben", ["totals"])
    assert contract["saves"] > contract["pays"] > 0


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--load", "nobody=1"], "no node 'nobody'"),
        (["--load", "both=many"], "must be a node and the cores of one replica"),
        (["--loads", "none.json"], "cannot be read"),
        (["--loads", "netmon.yaml"], "must be what `holdfast load FILE --json` prints"),
    ],
)
def test_loads_that_cannot_be_are_refused_with_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], why: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["plan", deployment(tmp_path), *options])
    assert result.exit_code == 1
    assert why in result.stderr
    assert len(result.stderr.splitlines()) == 1
