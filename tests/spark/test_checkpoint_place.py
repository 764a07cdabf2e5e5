"""Spark's part of a node's checkpoint goes where the session says, whole, and is removed with the folder that knows of
it. On servers: tests/hadoop."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from holdfast.model.errors import UsageError
from holdfast.spark import checkpoint_place
from holdfast.spark.checkpoint_place import (
    checked_place,
    lies_elsewhere,
    remove_checkpoint,
    settle_fork,
    settle_in,
    spark_part,
)
from holdfast.spark.fork import fork_checkpoint
from holdfast.spark.hadoop_path import HadoopPath


class Killed(BaseException):
    pass


@pytest.fixture
def begun(tmp_path: Path, spark: SparkSession) -> Path:
    """As a node's first batch leaves it, with a note and with states that came from elsewhere."""
    for name in ("offsets/0", "offsets/1", "commits/0", "state/0/0/1.changelog", "arrived/versions", "identity"):
        path = tmp_path / "checkpoint" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
    (tmp_path / "checkpoint" / "metadata").write_text(json.dumps({"id": "one"}))
    return tmp_path / "checkpoint"


@pytest.fixture
def place(tmp_path: Path) -> str:
    """Hadoop's own way to a folder stands for all of its filesystems."""
    return f"file://{tmp_path}/place"


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_a_query_goes_on_there_as_it_was_with_the_batch_that_it_was_in(begun: Path, place: str) -> None:
    settle_in(begun, place, "counts")
    part = spark_part(begun)
    assert isinstance(part, HadoopPath)
    assert json.loads((part / "metadata").read_text()) == {"id": "one"}
    there = {(below / name).as_posix() for below, names in part.walk() for name in names if name[0] != "."}
    assert there == {"metadata", "offsets/0", "offsets/1", "commits/0", "state/0/0/1.changelog"}
    assert files(begun) == {"arrived/versions", "identity", "elsewhere"}
    for later in (place, f"{place}-another", None):  # It stays, whatever the setting says then.
        settle_in(begun, later, "counts")
        assert spark_part(begun) == part
    remove_checkpoint(begun)
    assert not part.exists()
    assert not begun.exists()


@pytest.mark.parametrize("step", ["carry_checkpoint", "_note", "_clear"])
def test_whoever_is_killed_on_the_way_has_it_here_or_there(
    begun: Path, place: str, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S1."""

    def killed(*_: object) -> None:
        raise Killed

    before = files(begun)
    with monkeypatch.context() as patched:
        patched.setattr(checkpoint_place, step, killed)
        with pytest.raises(Killed):
            settle_in(begun, place, "counts")
    assert lies_elsewhere(begun) == (step == "_clear")
    assert before <= files(begun)
    settle_in(begun, place, "counts")
    assert (spark_part(begun) / "offsets" / "1").read_bytes() == b"offsets/1"
    assert files(begun) == {"arrived/versions", "identity", "elsewhere"}


def test_a_fork_lies_beside_its_parent_and_a_copy_for_others_in_a_folder(
    begun: Path, place: str, tmp_path: Path
) -> None:
    settle_in(begun, place, "counts")
    parent, fork = spark_part(begun), tmp_path / "fork"
    there = settle_fork(fork, parent)
    assert isinstance(there, HadoopPath)
    assert fork_checkpoint(parent, there).batch_id == 0
    assert spark_part(fork) == there
    assert str(there).startswith(f"{parent}-fork-")
    copied = fork_checkpoint(parent, tmp_path / "copy")
    assert not copied.linked
    assert files(tmp_path / "copy") == {"metadata", "offsets/0", "commits/0", "state/0/0/1.changelog"}
    remove_checkpoint(fork)
    assert not there.exists()
    assert parent.exists()


def test_without_a_place_all_of_it_is_here(begun: Path) -> None:
    before = files(begun)
    settle_in(begun, checked_place(None), "counts")
    assert spark_part(begun) == begun
    assert settle_fork(begun, begun) == begun
    assert files(begun) == before


@pytest.mark.parametrize("given", ["/mnt/shared", "file:///mnt/shared", "relative"])
def test_a_folder_is_no_such_place(given: str) -> None:
    with pytest.raises(UsageError, match="must name a place on a filesystem of Hadoop's"):
        checked_place(given)
    assert checked_place("hdfs://namenode:8020/checkpoints/") == "hdfs://namenode:8020/checkpoints"
