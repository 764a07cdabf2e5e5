"""A batch that a query has prepared in a stream and not completed (`spark.striped_sink`): durable, and seen by nobody.

Rules:
1. A prepared unit has, beside the token of its batch, one that says how far the batch goes. While the stream's boundary
   is behind that, the batch is not complete, and only the query that prepared it may let the boundary go on: anybody
   else's boundary would show readers a part of it, and nobody would add the rest.
2. Tokens are not negative in the log, and boundaries may be: what is kept counts from `BEGINNING_US`.
"""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.model.errors import UsageError
from holdfast.model.time import BEGINNING_US, END_OF_TIME_US, closed_until
from holdfast.stream.definition import Definition

#: No producer can have such an id.
_UNTIL = "/until/"


def until_token(query_id: str, boundary_us: int) -> dict[str, int]:
    """Rule 1: the batch of the query goes up to here."""
    return {_UNTIL + query_id: min(max(boundary_us, BEGINNING_US), END_OF_TIME_US) - BEGINNING_US}


def prepared_until(tokens: Mapping[str, int], query_id: str) -> int | None:
    """How far the last batch of the query goes that was prepared; None if none was."""
    found = tokens.get(_UNTIL + query_id)
    return None if found is None else found + BEGINNING_US


def preparing(tokens: Mapping[str, int], own: str = "") -> list[str]:
    """The queries that have prepared batches here, other than `own`."""
    return [id.removeprefix(_UNTIL) for id in tokens if id.startswith(_UNTIL) and id != _UNTIL + own]


def refuse_prepared(definition: Definition, tokens: Mapping[str, int], boundary_us: int, own: str = "") -> None:
    """Rule 1, for whoever is about to write to a stream with these tokens and this boundary, unless it is `own`."""
    for query_id in preparing(tokens, own):
        until_us = prepared_until(tokens, query_id)
        assert until_us is not None
        if until_us > BEGINNING_US and closed_until(until_us, definition.bucket_us) > boundary_us:
            raise UsageError(
                f"stream {definition.name} holds batch {tokens.get(f'spark-{query_id}', 0)} of query {query_id}, "
                f"prepared and not complete; start that query again with its checkpoint, as it was, until the batch is "
                f"done, or write to a new stream"
            )
