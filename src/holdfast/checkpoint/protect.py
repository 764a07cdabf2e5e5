"""An operator in a process of one's own, saved as its policy says while it is fed.

    policy = groups(512, every="1s")
    join = WindowJoin("pairs", left_input, right_input, on="k", checkpoint=policy)
    pairs = protect(join, policy, SafeKeeper(LogStore(folder)))
    results = pairs.feed(left, right)
    scheduler().report()["pairs"].missed

Rules:
1. With a policy of time, the one scheduler of the process takes the checkpoints of all operators in the order of their
   deadlines, each between two batches of its operator, and counts those that were late.
2. With `every(events=…)` a checkpoint is taken after the batch that brought as many tuples, per key where keys are.
3. What was dropped or failed on its way to the store is saved again with the next checkpoint.
4. This is best effort. Exact needs a position in the input to go on from, which a schedule knows nothing of: a join
   with exact groups is saved where its owner can replay from, and on Spark the batch is the position.
5. The groups of a join are cut by the policy that it was made with, since `restore` needs them before anything is
   protected; another one here is refused.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from holdfast.checkpoint.derive import Protection, StateKind, derive
from holdfast.checkpoint.policy import Every, Groups, Guarantee, NoCheckpoint
from holdfast.checkpoint.safekeeper import Outcome, Result, SafeKeeper
from holdfast.checkpoint.scheduler import Scheduler, scheduler
from holdfast.clock import now_us
from holdfast.model.errors import UsageError


class Savable(Protocol):
    """What can be protected: `WindowJoin` and `Instances`."""

    name: str

    def feed(self, *batches: Any) -> Any: ...

    def checkpoint(
        self, keeper: SafeKeeper, now_us: int, *, events: int = 0, told: Callable[[Result], None] | None = None
    ) -> int:
        """Hand over what changed, where there were `events` tuples since the last time; how much it was."""

    def unsaved(self, result: Result) -> None:
        """What was dropped must be saved again."""


class Protected:
    """See the module; made by `protect`."""

    def __init__(self, operator: Savable, policy: Every | Groups | NoCheckpoint, keeper: SafeKeeper, by: Scheduler):
        self.protection = _protection(operator, policy)
        """What `holdfast explain` shows, instead of that of the operator by itself."""
        self.operator, self._policy, self._keeper, self._by = operator, policy, keeper, by
        self._turn = threading.Lock()
        """Held by whoever feeds or saves."""
        self._back: deque[Result] = deque()
        """Results of what did not become durable. Keeper threads must not wait for the operator's turn."""
        us = policy.us if isinstance(policy, Every | Groups) else None
        self._scheduled = us is not None
        if us is not None:
            by.add(operator.name, us, self.checkpoint)

    def feed(self, *batches: Any) -> Any:
        """The operator's results."""
        with self._turn:
            results = self.operator.feed(*batches)
            if isinstance(self._policy, Every) and self._policy.events is not None:
                self._save(self._policy.events)
            return results

    def checkpoint(self) -> int:
        """Save what changed, now; how much it was."""
        with self._turn:
            return self._save(0)

    def close(self) -> None:
        """No more deadlines. What was handed to the keeper is the keeper's."""
        if self._scheduled:
            self._by.remove(self.operator.name)

    def _save(self, events: int) -> int:
        while self._back:
            self.operator.unsaved(self._back.popleft())
        return self.operator.checkpoint(self._keeper, now_us(), events=events, told=self._told)

    def _told(self, result: Result) -> None:
        if result.outcome in (Outcome.DROPPED, Outcome.FAILED):
            self._back.append(result)


def protect(
    operator: Savable, policy: Every | Groups | NoCheckpoint, keeper: SafeKeeper, *, by: Scheduler | None = None
) -> Protected:
    """Feed the operator through what is returned; its name must be its own in the process."""
    if not isinstance(keeper, SafeKeeper):
        raise UsageError(f"protect() needs a SafeKeeper around the store, as in SafeKeeper(store); got {keeper!r}")
    if isinstance(policy, Every | Groups) and policy.exact:
        raise UsageError(
            f"{operator.name}: {policy} must be taken where the input can be replayed from, which a schedule does not "
            f"know; call checkpoint() of a join there, or run a user-defined operator on Spark"
        )
    return Protected(operator, policy, keeper, by or scheduler())


def _protection(operator: Savable, policy: Every | Groups | NoCheckpoint) -> Protection:
    """What the policy does for the operator; refuses one that does not fit (rule 5)."""
    own = getattr(operator, "protection", None)
    if not isinstance(own, Protection):
        return derive(operator.name, "user-defined operator", StateKind.KEYED, policy)
    found = derive(own.operator, own.kind, own.state, policy)
    cuts = isinstance(policy, Groups) or (isinstance(policy, Every) and own.guarantee is not Guarantee.NOTHING)
    if cuts and found.saves != own.saves:
        raise UsageError(
            f"{operator.name}: {policy} must be given to the {own.kind} as well, which cuts its windows by it; "
            f"it was made with {own.policy}; add checkpoint={policy} there"
        )
    return found
