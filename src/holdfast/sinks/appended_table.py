"""What tables that are appended to (Delta, Iceberg) have in common: which columns a sink writes, whether a table has
them, and which errors of their libraries no retry mends.

A table keeps every value as it is or is refused (rule 4 of `sink`): the libraries below would cast in silence, such as
a decimal into a double.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import pyarrow as pa

from holdfast.model.errors import SchemaError, UsageError
from holdfast.model.schema import STIME_TYPE, schema_text, type_text
from holdfast.sinks.sink import Source

#: Marks rows that may still be taken back.
TENTATIVE = "tentative"


#: Rights and credentials, in the words of object stores, catalogs and file systems. The libraries have no class for
#: most of them: a store's answer stands in the text.
_REFUSED = re.compile(
    r"\b40[13] (Unauthorized|Forbidden)\b|HTTP status(?: code)?:? 40[13]\b|lacked (?:the necessary|valid auth)|"
    r"access.?denied|invalid.?access.?key|invalid.?client.?token|unrecognized.?client|signature.?does.?not.?match|"
    r"missing.?authentication.?token|not.?authorized|permission denied|no.?such.?bucket",
    re.IGNORECASE,
)
#: Refusals that pass: a clock that is wrong, a token that somebody will renew.
_PASSES = re.compile(r"too.?skewed|expired|slow.?down", re.IGNORECASE)
_COLOUR = re.compile(r"\x1b\[\d*m")


def is_refusal(error: Exception) -> bool:
    """Whether the store or the catalog does not let us in: that will be the same at every attempt."""
    text = str(error)
    return isinstance(error, PermissionError) or bool(_REFUSED.search(text) and not _PASSES.search(text))


def refusal(target: str, error: Exception) -> UsageError:
    return UsageError(
        f"{target} must be open to us, with these rights and credentials it is not: {one_line(error)}; nothing was "
        "changed; mend its address, the credentials or the rights"
    )


def one_line(error: Exception) -> str:
    """A library's error, whose cause may stand in later lines."""
    lines = [line.strip().removeprefix("↳").strip() for line in _COLOUR.sub("", str(error)).splitlines()]
    return ": ".join(line for line in lines if line)[:500] or type(error).__name__


def written_columns(source: Source, own: Sequence[pa.Field], marked: bool) -> pa.Schema:
    """The sink's `own` columns, the mark if rows are `marked`, stime, and the stream's."""
    own = [*own, *([pa.field(TENTATIVE, pa.bool_())] if marked else [])]
    if taken := {field.name for field in own} & set(source.columns.names):
        raise SchemaError(
            f"stream {source.stream} must not have a column {taken.pop()!r}, which the sink uses itself; rename it in "
            "the query"
        )
    return pa.schema([*own, pa.field("stime", STIME_TYPE), *(f.with_nullable(True) for f in source.columns)])


def is_marked(there: pa.Schema, source: Source) -> bool:
    """Has an earlier life of the sink marked rows? Then this one does so, too, though it takes no tentative ones: a row
    without the mark would be in no answer to `where not tentative`."""
    return TENTATIVE in there.names and TENTATIVE not in source.columns.names


def lacking_columns(target: str, stream: str, written: pa.Schema, there: pa.Schema, add: bool) -> list[pa.Field]:
    """The columns that have to be added to a table, if that may be. Refuse one that lacks a column otherwise, and one
    that has a column in another type."""
    missing = [field for field in written if field.name not in there.names]
    if missing and not add:
        raise SchemaError(
            f"{target} must have the columns {schema_text(pa.schema(missing))} for stream {stream}; it has "
            f"{', '.join(sorted(there.names))}; add them, let the sink do so with add_columns=True, or name another "
            "table"
        )
    for field in written:
        if field.name not in there.names:
            continue
        wanted, found = _word(field.type), _word(there.field(field.name).type)
        if wanted != found:
            raise SchemaError(
                f"column {field.name} of {target} must be {wanted} for stream {stream}, to keep every value as it is; "
                f"it is {found}; cast in the query, or name another table"
            )
    return missing


def check_mark(target: str, lacking: Sequence[pa.Field], filled: bool) -> None:
    """Refuse to add the mark to a table with rows: they would have none, and be in no answer to `where not
    tentative`."""
    if filled and any(field.name == TENTATIVE for field in lacking):
        raise SchemaError(
            f"{target} must have the column {TENTATIVE} from the first row on to take tentative ones; it has rows "
            "without it; add the column and set it to false there, or name another table"
        )


def _word(kind: pa.DataType) -> str:
    """A type in words, however its values are laid out in memory."""
    types = pa.types
    if types.is_large_string(kind) or types.is_string_view(kind):
        return "string"
    if types.is_large_binary(kind) or types.is_binary_view(kind):
        return "binary"
    if types.is_list(kind) or types.is_large_list(kind):
        return f"array<{_word(kind.value_type)}>"
    if types.is_map(kind):
        return f"map<{_word(kind.key_type)},{_word(kind.item_type)}>"
    if types.is_struct(kind):
        return f"struct<{','.join(f'{field.name}:{_word(field.type)}' for field in kind)}>"
    return type_text(kind)
