"""A fork goes on from the parent's last commit and comes to the same results, whatever state the query keeps."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

import holdfast
from holdfast.host.parcel_files import check_named, check_stored
from holdfast.model.errors import StorageError, UsageError
from holdfast.spark import read_stream
from holdfast.spark.fork import fork_checkpoint, last_commit
from holdfast.spark.hadoop_path import HadoopPath, JvmFiles, checkpoint_folder
from holdfast.spark.wal import read_wal
from tests.spark.conftest import fill

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
HDFS = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
CHANGELOG = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"

FIRST = [(i * 0.2, f"k{i % 7}", i) for i in range(100)]
SECOND = [(20 + i * 0.2, f"k{i % 5}", 1000 + i) for i in range(100)]


def windows(frame: DataFrame) -> DataFrame:
    counted = frame.groupBy(F.window("stime", "7 seconds"), "key").count()
    return counted.select(F.col("window.end").alias("end"), "key", "count")


def joined(frame: DataFrame) -> DataFrame:
    left = frame.filter("value % 2 = 0").select(F.col("stime").alias("t1"), F.col("key").alias("k1"))
    right = frame.filter("value % 2 = 1").select(F.col("stime").alias("t2"), F.col("key").alias("k2"))
    near = F.expr("k1 = k2 and t2 >= t1 - interval 9 seconds and t2 <= t1 + interval 9 seconds")
    return left.join(right, near, "leftOuter").select("t1", "k1", "t2")


def deduplicated(frame: DataFrame) -> DataFrame:
    return frame.dropDuplicates(["stime", "key"]).select("stime", "key")


def counted_in_python(frame: DataFrame) -> DataFrame:
    def count(key: tuple[Any, ...], parts: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        total = (state.get[0] if state.exists else 0) + sum(len(p) for p in parts)
        state.update((total,))
        yield pd.DataFrame({"key": [key[0]], "total": [total]})

    return frame.groupBy("key").applyInPandasWithState(
        count, "key string, total long", "total long", "append", GroupStateTimeout.NoTimeout
    )


class Total(StatefulProcessor):
    """A running count per key, in state of its own."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._total = handle.getValueState("total", "total long")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        known = self._total.get()
        total = (known[0] if known is not None else 0) + sum(len(part) for part in rows)
        self._total.update((total,))
        yield pd.DataFrame({"key": [key[0]], "total": [total]})

    def close(self) -> None:
        pass


def transformed(frame: DataFrame) -> DataFrame:
    return frame.groupBy("key").transformWithStateInPandas(
        Total(), outputStructType="key string, total long", outputMode="append", timeMode="none"
    )


def stateless(frame: DataFrame) -> DataFrame:
    return frame.filter("value % 3 = 0").select("stime", "key", "value")


QUERIES: dict[str, Callable[[DataFrame], DataFrame]] = {
    "windows": windows, "joined": joined, "deduplicated": deduplicated, "counted_in_python": counted_in_python,
    "transformed": transformed, "stateless": stateless,
}  # fmt: skip


def run(frame: DataFrame, checkpoint: Path) -> list[str]:
    got: list[str] = []
    query = frame.writeStream.foreachBatch(lambda b, _: got.extend(str(r) for r in b.collect()))
    query.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start().awaitTermination()
    return sorted(got)


@pytest.fixture(params=["rocksdb", "rocksdb-changelog", "hdfs"])
def provider(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[str]:
    spark.conf.set(PROVIDER, HDFS if request.param == "hdfs" else ROCKSDB)
    spark.conf.set(CHANGELOG, str(request.param == "rocksdb-changelog").lower())
    yield request.param
    spark.conf.unset(PROVIDER)
    spark.conf.unset(CHANGELOG)


def by_hadoop(spark: SparkSession, folder: Path) -> HadoopPath:
    """The folder as it is seen through the filesystems of Hadoop."""
    return HadoopPath(f"file://{folder}", JvmFiles(spark.sparkContext))


def check(spark: SparkSession, store: holdfast.StreamStore, tmp_path: Path, name: str, *, hadoop: bool = False) -> None:
    fill(store, "a", FIRST, end=False, until=20)
    frame = QUERIES[name](read_stream(spark, "a", root=store.root, maxRowsPerBatch=50))
    run(frame, tmp_path / "parent")
    before = snapshot(tmp_path / "parent")
    parent, fork = (by_hadoop(spark, tmp_path / n) if hadoop else tmp_path / n for n in ("parent", "fork"))
    forked = fork_checkpoint(parent, fork)
    assert forked.linked is not hadoop
    assert forked.batch_id == last_commit(tmp_path / "parent") == last_commit(parent)
    assert read_wal(parent, forked.batch_id) == read_wal(tmp_path / "parent", forked.batch_id)
    assert forked.files < sum(1 for p in (tmp_path / "parent").rglob("*") if p.is_file())
    for path, body in snapshot(tmp_path / "fork").items():  # As a parcel for a partner, which is strict.
        check_named(path, len(body))
        check_stored(tmp_path / "fork", path)
    fill(store, "a", SECOND)
    by_fork = run(frame, tmp_path / "fork")
    assert snapshot(tmp_path / "parent") == before, "the fork changed its parent's checkpoint"
    by_parent = run(frame, tmp_path / "parent")
    assert by_fork == by_parent
    assert by_fork


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.mark.slow
def test_a_fork_of_windows_gives_what_its_parent_gives(
    spark: SparkSession, store: holdfast.StreamStore, tmp_path: Path, provider: str
) -> None:
    """S1, for each of Spark's state stores."""
    check(spark, store, tmp_path, "windows")


@pytest.mark.slow
@pytest.mark.parametrize("changelog", ["true", "false"])
def test_a_fork_by_copies_gives_what_its_parent_gives(
    spark: SparkSession, store: holdfast.StreamStore, tmp_path: Path, changelog: str
) -> None:
    """S1 where there are no links: on HDFS, on object stores."""
    spark.conf.set(PROVIDER, ROCKSDB)
    spark.conf.set(CHANGELOG, changelog)
    try:
        check(spark, store, tmp_path, "windows", hadoop=True)
    finally:
        spark.conf.unset(PROVIDER)
        spark.conf.unset(CHANGELOG)


def test_a_path_of_hadoops_is_like_a_path(spark: SparkSession, tmp_path: Path) -> None:
    here = by_hadoop(spark, tmp_path)
    assert not (here / "a").exists()
    assert last_commit(here) == -1
    for missing in (lambda: (here / "a").read_bytes(), lambda: list((here / "a").iterdir())):
        with pytest.raises(FileNotFoundError):
            missing()
    (here / "a" / "b" / "1").write_bytes(bytes(range(256)))
    (here / "a" / "2").write_bytes(b"two")
    assert (tmp_path / "a" / "b" / "1").read_bytes() == bytes(range(256)) == (here / "a/b/1").read_bytes()
    assert (here / "a").is_dir()
    assert not (here / "a" / "2").is_dir()
    assert sorted(p.name for p in (here / "a").iterdir()) == ["2", "b"]
    assert dict((here / "a").walk()) == {Path(): ["2"], Path("b"): ["1"]}
    (here / "a" / "2").copy(here / "c" / "3")
    assert (here / "c" / "3").read_text() == "two"
    with pytest.raises(UsageError, match="lies on the filesystem of its parent"):
        fork_checkpoint(tmp_path, here / "fork")
    (here / "a").remove()
    assert not (tmp_path / "a").exists()
    assert checkpoint_folder(f"file://{tmp_path}/x%20y") == tmp_path / "x y"
    assert checkpoint_folder("s3a://bucket/x/") == HadoopPath("s3a://bucket/x", here.files)
    with pytest.raises(StorageError, match="could not look at nowhere://x/y"):
        checkpoint_folder("nowhere://x/y").exists()


class CutShort:
    """A stream that is cut after half of a write; `look` is called then."""

    def __init__(self, stream: Any, look: Callable[[], object]) -> None:
        self._stream, self._look = stream, look

    def write(self, data: bytearray) -> None:
        self._stream.write(data[: len(data) // 2])
        self._stream.flush()
        self._look()
        self._stream.close()
        self._stream.write(data[len(data) // 2 :])  # Which the JVM refuses.

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class CutFiles(JvmFiles):
    """Every write is cut short."""

    def __init__(self, spark: SparkSession, look: Callable[[], object]) -> None:
        super().__init__(spark.sparkContext)
        self._look = look

    def _found(self, uri: str) -> tuple[Any, Any]:
        files, path = super()._found(uri)
        return _Through(files, create=lambda *given: CutShort(files.create(*given), self._look)), path


class _Through:
    def __init__(self, beneath: Any, **other: Any) -> None:
        self._beneath, self._other = beneath, other

    def __getattr__(self, name: str) -> Any:
        return self._other.get(name) or getattr(self._beneath, name)


def test_a_write_that_is_cut_short_leaves_the_file_as_it_was(spark: SparkSession, tmp_path: Path) -> None:
    """A killed driver would leave half of a checkpoint's metadata, and Spark would not start the query again."""
    path = tmp_path / "metadata"
    for _ in range(2):  # One that is there is replaced.
        by_hadoop(spark, path).write_bytes(b"the first")
    seen: list[bytes] = []
    with pytest.raises(StorageError, match="could not write"):
        HadoopPath(f"file://{path}", CutFiles(spark, lambda: seen.append(path.read_bytes()))).write_bytes(b"another")
    assert seen == [b"the first"]
    assert path.read_bytes() == b"the first"
    assert [p.name for p in tmp_path.iterdir() if not p.name.endswith(".crc")] == ["metadata"]


def test_a_filesystem_with_the_older_interface_alone_is_written_as_well(spark: SparkSession, tmp_path: Path) -> None:
    older = JvmFiles(spark.sparkContext)
    assert spark._jvm is not None
    older._conf = spark._jvm.org.apache.hadoop.conf.Configuration(older._conf)
    older._conf.unset("fs.AbstractFileSystem.file.impl")
    for data in (b"the first", b"another"):
        HadoopPath(f"file://{tmp_path}/metadata", older).write_bytes(data)
        assert (tmp_path / "metadata").read_bytes() == data


class Upload:
    """What becomes an object when it is closed."""

    def __init__(self, objects: dict[str, bytes], name: str, error: Exception) -> None:
        self._objects, self._name, self._error, self._data = objects, name, error, b""

    def write(self, data: bytearray) -> None:
        self._data += bytes(data[: len(data) // 2])
        raise self._error

    def abort(self) -> None:
        self._name = ""

    def close(self) -> None:
        if self._name:
            self._objects[self._name] = self._data


def test_a_write_to_an_object_store_that_fails_publishes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    assert spark._jvm is not None
    error = Py4JJavaError("", spark._jvm.java.io.IOException("the connection was reset"))
    objects = {"metadata": b"the first"}

    class Objects(JvmFiles):
        def _found(self, uri: str) -> tuple[Any, Any]:
            files, path = super()._found(uri)
            return _Through(
                files, hasPathCapability=lambda _, name: name.endswith("outputstream.abortable"),
                create=lambda path, _: Upload(objects, path.getName(), error),
            ), path  # fmt: skip

    with pytest.raises(StorageError, match="the connection was reset"):
        HadoopPath(f"file://{tmp_path}/metadata", Objects(spark.sparkContext)).write_bytes(b"another")
    assert objects == {"metadata": b"the first"}


@pytest.mark.slow
def test_a_fork_of_a_stateful_processor_gives_what_its_parent_gives(
    spark: SparkSession, store: holdfast.StreamStore, tmp_path: Path
) -> None:
    """S1 for transformWithState, whose state lies in several column families of one store."""
    spark.conf.set(PROVIDER, ROCKSDB)
    try:
        check(spark, store, tmp_path, "transformed")
    finally:
        spark.conf.unset(PROVIDER)


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in QUERIES if n not in ("windows", "transformed")])
def test_a_fork_gives_what_its_parent_gives(
    spark: SparkSession, store: holdfast.StreamStore, tmp_path: Path, name: str
) -> None:
    """S1, for each kind of query."""
    check(spark, store, tmp_path, name)


def test_a_fork_links_only_what_its_batch_needs_and_has_its_own_id(tmp_path: Path) -> None:
    parent = tmp_path / "parent"
    store = parent / "state" / "0" / "0"
    for folder in (parent / "offsets", parent / "commits", store / "_metadata", parent / "state" / "0" / "_metadata"):
        folder.mkdir(parents=True)
    for n in range(14):
        (parent / "offsets" / str(n)).write_text(f"offset {n}")
        if n < 13:
            (parent / "commits" / str(n)).write_text(f"commit {n}")
        (store / f"{n + 1}.delta").write_text(f"delta {n + 1}")
        (store / f".{n + 1}.delta.crc").write_text("crc")
    (store / "10.snapshot").write_text("snapshot")
    (store / "_metadata" / "schema").write_text("schema")
    (parent / "metadata").write_text(json.dumps({"id": "parent"}))
    (parent / "offsets" / ".13.tmp").write_text("torn")

    forked = fork_checkpoint(parent, tmp_path / "fork")

    names = {str(p.relative_to(tmp_path / "fork")) for p in (tmp_path / "fork").rglob("*") if p.is_file()}
    assert names == {
        "metadata", "offsets/12", "offsets/11", "commits/12", "state/0/0/_metadata/schema", "state/0/0/10.snapshot",
        *(f"state/0/0/{n}.delta" for n in (11, 12, 13)), *(f"state/0/0/.{n}.delta.crc" for n in (11, 12, 13)),
    }  # fmt: skip
    assert json.loads((tmp_path / "fork" / "metadata").read_text()) == {"id": forked.query_id}
    assert os.stat(tmp_path / "fork" / "offsets" / "12").st_nlink == 2
    assert os.stat(parent / "metadata").st_nlink == 1


def test_a_query_without_a_commit_cannot_be_forked(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has not committed a batch yet"):
        fork_checkpoint(tmp_path / "none", tmp_path / "fork")
