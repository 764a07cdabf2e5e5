"""Three monitors and one node, run by the plain engine in this process, with its console: what the tests look at.

python -m tests.console.netmon          # until Ctrl-C, to look at it in a browser
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import holdfast
from holdfast.clock import pause
from holdfast.host.embedded import Running
from holdfast.stream.store import Stream
from tests.load.plain_engine import PlainEngine

MONITORS = ("monitor1", "monitor2", "monitor3")
OUTPUT = "active_sources"


class Monitor(threading.Thread):
    """A source that says something ten times a second."""

    def __init__(self, stream: Stream) -> None:
        super().__init__(name=stream.name, daemon=True)
        self._stream, self._over = stream, threading.Event()

    def run(self) -> None:
        sent = 0
        with self._stream.producer() as producer:
            while not self._over.is_set():
                own = MONITORS.index(self._stream.name)  # Each sees machines of its own.
                producer.send_many([{"source": f"10.0.{own}.{n}", "bytes": sent + n} for n in range(4)])
                sent += 1
                pause(100_000)

    def end(self) -> None:
        self._over.set()
        self.join()


@contextlib.contextmanager
def netmon(root: Path, max_delay: str = "2s") -> Iterator[Running]:
    """The application at work, STABLE; ends with its monitors."""
    store = holdfast.open(root)
    monitors = [Monitor(store.create(name, "source string, bytes bigint", bucket="500ms")) for name in MONITORS]
    app = holdfast.App("netmon", root=root)
    app.node(inputs=MONITORS, name=OUTPUT, max_delay=max_delay)(_connections)
    for monitor in monitors:
        monitor.start()
    try:
        with app.start(engine=PlainEngine(), console=True) as running:
            running.wait_until_stable("60s")
            yield running
    finally:
        for monitor in monitors:
            monitor.end()


def _connections(connections: object) -> object:
    """The plain engine computes connections and bytes per source and second, whatever this says."""
    return connections


if __name__ == "__main__":
    import tempfile

    with (
        contextlib.suppress(KeyboardInterrupt),
        tempfile.TemporaryDirectory() as folder,
        netmon(Path(folder)) as running,
    ):
        running.watch()
