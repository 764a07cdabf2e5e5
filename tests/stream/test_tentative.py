"""Plans of forks: what was planned is read, exactly, and forgotten once it is committed."""

from __future__ import annotations

from pathlib import Path

from holdfast.stream.index import Fields
from holdfast.stream.tentative import PLAN_BYTES, PlannedPiece, PlanReader, PlanWriter

SECOND = 1_000_000


def test_a_plan_that_grew_long_is_begun_anew_once_all_of_it_was_read(tmp_path: Path) -> None:
    """A fork that is kept ready follows main for as long as nothing fails."""
    writer, reader = PlanWriter(tmp_path / "plan"), PlanReader(tmp_path / "plan")
    largest = 0
    for bucket in range(10_000):
        # Now and then the fork is a bucket behind: what it has not committed stays.
        writer.append([((bucket + 1) * SECOND, (piece(bucket),))], (bucket - bucket % 3 % 2) * SECOND)
        reader.refresh()
        reader.forget((bucket - 1) * SECOND)
        assert reader.pieces((bucket - 1) * SECOND, (bucket + 1) * SECOND) == [piece(b) for b in (bucket - 1, bucket)
                                                                              if b >= 0]  # fmt: skip
        largest = max(largest, (tmp_path / "plan").stat().st_size)
    writer.close()
    assert PLAN_BYTES < largest < PLAN_BYTES + 1000
    assert [path.name for path in tmp_path.iterdir()] == ["plan"]


def piece(bucket: int) -> PlannedPiece:
    return PlannedPiece(0, "/log/1.seg", Fields(bucket, 64, 100, 3, bucket * 10, 0, 1, 7, 0, 0))


def test_a_plan_is_followed_line_by_line_and_half_a_line_does_not_count(tmp_path: Path) -> None:
    writer, reader = PlanWriter(tmp_path / "plan"), PlanReader(tmp_path / "plan")
    reader.refresh()
    assert reader.until_us is None
    writer.append([(SECOND, (piece(0),)), (2 * SECOND, ())])
    whole = (tmp_path / "plan").read_bytes()
    writer.append([(3 * SECOND, (piece(2),))])
    more = (tmp_path / "plan").read_bytes()
    (tmp_path / "plan").write_bytes(more[: len(whole) + 5])
    reader.refresh()
    assert reader.until_us == 2 * SECOND
    (tmp_path / "plan").write_bytes(more)
    reader.refresh()
    assert reader.until_us == 3 * SECOND
    assert reader.pieces(0, 3 * SECOND) == [piece(0), piece(2)]


def test_what_was_committed_is_forgotten_and_the_end_of_the_plan_is_not(tmp_path: Path) -> None:
    """A failure may last for days; a batch that is not committed may be read again."""
    writer, reader = PlanWriter(tmp_path / "plan"), PlanReader(tmp_path / "plan")
    writer.append([((b + 1) * SECOND, (piece(b),)) for b in range(100)])
    reader.refresh()
    reader.forget(98 * SECOND)
    assert reader.pieces(98 * SECOND, 100 * SECOND) == [piece(98), piece(99)]
    assert len(reader._buckets) == 2
    reader.forget(100 * SECOND)
    assert (reader.until_us, reader._buckets) == (100 * SECOND, [])
    writer.append([(101 * SECOND, (piece(100),))])
    reader.refresh()
    assert reader.pieces(100 * SECOND, 101 * SECOND) == [piece(100)]
