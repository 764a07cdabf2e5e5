"""The tree in figures: modules, lines, cycles between packages, and how often each walk crosses from one to another.

    python -m benches.tree

Rules:
1. A package is a folder or module right below `holdfast`; `holdfast` itself is the public face. Imports inside
   functions count; those for type checkers alone do not.
2. A walk is the list of modules that something passes through, in order, back to the caller where that one takes the
   next step. docs/architecture.md tells the same walks in words.
3. Goals are printed beside the figures and nothing fails: tests/test_map.py says what may not get worse.
"""

from __future__ import annotations

import ast
from collections.abc import Container, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from benches.report import finish, table

SOURCE = Path(__file__).parents[1] / "src"
MODULE_LINES_FEW, FUNCTION_LINES_MANY = 80, 60
GOALS = {"modules": 240, "lines": 41_000, "cycles": 0, "remote crossings": 14}

_WRITTEN = """stream.producer stream.rows stream.pack stream.group stream.writer stream.frame stream.record stream.index
    stream.disk stream.tail"""
_DECIDED = """host.host host.controller host.intake stream.reader host.controller protocol.dpc.node
    protocol.dpc.effects host.controller stream.decision"""
_RUN = "spark.format spark.source stream.merge spark.sink spark.wal stream.filing stream.writer"
_READ_HERE = """host.controller stream.report stream.subscriber protocol.dpc.local protocol.dpc.sequence
    stream.subscriber"""
_READ_ELSEWHERE = """host.controller host.stream_server stream.reader host.wire host.service inputs.http_server
    host.link host.mirror host.replica_log stream.untrusted stream.writer host.mirrored_intake host.client
    protocol.dpc.client protocol.dpc.sequence host.client_subscriber"""
_FAILURE = """host.intake host.controller protocol.dpc.node protocol.dpc.inputs protocol.dpc.upstream
    protocol.dpc.switch protocol.dpc.sunion protocol.dpc.fork protocol.dpc.effects host.controller host.fork_runner
    spark.node spark.fork stream.tentative spark.forked spark.sink stream.branch stream.report protocol.dpc.sequence
    host.controller protocol.dpc.stagger host.controller host.fork_runner spark.node stream.branch"""
_CHECKPOINT = """spark.flow spark.stage spark.versions operators.kernel operators.state protocol.cec.policy
    operators.footprints spark.control spark.sink stream.control stream.writer spark.logged spark.restore
    stream.control operators.footprints spark.versions spark.stage"""
_MOVEMENT = """load.meter load.manager protocol.load.participant protocol.load.buyer load.manager
    load.journal load.outbox load.message_codec load.routes protocol.load.seller load.mover spark.fork host.parcel
    load.partner load.routes load.tasks host.host spark.node load.mover load.remote_task stream.writer
    protocol.load.lease_course protocol.load.ledger"""
#: What passes through which modules. The tuple has two ends: a reader beside the log, and one on another machine.
WALKS = {
    name: words.split()
    for name, words in {
        "tuple": f"{_WRITTEN} {_DECIDED} {_RUN} {_READ_HERE}",
        "remote": f"{_WRITTEN} {_DECIDED} {_RUN} {_READ_ELSEWHERE}",
        "failure": _FAILURE,
        "checkpoint": _CHECKPOINT,
        "movement": _MOVEMENT,
    }.items()
}


@dataclass(frozen=True, slots=True)
class Module:
    """One file: its name below `holdfast`, its text, and what it imports (names of modules, ours in full)."""

    name: str
    text: str
    tree: ast.Module
    imports: frozenset[str]

    @property
    def package(self) -> str:
        return package(self.name)


def package(name: str) -> str:
    """`stream` for stream.writer; `holdfast` for the public face."""
    return name.partition(".")[0] or "holdfast"


def modules(source: Path = SOURCE) -> dict[str, Module]:
    """Every module of `holdfast` by its name without that prefix; the public face is the empty name."""
    files = {_name(path, source): path for path in sorted((source / "holdfast").rglob("*.py"))}
    found = {}
    for name, path in files.items():
        text = path.read_text()
        tree = ast.parse(text)
        found[name] = Module(name, text, tree, frozenset(_imports(tree, files.keys())))
    return found


def ours(module: Module) -> set[str]:
    """The modules of `holdfast` that a module imports, named as in `modules`."""
    return {name.removeprefix("holdfast").removeprefix(".") for name in module.imports if _top(name) == "holdfast"}


def others(module: Module) -> set[str]:
    """The packages of others that a module imports, the standard library included."""
    return {_top(name) for name in module.imports} - {"holdfast"}


def edges(found: dict[str, Module]) -> dict[str, set[str]]:
    """Which package imports which."""
    between: dict[str, set[str]] = {module.package: set() for module in found.values()}
    for module in found.values():
        between[module.package] |= {package(name) for name in ours(module)} - {module.package}
    return between


def cycles(between: dict[str, set[str]]) -> list[list[str]]:
    """Packages that reach each other, in groups."""
    reach = {name: _reached(name, between) for name in between}
    groups = {frozenset(b for b in between if b in reach[a] and a in reach[b]) for a in between}
    return sorted(sorted(group) for group in groups if group)


def crossings(walk: list[str]) -> int:
    """How often a walk leaves a package."""
    return sum(package(a) != package(b) for a, b in pairwise(walk))


def functions(found: dict[str, Module]) -> Iterator[tuple[str, int]]:
    """Every function with its lines, from `def` to the last one."""
    for module in found.values():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{module.name}.{node.name}", (node.end_lineno or node.lineno) - node.lineno + 1


def _name(path: Path, source: Path) -> str:
    parts = path.relative_to(source / "holdfast").with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imports(tree: ast.Module, known: Container[str]) -> Iterator[str]:
    typing_only = {
        id(inner) for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }  # fmt: skip
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner.removeprefix("holdfast.") in known else node.module


def _reached(start: str, between: dict[str, set[str]]) -> set[str]:
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        for name in between[waiting.pop()] - seen:
            seen.add(name)
            waiting.append(name)
    return seen


def _top(name: str) -> str:
    return name.partition(".")[0]


def main() -> None:
    found = modules()
    lines = {name: module.text.count("\n") for name, module in found.items()}
    circles = cycles(edges(found))
    crossed = {name: crossings(walk) for name, walk in WALKS.items()}
    few = [name for name, count in lines.items() if count < MODULE_LINES_FEW]
    many = [name for name, count in functions(found) if count > FUNCTION_LINES_MANY]
    rows: list[tuple[str, object, object]] = [
        ("modules", len(found), GOALS["modules"]),
        ("lines", sum(lines.values()), GOALS["lines"]),
        ("cycles between packages", len(circles), GOALS["cycles"]),
        *((f"crossings: {name}", count, GOALS.get(f"{name} crossings", "")) for name, count in crossed.items()),
        (f"modules under {MODULE_LINES_FEW} lines", len(few), ""),
        (f"functions over {FUNCTION_LINES_MANY} lines", len(many), ""),
    ]
    table("The tree", ("figure", "now", "goal, at most"), rows)
    for circle in circles:
        print("cycle:", " ↔ ".join(circle))
    finish("tree", modules=len(found), lines=sum(lines.values()), cycles=circles, crossings=crossed,
           modules_under_80=len(few), functions_over_60=many, goals=GOALS)  # fmt: skip


if __name__ == "__main__":
    main()
