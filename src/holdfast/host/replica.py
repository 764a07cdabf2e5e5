"""What a host needs from whatever stands for a replica: a controller of its queries, or somebody in its place."""

from __future__ import annotations

from typing import Any, Protocol

from holdfast.protocol.dpc.messages import Message, StreamReport


class Replica(Protocol):
    """One replica of one node, as its host sees it."""

    @property
    def serves(self) -> bool:
        """Whether readers may be served (D12)."""

    def pulse(self) -> None:
        """Look at the world once."""

    def deliver(self, sender: str, message: Message) -> None:
        """A message came for this replica."""

    def report(self) -> StreamReport | None:
        """How its output does, as it would say in a keepalive reply; None: it says nothing (D12)."""

    def status(self) -> dict[str, Any]:
        """What `holdfast status` shows."""

    def stop_queries(self) -> None:
        """Stop what Spark runs for it. May take a moment; called on a thread of its own."""

    def close(self) -> None:
        """Let go of files and connections."""
