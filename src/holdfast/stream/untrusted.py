"""Arrow bytes from outside, as tables and events that can be trusted to be what they claim. Every intake goes through
here: bodies of requests, events of peers and partners, results that came with a moved task.

Rules (X4, X5):
1. The schema is looked at before any batch: extension and dictionary types are refused, whatever they hide.
2. A compressed buffer says how long it becomes. The sum is compared with a limit before anything is unpacked. Events
   are never written compressed, so a compressed one is refused: its readers would unpack it again and again.
3. Every batch is validated in full: without that, offsets that lie make the process crash, or show it what lies behind
   the buffer.
4. An event is compared with its header: rows, least and greatest stime, bucket, partition. Readers, retention and
   `verify` go by the header alone and would otherwise believe whoever wrote it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from holdfast.model.errors import PeerError, SchemaError
from holdfast.stream.columns import read_batch
from holdfast.stream.definition import Definition
from holdfast.stream.pack import key_partitions
from holdfast.stream.writer import Event

#: What a body may become in memory. A thousand times the tuples that one unit usually has.
UNPACKED_BYTES_MAX = 256 << 20
#: Rows of one body: bounds what a column that is tiny on the wire becomes when it gets the stream's type.
ROWS_MAX = 1 << 20
_EXTENSION = b"ARROW:extension:name"
#: Types that Arrow reads and Python has no arrays for.
_WITHOUT_VALUES = (pa.lib.Type_INTERVAL_MONTHS, pa.lib.Type_INTERVAL_DAY_TIME)
#: Behind the footer of a file: its length and the mark.
_FILE_END_BYTES = 10
#: What Arrow and the reading of its metadata raise at bytes that are none of theirs.
_UNREADABLE = (pa.ArrowException, OSError, EOFError, ValueError, IndexError, struct.error)


def check_events(events: Iterable[Event], definition: Definition) -> None:
    """`PeerError` unless the body of each holds exactly the tuples that its header claims."""
    stored = definition.stored
    for event in events:
        try:
            wrong = _contradiction(event, _event_batch(event, stored), definition, stored)
        except _UNREADABLE as error:
            wrong = f"its body cannot be read ({_first_line(error)})"
        if wrong is not None:
            raise PeerError(
                f"stream {definition.name}: an event of bucket {event.bucket} must be what its header says; {wrong}; "
                f"it was refused; look for damage or another version at its producer"
            )


def check_waiting(rows: int, body: bytes, first_us: int, definition: Definition) -> None:
    """`PeerError` unless `body` holds so many results that still wait for their buckets to close."""
    try:
        wrong = _waiting_contradiction(rows, body, first_us, definition)
    except (*_UNREADABLE, SchemaError) as error:
        wrong = _first_line(error)
    if wrong is not None:
        raise PeerError(f"the waiting results of stream {definition.name} must be what their head says; {wrong}")


def _waiting_contradiction(rows: int, body: bytes, first_us: int, definition: Definition) -> str | None:
    if not body:
        return None if not rows else f"there are none where {rows} were announced"
    table = read_arrow(body, "the waiting results", rows_max=rows)
    if not table.schema.equals(definition.stored):
        return "their columns are not those of the stream"
    if table.num_rows != rows:
        return f"there are {table.num_rows} where {rows} were announced"
    if _has_forbidden_nulls(table, definition.stored):
        return "a column that must not be null has nulls"
    if rows and int(np.asarray(table.column(0).cast(pa.int64())).min()) < first_us:
        return "some are older than what the stream has promised"
    return None


def check_plain(file: pa.Buffer) -> None:
    """`ValueError` if something in an Arrow IPC file is compressed, or is said to be more rows than it has bytes.

    The file ends with a footer, its length and a mark; the footer says where each batch stands, and how much of that
    describes it.
    """
    data = memoryview(file)
    (length,) = struct.unpack_from("<i", data, len(data) - _FILE_END_BYTES)
    footer = bytes(data[len(data) - _FILE_END_BYTES - length : len(data) - _FILE_END_BYTES])
    blocks = _field(footer, _u32(footer, 0), _BLOCKS)
    blocks = None if blocks is None else blocks + _u32(footer, blocks)
    rows = 0
    for i in range(0 if blocks is None else _u32(footer, blocks)):
        at, described = struct.unpack_from("<qi", footer, (blocks or 0) + 4 + 24 * i)
        metadata = bytes(data[at : at + described])
        metadata = metadata[8:] if metadata[:4] == b"\xff\xff\xff\xff" else metadata[4:]
        rows += _rows(metadata)
        if _field(metadata, _batch(metadata), _COMPRESSION) is not None or rows > len(data):
            raise ValueError("it is compressed")


def _event_batch(event: Event, stored: pa.Schema) -> pa.RecordBatch:
    message = pa.ipc.read_message(pa.py_buffer(event.body))
    if message.type != "record batch":
        raise ValueError(f"it is a {message.type}")
    metadata = message.metadata.to_pybytes()
    if _rows(metadata) != event.rows:  # Before anything is made of so many rows.
        raise ValueError(f"it holds {_rows(metadata)} rows instead of {event.rows}")
    if _field(metadata, _batch(metadata), _COMPRESSION) is not None:
        raise ValueError("it is compressed")
    batch = read_batch(message, stored)
    batch.validate(full=True)
    return batch


def _contradiction(event: Event, batch: pa.RecordBatch, definition: Definition, stored: pa.Schema) -> str | None:
    """Rule 4."""
    if batch.num_rows != event.rows or not event.rows:
        return f"it holds {batch.num_rows} rows instead of {event.rows}"
    if _has_forbidden_nulls(batch, stored):
        return "a column that must not be null has nulls"
    stimes = np.asarray(batch.column(0).cast(pa.int64()))
    low, high = int(stimes.min()), int(stimes.max())
    if (low, high) != (event.stime_min_us, event.stime_max_us):
        return f"its stimes are {low} to {high} instead of {event.stime_min_us} to {event.stime_max_us}"
    begin = event.bucket * definition.bucket_us
    if not begin <= low <= high < begin + definition.bucket_us:
        return "its tuples do not lie within the bucket"
    if definition.partition_by is None:
        right = event.bucket % definition.partitions == event.partition
    else:
        found = key_partitions(batch.column(definition.partition_by), definition.partitions)
        right = bool((found == event.partition).all())
    return None if right else f"its tuples do not belong into partition {event.partition}"


def _has_forbidden_nulls(rows: pa.RecordBatch | pa.Table, schema: pa.Schema) -> bool:
    return any(column.null_count for field, column in zip(schema, rows.columns, strict=True) if not field.nullable)


def read_arrow(
    body: bytes, where: str, *, unpacked_max: int = UNPACKED_BYTES_MAX, rows_max: int = ROWS_MAX
) -> pa.Table:
    """The table in `body`, an IPC stream; `SchemaError` with one sentence if it is not a sound one."""
    try:
        _check_sizes(body, where, unpacked_max, rows_max)
        with pa.ipc.open_stream(pa.py_buffer(body)) as reader:
            for field in reader.schema:
                _check_field(field, where)
            table = reader.read_all()
        table.validate(full=True)
    except _UNREADABLE as error:
        raise SchemaError(f"{where}: the body must be an Arrow IPC stream; {_first_line(error)}") from None
    return table


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _check_field(field: pa.Field, where: str) -> None:
    kind = field.type
    if isinstance(kind, pa.BaseExtensionType) or (field.metadata and _EXTENSION in field.metadata):
        raise SchemaError(f"{where}: column {field.name!r} has an extension type; send its storage type")
    if pa.types.is_null(kind) or (pa.types.is_struct(kind) and kind.num_fields == 0):
        raise SchemaError(f"{where}: column {field.name!r} has the type {kind}, which holds nothing; send typed values")
    if kind.id in _WITHOUT_VALUES:
        raise SchemaError(f"{where}: column {field.name!r} has the type {kind}, which no stream has; send another")
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        raise SchemaError(f"{where}: column {field.name!r} is encoded as {kind}; send plain values")
    if pa.types.is_decimal(kind) and not 0 <= kind.scale <= kind.precision:
        raise SchemaError(f"{where}: column {field.name!r:.80} has the type {kind}, which no number has; send another")
    for i in range(kind.num_fields):
        _check_field(kind.field(i), where)


def _check_sizes(body: bytes, where: str, unpacked_max: int, rows_max: int) -> None:
    total = rows = 0
    for message in pa.ipc.MessageReader.open_stream(pa.py_buffer(body)):
        if message.type == "record batch":
            metadata = message.metadata.to_pybytes()
            total += _unpacked(metadata, message.body)
            rows += _rows(metadata)
        elif message.type == "dictionary":
            raise SchemaError(f"{where}: a column is encoded with a dictionary; send plain values")
        if rows > rows_max:
            raise SchemaError(f"{where}: the body holds more than {rows_max} rows; send smaller batches")
        if total > unpacked_max:
            raise SchemaError(f"{where}: the body becomes more than {unpacked_max} bytes; send smaller batches")


#: Fields of the flatbuffers that describe a batch: Message is (version, header_type, header, bodyLength), RecordBatch
#: is (length, nodes, buffers, compression). The Footer of a file is (version, schema, dictionaries, recordBatches).
_HEADER = 2
_BLOCKS = 3
_LENGTH, _BUFFERS, _COMPRESSION = 0, 2, 3


def _unpacked(metadata: bytes, body: pa.Buffer) -> int:
    """Bytes of a record batch once its buffers are unpacked."""
    batch = _batch(metadata)
    if _field(metadata, batch, _COMPRESSION) is None:
        return int(body.size) if body is not None else 0
    buffers = _offset(metadata, batch, _BUFFERS)
    total = 0
    for i in range(_u32(metadata, buffers)):
        offset, length = struct.unpack_from("<qq", metadata, buffers + 4 + 16 * i)
        if length:
            (unpacked,) = struct.unpack_from("<q", body.slice(offset, 8).to_pybytes())
            total += length if unpacked == -1 else max(unpacked, 0)
    return total


def _batch(metadata: bytes) -> int:
    return _offset(metadata, _u32(metadata, 0), _HEADER)


def _rows(metadata: bytes) -> int:
    """The number of rows that a record batch claims: columns without buffers cost nothing until they are cast."""
    length = _field(metadata, _batch(metadata), _LENGTH)
    return 0 if length is None else int(struct.unpack_from("<q", metadata, length)[0])


def _u32(data: bytes, at: int) -> int:
    return int(struct.unpack_from("<I", data, at)[0])


def _field(data: bytes, table: int, number: int) -> int | None:
    """Where field `number` of a flatbuffer table stands; None if it is absent."""
    vtable = table - int(struct.unpack_from("<i", data, table)[0])
    if 4 + 2 * number >= struct.unpack_from("<H", data, vtable)[0]:
        return None
    at = int(struct.unpack_from("<H", data, vtable + 4 + 2 * number)[0])
    return table + at if at else None


def _offset(data: bytes, table: int, number: int) -> int:
    at = _field(data, table, number)
    if at is None:
        raise ValueError("a record batch does not say where its buffers are")
    return at + _u32(data, at)
