"""The lines of a host's log: as text, or as JSON with a field for each thing that one wants to look for.

Rules:
1. Whoever speaks of a replica says so with `ReplicaLog`: the text begins with the replica's name, as ever, and the
   record carries `node`, `replica` and `bucket`, the first bucket that the stable query has not committed.
2. In JSON a line is one object: `time` (UTC), `level`, `logger`, `message`, what rule 1 adds, and `error` with the
   traceback if there is one. What Spark's JVM writes to the same file stays text.
3. The environment's `HOLDFAST_LOG_FORMAT` says which, so that a host which `holdfast up` starts does as it is told.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, MutableMapping
from datetime import UTC, datetime
from typing import Any, TypeAlias

import msgspec

from holdfast.model.errors import UsageError

FORMATS = ("text", "json")
VARIABLE = "HOLDFAST_LOG_FORMAT"
_TEXT = "%(asctime)s %(levelname)s %(message)s"
_FIELDS = ("node", "replica", "bucket")

Bucket: TypeAlias = Callable[[], int | None]


class ReplicaLog(logging.LoggerAdapter[logging.Logger]):
    """Rule 1."""

    def __init__(self, logger: logging.Logger, replica: str, bucket: Bucket = lambda: None) -> None:
        super().__init__(logger)
        self._replica, self._bucket = replica, bucket

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        known = {"node": self._replica.partition("@")[0], "replica": self._replica, "bucket": self._bucket()}
        kwargs["extra"] = {**known, **(kwargs.get("extra") or {})}
        return f"{self._replica.replace('%', '%%')}: {msg}", kwargs


class JsonLines(logging.Formatter):
    """Rule 2."""

    def format(self, record: logging.LogRecord) -> str:
        said: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname, "logger": record.name, "message": record.getMessage(),
        }  # fmt: skip
        for field in _FIELDS:
            if (value := getattr(record, field, None)) is not None:
                said[field] = value
        if record.exc_info:
            said["error"] = self.formatException(record.exc_info)
        try:
            return msgspec.json.encode(said, enc_hook=str).decode()
        except UnicodeEncodeError:  # A file whose name is no text: it must not take the line with it.
            return json.dumps(said, default=str)


def check_format(format: str) -> str:
    if format not in FORMATS:
        raise UsageError(f"the format of the log must be one of {', '.join(FORMATS)}; got {format!r}; check {VARIABLE}")
    return format


def set_up_logging() -> None:
    """For a process that is a host: everything to standard error, in the format that the environment says."""
    handler = logging.StreamHandler()
    lines = check_format(os.environ.get(VARIABLE) or "text") == "json"
    handler.setFormatter(JsonLines() if lines else logging.Formatter(_TEXT))
    logging.basicConfig(handlers=[handler])
    logging.getLogger("holdfast").setLevel(logging.INFO)
