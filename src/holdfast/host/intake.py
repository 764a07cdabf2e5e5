"""How one input of a replica comes in: the lanes that the core asks for, and what has arrived on them.

Rules:
1. The core subscribes and unsubscribes; the intake does as told and reports what is readable, never more.
2. A cut input (see `link.Cuts`) is silent: nothing arrives and nobody answers for it. What was readable stays readable.
3. Pieces are exact: whoever reads them again reads the same tuples.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from holdfast.host.feed import Feed
from holdfast.host.link import Cuts
from holdfast.host.network import severed
from holdfast.protocol.dpc.effects import Part
from holdfast.protocol.dpc.signals import Disconnected, InputAdvanced, InputGap, Lane
from holdfast.stream.head import read_head
from holdfast.stream.store import Stream
from holdfast.stream.tentative import PlannedPiece

InputSignal = InputAdvanced | InputGap | Disconnected


class Intake(ABC):
    """One input of one replica."""

    #: Whether it is read where its producer wrote it: then what a fork still reads must not go there either.
    in_place = False

    @property
    @abstractmethod
    def stream(self) -> Stream:
        """Where the stable query reads it."""

    @abstractmethod
    def first_us(self) -> int | None:
        """Where the stream begins; None while that is not known."""

    @abstractmethod
    def lost_until_us(self) -> int:
        """What lies before it is gone from where the stream comes from, for whoever begins now; known with
        `first_us`."""

    @abstractmethod
    def subscribe(self, replica: str, lane: Lane, from_us: int) -> None:
        """Begin to read this lane."""

    @abstractmethod
    def unsubscribe(self, replica: str, lane: Lane) -> None:
        """Stop reading this lane."""

    @abstractmethod
    def poll(self) -> list[InputSignal]:
        """What has arrived since the last look, and which connections broke."""

    @abstractmethod
    def pieces(self, source: int, start_us: int, end_us: int, part: Part) -> list[PlannedPiece]:
        """The events of one tentative bucket; `source` is the number of this input."""

    @abstractmethod
    def retain(self, from_us: int) -> None:
        """What lies before is not needed any more."""

    def removed_until_us(self) -> int:
        """What lies before it is gone from where the stable query reads."""
        return read_head(self.stream.folder / "main").removed_until_us

    @abstractmethod
    def close(self) -> None:
        """Let go of files and connections."""


class DirectIntake(Intake):
    """An input that lies on this host and has one producer."""

    in_place = True

    def __init__(self, stream: Stream, producer: str, bucket_us: int, cuts: Cuts) -> None:
        self._stream, self._producer, self._cuts = stream, producer, cuts
        self._feed = Feed(stream, bucket_us)
        self._subscribed = False

    @property
    def stream(self) -> Stream:
        return self._stream

    def first_us(self) -> int | None:
        return self._feed.first_us()

    def lost_until_us(self) -> int:
        return self.removed_until_us()

    def subscribe(self, replica: str, lane: Lane, from_us: int) -> None:
        if lane == Lane.MAIN:
            self._feed.begin(from_us)
            self._subscribed = True

    def unsubscribe(self, replica: str, lane: Lane) -> None:
        if lane == Lane.MAIN:
            self._subscribed = False

    def poll(self) -> list[InputSignal]:
        if not self._subscribed or severed(self._cuts, self._producer):
            return []
        seen = self._feed.poll()
        return [] if seen is None else [InputAdvanced(self._stream.name, self._producer, Lane.MAIN, *seen)]

    def pieces(self, source: int, start_us: int, end_us: int, part: Part) -> list[PlannedPiece]:
        return self._feed.pieces(source, start_us, end_us, part.tuples, part.closed)

    def retain(self, from_us: int) -> None:
        """The stream belongs to its producer, who keeps what its retention says."""

    def close(self) -> None:
        self._feed.close()
