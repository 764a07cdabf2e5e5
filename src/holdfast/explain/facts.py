"""What is explained, as plain values for programs: each function gives one object of `--json`."""

from __future__ import annotations

from typing import Any

from holdfast.checkpoint.derive import Protection
from holdfast.checkpoint.policy import Guarantee
from holdfast.explain.cost import ContractCost, HostCost
from holdfast.explain.failure import Effect, Kind, NodeEffect, Sight, SinkEffect
from holdfast.explain.operators import recovery
from holdfast.explain.promise import NodePromise
from holdfast.host.catalog import HERE
from holdfast.model.time import duration_text

#: Operators of Holdfast's own inside it say for themselves what protects them.
NODE_SAVES = "Spark saves its state with every batch, in the checkpoint below its host's root"


def node_facts(promise: NodePromise) -> dict[str, Any]:
    """One node."""
    node = promise.node
    return {
        "node": node.name,
        "inputs": list(node.inputs),
        "output": node.output,
        "replicas": max(node.replicas, len(promise.replicas)) if _embedded(promise) else len(promise.replicas),
        "max_delay": duration_text(node.max_delay_us),
        "saves": NODE_SAVES,
        "guarantee": Guarantee.EXACT.value,
        "bucket": duration_text(promise.bucket_us),
        "depth": promise.depth,
        "buckets_on_the_way": duration_text(promise.usual_us),
        "tentative_after": None if node.during_failure.value == "suspend" else duration_text(node.max_delay_us),
        "dead_after": duration_text(promise.dead_us),
        "doubted_after": duration_text(promise.silent_us),
        "fork_prepared_after": duration_text(promise.prepared_us),
        "fork_ready_after": "0s" if promise.kept_ready else duration_text(promise.ready_us),
        "fork_kept_ready": promise.kept_ready,
        "late_by": duration_text(promise.late_us) if promise.late_us else None,
        "blocking": list(node.blocking),
        "during_failure": node.during_failure.value,
        "during_stabilisation": node.during_stabilisation.value,
        "stabilise": node.stabilise.value,
        "convergent": None if node.convergent_us is None else duration_text(node.convergent_us),
        "retain": node.retain,
        "runs": [
            {
                "replica": one.name,
                "host": one.host,
                "reads": {stream: list(producers) for stream, producers in one.reads.items()},
                "mirrors": list(one.mirrors),
            }
            for one in promise.replicas
        ],
        "operators": {
            "spark": list(promise.operators.spark),
            "spark_state": list(promise.operators.spark_state),
            "own": [operator_facts(protection) for protection in promise.operators.own],
            "unseen": promise.operators.unseen,
        },
        "advice": list(promise.advice),
    }


def _embedded(promise: NodePromise) -> bool:
    return [replica.host for replica in promise.replicas] == [HERE]


def operator_facts(p: Protection) -> dict[str, Any]:
    """One operator."""
    return {"operator": p.operator, "kind": p.kind, "state": p.state.value, "policy": p.policy, "saves": p.saves,
            "guarantee": p.guarantee.value, "store": p.store, "recovery": recovery(p)}  # fmt: skip


def failure_facts(effect: Effect) -> dict[str, Any]:
    """One failure, and what it does to every node and sink."""
    return {
        "failure": effect.failure.text,
        "kind": effect.failure.kind.value,
        "names": list(effect.failure.names),
        "nodes": {node.node: _seen(node) for node in effect.nodes},
        "sinks": {sink.sink: _seen(sink) for sink in effect.sinks},
    }


def _seen(one: NodeEffect | SinkEffect) -> dict[str, Any]:
    seen = one.seen
    facts: dict[str, Any] = {
        "sees": one.sight.value,
        "read_before": None if seen is None else seen.before,
        "reads": None if seen is None else seen.now,
        "after": duration_text(seen.begins_us) if seen is not None and one.sight is Sight.TENTATIVE else None,
    }
    if isinstance(one, NodeEffect):
        facts["without"] = list(missing(one))
        facts["replicas"] = {r.name: "down" if r.down else r.state.name for r in one.replicas}
    return facts


def missing(node: NodeEffect) -> tuple[str, ...]:
    """The inputs that no replica of the node gets, which is what its readers lack."""
    up = [set(replica.missing) for replica in node.replicas if not replica.down]
    return tuple(sorted(set.intersection(*up))) if up else ()


def host_facts(cost: HostCost) -> dict[str, Any]:
    """One host."""
    return {
        "host": cost.host,
        "sources": list(cost.sources),
        "replicas": list(cost.replicas),
        "sinks": list(cost.sinks),
        "queries": cost.queries,
        "forks_kept_ready": list(cost.kept_ready),
        "forks_at_worst": list(cost.forks),
        "worst": None if cost.worst is None else cost.worst.text,
        "mirrors": [{"stream": stream, "for": replica} for stream, replica in cost.mirrors],
        "sends": [{"stream": stream, "to": host} for stream, host in cost.sends],
        "load": cost.load,
        "load_at_worst": cost.load_worst,
        "capacity": cost.capacity,
        "overloaded_at_worst": cost.overloaded,
        "cost": cost.cost,
        "contracts": [_contract(contract) for contract in cost.contracts],
    }


def _contract(one: ContractCost) -> dict[str, Any]:
    contract = one.contract
    facts: dict[str, Any] = {"with": contract.seller if one.buys else contract.buyer,
                             "role": "buyer" if one.buys else "seller",
                             "price": [contract.price_low, contract.price_high],
                             "period": duration_text(contract.period_us)}  # fmt: skip
    if one.buys:
        return {**facts, "would_move": list(one.moves), "pays": one.price, "saves": one.saves}
    return {**facts, "room": one.room}


def is_host_here(effect: Effect) -> bool:
    """Whether the failure is the end of the only process."""
    return effect.failure.kind is Kind.HOST and effect.failure.names == (HERE,)
