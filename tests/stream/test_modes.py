"""Files and folders of streams are their owner's alone unless somebody says otherwise."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast.model.errors import UsageError


def modes(root: Path) -> set[tuple[str, int]]:
    kinds = {(path, "folder" if path.is_dir() else "file") for path in (root, *root.rglob("*"))}
    return {(kind, stat.S_IMODE(path.stat().st_mode)) for path, kind in kinds}


def made(root: Path) -> Path:
    stream = holdfast.open(root).create("s", "n bigint", bucket="1s")
    with stream.producer() as producer:
        producer.send({"n": 1})
    stream.retain()
    return root


@pytest.fixture(autouse=True)
def generous_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def test_nobody_else_may_read_a_new_stream(tmp_path: Path) -> None:
    assert modes(made(tmp_path / "streams")) == {("folder", 0o700), ("file", 0o600)}


def test_a_group_may_read_where_its_owner_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_UMASK", "027")
    assert modes(made(tmp_path / "streams")) == {("folder", 0o750), ("file", 0o640)}
    monkeypatch.setenv("HOLDFAST_UMASK", "none")
    with pytest.raises(UsageError, match="three octal digits"):
        made(tmp_path / "others")
