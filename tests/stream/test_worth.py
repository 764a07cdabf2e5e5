"""What is noted of tentative buckets does not grow with the failure (003 §4.9, §5.8.3)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import holdfast
from holdfast.stream import worth as worths
from holdfast.stream.branch import branch_folder
from holdfast.stream.worth import Worth, Worths, note_worth


def test_of_a_long_failure_the_newest_lines_are_kept_and_who_follows_misses_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worths, "_BYTES_MAX", 64 << 10)
    monkeypatch.setattr(worths, "_BUCKETS_MAX", 500)
    stream = holdfast.open(tmp_path).create("s", "n bigint")
    root = stream.create_branch(0)
    follower, most = Worths(stream.folder), 0
    for bucket in range(0, 20_000, 10):
        note_worth(stream.folder, [Worth(b, 0.5, ("a", "b"), 0.25, ("c",)) for b in range(bucket, bucket + 10)])
        known = follower.read(root.id)
        assert [b for b in range(bucket, bucket + 10) if b not in known] == []
        assert len(known) <= 500
        most = max(most, os.path.getsize(branch_folder(stream.folder) / "worth"))
    assert most < 66 << 10
    late = Worths(stream.folder).read(root.id)
    assert max(late) == 19_999
    assert len(late) >= 300, "whole lines, and as many as fit"
