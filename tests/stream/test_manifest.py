"""Epochs: who may speak (L7)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.model.errors import CorruptLog, Fenced, StreamBusy
from holdfast.stream.manifest import load_manifest, manifest_path
from holdfast.stream.writer import LogWriter
from tests.faults.units import QuietDisk, judge, last_sent, open_log, read_all, send


class Stop(BaseException):
    pass


class StoppingDisk(QuietDisk):
    """Stops for good in front of one kind of step."""

    def __init__(self, step: str, name: str, after: int = 0) -> None:
        self._stop, self._left = (step, name), after

    def unlink(self, path: Path) -> None:
        self._meet("unlink", path)
        super().unlink(path)

    def link(self, old: Path, new: Path) -> bool:
        self._meet("link", new)
        return super().link(old, new)

    def _meet(self, step: str, path: Path) -> None:
        if self._stop[0] == step and path.name.startswith(self._stop[1]):
            if not self._left:
                raise Stop
            self._left -= 1


def test_an_older_epoch_is_refused_after_a_newer_one_was_granted(tmp_path: Path) -> None:
    """L7."""
    old = open_log(tmp_path, disk=QuietDisk())
    send(old, 1)
    new = open_log(tmp_path, disk=QuietDisk(), takeover=True)
    assert (old.epoch, new.epoch) == (1, 2)
    with pytest.raises(Fenced, match="superseded by"):
        send(old, 2)
    send(new, 2)
    with pytest.raises(Fenced):
        send(old, 3)
    judge(tmp_path, 2, 2)
    old.release(1)
    send(new, 3)
    new.release(1)
    judge(tmp_path, 3, 3)


def test_an_older_epoch_stays_fenced_when_its_successor_died_between_its_two_steps(tmp_path: Path) -> None:
    """L7: version v+1 was published but v not yet unlinked; the third writer must not leave v standing alone."""
    paused = open_log(tmp_path, disk=QuietDisk())
    send(paused, 1)
    with pytest.raises(Stop):
        open_log(tmp_path, disk=StoppingDisk("unlink", "manifest-"), takeover=True)
    third = open_log(tmp_path, disk=QuietDisk(), takeover=True)
    send(third, 2)
    with pytest.raises(Fenced):
        send(paused, 2)
    send(third, 3)
    judge(tmp_path, 3, 3)
    paused.release(1)
    third.release(1)
    judge(tmp_path, 3, 3)
    assert len(list(tmp_path.glob("manifest-*"))) == 1


def test_a_writer_whose_successor_died_between_its_two_steps_loses_nothing_and_hears_of_it(tmp_path: Path) -> None:
    """L7, L1: tuples are still taken, and whoever comes next finds them; the next boundary says that there is another
    epoch, which readers follow."""
    first = open_log(tmp_path, disk=QuietDisk())
    send(first, 1)
    with pytest.raises(Stop):
        open_log(tmp_path, disk=StoppingDisk("unlink", "manifest-"), takeover=True)
    send(first, 2)
    with pytest.raises(Fenced):
        first.commit((), now_us=1, boundary_us=first.state.boundary_us + 1)
    third = open_log(tmp_path, disk=QuietDisk(), takeover=True)
    send(third, 3)
    judge(tmp_path, 3, 3)
    first.release(1)
    third.release(1)
    judge(tmp_path, 3, 3)


def test_a_reader_follows_when_a_writer_died_between_its_two_steps(tmp_path: Path) -> None:
    """The same gap as a reader sees it: it must not take a version for the newest for ever."""
    from holdfast.stream.reader import LogReader
    from tests.faults.units import BUCKET_US, SCHEMA, rows_of

    first = open_log(tmp_path, disk=QuietDisk())
    send(first, 1)
    reader = LogReader(tmp_path, SCHEMA, BUCKET_US)
    reader.refresh()
    with pytest.raises(Stop):
        open_log(tmp_path, disk=StoppingDisk("unlink", "manifest-"), takeover=True)
    third = open_log(tmp_path, disk=QuietDisk(), takeover=True)
    send(third, 2)
    reader.refresh()
    assert rows_of(reader) == read_all(tmp_path)
    judge(tmp_path, 2, 2)
    reader.close()
    first.release(1)
    third.release(1)


def test_of_two_writers_that_open_at_once_one_is_refused(tmp_path: Path) -> None:
    class Meanwhile(QuietDisk):
        rival = None

        def link(self, old: Path, new: Path) -> bool:
            if self.rival is None:
                self.rival = "opening"
                os.rename(tmp_path / "tail-00000001", tmp_path / "aside")  # The rival may not see our lock.
                self.rival = open_log(tmp_path, disk=QuietDisk())
            return super().link(old, new)

    disk = Meanwhile()
    with pytest.raises(Fenced, match="took epoch 1 first"):
        open_log(tmp_path, disk=disk)
    send(disk.rival, 1)
    disk.rival.release(1)
    judge(tmp_path, 1, 1)


def test_a_writer_that_looked_long_ago_cannot_claim_a_version_that_was_used_since(tmp_path: Path) -> None:
    """L7: its name is free again, but only because its holder was superseded and unlinked it."""

    class Meanwhile(QuietDisk):
        waiting = True

        def create(self, path: Path) -> int:
            if self.waiting:
                self.waiting = False
                os.rename(tmp_path / "tail-00000002", tmp_path / "aside")
                for k in range(2, 6):
                    other = open_log(tmp_path, disk=QuietDisk(), segment_bytes=1 << 20)
                    send(other, k)
                    other.release(k)
            return super().create(path)

    first = open_log(tmp_path, disk=QuietDisk(), segment_bytes=1 << 20)
    send(first, 1)
    first.release(1)
    with pytest.raises(Fenced, match="took epoch 2 first"):
        open_log(tmp_path, disk=Meanwhile(), segment_bytes=1 << 20)
    judge(tmp_path, 5, 5)
    last = open_log(tmp_path, disk=QuietDisk())
    send(last, 6)
    last.release(6)
    judge(tmp_path, 6, 6)


def test_a_writer_that_was_superseded_while_it_opened_sweeps_away_nothing_of_its_successor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L7, L1: it does not know the newer segments, but they are not left over."""
    successors = []
    sweep = LogWriter._sweep

    def late(writer: LogWriter) -> None:
        if not successors:
            successors.append(writer)
            successors[0] = open_log(tmp_path, disk=QuietDisk(), takeover=True)
            send(successors[0], 1)
        sweep(writer)

    monkeypatch.setattr(LogWriter, "_sweep", late)
    slow = open_log(tmp_path, disk=QuietDisk())
    with pytest.raises(Fenced):
        send(slow, 1)
    slow.release(1)
    judge(tmp_path, 1, 1)
    send(successors[0], 2)
    successors[0].release(1)
    judge(tmp_path, 2, 2)


def test_a_second_writer_is_refused_in_one_sentence_that_names_the_first(tmp_path: Path) -> None:
    first = open_log(tmp_path, disk=QuietDisk())
    send(first, 1)
    with pytest.raises(StreamBusy) as caught:
        open_log(tmp_path)
    assert first.owner in str(caught.value)
    assert "takeover=True" in str(caught.value)
    assert "\n" not in str(caught.value)
    send(first, 2)
    first.release(1)
    second = open_log(tmp_path, disk=QuietDisk())
    assert last_sent(second) == 2
    second.release(1)


def test_a_writer_that_opens_at_the_same_moment_is_asked_to_try_again(tmp_path: Path) -> None:
    import fcntl

    fd = os.open(tmp_path / "tail-00000001", os.O_RDWR | os.O_CREAT)
    fcntl.flock(fd, fcntl.LOCK_EX)
    with pytest.raises(StreamBusy, match="try again"):
        open_log(tmp_path)
    os.close(fd)
    open_log(tmp_path, disk=QuietDisk()).release(1)


def test_a_released_segment_is_taken_up_again_instead_of_leaving_small_ones(tmp_path: Path) -> None:
    for k in range(1, 6):
        writer = open_log(tmp_path, disk=QuietDisk(), segment_bytes=1 << 20)
        send(writer, k)
        writer.release(k)
    assert len(list(tmp_path.glob("*.seg"))) == 1
    judge(tmp_path, 5, 5)


def test_the_newest_manifest_counts_and_a_damaged_one_is_reported(tmp_path: Path) -> None:
    assert load_manifest(tmp_path) is None
    writer = open_log(tmp_path, disk=QuietDisk())
    writer.release(1)
    version = max(int(p.name.split("-")[1]) for p in tmp_path.glob("manifest-*"))
    path = manifest_path(tmp_path, version)
    path.write_bytes(path.read_bytes().replace(b'"epoch": 1', b'"epoch": 7', 1))
    with pytest.raises(CorruptLog, match="does not match its checksum"):
        load_manifest(tmp_path)
    with pytest.raises(CorruptLog):
        open_log(tmp_path)
