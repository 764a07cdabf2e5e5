"""The short files of examples/: each shows one way to use Holdfast, runs by itself, and prints what it says."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import example_kafka
from tests.docs.test_docs import EXAMPLES, HOME
from tests.inputs.kafka_server import SERVER

#: What each prints, as a pattern over its whole output.
SAID = {
    "quickstart": r"\|     ann\|       20\.0\|",
    "live_query": r"(\S+ \S+ /p[012] 1[345]\.[05]\n){3}",
    "count_windows": r"(\S+ \S+ \{'item': '(tea|salt)', 'count': 10, 'avg_price': (9|10|29|30)\.0\}\n){4}",
    "window_join": r"(\S+ 12:0\d:\d4\+00:00 \{.customer.: .c(\d)., .ordered.: \2, .paid.: \2\}\n){5}",
    "keyed_join": r"(\d\d \{'customer': 'c\d', 'page': '/p\d', 'amount': \d\}\n){18}",
    "barrier": r"(0(\d) \{'item': 'i(\d)', 'amount': (\3)?0\}\n){4}",
    "own_operator": r"\[0\.0, 1\.5, 2\.25, 3\.0, 3\.75, 4\.5, 5\.25, 6\.0, 7\.5\]",
    "spark_source": r"(2026-03-01 12:00:0\d\+00:00 /p[01]\n){6}",
    "node_in_a_failure": r"TENTATIVE [\s\S]*UNDO [\s\S]*INSERTION [\s\S]*REC_DONE",
    "resume": r"run 1 has \(4, 6\)\nrun 2 has \(10, 45\)",
    "table_sink": r"north 3 \nsouth 3 \n",
    "over_the_network": r"(\d \{'customer': 'c\d', 'amount': \d\}\n){3}",
    "striped": r"(calls\.s\d \[.*\]\n){4}60 calls, in order\n18 behind the 42nd",
    "send_async": r"[\d,]+ durable rows a second from one thread\n5000 rows in the stream",
}
#: Too long to be read at a glance; tests of their own run them (test_docs, tests/load, and the last one here).
LONG = {"netmon", "load_sharing", "kafka_to_postgres"}
LINES_MAX = 30

#: One process for all of them: what starts a JVM starts it once.
RUN = """
import contextlib, io, json, runpy, sys
said = {}
for path in sys.argv[1:]:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        runpy.run_path(path, run_name="__main__")
    said[path] = out.getvalue()
print(json.dumps(said))
"""


def test_every_example_is_short_and_says_in_its_first_line_what_it_shows() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == SAID.keys() | LONG
    for name in SAID:
        text = (EXAMPLES / f"{name}.py").read_text()
        assert re.match(r'"""[A-Z].+[.:]"""\n', text), f"{name} must begin with a sentence"
        assert len(text.splitlines()) <= LINES_MAX, f"{name} has {len(text.splitlines())} lines"


def test_the_readme_names_every_example() -> None:
    readme = (HOME / "README.md").read_text()
    assert [name for name in sorted(SAID.keys() | LONG) if f"examples/{name}.py" not in readme] == []


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_example_runs_and_prints_what_it_shows(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", RUN, *(str(EXAMPLES / f"{name}.py") for name in SAID)],
        cwd=tmp_path, text=True, capture_output=True, timeout=580, check=False,
        env={**os.environ, "PYTHONPATH": str(HOME / "src"), "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert "Traceback" not in done.stderr, f"nothing was wrong, and this was printed:\n{done.stderr[-4000:]}"
    for path, said in json.loads(done.stdout.splitlines()[-1]).items():
        assert re.search(SAID[Path(path).stem], said), f"{Path(path).name} printed:\n{said}"


@pytest.mark.slow
@pytest.mark.alone  # It sells in real time: an order that is a second late is no longer counted.
def test_kafka_to_postgres_ends_with_the_right_table(capfd: pytest.CaptureFixture[str]) -> None:
    """`make example-kafka`, with the broker and the database that it brings."""
    if SERVER.jars() is None:
        pytest.skip("no Kafka here; `python -m tests.inputs.kafka_server --fetch` brings it from Maven")
    assert example_kafka.main() == 0, capfd.readouterr().err[-3000:]
    _, *said = re.split(r"^(?=\w.*:$)", capfd.readouterr().out, flags=re.MULTILINE)
    whole, cut, healed = map(table_said, said)
    assert len(whole) > 3
    assert sum(tentative for _, tentative in cut.values()) > 2
    for at, (orders, tentative) in healed.items():
        assert not tentative
        assert orders % 3 == 0, "the three shops sell at the same moments"
        assert orders >= cut.get(at, (0, False))[0], "west was missing"


def table_said(text: str) -> dict[str, tuple[int, bool]]:
    """Time, orders, whether they may change."""
    rows = re.findall(r"^  (\d\d:\d\d:\d\d) +(\d+) (tentative)?$", text, re.MULTILINE)
    return {at: (int(orders), bool(tentative)) for at, orders, tentative in rows}
