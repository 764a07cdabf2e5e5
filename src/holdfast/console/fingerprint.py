"""A fingerprint of a sequence of rows: equal if and only if the rows are equal byte for byte, in order.

Rules:
1. How the rows were cut into batches makes no difference; their order, nulls, types and every bit of their values do.
2. One digest per column, so that a difference can be named. Memory does not grow with the number of rows.
3. What lies in the buffer below a null is not part of the value.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_DIGEST_BYTES = 16


class Fingerprint:
    """Grows with every batch taken."""

    def __init__(self) -> None:
        self.rows = 0
        self._types: dict[str, str] = {}
        # Validity, lengths and values of a column are hashed apart: together they would depend on where a batch ends.
        self._parts: dict[str, dict[str, hashlib.blake2b]] = {}

    def take(self, batch: pa.RecordBatch) -> None:
        """Add the rows of a batch."""
        if not batch.num_rows:
            return
        self.rows += batch.num_rows
        for field, column in zip(batch.schema, batch.columns, strict=True):
            self._types.setdefault(field.name, str(field.type))
            self._feed(self._parts.setdefault(field.name, {}), "", column)

    def digests(self) -> dict[str, str]:
        """The digest of each column, by name."""
        said = {}
        for name, parts in self._parts.items():
            whole = hashlib.blake2b(self._types[name].encode(), digest_size=_DIGEST_BYTES)
            for part in sorted(parts):
                whole.update(part.encode() + parts[part].digest())
            said[name] = whole.hexdigest()
        return said

    def _feed(self, parts: dict[str, hashlib.blake2b], path: str, array: pa.Array) -> None:
        def update(part: str, data: bytes) -> None:
            key = f"{path}/{part}"
            if key not in parts:
                parts[key] = hashlib.blake2b(digest_size=_DIGEST_BYTES)
            parts[key].update(data)

        valid = pc.is_valid(array).to_numpy(zero_copy_only=False)
        update("valid", valid.astype(np.uint8).tobytes())
        kind = array.type
        if pa.types.is_struct(kind):
            for i in range(kind.num_fields):
                self._feed(parts, f"{path}/{i}", pc.struct_field(array, [i]))
        elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
            lengths = pc.fill_null(pc.list_value_length(array), 0)
            update("lengths", lengths.to_numpy(zero_copy_only=False).astype(np.int64).tobytes())
            self._feed(parts, f"{path}/items", pc.list_flatten(array))
        elif _is_fixed_width(kind):
            update("values", _fixed_width_bytes(array, valid))
        else:  # Text, bytes and whatever is rare: one by one, each with its length.
            for value in array.to_pylist():
                data = value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")
                update("values", len(data).to_bytes(8, "little") + data)


def fingerprint(batches: Iterable[pa.RecordBatch]) -> Fingerprint:
    """The fingerprint of all rows of these batches."""
    made = Fingerprint()
    for batch in batches:
        made.take(batch)
    return made


def differing(one: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    """The columns whose digests differ or that only one side has."""
    return [name for name in dict.fromkeys((*one, *other)) if one.get(name) != other.get(name)]


def _is_fixed_width(kind: pa.DataType) -> bool:
    if pa.types.is_boolean(kind):
        return True
    return bool(pa.types.is_primitive(kind) or pa.types.is_decimal(kind) or pa.types.is_fixed_size_binary(kind))


def _fixed_width_bytes(array: pa.Array, valid: np.ndarray) -> bytes:
    if pa.types.is_boolean(array.type):
        return bytes(pc.fill_null(array, False).to_numpy(zero_copy_only=False).astype(np.uint8))
    width, buffer = array.type.bit_width // 8, array.buffers()[1]
    if buffer is None:
        return bytes(len(array) * width)
    start = array.offset * width
    values = np.frombuffer(buffer, np.uint8)[start : start + len(array) * width].reshape(len(array), width).copy()
    values[~valid] = 0
    return values.tobytes()
