"""Two or three participants whose hosts do what they are told at once: a stage for single sentences."""

from __future__ import annotations

from holdfast.protocol.load.contract import Contract
from holdfast.protocol.load.cost import Levels
from holdfast.protocol.load.messages import Message
from holdfast.protocol.load.plan import ParticipantPlan
from holdfast.protocol.load.usage import Task, Usage
from holdfast.sim.load.world import Network, Watcher, World

S = 1_000_000


def tasks(name: str, count: int, size: float = 1.0, **more) -> list[Task]:
    return [Task(f"{name}.{k}", Usage(size), **more) for k in range(count)]


def both_ways(*pairs: tuple[str, str], low: float, high: float, **clauses) -> list[Contract]:
    return [
        Contract(f"{buyer}>{seller}", buyer, seller, low, high, **clauses)
        for a, b in pairs
        for buyer, seller in ((a, b), (b, a))
    ]


class Talk(Watcher):
    """Everything that was said, in order."""

    def __init__(self) -> None:
        self.lines: list[tuple[int, str, str, Message]] = []
        self.moves: list[tuple[int, str, str]] = []
        self.returns: list[tuple[int, str, str]] = []

    def on_send(self, now_us, sender, to, message):
        self.lines.append((now_us, sender, to, message))

    def on_move(self, now_us, source, to, lease_id, task):
        self.moves.append((now_us, source, to))

    def on_return(self, now_us, source, to, lease_id, task):
        self.returns.append((now_us, source, to))

    def of(self, kind: type) -> list[tuple[int, str, str, Message]]:
        return [line for line in self.lines if isinstance(line[3], kind)]


class Scene:
    def __init__(self, contracts, loads, cost=None, latency_us=1000, **settings) -> None:
        names = sorted({name for c in contracts for name in (c.buyer, c.seller)})
        settings.setdefault("returns", False)
        plans = [
            ParticipantPlan(
                name, cost or Levels(), tuple(c for c in contracts if name in (c.buyer, c.seller)), start_us=i * 10_000,
                **settings,
            )
            for i, name in enumerate(names)
        ]  # fmt: skip
        given = {name: load if isinstance(load, list) else tasks(name, load) for name, load in loads.items()}
        self.world = World(plans, given)
        self.world.network = Network((latency_us, latency_us))
        self.talk = Talk()
        self.world.watchers.append(self.talk)
        for name in names:
            self.world.start(name)

    def run(self, seconds: float) -> Scene:
        self.world.run(round(seconds * S))
        return self

    @property
    def loads(self) -> dict[str, int]:
        return {name: len(host.running) for name, host in self.world.hosts.items()}

    def core(self, name: str):
        core = self.world.hosts[name].core
        assert core is not None
        return core
