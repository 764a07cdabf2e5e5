"""What is noted of tentative buckets does not grow with the failure (003 §4.9, §5.8.3)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import holdfast
from holdfast.model.time import SECOND_US
from holdfast.stream import branch
from holdfast.stream import worth as worths
from holdfast.stream.branch import branch_folder, cut_of
from holdfast.stream.pack import pack
from holdfast.stream.worth import Worth, Worths, note_worth
from tests.stream.test_rows import stored_batch


def test_of_a_long_failure_the_newest_lines_are_kept_and_who_follows_misses_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worths, "_BUCKETS_MAX", 500)
    stream = holdfast.open(tmp_path).create("s", "n bigint")
    root = stream.create_branch(0)
    follower, most = Worths(stream.folder), 0
    for bucket in range(0, 20_000, 10):
        noted = [Worth(b, 0.5, ("a", "b"), 0.25, ("c",)) for b in range(bucket, bucket + 10)]
        note_worth(stream.folder, stream.definition, noted)
        known = follower.read(root.id)
        assert [b for b in range(bucket, bucket + 10) if b not in known] == []
        assert len(known) <= 500
        most = max(most, os.path.getsize(branch_folder(stream.folder) / "worth"))
    assert most < 66 << 10
    late = Worths(stream.folder).read(root.id)
    assert max(late) == 19_999
    assert len(late) == 500, "as many as are remembered"


def test_what_lies_before_the_branch_has_no_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(branch, "BRANCH_BYTES", 64 << 10)
    stream = holdfast.open(tmp_path).create("s", "n bigint", bucket="1s")
    root = stream.create_branch(0)
    writer = stream.branch_writer(id=root.id)
    for n in range(2_000):
        note_worth(stream.folder, stream.definition, [Worth(n, 0.5, ("a", "b"), 0.25, ("c",))])
        rows = stored_batch(stream.definition, [n * SECOND_US] * 20, n=[n] * 20)
        writer.commit(pack(rows, stream.definition), now_us=n, boundary_us=(n + 1) * SECOND_US)
    writer.release(1)
    first = cut_of(stream.folder, stream.definition) // SECOND_US
    known = Worths(stream.folder).read(root.id)
    assert 1_000 < first < 2_000
    assert set(range(first, 2_000)) <= set(known)
    assert len(known) < 2_000 - first + 400, "a step of lines may wait"
    assert os.path.getsize(branch_folder(stream.folder) / "worth") < 48 << 10
