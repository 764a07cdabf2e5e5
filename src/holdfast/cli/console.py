"""holdfast console"""

from __future__ import annotations

import asyncio
import signal
import webbrowser
from typing import Annotated

import typer

from holdfast.cli.deployed import File


def command(
    file: File,
    port: Annotated[int, typer.Option(help="Where to listen, on this machine only; 0 for a free one.")] = 0,
    open: Annotated[bool, typer.Option("--open", help="Open it in the browser as well.")] = False,
) -> None:
    """Serve one page for all hosts of a deployment, on this machine, until Ctrl-C.

    Every host serves the same page for itself, below /console of its address.

    \b
    holdfast console netmon.yaml
    holdfast console netmon.yaml --port 7400 --open
    """
    from holdfast.host.deployment import load_deployment
    from holdfast.host.merged_console import serve

    deployment = load_deployment(file)

    def ready(url: str) -> None:
        print(f"console: {url} (token: as in {deployment.looking_file().path})", flush=True)
        if open:
            webbrowser.open(url)

    async def served() -> None:
        # An interrupt that is raised wherever we are may be raised in a request, and the server would swallow it.
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None
        for end in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(end, task.cancel)
        await serve(deployment, port, ready)

    try:
        asyncio.run(served())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
