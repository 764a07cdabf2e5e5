"""What is explained, in words for a terminal: a block per node, a table of failures, a block per host."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.checkpoint.derive import Protection
from holdfast.explain.cost import ContractCost, HostCost
from holdfast.explain.facts import NODE_SAVES, is_host_here, missing
from holdfast.explain.failure import Effect, Kind, NodeEffect, Reading, Sight, SinkEffect
from holdfast.explain.operators import recovery
from holdfast.explain.promise import NodePromise
from holdfast.model.time import SECOND_US, duration_text
from holdfast.protocol.dpc.plan import Policy, Stabilise
from holdfast.protocol.dpc.states import StreamState

_LABEL = 11
_WIDTH = 118
_NEW_BUCKETS = {
    Policy.PROCESS: "at once, as soon as the living inputs have closed them",
    Policy.DELAY: "each as late as X allows",
    Policy.SUSPEND: "not at all",
}


def _time(us: int) -> str:
    """A duration as one reads it: 2.3s rather than 2300ms."""
    return f"{us / SECOND_US:g}s" if SECOND_US < us < 60 * SECOND_US else duration_text(us)


def operator_line(p: Protection) -> str:
    """One operator that stands by itself."""
    where = f" into {p.store}" if p.store else ""
    return (
        f"{p.operator} ({p.kind}, {p.state.value}): {p.policy} saves {p.saves}{where}; guarantee: {p.guarantee.value}"
    )


def node_block(promise: NodePromise) -> str:
    """One node: what it promises, line by line."""
    node = promise.node
    lines = [f"{node.name}: {', '.join(node.inputs)} → {node.output}"]
    for label, text in _node_lines(promise):
        lines += _wrapped(label, text)
    return "\n".join(lines)


def _node_lines(promise: NodePromise) -> Iterator[tuple[str, str]]:
    node, x = promise.node, _time(promise.node.max_delay_us)
    sizes = sorted(set(promise.buckets.values()))
    yield "buckets", f"of {' and '.join(map(_time, sizes))}; works in {_time(promise.bucket_us)}"
    yield "X", f"{x}: a failure that is over by then leaves no trace; {_beyond(promise)}"
    yield (
        "notices",
        (
            f"a producer that does not answer after {_time(promise.dead_us)}, one that stands still after "
            f"{_time(promise.silent_us)}, and reads on at another replica of it, if there is one"
        ),
    )
    if node.during_failure is not Policy.SUSPEND:
        yield "fork", _fork(promise)
        yield "meanwhile", f"new buckets: {_NEW_BUCKETS[node.during_failure]}; {_correcting(promise)}"
    if node.blocking:
        yield "blocking", f"without {' or '.join(node.blocking)} nothing comes out"
    yield "chain", _chain(promise)
    yield "replicas", _replicas(promise)
    for replica in promise.replicas:
        yield "", f"{replica.name} reads {', '.join(_order(producers) for producers in replica.reads.values())}"
    yield from _operator_lines(promise)
    yield "kept", _kept(promise)
    yield "costs", _costs(promise)
    for advice in promise.advice:
        yield "advice", advice


def _beyond(promise: NodePromise) -> str:
    node = promise.node
    if node.during_failure is Policy.SUSPEND:
        return "in a longer one nothing comes until it has healed (during_failure='suspend')"
    others = "" if len(node.inputs) > 1 else ", if tentative ones come in: without its only input there is nothing"
    return f"in a longer one tentative results begin {_time(node.max_delay_us)} after it began{others}"


def _fork(promise: NodePromise) -> str:
    if promise.kept_ready:
        return f"one is kept ready all the time, which may take {promise.node.warm:.0%} of the time"
    late = "in time" if not promise.late_us else f"{_time(promise.late_us)} too late for X"
    return (
        f"a second query, prepared when inputs that move with every bucket stand still for "
        f"{_time(promise.prepared_us)}, and ready about a second later: {late}"
    )


def _correcting(promise: NodePromise) -> str:
    node = promise.node
    how = "its own fork" if node.stabilise is Stabilise.FORK else "a peer that corrects later"
    same = node.during_stabilisation is node.during_failure
    return f"while it corrects {'likewise' if same else _NEW_BUCKETS[node.during_stabilisation]}, by {how}"


def _chain(promise: NodePromise) -> str:
    add = f"it adds a bucket ({_time(promise.bucket_us)}) and a batch to the usual latency"
    if promise.depth == 1:
        return f"reads sources only; {add}"
    return (
        f"is node {promise.depth} of its longest chain; {add}, which is {_time(promise.usual_us)} and {promise.depth} "
        f"batches by now, and nothing to what a failure adds: all nodes of a chain wait at the same time"
    )


def _replicas(promise: NodePromise) -> str:
    count = len(promise.replicas)
    if count > 1:
        return f"{count}, all computing; main is the same on each, byte for byte, so a reader changes unnoticed"
    asked = promise.node.replicas
    return "1" if asked == 1 else f"1 in one process; the {asked} that are asked for need a deployment"


def _order(producers: Sequence[str]) -> str:
    return producers[0] if len(producers) == 1 else f"{producers[0]} (else {', '.join(producers[1:])})"


def _operator_lines(promise: NodePromise) -> Iterator[tuple[str, str]]:
    operators = promise.operators
    if operators.unseen is not None:
        yield "operators", f"not known ({operators.unseen}); {NODE_SAVES}; guarantee: exact"
        return
    if operators.spark:
        yield "operators", " → ".join(operators.spark)
    elif not operators.own:
        yield "operators", "none: what comes in goes out"
    if operators.spark_state:
        back = "had back by starting the query at its last batch"
        yield "state", f"of {', '.join(operators.spark_state)}: {NODE_SAVES}; guarantee: exact; {back}"
    for p in operators.own:
        yield "state", f"of {operator_line(p)}; had back: {recovery(p)}"


def _kept(promise: NodePromise) -> str:
    node = promise.node
    output = "all output" if node.retain == "all" else "output until every reader has acknowledged it"
    bound = "" if node.capacity_us is None else f", at most {_time(node.capacity_us)} of it: then {node.full.value}"
    if node.convergent_us is None:
        return f"{output}{bound}; not convergent: its state may depend on all input, so none of it may be lost"
    return (
        f"{output}{bound}; convergent: its state depends on the last {_time(node.convergent_us)} of input, so "
        "it goes on behind a gap and says what its output lacks"
    )


def _costs(promise: NodePromise) -> str:
    each = "" if len(promise.replicas) == 1 else " for each replica"
    suspends = promise.node.during_failure is Policy.SUSPEND
    fork = "" if suspends else ", and as much again for its fork while it gives tentative results"
    mirrored = [f"{', '.join(one.mirrors)} for {one.name}" for one in promise.replicas if one.mirrors]
    disk = f"; on disk once more: {'; '.join(mirrored)}" if mirrored else ""
    return f"one query{each}{fork}{disk}"


def failure_rows(effects: Sequence[Effect]) -> list[tuple[str, str, str]]:
    """The table: what fails, whose readers, what they see. Who sees nothing is left out, unless all do."""
    rows: list[tuple[str, str, str]] = []
    for effect in effects:
        fails = failing_text(effect)
        seen: list[NodeEffect | SinkEffect] = [*effect.nodes, *effect.sinks]
        changed = [one for one in seen if one.sight is not Sight.NOTHING]
        for one in changed:
            who = one.node if isinstance(one, NodeEffect) else f"sink {one.sink}"
            rows.append((fails, who, sight_text(one, effect)))
        if not changed:
            rows.append((fails, "all", f"nothing{_beside(effect)}"))
    return rows


def failing_text(effect: Effect) -> str:
    """What fails."""
    return "the process" if is_host_here(effect) else effect.failure.text


def _beside(effect: Effect) -> str:
    """Replicas that the failure hits and nobody reads."""
    hit = [replica for node in effect.nodes for replica in node.replicas if replica.state is not StreamState.STABLE]
    down = [f"{replica.name} is gone" for replica in hit if replica.down]
    lacking = [f"{replica.name} lacks input" for replica in hit if not replica.down]
    return f": {', '.join((*down, *lacking))}, which nobody reads" if hit else ""


def sight_text(one: NodeEffect | SinkEffect, effect: Effect) -> str:
    """What the readers of a node, or a sink, see."""
    if isinstance(one, SinkEffect) and one.seen is None:
        return f"stands still with host {one.place.host}; goes on where its target is when that is back"
    seen = one.seen
    assert seen is not None
    if one.sight is Sight.NOTHING:
        return "nothing"
    if one.sight is Sight.SWITCH:
        return f"a switch from {seen.before} to {seen.now}; nothing is tentative"
    if one.sight is Sight.TENTATIVE:
        return f"tentative results after {_time(seen.begins_us)}{_without(one)}; corrected when it is back"
    if isinstance(one, SinkEffect) and seen.sight is Sight.TENTATIVE:
        return "nothing new: it takes stable rows only, and they come when it is back"
    return f"silence{_why(one, seen, effect)}; nothing is lost, results come when it is back"


def _without(one: NodeEffect | SinkEffect) -> str:
    gone = missing(one) if isinstance(one, NodeEffect) else ()
    return f", without {', '.join(gone)}" if gone else ""


def _why(one: NodeEffect | SinkEffect, seen: Reading, effect: Effect) -> str:
    if isinstance(one, SinkEffect):
        return ": it reaches no replica that brings anything"
    if all(replica.down for replica in one.replicas):
        only = "its only replica runs" if len(one.replicas) == 1 else "all its replicas run"
        return f": {only} there" if effect.failure.kind is Kind.HOST else ""
    gone = missing(one)
    return f": nothing comes of {', '.join(gone)}" if gone else ": it suspends its output in failures"


def failure_summary(effects: Sequence[Effect]) -> str:
    """Which single failures nobody can be kept from seeing."""
    silent = [failing_text(effect) for effect in effects if Sight.SILENCE in _sights(effect)]
    if silent:
        return f"Silent for some readers, whatever X is: {', '.join(silent)}."
    return "No single failure keeps results away for longer than X."


def _sights(effect: Effect) -> list[Sight]:
    return [*(node.sight for node in effect.nodes), *(sink.sight for sink in effect.sinks)]


def host_block(cost: HostCost) -> str:
    """One host: what it carries, and what that costs."""
    lines = [f"host {cost.host}"]
    for label, text in _host_lines(cost):
        lines += _wrapped(label, text)
    return "\n".join(lines)


def _host_lines(cost: HostCost) -> Iterator[tuple[str, str]]:
    for label, names in (("sources", cost.sources), ("replicas", cost.replicas), ("sinks", cost.sinks)):
        if names:
            yield label, ", ".join(names)
    if cost.replicas:
        ready = f", {len(cost.kept_ready)} of them forks that are kept ready" if cost.kept_ready else ""
        yield "queries", f"{cost.queries}{ready}"
        if cost.worst is not None:
            forks = "a fork" if len(cost.forks) == 1 else f"{len(cost.forks)} forks"
            yield "at worst", f"{forks} more ({', '.join(cost.forks)}), if {cost.worst.text} fails"
    for replica, streams in _by_second(cost.mirrors):
        yield "mirrors", f"{', '.join(streams)} for {replica}"
    for host, streams in _by_second(cost.sends):
        yield "sends", f"{', '.join(streams)} to {host}"
    if cost.replicas and cost.load is not None:
        yield "load", _load(cost)
    if cost.cost is not None:
        yield "cost", f"{cost.cost:.3f} a second in quiet times, by the cost function of its contracts"
    for contract in cost.contracts:
        yield "contract", _contract(contract)


def _by_second(pairs: Sequence[tuple[str, str]]) -> list[tuple[str, list[str]]]:
    """For each second, its firsts."""
    return [(one, [a for a, b in pairs if b == one]) for one in dict.fromkeys(b for _, b in pairs)]


def _load(cost: HostCost) -> str:
    worst = "" if cost.load_worst == cost.load else f", {cost.load_worst:.2f} in its worst failure"
    of = "" if cost.capacity is None else f", of {cost.capacity:g}"
    more = ": MORE THAN IT HAS; corrections and tentative results would come late" if cost.overloaded else ""
    return f"{cost.load:.2f} cores{worst}{of}{more}"


def _contract(one: ContractCost) -> str:
    contract = one.contract
    price = f"{contract.price_low:g}" if contract.fixed else f"{contract.price_low:g} to {contract.price_high:g}"
    if not one.buys:
        return f"from {contract.buyer} at {price}: takes up to {one.room:g} units more at the highest price"
    if not one.moves:
        return f"to {contract.seller} at {price}: nothing would move; carrying it costs less than the price"
    return (
        f"to {contract.seller} at {price}: {', '.join(one.moves)} would move; saves {one.saves:.3f} a second for "
        f"{one.price:.3f} at the lowest price"
    )


def _wrapped(label: str, text: str) -> list[str]:
    """The text beside its label, within the width."""
    lines, line = [], ""
    for word in text.split(" "):
        if line and len(line) + 1 + len(word) > _WIDTH - _LABEL - 2:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}" if line else word
    lines.append(line)
    return [f"  {label if not n else '':<{_LABEL}}{part}" for n, part in enumerate(lines)]
