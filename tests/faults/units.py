"""What the fault tests send, and how they judge what comes back: plain lists, no help from the code they judge.

Unit k is sent with sequence number k, lies in bucket k, and its rows are a function of k alone. So a test needs to
remember only which numbers were acknowledged.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import pyarrow as pa

from holdfast.stream.disk import Disk
from holdfast.stream.reader import LogReader
from holdfast.stream.writer import Event, LogWriter

SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string())])
STORED = pa.schema([pa.field("stime", pa.timestamp("us", tz="UTC"), nullable=False), *SCHEMA])
BUCKET_US = 1_000
STREAM_ID = bytes(range(16))
#: Small, so that a handful of units rolls.
SEGMENT_BYTES = 4096

Row = tuple[int, int, str]


class QuietDisk(Disk):
    """The real disk without waiting for the platter: for tests in which the machine stays up."""

    def sync(self, fd: int, path: Path) -> None:
        pass

    def sync_dir(self, path: Path) -> None:
        pass


def unit_rows(k: int) -> list[list[Row]]:
    """The rows (stime, n, text) of unit k, one list per event."""
    chance = random.Random(k)
    events = []
    for part in range(1 + k % 3):
        stime = k * BUCKET_US + part
        events.append(
            [(stime, 100 * k + 10 * part + i, "x" * chance.randrange(400)) for i in range(1 + (k + part) % 3)]
        )
    return events


def unit_events(k: int) -> list[Event]:
    found = []
    for part, rows in enumerate(unit_rows(k)):
        stimes, numbers, texts = zip(*rows, strict=True)
        columns = [pa.array(stimes, STORED.field(0).type), pa.array(numbers), pa.array(texts)]
        batch = pa.record_batch(columns, schema=STORED)
        found.append(Event(k, part, len(rows), min(stimes), max(stimes), batch.serialize().to_pybytes()))
    return found


def flat(ks: list[int]) -> list[Row]:
    return [row for k in ks for event in unit_rows(k) for row in event]


def open_log(
    folder: Path, *, disk: Disk | None = None, takeover: bool = False, segment_bytes: int = SEGMENT_BYTES
) -> LogWriter:
    return LogWriter.open(folder, STREAM_ID, now_us=1, disk=disk, takeover=takeover, segment_bytes=segment_bytes)


def send(writer: LogWriter, k: int) -> None:
    writer.commit(unit_events(k), now_us=k, boundary_us=(k + 1) * BUCKET_US, tokens={"p": k})


def last_sent(writer: LogWriter) -> int:
    return writer.state.tokens.get("p", 0)


def read_all(folder: Path) -> list[tuple[int, Row]]:
    """Everything a fresh reader sees: (tuple_id, row) in the reader's order."""
    reader = LogReader(folder, SCHEMA, BUCKET_US)
    try:
        reader.refresh()
        return rows_of(reader)
    finally:
        reader.close()


def rows_of(reader: LogReader) -> list[tuple[int, Row]]:
    found: list[tuple[int, Row]] = []
    for fields, batch in reader.scan(-(2**62), 2**62):
        stimes = batch.column(0).cast(pa.int64()).to_pylist()
        for i, row in enumerate(zip(stimes, batch.column(1).to_pylist(), batch.column(2).to_pylist(), strict=True)):
            found.append((fields.first_tuple_id + i, row))
    return found


def removed_rows(folder: Path) -> int:
    """What retention says it has removed, read from the file itself."""
    path = folder / "head"
    if not path.exists():
        return 0
    return int(json.loads(path.read_text().rsplit("\n", 2)[0])["removed_rows"])


def judge(folder: Path, acked: int, sent: int) -> int:
    """Units 1..acked are there, byte-equal, in order, once; units acked+1..sent whole and in order, or absent.

    Returns the last unit that is there.
    """
    seen = read_all(folder)
    gone = removed_rows(folder)
    for last in range(acked, sent + 1):
        expected = list(enumerate(flat(list(range(1, last + 1))), start=1))[gone:]
        if seen == expected:
            return last
    wanted = list(enumerate(flat(list(range(1, acked + 1))), start=1))[gone:]
    raise AssertionError(f"acknowledged 1..{acked}, sent ..{sent}, removed {gone} rows; wanted {wanted}; got {seen}")


def heal(folder: Path, acked: int, sent: int) -> None:
    """Open again as the next process would, repeat what was not acknowledged, and judge before and after."""
    writer = open_log(folder, disk=QuietDisk())
    try:
        last = last_sent(writer)
        assert acked <= last <= sent, f"the writer remembers unit {last}; acknowledged {acked}, sent {sent}"
        assert judge(folder, acked, sent) == last
        for k in range(last + 1, sent + 2):
            send(writer, k)
        assert judge(folder, sent + 1, sent + 1) == sent + 1
    finally:
        writer.release(10**6)
    assert judge(folder, sent + 1, sent + 1) == sent + 1
