"""An Arrow IPC stream from a stranger, as a table that can be trusted to be well-formed.

Rules:
1. The schema is looked at before any batch: extension and dictionary types are refused, whatever they hide.
2. A compressed buffer says how long it becomes. The sum is compared with a limit before anything is unpacked (X4).
3. Every batch is validated in full: without that, offsets that lie make the process crash.
"""

from __future__ import annotations

import struct

import pyarrow as pa

from holdfast.model.errors import SchemaError

#: What a body may become in memory. A thousand times the tuples that one unit usually has.
UNPACKED_BYTES_MAX = 256 << 20
#: Rows of one body: bounds what a column that is tiny on the wire becomes when it gets the stream's type.
ROWS_MAX = 1 << 20
_EXTENSION = b"ARROW:extension:name"


def read_arrow(body: bytes, where: str, *, unpacked_max: int = UNPACKED_BYTES_MAX) -> pa.Table:
    """The table in `body`; `SchemaError` with one sentence if it is not a sound one."""
    try:
        _check_sizes(body, where, unpacked_max)
        with pa.ipc.open_stream(pa.py_buffer(body)) as reader:
            for field in reader.schema:
                _check_field(field, where)
            table = reader.read_all()
        table.validate(full=True)
    except (pa.ArrowException, OSError, ValueError, IndexError, struct.error) as error:
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
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        raise SchemaError(f"{where}: column {field.name!r} is encoded as {kind}; send plain values")
    for i in range(kind.num_fields):
        _check_field(kind.field(i), where)


def _check_sizes(body: bytes, where: str, unpacked_max: int) -> None:
    total = rows = 0
    for message in pa.ipc.MessageReader.open_stream(pa.py_buffer(body)):
        if message.type == "record batch":
            metadata = message.metadata.to_pybytes()
            total += _unpacked(metadata, message.body)
            rows += _rows(metadata)
        elif message.type == "dictionary":
            raise SchemaError(f"{where}: a column is encoded with a dictionary; send plain values")
        if rows > ROWS_MAX:
            raise SchemaError(f"{where}: the body holds more than {ROWS_MAX} rows; send smaller batches")
        if total > unpacked_max:
            raise SchemaError(f"{where}: the body becomes more than {unpacked_max} bytes; send smaller batches")


def _unpacked(metadata: bytes, body: pa.Buffer) -> int:
    """Bytes of a record batch once its buffers are unpacked, from the flatbuffer that describes it.

    Message is (version, header_type, header, bodyLength); RecordBatch is (length, nodes, buffers, compression).
    """
    message = _u32(metadata, 0)
    batch = _offset(metadata, message, 2)
    compression = _field(metadata, batch, 3)
    if compression is None:
        return int(body.size) if body is not None else 0
    buffers = _offset(metadata, batch, 2)
    total = 0
    for i in range(_u32(metadata, buffers)):
        offset, length = struct.unpack_from("<qq", metadata, buffers + 4 + 16 * i)
        if length:
            (unpacked,) = struct.unpack_from("<q", body.slice(offset, 8).to_pybytes())
            total += length if unpacked == -1 else max(unpacked, 0)
    return total


def _rows(metadata: bytes) -> int:
    """The number of rows that a record batch claims: columns without buffers cost nothing until they are cast."""
    length = _field(metadata, _offset(metadata, _u32(metadata, 0), 2), 0)
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
