"""Checkpoints on a filesystem of Hadoop's: HDFS, S3A, and whatever else Spark can put them on.

Rules:
1. A checkpoint on a disk of this machine is a `Path`, and nothing here is in its way. One with another scheme is a
   `HadoopPath`, with as many of a path's methods as those need who look into checkpoints.
2. Its files are read and written by the JVM of the driver, with the settings and keys that Spark itself uses. A process
   without a JVM, such as the one in which Spark commits results, asks the driver's `stream_host`.
3. There are no links: a file that a fork takes over is copied, several at a time: by the store itself where the store
   can do that and lets us ask it to (S3A, within a bucket), elsewhere through the JVM.
4. Nobody sees half of a file that is written here, whenever the driver is killed. HDFS and the like empty a file when
   it is opened to be written: there it is written beside its place and renamed into it. An object store publishes what
   was written when it is closed, whole or not: there a write that fails is aborted.
5. Spark writes its own files by a file manager that a setting names. A batch that is executed again replaces the state
   that its first attempt has written. By Hadoop's older interface that is done on a disk of this machine alone: on HDFS
   and S3A the old file stays, without a word, while the query goes on with the new state. So that is refused.
"""

from __future__ import annotations

import contextlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
from pyspark import SparkContext

from holdfast.model.errors import StorageError
from holdfast.spark.grants import SESSION, noted_host, way_for
from holdfast.spark.host_client import HostClient
from holdfast.stream.disk import Disk, VolatileDisk

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MISSING = ("java.io.FileNotFoundException", "software.amazon.awssdk.services.s3.model.NoSuchKeyException")
#: What S3 copies in one request.
_COPY_BYTES_MAX = 5 << 30


_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
_PACKAGE = "org.apache.spark.sql.execution.streaming.checkpointing"


class HadoopFiles(ABC):
    """The files of all such filesystems."""

    @abstractmethod
    def read(self, uri: str) -> bytes:
        """`FileNotFoundError` if there is none."""

    @abstractmethod
    def is_folder(self, uri: str) -> bool | None:
        """None: there is nothing."""


class HadoopPath:
    """One file or folder, by its address."""

    def __init__(self, uri: str, files: HadoopFiles) -> None:
        self.uri, self.files = uri.rstrip("/"), files

    def __truediv__(self, name: str | Path) -> HadoopPath:
        return HadoopPath(f"{self.uri}/{name}", self.files)

    def __str__(self) -> str:
        return self.uri

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HadoopPath) and other.uri == self.uri

    def __hash__(self) -> int:
        return hash(self.uri)

    @property
    def name(self) -> str:
        return self.uri.rpartition("/")[2]

    def exists(self) -> bool:
        return self.files.is_folder(self.uri) is not None

    def is_dir(self) -> bool:
        return self.files.is_folder(self.uri) is True

    def read_bytes(self) -> bytes:
        return self.files.read(self.uri)

    def read_text(self) -> str:
        return self.read_bytes().decode()

    def iterdir(self) -> Iterator[HadoopPath]:
        for name, _ in self._jvm.names(self.uri):
            yield self / name

    def walk(self) -> Iterator[tuple[Path, list[str]]]:
        """All folders below, relative to here, each with the names of its files."""
        folders = [Path()]
        while folders:
            here = folders.pop()
            found = self._jvm.names((self / here).uri if here.parts else self.uri)
            folders += [here / name for name, folder in found if folder]
            yield here, [name for name, folder in found if not folder]

    def write_bytes(self, data: bytes) -> None:
        self._jvm.write(self.uri, data)

    def copy(self, target: HadoopPath) -> None:
        self._jvm.copy(self.uri, target.uri)

    def take(self, file: Path, name: Path) -> None:
        """Copy a file of this machine's to this name below."""
        self._jvm.copy(f"file://{file.absolute()}", (self / name).uri)

    def remove(self) -> None:
        """With all below it, if there is anything."""
        self._jvm.remove(self.uri)

    @property
    def _jvm(self) -> JvmFiles:
        assert isinstance(self.files, JvmFiles), "only the driver changes a checkpoint"
        return self.files


CheckpointFolder = Path | HadoopPath


def checkpoint_folder(location: str | Path | HadoopPath) -> CheckpointFolder:
    """Rule 1."""
    if not isinstance(location, str):
        return location
    return local_path(location) or hadoop_path(location)


def local_path(location: str) -> Path | None:
    """The folder, if it is one of this machine's; None if it has another scheme, or is none."""
    parsed = urlsplit(location)
    if not location or parsed.scheme not in ("", "file"):
        return None
    return Path(unquote(parsed.path)) if parsed.scheme else Path(location)


def hadoop_path(location: str) -> HadoopPath:
    """Rule 2."""
    context = SparkContext._active_spark_context
    if context is not None:
        return HadoopPath(location, JvmFiles(context))
    if noted_host() is None:
        raise StorageError(
            f"the checkpoint {location} is reached through the driver, which must serve it: make the session with "
            "holdfast.spark.session or hand it to holdfast.spark.register, and without a cluster set "
            "spark.holdfast.executors to host; or put the checkpoint into a folder of the driver's machine"
        )
    return HadoopPath(location, ServedFiles(location))


def unfit_manager(session: SparkSession, checkpoint: CheckpointFolder) -> str | None:
    """Rule 5: why queries of this session must not have that checkpoint; None if they may."""
    if not isinstance(checkpoint, HadoopPath):
        return None
    scheme = urlsplit(checkpoint.uri).scheme
    interface = f"fs.AbstractFileSystem.{scheme}.impl"
    chosen = session.conf.get(_MANAGER, None)
    begin = f"a checkpoint at {scheme}:// must be written by a file manager that replaces what is there; {_MANAGER} is "
    if chosen is not None and chosen.endswith(".FileSystemBasedCheckpointFileManager"):
        return (
            f"{begin}{chosen}, which does so in local folders alone; set it to "
            f"{_PACKAGE}.FileContextBasedCheckpointFileManager, or make the session with spark.holdfast.executors=host"
        )
    if chosen is None and session.sparkContext._jsc.hadoopConfiguration().get(interface) is None:
        return (
            f"{begin}not set, and Spark's own choice needs the FileContext interface of that filesystem, which is not "
            f"known; set spark.hadoop.{interface} to the class that its connector has for it"
        )
    return None


class JvmFiles(HadoopFiles):
    """By the JVM of this process's session."""

    def __init__(self, context: SparkContext) -> None:
        self._jvm: Any = context._jvm
        self._gateway: Any = context._gateway
        self._conf = context._jsc.hadoopConfiguration()

    def _found(self, uri: str) -> tuple[Any, Any]:
        path = self._jvm.org.apache.hadoop.fs.Path(uri)
        try:
            return path.getFileSystem(self._conf), path
        except Py4JJavaError as error:
            raise _told(error, "look at", uri) from None

    def read(self, uri: str) -> bytes:
        files, path = self._found(uri)
        try:
            stream = files.open(path)
        except Py4JJavaError as error:
            raise _told(error, "read", uri) from None
        try:
            return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
        except Py4JJavaError as error:  # S3A looks for the file when it is first read.
            raise _told(error, "read", uri) from None
        finally:
            stream.close()

    def is_folder(self, uri: str) -> bool | None:
        files, path = self._found(uri)
        try:
            return bool(files.getFileStatus(path).isDirectory())
        except Py4JJavaError as error:
            told = _told(error, "look at", uri)
            if isinstance(told, FileNotFoundError):
                return None
            raise told from None

    def names(self, uri: str) -> list[tuple[str, bool]]:
        """What a folder holds, and whether that is a folder; `FileNotFoundError` if there is none."""
        files, path = self._found(uri)
        try:
            return [(str(s.getPath().getName()), bool(s.isDirectory())) for s in files.listStatus(path)]
        except Py4JJavaError as error:
            raise _told(error, "list", uri) from None

    def write(self, uri: str, data: bytes) -> None:
        """Rule 4."""
        files, path = self._found(uri)
        hadoop = self._jvm.org.apache.hadoop.fs
        try:
            if files.hasPathCapability(path, hadoop.CommonPathCapabilities.ABORTABLE_STREAM):
                _put(files, path, data, publishes_at_close=True)
                return
            beside = hadoop.Path(path.getParent(), f".{path.getName()}.{os.urandom(8).hex()}.tmp")
            try:
                _put(files, beside, data, publishes_at_close=False)
                self._replace(files, beside, path)
            except BaseException:
                with contextlib.suppress(Py4JError):
                    files.delete(beside, False)
                raise
        except Py4JJavaError as error:
            raise _told(error, "write", uri) from None

    def _replace(self, files: Any, source: Any, target: Any) -> None:
        """In one step, where the filesystem can do that."""
        hadoop = self._jvm.org.apache.hadoop.fs
        try:
            context = hadoop.FileContext.getFileContext(target.toUri(), self._conf)
        except Py4JJavaError:  # It has the older interface alone, which replaces nothing: for a moment it is not there.
            files.delete(target, False)
            if not files.rename(source, target):
                raise StorageError(f"could not write {target.toString()}: its filesystem did not rename it") from None
            return
        overwrite = self._gateway.new_array(hadoop.Options.Rename, 1)
        overwrite[0] = hadoop.Options.Rename.OVERWRITE
        context.rename(source, target, overwrite)

    def copy(self, source: str, target: str) -> None:
        (files, path), (into, to) = self._found(source), self._found(target)
        try:
            if files.getUri() == into.getUri() and _copied_by_store(files, path, to):
                return
            self._jvm.org.apache.hadoop.fs.FileUtil.copy(files, path, into, to, False, True, self._conf)
        except Py4JJavaError as error:
            raise _told(error, f"copy to {target}", source) from None

    def remove(self, uri: str) -> None:
        files, path = self._found(uri)
        try:
            files.delete(path, True)
        except Py4JJavaError as error:
            raise _told(error, "remove", uri) from None


def _copied_by_store(files: Any, source: Any, target: Any) -> bool:
    """Rule 3. Hadoop's interface has no copies. S3A makes those of its renames by requests that keep to its encryption
    and storage class, and hands out what makes them."""
    if files.getScheme() != "s3a":
        return False
    try:
        internals = files.getS3AInternals()
        known = internals.getObjectMetadata(source)
        if known.contentLength() > _COPY_BYTES_MAX:
            return False
        keys = files.pathToKey(source), files.pathToKey(target)
        request = files.getRequestFactory().newCopyObjectRequestBuilder(*keys, known).build()
        internals.getAmazonS3Client("fork of a checkpoint").copyObject(request)
    except Py4JJavaError:
        raise
    except Py4JError:  # Another Hadoop's, which hands out something else.
        return False
    return True


def _put(files: Any, path: Any, data: bytes, *, publishes_at_close: bool) -> None:
    stream = files.create(path, True)
    try:
        stream.write(bytearray(data))
    except BaseException:
        with contextlib.suppress(Py4JError):
            if publishes_at_close:
                stream.abort()
            stream.close()
        raise
    stream.close()


def _told(error: Py4JJavaError, verb: str, uri: str) -> FileNotFoundError | StorageError:
    thrown = error.java_exception
    if thrown.getClass().getName() in _MISSING:
        return FileNotFoundError(uri)
    return StorageError(
        f"could not {verb} {uri}: {str(thrown.toString()).splitlines()[0]}; look whether its filesystem answers, and "
        "at the settings spark.hadoop.fs.… of the session"
    )


class ServedFiles(HadoopFiles):
    """By the driver, for a process without a JVM that only looks."""

    def __init__(self, checkpoint: str) -> None:
        way = way_for((), SESSION, checkpoint=checkpoint)
        assert way is not None
        self._way = way

    def read(self, uri: str) -> bytes:
        answer = self._asked("file", uri)
        if answer is None:
            raise FileNotFoundError(uri)
        return answer

    def is_folder(self, uri: str) -> bool | None:
        answer = self._asked("kind", uri)
        return None if answer is None else answer == b"folder"

    def _asked(self, what: str, uri: str) -> bytes | None:
        client = HostClient(self._way)
        try:
            answer = client.ask("GET", f"/v1/checkpoint/{what}?uri={quote(uri, safe='')}")
        finally:
            client.close()
        return None if answer.status == 404 else bytes(answer.data)


class HadoopDisk(VolatileDisk):
    """`Disk`, as far as notes in a checkpoint need it (rule 4)."""

    def make_dir(self, path: Any) -> None:
        """Folders come with their files."""

    def replace_file(self, path: Any, data: bytes) -> None:
        path.write_bytes(data)


def disk_for(folder: CheckpointFolder) -> Any:
    """Who writes notes there: a `Disk`, as far as those need one."""
    return HadoopDisk() if isinstance(folder, HadoopPath) else Disk()
