"""The documentation says what is so: diagrams, commands, examples, options and messages are those of the code."""

from __future__ import annotations

import ast
import inspect
import os
import re
import shlex
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from holdfast.app import App
from holdfast.cli.main import app as cli
from holdfast.host.app_file import load_app
from holdfast.host.catalog import Catalog
from holdfast.host.deployment import load_deployment
from holdfast.protocol.dpc.states import FORK_STEPS, NODE_STEPS, diagram
from tests.spark.query_kinds import KINDS, listed

HOME = Path(__file__).parents[2]
PAGES = sorted([HOME / "README.md", *(HOME / "docs").glob("*.md")])
EXAMPLES = HOME / "examples"


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of a page in that language; "" for those that name none."""
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)
    return [text for kind, text in fenced if kind == language]


def every(language: str) -> list[Any]:
    """The same for all pages, as parameters."""
    return [
        pytest.param(text, id=f"{page.stem}-{n}") for page in PAGES for n, text in enumerate(blocks(page, language))
    ]


def commands(text: str) -> list[list[str]]:
    """The calls of `holdfast` in a block, each as its words; comments, output and other programs left out."""
    found = []
    for line in text.replace("\\\n", " ").splitlines():
        for part in line.split("|"):
            part = part.removeprefix("$ ").strip()
            if part.startswith("holdfast "):
                found.append(shlex.split(part, comments=True)[1:])
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_readme_leads_to_every_page() -> None:
    readme = (HOME / "README.md").read_text()
    for page in (HOME / "docs").glob("*.md"):
        assert f"docs/{page.name}" in readme, f"the README does not lead to {page.name}"


def test_the_state_diagrams_are_those_of_the_code() -> None:
    drawn = blocks(HOME / "docs" / "nodes.md", "mermaid")
    assert drawn == [diagram(NODE_STEPS) + "\n", diagram(FORK_STEPS) + "\n"]


@pytest.mark.parametrize("block", every("python"))
def test_python_examples_compile(block: str) -> None:
    compile(block, "example", "exec")


def test_every_app_in_the_pages_can_be_declared() -> None:
    declared = 0
    for page in PAGES:
        for block in blocks(page, "python"):
            if "holdfast.App(" in block:
                names: dict[str, object] = {}
                exec(block, names)
                app = names["app"]
                assert isinstance(app, App)
                assert app.diagram().node("active_sources").inputs == ("monitor1", "monitor2", "monitor3")
                declared += 1
    assert declared >= 2


@pytest.mark.parametrize("block", every("yaml"))
def test_deployments_in_the_pages_are_accepted(block: str, tmp_path: Path) -> None:
    (tmp_path / "netmon.yaml").write_text(block)
    deployment = load_deployment(tmp_path / "netmon.yaml")
    Catalog(load_app("netmon.py", EXAMPLES).diagram(), deployment)


@pytest.mark.parametrize("block", every(""))
def test_commands_in_the_pages_are_understood(block: str) -> None:
    verbs: Any = typer.main.get_command(cli)
    for words in commands(block):
        verb = verbs.commands.get(words[0])
        assert verb is not None, f"there is no verb {words[0]}"
        verb.make_context(words[0], [word for word in words[1:] if word != "…"])


def test_the_options_that_are_explained_exist_and_all_are_explained() -> None:
    known = set(inspect.signature(App.node).parameters) - {"self"}
    said: dict[str, set[str]] = {}
    for name in ("deployment", "choosing"):
        text = (HOME / "docs" / f"{name}.md").read_text()
        table = text[text.index("| option |") :].partition("\n\n")[0]
        firsts = [row.split("|")[1] for row in table.splitlines()[2:]]
        said[name] = {word for first in firsts for word in re.findall(r"`(\w+)", first)}
        assert said[name] <= known
    assert known - said["deployment"] == {"output_mode"}  # It has one value.


@cache
def texts_of_the_code() -> list[str]:
    """Every text in the sources, with `\\0` where something is filled in."""
    found = []
    for path in (HOME / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts = [str(v.value) if isinstance(v, ast.Constant) else "\0" for v in node.values]
                found.append("".join(parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(re.sub(r"%[sd]", "\0", node.value))
    return found


def messages() -> list[str]:
    """What the page quotes: in bold, or in a table of log lines, in backquotes."""
    text = (HOME / "docs" / "troubleshooting.md").read_text()
    lines = text[text.index("## It does not start") :].splitlines()
    quoted = [q for line in lines if line.startswith("- **") for q in re.findall(r"`([^`]+)`", line)]
    quoted += [line.split("`")[1] for line in lines if line.startswith("| `")]
    states = {"WAITING", "RECOVERING", "STABLE", "UP_FAILURE", "STABILIZATION", "down"}
    # A line about a replica begins with its name, which `ReplicaLog` puts there.
    return [q.removeprefix("…: ") for q in quoted if q not in states and q != "No space left on device"]


@pytest.mark.parametrize("message", messages())
def test_quoted_messages_are_those_of_the_code(message: str) -> None:
    parts = [re.escape(part) for part in re.sub(r"\bSTABLE\b", "…", message).split("…")]
    pattern = re.compile(".*".join(parts), re.DOTALL)
    assert any(pattern.search(text) for text in texts_of_the_code()), message


def test_the_deployment_of_the_example_fits_its_application() -> None:
    deployment = load_deployment(EXAMPLES / "netmon.yaml")
    catalog = Catalog(deployment.load_app().diagram(), deployment)
    assert catalog.replicas_of("active_sources") == ("active_sources@a", "active_sources@b")
    assert catalog.sources_on("src") == ("monitor1", "monitor2", "monitor3")


def test_the_readme_shows_the_example_that_can_be_run() -> None:
    (shown,) = [block for block in blocks(HOME / "README.md", "python") if "holdfast.App(" in block]
    body = shown[shown.index("def active_sources") :].strip()
    assert body in (EXAMPLES / "netmon.py").read_text()


@pytest.mark.slow
def test_the_example_goes_through_a_failure_and_is_corrected(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "netmon.py"), "--seconds", "21"], cwd=tmp_path, text=True, timeout=240,
        capture_output=True, env={**os.environ, "PYTHONPATH": str(HOME / "src")}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "all corrected" in done.stdout


def test_what_is_installed_is_ours_and_not_the_strangers_package_of_the_same_import_name() -> None:
    project = tomllib.loads((HOME / "pyproject.toml").read_text())["project"]
    assert project["name"] == "holdfast-streams"
    texts = [*PAGES, HOME / "Makefile", *(HOME / "src").rglob("*.py"), HOME / "pyproject.toml"]
    theirs = re.compile(r"pip install ['\"]?holdfast(?!-)|[`'\"]holdfast\[")
    assert [path for path in texts if theirs.search(path.read_text())] == []


def test_the_kinds_of_query_are_those_that_are_tried() -> None:
    listed_there = re.search(
        r"<!-- kinds -->\n(.*?)\n<!-- /kinds -->", (HOME / "docs" / "queries.md").read_text(), re.S
    )
    assert listed_there is not None
    row = re.compile(r"^\| ([\w ]+) \| .* \| ([\d.]+) s \|$", re.M)
    silences = {name.replace(" ", "_"): float(seconds) for name, seconds in row.findall(listed_there[1])}
    assert list(silences) in ([], list(KINDS))
    assert listed_there[1] == listed(silences), "python -m tests.spark.query_kinds"
