"""A simulated replica: a core, a stable query with its checkpoint, and at most one fork.

Rules:
1. The stable query takes what it was given in batches; how the batches are cut depends on load, what a bucket contains
   does not. Output and checkpoint are committed together.
2. A fork takes the checkpoint of the last commit, starts after a while, processes exactly the parts it is given, and
   writes its own branch; nothing it does touches the checkpoint (S1).
3. A crash loses mirrors, forks and subscriptions; the next start finds output and checkpoint. Report and branch stay
   where local readers see them until then.
4. All inputs begin at bucket 0, and all replicas know that: a real one that has no state asks every input and waits
   for the last of them (`host.controller`).
5. A replica without its disk waits for a twin that serves, and takes over output and checkpoint as they stand there.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

from holdfast.protocol.dpc.effects import (
    Effects,
    ExtendFork,
    Part,
    SkipStable,
    Subscribe,
    TentativeBucket,
    Unsubscribe,
)
from holdfast.protocol.dpc.local import LocalReader
from holdfast.protocol.dpc.messages import AuthorisationDone, StreamReport
from holdfast.protocol.dpc.node import NodeCore
from holdfast.protocol.dpc.plan import NodePlan, Resume
from holdfast.protocol.dpc.signals import (
    Disconnected,
    ForkCompleted,
    ForkPrepared,
    InputAdvanced,
    InputGap,
    Lane,
    Received,
    Replanned,
    StableCompleted,
    Tick,
)
from holdfast.sim.faults import Setting
from holdfast.sim.hosts import Machine, Mirror, arrivals_of
from holdfast.sim.query import Query, Rows, State
from holdfast.sim.upstream_server import MainLog, Push, StreamServer
from holdfast.sim.world import World

#: The most buckets of one micro-batch, unless it takes longer than they do.
BATCH_MAX = 12
#: How often a replica that has lost its disk looks for a twin.
_LOOK_US = 50_000


class Branch:
    """A fork at work, and what it has written."""

    __slots__ = ("busy", "closed", "id", "queue", "rows", "state")

    def __init__(self, fork: int, root: int, state: State) -> None:
        self.id = fork
        self.state = state
        self.queue: list[TentativeBucket] = []
        self.busy = False
        self.rows: dict[int, tuple[Rows, float]] = {}
        self.closed = root


class ReplicaHost(Machine):
    """One replica of one node."""

    def __init__(self, world: World, plan: NodePlan, query: Query, setting: Setting, rng: Random) -> None:
        super().__init__(world, plan.replica)
        self.plan = self._whole = plan
        self.query = query
        self.size = plan.bucket_us
        self._batch_us = setting.batch_us
        self._cost_us = setting.bucket_cost_us
        self._start_us = setting.start_us
        self._batch_max = max(BATCH_MAX, 2 * setting.batch_us // self.size)
        self._rng = rng
        self.log = MainLog()
        #: The checkpoint: next bucket, state before it, and the bucket from which output is right again after a hole.
        self.next = 0
        self.query_state = query.empty
        self._right_from = 0
        self._last_fork = 0
        self.serving = StreamServer(
            world, plan.replica, plan.output.stream, self.size, self.log, self._branch_view, self._state_name
        )
        self.branch: Branch | None = None
        #: A branch on disk that no fork writes any more.
        self._left: Branch | None = None
        #: What was published, and since when the replica gives no sign of life (None: it does).
        self.report: StreamReport | None = None
        self._silent_us: int | None = None
        #: Readers on this machine.
        self.local: list[LocalReader] = []
        self._rows: set[int] = set()
        self.state = "DOWN"
        self.up = False
        self.lost = False
        self.start()

    def _state_name(self) -> str:
        return self.state

    def _branch_view(self) -> tuple[dict[int, tuple[Rows, float]], int]:
        return (self.branch.rows, self.branch.closed) if self.branch is not None else ({}, 0)

    @property
    def branch_on_disk(self) -> Branch | None:
        """What a reader on this machine finds. A branch is made with its first bucket."""
        return self.branch if self.branch is not None and self.branch.rows else self._left

    @property
    def renewed_us(self) -> int:
        """When the replica last gave a sign of life."""
        return self.world.now_us if self._silent_us is None else self._silent_us

    # Life -------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start, for the first time or again, from what is on disk."""
        self.life += 1
        if self.lost and not self._rebuilt():
            self.world.at(self.world.now_us + _LOOK_US, self._look_again, self.life)
            return
        super().start()
        now = self.world.now_us
        self._left = None
        resume = Resume(self.next, self.log.next * self.size, self.log.kept * self.size, self._last_fork)
        self.core = NodeCore(self.plan, resume, now)
        self.mirrors = {spec.stream: Mirror(self.next) for spec in self.plan.inputs}
        self._target = self.next
        self._busy = False
        self._skips = 0
        self._reading: set[tuple[str, str, Lane]] = set()
        self._timer_us = -1
        self._told_state("RECOVERING")
        self.world.at(now, self._begin, self.life)

    def _look_again(self, life: int) -> None:
        if life == self.life and not self.up:
            self.start()

    def _rebuilt(self) -> bool:
        """Rule 5."""
        for name in self.plan.peers:
            twin, ways = self.world.hosts[name], ((name, self.name), (self.name, name))
            cut = any(self.world.links[way].cuts for way in ways)
            if twin.up and not twin.paused and not twin.lost and twin.core.answers and not cut:
                self._take_over(twin)
                for hook in self.world.observers.rebuilt:
                    hook(self.world.now_us, self.name, self.next)
                return True
        return False

    def _take_over(self, twin: ReplicaHost) -> None:
        self.log.copy(twin.log)
        self.next, self.query_state, self._right_from = twin.next, twin.query_state, twin._right_from
        self.lost = False

    def lose_disk(self) -> None:
        """After a crash: nothing is left of it."""
        self.log.copy(MainLog())
        self._left = None
        self.next, self.query_state, self._right_from, self._last_fork = 0, self.query.empty, 0, 0
        self.lost = True

    def replan(self, gone: frozenset[str]) -> None:
        """Some replicas are not part of the deployment now; when it goes on it is told."""
        whole = self._whole
        inputs = tuple(replace(s, producers=tuple(p for p in s.producers if p not in gone)) for s in whole.inputs)
        output = replace(whole.output, readers=tuple(r for r in whole.output.readers if r not in gone))
        plan = replace(whole, inputs=inputs, output=output, peers=tuple(p for p in whole.peers if p not in gone))
        if plan != self.plan:
            self.plan = plan
            self._replanned(self.life)

    def _replanned(self, life: int) -> None:
        if life != self.life or not self.up:
            return  # It begins with the plan that holds then.
        if self.paused:
            self.world.at(self.world.now_us + 20_000, self._replanned, life)
        elif self.core.plan != self.plan:
            self._do(Replanned(self.plan))

    def _begin(self, life: int) -> None:
        if life == self.life and self.up and not self.paused:
            self._do(Tick())

    @property
    def table_rows(self) -> set[int]:
        """Rows of table 4.3 taken in all lives."""
        return self._rows.union(*(upstream.rows for upstream in self.core.inputs.upstreams.values()))

    def crash(self) -> None:
        """The process dies."""
        super().crash()
        self._rows = self.table_rows
        self._left, self.branch = self.branch_on_disk, None
        self._silent_us = self.renewed_us
        self.serving.clear()
        self._told_state("DOWN")

    def pause(self) -> None:
        """Stand still without dying."""
        self._silent_us = self.renewed_us
        super().pause()

    def resume(self) -> None:
        """Go on."""
        if self.paused == 1 and self.up:
            self._silent_us = None
        super().resume()

    def _told_state(self, after: str) -> None:
        before, self.state = self.state, after
        for hook in self.world.observers.state:
            hook(self.world.now_us, self.name, before, after)

    # What comes in ----------------------------------------------------------------------------------------------

    def receive(self, sender: str, payload: Any) -> None:
        """Tuples, messages, and the wishes of readers."""
        if isinstance(payload, Push):
            self._push(sender, payload)
        elif isinstance(payload, Subscribe):
            if self.core.answers:
                self.serving.subscribe(sender, payload)
        elif isinstance(payload, Unsubscribe):
            self.serving.unsubscribe(sender, payload)
        else:
            if isinstance(payload, AuthorisationDone):
                for hook in self.world.observers.heard:
                    hook(self.world.now_us, self.name, sender, payload)
            self._do(Received(sender, payload))

    def _push(self, sender: str, push: Push) -> None:
        if (push.stream, sender, push.lane) not in self._reading:
            return
        mirror = self.mirrors[push.stream]
        if push.gap > mirror.next:
            self._do(InputGap(push.stream, push.gap * self.size))
        closed = mirror.take(push)
        self._do(InputAdvanced(push.stream, sender, push.lane, closed * self.size, arrivals_of(push)))

    def disconnected(self, peer: str) -> None:
        """Tell the core."""
        self._do(Disconnected(peer))

    def wake(self, life: int) -> None:
        """Tell the core what time it is."""
        if life == self.life and self.up and not self.paused and self.world.now_us >= self._timer_us:
            self._do(Tick())

    # What the core wants ----------------------------------------------------------------------------------------

    def _do(self, signal: Any) -> None:
        world = self.world
        effects: Effects = self.core.handle(signal, world.now_us)
        if effects.state.name != self.state:
            self._told_state(effects.state.name)
        if effects.stop_fork is not None:
            self._fork_fact("stop", effects.stop_fork)
            if effects.stop_fork.drop_branch or self.branch is None:
                self.branch = None
            else:
                self.branch.queue.clear()
            if effects.stop_fork.drop_branch:
                self._left = None
        if effects.skip_stable is not None:
            self._skip(effects.skip_stable)
        if effects.read_stable is not None:
            self._target = effects.read_stable.upto
            self._read()
        if effects.prepare_fork is not None:
            self._last_fork = effects.prepare_fork.fork
            self._fork_fact("prepare", effects.prepare_fork)
            branch = Branch(self._last_fork, self.next, self.query_state)
            world.at(world.now_us + self._rng.randrange(*self._start_us), self._prepared, branch, self.life)
        if effects.extend_fork is not None:
            self._extend(effects.extend_fork)
        for gone in effects.unsubscribe:
            self._reading.discard((gone.stream, gone.replica, gone.lane))
            world.send(self.name, gone.replica, gone)
        for new in effects.subscribe:
            self._reading.add((new.stream, new.replica, new.lane))
            world.send(self.name, new.replica, new)
        if effects.publish is not None:
            self.report, self._silent_us = effects.publish, None
        if effects.truncate is not None:
            for hook in world.observers.truncate:
                hook(world.now_us, self.name, effects.truncate.upto_us, effects.truncate.lost_us)
            unread = [reader.sequence.next for reader in self.local]
            self.log.truncate(min([effects.truncate.upto_us // self.size, *unread]))
        for send in effects.send:
            self.say(send.to, send.message, self.state)
        if effects.wake_us != self._timer_us:
            self._timer_us = effects.wake_us
            world.at(self._timer_us, self.wake, self.life)

    def _fork_fact(self, what: str, detail: Any) -> None:
        for hook in self.world.observers.fork:
            hook(self.world.now_us, self.name, what, detail)

    # The stable query -------------------------------------------------------------------------------------------

    def _read(self) -> None:
        if self._busy or self.next >= self._target:
            return
        self._busy = True
        count = min(self._target - self.next, self._batch_max)
        cost = self._batch_us + count * self._cost_us + self._rng.randrange(8_000)
        self.world.at(self.world.now_us + cost, self._commit, count, self._skips, self.life)

    def _commit(self, count: int, skips: int, life: int) -> None:
        if life != self.life:
            return
        if self.paused or self.hung:
            self.world.at(self.world.now_us + 20_000, self._commit, count, skips, life)
            return
        self._busy = False
        if skips != self._skips:
            self._read()
            return
        now = self.world.now_us
        for _ in range(count):
            inputs = [mirror.have.get(self.next) for mirror in self.mirrors.values()]
            self.query_state, rows = self.query.apply(self.query_state, self.next, [r or () for r in inputs])
            if self.next >= self._right_from:
                for hook in self.world.observers.commit:
                    hook(now, self.name, self.next, inputs, rows, self.query_state)
                self.log.skip(self.next)
                self.log.append(rows)
            self.next += 1
        for mirror in self.mirrors.values():
            mirror.forget(self.core.needed_from)
        self._do(StableCompleted(self.next, self.log.next * self.size))
        self.serving.flush()
        self._read()

    def _skip(self, order: SkipStable) -> None:
        self._skips += 1
        for hook in self.world.observers.hole:
            hook(self.world.now_us, self.name, self.next, order.stable_from)
        self.next = self._target = order.to
        self.query_state = self.query.empty
        self._right_from = order.stable_from

    # The fork ---------------------------------------------------------------------------------------------------

    def _prepared(self, branch: Branch, life: int) -> None:
        if life != self.life or branch.id != self.core.fork.id:
            return
        if self.paused:
            self.world.at(self.world.now_us + 20_000, self._prepared, branch, life)
            return
        self._left, self.branch = self.branch_on_disk, branch
        prepared = ForkPrepared(branch.id, branch.closed)
        self._fork_fact("ready", prepared)
        self._do(prepared)

    def _extend(self, order: ExtendFork) -> None:
        self._fork_fact("extend", order)
        if self.branch is not None and self.branch.id == order.fork:
            self.branch.queue.extend(order.buckets)
            self._run_fork()

    def _run_fork(self) -> None:
        branch = self.branch
        if branch is None or branch.busy or not branch.queue:
            return
        branch.busy = True
        count = min(len(branch.queue), self._batch_max)
        cost = self._batch_us + count * self._cost_us + self._rng.randrange(8_000)
        self.world.at(self.world.now_us + cost, self._forked, branch, count, self.life)

    def _forked(self, branch: Branch, count: int, life: int) -> None:
        if life != self.life or branch is not self.branch:
            return
        if self.paused or self.hung:
            self.world.at(self.world.now_us + 20_000, self._forked, branch, count, life)
            return
        branch.busy = False
        given, branch.queue = branch.queue[:count], branch.queue[count:]
        for item in given:
            inputs = [self._part(item.bucket, part) for part in item.parts]
            branch.state, rows = self.query.apply(branch.state, item.bucket, inputs)
            if item.emit:
                branch.rows[item.bucket] = (rows, item.worth)
                for hook in self.world.observers.branch:
                    hook(self.world.now_us, self.name, branch.id, item.bucket, inputs, rows)
            branch.closed = item.bucket + 1
        if given:
            self._do(ForkCompleted(branch.id, branch.closed))
            self.serving.flush()
        self._run_fork()

    def _part(self, bucket: int, part: Part) -> Rows:
        if part.lane is None:
            return ()
        mirror = self.mirrors[part.stream]
        rows = (mirror.have if part.lane == Lane.MAIN else mirror.fresh).get(bucket)
        assert rows is not None, f"{self.name} was told to read bucket {bucket} as {part}, which is not there"
        return rows if part.closed else rows[: part.tuples]
