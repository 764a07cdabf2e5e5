"""D8–D12: what replicas compute, promise and say."""

from __future__ import annotations

from typing import Any

from holdfast.protocol.dpc.messages import AuthorisationDone, AuthorisationReply, KeepaliveReply
from holdfast.protocol.dpc.plan import KEEPALIVE_US
from holdfast.protocol.dpc.signals import Lane
from holdfast.sim.diagram import Truth
from holdfast.sim.faults import BUCKET_US, Plan
from holdfast.sim.observe import Observer


class D8(Observer):
    """Nothing is stable unless every contributing input was stable and complete."""

    label = "D8"

    def __init__(self, truth: Truth) -> None:
        super().__init__()
        self._truth = truth

    def on_commit(self, now_us: int, host: str, bucket: int, inputs: list[Any], rows: Any, state: Any) -> None:
        """What went in must be what the sources, or the run without faults, put out."""
        for index, given in enumerate(inputs):
            wanted = self._truth.of(host).inputs[index][bucket]
            if given != wanted:
                text = "missing" if given is None else "incomplete or wrong"
                self.fail(now_us, f"{host} made bucket {bucket} stable although input {index} was {text}")


class D9(Observer):
    """Replicas with equal stable input have equal stable output and state, bucket by bucket."""

    label = "D9"

    def __init__(self, truth: Truth) -> None:
        super().__init__()
        self._truth = truth
        self._next: dict[str, int] = {}

    def on_hole(self, now_us: int, host: str, first: int, upto: int) -> None:
        """A declared hole may be jumped."""
        self._next[host] = max(self._next.get(host, 0), upto)

    def on_rebuilt(self, now_us: int, host: str, bucket: int) -> None:
        """What it had before is of no account; what it commits from here on is compared as ever."""
        self._next[host] = bucket

    def on_commit(self, now_us: int, host: str, bucket: int, inputs: list[Any], rows: Any, state: Any) -> None:
        """Compare with the one node that never failed."""
        expected = self._truth.of(host)
        if rows != expected.upto(bucket + 1)[bucket] or state != expected.states[bucket + 1]:
            self.fail(now_us, f"{host} computed another bucket {bucket} than a node without faults")
        if bucket != self._next.get(host, 0):
            self.fail(now_us, f"{host} committed bucket {bucket} where {self._next.get(host, 0)} was due")
        self._next[host] = bucket + 1
        self.checked += len(rows)


class D10(Observer):
    """Boundaries only grow, and no later tuple lies before one."""

    label = "D10"

    def __init__(self) -> None:
        super().__init__()
        self._promised: dict[str, int] = {}
        self._sent: dict[tuple[str, int], Any] = {}

    def on_commit(self, now_us: int, host: str, bucket: int, inputs: list[Any], rows: Any, state: Any) -> None:
        """A new bucket lies at or after everything promised."""
        self.checked += 1
        if bucket < self._promised.get(host, 0):
            self.fail(now_us, f"{host} wrote bucket {bucket} after promising everything before {self._promised[host]}")

    def on_rebuilt(self, now_us: int, host: str, bucket: int) -> None:
        """Its promises went with its disk; what it has sent it must not change (`_sent`)."""
        self._promised[host] = 0

    def on_push(self, now_us: int, sender: str, to: str, push: Any, sender_state: str) -> None:
        """A bucket below the boundary may be sent again, but never changed."""
        if push.lane != Lane.MAIN:
            return
        for bucket, rows, _ in push.items:
            if bucket < push.closed and self._sent.setdefault((sender, bucket), rows) != rows:
                self.fail(now_us, f"{sender} changed bucket {bucket} after it was promised")
        self._promised[sender] = max(self._promised.get(sender, 0), push.closed)

    def on_message(self, now_us: int, sender: str, to: str, message: Any, sender_state: str) -> None:
        """The reported boundary only grows."""
        if isinstance(message, KeepaliveReply):
            boundary = message.reports[0].main_us // BUCKET_US
            if boundary < self._promised.get(sender, 0):
                self.fail(now_us, f"{sender} took its boundary back to {boundary} from {self._promised[sender]}")
            self._promised[sender] = boundary


#: holder, until, request
_NO_PROMISE = ("", 0, 0)


class D11(Observer):
    """Who granted authorisation does not stabilise; who gives up its fork has such a grant."""

    label = "D11"
    #: A promise holds for so long after it was last given; part of what replicas agree on.
    LEASE_US = 12 * KEEPALIVE_US

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        #: grantor → (holder, until, the latest request it was given for)
        self._promises: dict[str, tuple[str, int, int]] = {}
        self._states: dict[str, str] = {}
        self._forked: set[str] = set()

    def on_message(self, now_us: int, sender: str, to: str, message: Any, sender_state: str) -> None:
        """Note promises as they are given."""
        if isinstance(message, AuthorisationReply) and message.granted:
            self.checked += 1
            if self._states.get(sender) == "STABILIZATION":
                self.fail(now_us, f"{sender} granted authorisation while stabilising")
            if self._states.get(sender) == "UP_FAILURE" and sender not in self._forked:
                self.fail(now_us, f"{sender} granted authorisation although it cannot process anything new")
            holder, until, asked = self._promises.get(sender, _NO_PROMISE)
            latest = max(asked, message.asked_us) if holder == to and until > now_us else message.asked_us
            self._promises[sender] = (to, now_us + self.LEASE_US, latest)

    def on_heard(self, now_us: int, host: str, sender: str, message: Any) -> None:
        """The holder releases its peer from what it promised before, not from what it was asked for since."""
        holder, _, asked = self._promises.get(host, _NO_PROMISE)
        if isinstance(message, AuthorisationDone) and holder == sender and asked <= message.asked_us:
            del self._promises[host]

    def on_member(self, now_us: int, host: str, here: bool) -> None:
        """What was promised to one who is no longer there binds nobody."""
        for giver in [giver for giver, (holder, _, _) in self._promises.items() if holder == host]:
            del self._promises[giver]

    def on_state(self, now_us: int, host: str, before: str, after: str) -> None:
        """A promise binds its giver, unless it died."""
        self._states[host] = after
        if after == "DOWN":
            self._promises.pop(host, None)
            self._forked.discard(host)
        elif after == "STABILIZATION" and self._promises.get(host, _NO_PROMISE)[1] > now_us:
            self.fail(now_us, f"{host} stabilises although it promised {self._promises[host][0]} not to")

    def on_fork(self, now_us: int, host: str, what: str, detail: Any) -> None:
        """A fork that is given up while main has not caught up needs somebody else to stay available."""
        if what == "stop":
            self._forked.discard(host)
        else:
            self._forked.add(host)
        if what == "stop" and not detail.drop_branch:
            self.checked += 1
            if not any(holder == host and until > now_us for holder, until, _ in self._promises.values()):
                self.fail(now_us, f"{host} gave up its fork without a promise that a peer stays available")


class D12(Observer):
    """A replica that restarts says nothing before it is STABLE."""

    label = "D12"

    def on_message(self, now_us: int, sender: str, to: str, message: Any, sender_state: str) -> None:
        """Answers are not allowed; its own questions and acknowledgements are."""
        if sender_state in ("RECOVERING", "DOWN") and isinstance(message, KeepaliveReply | AuthorisationReply):
            self.fail(now_us, f"{sender} answered {type(message).__name__} to {to} while {sender_state}")

    def on_push(self, now_us: int, sender: str, to: str, push: Any, sender_state: str) -> None:
        """Nor is data."""
        if sender_state in ("RECOVERING", "DOWN"):
            self.fail(now_us, f"{sender} sent tuples to {to} while {sender_state}")
