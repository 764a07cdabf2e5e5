"""Files of a checkpoint on real servers: read, replaced, copied and removed as in a folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import holdfast
from holdfast.model.errors import StorageError, UsageError
from holdfast.spark.flow import flow
from holdfast.spark.fork import last_commit
from holdfast.spark.hadoop_path import HadoopPath, JvmFiles, checkpoint_folder, unfit_manager
from tests.hadoop import job
from tests.hadoop.places import HDFS, S3, Places
from tests.spark.conftest import fill
from tests.spark.processes import wait_for

pytestmark = pytest.mark.slow

MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
FOLDERS_ONLY = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"


@pytest.fixture(params=[HDFS, S3])
def here(request: pytest.FixtureRequest, spark: SparkSession, places: Places) -> HadoopPath:
    return HadoopPath(f"{places.at(request.param)}/paths", JvmFiles(spark.sparkContext))


def test_a_path_on_a_server_is_like_a_path(here: HadoopPath) -> None:
    here.remove()
    assert not (here / "a").exists()
    assert last_commit(here) == -1
    for missing in (
        lambda: (here / "a").read_bytes(), lambda: list((here / "a").iterdir()), lambda: (here / "a").copy(here / "b"),
    ):  # fmt: skip
        with pytest.raises(FileNotFoundError):
            missing()
    (here / "a" / "b" / "1").write_bytes(bytes(range(256)))
    for data in (b"the first", b"another"):
        (here / "a" / "2").write_bytes(data)
        assert (here / "a" / "2").read_bytes() == data
    assert (here / "a" / "b" / "1").read_bytes() == bytes(range(256))
    assert (here / "a").is_dir()
    assert not (here / "a" / "2").is_dir()
    assert sorted(p.name for p in (here / "a").iterdir()) == ["2", "b"]
    assert dict((here / "a").walk()) == {Path(): ["2"], Path("b"): ["1"]}
    for _ in range(2):
        (here / "a" / "2").copy(here / "c" / "3 of é+%")
    assert (here / "c" / "3 of é+%").read_text() == "another"
    (here / "a").remove()
    (here / "a").remove()
    assert not (here / "a").exists()


class CutShort:
    """A stream whose server is gone after half of a write."""

    def __init__(self, stream: Any, look: Callable[[], object]) -> None:
        self._stream, self._look = stream, look

    def write(self, data: bytearray) -> None:
        self._stream.write(data[: len(data) // 2])
        self._look()
        raise ConnectionError("cut")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class CutFiles(JvmFiles):
    """Every write is cut short."""

    def __init__(self, spark: SparkSession, look: Callable[[], object]) -> None:
        super().__init__(spark.sparkContext)
        self._look = look

    def _found(self, uri: str) -> tuple[Any, Any]:
        files, path = super()._found(uri)
        return Through(files, lambda *given: CutShort(files.create(*given), self._look)), path


class Through:
    def __init__(self, beneath: Any, create: Callable[..., Any]) -> None:
        self._beneath, self.create = beneath, create

    def __getattr__(self, name: str) -> Any:
        return getattr(self._beneath, name)


def test_a_write_that_is_cut_short_leaves_the_file_as_it_was(spark: SparkSession, here: HadoopPath) -> None:
    here.remove()
    (here / "metadata").write_bytes(b"the first")
    seen: list[bytes] = []

    def look() -> None:
        seen.append((here / "metadata").read_bytes())

    with pytest.raises(ConnectionError):
        HadoopPath(f"{here}/metadata", CutFiles(spark, look)).write_bytes(b"another")
    assert seen == [b"the first"] == [(here / "metadata").read_bytes()]
    assert [p.name for p in here.iterdir()] == ["metadata"]


def test_a_server_that_cannot_be_had_is_told_in_a_sentence(spark: SparkSession) -> None:
    nobody = "hdfs://127.0.0.1:1/x"
    spark.sparkContext._jsc.hadoopConfiguration().set("ipc.client.connect.max.retries", "0")
    with pytest.raises(StorageError, match=f"could not look at {nobody}: .*; look whether its filesystem answers"):
        checkpoint_folder(nobody).exists()


def test_a_session_for_checkpoints_of_hadoops_leaves_spark_its_own_file_manager(spark: SparkSession) -> None:
    """The one of ours replaces nothing there (`unfit_manager`)."""
    assert spark.conf.get(MANAGER, None) is None


def test_the_file_manager_for_folders_keeps_the_old_state_on_servers_and_is_refused_there(
    spark: SparkSession, here: HadoopPath, tmp_path: Path
) -> None:
    """A batch that is executed again replaces the state that its first attempt has written: by Spark's own manager it
    does, by the one for folders the old file stays, and nobody says so."""
    assert spark._jvm is not None
    conf = spark.sparkContext._jsc.hadoopConfiguration()
    path = spark._jvm.org.apache.hadoop.fs.Path(f"{here}/1.delta")
    package = spark._jvm.org.apache.spark.sql.execution.streaming.checkpointing
    for manager, expected in (("FileContext", b"second"), ("FileSystem", b"first")):
        here.remove()
        files = getattr(package, f"{manager}BasedCheckpointFileManager")(path, conf)
        files.mkdirs(path.getParent())
        for data in (b"first", b"second"):
            stream = files.createAtomic(path, True)
            stream.write(bytearray(data))
            stream.close()
        assert (here / "1.delta").read_bytes() == expected
    spark.conf.set(MANAGER, FOLDERS_ONLY)
    try:
        assert "must be written by a file manager that replaces" in str(unfit_manager(spark, here))
        assert unfit_manager(spark, tmp_path) is None
    finally:
        spark.conf.unset(MANAGER)
    assert unfit_manager(spark, here) is None


def test_a_flow_with_that_file_manager_is_refused_and_a_query_is_warned_of(
    spark: SparkSession, here: HadoopPath, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = holdfast.open(tmp_path / "streams")
    fill(store, "a", [(i * 0.1, "k", i) for i in range(50)])
    here.remove()
    spark.conf.set(MANAGER, FOLDERS_ONLY)
    try:
        with pytest.raises(UsageError, match="must be written by a file manager that replaces what is there"):
            flow(spark, "a", root=str(store.root)).write("out", checkpoint_location=str(here))
        writer = job.windows(spark, str(store.root), "60").writeStream.format("holdfast").queryName("out")
        query = writer.options(root=str(store.root), checkpointLocation=str(here), create="true").start("out")
        scheme = str(here).partition(":")[0]
        wait_for(lambda: f"query out: a checkpoint at {scheme}:// must" in caplog.text, "a warning")
        query.stop()
    finally:
        spark.conf.unset(MANAGER)


def test_a_filesystem_without_the_newer_interface_is_refused_where_spark_would_take_the_older(
    spark: SparkSession,
) -> None:
    """Spark says a word to its log there, and replaces nothing."""
    folder = HadoopPath("objects://bucket/x", JvmFiles(spark.sparkContext))
    assert "set spark.hadoop.fs.AbstractFileSystem.objects.impl" in str(unfit_manager(spark, folder))
