"""kill -9 at the steps of a striped commit: nothing is lost, and nothing is twice (L1, L3, L6).

HOLDFAST_STRIPE_KILLS=50: so many of each, and more of each sender; else one at a step by chance, so that all are found
in the end. A step is one operation on the disk that changes something, of any stripe.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from holdfast.stream.checking.verify import verify
from holdfast.stream.disk import Disk
from holdfast.stream.store import StreamStore
from holdfast.stream.striped_producer import send_numbered
from tests.faults.units import QuietDisk
from tests.stream.archive_process import KilledDisk, Steps

KILLS = int(os.environ.get("HOLDFAST_STRIPE_KILLS", "0")) or 1
#: A sender that was killed is killed again so many steps later in its way.
AGAIN = 7 if KILLS > 1 else 31
STRIPES, UNITS = 4, 12
T0_US = 1_700_000_000_000_000


def unit(number: int) -> list[dict[str, Any]]:
    """Rows of several stripes; the last number of some units belongs to one alone."""
    keys = range(1 if number % 4 == 3 else 7)
    return [{"k": f"k{k}", "n": 100 * number + k, "at": T0_US + number * 400_000 + k} for k in keys]


def send(root: Path, at: int, *, timed: bool) -> int:
    """What its sender does: begin behind the last unit that is there. Killed at a step; else how many there were."""
    steps = Steps(at)
    disk: Disk = KilledDisk(steps)
    stream = StreamStore(root, disk=disk).open_striped("o")
    options: dict[str, Any] = {"stime": "at", "slack": "1s"} if timed else {}
    with stream.producer(id="shop", takeover=True, boundary_every="60s", **options) as producer:
        for number in range(producer.last_seq + 1, UNITS):
            producer.send_many(unit(number), seq=number)
            if number % 3 == 0:
                producer.send_many(unit(number), seq=number)  # As somebody who did not hear of it.
    return steps.count


def send_anew(root: Path, at: int) -> int:
    """A sender of numbered rows that cuts them into other units each time, as a file is read."""
    steps, chance = Steps(at), random.Random()
    rows = [row for number in range(UNITS) for row in unit(number)]
    stream = StreamStore(root, disk=KilledDisk(steps)).open_striped("o")
    with stream.producer(id="shop", takeover=True, boundary_every="60s", stime="at", slack="1s") as producer:
        begin = producer.last_seq + 1
        while begin < len(rows):
            end = min(begin + chance.randint(1, 9), len(rows))
            send_numbered(producer, rows[begin:end], range(begin, end), end - 1, None)
            begin = end
    return steps.count


def forked(root: Path, at: int, *, timed: bool, anew: bool = False) -> int | None:
    """Steps that it took; None if it was killed."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(write, str(send_anew(root, at) if anew else send(root, at, timed=timed)).encode())
        finally:
            os._exit(0)
    os.close(write)
    _, status = os.waitpid(pid, 0)
    with open(read) as said:
        text = said.read()
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    assert killed or text, "it failed instead of being killed"
    return int(text) if text else None


def made(root: Path, by: str | None) -> Path:
    store = StreamStore(root, disk=QuietDisk())
    store.create_striped("o", "k string, n bigint, at bigint", stripes=STRIPES, stripe_by=by, bucket="1s")
    return root


def check(root: Path, step: str) -> None:
    stream = StreamStore(root).open_striped("o")
    rows = list(stream.subscribe().rows(timeout=0))
    assert Counter(row.values["n"] for row in rows) == Counter(r["n"] for i in range(UNITS) for r in unit(i)), step
    for stripe in stream.stripes:
        assert [f for f in verify(stripe.folder) if f.file.suffix != ".idx"] == [], step  # L5: those are built again.
        for key in {f"k{k}" for k in range(7)}:  # In the order in which they were sent.
            found = [row.values["n"] for row in stripe.subscribe().rows(timeout=0) if row.values["k"] == key]
            assert found == sorted(found), step


@pytest.mark.parametrize("by", ["k", None])
@pytest.mark.parametrize("timed", [True, False])
def test_a_producer_is_killed_at_every_step_of_its_units(tmp_path: Path, by: str | None, timed: bool) -> None:
    steps = forked(made(tmp_path / "whole", by), -1, timed=timed)
    assert steps is not None
    check(tmp_path / "whole", "without a kill")
    count = min(KILLS, steps)
    for at in sorted(random.SystemRandom().sample(range(steps), count)):
        root = made(tmp_path / "killed", by)
        while forked(root, at, timed=timed) is None:  # Again at the same step: later in its way.
            at += AGAIN
        check(root, f"killed at {at} of {steps}")
        shutil.rmtree(root)


def test_a_sender_that_cuts_its_rows_into_other_units_is_killed_at_every_step(tmp_path: Path) -> None:
    """Of a unit that came to some of its stripes, the rows that are there are not taken again."""
    for at in sorted(random.SystemRandom().sample(range(60), KILLS)):
        root, step = made(tmp_path / "killed", "k"), at
        while forked(root, step, timed=True, anew=True) is None:
            step += AGAIN
        check(root, f"killed at {at}, and each {AGAIN} steps later")
        shutil.rmtree(root)
