"""A stage for one core: time moves by hand, producers answer as told, and effects are kept for the audience."""

from __future__ import annotations

from holdfast.protocol.dpc.effects import Effects, ExtendFork
from holdfast.protocol.dpc.messages import (
    AuthorisationReply,
    AuthorisationRequest,
    KeepaliveReply,
    KeepaliveRequest,
    Message,
    StreamReport,
)
from holdfast.protocol.dpc.node import NodeCore
from holdfast.protocol.dpc.plan import InputPlan, NodePlan, OutputPlan, Resume
from holdfast.protocol.dpc.signals import (
    Arrival,
    ForkCompleted,
    ForkPrepared,
    InputAdvanced,
    Lane,
    Received,
    Signal,
    StableCompleted,
    Tick,
)
from holdfast.protocol.dpc.states import NodeState, StreamState

SECOND = 1_000_000
BUCKET = 100_000


def plan(inputs: dict[str, tuple[str, ...]], **changes: object) -> NodePlan:
    """A plan for replica 'a' with peer 'b', buckets of 100 ms and a delay of 1 s."""
    specs = changes.pop("specs", None) or tuple(InputPlan(stream, producers) for stream, producers in inputs.items())
    output = changes.pop("output", None) or OutputPlan("out", tuple(inputs), ("reader",))
    known: dict[str, object] = {"peers": ("b",), "bucket_us": BUCKET, "delay_us": SECOND}
    return NodePlan("a", specs, output, **(known | changes))  # type: ignore[arg-type]


class Scene:
    """Drives one `NodeCore`."""

    def __init__(self, what: NodePlan, resume: Resume | None = None) -> None:
        self.plan = what
        self.now = 0
        self.core = NodeCore(what, resume or Resume(0, 0, 0), 0)
        self.log: list[Effects] = []
        self.said: dict[str, StreamReport] = {}
        self.tell(Tick())

    def tell(self, signal: Signal) -> Effects:
        effects = self.core.handle(signal, self.now)
        self.log.append(effects)
        return effects

    @property
    def state(self) -> NodeState:
        return self.core.state

    # The producers

    def says(self, replica: str, stream: str, state: StreamState, main: int, fresh: bool = False) -> Effects:
        """From now on the replica answers every request like this."""
        self.said[replica] = StreamReport(stream, state, main * BUCKET, fresh)
        return self.tell(Received(replica, KeepaliveReply((self.said[replica],))))

    def dies(self, replica: str) -> None:
        del self.said[replica]

    def main(self, stream: str, upto: int, replica: str | None = None, tuples: int = 10) -> Effects:
        """Complete buckets below `upto` have arrived on main."""
        intake = self.core.inputs.sunion.inputs[stream]
        arrivals = tuple(Arrival(bucket, tuples) for bucket in range(intake.closed, upto))
        return self.tell(InputAdvanced(stream, replica or stream, Lane.MAIN, upto * BUCKET, arrivals))

    def branch(self, stream: str, replica: str, buckets: range, worth: float = 0.5) -> Effects:
        """Tentative buckets have arrived."""
        arrivals = tuple(Arrival(bucket, 10, worth) for bucket in buckets)
        return self.tell(InputAdvanced(stream, replica, Lane.BRANCH, buckets.stop * BUCKET, arrivals))

    # Time

    def until(self, now: int) -> list[Effects]:
        """Let time pass; whoever answers, answers; ticks come when asked for."""
        seen: list[Effects] = []
        while self.log[-1].wake_us <= now:
            self.now = max(self.now, self.log[-1].wake_us)
            seen.append(self.tell(Tick()))
            for send in seen[-1].send:
                if isinstance(send.message, KeepaliveRequest) and send.to in self.said:
                    seen.append(self.tell(Received(send.to, KeepaliveReply((self.said[send.to],)))))
        self.now = now
        return seen

    # The host

    def commit(self) -> Effects:
        """The stable query does all it may."""
        upto = self.core._ordered
        return self.tell(StableCompleted(upto, upto * BUCKET))

    def prepared(self) -> Effects:
        """The host has started the fork from the last commit."""
        return self.tell(ForkPrepared(self.core.fork.id, self.core.stable))

    def forked(self) -> Effects:
        """The fork has done all it was given."""
        return self.tell(ForkCompleted(self.core.fork.id, self.core.fork.next))

    def grants(self, peer: str, asked_us: int | None = None) -> Effects:
        """The peer says yes, to our last request unless another is named."""
        return self.hear(peer, AuthorisationReply(True, self.asked() if asked_us is None else asked_us))

    def asked(self) -> int:
        """The name of our last request for authorisation."""
        return [m.asked_us for _, m in sent(self.log, AuthorisationRequest)][-1]  # type: ignore[union-attr]

    def hear(self, sender: str, message: Message) -> Effects:
        return self.tell(Received(sender, message))


def extends(effects: list[Effects]) -> list[ExtendFork]:
    """What forks were given."""
    return [e.extend_fork for e in effects if e.extend_fork is not None]


def sent(effects: list[Effects] | Effects, kind: type) -> list[tuple[str, Message]]:
    """Messages of one kind, with their addressees."""
    many = effects if isinstance(effects, list) else [effects]
    return [(s.to, s.message) for e in many for s in e.send if isinstance(s.message, kind)]


def two_inputs(**changes: object) -> Scene:
    """A node with inputs x and y, each from one source of the same name; STABLE, level at bucket 10 at 1 s."""
    scene = Scene(plan({"x": ("x",), "y": ("y",)}, **changes))
    run_to(scene, 10)
    assert scene.state == NodeState.STABLE
    return scene


def run_to(scene: Scene, upto: int) -> None:
    """Normal operation: bucket b arrives complete at its end."""
    for bucket in range(scene.core.stable + 1, upto + 1):
        scene.until(bucket * BUCKET)
        for spec in scene.plan.inputs:
            for replica in spec.producers:
                scene.says(replica, spec.stream, StreamState.STABLE, bucket)
            scene.main(spec.stream, bucket, spec.producers[0])
        scene.commit()


def one_stream(**changes: object) -> Scene:
    """A node with one input s from replicas p and q; STABLE, level at bucket 10 at 1 s."""
    scene = Scene(plan({"s": ("p", "q")}, **changes))
    run_to(scene, 10)
    assert scene.state == NodeState.STABLE
    return scene


def fail_x(scene: Scene, upto_bucket: int, ready: bool = True) -> list[Effects]:
    """Source x is silent from bucket 10 on while y goes on; the fork is prepared when asked for."""
    scene.said.pop("x", None)
    seen: list[Effects] = []
    for bucket in range(11, upto_bucket + 1):
        seen += scene.until(bucket * BUCKET)
        scene.said["y"] = StreamReport("y", StreamState.STABLE, bucket * BUCKET, False)
        seen.append(scene.main("y", bucket))
        if ready and scene.log[-1].prepare_fork is None and scene.core.fork.state.name == "PREPARING":
            seen.append(scene.prepared())
    return seen
