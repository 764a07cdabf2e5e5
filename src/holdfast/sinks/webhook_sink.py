"""Changes as POST requests to an address: at least once, in order, with an id by which the receiver knows repetitions.

Rules:
1. One request per transaction; the next is sent when it was answered with 2xx. The body is JSON:
   {"stream", "id", "undo", "rec_done", "rows": [{"tuple_id", "stime", "tentative", "values"}, …]}.
2. `id` is the position behind the rows, also in the header `Idempotency-Key`. A request that was answered and whose
   sender was killed before it could note that is sent again, or another with those rows and more (T3): a receiver that
   keeps rows by tuple id is exact. Tentative rows of such a request are taken back first (rule 3 of `foreach_sink`).
3. 4xx (but 408 and 429) will be the same at every attempt and ends the sink with the answer's first words; all else is
   tried again.
4. The position is kept in a file.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa

from holdfast.inputs.network import is_loopback
from holdfast.model.errors import PeerError, UsageError
from holdfast.sinks.foreach_sink import PositionFile
from holdfast.sinks.json_values import json_bytes
from holdfast.sinks.sink import Changes, Promise, Sink, Source

_ANSWER_S = 30
_WORDS = 200
#: Answers of the kind "not now".
_NOT_NOW = frozenset((408, 425, 429))


def webhook(
    url: str,
    *,
    position: str | os.PathLike[str] | None = None,
    headers: Mapping[str, str] | None = None,
    tentative: bool = False,
) -> WebhookSink:
    """Send changes to an address. `position` is a file to keep the position in; otherwise one in this folder, named
    after the stream. `headers` may carry a token."""
    return WebhookSink(url, position, headers or {}, tentative)


class WebhookSink(Sink):
    kind = "webhook"
    promise: Promise = "at least once"

    def __init__(
        self, url: str, position: str | os.PathLike[str] | None, headers: Mapping[str, str], tentative: bool
    ) -> None:
        try:
            parts = httpx.URL(url)
        except httpx.InvalidURL:  # Its words, and the rest of an address, may hold a password.
            raise UsageError(
                "a webhook's address must look like https://example.org/hook, with special characters of a password "
                "escaped; got one that cannot be read"
            ) from None
        if parts.scheme not in ("http", "https") or not parts.host:
            raise UsageError(
                f"a webhook's address must look like https://example.org/hook; got {parts.scheme!r} and {parts.host!r}"
            )
        if parts.scheme == "http" and headers and not is_loopback(parts.host):
            raise UsageError(f"headers must not travel in the clear: {parts.host} needs https")
        self._url, self._headers, self.tentative = parts, dict(headers), tentative
        self._path = None if position is None else Path(position)
        self._note: PositionFile | None = None
        self._client: httpx.Client | None = None
        self._stream = ""

    @property
    def target(self) -> str:
        return str(self._url.copy_with(username=None, password=None, query=None, fragment=None))

    def resume(self, source: Source) -> str | None:
        self.close()
        self._stream = source.stream
        self._note = PositionFile(self._path or Path(f"{source.stream}.webhook.position"))
        self._client = httpx.Client(headers=self._headers, timeout=_ANSWER_S, follow_redirects=False)
        return self._note.read(source.stream)

    def apply(self, changes: Changes, position: str) -> None:
        assert self._client is not None
        assert self._note is not None
        changes = self._note.begin(changes, position)
        if changes.rows or changes.undo or changes.rec_done:
            self._post(self._client, changes, position)
        self._note.write(position)

    def _post(self, client: httpx.Client, changes: Changes, position: str) -> None:
        body = {
            "stream": self._stream, "id": position, "undo": changes.undo, "rec_done": changes.rec_done,
            "rows": [*_rows(changes.stable, False), *_rows(changes.tentative, True)],
        }  # fmt: skip
        content = json_bytes(body, self.target)
        try:
            answer = client.post(
                self._url, content=content,
                headers={"Content-Type": "application/json", "Idempotency-Key": position},
            )  # fmt: skip
        except httpx.HTTPError as error:
            raise PeerError(f"{self.target} did not answer: {error or type(error).__name__}") from error
        if answer.is_success:
            return
        said = " ".join(answer.text[:_WORDS].split())
        why = f"{self.target} answered with {answer.status_code}: {said}"
        # An address that has moved is not followed: the headers may hold a secret. Nobody but a person mends that.
        if 300 <= answer.status_code < 500 and answer.status_code not in _NOT_NOW:
            raise UsageError(f"{why}; mend the receiver or the address")
        raise PeerError(why)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None


def _rows(table: pa.Table, tentative: bool) -> list[dict[str, Any]]:
    found = []
    for record in table.to_pylist():
        id, stime = record.pop("tuple_id"), record.pop("stime")
        found.append({"tuple_id": id, "stime": stime, "tentative": tentative, "values": record})
    return found
