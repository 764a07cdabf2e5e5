"""How a contender speaks: one JSON object per line on standard output. Nothing but the standard library."""

from __future__ import annotations

import json
from typing import Any


def _say(**said: Any) -> None:
    print(json.dumps(said), flush=True)


def ready(version: str) -> None:
    """The query runs, or will within the time that is not judged: the feeder may begin."""
    _say(ready=True, version=version)


def result(window_ms: int, key: str, count: int, tentative: bool = False) -> None:
    """A row of the result has reached the client."""
    print(result_text(window_ms, key, count, tentative), flush=True)


def result_text(window_ms: int, key: str, count: int, tentative: bool = False) -> str:
    """The same, for who has a sink of its own that prints."""
    return json.dumps({"window": window_ms, "key": key, "count": count, "tentative": tentative})


def undo() -> None:
    """Whatever is marked tentative is taken back."""
    _say(undo=True)
