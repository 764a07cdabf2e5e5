"""A sink some of whose settings stand in a file, which is read whenever the sink is opened.

So tools that only look at a deployment need not have the file, and a password that has changed in it is taken at the
next attempt.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from holdfast.inputs.settings_file import read_settings
from holdfast.sinks.sink import Changes, Sink, Source


class ConfiguredSink(Sink):
    def __init__(self, make: Callable[[Mapping[str, str]], Sink], file: Path) -> None:
        self._make, self._file = make, file
        self._sink = make({})  # For what it says of itself.
        self.kind, self.promise, self.tentative = self._sink.kind, self._sink.promise, self._sink.tentative
        self.every_us = self._sink.every_us

    @property
    def target(self) -> str:
        return self._sink.target

    def resume(self, source: Source) -> str | None:
        self._sink.close()
        self._sink = self._make(read_settings(self._file))
        return self._sink.resume(source)

    def apply(self, changes: Changes, position: str) -> None:
        self._sink.apply(changes, position)

    def close(self) -> None:
        self._sink.close()
