"""Checkpoints in HBase through its REST gateway (002 §3.5): one row per key, one column, one version.

Rules:
1. A checkpoint's version is the timestamp of its cell. HBase shows the cell with the greatest one, so older never
   overwrites newer, whoever writes and in whatever order it arrives.
2. Whether a write was the newest is read before it: the answer may be outrun, the data cannot.
3. Row keys are the key in hexadecimal: any bytes go through the gateway's addresses, in the same order.
4. A gateway that is away raises `PeerError`; the next call connects again. One that refuses us raises `UsageError`.
"""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

import httpx

from holdfast.checkpoint.store import VERSION_MAX, CheckpointStore, Entry, Saved
from holdfast.checkpoint.stores.envelope import unwrap, version_of, wrap
from holdfast.model.errors import PeerError, UsageError

FAMILY, COLUMN = "data", b"data:checkpoint"
#: A region that moves makes the gateway wait; beyond this it is better to say so.
TIMEOUT_S = 20.0
#: Rows asked for with one request: the address of 128 rows of the longest keys stays below the gateway's limit.
_MANY_BYTES = 6000
_SCAN_ROWS = 1000
#: Answers that will be the same next time: we are not let in, or it is not a gateway of HBase's.
_REFUSED = (400, 401, 403, 404, 405)


class HBaseStore(CheckpointStore):
    durability = "in HBase's write-ahead log: on disk where its regions run with hbase.wal.hsync"

    def __init__(self, url: str, table: str = "checkpoints") -> None:
        if not table.replace("_", "").replace("-", "").isalnum():
            raise UsageError(f"an HBase table must have a plain name; got {table!r}")
        self._client = httpx.Client(
            base_url=url, timeout=TIMEOUT_S, headers={"Accept": "application/json"},
            limits=httpx.Limits(max_connections=128, max_keepalive_connections=128),
        )  # fmt: skip
        self._url, self._table = url, table
        self._made, self._making = False, threading.Lock()

    @classmethod
    def at(cls, address: str) -> HBaseStore:
        """From hbase://host:port/table, the place of the REST gateway."""
        try:
            parts = urlsplit(address)
            host, port = parts.hostname, 8080 if parts.port is None else parts.port
        except ValueError:  # A port that is not a number or beyond 65535, brackets that do not pair.
            host = None
        if host is None or not port:
            raise UsageError(f"an HBase address must look like hbase://127.0.0.1:8080/checkpoints; got {address!r}")
        return cls(f"http://{host}:{port}", parts.path.strip("/") or "checkpoints")

    def _ask(self, method: str, path: str, body: Any = None, also: tuple[int, ...] = ()) -> httpx.Response:
        try:
            answer = self._client.request(method, f"/{self._table}/{path}", json=body)
        except httpx.HTTPError as error:
            raise PeerError(
                f"the HBase gateway {self._url} did not answer: {error or type(error).__name__}; start it, the store "
                f"connects again"
            ) from error
        if answer.status_code in _REFUSED and answer.status_code not in also:
            raise UsageError(
                f"the HBase gateway {self._url} must let us use the table {self._table}; it answered "
                f"{answer.status_code} to {method}: {answer.text[:200].strip()}; check the address, and who may write "
                f"there"
            )
        if answer.status_code >= 300 and answer.status_code not in also:
            raise PeerError(
                f"the HBase gateway {self._url} answered {answer.status_code} to {method} {self._table}: "
                f"{answer.text[:200].strip()}; look into its log"
            )
        return answer

    def _ensure_table(self) -> None:
        with self._making:
            if self._made:
                return
            if self._ask("GET", "schema", also=(404, 500)).status_code != 200:
                schema = {"name": self._table, "ColumnSchema": [{"name": FAMILY, "VERSIONS": "1"}]}
                self._ask("PUT", "schema", schema, also=(304,))  # 304: another process made it meanwhile.
            self._made = True

    def _write(self, entries: Sequence[Entry]) -> list[bool]:
        self._ensure_table()
        raws = self._raw([entry.key for entry in entries])
        versions = {key: version_of(raw) for key, raw in raws.items()}
        taken, rows = [], {}
        for entry in entries:
            takes = entry.version >= versions.get(entry.key, -1)
            taken.append(takes)
            if takes:
                versions[entry.key] = entry.version
                rows[entry.key] = entry
        if rows:
            self._ask("PUT", "row", {"Row": [_row(entry) for entry in rows.values()]})
        return taken

    def _raw(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        found: dict[bytes, bytes] = {}
        some: list[str] = []
        for i, key in enumerate(keys):
            some.append(f"row={key.hex()}")
            if i == len(keys) - 1 or sum(map(len, some)) > _MANY_BYTES:
                answer = self._ask("GET", f"multiget?{'&'.join(some)}", also=(404,))
                if answer.status_code == 200:
                    found |= self._cells(answer)
                some = []
        return found

    def _read(self, keys: Sequence[bytes]) -> list[Saved | None]:
        self._ensure_table()
        raws = self._raw(keys)
        return [unwrap(key, raws[key], self._url) if key in raws else None for key in keys]

    def scan(self, prefix: bytes = b"") -> list[tuple[bytes, int]]:
        saved = ((key, unwrap(key, raw, self._url)) for key, raw in self._rows(prefix))
        return sorted((key, found.version) for key, found in saved if found is not None)

    def purge(self, prefix: bytes) -> None:
        # Up to a version that no write has: without one, the server's clock would say what is older.
        for key, _ in list(self._rows(prefix)):
            self._ask("DELETE", f"{key.hex()}/{COLUMN.decode()}/{VERSION_MAX + 1}", also=(404,))

    def _rows(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """All values and marks, as they stand there."""
        self._ensure_table()
        bounds: dict[str, Any] = {"batch": _SCAN_ROWS, "startRow": _coded(prefix.hex().encode())}
        if prefix:
            # "g" comes after every hexadecimal digit.
            bounds["endRow"] = _coded(prefix.hex().encode() + b"g")
        place = self._ask("PUT", "scanner", bounds).headers["Location"]
        path = place.partition(f"/{self._table}/")[2]
        try:
            while (answer := self._ask("GET", path)).status_code == 200:
                yield from self._cells(answer).items()
        finally:
            self._ask("DELETE", path, also=(404,))

    def _cells(self, answer: httpx.Response) -> dict[bytes, bytes]:
        try:
            return {
                bytes.fromhex(base64.b64decode(row["key"]).decode()): base64.b64decode(row["Cell"][0]["$"])
                for row in answer.json().get("Row", [])
            }
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise PeerError(
                f"the HBase gateway {self._url} answered something that is no table: {answer.text[:200].strip()!r}; "
                f"look into its log, and into what stands between"
            ) from error

    def close(self) -> None:
        self._client.close()


def _coded(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def _row(entry: Entry) -> dict[str, Any]:
    cell = {"column": _coded(COLUMN), "timestamp": entry.version, "$": _coded(wrap(entry))}
    return {"key": _coded(entry.key.hex().encode()), "Cell": [cell]}
