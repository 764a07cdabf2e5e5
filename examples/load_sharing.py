"""Three owners in a row, one of them with too much to do: how load finds its way (docs/load-sharing.md).

python examples/load_sharing.py [picture.svg]
"""

from __future__ import annotations

import sys

from holdfast.protocol.load.contract import Contract
from holdfast.protocol.load.cost import Levels
from holdfast.protocol.load.plan import ParticipantPlan
from holdfast.protocol.load.usage import Task, Usage
from holdfast.sim.load.world import Network, World

#: Each can carry ten tasks well: the eleventh would cost more than 10. Anna and Carl have no contract with each other.
LOADS = {"anna": 18, "ben": 9, "carl": 0}
PAIRS = (("anna", "ben"), ("ben", "anna"), ("ben", "carl"), ("carl", "ben"))


def main() -> None:
    contracts = [Contract(f"{a} to {b}", a, b, price_low=9, price_high=10) for a, b in PAIRS]
    plans = [
        ParticipantPlan(name, Levels(), tuple(c for c in contracts if name in (c.buyer, c.seller)), returns=False,
                        start_us=i * 100_000)
        for i, name in enumerate(LOADS)
    ]  # fmt: skip
    tasks = {name: [Task(f"{name}{k}", Usage(1.0)) for k in range(count)] for name, count in LOADS.items()}
    world = World(plans, tasks)
    world.network = Network((1000, 3000))
    for name in LOADS:
        world.start(name)
    history = [list(LOADS.values())]
    for second in range(1, 11):
        world.run(second * 1_000_000)
        history.append([len(host.running) for host in world.hosts.values()])
        print(f"{second:3} s  " + "  ".join(f"{n} {c}" for n, c in zip(LOADS, history[-1], strict=True)))
    for name, host in world.hosts.items():
        assert host.core is not None
        owed = {p: host.core.ledger.balance(p) / 1e6 for p in LOADS if host.core.ledger.balance(p)}
        print(f"{name} is owed {owed}")
    if len(sys.argv) > 1:
        from benches.figure import Chart

        chart = Chart("Load of three participants in a row", "seconds", "tasks")
        for i, name in enumerate(LOADS):
            chart.line(name, list(range(11)), [row[i] for row in history])
        chart.line("capacity", [0, 10], [10, 10], dashed=True)
        with open(sys.argv[1], "w") as picture:
            picture.write(chart.svg())


if __name__ == "__main__":
    main()
