"""Who hears what is said: replicas and sources of this host at once, others through their host's link.

Rules:
1. A message to a replica that is out of reach is lost, as on any network; the core says it again or gives up.
2. A source answers for its stream: STABLE up to its boundary. Whether the boundary moves is for the reader to judge.
3. What the readers of a source acknowledge is noted beside it, as at the output of a node: retention follows them.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.host.link import Cuts
from holdfast.host.reader_acks import ReaderAcks
from holdfast.model.time import BEGINNING_US
from holdfast.protocol.dpc.buffers import Buffer
from holdfast.protocol.dpc.effects import Send
from holdfast.protocol.dpc.messages import Ack, KeepaliveReply, KeepaliveRequest, Message, StreamReport
from holdfast.protocol.dpc.plan import OutputPlan
from holdfast.protocol.dpc.states import StreamState
from holdfast.stream.reader import LogReader
from holdfast.stream.store import StreamStore

Deliver = Callable[[str, Message], None]


def severed(cuts: Cuts, replica: str) -> bool:
    """Whether the replica `node@host`, or the source `stream@host`, was cut off: by its own name or its host's."""
    name, _, host = replica.partition("@")
    return name in cuts.names or host in cuts.names


class SourceVoice:
    """Speaks for a source stream that lies on this host. `readers` are all replicas that read it, up or not."""

    def __init__(self, store: StreamStore, stream: str, readers: tuple[str, ...] = ()) -> None:
        self._store, self._stream, self._readers = store, stream, readers
        self._reader: LogReader | None = None
        self._acks: ReaderAcks | None = None
        self._buffer = Buffer(OutputPlan(stream, (), readers), BEGINNING_US)

    def replan(self, readers: tuple[str, ...]) -> None:
        """Others read it now."""
        self._readers = readers
        self._buffer.replan(OutputPlan(self._stream, (), readers))
        if readers and self._acks is None and self._reader is not None:
            self._acks = ReaderAcks(self._store.open(self._stream))

    def answer(self, sender: str, message: Message) -> KeepaliveReply | None:
        """What there is to say to a message, if anything."""
        if isinstance(message, KeepaliveRequest):
            return self.reply()
        if isinstance(message, Ack) and self._find():
            assert self._reader is not None
            self._buffer.ack(sender, message.upto_us)
            freed = self._buffer.truncate(self._reader.boundary_us)
            if self._acks is not None:
                self._acks.note(None if freed is None else freed.upto_us)
        return None

    def reply(self) -> KeepaliveReply | None:
        """None while the stream does not exist."""
        if not self._find():
            return None
        assert self._reader is not None
        self._reader.refresh()
        return KeepaliveReply((StreamReport(self._stream, StreamState.STABLE, self._reader.boundary_us, False),))

    def _find(self) -> bool:
        if self._reader is None:
            if self._stream not in self._store.names():
                return False
            stream = self._store.open(self._stream)
            self._reader = stream.reader()
            if self._readers:
                self._acks = ReaderAcks(stream)
        return True

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()


class Network:
    """Routes messages by the name of the receiver, `node@host` or `stream@host`."""

    def __init__(self, host: str, cuts: Cuts, abroad: Callable[[str, str, Message], None]) -> None:
        self._host, self._cuts, self._abroad = host, cuts, abroad
        self._local: dict[str, Deliver] = {}
        self._voices: dict[str, SourceVoice] = {}

    def add(self, replica: str, deliver: Deliver) -> None:
        self._local[replica] = deliver

    def remove(self, replica: str) -> None:
        self._local.pop(replica, None)

    def add_source(self, name: str, voice: SourceVoice) -> None:
        self._voices[name] = voice

    def remove_source(self, name: str) -> None:
        self._voices.pop(name, None)

    def say(self, sender: str, send: Send) -> None:
        """What a replica of this host says."""
        self._route(sender, send.to, send.message)

    def heard(self, sender: str, to: str, message: Message) -> None:
        """What came from another host."""
        if not severed(self._cuts, sender):
            self._route(sender, to, message)

    def _route(self, sender: str, to: str, message: Message) -> None:
        if severed(self._cuts, to):
            return
        if to in self._local:
            self._local[to](sender, message)
        elif to in self._voices:
            reply = self._voices[to].answer(sender, message)
            if reply is not None:
                self._route(to, sender, reply)
        elif not to.endswith(f"@{self._host}"):
            self._abroad(sender, to, message)

    def close(self) -> None:
        for voice in self._voices.values():
            voice.close()
