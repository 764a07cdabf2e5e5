"""The report beside a stream: whole, bounded, and a sign of life."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from holdfast.clock import monotonic_us
from holdfast.model.errors import CorruptLog, StorageError
from holdfast.model.time import BEGINNING_US
from holdfast.protocol.dpc.messages import StreamReport
from holdfast.protocol.dpc.states import StreamState
from holdfast.stream import report as module
from holdfast.stream.disk import Disk
from holdfast.stream.report import REPORT_BYTES_MAX, Report, ReportReader, ReportWriter, read_report, report_path
from holdfast.stream.sealed import seal

UP_FAILURE = StreamReport("s", StreamState.UP_FAILURE, 7_000_000, True)
STABLE = StreamReport("s", StreamState.STABLE, 9_000_000, False)


def test_a_reader_finds_what_was_published_last(tmp_path: Path) -> None:
    reader, writer = ReportReader(tmp_path), ReportWriter(tmp_path)
    reader.refresh()
    assert reader.report is None
    for said in (UP_FAILURE, STABLE):
        writer.publish(said)
        reader.refresh()
        assert reader.report == said
        assert monotonic_us() - reader.renewed_us < 5_000_000
    os.unlink(writer.path)
    reader.refresh()
    assert reader.report is None


def test_a_report_is_durable_whole_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    done: list[str] = []

    class Noting(Disk):
        def sync(self, fd: int, path: Path) -> None:
            done.append("sync")

        def rename(self, old: Path, new: Path) -> None:
            done.append(f"rename {new.name}")
            super().rename(old, new)

        def sync_dir(self, path: Path) -> None:
            done.append("sync_dir")

    (tmp_path / ".report.17-0badcafe.tmp").write_bytes(b"half made")
    ReportWriter(tmp_path, Noting()).publish(STABLE)
    assert done == ["sync", "rename report", "sync_dir"]
    assert os.listdir(tmp_path) == ["report"]
    assert report_path(tmp_path).stat().st_size < REPORT_BYTES_MAX / 4


def test_a_sign_of_life_is_renewed_now_and_then_without_a_new_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, reader, now = ReportWriter(tmp_path), ReportReader(tmp_path), [monotonic_us()]
    monkeypatch.setattr(module, "monotonic_us", lambda: now[0])
    writer.publish(UP_FAILURE)
    reader.refresh()
    inode = writer.path.stat().st_ino
    os.utime(writer.path, (1, 1))
    writer.renew()
    assert writer.path.stat().st_mtime == 1, "not before it is time"
    now[0] += module.REPORT_US
    writer.renew()
    assert writer.path.stat().st_mtime > 1
    assert writer.path.stat().st_ino == inode
    reader.refresh()
    assert now[0] - reader.renewed_us < module.REPORT_US
    os.unlink(writer.path)
    now[0] += module.REPORT_US
    writer.renew()
    assert read_report(writer.path) == UP_FAILURE


def test_at_the_first_look_the_age_of_a_report_is_that_of_the_wall_clock(tmp_path: Path) -> None:
    ReportWriter(tmp_path).publish(UP_FAILURE)
    old = time.time() - 3600
    os.utime(report_path(tmp_path), (old, old))
    reader = ReportReader(tmp_path)
    reader.refresh()
    assert monotonic_us() - reader.renewed_us > 3_000_000_000


def test_after_the_first_look_no_jump_of_the_wall_clock_makes_a_producer_dead(tmp_path: Path) -> None:
    """D19"""
    writer, reader = ReportWriter(tmp_path), ReportReader(tmp_path)
    writer.publish(UP_FAILURE)
    reader.refresh()
    for jumped in (time.time() - 86_400, time.time() + 86_400):
        os.utime(writer.path, (jumped, jumped))
        reader.refresh()
        assert monotonic_us() - reader.renewed_us < 5_000_000


def test_a_disk_that_refuses_is_tried_again_and_no_sign_of_life_is_given_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full(Disk):
        full = False

        def create(self, path: Path) -> int:
            if self.full:
                raise StorageError("could not create: no space left")
            return super().create(path)

    disk, now = Full(), [monotonic_us()]
    monkeypatch.setattr(module, "monotonic_us", lambda: now[0])
    writer = ReportWriter(tmp_path, disk)
    writer.publish(STABLE)
    os.utime(writer.path, (1, 1))
    disk.full = True
    writer.publish(UP_FAILURE)
    now[0] += module.REPORT_US
    writer.renew()
    assert read_report(writer.path) == STABLE
    assert writer.path.stat().st_mtime == 1
    disk.full = False
    now[0] += module.REPORT_US
    writer.renew()
    assert read_report(writer.path) == UP_FAILURE


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "checksum"),
        (b"x" * (REPORT_BYTES_MAX + 1), "at most 4096 bytes"),
        (seal(Report("s", "DREAMING", 0, False, 0)), "upgrade Holdfast"),
        (seal(Report("s", "STABLE", 0, False, 0, format=2)), "upgrade Holdfast"),
    ],
)
def test_what_is_no_report_is_refused_and_counts_as_that_of_a_dead_producer(
    data: bytes, reason: str, tmp_path: Path
) -> None:
    report_path(tmp_path).write_bytes(data)
    with pytest.raises(CorruptLog, match=reason):
        read_report(report_path(tmp_path))
    reader = ReportReader(tmp_path)
    reader.refresh()
    assert reader.report is not None
    assert reader.report.state is StreamState.FAILURE
    assert reader.renewed_us == BEGINNING_US
