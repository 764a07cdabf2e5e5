"""How a replica stands, in words: what `holdfast status` shows and `holdfast up` waits for.

Rules:
1. A replica that gives nothing says why, in one sentence, and what has to happen first: Spark's own work (`spark`), an
   input that is not there (`inputs`), reading what was missed (`replay`), or readers that have to catch up
   (`readers`).
2. A replica that starts while an input is missing waits for it and gives nothing tentative meanwhile: a node answers
   nobody before it has been STABLE once (003 §4.8, D12). One that has no state yet waits for the word of every input,
   also of one that nobody has fed so far: where it begins is where the first of them began.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from holdfast.engine import Recovery
from holdfast.model.time import END_OF_TIME_US, duration_text
from holdfast.protocol.dpc.node import NodeCore
from holdfast.protocol.dpc.states import NodeState


class Wait(NamedTuple):
    """What a replica waits for, and the sentence about it."""

    kind: Literal["spark", "inputs", "replay", "readers"]
    why: str


SPARK_STARTS = Wait("spark", "Spark starts")
SPARK_PLANS = Wait("spark", "Spark plans the query")
TWIN_HANDS_OVER = Wait("replay", "it is rebuilt from a twin")
QUERY_STARTS = Wait("spark", "Spark starts the query")
FIRST_BATCH = Wait("spark", "the query works on its first batch")


def unheard_inputs(streams: Sequence[str]) -> Wait:
    """A replica that begins must know where each of its inputs does."""
    return Wait(
        "inputs",
        f"{' and '.join(streams)} must say where the node begins, and nothing has come from there yet; start a "
        f"producer of it, or the host that has it",
    )


def missing_stream(stream: str, error: Exception) -> Wait:
    return Wait("inputs", f"stream {stream} is not there yet: {error}")


def cannot_be_set_up(error: Exception) -> Wait:
    return Wait("spark", f"it cannot be set up now, and is tried again: {error}")


def full(core: NodeCore) -> Wait | None:
    """Why a replica with a bounded output reads nothing, though there is input; None if it does."""
    if not core.blocked:
        return None
    output, late = core.plan.output, core.buffer.slowest()
    capacity = duration_text(output.capacity_us or 0)
    return Wait(
        "readers",
        f"{output.stream} holds {capacity} that {late} has not acknowledged, as much as its capacity; it goes on when "
        f"that reader does: start it, take it out of the deployment, or allow more capacity",
    )


def no_fork(why: str | None) -> Wait | None:
    return None if why is None else Wait("inputs", why)


def recovery(core: NodeCore) -> Wait | None:
    """Why the replica has not been STABLE yet; None if it has."""
    if core.state != NodeState.RECOVERING:
        return None
    missing = [stream for stream, upstream in core.inputs.upstreams.items() if upstream.failing]
    if missing:
        return Wait(
            "inputs",
            f"no stable producer of {', '.join(missing)} answers; a replica that starts waits for all its inputs and "
            "gives nothing tentative before it has been STABLE once",
        )
    size = core.plan.bucket_us
    behind_us = (core.inputs.sunion.frontier - core.stable) * size
    if not 0 < behind_us < END_OF_TIME_US - core.stable * size:
        return Wait("replay", "it reads what it missed of its inputs")
    return Wait("replay", f"it reads what it missed of its inputs: {duration_text(behind_us)} to go")


def drained(replica: str, node: str) -> dict[str, Any]:
    """A replica that was stopped because its host is to be taken down."""
    return {"replica": replica, "node": node, "state": "DRAINED", "why": "its host was drained", "inputs": []}


def waiting(replica: str, node: str, wait: Wait) -> dict[str, Any]:
    """The status of a replica that has no core yet."""
    return {
        "replica": replica, "node": node, "state": "WAITING", "waits_for": wait.kind, "why": wait.why, "inputs": [],
    }  # fmt: skip


def failed(replica: str, node: str, why: str) -> dict[str, Any]:
    return {"replica": replica, "node": node, "state": "FAILED", "why": why, "inputs": []}


def status_of(core: NodeCore, fork: str, wait: Wait | None, checkpoints: Recovery | None = None) -> dict[str, Any]:
    """The status of a replica at work; `wait` if something keeps it from serving."""
    size, report = core.plan.bucket_us, core.report()
    said: dict[str, Any] = {
        "replica": core.plan.replica,
        "node": core.plan.replica.partition("@")[0],
        "state": core.state.name,
        "stable_until_us": core.stable * size,
        "frontier_us": core.inputs.sunion.frontier * size,
        "output": {
            "stream": report.stream, "state": report.state.name, "boundary_us": report.main_us, "fresh": report.fresh,
        },
        "fork": {"id": core.fork.id, "state": fork},
        "inputs": [
            {
                "stream": stream, "boundary_us": core.inputs.sunion.inputs[stream].main_us,
                "failing": upstream.failing,
                "reading": [f"{source.replica}/{source.lane.name.lower()}" for source in upstream.subscribed],
            }
            for stream, upstream in core.inputs.upstreams.items()
        ],
    }  # fmt: skip
    if checkpoints is not None:
        said["checkpoints"] = {**checkpoints._asdict(), "broken_goal": checkpoints.broken_goal}
    return said if wait is None else {**said, "waits_for": wait.kind, "why": wait.why}
