"""Which checkpoints the log has: found wherever they stand, also by a worker that has followed the log for long."""

from __future__ import annotations

from pathlib import Path

import holdfast
from holdfast.spark.logged import logged_mark
from holdfast.spark.restore import Origin
from holdfast.stream.control import operator_number
from holdfast.stream.frame import checksum
from holdfast.stream.record import Control

SECOND = 1_000_000


def body(stream: str, partition: int, position: int) -> bytes:
    return f"{stream} {partition} {position}".encode() * 50


def write(root: Path, name: str, position: int) -> None:
    stream = holdfast.open(root).create(name, "n bigint", bucket="1s", segment_bytes=4096, exist_ok=True)
    frames = [Control(operator_number("op"), p, 1, 1, 0, position, body(name, p, position)) for p in (0, 1)]
    writer = stream.writer()
    writer.commit([], now_us=position, boundary_us=position, control=frames)
    writer.release(position)


def mark(root: Path, name: str, partition: int, position: int, origin: Origin | None = None) -> int | None:
    return logged_mark(holdfast.open(root), name, origin, "op", partition, position)


def test_the_mark_of_a_position_is_found_over_the_ends_of_segments(tmp_path: Path) -> None:
    for second in range(1, 25):
        write(tmp_path, "out", second * SECOND)
        for back in (0, 1, 7):  # The batch before; one that is repeated; one that nobody has in memory any more.
            position = (second - back) * SECOND
            want = checksum(body("out", 1, position)) if position > 0 else None
            assert mark(tmp_path, "out", 1, position) == want
    assert len(holdfast.open(tmp_path).open("out").reader().ends()) > 3
    assert mark(tmp_path, "out", 0, 5 * SECOND) == checksum(body("out", 0, 5 * SECOND))
    assert mark(tmp_path, "out", 0, 25 * SECOND) is None
    assert mark(tmp_path, "out", 2, SECOND) is None


def test_a_fork_finds_the_mark_of_its_root_in_its_parents_log(tmp_path: Path) -> None:
    for second in (1, 2, 3):
        write(tmp_path, "parent", second * SECOND)
    holdfast.open(tmp_path).create("fork", "n bigint", bucket="1s")
    origin = Origin("parent", 2 * SECOND)
    assert mark(tmp_path, "fork", 0, 2 * SECOND, origin) == checksum(body("parent", 0, 2 * SECOND))
    assert mark(tmp_path, "fork", 0, 3 * SECOND, origin) is None, "what its parent did later is not its own"


def test_a_stream_made_anew_under_an_old_name_is_read_anew(tmp_path: Path) -> None:
    write(tmp_path, "out", SECOND)
    assert mark(tmp_path, "out", 0, SECOND) is not None
    holdfast.open(tmp_path).delete("out")
    write(tmp_path, "out", 2 * SECOND)
    assert mark(tmp_path, "out", 0, SECOND) is None
    assert mark(tmp_path, "out", 0, 2 * SECOND) == checksum(body("out", 0, 2 * SECOND))
