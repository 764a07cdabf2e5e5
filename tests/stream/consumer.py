"""A consumer to be killed: reads a stream under a name, prints the ids that it took, acknowledges them."""

from __future__ import annotations

import sys

import holdfast
from holdfast.clock import pause

root, stream, name = sys.argv[1:]
subscriber = holdfast.open(root).open(stream).subscribe(name=name, resume=True)
print("there", flush=True)
while not subscriber.finished:
    for batch in subscriber.poll():
        print(*batch.column("tuple_id").to_pylist(), flush=True)
    subscriber.ack()
    pause(5_000)
print("end", flush=True)
