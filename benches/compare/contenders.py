"""The contenders: what each is, which settings of its own documentation it runs with, and where its packages come from.

A contender is a module that follows three folders and speaks as `contender` says. Peers get a virtual environment each,
because their pins exclude one another; one that cannot be installed is left out, and the page says why.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import NamedTuple


class Peer(NamedTuple):
    """Packages from the index, in an environment of their own."""

    name: str
    package: str
    version: str

    @property
    def pin(self) -> str:
        return f"{self.package}=={self.version}"


class Contender(NamedTuple):
    name: str
    """As in the JSON and in the names of pictures."""
    title: str
    module: str
    arguments: tuple[str, ...]
    settings: str
    """What was set, for the page."""
    documents: str
    """Where its own documentation says so."""
    why: str
    """What happens, and why."""
    peer: Peer | None = None
    """None: our own environment."""


FLINK = Peer("flink", "apache-flink", "2.3.0")
BYTEWAX = Peer("bytewax", "bytewax", "0.21.1")
PATHWAY = Peer("pathway", "pathway", "0.33.0")

_SPARK_PAGE = (
    "Spark, *Structured Streaming Programming Guide*: “Handling Late Data and Watermarking”, “Policy for handling "
    "multiple watermarks”"
)

_FLINK_PAGE = "Flink, *Execution Mode*, *Generating Watermarks*"
_BYTEWAX_PAGE = "Bytewax, *Windowing*: “Watermarks and Late Data”, “Event Time”"
_PATHWAY_PAGE = "Pathway, *Understanding Temporal Behavior in Pathway*, *Controlling Temporal Behavior of Windows*"

CONTENDERS = (
    Contender(
        "spark-min", "Spark, policy min, append", "spark_contender", ("--policy", "min"),
        "`multipleWatermarkPolicy=min` (the default), watermark delay 1 s, trigger 1 s, output mode append",
        _SPARK_PAGE,
        "The watermark of the whole query is that of the slowest input. It stands still while that one is "
        "silent; all windows come at once when it is back.",
    ),
    Contender(
        "spark-max", "Spark, policy max, append", "spark_contender", ("--policy", "max"),
        "`multipleWatermarkPolicy=max`, watermark delay 1 s, trigger 1 s, output mode append", _SPARK_PAGE,
        "The watermark is that of the fastest input. Windows close without the silent one, and what it brings "
        "later is dropped.",
    ),
    Contender(
        "spark-min-update", "Spark, policy min, update", "spark_contender", ("--policy", "min", "--mode", "update"),
        "as spark-min, output mode update: each trigger says every count that has changed",
        _SPARK_PAGE + ", “Output Modes”",
        "Counts come as they grow, and change when the input is back. Nothing tells a count that lacks an "
        "input from one that is complete.",
    ),
    Contender(
        "flink", "Flink without idleness", "flink_contender", (),
        "`for_bounded_out_of_orderness(1 s)`, files looked for every 100 ms, Python in thread mode", _FLINK_PAGE,
        "The watermark behind the union is the smallest of the three; without idleness a silent source holds "
        "it for as long as it is silent.",
        FLINK,
    ),
    Contender(
        "flink-idle", "Flink with idleness", "flink_contender", ("--idle-ms", "3000"),
        "as flink, `with_idleness(3 s)`", _FLINK_PAGE + ": “Dealing With Idle Sources”",
        "After 3 s the silent source no longer counts, and windows close without it. When it is back its rows "
        "are behind the watermark and are dropped.",
        FLINK,
    ),
    Contender(
        "flink-idle-late", "Flink with idleness and allowed lateness", "flink_contender",
        ("--idle-ms", "3000", "--lateness-ms", "60000"),
        "as flink-idle, `allowed_lateness(60 s)`: late rows make a window say its count again",
        _FLINK_PAGE + ": “Dealing With Idle Sources”; *Windows*: “Allowed Lateness”",
        "As before, but windows are kept for a minute: each late row makes its window say its count again. "
        "The counts that came first were wrong, and nothing marked them.",
        FLINK,
    ),
    Contender(
        "bytewax", "Bytewax", "bytewax_contender", ("--wait-ms", "3000"),
        "`EventClock(wait_for_system_duration=3 s)`, `count_window`", _BYTEWAX_PAGE,
        "The watermark follows the newest row and the clock, whichever input it came from. Rows that come "
        "later than 3 s are late, and are left out of the count (they come out of a stream of their own, "
        "`late`).",
        BYTEWAX,
    ),
    Contender(
        "bytewax-wait", "Bytewax that waits for 25 s", "bytewax_contender", ("--wait-ms", "25000"),
        "as bytewax, `wait_for_system_duration=25 s`: longer than the input is silent", _BYTEWAX_PAGE,
        "Waiting for longer than the failure lasts makes every count right, and every count late, also while "
        "nothing fails.",
        BYTEWAX,
    ),
    Contender(
        "pathway-once", "Pathway, each window once", "pathway_contender", (),
        "`exactly_once_behavior(shift=1 s)`, commits every 200 ms", _PATHWAY_PAGE,
        "The time of a window is the newest that has come, from whichever input. Each window is said once; "
        "what comes later is ignored.",
        PATHWAY,
    ),
    Contender(
        "pathway-update", "Pathway with updates", "pathway_contender", ("--cutoff-ms", "60000"),
        "`common_behavior(delay=window + 1 s, cutoff=60 s)`, commits every 200 ms", _PATHWAY_PAGE,
        "Each window is said when it is over, and again for what comes late, up to the cutoff. Nothing marks "
        "a count that lacks an input.",
        PATHWAY,
    ),
    Contender(
        "holdfast", "Holdfast, X = 3 s", "holdfast_contender", (),
        "`max_delay=\"3s\"`, buckets of 500 ms, slack 1 s; a subscriber with `tentative=True`",
        "[choosing.md](choosing.md), [consuming.md](consuming.md)",
        "After X the node goes on with what there is and marks it tentative. When the input is back, the "
        "tentative rows are taken back and the stable ones come.",
    ),
)  # fmt: skip


def python_of(peer: Peer | None, environments: Path) -> str:
    return sys.executable if peer is None else str(environments / peer.name / "bin" / "python")


def install(peer: Peer, environments: Path) -> str | None:
    """Make a peer's environment unless it is there; the reason if that cannot be done."""
    home = environments / peer.name
    noted = home / "installed"
    if noted.exists() and noted.read_text() == peer.pin:
        return None
    steps = (
        [sys.executable, "-m", "venv", "--clear", str(home)],
        [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", peer.pin],
    )
    for step in steps:
        done = subprocess.run(step, capture_output=True, text=True, check=False)
        if done.returncode:
            said = (done.stderr or done.stdout).strip().splitlines()
            return f"{peer.pin} could not be installed: {said[-1] if said else f'exit code {done.returncode}'}"
    noted.write_text(peer.pin)
    return None
