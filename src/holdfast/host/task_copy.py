"""A copy of a task, laid out so that a site can run it: its query's checkpoint, and an output that goes on where the
copy stood. For guests of other owners (`holdfast.load.tasks`) and trials (`holdfast.host.trial`)."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from holdfast.clock import now_us
from holdfast.stream.definition import Definition, Retention
from holdfast.stream.disk import Disk
from holdfast.stream.frame import FORMAT_VERSION
from holdfast.stream.sealed import seal
from holdfast.stream.store import StreamStore
from holdfast.stream.waiting import Waiting

#: Segments of such an output. Whoever wants it has everything within seconds; larger ones would only lie about.
_SEGMENT_BYTES = 4 << 20


def lay_out(folder: Path, output: Definition, waiting: Waiting) -> None:
    """Make `folder/checkpoint`, if there is one, the node's in `folder/node`, and the output in `folder/streams`."""
    disk = Disk()
    node, stream = folder / "node", folder / "streams" / output.name
    disk.make_dir(node)
    if (folder / "checkpoint").exists():
        disk.rename(folder / "checkpoint", node / "checkpoint")
    disk.make_dir(stream / "main")
    mine = msgspec.structs.replace(output, id=os.urandom(16).hex(), retention=Retention(), bound=None,
                                   archive=None, archive_retention=Retention(), format=FORMAT_VERSION,
                                   segment_bytes=min(_SEGMENT_BYTES, output.segment_bytes))  # fmt: skip
    disk.replace_file(stream / "stream", seal(mine))
    writer = StreamStore(folder / "streams").open(output.name).writer()
    writer.commit([], now_us=now_us(), boundary_us=waiting.boundary_us, pending=(waiting.rows, waiting.body))
    writer.release(now_us())
    disk.sync_dir(node)
