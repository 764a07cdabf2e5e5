"""Control frames: in the log, out of sight, and kept as long as somebody relies on them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import holdfast
from holdfast.stream.checking.verify import verify
from holdfast.stream.control import ControlLog, operator_number
from holdfast.stream.frame import CONTROL_VERSION, FORMAT_VERSION, Header, Kind, decode_header, encode_frame
from holdfast.stream.pack import pack
from holdfast.stream.record import Control

OP = operator_number("aggregate")


def control(position: int, since: int, partition: int = 0) -> Control:
    return Control(OP, partition, 1, 3, since, position, f"body {position}".encode() * 50)


def one_tuple(stream: holdfast.Stream, stime: int) -> pa.RecordBatch:
    columns = [pa.array([stime], pa.timestamp("us", "UTC")), pa.array([7], pa.int64())]
    return pa.RecordBatch.from_arrays(columns, schema=stream.definition.stored)


def written(root: Path, positions: list[tuple[int, int]]) -> holdfast.Stream:
    """Small segments; each commit has a tuple and a control frame (position, since)."""
    stream = holdfast.open(root).create("out", "value bigint", bucket="1s", segment_bytes=4096)
    writer = stream.writer()
    for position, since in positions:
        events = pack(one_tuple(stream, position - 1), stream.definition)
        writer.commit(events, now_us=position, boundary_us=position, control=[control(position, since)])
    writer.release(positions[-1][0])
    return stream


def test_readers_see_tuples_only_and_verify_finds_nothing(tmp_path: Path) -> None:
    """C5."""
    stream = written(tmp_path, [(n * 1_000_000, n * 1_000_000) for n in range(1, 40)])
    rows = [r for batch in stream.subscribe().poll() for r in batch.to_pylist()]
    assert [r["tuple_id"] for r in rows] == list(range(1, 40))
    assert all(r["tuple_type"] == 1 for r in rows)
    assert not list(verify(stream.folder))


def test_they_are_read_backwards_over_segments(tmp_path: Path) -> None:
    stream = written(tmp_path, [(n * 1_000_000, 0) for n in range(1, 40)])
    log = ControlLog(stream.reader())
    found = [(f.position_us // 1_000_000, f.windows, body.read()[:7]) for f, body in log.backwards(OP)]
    assert [p for p, _, _ in found] == list(range(39, 0, -1))
    assert found[0] == (39, 3, b"body 39")
    assert len(stream.reader().segments) > 3


def test_an_older_version_refuses_a_control_frame_instead_of_skipping_it() -> None:
    raw = b"".join(bytes(p) for p in encode_frame(Header(Kind.CONTROL, 0), b"x"))
    assert raw[8] == CONTROL_VERSION != FORMAT_VERSION
    assert decode_header(raw, 0, "here") is not None


@pytest.mark.parametrize(("since", "kept_from"), [(39, 39), (20, 20), (1, 1)])
def test_retention_leaves_what_an_open_window_relies_on(tmp_path: Path, since: int, kept_from: int) -> None:
    """L8."""
    stream = written(
        tmp_path, [*((n * 1_000_000, n * 1_000_000) for n in range(1, 39)), (39_000_000, since * 1_000_000)]
    )
    before = len(stream.reader().segments)
    stream.retain(holdfast.Retention(size_bytes=1))
    positions = [f.position_us // 1_000_000 for f, _ in ControlLog(stream.reader()).backwards(OP)]
    assert min(positions) <= kept_from
    assert set(range(kept_from, 40)) <= set(positions)
    if since > 1:
        assert len(stream.reader().segments) < before
