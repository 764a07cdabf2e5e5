"""Every write, sync, rename, link, unlink and create, cut before, inside and after (L1, L3, L8).

The cut is the death of a forked process at that very step: no handler, no clean-up, locks gone as after kill -9.
"""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from holdfast.stream.acks import acknowledge
from holdfast.stream.definition import Retention, define
from holdfast.stream.disk import Disk
from holdfast.stream.retention import retain
from holdfast.stream.store import StreamStore
from tests.faults.units import SCHEMA, QuietDisk, flat, heal, judge, open_log, removed_rows, send, unit_events

Ack = Callable[[int], None]


class Cut(NamedTuple):
    step: int
    where: str  # "before", "after", or "inside"
    bytes: int = 0


class CutDisk(QuietDisk):
    """Counts the steps; dies at one of them. The machine stays up, so nothing waits for the platter."""

    def __init__(self, cut: Cut | None = None) -> None:
        self.steps: list[tuple[str, str, int]] = []
        self._cut = cut

    def _step(
        self, name: str, path: Path, size: int, act: Callable[[], object], part: Callable[[int], object]
    ) -> object:
        self.steps.append((name, path.name, size))
        cut = self._cut if self._cut and self._cut.step == len(self.steps) else None
        if cut and cut.where == "before":
            os._exit(7)
        if cut and cut.where == "inside":
            part(cut.bytes)
            os._exit(7)
        result = act()
        if cut and cut.where == "after":
            os._exit(7)
        return result

    def write(self, fd: int, path: Path, offset: int, parts: Sequence[bytes]) -> int:
        whole = b"".join(parts)
        return self._step("write", path, len(whole), lambda: super(CutDisk, self).write(fd, path, offset, parts),
                          lambda n: os.pwrite(fd, whole[:n], offset))  # type: ignore[return-value]  # fmt: skip


def _stepped(name: str) -> Callable[..., object]:
    def method(self: CutDisk, *args: object) -> object:
        path = next(a for a in reversed(args) if isinstance(a, Path))
        return self._step(name, path, 0, lambda: getattr(QuietDisk, name)(self, *args), lambda _: None)

    return method


for _name in ("sync", "sync_dir", "create", "truncate", "link", "rename", "unlink", "make_dir"):
    setattr(CutDisk, _name, _stepped(_name))


# -- what is being cut ------------------------------------------------------------------------------------------------


def _nothing(folder: Path) -> int:
    return 0


def _released(folder: Path) -> int:
    writer = open_log(folder, disk=QuietDisk())
    for k in (1, 2):
        send(writer, k)
    writer.release(3)
    return 2


def _long(folder: Path) -> int:
    writer = open_log(folder, disk=QuietDisk(), segment_bytes=1024)
    for k in range(1, 9):
        send(writer, k)
    writer.release(9)
    return 8


def _abandoned(folder: Path) -> int:
    """A writer that died in the middle of its third unit."""
    if os.fork() == 0:
        writer = open_log(folder, disk=CutDisk(None))
        send(writer, 1)
        send(writer, 2)
        writer.disk._cut = Cut(len(writer.disk.steps) + 1, "inside", 200)  # type: ignore[attr-defined]
        send(writer, 3)
    os.wait()
    return 2


def _append(folder: Path, disk: Disk, ack: Ack, done: int) -> None:
    writer = open_log(folder, disk=disk)
    for k in (done + 1, done + 2):
        send(writer, k)
        ack(k)


def _roll(folder: Path, disk: Disk, ack: Ack, done: int) -> None:
    writer = open_log(folder, disk=disk, segment_bytes=256)
    for k in range(done + 1, done + 3):
        send(writer, k)
        ack(k)


def _release(folder: Path, disk: Disk, ack: Ack, done: int) -> None:
    writer = open_log(folder, disk=disk)
    send(writer, done + 1)
    ack(done + 1)
    writer.release(20)


def _retain(folder: Path, disk: Disk, ack: Ack, done: int) -> None:
    definition = define("s", SCHEMA, id=bytes(16).hex(), now_us=0, bucket="1ms")
    acknowledge(folder.parent, "reader", 6_000, 1, disk)
    retain(folder, definition, 30, disk=disk, policy=Retention(acknowledged=True))
    writer = open_log(folder, disk=disk, segment_bytes=256)
    send(writer, done + 1)
    ack(done + 1)
    acknowledge(folder.parent, "reader", 7_000, 1, disk)
    retain(folder, definition, 30, disk=disk, policy=Retention(size_bytes=1))


SCENARIOS = {
    "first open and append": (_nothing, _append),
    "append": (_released, _append),
    "roll": (_released, _roll),
    "resume and release": (_released, _release),
    "open after a crash": (_abandoned, _append),
    "open after a crash and roll": (_abandoned, _roll),
    "retention": (_long, _retain),
}


def _run(scenario: str, folder: Path, acks: Path, done: int, cut: Cut | None) -> tuple[int, list[tuple[str, str, int]]]:
    """Run in a child that dies at the cut; the units acknowledged before, and the steps if it lived."""
    act = SCENARIOS[scenario][1]
    out = os.open(acks, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(out, struct.pack("<q", done))
    disk = CutDisk(cut)
    if cut is None:
        act(folder, disk, lambda k: os.write(out, struct.pack("<q", k)) and None, done)
        os.close(out)
        return done, disk.steps
    child = os.fork()
    if child == 0:
        try:
            act(folder, disk, lambda k: os.write(out, struct.pack("<q", k)) and None, done)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    os.close(out)
    assert os.waitstatus_to_exitcode(status) == 7, f"{cut} was never reached, or an error came before it"
    return struct.unpack("<q", acks.read_bytes()[-8:])[0], []


def _cuts(steps: list[tuple[str, str, int]]) -> list[Cut]:
    found = []
    for number, (name, _, size) in enumerate(steps, start=1):
        found.append(Cut(number, "before"))
        # Behind the others nothing happens but the next step, before which there is a cut anyway.
        if name in ("sync", "link", "rename") or number == len(steps):
            found.append(Cut(number, "after"))
        for at in sorted({1, 64, size // 2, size - 1}):
            if 0 < at < size:
                found.append(Cut(number, "inside", at))
    return found


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_process_that_dies_at_any_step_loses_tears_and_doubles_nothing(scenario: str, tmp_path: Path) -> None:
    """L1, L3: acknowledged units are there byte-equal, unacknowledged ones whole or absent, a retry adds nothing."""
    template, whole = tmp_path / "template", tmp_path / "whole"
    template.mkdir()
    done = SCENARIOS[scenario][0](template / "main")
    shutil.copytree(template, whole)
    child = os.fork()
    if child == 0:
        steps = _run(scenario, whole / "main", tmp_path / "whole.acks", done, None)[1]
        (tmp_path / "steps").write_text(repr(steps))
        os._exit(0)
    os.waitpid(child, 0)
    steps = eval((tmp_path / "steps").read_text())
    assert {name for name, _, _ in steps} >= {"write", "sync", "sync_dir", "create", "link", "unlink"}
    for i, cut in enumerate(_cuts(steps)):
        folder = tmp_path / str(i) / "main"
        shutil.copytree(template, folder.parent)
        acked, _ = _run(scenario, folder, tmp_path / f"{i}.acks", done, cut)
        try:
            if folder.exists():
                judge_after_retention(folder)
            heal(folder, acked, acked + 1)
        except Exception as error:
            raise AssertionError(f"{scenario}: cut {cut} at {steps[cut.step - 1]}") from error
        shutil.rmtree(folder.parent)


def judge_after_retention(folder: Path) -> None:
    """L8: what the subscriber has not acknowledged (from stime 6000 on, at least) is there."""
    assert removed_rows(folder) <= sum(1 for stime, _, _ in flat(list(range(1, 20))) if stime < 7_000)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_process_that_dies_while_it_creates_a_stream_leaves_a_whole_one_or_none(moment: str, tmp_path: Path) -> None:
    counting = CutDisk()
    StreamStore(tmp_path / "count", disk=counting).create("s", "n bigint")
    for step in range(1, len(counting.steps) + 1):
        root = tmp_path / f"{step}"
        child = os.fork()
        if child == 0:
            try:
                StreamStore(root, disk=CutDisk(Cut(step, moment))).create("s", "n bigint")
            finally:
                os._exit(1)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 7
        store = StreamStore(root)
        stream = store.open("s") if store.names() else store.create("s", "n bigint")
        with stream.producer() as producer:
            assert producer.send({"n": 1}).rows == 1
        assert [r.values for r in stream.subscribe().rows()] == [{"n": 1}]


def test_the_judge_refuses_a_log_that_lacks_or_doubles_a_unit(tmp_path: Path) -> None:
    writer = open_log(tmp_path / "main", disk=QuietDisk())
    send(writer, 1)
    judge(tmp_path / "main", 1, 1)
    with pytest.raises(AssertionError):
        judge(tmp_path / "main", 2, 2)
    writer.commit([e._replace(bucket=2, stime_min_us=2_000, stime_max_us=2_000) for e in unit_events(1)], now_us=2)
    with pytest.raises(AssertionError):
        judge(tmp_path / "main", 1, 2)
    writer.release(9)
