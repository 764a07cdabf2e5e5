"""The map of docs/architecture.md is true: who imports whom, who may read the clock, sync, rename and import pyspark.

Each table says what is so now. A line more needs a reason; a line that is no longer needed must go, so that nobody
takes it for a permission.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest
from benches.tree import WALKS, Module, cycles, edges, modules, others, ours, package

HOME = Path(__file__).parents[1]
PAGE = HOME / "docs" / "architecture.md"


@cache
def tree() -> dict[str, Module]:
    """Not when this file is imported: every worker of a run collects all tests, and one runs these."""
    return modules()


#: Which package may import which; every one may import `model`. Those further down know nothing of those above.
IMPORTS = {
    "cli": "app checkpoint clock demo diagram explain holdfast host inputs load sinks spark stream",
    "explain": "checkpoint console diagram host protocol stream",
    "demo": "clock console holdfast host spark",
    "load": "clock console diagram engine host inputs metrics protocol stream",
    "holdfast": "app host inputs stream",
    "testing": "app checkpoint clock engine host protocol sinks stream",
    "app": "diagram host inputs protocol sinks stream",
    "host": "checkpoint clock console diagram engine inputs metrics protocol sinks spark stream",
    "console": "clock stream",
    "spark": "checkpoint clock diagram engine inputs operators protocol stream",
    "operators": "checkpoint protocol stream",
    "sinks": "clock inputs stream",
    "checkpoint": "clock metrics protocol stream",
    "inputs": "clock stream",
    "sim": "protocol stream",
    "stream": "clock protocol",
    "engine": "diagram inputs stream",
    "diagram": "protocol",
    "protocol": "",
    "metrics": "",
    "clock": "",
    "model": "",
}
#: A description and what runs it: the description is imported where nothing of the other is installed, and makes it.
MAKE_EACH_OTHER = [["inputs.kafka", "inputs.kafka_input"], ["inputs.postgres_changes", "inputs.postgres_input"]]
#: What a core without I/O has no use for.
IMPURE = {"asyncio", "io", "os", "pathlib", "random", "socket", "threading", "time"}

#: Outside `spark`: the demo's application is what a user would write.
PYSPARK = {"demo.application"}
#: Hosts know the engine by its port alone; these choose Spark where nobody brings another, and know its settings.
KNOW_SPARK = {"host.embedded", "host.deployment"}

WALL_CLOCK = {"clock"}
#: How long something takes or may take, where a clock that is handed in would bring nothing.
STEADY_CLOCK = {
    "clock",
    "inputs.audit", "inputs.credentials", "inputs.tcp", "inputs.token_file",  # Limits on strangers.
    "host.drain", "host.link", "host.stream_server", "load.routes", "load.partner",  # Deadlines of the event loop.
    "stream.group",  # How long a commit waits for company.
    "spark.archived_segments",  # How long a store that was away is left alone.
    "spark.durable_state", "spark.scratch", "spark.stage",  # In workers: patience with a store, and what a batch took.
    "sim.__main__", "sim.many", "sim.load.__main__",  # How long to go on simulating.
}  # fmt: skip

#: `reader` makes durable what it finds at the end of a log without a writer, before it shows it (L2).
SYNC = {"stream.disk", "stream.reader"}
#: Names that are not made durable, because what they name may be lost, or is made durable by their caller.
RENAME = {
    "stream.disk",
    "stream.branch",  # The tentative branch that is being dropped.
    "spark.versions", "spark.fork", "spark.session",  # Scratch, hard links of a fork, a script.
    "host.log_rotation", "load.history",  # A host's log, and what pictures are drawn from.
}  # fmt: skip


@cache
def calls(module: Module) -> list[tuple[str, str, ast.Call]]:
    """Every call of a method or of a module's function: what it is called on (its last name), its name, the call."""
    found = []
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            on = node.func.value
            last = on.id if isinstance(on, ast.Name) else on.attr if isinstance(on, ast.Attribute) else ""
            found.append((last, node.func.attr, node))
    return found


def reads_wall_clock(on: str, name: str, _: ast.Call) -> bool:
    return (on == "time" and name in ("time", "time_ns", "gmtime", "localtime", "clock_gettime")) or (
        on in ("datetime", "date") and name in ("now", "utcnow", "today")
    )


def reads_steady_clock(on: str, name: str, _: ast.Call) -> bool:
    steady = re.fullmatch(r"(monotonic|perf_counter|process_time|thread_time)(_ns)?", name) is not None
    return (on == "time" and steady) or (on.endswith("loop") and name == "time")


def syncs(on: str, name: str, _: ast.Call) -> bool:
    return on == "os" and name in ("fsync", "fdatasync", "sync")


def renames(on: str, name: str, call: ast.Call) -> bool:
    """Of `os`, `shutil` or a path. A path's takes one argument; `Disk.rename` and `str.replace` take two."""
    if on in ("os", "shutil"):
        return name in ("rename", "renames", "replace", "link", "symlink", "move")
    one = len(call.args) == 1 and not call.keywords and not isinstance(call.args[0], ast.Dict)
    return one and name in ("rename", "replace", "hardlink_to", "symlink_to")


def test_packages_import_what_the_table_allows_and_no_more() -> None:
    allowed = {name: set(words.split()) for name, words in IMPORTS.items()}
    assert {name: between - {"model"} for name, between in edges(tree()).items()} == allowed


def test_there_is_no_cycle_between_packages() -> None:
    assert cycles(edges(tree())) == []


def test_there_is_no_cycle_between_the_modules_of_a_package() -> None:
    """Except where a description makes what runs it."""
    found = tree()
    assert cycles({name: (ours(module) & found.keys()) - {name} for name, module in found.items()}) == MAKE_EACH_OTHER


def test_the_protocol_imports_the_model_and_the_standard_library_only() -> None:
    for module in tree().values():
        if module.package == "protocol":
            assert {package(name) for name in ours(module)} <= {"protocol", "model"}, module.name
            assert others(module) <= sys.stdlib_module_names - {"time", "threading", "socket", "os", "random"}, (
                module.name
            )


def test_pyspark_is_imported_by_spark_and_those_listed() -> None:
    found = {module.name for module in tree().values() if others(module) & {"pyspark", "py4j"}}
    assert {name for name in found if package(name) != "spark"} == PYSPARK


def test_hosts_know_spark_where_they_choose_it_and_nowhere_else() -> None:
    found = {m.name for m in tree().values() if m.package == "host" and any(package(n) == "spark" for n in ours(m))}
    assert found == KNOW_SPARK


def test_what_is_imported_is_declared() -> None:
    project = tomllib.loads((HOME / "pyproject.toml").read_text())["project"]
    extras = [
        need
        for name, needs in project["optional-dependencies"].items()
        if name not in ("test", "bench")
        for need in needs
    ]
    words = [re.match(r"[\w.-]+", need) for need in project["dependencies"] + extras]
    declared = {word[0].replace("-", "_") for word in words if word}
    declared |= {"yaml", "opentelemetry"}  # Those are called pyyaml and opentelemetry-sdk.
    for module in tree().values():
        assert others(module) - sys.stdlib_module_names <= declared, module.name


@pytest.mark.parametrize(
    ("does", "listed"),
    [(reads_wall_clock, WALL_CLOCK), (reads_steady_clock, STEADY_CLOCK), (syncs, SYNC), (renames, RENAME)],
    ids=["reads the wall clock", "reads a steady clock", "syncs", "renames"],
)
def test_only_those_listed_touch_the_clock_and_the_names_on_disk(does, listed: set[str]) -> None:
    found = {module.name for module in tree().values() if any(does(*call) for call in calls(module))}
    assert found == listed


@pytest.mark.parametrize("hidden", ["time", "os", "shutil"])
def test_nobody_takes_names_out_of_the_modules_that_are_watched(hidden: str) -> None:
    """`from time import monotonic` would pass unseen."""
    watched = {
        "time",
        "monotonic",
        "perf_counter",
        "time_ns",
        "monotonic_ns",
        "fsync",
        "fdatasync",
        "rename",
        "replace",
    }
    for module in tree().values():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ImportFrom) and node.module == hidden:
                assert watched.isdisjoint(alias.name for alias in node.names), module.name


def test_the_tables_say_what_a_planted_line_does() -> None:
    """The checks see: each kind of call, as somebody would write it."""
    planted = (
        "time.time(); time.monotonic(); loop.time(); os.fdatasync(fd); os.rename(a, b); path.rename(b); path.replace(b)"
    )
    module = Module("planted", planted, ast.parse(planted), frozenset())
    seen = [[does(*call) for does in (reads_wall_clock, reads_steady_clock, syncs, renames)] for call in calls(module)]
    assert [row.index(True) for row in seen] == [0, 1, 1, 2, 3, 3, 3]
    innocent = 'disk.rename(a, b); text.replace("a", "b"); frame.rename({"a": "b"}); value.replace(tzinfo=UTC)'
    module = Module("innocent", innocent, ast.parse(innocent), frozenset())
    assert not any(renames(*call) for call in calls(module))


@pytest.mark.parametrize("walk", WALKS, ids=str)
def test_every_module_on_a_walk_is_there_and_on_the_map(walk: str) -> None:
    text = PAGE.read_text()
    for name in WALKS[walk]:
        assert name in tree(), f"there is no module {name}"
        assert f"`{name}`" in text, f"docs/architecture.md does not name {name}"


def test_the_map_has_every_package() -> None:
    rows = set(re.findall(r"^\| `([a-z]+)(?:/|\.py)?` \|", PAGE.read_text(), re.MULTILINE))
    assert rows == {module.package for module in tree().values()}


def test_modules_that_headers_name_are_there() -> None:
    folders = {name.rpartition(".")[0] for name in tree()}
    for module in tree().values():
        for name in re.findall(r"`holdfast\.([a-z_]+(?:\.[a-z_]+)+)`", ast.get_docstring(module.tree) or ""):
            parent = name.rpartition(".")[0]
            assert name in tree() or (parent in tree() and parent not in folders), f"{module.name} cites {name}"


def test_every_label_that_is_promised_or_cited_is_explained() -> None:
    explained = set(re.findall(r"^\| ([A-Z]\d{1,2}) \|", PAGE.read_text(), re.MULTILINE))
    promised = set(re.findall(r"^\| ([A-Z]\d{1,2}) \|", (HOME / "docs" / "promises.md").read_text(), re.MULTILINE))
    assert promised <= explained
    for module in tree().values():
        cited = set(re.findall(r"\(([DLCKTSBX]\d{1,2})[,;)]", module.text))
        assert cited <= explained, module.name


def test_every_file_that_the_package_and_its_pages_name_is_there() -> None:
    """Whoever looks up a test, bench, page or example finds it."""
    pages = [*HOME.glob("docs/*.md"), *(HOME / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"))]
    texts = {page.name: page.read_text() for page in pages} | {m.name: m.text for m in tree().values()}
    path = re.compile(r"(?<![\w./-])(?:tests|benches|docs|examples)/[\w./-]+\.(?:py|md|yaml)\b")
    named = {(whose, name) for whose, text in texts.items() for name in path.findall(text)}
    assert sorted((whose, name) for whose, name in named if not (HOME / name).is_file()) == []
