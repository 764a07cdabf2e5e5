"""The hidden columns in which a stage hands its checkpoints to the sink of the same batch.

A row of the first holds one control frame, or the name of a staged file that holds it. Only the sink looks at it: the
row becomes a control frame in the batch's unit and never a tuple (C5). The second holds the figures of the same
checkpoints, of which Spark makes the metrics of the batch (`checkpoint_figures`).
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from holdfast.model.errors import CorruptLog
from holdfast.stream.control import operator_number
from holdfast.stream.disk import Disk
from holdfast.stream.frame import crc32c
from holdfast.stream.record import Control

COLUMN, FIGURES = "_control", "_figures"
#: Larger bodies go by file: what travels in a row is copied by the JVM several times.
INLINE_BYTES = 64 << 10


class Message(msgspec.Struct, array_like=True, frozen=True):
    operator: str
    partition: int
    rows: int
    windows: int
    since_us: int
    position_us: int
    inline: bytes = b""
    staged: str = ""
    crc: int = 0


def inline(message: Message, body: bytes) -> bytes:
    """In an executor: what stands in the row if the body is small."""
    return msgspec.msgpack.encode(msgspec.structs.replace(message, inline=body))


def staged(message: Message, name: str, body: bytes) -> bytes:
    """The same if the body went into a staged file."""
    return msgspec.msgpack.encode(msgspec.structs.replace(message, staged=name, crc=crc32c(body)))


def write(staging: Path, position_us: int, body: bytes) -> str:
    """Put a body into a file of its own; its name."""
    Disk().make_dir(staging)
    name = f"control.{os.urandom(8).hex()}.{position_us}.ctl"
    # Not synced: the driver reads it at once, checks it, and writes it to the log, which is.
    (staging / name).write_bytes(body)
    return name


def decode(raw: bytes, staging: Path) -> Control:
    """In the driver."""
    m = msgspec.msgpack.decode(raw, type=Message)
    body = m.inline
    if m.staged:
        body = (staging / m.staged).read_bytes()
        if crc32c(body) != m.crc:
            raise CorruptLog(f"{staging / m.staged}: the staged checkpoints do not match their checksum")
    return Control(operator_number(m.operator), m.partition, m.rows, m.windows, m.since_us, m.position_us, body)


def discard(staging: Path, position_us: int) -> None:
    """Remove what this batch, and earlier ones that were killed, have staged."""
    if staging.is_dir():
        for path in (*staging.glob("control.*.ctl"), *staging.glob(".control.*.ctl")):  # The latter are halves.
            if int(path.name.split(".")[-2]) <= position_us:
                Disk().unlink(path)
