"""Tuple types and the header that every tuple carries (003, table 4.1)."""

from __future__ import annotations

from enum import IntEnum


class TupleType(IntEnum):
    """What a tuple on a stream says. The numbers are stored and sent; never renumber them."""

    INSERTION = 1
    """Regular stable tuple."""
    TENTATIVE = 2
    """Result of processing a subset of the inputs; may be corrected later."""
    BOUNDARY = 3
    """No later tuple has a smaller stime."""
    UNDO = 4
    """Every tuple after the one with this tuple_id is taken back."""
    REC_DONE = 5
    """The corrections that followed an UNDO are complete."""


#: Names of the header columns, in the order in which they precede the user's own. `stime` is stored, the other two are
#: derived from the frame, so they cost no disk.
HEADER = ("tuple_type", "tuple_id", "stime")
#: Which input a tuple came from, where several streams are read as one.
STREAM_COLUMN = "stream"
#: Column names that the user's own schema may not use.
RESERVED = frozenset((*HEADER, STREAM_COLUMN))
