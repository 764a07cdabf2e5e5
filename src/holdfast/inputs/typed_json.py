"""JSON objects into columns at once, where all columns are of simple types: the quick way of `decode.Decoder`.

It takes nothing that the decoder refuses and gives the same values; whatever it does not take is left to the decoder,
which takes it or says why not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
import pyarrow as pa

_INTEGERS = {pa.int8(): 8, pa.int16(): 16, pa.int32(): 32, pa.int64(): 64}


class Misread(Exception):
    """One of the texts is not what this reader takes."""


class TypedJson:
    """The columns of a schema from JSON objects. Make it with `typed_json`."""

    def __init__(self, schema: pa.Schema, decoder: msgspec.json.Decoder[Any]) -> None:
        self.schema, self._decode = schema, decoder.decode

    def arrays(self, texts: Sequence[bytes]) -> list[pa.Array]:
        """One array per column, or `Misread`."""
        try:
            # A struct's fields as a tuple: the one way that leaves the loop over rows in C.
            rows = map(msgspec.structs.astuple, map(self._decode, texts))
            columns = list(zip(*rows, strict=True)) or [()] * len(self.schema)
            return [pa.array(column, type=f.type) for column, f in zip(columns, self.schema, strict=True)]
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, pa.ArrowException) as error:
            raise Misread(str(error)) from None


def typed_json(schema: pa.Schema, *, forbid_unknown: bool = True) -> TypedJson | None:
    """None if a column is of a type that JSON has no exact word for (times, decimals, binary, nested ones)."""
    fields: list[Any] = []
    for n, field in enumerate(schema):
        kind = _type_of(field.type)
        if kind is None:
            return None
        fields.append((f"c{n}", kind | None, None) if field.nullable else (f"c{n}", kind))
    required_first = sorted(fields, key=len)
    if required_first != fields:
        return None  # A struct has its required fields first, and the columns would change places.
    names = {f"c{n}": name for n, name in enumerate(schema.names)}
    row = msgspec.defstruct("Row", fields, rename=names, forbid_unknown_fields=forbid_unknown)
    return TypedJson(schema, msgspec.json.Decoder(row))


def _type_of(kind: pa.DataType) -> Any:
    if kind in _INTEGERS:
        half = 1 << (_INTEGERS[kind] - 1)
        return Annotated[int, msgspec.Meta(ge=-half, le=half - 1)]
    if pa.types.is_float64(kind):
        return float
    return str if pa.types.is_string(kind) else bool if pa.types.is_boolean(kind) else None
