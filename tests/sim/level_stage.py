"""A system of levels put on stage with real cores: the same graph, prices, loads and starting times."""

from __future__ import annotations

from benches.load_levels import D_US, PAUSE_US
from benches.load_topology import System

from holdfast.protocol.load.contract import Contract
from holdfast.protocol.load.cost import Levels
from holdfast.protocol.load.counter import AboveValuation, AtValuation
from holdfast.protocol.load.plan import ParticipantPlan
from holdfast.protocol.load.usage import Task, Usage
from holdfast.sim.load.world import Watcher, World


def stage(system: System, extra: int = 0) -> World:
    """Cores that have not started yet; `start` them in any order at time 0."""
    graph = system.graph
    names = [f"p{i}" for i in range(graph.nodes)]
    contracts: list[list[Contract]] = [[] for _ in names]
    for i, name in enumerate(names):
        for c in range(int(graph.starts[i]), int(graph.starts[i + 1])):
            j = int(graph.partners[c])
            low, high = float(system.price_low[c]), float(system.price_high[c])
            contract = Contract(f"{name}>{names[j]}", name, names[j], low, high, D_US)
            contracts[i].append(contract)
            contracts[j].append(contract)
    asking = AboveValuation(float(extra)) if extra else AtValuation()
    plans = [
        ParticipantPlan(
            name, Levels(), tuple(contracts[i]), interval_us=D_US, pause_us=PAUSE_US, asking=asking, returns=False,
            start_us=int(system.phase_us[i]),
        )
        for i, name in enumerate(names)
    ]  # fmt: skip
    tasks = {
        name: [Task(f"{name}.{k}", Usage(1.0)) for k in range(int(system.load[i]))] for i, name in enumerate(names)
    }
    return World(plans, tasks)


class Movements(Watcher):
    """Movements as (time in us, from, to, tasks), tasks that move together counted as one movement."""

    def __init__(self) -> None:
        self.found: list[tuple[int, int, int, int]] = []

    def on_move(self, now_us: int, source: str, to: str, lease_id: str, task: Task) -> None:
        """One task of perhaps several."""
        a, b = int(source[1:]), int(to[1:])
        if self.found and self.found[-1][:3] == (now_us, a, b):
            self.found[-1] = (now_us, a, b, self.found[-1][3] + 1)
        else:
            self.found.append((now_us, a, b, 1))
