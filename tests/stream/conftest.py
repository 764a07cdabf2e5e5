"""Streams with everything in them that a stream can have on disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast
from holdfast.model.errors import StorageError
from holdfast.protocol.dpc.messages import StreamReport
from holdfast.protocol.dpc.states import StreamState
from holdfast.stream.disk import Disk
from holdfast.stream.report import ReportWriter

SECOND = 1_000_000


class FilledStream:
    """A released stream of several segments, with a head, acknowledgements and a tentative branch."""

    def __init__(self, root: Path, *, partition_by: str | None = None) -> None:
        self.store = holdfast.open(root)
        self.stream = self.store.create(
            "s", "n bigint, word string, at timestamp", bucket="1s", partitions=2, partition_by=partition_by,
            segment_bytes=4096,
        )  # fmt: skip
        self.folder = self.stream.folder
        with self.stream.producer(stime="at", slack="2s") as producer:
            for n in range(0, 60, 5):
                self.send(producer, range(n, n + 5))
            producer.close(end=False)

    def send(self, producer: holdfast.Producer, numbers: range) -> None:
        rows = [{"n": n, "word": f"w{n % 7}", "at": _moment(n)} for n in numbers]
        producer.send_many(rows, seq=numbers[-1])

    def dress(self) -> None:
        """Add what not every stream has: acknowledgements, a head, a branch, a report."""
        subscriber = self.stream.subscribe(name="reader", end=40)
        list(subscriber.batches(timeout=0))
        subscriber.ack()
        assert self.stream.retain(holdfast.Retention(acknowledged=True)).segments
        self.stream.create_branch(70 * SECOND)
        branch = holdfast.Producer(self.stream.definition, self.stream.branch_writer(), stime="at")
        self.send(branch, range(70, 80))
        branch.close(end=False)
        ReportWriter(self.folder).publish(StreamReport("s", StreamState.UP_FAILURE, 60 * SECOND, True))

    def numbers(self) -> list[int]:
        with self.stream.producer() as producer:
            producer.close()
        return [row.values["n"] for row in self.stream.subscribe().rows(timeout=0)]


def _moment(n: int):  # type: ignore[no-untyped-def]
    from datetime import UTC, datetime

    # Every fifth comes a second late, within the slack.
    return datetime.fromtimestamp(n - (1.5 if n % 5 == 0 else 0) + 2, UTC)


@pytest.fixture
def filled(tmp_path: Path) -> FilledStream:
    return FilledStream(tmp_path / "streams")


class Cut(BaseException):
    """The machine stops here. Not an Exception, so that nobody handles it."""


class CuttingDisk(Disk):
    """Stops for good before step number `at`."""

    def __init__(self, at: int) -> None:
        self.left = at

    def _step(self) -> None:
        if self.left == 0:
            raise Cut
        self.left -= 1


def _cutting(name: str) -> Callable[..., object]:
    plain = getattr(Disk, name)

    def step(self: CuttingDisk, *args: object) -> object:
        self._step()
        return plain(self, *args)

    return step


for _name in ("write", "sync", "sync_dir", "create", "truncate", "link", "rename", "unlink", "make_dir"):
    setattr(CuttingDisk, _name, _cutting(_name))


class FullDisk(Disk):
    """Refuses every write, as a full disk does."""

    def create(self, path: Path) -> int:
        raise StorageError(f"could not create {path}: No space left on device")
