"""Standard input, or any other pipe of lines.

A pipe cannot be read twice, so by default nothing is remembered about it. Whoever can send the same lines again, as
after a crash, gives the input an id: then line numbers serve as sequence numbers and lines that are in are skipped.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from typing import BinaryIO

from holdfast.inputs.feed import LINE_BYTES_MAX, LINES_MAX, Feed, Line, Sent
from holdfast.model.errors import SchemaError

_READ_BYTES = 1 << 16


class StdinInput:
    """Feeds lines from a pipe until it ends."""

    def __init__(
        self, feed: Feed, *, source: BinaryIO | None = None, name: str = "standard input", id: str | None = None
    ) -> None:
        self._feed, self._source, self._name, self._id = feed, source or sys.stdin.buffer, name, id
        self._stop = threading.Event()

    def stop(self) -> None:
        self._stop.set()

    def run(self, progress: Callable[[int], None] | None = None) -> Sent:
        """Send what comes, as soon as it comes, in units of what has come."""
        number = 0
        known = self._feed.producer.last_seq_of(self._id) if self._id is not None else 0
        decoder = self._feed.decoder
        for texts in self._arrivals():
            lines: list[Line] = []
            for text in texts:
                number += 1
                where = f"{self._name} line {number}"
                if number == 1 and decoder.header_in_text:
                    decoder.header(text, where)
                elif number > known or self._id is None:
                    lines.append(Line(text, where, number if self._id is not None else None))
            for at in range(0, len(lines), LINES_MAX):
                self._feed.send(lines[at : at + LINES_MAX], self._id)
            if progress is not None:
                progress(number)
            if self._stop.is_set():
                break
        return self._feed.total

    def _arrivals(self) -> Iterator[list[bytes]]:
        """Whole lines, as many as came at once; the last one also without its newline."""
        rest = b""
        while True:
            # read1 returns what is there instead of waiting until the buffer is full.
            read = getattr(self._source, "read1", self._source.read)
            data: bytes = read(_READ_BYTES)
            if not data:
                break
            *whole, rest = (rest + data).split(b"\n")
            if len(rest) > LINE_BYTES_MAX:
                raise SchemaError(f"{self._name}: a line must end within {LINE_BYTES_MAX} bytes")
            if whole:
                yield whole
        if rest:
            yield [rest]
