"""A consumer's position: what it was handed out so far, as text that it can keep beside its own data.

    holdfast-position:1:totals:1000000:1700000000000000:42:1700000000500000:T:1700000003000000:5f3a91c0

Rules:
1. The version comes first, a checksum last. What cannot be read, or belongs to another stream, is refused and never
   guessed.
2. Everything stable with an stime before `until_us` was handed out; of the bucket that begins there, or in which it
   lies, the tuples up to `last_id` as well, if `last_stime_us` says that the last one lies there. Order within a bucket
   is by tuple id, the same on every replica (D9), so a position of one replica holds for all.
3. It names the last stable tuple, because an UNDO does (D2). Beside a log that loses none, it is looked for: a stream
   that was deleted and made anew has another one there, or none.
4. It says whether the consumer holds tentative tuples. What follows a resumption must begin by taking them back:
   whether the branch they came from is still the same, nobody can know.
5. `goal_us` is how far tentative tuples went that have not been replaced yet: REC_DONE comes when main is there (D3).
6. `mends` is how often an operator had taken the boundary of the stream back (`mended`). It stands in the text, as a
   number behind the others and with version 2, where there is something to say: an older Holdfast would not compare it.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from holdfast.model.errors import UsageError
from holdfast.model.time import BEGINNING_US, instant_text
from holdfast.stream.frame import crc32c

_VERSION, _MENDED_VERSION = 1, 2
_PREFIX = "holdfast-position"
_NUMBER = r"(-?\d{1,19})"
_TEXT = re.compile(
    rf"{_PREFIX}:(\d{{1,6}}):([a-z0-9][a-z0-9._-]{{0,127}}):{_NUMBER}:{_NUMBER}:{_NUMBER}:{_NUMBER}:"
    rf"(T?U?):{_NUMBER}(?::(\d{{1,9}}))?:([0-9a-f]{{8}})"
)


class Position(NamedTuple):
    """Rule 2 to 6."""

    until_us: int = BEGINNING_US
    last_id: int = 0
    """The last stable tuple; 0: none yet."""
    last_stime_us: int = BEGINNING_US
    tentative: bool = False
    undone: bool = False
    """An UNDO was handed out whose REC_DONE is still to come."""
    goal_us: int = BEGINNING_US
    mends: int = 0

    @property
    def partial_id(self) -> int | None:
        """Of the bucket at `until_us`, tuples up to this one were handed out; None if none was."""
        return self.last_id if self.last_id and self.last_stime_us >= self.until_us else None

    @property
    def reach_us(self) -> int:
        """Nothing stable was handed out with this stime or a later one."""
        return self.until_us if self.partial_id is None else self.last_stime_us + 1

    def text(self, stream: str, bucket_us: int) -> str:
        """For the consumer to keep."""
        flags = f"{'T' * self.tentative}{'U' * self.undone}"
        version = _MENDED_VERSION if self.mends else _VERSION
        said = f"{_PREFIX}:{version}:{stream}:{bucket_us}:{self.until_us}:{self.last_id}:{self.last_stime_us}:{flags}:{self.goal_us}"  # noqa: E501
        said += f":{self.mends}" if self.mends else ""
        return f"{said}:{crc32c(said.encode()):08x}"


def parse_position(text: str, stream: str, bucket_us: int) -> Position:
    """The position in the text; `UsageError` unless it is one of this stream."""
    match = _TEXT.fullmatch(text) if isinstance(text, str) else None
    if match is None or match[10] != f"{crc32c(text.rpartition(':')[0].encode()):08x}":
        raise UsageError(
            f"after must be a position that a subscriber of stream {stream} gave (row.position), unchanged; got "
            f"{text!r:.120}; give none to start at the beginning"
        )
    if int(match[1]) not in (_VERSION, _MENDED_VERSION):
        raise UsageError(
            f"a position of version {match[1]} cannot be read by this Holdfast, which knows version {_MENDED_VERSION}; "
            "upgrade it, or start anew"
        )
    if match[2] != stream:
        raise UsageError(f"after must be a position of stream {stream}; got one of {match[2]}; is it the right stream?")
    if int(match[3]) != bucket_us:
        raise UsageError(
            f"the position was made when stream {stream} had buckets of {match[3]} µs, now they have {bucket_us} µs: "
            "it is another stream; start anew"
        )
    until_us, last_id, last_stime_us, goal_us = (int(match[n]) for n in (4, 5, 6, 8))
    return Position(until_us, last_id, last_stime_us, "T" in match[7], "U" in match[7], goal_us, int(match[9] or 0))


def holding_more(before: str, after: str) -> str:
    """The position `before`, of a consumer that may have got the tentative tuples on the way to `after`, or may not."""
    (stream, size, old), (_, _, new) = _read(before), _read(after)
    return old._replace(tentative=True, goal_us=max(old.goal_us, new.goal_us)).text(stream, size)


def stream_of(text: str) -> str:
    """The name of the stream that a position is of, unread otherwise; empty if it is none."""
    return text.split(":")[2] if text.startswith(f"{_PREFIX}:") and text.count(":") > 2 else ""


def _read(text: str) -> tuple[str, int, Position]:
    _, _, stream, size, *_ = text.split(":")
    return stream, int(size), parse_position(text, stream, int(size))


def unknown(stream: str, position: Position) -> UsageError:
    """A position whose last tuple is not in the stream, though its time is."""
    return UsageError(
        f"the position lies behind tuple {position.last_id} at {instant_text(position.last_stime_us)}, which stream "
        f"{stream} has not got: it was made anew since, or holds other tuples; start anew"
    )


def ahead(stream: str, position: Position, closed_until_us: int) -> UsageError:
    """A position that the stream has not reached: it is not the stream, or not the copy, that it came from."""
    return UsageError(
        f"the position lies at {instant_text(position.until_us)}, where stream {stream} has not come: it is complete "
        f"to {instant_text(closed_until_us)}; was it made anew, or is it a copy that lags behind? Start anew, or wait"
    )
