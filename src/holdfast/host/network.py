"""Who hears what is said: replicas and sources of this host at once, others through their host's link.

Rules:
1. A message to a replica that is out of reach is lost, as on any network; the core says it again or gives up.
2. A source answers for its stream: STABLE up to its boundary. Whether the boundary moves is for the reader to judge.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.host.link import Cuts
from holdfast.protocol.dpc.effects import Send
from holdfast.protocol.dpc.messages import KeepaliveReply, KeepaliveRequest, Message, StreamReport
from holdfast.protocol.dpc.states import StreamState
from holdfast.stream.reader import LogReader
from holdfast.stream.store import StreamStore

Deliver = Callable[[str, Message], None]


def severed(cuts: Cuts, replica: str) -> bool:
    """Whether the replica `node@host`, or the source `stream@host`, was cut off: by its own name or its host's."""
    name, _, host = replica.partition("@")
    return name in cuts.names or host in cuts.names


class SourceVoice:
    """Speaks for a source stream that lies on this host."""

    def __init__(self, store: StreamStore, stream: str) -> None:
        self._store, self._stream = store, stream
        self._reader: LogReader | None = None

    def reply(self) -> KeepaliveReply | None:
        """None while the stream does not exist."""
        if self._reader is None:
            if self._stream not in self._store.names():
                return None
            self._reader = self._store.open(self._stream).reader()
        self._reader.refresh()
        return KeepaliveReply((StreamReport(self._stream, StreamState.STABLE, self._reader.boundary_us, False),))

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

    def add_source(self, name: str, voice: SourceVoice) -> None:
        self._voices[name] = voice

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
            reply = self._voices[to].reply() if isinstance(message, KeepaliveRequest) else None
            if reply is not None:
                self._route(to, sender, reply)
        elif not to.endswith(f"@{self._host}"):
            self._abroad(sender, to, message)

    def close(self) -> None:
        for voice in self._voices.values():
            voice.close()
