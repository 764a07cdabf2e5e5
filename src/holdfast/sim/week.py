"""One input is away for a week, under virtual time: the files that a host would keep stay what they were (003 §4.9).

    python -m holdfast.sim.week --days 7

The core of a convergent-capable node, and the real files: a mirror of each input, the tentative branch with what its
buckets are worth, the plan of the fork. Buckets last a minute; what is kept of an input that waits, half an hour.

1. One input goes away and the other goes on. Every hour the bytes of each kind of file are counted.
2. After the first hours nothing may grow: no count of the last day exceeds the largest of the first hours by 5 % and
   what is removed at a time.
3. Then the input is back: the branch is dropped, and stable results go on where the buffer began.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa

from holdfast.model.time import BEGINNING_US, SECOND_US
from holdfast.protocol.dpc.effects import Effects, ExtendFork
from holdfast.protocol.dpc.messages import KeepaliveReply, KeepaliveRequest, StreamReport
from holdfast.protocol.dpc.node import NodeCore
from holdfast.protocol.dpc.plan import Full, InputPlan, NodePlan, OutputPlan, Resume
from holdfast.protocol.dpc.signals import (
    Arrival,
    ForkCompleted,
    ForkPrepared,
    InputAdvanced,
    Lane,
    Received,
    Signal,
    StableCompleted,
    Tick,
)
from holdfast.protocol.dpc.states import NodeState, StreamState
from holdfast.stream.acks import acknowledge
from holdfast.stream.branch import branch_folder
from holdfast.stream.definition import Retention
from holdfast.stream.disk import VolatileDisk
from holdfast.stream.pack import pack
from holdfast.stream.store import Stream, StreamStore
from holdfast.stream.tentative import PLAN_BYTES, PlannedPiece, PlanWriter
from holdfast.stream.worth import Worth, note_worth

BUCKET_US = 60 * SECOND_US
HOUR = 60
DAY = 24 * HOUR
CAPACITY, WINDOW = 30, 10
"""In buckets."""
ROWS = 5
#: Of mirrors and of the branch: so small that they are filled within half an hour.
SEGMENT_BYTES = 1 << 14
#: What later hours are compared with: all of the first ones but the very first.
FIRST_HOURS = 3
GROWTH_MAX = 0.05
#: Whole segments are removed, and each log may have one more than it had; worth and plan are cut in steps, too.
_GRAIN = {"mirrors": 2 * SEGMENT_BYTES, "branch": SEGMENT_BYTES, "worth": 1 << 14, "plan": PLAN_BYTES}
_PRESENT, _AWAY = "x", "y"


class Host:
    """Does at once whatever the core wants, with files below `folder`."""

    def __init__(self, folder: Path) -> None:
        inputs = tuple(InputPlan(name, (f"p{name}",)) for name in (_PRESENT, _AWAY))
        output = OutputPlan("out", (_PRESENT, _AWAY), (), CAPACITY * BUCKET_US, Full.KEEP_LAST)
        self.plan = NodePlan("n", inputs, output, (), BUCKET_US, 2 * BUCKET_US, 20 * SECOND_US,
                             window_us=WINDOW * BUCKET_US)  # fmt: skip
        self.core = NodeCore(self.plan, Resume(0, 0, 0), 0)
        self.now_us = self.boundary_us = self.read = 0
        self.skips: list[int] = []
        self.gone = False
        store = StreamStore(folder, disk=VolatileDisk(), clock=lambda: self.now_us)
        streams = {
            name: store.create(name, "n bigint", bucket="1m", segment_bytes=SEGMENT_BYTES,
                               retention=Retention(acknowledged=name != "out"))
            for name in (_PRESENT, _AWAY, "out")
        }  # fmt: skip
        self._out = streams.pop("out")
        self._mirrors: Mapping[str, Stream] = streams
        self._writers = {name: stream.writer() for name, stream in streams.items()}
        self._readers = {name: stream.reader() for name, stream in streams.items()}
        self._plan_path, self._done_us = folder / "plan", BEGINNING_US
        self._plan: PlanWriter | None = None
        self._branched = False

    # Time ---------------------------------------------------------------------------------------------------------

    def minute(self) -> None:
        """A bucket of each input that is there."""
        bucket = self.boundary_us // BUCKET_US
        self.boundary_us += BUCKET_US
        self.now_us += BUCKET_US
        for name in (_PRESENT,) if self.gone else (_PRESENT, _AWAY):
            self._write(name, bucket)
            self._tell(InputAdvanced(name, f"p{name}", Lane.MAIN, self.boundary_us, (Arrival(bucket, ROWS),)))
        self._tell(Tick())
        for stream in self._mirrors.values():
            acknowledge(stream.folder, "host", self.core.needed_from * BUCKET_US, self.now_us, VolatileDisk())

    def back(self) -> None:
        """The input has come back, with what it can still give."""
        self.gone = False
        first = max(self.core.needed_from, 0)
        closed = self._readers[_AWAY]
        closed.refresh()
        begin = max(first, closed.boundary_us // BUCKET_US)
        buckets = range(begin, self.boundary_us // BUCKET_US)
        for bucket in buckets:
            self._write(_AWAY, bucket)
        arrivals = tuple(Arrival(bucket, ROWS) for bucket in buckets)
        self._tell(InputAdvanced(_AWAY, f"p{_AWAY}", Lane.MAIN, self.boundary_us, arrivals))

    def sizes(self) -> dict[str, int]:
        """Bytes of files, by what they are for."""
        branch = branch_folder(self._out.folder)
        return {
            "mirrors": sum(_bytes(stream.folder) for stream in self._mirrors.values()),
            "branch": _bytes(branch) - _bytes(branch / "worth"),
            "worth": _bytes(branch / "worth"),
            "plan": _bytes(self._plan_path),
        }

    def close(self) -> None:
        """Let go of all files."""
        for name in self._mirrors:
            self._writers[name].release(self.now_us)
            self._readers[name].close()
        if self._plan is not None:
            self._plan.close()

    # Files --------------------------------------------------------------------------------------------------------

    def _write(self, name: str, bucket: int) -> None:
        events = pack(self._rows(self._mirrors[name], bucket), self._mirrors[name].definition)
        self._writers[name].commit(events, now_us=self.now_us, boundary_us=(bucket + 1) * BUCKET_US)

    @staticmethod
    def _rows(stream: Stream, bucket: int) -> pa.RecordBatch:
        stimes = pa.array([bucket * BUCKET_US] * ROWS, pa.timestamp("us", tz="UTC"))
        numbers = pa.array(range(ROWS), pa.int64())
        return pa.record_batch([stimes, numbers], schema=stream.definition.stored)

    def _extend(self, order: ExtendFork) -> None:
        """As a host's fork runner does, and the fork itself, as Spark's sink."""
        seen = [bucket.bucket for bucket in order.buckets if bucket.emit]
        if seen and not self._branched:
            self._branched = True
            self._out.create_branch(seen[0] * BUCKET_US, kept_us=self.plan.tentative_us)
        if seen:
            worths = [Worth(bucket, 0.5, (_PRESENT,), 0.25, (_AWAY,)) for bucket in seen]
            note_worth(self._out.folder, self._out.definition, worths)
        if self._plan is None:
            self._plan = PlanWriter(self._plan_path)
        planned = [((b.bucket + 1) * BUCKET_US, self._pieces(b.bucket)) for b in order.buckets]
        self._plan.append(planned, self._done_us)
        self._done_us = planned[-1][0]
        if seen:
            writer = self._out.branch_writer()
            for bucket in seen:
                events = pack(self._rows(self._out, bucket), self._out.definition)
                writer.commit(events, now_us=self.now_us, boundary_us=(bucket + 1) * BUCKET_US)
            writer.release(self.now_us)

    def _pieces(self, bucket: int) -> tuple[PlannedPiece, ...]:
        reader = self._readers[_PRESENT]
        reader.refresh()
        found = reader.extents(bucket * BUCKET_US, (bucket + 1) * BUCKET_US)
        return tuple(PlannedPiece(0, str(reader.folder / extent.segment), extent.fields) for extent in found)

    # The core -----------------------------------------------------------------------------------------------------

    def _tell(self, signal: Signal) -> None:
        waiting = [signal]
        while waiting:
            waiting += self._done(self.core.handle(waiting.pop(0), self.now_us))

    def _done(self, effects: Effects) -> Sequence[Signal]:
        facts: list[Signal] = []
        if effects.stop_fork is not None and effects.stop_fork.drop_branch:
            self._out.drop_branch()
            self._branched = False
        if effects.skip_stable is not None:
            self.skips.append(effects.skip_stable.to)
            self.read = effects.skip_stable.to
        if effects.read_stable is not None and effects.read_stable.upto > self.read:
            self.read = effects.read_stable.upto
            facts.append(StableCompleted(self.read, self.read * BUCKET_US))
        if effects.prepare_fork is not None:
            facts.append(ForkPrepared(effects.prepare_fork.fork, self.core.stable))
        if effects.extend_fork is not None:
            self._extend(effects.extend_fork)
            facts.append(ForkCompleted(effects.extend_fork.fork, effects.extend_fork.buckets[-1].bucket + 1))
        for send in effects.send:
            if isinstance(send.message, KeepaliveRequest) and not (self.gone and send.to == f"p{_AWAY}"):
                report = StreamReport(send.to[1:], StreamState.STABLE, self.boundary_us, False)
                facts.append(Received(send.to, KeepaliveReply((report,))))
        return facts


def _bytes(place: Path) -> int:
    if place.is_dir():
        return sum(path.stat().st_size for path in place.rglob("*") if path.is_file())
    return place.stat().st_size if place.exists() else 0


def grown(hours: Sequence[Mapping[str, int]]) -> dict[str, tuple[int, int]]:
    """Rule 2: the kinds of file that have grown, with the most of the first hours and of the last day."""
    found = {}
    for kind, grain in _GRAIN.items():
        before = max(sizes[kind] for sizes in hours[1:FIRST_HOURS])
        after = max(sizes[kind] for sizes in hours[-DAY // HOUR :])
        if after > before * (1 + GROWTH_MAX) + grain:
            found[kind] = before, after
    return found


def week(folder: Path, days: float) -> tuple[list[dict[str, int]], Host]:
    """The input away for so long, and back; what there was each hour."""
    host, hours = Host(folder), []
    for _ in range(5):
        host.minute()
    host.gone = True
    for minute in range(round(days * DAY)):
        host.minute()
        if minute % HOUR == HOUR - 1:
            hours.append(host.sizes())
    host.back()
    for _ in range(3):
        host.minute()
    host.close()
    return hours, host


def main(argv: list[str] | None = None) -> int:
    """Run it."""
    parser = argparse.ArgumentParser(prog="python -m holdfast.sim.week", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--days", type=float, default=7.0, help="how long the input is away (default 7)")
    days = parser.parse_args(argv).days
    with tempfile.TemporaryDirectory(prefix="holdfast-week-") as folder:
        hours, host = week(Path(folder), days)
    print(f"{'bytes':10}" + "".join(f"{kind:>10}" for kind in _GRAIN))
    shown = sorted({h for h in (1, 2, 3, 6, 12, 24, 48, 96, len(hours)) if h <= len(hours)})
    for hour in shown:
        print(f"hour {hour:<5}" + "".join(f"{hours[hour - 1][kind]:10,}" for kind in _GRAIN))
    corrected = host.core.state is NodeState.STABLE and host.core.stable >= host.boundary_us // BUCKET_US - 1
    found = grown(hours)
    print(json.dumps({"days": days, "new_beginnings": len(host.skips), "corrected": corrected, "grown": found}))
    return 0 if corrected and not found else 1


if __name__ == "__main__":
    sys.exit(main())
