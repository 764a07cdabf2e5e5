"""`make test` says what it checked: failures count, second runs are few and listed, dead workers are seen."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.suite.__main__ import promise_table
from tests.suite.order import BESIDE, EXTENDED, LONGEST, WITHOUT_JVM
from tests.suite.promises import cited, promises
from tests.suite.record import Record

HOME = Path(__file__).parents[2]
#: Fails at first and passes the second time, as a test does that was disturbed.
UNLUCKY = """
import pathlib, pytest

@pytest.mark.alone
@pytest.mark.parametrize("n", range({count}))
def test_unlucky(n):
    seen = pathlib.Path(f"seen{{n}}")
    if not seen.exists():
        seen.touch()
        raise AssertionError("disturbed")
"""
#: A worker that ends while a test runs, and one that ends when all tests have passed.
DYING = {
    "during a test": "import os\ndef test_one(): os._exit(3)\n",
    "after all tests": """
import os, pytest

@pytest.fixture(scope="session", autouse=True)
def ends():
    yield
    os._exit(3)

def test_one(): pass
""",
}


def suite(folder: Path, text: str, *words: str) -> tuple[int, str]:
    """Run a small suite with these tests; what it returns and what it says at the end."""
    (folder / "test_it.py").write_text(text)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n    slow: x\n    alone: x\n")
    # Only the plugin that brings workers: the others take longer to load than these tests to run.
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (HOME / "src", HOME))),
           "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "xdist.plugin"}  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "tests.suite", *words], cwd=folder, env=env, text=True, capture_output=True, timeout=240,
        check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def test_a_failure_of_an_ordinary_test_fails_the_run_and_is_not_run_again(tmp_path: Path) -> None:
    code, said = suite(tmp_path, UNLUCKY.format(count=1).replace("@pytest.mark.alone", ""), "together")
    assert code == 1
    assert "FAILED test_it.py::test_unlucky[0]" in said
    assert "1 failed, 0 skipped, 0 run again" in said


def test_a_disturbed_test_that_is_marked_alone_may_be_run_again_and_that_is_said(tmp_path: Path) -> None:
    code, said = suite(tmp_path, UNLUCKY.format(count=2), "alone")
    assert code == 0
    assert "run again: test_it.py::test_unlucky[1] (in its call): passed the second time" in said
    assert "2 passed, 0 failed, 0 skipped, 2 run again" in said


def test_a_test_that_fails_twice_fails_the_run(tmp_path: Path) -> None:
    code, said = suite(tmp_path, "import pytest\n@pytest.mark.alone\ndef test_wrong():\n    assert 0\n", "alone")
    assert code == 1
    assert "run again: test_it.py::test_wrong (in its call): failed the second time" in said


def test_more_than_two_tests_that_need_a_second_run_fail_the_run_without_one(tmp_path: Path) -> None:
    code, said = suite(tmp_path, UNLUCKY.format(count=3), "alone")
    assert code == 1
    assert "3 tests marked alone failed; at most 2 may be run again" in said
    assert "== again" not in said


@pytest.mark.slow
@pytest.mark.parametrize("when", sorted(DYING))
def test_a_worker_that_died_is_a_failure(tmp_path: Path, when: str) -> None:
    code, said = suite(tmp_path, DYING[when], "together")
    assert code == 1
    assert re.search(r"^FAILED worker gw\d died", said, re.MULTILINE), said


def test_a_whole_run_has_every_test_once(tmp_path: Path) -> None:
    code, said = suite(tmp_path, "import pytest\ndef test_one(): pass\n@pytest.mark.alone\ndef test_two(): pass\n")
    assert code == 0
    assert "2 passed, 0 failed, 0 skipped, 0 run again" in said


def test_files_that_have_a_phase_or_a_place_are_there() -> None:
    named = (*BESIDE, *EXTENDED, *LONGEST, *WITHOUT_JVM)
    assert [path for path in named if not (HOME / "tests" / path).exists()] == []


def test_a_phase_without_tests_is_none_and_a_run_without_tests_fails(tmp_path: Path) -> None:
    code, said = suite(tmp_path, "def test_one(): pass\n", "alone")
    assert code == 1
    assert "FAILED no test was run" in said


def test_a_file_that_cannot_be_read_fails_the_run(tmp_path: Path) -> None:
    code, said = suite(tmp_path, "import no_such_module\n", "alone")
    assert code == 1
    assert "FAILED test_it.py (it cannot be collected)" in said


def test_the_table_counts_by_label_and_says_why_tests_were_skipped() -> None:
    records = [
        Record("a", labels=["L1", "L3"]), Record("b", "skipped", "no xfs_io", labels=["L1"]),
        Record("c", "skipped", "no xfs_io", labels=["C9"]),
    ]  # fmt: skip
    table = promise_table(records)
    at = next(n for n, line in enumerate(table) if line.startswith("L1 "))
    assert table[at].split()[-2:] == ["1", "1"]
    assert table[at + 1].strip() == "1 skipped: no xfs_io"
    (c9,) = [line for line in table if line.startswith("C9 ")]
    assert c9.split()[-4:] == ["0", "1", "NOT", "CHECKED"]


def test_a_label_is_cited_alone_in_a_list_or_in_a_range() -> None:
    assert cited("(003 §4.4; D1–D4), L6, C1 to C3") == {"D1", "D2", "D3", "D4", "L6", "C1", "C2", "C3"}
    assert cited("%C2%B2 ABC1 X_US D1a") == set()


def test_every_promise_is_cited_by_a_test() -> None:
    texts = [path.read_text() for path in (HOME / "tests").rglob("test_*.py") if path != Path(__file__)]
    known = set().union(*map(cited, texts))
    assert [label for label in promises() if label not in known] == []
    assert len(promises()) > 40
