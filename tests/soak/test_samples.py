"""The soak sees what grows, and leaves out what does not matter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.soak.samples import BatchTimes, bytes_below, descriptors, growth, judged, process_sizes, table


def test_growth_is_that_of_the_last_quarter_over_the_second_whatever_happened_for_a_moment() -> None:
    values = [1, 50, 90, 90, 100, 900, 100, 900, 100, 100, 100, 100, 700, 5, 108, 700]
    assert growth([{"x": v} for v in values])["x"] == (100, 108, pytest.approx(0.08))


def test_what_was_not_there_in_both_quarters_is_not_compared() -> None:
    assert growth([{"x": 1}, {"x": 1}, {}, {"y": 1}]) == {}


def test_a_batch_lasts_from_its_offsets_to_its_commit_and_is_counted_once(tmp_path: Path) -> None:
    for folder in ("offsets", "commits"):
        (tmp_path / "checkpoint" / folder).mkdir(parents=True)
    times = BatchTimes(tmp_path)

    def batch(number: int, seconds: float, committed: bool = True) -> None:
        begun = 1_000_000 + number
        for folder, at in (("offsets", begun), ("commits", begun + seconds)):
            if folder == "offsets" or committed:
                path = tmp_path / "checkpoint" / folder / str(number)
                path.touch()
                os.utime(path, (at, at))

    batch(9, 0.5)
    batch(10, 0.25)
    batch(11, 0.0, committed=False)
    assert times.new() == [500, 250]
    batch(11, 0.125)
    assert times.new() == [125]


def test_processes_are_counted_with_those_below_them_by_kind(tmp_path: Path) -> None:
    below = "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=0); p.wait()"
    process = subprocess.Popen([sys.executable, "-c", below], stdin=subprocess.PIPE)
    try:
        while "a workers: threads" not in (found := process_sizes("a", process.pid)):
            assert process.poll() is None
        assert (found["a host: processes"], found["a workers: processes"]) == (1, 1)
        assert found["a host: memory, MB"] > 1
        assert found["a host: descriptors"] >= 3
        assert "a jvm: threads" not in found
    finally:
        process.communicate(b"\n")


#: A process of its own, where nothing else opens or closes anything meanwhile.
OPENED = """
import select, socket, sys
print("begun", flush=True)
sys.stdin.readline()
listener = socket.create_server(("127.0.0.1", 0))
held = [listener, socket.create_connection(listener.getsockname()), select.epoll()]
held += [open(f"{sys.argv[1]}/{name}", "w") for name in ("0001", "0002")]
print("opened", flush=True)
sys.stdin.readline()
"""


def test_descriptors_that_have_come_say_what_they_are(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", OPENED, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None

    def seen() -> dict[str, float]:
        return {f"a host: of which {what}": many for what, many in descriptors(process.pid).items()}

    try:
        assert process.stdout.readline() == "begun\n"
        before = seen()
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "opened\n"
        found = growth([before, before, seen(), seen()])
    finally:
        process.communicate("\n")
    came = {key.partition("which ")[2]: after - before for key, (before, after, _) in found.items() if after != before}
    (file,) = [what for what in came if what.endswith("/#")]
    assert came == {"tcp sockets listening": 1, "tcp sockets established": 1, "[eventpoll]": 1, file: 2}
    assert not any(map(judged, found))
    shown = table({**found, "a host: descriptors": (3, 3, 0.0)}, {"a host: descriptors": "  GROWN"})
    assert len(shown.splitlines()) == 2 + len(came), "what is judged is shown always, the rest where it has changed"


def test_disk_leaves_out_what_is_meant_to_stay(tmp_path: Path) -> None:
    for name in ("log", "kept"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_bytes(b"x" * 100_000)
    whole, rest = bytes_below(tmp_path), bytes_below(tmp_path, [tmp_path / "kept"])
    assert 100_000 <= rest < whole
