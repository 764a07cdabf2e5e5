"""The log against a list, with everything that can happen to it in any order (L1, L3, L5, L6, L7, L8)."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from holdfast.model.errors import Fenced, LateTuple, StreamBusy, UsageError
from holdfast.stream.acks import acknowledge
from holdfast.stream.definition import Retention, define
from holdfast.stream.reader import LogReader
from holdfast.stream.retention import retain
from holdfast.stream.writer import LogWriter
from tests.faults.units import (
    BUCKET_US,
    SCHEMA,
    QuietDisk,
    flat,
    judge,
    last_sent,
    open_log,
    read_all,
    removed_rows,
    rows_of,
    send,
)

DEFINITION = define("s", SCHEMA, id=bytes(16).hex(), now_us=0, bucket="1ms")


class Crash(BaseException):
    pass


class CrashDisk(QuietDisk):
    """Crashes after so many steps, a write in the middle."""

    left: int | None = None

    def _step(self) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left <= 0:
                raise Crash

    def write(self, fd: int, path: Path, offset: int, parts: Sequence[bytes]) -> int:
        if self.left is not None and self.left <= 1:
            whole = b"".join(parts)
            super().write(fd, path, offset, [whole[: len(whole) * 2 // 3]])
        self._step()
        return super().write(fd, path, offset, parts)

    def create(self, path: Path) -> int:
        self._step()
        return super().create(path)

    def link(self, old: Path, new: Path) -> bool:
        self._step()
        return super().link(old, new)

    def rename(self, old: Path, new: Path) -> None:
        self._step()
        super().rename(old, new)

    def unlink(self, path: Path) -> None:
        self._step()
        super().unlink(path)

    def sync(self, fd: int, path: Path) -> None:
        self._step()


class LogMachine(RuleBasedStateMachine):
    """`sent` is the list; units up to `acked` must be there, the one after it may be."""

    def __init__(self) -> None:
        super().__init__()
        self.base = Path(tempfile.mkdtemp(prefix="holdfast-stateful-"))
        self.folder = self.base / "main"
        self.acked = self.sent = self.needless_us = 0
        self.disk = CrashDisk()
        self.writer: LogWriter | None = None
        self.old: list[LogWriter] = []
        self.reader = LogReader(self.folder, SCHEMA, BUCKET_US)
        self.seen = 0

    @initialize()
    def first(self) -> None:
        self.writer = open_log(self.folder, disk=self.disk)

    def _know(self) -> None:
        assert self.writer is not None
        known = last_sent(self.writer)
        assert self.acked <= known <= self.sent
        self.acked = self.sent = known

    @precondition(lambda self: self.writer is not None)
    @rule(count=st.integers(1, 4))
    def append(self, count: int) -> None:
        for _ in range(count):
            self.sent = self.acked + 1
            send(self.writer, self.sent)  # type: ignore[arg-type]
            self.acked = self.sent

    @precondition(lambda self: self.writer is not None and self.acked > 0)
    @rule()
    def append_late(self) -> None:
        with pytest.raises(LateTuple):
            send(self.writer, self.acked)  # type: ignore[arg-type]

    @precondition(lambda self: self.writer is not None)
    @rule()
    def release(self) -> None:
        writer, self.writer = self.writer, None
        assert writer is not None
        writer.release(1)
        with pytest.raises(UsageError):
            send(writer, self.acked + 1)

    @precondition(lambda self: self.writer is None)
    @rule(size=st.sampled_from([64, 2048, 1 << 20]))
    def reopen(self, size: int) -> None:
        """Crashed writers are only dropped here, so they hold their lock: taking over is what a new process does."""
        self.writer = open_log(self.folder, disk=self.disk, takeover=True, segment_bytes=size)
        self._know()

    @precondition(lambda self: self.writer is not None)
    @rule(size=st.sampled_from([64, 2048, 1 << 20]))
    def race(self, size: int) -> None:
        with pytest.raises(StreamBusy):
            open_log(self.folder)
        self.old.append(self.writer)  # type: ignore[arg-type]
        self.writer = open_log(self.folder, disk=self.disk, takeover=True, segment_bytes=size)
        self._know()

    @precondition(lambda self: self.old and self.writer is not None)
    @rule(data=st.data())
    def old_writer_speaks(self, data: st.DataObject) -> None:
        """L7: all of them were superseded when the present one opened; some had been released before."""
        old = data.draw(st.sampled_from(self.old), label="who")
        with pytest.raises((Fenced, UsageError)):
            send(old, max(last_sent(old), self.acked) + 5)

    @precondition(lambda self: self.writer is not None)
    @rule(steps=st.integers(1, 12), then=st.sampled_from(["append", "release", "takeover"]))
    def crash(self, steps: int, then: str) -> None:
        self.disk.left = steps
        try:
            with contextlib.suppress(Crash):
                if then == "append":
                    while True:
                        self.sent = self.acked + 1
                        send(self.writer, self.sent)  # type: ignore[arg-type]
                        self.acked = self.sent
                if then == "release":
                    self.writer.release(1)  # type: ignore[union-attr]
                else:
                    open_log(self.folder, disk=self.disk, takeover=True).release(1)
        finally:
            self.disk.left = None
        self.old.append(self.writer)  # type: ignore[arg-type]
        self.writer = None

    @rule(data=st.data())
    def lose_indexes(self, data: st.DataObject) -> None:
        """L5."""
        for path in sorted(self.folder.glob("*.idx")):
            what = data.draw(st.sampled_from(["keep", "delete", "damage"]))
            if what == "delete":
                path.unlink()
            elif what == "damage":
                raw = path.read_bytes()
                path.write_bytes(raw[: len(raw) // 2])

    @rule(share=st.floats(0, 1), size=st.sampled_from([1, 2000, 8000]), steps=st.integers(1, 30))
    def retention(self, share: float, size: int, steps: int) -> None:
        self.needless_us = max(self.needless_us, int((self.acked + 1) * share) * BUCKET_US)
        acknowledge(self.base, "reader", self.needless_us, 1, QuietDisk())
        disk = CrashDisk()
        disk.left = steps
        with contextlib.suppress(Crash):
            retain(self.folder, DEFINITION, 1, disk=disk, policy=Retention(size_bytes=size))

    @rule()
    def follow(self) -> None:
        """L6: a reader that follows sees what is there, and never less than before."""
        self.reader.refresh()
        got = rows_of(self.reader)
        gone = removed_rows(self.folder)
        numbered = list(enumerate(flat(list(range(1, self.sent + 1))), start=1))
        last = got[-1][0] if got else gone
        assert got == numbered[gone:last]
        assert last >= self.seen
        self.seen = last

    @invariant()
    def nothing_is_lost(self) -> None:
        if self.folder.exists():
            judge(self.folder, self.acked, self.sent)
            needless = sum(1 for stime, _, _ in flat(list(range(1, self.sent + 1))) if stime < self.needless_us)
            assert removed_rows(self.folder) <= needless  # L8

    def teardown(self) -> None:
        try:
            if self.writer is not None:
                self.writer.release(1)
            for old in self.old:
                old.release(1)
            self.reader.close()
            if self.sent:
                final = open_log(self.folder, disk=QuietDisk())
                k = last_sent(final) + 1
                send(final, k)
                final.release(1)
                judge(self.folder, k, k)
                assert len(list(self.folder.glob("manifest-*"))) == 1
                assert read_all(self.folder)
        finally:
            shutil.rmtree(self.base)


TestLogAgainstAList = pytest.mark.slow(LogMachine.TestCase)
TestLogAgainstAList.settings = settings(
    max_examples=40, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True
)
