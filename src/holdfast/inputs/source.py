"""What `app.source` takes: the description of an input that a host runs, and the input that it becomes.

A description is frozen and opens nothing. Its input runs in a thread of its own until it is stopped. It raises what no
retry can mend as `UsageError`; after anything else it is made anew and goes on from what the log has.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import pyarrow as pa

from holdfast.model.errors import PeerError
from holdfast.model.names import check_name
from holdfast.stream.store import Stream


class SourceInput(Protocol):
    """An input at work."""

    def run(self) -> object:
        """Bring rows until `stop`."""

    def stop(self) -> None:
        """Let `run` return soon; from any thread."""

    def status(self) -> dict[str, Any]:
        """How it does: what it read, what is left, what it put aside. From any thread."""


@runtime_checkable
class Source(Protocol):
    """The description of an input."""

    def open(self, stream: Stream, home: Path) -> SourceInput:
        """Make the input of a stream. `home` is a folder for what is no stream: dead letters, checkpoints."""

    def text(self) -> str:
        """Where the rows come from, for people."""


class DiedOfRows(PeerError):
    """The query of an engine's source has died of what is in a batch: the same batch would die of it again."""

    def __init__(self, text: str, cause: str, batch: int) -> None:
        super().__init__(text)
        self.cause, self.batch = cause, batch
        """Of what, told without values; and in which batch."""


@runtime_checkable
class KnowsColumns(Source, Protocol):
    """A source that knows its stream's columns: then nobody need declare them."""

    def columns(self, stop: threading.Event | None = None) -> pa.Schema:
        """It may ask there, until `stop`; errors are those of its input."""


@dataclass(frozen=True, slots=True)
class EngineSource:
    """A streaming source of the engine's, such as Spark's: it runs as an ingest query (`Engine.ingest`)."""

    function: Callable[[Any], Any]
    """From a session to a streaming frame."""
    stime: str
    slack_us: int
    idle_us: int | None
    trigger_us: int | None
    max_ahead_us: int | None = None
    late: Literal["refuse", "drop"] = "refuse"
    dead_letters: Path | Literal[True] | None = True
    """The file for rows that the stream cannot take; True: one beside it; None: the first stops the query."""

    def text(self) -> str:
        return f"a streaming source of Spark ({getattr(self.function, '__name__', 'a function')})"


@dataclass(frozen=True, slots=True)
class SourceSpec:
    """A stream and where its rows come from."""

    stream: str
    source: Source | EngineSource
    schema: pa.Schema | None = None
    """Where set, the stream is made if it is not there."""
    bucket_us: int | None = None

    def __post_init__(self) -> None:
        check_name(self.stream)
