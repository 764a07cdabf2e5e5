"""What commit and state frames say. MessagePack arrays: later versions append fields, older readers ignore them."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from holdfast.model.errors import CorruptLog
from holdfast.model.time import BEGINNING_US

#: Producer ids whose last sequence number is remembered. Each costs about 40 bytes at the beginning of every segment.
#: The one that was silent longest is forgotten first: a retry of its that comes later still would be written again.
PRODUCERS_MAX = 1024
#: In place of a sequence number: nobody will come under this id any more.
FORGET = -1


class Commit(msgspec.Struct, array_like=True, frozen=True):
    """Closes one atomic unit of the log."""

    boundary_us: int
    """No later tuple has a smaller stime (D10)."""
    wall_us: int
    """The writer's clock, for retention by age only."""
    next_tuple_id: int
    unit_bytes: int
    """Bytes of the frames that this commit covers, its own excluded."""
    closed: bool = False
    """The stream ended here."""
    tokens: dict[str, int] = {}
    """Last sequence number per producer in this unit: what makes a retry harmless. A negative one (`FORGET`) takes a
    producer out."""


class State(msgspec.Struct, array_like=True, frozen=True):
    """All that a writer needs from the segments before this one."""

    commit_seq: int = 0
    boundary_us: int = BEGINNING_US
    next_tuple_id: int = 1
    closed: bool = False
    tokens: dict[str, int] = {}
    wall_us: int = 0

    def after(self, seq: int, commit: Commit) -> State:
        tokens = _remember(self.tokens, commit.tokens) if commit.tokens else self.tokens
        return State(seq, commit.boundary_us, commit.next_tuple_id, commit.closed, tokens, commit.wall_us)


class Control(NamedTuple):
    """Checkpoint records of one operator and one of its partitions, as of one position of its input."""

    operator: int
    """CRC32C of the operator's name."""
    partition: int
    rows: int
    windows: int
    """N: how many windows were open at the position (000 §4.1)."""
    since_us: int
    """T: the position of the oldest checkpoint that an open window relies on."""
    position_us: int
    body: bytes


def _remember(known: dict[str, int], new: dict[str, int]) -> dict[str, int]:
    """Both, the newest last, at most `PRODUCERS_MAX`. Depends on the log alone, so recovery forgets the same ids."""
    if known.keys() == new.keys() and min(new.values()) >= 0:
        return new
    both = {id: seq for id, seq in known.items() if id not in new} | {id: n for id, n in new.items() if n >= 0}
    for id in list(both)[: max(0, len(both) - PRODUCERS_MAX)]:
        del both[id]
    return both


encode = msgspec.msgpack.Encoder().encode
_commit = msgspec.msgpack.Decoder(Commit)
_state = msgspec.msgpack.Decoder(State)


def decode_commit(body: bytes, where: str) -> Commit:
    try:
        return _commit.decode(body)
    except msgspec.MsgspecError as error:
        raise CorruptLog(f"{where}: unreadable commit record ({error}); run `holdfast repair`") from error


def decode_state(body: bytes, where: str) -> State:
    try:
        return _state.decode(body)
    except msgspec.MsgspecError as error:
        raise CorruptLog(f"{where}: unreadable state record ({error}); run `holdfast repair`") from error
