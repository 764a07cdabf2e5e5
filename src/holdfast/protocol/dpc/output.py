"""The state of an output stream from the states of the inputs: 003 appendix A, figure A-1.

Rules (line numbers of the figure):
1. While the node stabilises, an output that was failing is in STABILIZATION (02–03); this core never lets a later rule
   make it look better than it is.
2. An output none of whose inputs lacks a stable producer is STABLE (05).
3. A missing input on a blocking path blocks the output: FAILURE (09–10). So do inputs that are all missing (11–12).
4. Otherwise it can still bring tentative tuples: UP_FAILURE (14).
"""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.protocol.dpc.states import NodeState, StreamState

_MISSING = frozenset((StreamState.STABILIZATION, StreamState.FAILURE))


def output_state(
    node: NodeState, before: StreamState, inputs: Mapping[str, StreamState], blocking: frozenset[str]
) -> StreamState:
    """The state of an output that all of `inputs` reach; each with its best state over all replicas.

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
