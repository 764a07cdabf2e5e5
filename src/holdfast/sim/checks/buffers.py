"""D14: what is removed from buffers, and what happens when they are full."""

from __future__ import annotations

from typing import Any

from holdfast.protocol.dpc.plan import Full
from holdfast.sim.faults import BUCKET_US, CLIENT, FIRST, SECOND, SOURCES, Plan
from holdfast.sim.observe import Observer


class D14(Observer):
    """Only what all readers committed is removed; a full buffer blocks, or drops the oldest and says so."""

    label = "D14"

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self._setting = plan.setting
        self._readers = dict.fromkeys(SOURCES, FIRST) | dict.fromkeys(FIRST, SECOND) | dict.fromkeys(SECOND, (CLIENT,))
        self._gone: set[str] = set()
        #: How far each reader has durably come, and each writer.
        self._at: dict[str, int] = {}
        self._kept: dict[str, int] = {}

    def on_commit(self, now_us: int, host: str, bucket: int, inputs: list[Any], rows: Any, state: Any) -> None:
        """A replica reads and writes by committing."""
        self._at[host] = bucket + 1
        self._full(now_us, host, bucket + 1)

    def on_member(self, now_us: int, host: str, here: bool) -> None:
        """Who was taken out of the deployment is not waited for; who is added again is."""
        self._gone = self._gone - {host} if here else self._gone | {host}

    def on_rebuilt(self, now_us: int, host: str, bucket: int) -> None:
        """It reads on where its twin did, and keeps what that kept."""
        self._at[host] = bucket
        twin = FIRST[1 - FIRST.index(host)]
        self._kept[host] = self._kept.get(twin, 0)

    def on_hole(self, now_us: int, host: str, first: int, upto: int) -> None:
        """Whoever jumps a hole never asks for it again."""
        self._at[host] = max(self._at.get(host, 0), upto)

    def on_deliver(self, now_us: int, reader: str, kind: str, bucket: int, rows: Any) -> None:
        """The client reads by receiving."""
        if kind == "INSERTION":
            self._at[CLIENT] = bucket + 1

    def on_truncate(self, now_us: int, host: str, upto_us: int, lost_us: int) -> None:
        """Compare with what the readers have."""
        self.checked += 1
        self._kept[host] = upto_us // BUCKET_US
        read = min(self._at.get(reader, 0) for reader in self._readers[host] if reader not in self._gone)
        unread = upto_us // BUCKET_US - read
        if unread <= 0:
            return
        if self._setting.full is Full.BLOCK:
            self.fail(now_us, f"{host} removed {unread} buckets that some reader has not committed")
        elif not lost_us:
            self.fail(now_us, f"{host} removed {unread} buckets that some reader has not committed, and did not say so")

    def _full(self, now_us: int, host: str, head: int) -> None:
        capacity_us = self._setting.capacity_us
        if capacity_us is not None and self._setting.full is Full.BLOCK:
            kept = self._kept.get(host, 0)
            if (head - kept) * BUCKET_US > capacity_us:
                self.fail(now_us, f"{host} holds {head - kept} buckets; its buffer has room for {capacity_us} us")
