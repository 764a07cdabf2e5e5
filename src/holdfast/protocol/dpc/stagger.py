"""Who stabilises first: the talk between replicas of one node (003 §4.7.3, figure 4-12).

Rules:
1. Before stabilising, a replica asks one peer. The peer says yes unless it is stabilising itself, or needs to and has
   the smaller name. A yes is a promise not to stabilise (D11). Beyond the seeds, the peer must be able to keep news
   coming: STABLE, or with a fork at hand; one that has just given up its fork is not.
2. A promise is a lease: it lasts `LEASE_US` from the last request and the holder keeps renewing. The holder trusts it
   only half as long, so it gives up first whatever the network does. The seeds leave open what ends a promise.
3. Refused: ask the next peer after a while. Nobody answers: there is no one to take turns with, so the replica
   stabilises with its own fork running beside. Hence some live replica always processes new input.
4. With `Stabilise.FORK` nobody is asked.
"""

from __future__ import annotations

from holdfast.protocol.dpc.effects import Send
from holdfast.protocol.dpc.messages import AuthorisationDone, AuthorisationReply, AuthorisationRequest
from holdfast.protocol.dpc.plan import MISSED_MAX, NodePlan, Stabilise

#: In keepalives. Long enough that a holder renews several times before it lapses, short enough that the death of a
#: holder does not keep its peer from stabilising.
LEASE_KEEPALIVES = 12


class Stagger:
    """One replica's side of the talk."""

    __slots__ = ("_alone", "_asked", "_asked_us", "_granted_until_us", "_holder", "_plan", "_promised_until_us",
                 "_unanswered", "granted_by")  # fmt: skip

    def __init__(self, plan: NodePlan) -> None:
        self._plan = plan
        self._asked = 0
        self._asked_us: int | None = None
        self._unanswered = 0
        self._alone = False
        self.granted_by: str | None = None
        self._granted_until_us = 0
        self._holder: str | None = None
        self._promised_until_us = 0

    @property
    def _lease_us(self) -> int:
        return LEASE_KEEPALIVES * self._plan.keepalive_us

    def promised(self, now_us: int) -> bool:
        """Whether a promise of ours to stay available is in force."""
        return self._holder is not None and now_us < self._promised_until_us

    def relieved(self, now_us: int) -> bool:
        """Whether a peer stays available for us, so that our own fork may go."""
        return self.granted_by is not None and now_us < self._granted_until_us

    def may(self, now_us: int) -> bool:
        """Whether stabilising is allowed now."""
        if self._plan.stabilise is Stabilise.FORK:
            return True
        if self.promised(now_us):
            return False
        return not self._plan.peers or self._alone or self.relieved(now_us)

    def ask(self, now_us: int) -> tuple[Send, ...]:
        """Called on every keepalive while stabilisation is wanted or under way: ask, ask again, or renew."""
        plan = self._plan
        if plan.stabilise is Stabilise.FORK or not plan.peers or self.promised(now_us):
            return ()
        if self.granted_by is not None and not self.relieved(now_us):
            self.granted_by = None
            self._alone = True
        if self._asked_us is not None and now_us - self._asked_us < 2 * plan.keepalive_us:
            return ()
        self._unanswered += 1
        if self._unanswered > MISSED_MAX:
            self._alone = True
        peer = self.granted_by or plan.peers[self._asked % len(plan.peers)]
        self._asked_us = now_us
        return (Send(peer, AuthorisationRequest()),)

    def requested(self, peer: str, available: bool, now_us: int) -> Send:
        """A peer asks us. Whoever is asking as well, and has the smaller name, goes first."""
        grant = available and not (self._asked_us is not None and self._plan.replica < peer)
        if self.promised(now_us) and self._holder != peer:
            grant = False
        if grant:
            self._holder = peer
            self._promised_until_us = now_us + self._lease_us
        return Send(peer, AuthorisationReply(grant))

    def replied(self, peer: str, granted: bool) -> None:
        """A peer answered our last request."""
        if self._asked_us is None:
            return
        self._unanswered = 0
        if granted:
            self.granted_by = peer
            self._granted_until_us = self._asked_us + self._lease_us // 2
        else:
            self._asked += 1
            if self.granted_by == peer:
                self.granted_by = None

    def released(self, peer: str) -> None:
        """The holder of our promise no longer needs it."""
        if self._holder == peer:
            self._holder = None

    def done(self) -> tuple[Send, ...]:
        """Stabilisation is over, or not wanted any more."""
        self._asked_us, self._alone, self._unanswered = None, False, 0
        if self.granted_by is None:
            return ()
        peer, self.granted_by = self.granted_by, None
        return (Send(peer, AuthorisationDone()),)
