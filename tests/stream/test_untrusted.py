"""Bytes that others wrote: compared with what they claim before anybody relies on them (X4, X5)."""

from __future__ import annotations

import io
import random
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import holdfast
from holdfast.clock import now_us
from holdfast.host.parcel import Unpacking, pack
from holdfast.host.replica_log import Held
from holdfast.host.wire import Portion, shape_of
from holdfast.load.remote_task import Tributary
from holdfast.model.errors import CorruptLog, PeerError
from holdfast.protocol.dpc.signals import Lane
from holdfast.stream.definition import Definition
from holdfast.stream.disk import Disk
from holdfast.stream.pack import pack as pack_events
from holdfast.stream.untrusted import check_events, check_plain, check_waiting
from holdfast.stream.waiting import Waiting
from holdfast.stream.writer import Event

S = 1_000_000
Change = Callable[[Event], Event]


def stream_of(root: Path, **options: object) -> holdfast.Stream:
    return holdfast.open(root).create("s", "n bigint, word string", bucket="1s", **options)


def batch_of(
    definition: Definition, second: float = 5.0, words: tuple[str, ...] = ("a", "bb", "ccc")
) -> pa.RecordBatch:
    times = [round(second * S) + i for i in range(len(words))]
    columns = [pa.array(times, definition.stored[0].type), pa.array(range(len(words)), pa.int64()), pa.array(words)]
    return pa.RecordBatch.from_arrays(columns, schema=definition.stored)


def event_of(definition: Definition) -> Event:
    event = pack_events(batch_of(definition), definition)[0]
    return event._replace(body=bytes(memoryview(event.body)), first_tuple_id=1)


def with_lying_offsets(event: Event) -> Event:
    """The offsets of the strings point far behind their characters."""
    right, wrong = struct.pack("<4i", 0, 1, 3, 6), struct.pack("<4i", 0, 1, 3, 100_000_000)
    assert event.body.count(right) == 1
    return event._replace(body=event.body.replace(right, wrong))


def with_claimed_rows(event: Event) -> Event:
    return event._replace(rows=60_000)


def compressed(event: Event) -> Event:
    """16 kB of these became 1.6 GB. What they become does not matter, since they must not come at all."""
    columns = [
        pa.field("stime", pa.timestamp("us", tz="UTC"), nullable=False),
        ("n", pa.int64()),
        ("word", pa.string()),
    ]
    batch = pa.ipc.read_record_batch(pa.py_buffer(event.body), pa.schema(columns))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(batch)
    messages = list(pa.ipc.MessageReader.open_stream(sink.getvalue()))
    return event._replace(body=messages[1].serialize().to_pybytes())


LIES: dict[str, Change] = {
    "offsets": with_lying_offsets,
    "rows": with_claimed_rows,
    "zstd": compressed,
    "stime": lambda e: e._replace(stime_max_us=e.stime_max_us + 1),
    "bucket": lambda e: e._replace(bucket=4, stime_min_us=4 * S, stime_max_us=4 * S + 2),
    "partition": lambda e: e._replace(partition=0),
    "schema": lambda e: e._replace(body=pa.schema([("n", pa.int64())]).serialize().to_pybytes()),
    "nothing": lambda e: e._replace(body=b""),
}


def portion_of(definition: Definition, event: Event) -> Portion:
    return Portion("s", Lane.MAIN, definition.id, shape_of(definition), "1.x.0.0.0", 10 * S, events=(event,))


@pytest.mark.parametrize("lie", LIES)
def test_a_lying_event_never_enters_the_log_of_a_stream_that_a_partner_fills(tmp_path: Path, lie: str) -> None:
    stream = stream_of(tmp_path, partitions=2)
    log = Tributary(stream, "test")
    event = event_of(stream.definition)
    with pytest.raises(PeerError, match="must be what its header says"):
        log.take(portion_of(stream.definition, LIES[lie](event)))
    assert log.boundary_us < 0
    log.take(portion_of(stream.definition, event))
    assert log.boundary_us == 10 * S
    log.close()


HOUR_US = 3600 * S


@pytest.mark.parametrize("promised", ["two hours ahead", 2**62, 2**63 - 1, "end"])
def test_a_partner_cannot_freeze_or_end_a_stream_by_a_promise_that_no_input_has_made_d10(
    tmp_path: Path, promised: int | str
) -> None:
    """A boundary of 2^63 - 1 made every tuple late for good; an end ended the stream, and its lease."""
    stream = stream_of(tmp_path, partitions=2)
    log, told = Tributary(stream, "test"), portion_of(stream.definition, event_of(stream.definition))
    boundary_us = promised if isinstance(promised, int) else now_us() + 2 * HOUR_US
    lie = replace(told, closed=True) if promised == "end" else replace(told, boundary_us=boundary_us)
    for inputs_us in (10 * S, now_us(), now_us() + HOUR_US):
        with pytest.raises(
            PeerError, match=r"may promise no more than every input has .*, or an hour from now; it prom"
        ):
            log.take(lie, inputs_us)
    assert log.boundary_us < 0
    assert not log.closed
    log.take(replace(told, boundary_us=now_us() + HOUR_US - 60 * S))
    log.close()


def test_a_stream_whose_inputs_lie_in_the_future_may_be_filled_by_a_partner(tmp_path: Path) -> None:
    stream = stream_of(tmp_path)
    log, ahead_us = Tributary(stream, "test"), now_us() + 9 * HOUR_US
    log.take(replace(portion_of(stream.definition, event_of(stream.definition)), boundary_us=ahead_us), ahead_us)
    assert log.boundary_us == ahead_us
    log.close()


@pytest.mark.parametrize("lie", LIES)
def test_a_lying_event_never_enters_a_mirror(tmp_path: Path, lie: str) -> None:
    definition = stream_of(tmp_path / "o", partitions=2).definition
    held = Held(tmp_path / "m", definition, Disk(), now_us)
    event = event_of(definition)
    with pytest.raises(PeerError, match="must be what its header says"):
        held.take(portion_of(definition, LIES[lie](event)), 0)
    assert held.tuples_from(0) == {}
    held.take(portion_of(definition, event), 0)
    assert held.tuples_from(0) == {5: 3}
    held.close()


def test_a_tuple_in_the_partition_of_another_key_is_refused(tmp_path: Path) -> None:
    definition = stream_of(tmp_path, partitions=8, partition_by="word").definition
    events = pack_events(batch_of(definition), definition)
    check_events(events, definition)
    with pytest.raises(PeerError, match="do not belong into partition"):
        check_events([events[0]._replace(partition=(events[0].partition + 1) % 8)], definition)


def test_a_log_that_holds_lying_offsets_from_before_is_an_error_and_no_crash(tmp_path: Path) -> None:
    stream = stream_of(tmp_path)
    writer = stream.writer()
    writer.commit([with_lying_offsets(event_of(stream.definition))], now_us=1, boundary_us=10 * S)
    writer.release(1)
    reader = stream.reader()
    with pytest.raises(CorruptLog, match="cannot be decoded"):
        list(reader.scan(0, 10 * S))
    reader.close()


def test_a_log_whose_event_holds_other_rows_than_its_header_says_is_an_error(tmp_path: Path) -> None:
    stream = stream_of(tmp_path)
    writer = stream.writer()
    writer.commit([with_claimed_rows(event_of(stream.definition))], now_us=1, boundary_us=10 * S)
    writer.release(1)
    reader = stream.reader()
    with pytest.raises(CorruptLog, match="60000"):
        list(reader.scan(0, 10 * S))
    reader.close()


def test_flipped_bits_in_an_event_are_refused_or_harmless(tmp_path: Path) -> None:
    definition = stream_of(tmp_path).definition
    event, chance = event_of(definition), random.Random(3)
    for _ in range(2000):
        wrong = bytearray(event.body)
        wrong[chance.randrange(len(wrong))] ^= 1 << chance.randrange(8)
        with suppress(PeerError):
            check_events([event._replace(body=bytes(wrong))], definition)


@pytest.mark.parametrize("compression", ["uncompressed", "zstd", "lz4"])
def test_a_file_that_came_with_a_state_must_not_be_compressed(compression: Any) -> None:
    rows = pl.DataFrame({"n": list(range(1000)), "word": ["a"] * 1000})
    theirs, ours = pa.BufferOutputStream(), io.BytesIO()
    rows.write_ipc(ours, compression=compression)
    options = pa.ipc.IpcWriteOptions(compression=None if compression == "uncompressed" else compression)
    with pa.ipc.new_file(theirs, rows.to_arrow().schema, options=options) as writer:
        for _ in range(3):
            writer.write_table(rows.to_arrow())
    for file in (pa.py_buffer(ours.getvalue()), theirs.getvalue()):
        if compression == "uncompressed":
            check_plain(file)
        else:
            with pytest.raises(ValueError, match="compressed"):
                check_plain(file)


def waiting_of(definition: Definition, compression: str | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, definition.stored, options=options) as writer:
        writer.write_batch(batch_of(definition))
    return sink.getvalue().to_pybytes()


def test_waiting_results_that_are_not_what_their_head_says_are_refused(tmp_path: Path) -> None:
    definition = stream_of(tmp_path).definition
    body = waiting_of(definition)
    check_waiting(3, body, 5 * S, definition)
    check_waiting(0, b"", 5 * S, definition)
    right, wrong = struct.pack("<4i", 0, 1, 3, 6), struct.pack("<4i", 0, 1, 3, 100_000_000)
    other = holdfast.open(tmp_path / "other").create("s", "n bigint, word binary", bucket="1s").definition
    for rows, sent, first_us, to in (
        (4, body, 5 * S, definition), (2, body, 5 * S, definition), (3, b"", 5 * S, definition),
        (3, body.replace(right, wrong), 5 * S, definition), (3, body, 6 * S, definition), (3, body, 5 * S, other),
        (3, b"junk" * 20, 5 * S, definition),
    ):  # fmt: skip
        with pytest.raises(PeerError, match="waiting results of stream s"):
            check_waiting(rows, sent, first_us, to)


def test_a_parcel_with_lying_results_is_refused_before_a_file_of_it_is_stored(tmp_path: Path) -> None:
    definition = stream_of(tmp_path / "o").definition
    checkpoint = tmp_path / "checkpoint"
    (checkpoint / "offsets").mkdir(parents=True)
    (checkpoint / "offsets" / "0").write_text("v1\n{}\n{}\n")
    parcel = b"".join(
        pack("anna:1#0", "node", definition, Waiting({}, 60_000, waiting_of(definition), 5 * S), checkpoint)
    )
    unpacking = Unpacking(tmp_path / "staging")
    with pytest.raises(PeerError, match="waiting results of stream s"):
        unpacking.feed(parcel)
    unpacking.close()
    assert not (tmp_path / "staging").exists()
