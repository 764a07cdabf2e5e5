"""Who stabilises first: the talk between replicas of one node (003 §4.7.3, figure 4-12).

Rules:
1. Before stabilising, a replica asks one peer. The peer says yes unless it is stabilising itself, or needs to and has
   the smaller name. A yes is a promise not to stabilise (D11). Beyond the seeds, the peer must be able to keep news
   coming: STABLE, or with a fork at hand; one that has just given up its fork is not.
2. A promise is a lease: it lasts `LEASE_US` from the last request and the holder keeps renewing. The holder trusts it
   only half as long, so it gives up first whatever the network does. The seeds leave open what ends a promise.
3. Every request is named by the time it was made, and so are its answer and its release. An answer counts only for
   the turn in which it was asked for, and is trusted from the time of its own request on; a release ends only promises
   made before it. Otherwise a late yes to a turn that is over, whose promise was released meanwhile, would pass for a
   yes to the next one.
4. Refused: ask the next peer after a while. Nobody answers: there is no one to take turns with, so the replica
   stabilises with its own fork running beside. Hence some live replica always processes new input.
5. With `Stabilise.FORK` nobody is asked.
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

    __slots__ = ("_alone", "_asked", "_asked_us", "_granted_until_us", "_holder", "_plan", "_promised_for_us",
                 "_promised_until_us", "_settled_us", "_unanswered", "granted_by")  # fmt: skip

    def __init__(self, plan: NodePlan, now_us: int) -> None:
        self._plan = plan
        self._asked = 0
        #: The last request of this turn; None if stabilising is not wanted.
        self._asked_us: int | None = None
        #: Requests up to here are answered or of an earlier turn or life: what is still said about them is void.
        self._settled_us = now_us - 1
        self._unanswered = 0
        self._alone = False
        self.granted_by: str | None = None
        self._granted_until_us = 0
        self._holder: str | None = None
        self._promised_until_us = 0
        #: The latest request for which our promise was given.
        self._promised_for_us = 0

    @property
    def _lease_us(self) -> int:
        return LEASE_KEEPALIVES * self._plan.keepalive_us

    def replan(self, plan: NodePlan) -> None:
        """Others are the peers. What one who is gone has promised, or was promised, is void."""
        self._plan = plan
        if self._holder not in plan.peers:
            self._holder = None
        if self.granted_by not in plan.peers:
            self.granted_by = None

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
        self._asked_us = max(now_us, self._settled_us + 1)
        return (Send(peer, AuthorisationRequest(self._asked_us)),)

    def requested(self, peer: str, asked_us: int, available: bool, now_us: int) -> Send:
        """A peer asks us. Whoever is asking as well, and has the smaller name, goes first."""
        grant = available and not (self._asked_us is not None and self._plan.replica < peer)
        promised = self.promised(now_us)
        if promised and self._holder != peer:
            grant = False
        if grant:
            self._holder = peer
            self._promised_for_us = max(asked_us, self._promised_for_us) if promised else asked_us
            self._promised_until_us = now_us + self._lease_us
        return Send(peer, AuthorisationReply(grant, asked_us))

    def replied(self, peer: str, granted: bool, asked_us: int) -> None:
        """A peer answered a request. Not always the last one: on a slow link several are on their way."""
        if self._asked_us is None or not self._settled_us < asked_us <= self._asked_us:
            return
        self._settled_us = asked_us
        self._unanswered = 0
        if granted:
            self.granted_by = peer
            self._granted_until_us = asked_us + self._lease_us // 2
        else:
            self._asked += 1
            if self.granted_by == peer:
                self.granted_by = None

    def released(self, peer: str, asked_us: int) -> None:
        """The holder of our promise no longer needs it, unless it has asked again since."""
        if self._holder == peer and self._promised_for_us <= asked_us:
            self._holder = None

    def done(self) -> tuple[Send, ...]:
        """Stabilisation is over, or not wanted any more."""
        if self._asked_us is not None:
            self._settled_us = self._asked_us
        self._asked_us, self._alone, self._unanswered = None, False, 0
        if self.granted_by is None:
            return ()
        peer, self.granted_by = self.granted_by, None
        return (Send(peer, AuthorisationDone(self._settled_us)),)
