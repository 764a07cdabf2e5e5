"""A producer to be killed: sends numbers from its argument on, and says each that `send` has returned for."""

from __future__ import annotations

import sys
from itertools import count

import holdfast

root, stream, first = sys.argv[1:]
producer = holdfast.open(root).open(stream).producer()
for n in count(int(first)):
    producer.send({"n": n})
    print(n, "memory" if producer.writer.in_memory else "log", flush=True)
