"""A host with as many nodes as one likes, none of which computes anything, and its console."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

from benches.console import be_host

from holdfast.host.embedded import ConsoleAddress
from holdfast.host.host import Host

TOKEN = "operator-operator-operator"


@contextlib.contextmanager
def many(root: Path, nodes: int) -> Iterator[ConsoleAddress]:
    loop, ready, told = asyncio.new_event_loop(), threading.Event(), []

    def begun(address: str, host: Host) -> None:
        told.append((ConsoleAddress(f"{address}/console", TOKEN), host))
        ready.set()

    def run() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(be_host(root, nodes, TOKEN, True, begun, changes=False))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert ready.wait(60)
    address, host = told[0]
    try:
        yield address
    finally:
        loop.call_soon_threadsafe(host.stop)
        thread.join()
