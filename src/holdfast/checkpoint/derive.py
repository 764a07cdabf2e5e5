"""From an operator's type and its annotation to what is done: SPADE's code generation (004 §4), as a table.

Rules:
1. A stateless operator saves nothing, whatever is annotated.
2. A stateful functor saves its variables; a user-defined operator what its `checkpoint()` gives, per key; a join or
   aggregate its windows.
3. A barrier pairs tuples by arrival, so no state of its own makes it right after a loss: upstream backup is enforced,
   and every other annotation is refused with the reason.
4. `groups` needs a sliding window, `continuous` windows that close. Those are saved one by one, together with their
   results; all together, by time (`every`); or not at all.
5. A store that is named by its address must outlive the process that writes to it.
6. Behind windows that close stands a log of their input: it is read again from the position of what was saved. So
   `every` is exact there, whatever it is elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from holdfast.checkpoint.policy import Continuous, Every, Groups, Guarantee, NoCheckpoint, Upstream, guarantee_of
from holdfast.checkpoint.store import without_password
from holdfast.checkpoint.stores import check_address
from holdfast.model.errors import UsageError


class StateKind(Enum):
    """What an operator has to lose."""

    NONE = "no state"
    VARIABLES = "variables"
    KEYED = "instances by key"
    SLIDING = "sliding windows"
    WINDOWS = "windows"
    IN_FLIGHT = "tuples in flight"


@dataclass(frozen=True)
class Protection:
    """What is done for one operator. `holdfast explain` prints these."""

    operator: str
    kind: str
    state: StateKind
    policy: str
    saves: str
    guarantee: Guarantee
    store: str | None = None
    """Its address, without a password."""


_FITS: dict[StateKind, tuple[tuple[type, ...], str]] = {
    StateKind.VARIABLES: ((NoCheckpoint, Every), "its variables"),
    StateKind.KEYED: ((NoCheckpoint, Every), "what checkpoint() gives, per key"),
    StateKind.SLIDING: ((NoCheckpoint, Every, Groups), "its windows"),
    StateKind.WINDOWS: ((NoCheckpoint, Continuous, Every), "its open windows"),
    StateKind.IN_FLIGHT: ((Upstream,), "nothing: its inputs are kept until it has paired them"),
}
_INSTEAD = {
    StateKind.VARIABLES: 'every("10s")',
    StateKind.KEYED: 'every("10s") or every(events=100)',
    StateKind.SLIDING: 'groups(512, every="1s")',
    StateKind.WINDOWS: 'continuous(), every("30s") with a store=, or none',
    StateKind.IN_FLIGHT: "upstream(), or nothing",
}


def derive(operator: str, kind: str, state: StateKind, policy: object | None, store: str | None = None) -> Protection:
    """What protects an operator; `policy` None means that nothing was annotated."""
    if policy is None:
        policy = Upstream() if state is StateKind.IN_FLIGHT else NoCheckpoint()
    guarantee = guarantee_of(policy)
    if state is StateKind.NONE:
        return Protection(operator, kind, state, str(policy), "nothing: it has no state", Guarantee.EXACT)
    fits, saves = _FITS[state]
    by_events = state is StateKind.WINDOWS and isinstance(policy, Every) and policy.us is None
    if not isinstance(policy, fits) or by_events:
        article = "an" if kind[0] in "aeio" else "a"
        raise UsageError(
            f"{operator}: {article} {kind} keeps {state.value}, which {policy} does not protect; use {_INSTEAD[state]}"
        )
    if store is not None and check_address(store)[0] == "memory" and not isinstance(policy, NoCheckpoint):
        raise UsageError(
            f"{operator}: {policy} needs a store that outlives its process, such as log:FOLDER; got {store!r}"
        )
    if isinstance(policy, NoCheckpoint):
        saves = "nothing"
    elif isinstance(policy, Groups):
        saves = f"the groups of {policy.size} tuples that changed, of each window"
        saves += ", all as of one position, from which the input is replayed" if policy.exact else ""
    elif isinstance(policy, Every) and state is StateKind.SLIDING:
        saves = "its windows, whole"
    elif isinstance(policy, Every) and state is StateKind.WINDOWS:
        saves = f"its open windows, all together{', with each batch' if policy.exact else ''}"
        guarantee = Guarantee.EXACT
    shown = None if store is None or saves == "nothing" else without_password(store)
    return Protection(operator, kind, state, str(policy), saves, guarantee, shown)
