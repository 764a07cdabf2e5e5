"""A stream to feed, and a way to run an input beside the test."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.inputs.decode import Decoder
from holdfast.inputs.feed import DeadLetters, Feed


class Target:
    """A stream of numbers and words with producers that come and go."""

    def __init__(self, root: Path) -> None:
        self.stream = holdfast.open(root / "streams").create("s", "n bigint, word string", bucket="10ms")

    @contextlib.contextmanager
    def producer(self, **options: Any) -> Iterator[holdfast.Producer]:
        producer = self.stream.producer(**options)
        try:
            yield producer
        finally:
            producer.close(end=False)

    @contextlib.contextmanager
    def feed(self, format: Any = "json", dead: DeadLetters | None = None) -> Iterator[Feed]:
        with self.producer() as producer:
            yield Feed(producer, Decoder(producer.row_schema, "s", format), dead)

    def numbers(self) -> list[int]:
        """Everything stored, whether its bucket is closed or not."""
        reader = self.stream.reader()
        found = [n for e in reader.extents(-(2**62), 2**62) for n in reader.read(e).column("n").to_pylist()]
        reader.close()
        return found


@pytest.fixture
def target(tmp_path: Path) -> Target:
    return Target(tmp_path)


@contextlib.contextmanager
def running(run: Callable[[], object], stop: Callable[[], None]) -> Iterator[None]:
    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop()
        thread.join(20)
        assert not thread.is_alive()


def until(condition: Callable[[], object], seconds: float = 20) -> None:
    """Wait for a condition, not for a time."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come true"
        time.sleep(0.005)
