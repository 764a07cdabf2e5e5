"""Changes as POST requests to an address: at least once, in order, with an id by which the receiver knows repetitions.

Rules:
1. One request per transaction; the next is sent when it was answered with 2xx. The body is JSON:
   {"stream", "id", "undo", "rec_done", "rows": [{"tuple_id", "stime", "tentative", "values"}, …]}.
2. `id` is the position behind the rows, also in the header `Idempotency-Key`. A request that was answered and whose
   sender was killed before it could note that is sent again, or another with those rows and more (T3): a receiver that
   keeps rows by tuple id is exact. Tentative rows of such a request are taken back first (rule 3 of `position_file`).
3. 4xx (but 408 and 429) will be the same at every attempt and ends the sink with the answer's first words; all else is
   tried again.
4. The position is kept in a file, which is this address's alone: two hooks of a stream have two, or are told so.
5. What may be secret travels to other machines by https only: headers, a name and a password, a token in the query.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa

from holdfast.inputs.network import is_loopback
from holdfast.model.errors import PeerError, UsageError
from holdfast.sinks.json_values import json_bytes
from holdfast.sinks.position_file import PositionFile, Target
from holdfast.sinks.sink import Changes, Promise, Sink, Source

_ANSWER_S = 30
_WORDS = 200
#: Answers of the kind "not now".
_NOT_NOW = frozenset((408, 425, 429))
#: Names of parameters that hold a secret at most receivers; others may say where a request belongs.
_SECRET = re.compile(
    r"(token|secret|passwo?r?d|signature|credentials?|api[-_]?key)$|(^|[-_])(key|sig|auth|pwd)$", re.IGNORECASE
)
#: Enough of a digest that no two hooks of one folder share it, and few enough letters for a name.
_DIGITS = 12


def webhook(
    url: str,
    *,
    position: str | os.PathLike[str] | None = None,
    headers: Mapping[str, str] | None = None,
    tentative: bool = False,
) -> WebhookSink:
    """Send changes to an address. `position` is a file to keep the position in; otherwise one in this folder, named
    after the stream and the address. `headers` may carry a token."""
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
        if parts.scheme == "http" and not is_loopback(parts.host) and (secret := _secret(parts, headers)):
            raise UsageError(f"{secret} must not travel in the clear: {parts.host} needs https")
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
        self._note, earlier = self._position_file(source.stream)
        position = self._note.open(source.stream, earlier)
        self._client = httpx.Client(headers=self._headers, timeout=_ANSWER_S, follow_redirects=False)
        return position

    def _position_file(self, stream: str) -> tuple[PositionFile, Path | None]:
        """Rule 4: the file, and where an earlier version kept the position of every hook of the stream."""
        # A password may change; behind a `#` stands nothing that is sent.
        address = str(self._url.copy_with(username=None, password=None, fragment=None))
        target = Target(self.target, hashlib.sha256(address.encode()).hexdigest())
        if self._path is not None:
            return PositionFile(self._path, target), None
        path = Path(f"{stream}.webhook-{target.digest[:_DIGITS]}.position")
        return PositionFile(path, target), Path(f"{stream}.webhook.position")

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
        if self._note is not None:
            self._note.close()
            self._note = None


def _secret(url: httpx.URL, headers: Mapping[str, str]) -> str | None:
    """Rule 5: what of a request is not for everybody's eyes, in words."""
    if headers:
        return "headers"
    if url.userinfo:
        return "a name and a password"
    named = next((name for name in url.params if _SECRET.search(name)), None)
    return None if named is None else f"the parameter {named!r}"


def _rows(table: pa.Table, tentative: bool) -> list[dict[str, Any]]:
    found = []
    for record in table.to_pylist():
        id, stime = record.pop("tuple_id"), record.pop("stime")
        found.append({"tuple_id": id, "stime": stime, "tentative": tentative, "values": record})
    return found
