"""Another function is tried beside the live one and swapped in, with readers all the time (D1, S1): plain engine."""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from typer.testing import CliRunner

import holdfast
from holdfast.cli.main import app
from holdfast.clock import pause
from holdfast.host.crash_points import SWAPPED
from holdfast.model.time import instant_us
from holdfast.stream.changes import read_changes
from holdfast.stream.checking.verify import verify
from tests.faults.deployment import Hosts, wait_us

SECOND = 1_000_000
#: The long run has 20: HOLDFAST_SWAPS=20.
ROUNDS = int(os.environ.get("HOLDFAST_SWAPS", "2"))
#: In one process every step is tried by tests/host/test_trial.py; with a number above the default, here too.
STEPS = SWAPPED if ROUNDS > 4 else ("swap-stopped", "swap-ordered", "taken-up")
APP = """
import holdfast

app = holdfast.App("tried")

@app.node(inputs=["flows"], name="counts", max_delay="1s", keepalive="100ms"{options})
def counts(c):
    raise NotImplementedError

counts.plain = {plain}
"""


def application(options: str = "", **plain: Any) -> str:
    return APP.format(options=options, plain=plain)


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    deployed = Hosts(tmp_path, application(), "1s", ["flows"], {"counts": ["a"]}, plain=True, segment_bytes=1 << 16,
                     retention=holdfast.Retention(acknowledged=True))  # fmt: skip
    try:
        deployed.start()
        deployed.feeds["flows"].start()
        deployed.wait_until("STABLE", "a")
        assert wait_us(lambda: rows_of(deployed), 60, 50_000), "no results"
        yield deployed
    finally:
        deployed.end()


def tried(hosts: Hosts, *words: str, file: str = "app.py") -> dict[str, Any]:
    """What it says, for programs: the last line."""
    return {k: v for line in _run(hosts, 0, file, "--json", *words).splitlines() if line.startswith("{")
            for k, v in msgspec.json.decode(line).items()}  # fmt: skip


def refused(hosts: Hosts, *words: str, file: str = "app.py") -> str:
    return _run(hosts, 1, file, *words)


def _run(hosts: Hosts, code: int, file: str, *words: str) -> str:
    command = ["try", str(hosts.folder / file), "--node", "counts", "-d", str(hosts.file), *words]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == code, (done.output, hosts.log("a").read_text()[-3000:])
    return done.output


def rows_of(hosts: Hosts) -> list[dict[str, Any]]:
    reader = hosts.store("a").open("counts").reader()
    found = []
    for extent in reader.extents(-(2**62), 2**62, strict=False):
        batch, first = reader.read(extent), extent.fields.first_tuple_id
        times = batch.column(0).cast(pa.int64()).to_pylist()
        found += [{**row, "id": first + k, "at": times[k]} for k, row in enumerate(batch.to_pylist())]
    reader.close()
    return found


def counted(hosts: Hosts) -> dict[tuple[int, str], tuple[int, int]]:
    """From what was sent, by plain Python: (end of the second, source) -> (rows, bytes)."""
    groups: defaultdict[tuple[int, str], list[int]] = defaultdict(lambda: [0, 0])
    for at, first, count in hosts.feeds["flows"].sends:
        for k in range(first, first + count):
            both = groups[at // SECOND * SECOND + SECOND, f"s{k % 7}"]
            both[0] += 1
            both[1] += k
    return {key: (n, size) for key, (n, size) in groups.items()}


class Readers:
    """One beside the log and one over the network: the ids of all stable tuples that came, in order."""

    def __init__(self, hosts: Hosts) -> None:
        bucket = hosts.store("a").open("counts").last(0)[0]
        self.first_us = bucket * SECOND
        self._connection = holdfast.connect(hosts.file)
        self.ids: list[list[int]] = [[], []]
        subscribers = (hosts.store("a").open("counts").subscribe(bucket=bucket),
                       self._connection.subscribe("counts", bucket=bucket))  # fmt: skip
        self._threads = [threading.Thread(target=self._read, args=both, daemon=True)
                         for both in zip(subscribers, self.ids, strict=True)]  # fmt: skip
        for thread in self._threads:
            thread.start()

    @staticmethod
    def _read(subscriber: Any, ids: list[int]) -> None:
        while not subscriber.finished:
            for batch in subscriber.poll():
                ids += batch.column("tuple_id").to_pylist()
            pause(20_000)
        subscriber.close()

    def end(self) -> None:
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive(), "it has not come to the end"
        self._connection.close()


def check_the_end(hosts: Hosts, readers: Readers, changes: list[tuple[int, dict[str, Any]]]) -> None:
    """Every result once, by the definition that held then; readers got them all, once, in order."""
    hosts.feeds["flows"].end()

    def ended() -> bool:
        reader = hosts.store("a").open("counts").reader()
        reader.close()
        return reader.closed

    assert wait_us(ended, 120), hosts.log("a").read_text()[-3000:]
    found, expected = rows_of(hosts), counted(hosts)
    assert [row["id"] for row in found] == list(range(1, len(found) + 1))
    wanted = []
    for (at, source), (n, size) in sorted(expected.items()):
        plain = [plain for from_us, plain in changes if from_us <= at][-1]
        if source != plain.get("without"):
            wanted.append((at, source, n * plain.get("scale", 1), size, size / n if plain.get("rate") else None))
    assert sorted((r["at"], r["source"], r["n"], r["bytes"], r.get("rate")) for r in found) == wanted
    readers.end()
    ids = [row["id"] for row in found if row["at"] >= readers.first_us]
    for got in readers.ids:
        assert got == ids, "a gap or a repetition"
    assert [f for f in verify(hosts.store("a").open("counts").folder) if f.severity.name == "ERROR"] == []


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_swaps_under_load_and_amid_failures_leave_no_gap_and_no_repetition_for_readers(hosts: Hosts) -> None:
    """D1; every second one with a cut of the input at the same moment, one with a column more."""
    readers, changes = Readers(hosts), [(0, dict[str, Any]())]
    for round_ in range(ROUNDS):
        plain: dict[str, Any] = {"scale": round_ + 2, "rate": round_ >= ROUNDS // 2}
        if round_ % 3 == 2:
            plain["without"] = f"s{round_ % 7}"
        (hosts.folder / "app.py").write_text(application(**plain))
        with ThreadPoolExecutor(1) as beside:
            cutting = beside.submit(_cut_for_a_while, hosts, 1.0 + 0.3 * (round_ % 7)) if round_ % 2 else None
            said = tried(hosts, "--for", "1", "--swap")
            if cutting is not None:
                cutting.result()
        assert said["what"] == "compatible"
        changes.append((instant_us(said["from"]), plain))
        hosts.wait_until("STABLE", "a")
    noted = read_changes(hosts.store("a").open("counts").folder)
    assert [change.from_us for change in noted] == [from_us for from_us, _ in changes[1:]]
    check_the_end(hosts, readers, changes)


def _cut_for_a_while(hosts: Hosts, after_s: float) -> None:
    pause(round(after_s * SECOND))
    hosts.cut("flows>a", "a")
    pause(2 * SECOND)
    hosts.heal("flows>a", "a")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_host_killed_at_any_step_of_a_swap_goes_on_with_one_definition(hosts: Hosts) -> None:
    """Before the order is written with the old one, afterwards with the new one; results are whole either way."""
    readers, changes, old = Readers(hosts), [(0, dict[str, Any]())], application()
    for number, step in enumerate(STEPS):
        hosts.kill("a")
        kill_at = hosts.folder / "kill-at"
        hosts.start("a", HOLDFAST_KILL_AT=str(kill_at))
        hosts.wait_until("STABLE", "a")
        (hosts.folder / "app.py").write_text(new := application(scale=number + 2))
        kill_at.write_text(step)
        before = len(read_changes(hosts.store("a").open("counts").folder))
        refused(hosts, "--for", "0.5", "--swap")
        hosts.died("a")
        ordered = step not in ("swap-copied", "swap-stopped")
        (hosts.folder / "app.py").write_text(new if ordered else old)
        hosts.start("a")
        hosts.wait_until("STABLE", "a")
        noted = read_changes(hosts.store("a").open("counts").folder)
        assert len(noted) == before + ordered, step
        if ordered:
            changes.append((noted[-1].from_us, {"scale": number + 2}))
            old = new
    check_the_end(hosts, readers, changes)
