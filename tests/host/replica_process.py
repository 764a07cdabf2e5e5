"""A host in a process of its own that serves the streams of one folder, to be killed: python -m … ROOT PORT"""

from __future__ import annotations

import asyncio
import sys

import holdfast
from holdfast.inputs.network import Access
from holdfast.protocol.dpc.messages import StreamReport
from holdfast.protocol.dpc.states import StreamState
from tests.host.conftest import TOKEN, hosted


async def serve(root: str, port: int) -> None:
    store = holdfast.open(root)

    def report(stream: str) -> StreamReport:
        reader = store.open(stream).reader()
        reader.close()
        return StreamReport(stream, StreamState.STABLE, reader.boundary_us, False)

    async with hosted(store, Access(port=port, token=TOKEN), report=report):
        print("up", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], int(sys.argv[2])))
