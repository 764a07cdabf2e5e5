"""A folder of Parquet files with the stable rows of a stream, each exactly once.

Rules:
1. A file is named by the positions between which its rows lie, as a running number and a digest of both, and holds the
   position behind its last row. It appears under its name whole or not at all, and durable.
2. So the newest file says where to go on, and no other note is needed. A file that was written and whose writer was
   killed is found; one that was not is written again.
3. Tentative rows are not taken: a file that others have read cannot be taken back (T3).
4. One writer at a time: it holds a lock on the folder for as long as its process lives.

Whoever reads the folder reads `*.parquet`; other files are ours.
"""

from __future__ import annotations

import fcntl
import os
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.model.errors import SchemaError, StorageError, UsageError
from holdfast.model.schema import type_text
from holdfast.model.time import duration_us
from holdfast.sinks.sink import Changes, Promise, Sink, Source
from holdfast.stream.disk import Disk, storage_error
from holdfast.stream.frame import crc32c

_NAME = re.compile(r"part-(\d{12})-([0-9a-f]{8})\.parquet")
_META_STREAM, _META_POSITION = b"holdfast.stream", b"holdfast.position"


def parquet(
    folder: str | os.PathLike[str], *, every: str | int | float = "10s", compression: str = "zstd"
) -> ParquetSink:
    """Write the stable rows of a stream into Parquet files, one per `every` or so. Columns are `tuple_id`, `stime` and
    the stream's own; every type fits."""
    return ParquetSink(Path(folder), duration_us(every), compression)


class ParquetSink(Sink):
    kind = "parquet"
    promise: Promise = "exactly once, stable rows only"

    def __init__(self, folder: Path, every_us: int, compression: str) -> None:
        self._folder, self.every_us, self._compression = folder, every_us, compression
        self._disk = Disk()
        self._lock = -1
        self._stream, self._number, self._position = "", 0, ""

    @property
    def target(self) -> str:
        return f"folder {self._folder}"

    def resume(self, source: Source) -> str | None:
        self.close()
        try:
            self._take_lock()
            return self._found(source)
        except BaseException:
            self.close()
            raise

    def _take_lock(self) -> None:
        """Rule 4."""
        try:
            self._disk.make_dir(self._folder)
            self._lock = os.open(self._folder / ".holdfast.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"another sink writes to {self._folder}; stop it, or name another folder") from None
        except OSError as error:
            raise storage_error("open", self._folder, error) from error

    def _found(self, source: Source) -> str | None:
        for half_made in self._folder.glob(".part-*.tmp"):
            self._disk.unlink(half_made)
        files = sorted(path for path in self._folder.iterdir() if _NAME.fullmatch(path.name))
        self._stream, self._number, self._position = source.stream, 0, ""
        if not files:
            return None
        return self._go_on(files[-1], source)

    def _go_on(self, last: Path, source: Source) -> str:
        """Rule 2."""
        try:
            schema = pq.read_schema(last)
        except (pa.ArrowException, OSError) as error:
            raise UsageError(f"{last} cannot be read ({error}); remove it, and its rows are written again") from error
        said = schema.metadata or {}
        if _META_POSITION not in said or said.get(_META_STREAM) != source.stream.encode():
            raise UsageError(f"{last} must be a file of stream {source.stream}; it is not; name another folder")
        if schema.names[2:] != source.columns.names:
            raise SchemaError(
                f"the files of {self._folder} have the columns {', '.join(schema.names[2:])}; stream {source.stream} "
                f"has {', '.join(source.columns.names)}; name another folder"
            )
        for there, ours in zip(list(schema)[2:], source.columns, strict=True):
            if there.type != ours.type:
                raise SchemaError(
                    f"column {ours.name} of the files of {self._folder} must be {type_text(ours.type)} as in stream "
                    f"{source.stream}, or readers could not take them together; it is {type_text(there.type)}; cast in "
                    "the query, or name another folder"
                )
        match = _NAME.fullmatch(last.name)
        assert match is not None
        self._number, self._position = int(match[1]), said[_META_POSITION].decode()
        return self._position

    def apply(self, changes: Changes, position: str) -> None:
        if not changes.stable.num_rows:
            return  # The position behind the last row is as good: nothing but empty buckets lies between.
        number = self._number + 1
        path = self._folder / f"part-{number:012d}-{crc32c(f'{self._position} {position}'.encode()):08x}.parquet"
        table = changes.stable.replace_schema_metadata({_META_STREAM: self._stream.encode(),
                                                        _META_POSITION: position.encode()})  # fmt: skip
        buffer = pa.BufferOutputStream()
        pq.write_table(table, buffer, compression=self._compression)
        try:
            self._disk.replace_file(path, bytes(memoryview(buffer.getvalue())))
        except OSError as error:
            raise StorageError(f"{path} could not be written: {error}") from error
        self._number, self._position = number, position

    def close(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
