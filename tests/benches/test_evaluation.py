"""The report of figures and tables: registry, results and page, and the README's table that is made from them."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
from benches.evaluation import history
from benches.evaluation.__main__ import BENCHES, HOME, Bench
from benches.evaluation.figures import TEXTS, Claim, Curve, Figure, Grid, Plot, Reason, Stated, score, show
from benches.evaluation.page import write_page
from benches.evaluation.panel import panels
from benches.evaluation.readme import (
    BEGIN,
    CODE,
    END,
    EXPLAINED,
    LOAD_SHARING,
    OPERATORS,
    README,
    ROWS,
    load_sharing,
    operators,
    rendered,
    replaced,
)
from benches.evaluation.registry import FIGURES
from benches.evaluation.results import PUBLISHED, Missing, publish, read_all, sources, stamp, write
from benches.report import FORMAT


def kept(folder: Path, bench: str, **values: object) -> None:
    folder.mkdir(exist_ok=True)
    write(folder / f"{bench}.json", {
        "format": FORMAT, "bench": bench, "date": "2026-01-02", "commit": "abc",
        "command": f"python -m benches.{bench}", "machine": {"cores": 2}, "figures": values, "detail": {}})  # fmt: skip


# The registry and what is published -----------------------------------------------------------------------------------


def test_every_figure_has_a_number_of_its_own_and_a_statement() -> None:
    names = [(figure.text, figure.number) for figure in FIGURES]
    assert len(names) == len(set(names))
    assert {text for text, _ in names} == set(TEXTS)
    for figure in FIGURES:
        assert re.fullmatch(r"(figure|table) [\d.-]+", figure.number)
        assert figure.claims, f"{figure.text} {figure.number} has no statement"


def test_every_figure_is_drawn_from_what_is_published_or_says_why_not() -> None:
    for figure in FIGURES:
        shown = show(figure, sources(None))
        assert shown.drawn or shown.missing


def test_no_published_statement_differs_without_a_reason() -> None:
    unexplained = [(s.figure.number, j.said) for s in (show(figure, sources(None)) for figure in FIGURES)
                   for j in s.judged if j.holds is False and not j.why]  # fmt: skip
    assert unexplained == []


def test_published_results_say_when_where_and_how_they_were_made() -> None:
    found = read_all(PUBLISHED)
    assert found
    for result in found:
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", result.date)
        assert re.fullmatch(r"[0-9a-f]{7,}\+?", result.commit)
        assert result.command.startswith(f"python -m benches.{result.bench}")
        assert result.machine["cores"]
        assert result.source or result.others is not None, f"{result.bench}: under which conditions?"


with_history = pytest.mark.skipif(not history.is_known(), reason="this copy has no history")


@with_history
@pytest.mark.parametrize("path", sorted(PUBLISHED.glob("*.json")), ids=lambda path: path.stem)
def test_a_published_result_names_a_commit_that_is_there(path: Path) -> None:
    """One that was rebased away tells nobody what was measured."""
    commit = json.loads(path.read_text())["commit"]
    assert history.has(commit), f"{path.name} names {commit}; measure again, or name the commit that has this code"


def test_a_commit_that_is_not_there_is_noticed() -> None:
    assert not history.has("0123456789abcdef0123456789abcdef01234567")


@with_history
def test_the_readme_has_the_published_numbers() -> None:
    """And says which of them are older than what they measure."""
    readme, page = README.read_text(), OPERATORS.read_text()
    assert readme == replaced(readme, rendered()), "run python -m benches.evaluation.readme"
    assert page == operators(page), "run python -m benches.evaluation.readme"
    page = LOAD_SHARING.read_text()
    assert (page, EXPLAINED.read_text()) == load_sharing(page), "run python -m benches.evaluation.readme"


def test_code_that_changed_since_a_number_was_measured_is_newer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*command: str) -> str:
        who = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        return subprocess.run(["git", *who, *command], cwd=tmp_path, capture_output=True, text=True, check=True).stdout

    monkeypatch.setattr(history, "HOME", tmp_path)
    (tmp_path / "measured.py").write_text("1\n")
    (tmp_path / "other.py").write_text("1\n")
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "one")
    commit = git("rev-parse", "--short", "HEAD").strip()
    assert history.has(commit)
    assert history.has(f"{commit}+")
    (tmp_path / "other.py").write_text("2\n")
    assert not history.is_newer(commit, ["measured.py"])
    (tmp_path / "measured.py").write_text("2\n")
    assert history.is_newer(commit, ["measured.py"])
    git("commit", "-qam", "two")
    assert history.is_newer(commit, ["measured.py"])
    (tmp_path / "measured.py").write_text("1\n")
    assert not history.is_newer(commit, ["measured.py"]), "as it was"


def test_every_row_of_the_readme_knows_its_code() -> None:
    assert CODE.keys() == {row.bench for row in ROWS}
    missing = [part for parts in CODE.values() for part in parts if not (HOME / "src/holdfast" / part).is_dir()]
    assert missing == []


def test_a_statement_is_explained_by_whatever_makes_it_hold(tmp_path: Path) -> None:
    holds = {"a": {"as published": False, "narrow topology": True, "offers in order": True, "other reading": False},
             "b": {"as published": False, "capacities 80 to 100": False},
             "c": {"as published": False, "other reading": True}}  # fmt: skip
    values = {said: dict.fromkeys(by, 0.5) for said, by in holds.items()}
    kept(tmp_path, "bpm_explained", holds=holds, values=values, topologies=10,
         bounds={said: [0.1, said == "a", "fig. 7-1", "left"] for said in holds})  # fmt: skip
    mark = BEGIN.replace(" from benches/results", " from benches/results/bpm_explained.json")
    page, picture = load_sharing(f"{mark}{END}", tmp_path)
    assert "| a | ≥ 0.1 left | 0.5 | 0.5 ✓ | – | – | 0.5 ✓ | – | 0.5 | topology or order of offers |" in page
    assert [line.split(" | ")[-1] for line in page.splitlines() if line.startswith("| ")][2:] == [
        "topology or order of offers |", "none of these |", "its reading |"]  # fmt: skip
    assert picture.count('fill="#1a7f37"') == 3
    assert "topology or order of offers" in picture


def test_rows_say_beside_which_of_sparks_stores(tmp_path: Path) -> None:
    rates = {name: [900, 1000, 100, 300, 1800] for name in ("time_1000", "time_100000", "time_1000000")}
    rates |= {name: [900, 1000, 10] for name in ("fast", "slow", "mixed")}
    kept(tmp_path, "cec_throughput", rates=rates, cec_costs=dict.fromkeys(rates, 0.1), ratio_best_1k=3.0,
         ratio_best_100k=3.0, ratio_best_1m=3.0, of_polars_100k=0.5)  # fmt: skip
    kept(tmp_path, "cec_recovery", seconds={"10000": [2, 5, 4], "100000": [2, 5, 4], "1000000": [2, 5, 4]},
         ratios={"10000": 2.0, "100000": 2.0, "1000000": 2.0}, peers=["RocksDB", "in memory"])  # fmt: skip
    page = operators(OPERATORS.read_text(), tmp_path)
    assert "| time windows, 1,000 keys | 900 | 1,000 | 100 | 300 | 3.0 | 1,800 | 0.50 | 10 % |" in page
    assert "| 10,000 | 2 | 5 | 4 | 2 |" in page
    row = rendered(tmp_path)
    assert "with the better of its state stores: 3 times with 1,000 keys" in row
    assert "0.5 of polars alone" in row
    assert "with the better of its state stores: 2, 2 and 2 times as quick" in row


def test_a_readme_without_the_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="two comments"):
        replaced("# Holdfast\n", "| table |\n")
    assert replaced(f"a\n{BEGIN}old\n{END}b\n", "new\n") == f"a\n{BEGIN}new\n{END}b\n"


@pytest.mark.parametrize("bench", BENCHES, ids=lambda b: b.name)
def test_a_bench_of_the_report_knows_its_options(bench: Bench) -> None:
    """Its module, and every option that it is called with."""
    module = HOME / "benches" / f"{bench.name}.py"
    source = (module if module.exists() else module.with_suffix("") / "__main__.py").read_text()
    for option in (*bench.short, *bench.full):
        assert not option.startswith("--") or f'add_argument("{option}"' in source.replace("(\n        ", "("), option


def test_every_result_that_a_figure_asks_for_has_a_bench() -> None:
    asked = {name for path in (HOME / "benches" / "evaluation").glob("text_*.py")
             for name in re.findall(r"r\([\"'](\w+)[\"']\)", path.read_text())}  # fmt: skip
    assert asked - {bench.name for bench in BENCHES} == set()


# Judging --------------------------------------------------------------------------------------------------------------


def figure(claim: Claim | Stated) -> Figure:
    def draw(r: object) -> list[Plot]:
        return [Plot("x", "y", [Curve("line", [(1, 10)])], [Curve("line", [(1, r("b")("x"))])])]  # type: ignore[operator]

    return Figure("000", "figure 1", "A figure", draw, [claim])


def test_a_statement_is_judged_by_our_numbers(tmp_path: Path) -> None:
    claim = Claim("x is small", lambda r: (f"{r('b')('x')}", r("b")("x") < 5), "the machine is slow")
    kept(tmp_path, "b", x=3)
    assert score([show(figure(claim), sources(tmp_path))])._asdict() == {
        "figures_in_texts": 1, "figures_drawn": 1, "statements": 1, "statements_hold": 1, "statements_explained": 0,
        "statements_unexplained": 0, "statements_not_measured": 0}  # fmt: skip
    kept(tmp_path, "b", x=7)
    found = show(figure(claim), sources(tmp_path))
    assert (found.judged[0].ours, found.judged[0].holds, found.judged[0].why) == ("7", False, "the machine is slow")
    assert score([found]).statements_explained == 1
    assert score([show(figure(claim._replace(why="")), sources(tmp_path))]).statements_unexplained == 1


def test_that_no_cause_was_found_explains_nothing(tmp_path: Path) -> None:
    said = [{"where": "fig. 1", "text": text, "here": "2", "holds": False, "reason": ""} for text in ("a", "b")]
    kept(tmp_path, "b", x=1, statements=said)
    tried = Stated("b", ["fig. 1"], lambda _, text: Reason(f"{text} was tried with others", text == "a"))
    found = show(figure(tried), sources(tmp_path))
    assert [j.why for j in found.judged] == ["a was tried with others", "b was tried with others"]
    assert (score([found]).statements_explained, score([found]).statements_unexplained) == (1, 1)


def test_what_was_not_measured_neither_holds_nor_differs(tmp_path: Path) -> None:
    claim = Claim("x is small", lambda r: ("", r("b")("x") < 5))
    found = show(figure(claim), sources(tmp_path))
    assert not found.drawn
    assert found.missing == "b was not run"
    assert score([found]).statements_not_measured == 1


def test_statements_that_a_bench_judged_are_taken_by_their_place(tmp_path: Path) -> None:
    said = [{"where": "fig. 1", "text": "a", "here": "1", "holds": True, "reason": ""},
            {"where": "fig. 1", "text": "b", "here": "2", "holds": False, "reason": "so"},
            {"where": "fig. 2", "text": "c", "here": "3", "holds": True, "reason": ""}]  # fmt: skip
    kept(tmp_path, "b", x=1, statements=said)
    found = show(figure(Stated("b", ["fig. 1"])), sources(tmp_path)).judged
    assert [(j.said, j.holds, j.why) for j in found] == [("a", True, ""), ("b", False, "so")]


def test_a_run_that_lacks_a_value_leaves_it_to_the_published_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benches.evaluation.results.PUBLISHED", tmp_path / "published")
    kept(tmp_path / "published", "b", x=1)
    kept(tmp_path / "run", "b", y=2)
    value, used = sources(tmp_path / "run").first(lambda r: r("b")("x"))
    assert (value, len(used)) == (1, 1)
    assert sources(tmp_path / "run").first(lambda r: r("b")("y"))[0] == 2
    with pytest.raises(Missing, match="no z"):
        sources(tmp_path / "run").first(lambda r: r("b")("z"))


def test_only_full_and_undisturbed_runs_are_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benches.evaluation.results.PUBLISHED", tmp_path / "published")
    (tmp_path / "published").mkdir()
    for bench, full, others in (("a", True, 0.05), ("b", True, 0.4), ("c", False, 0.0)):
        kept(tmp_path / "run", bench, x=1)
        stamp(tmp_path / "run" / f"{bench}.json", full, others)
    assert publish(tmp_path / "run") == ["a"]
    assert [path.name for path in (tmp_path / "published").iterdir()] == ["a.json"]


def test_a_file_of_another_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "b.json").write_text(json.dumps({"format": 99}))
    with pytest.raises(ValueError, match=r"b\.json must have format 1; got 99"):
        read_all(tmp_path)


# Drawing --------------------------------------------------------------------------------------------------------------


def marks(svg: str) -> list[str]:
    return re.findall(r">([^<>]+)</text>", svg)


def test_both_panels_have_the_same_axes() -> None:
    for plot in (
        Plot("x", "y", [Curve("a", [(1, 10)])], [Curve("a", [(1, 900), (8, 20)]), Curve("b", [(3, 1)])]),
        Plot("x", "y", [Curve("a", [(1, 10)])], [Curve("a", [(10_000, 0.01)])], log_x=True, log_y=True),
        Plot("x", "y", [Curve("a", [(0, 1)])], [Curve("a", [(0, 2), (1, 3)], errors=[(1, 4)])], groups=("p", "q")),
    ):
        theirs, ours = panels(plot)
        assert marks(theirs) == marks(ours)
        assert len(marks(ours)) >= 6


def test_a_panel_without_curves_says_what_the_text_states() -> None:
    theirs, ours = panels(Plot("x", "y", [], [Curve("a", [(1, 2)])], only="The text states an order."))
    assert "The text states an order." in theirs
    assert "The text states" not in ours


def test_the_page_shows_verdicts_reasons_and_the_json_behind_them(tmp_path: Path) -> None:
    kept(tmp_path, "b", x=7)
    claim = Claim("x < 5 & small", lambda r: (f"{r('b')('x')}", r("b")("x") < 5), "because <it> is")
    table = Figure("002", "table 1", "A table", lambda r: [Grid(["a"], [[r("b")("x")]])], [claim])
    shown = [show(figure(claim), sources(tmp_path)), show(table, sources(tmp_path))]
    machine = {"cores": 2, "memory_gib": 4, "system": "Linux 6", "python": "3.11"}
    write_page(tmp_path / "page.html", shown, score(shown), machine, "2026-01-02")
    page = (tmp_path / "page.html").read_text()
    assert "x &lt; 5 &amp; small" in page
    assert "because &lt;it&gt; is" in page
    assert page.count(">differs</td>") == 2
    assert 'id="json-b"' in page
    assert "python -m benches.b · 2026-01-02 · commit abc" in page
    assert "default-src 'none'" in page
    assert "<script" not in page
