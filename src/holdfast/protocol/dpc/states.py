"""The states of streams, nodes and forks, and every legal step between them.

Rules:
1. A node moves only along a row of `NODE_STEPS`, a fork only along a row of `FORK_STEPS`; anything else is our own
   fault and stops the core with an assertion.
2. A stream is in the state its reader may rely on: STABLE brings corrections and news, UP_FAILURE brings tentative
   news, STABILIZATION brings corrections, FAILURE brings nothing (003 §4.5.3).
3. The order of `StreamState` is the order of preference in table 4.3: the further left, the more useful.
4. The state of an output follows from those of the inputs by 003 figure A-1 (`output_state`).

The intuition: 003 figure 4-4 has three states because a node there either goes on or goes back. Here the stable query
never goes back, so the node's state only says what its *output* is worth; what the second query does stands in the
fork's own table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum


class StreamState(IntEnum):
    """What a reader can get from one producer of a stream (003 §4.5.3). Smaller is better."""

    STABLE = 1
    UP_FAILURE = 2
    STABILIZATION = 3
    FAILURE = 4


class NodeState(IntEnum):
    """What a replica says of itself (003 figure 4-4, plus the silence of §4.8)."""

    RECOVERING = 1
    STABLE = 2
    UP_FAILURE = 3
    STABILIZATION = 4


class ForkState(IntEnum):
    """The life of the second query, the one that writes the tentative branch."""

    NONE = 1
    PREPARING = 2
    READY = 3
    RUNNING = 4


@dataclass(frozen=True, slots=True)
class Step:
    """One legal step: from where, why, to where."""

    before: IntEnum
    cause: str
    after: IntEnum


NODE_STEPS = (
    Step(NodeState.RECOVERING, "caught up with every input", NodeState.STABLE),
    Step(NodeState.STABLE, "an input has no stable producer", NodeState.UP_FAILURE),
    Step(NodeState.UP_FAILURE, "healed before anything tentative went out", NodeState.STABLE),
    Step(NodeState.UP_FAILURE, "a tentative bucket is now complete on every input", NodeState.STABILIZATION),
    Step(NodeState.STABILIZATION, "main has caught up with the branch", NodeState.STABLE),
    Step(NodeState.STABILIZATION, "an input failed again", NodeState.UP_FAILURE),
)

FORK_STEPS = (
    Step(ForkState.NONE, "first suspicion, or before any where X is short", ForkState.PREPARING),
    Step(ForkState.PREPARING, "the host started the query", ForkState.READY),
    Step(ForkState.PREPARING, "suspicion over, or the host failed to start it", ForkState.NONE),
    Step(ForkState.READY, "the delay ran out", ForkState.RUNNING),
    Step(ForkState.READY, "suspicion over, or the query died", ForkState.NONE),
    Step(ForkState.RUNNING, "main caught up, a peer took over, or the query died", ForkState.NONE),
)

_LEGAL = frozenset((step.before, step.after) for step in NODE_STEPS + FORK_STEPS)


def check_step(before: IntEnum, after: IntEnum) -> None:
    """Stop when a core is about to take a step that stands in no table."""
    assert (before, after) in _LEGAL, f"no row leads from {before!r} to {after!r}; see states.py"


def diagram(steps: tuple[Step, ...]) -> str:
    """The steps as a Mermaid state diagram; the documentation's picture is drawn from here.

    >>> print(diagram(NODE_STEPS[:1]))
    stateDiagram-v2
        RECOVERING --> STABLE: caught up with every input
    """
    lines = [f"    {s.before.name} --> {s.after.name}: {s.cause}" for s in steps]
    return "\n".join(["stateDiagram-v2", *lines])


_MISSING = frozenset((StreamState.STABILIZATION, StreamState.FAILURE))


def output_state(
    node: NodeState, before: StreamState, inputs: Mapping[str, StreamState], blocking: frozenset[str]
) -> StreamState:
    """The state of an output that all of `inputs` reach; each with its best state over all replicas.

    By the lines of figure A-1: while the node stabilises, an output that was failing is in STABILIZATION (02-03), and
    no later rule makes it look better than it is. An output none of whose inputs lacks a stable producer is STABLE
    (05). A missing input on a blocking path blocks the output: FAILURE (09-10), and so do inputs that are all missing
    (11-12). Otherwise it can still bring tentative tuples: UP_FAILURE (14).

    >>> output_state(NodeState.UP_FAILURE, StreamState.STABLE, {"a": StreamState.FAILURE, "b": StreamState.STABLE},
    ...              frozenset()).name
    'UP_FAILURE'
    """
    if node == NodeState.STABILIZATION and before != StreamState.STABLE:
        return StreamState.STABILIZATION
    failing = [stream for stream, state in inputs.items() if state != StreamState.STABLE]
    if not failing:
        return StreamState.STABLE if node == NodeState.STABLE else StreamState.UP_FAILURE
    if any(stream in blocking and inputs[stream] in _MISSING for stream in failing):
        return StreamState.FAILURE
    if all(state in _MISSING for state in inputs.values()):
        return StreamState.FAILURE
    return StreamState.UP_FAILURE
