"""Failures one after the other in a deployment that runs, each judged by what its clients saw (D1, D3, D4, D5).

Rules:
1. The delay that a failure adds is what it adds to the latency of the calm moments just before it, on the machine as it
   is at that time. A slow machine makes both slow, and no test is skipped for it.
2. A failure is over when every client holds stable results only and every replica is STABLE.
3. One deployment serves several tests, because starting JVMs takes longer than most failures. When a test has failed,
   the next one gets a new deployment. At the end of the last one everything that clients got is compared with a run
   without failures.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from holdfast.clock import now_us, pause
from holdfast.console.verdict import all_corrected, none_after_done, stable_equal
from holdfast.model.time import SECOND_US
from holdfast.model.tuples import TupleType
from tests.faults.deployment import Client, Hosts, undisturbed, wait_us

X_US = 4 * SECOND_US
#: The first batches of a new JVM are several times slower than the rest and would be taken for normal.
WARM_UP_US = 6 * SECOND_US
#: Calm before a failure: enough for some results of every window.
CALM_US = 4 * SECOND_US
#: Starting a JVM beside two that work takes a minute on a busy machine; nobody is judged by how long that takes.
SETTLED_S_MAX, STARTED_S_MAX = 150, 400


@dataclass
class Outcome:
    """One failure, as the clients saw it."""

    what: str
    normal_us: dict[str, int]
    cut_us: int = 0
    healed_us: int = 0
    settled_us: int = 0
    added_us: dict[str, int] = field(default_factory=dict)
    tentative: dict[str, int] = field(default_factory=dict)
    undos: dict[str, int] = field(default_factory=dict)
    corrections: dict[str, int] = field(default_factory=dict)
    """How many REC_DONEs came: one for each stretch of tentative results."""
    suspicions: int = 0
    """Entries into UP_FAILURE and forks started in the calm before it: of what had not failed."""

    def __str__(self) -> str:
        settled = f"settled after {(self.settled_us - self.healed_us) / 1e6:.1f} s"
        parts = [
            f"{stream}: added {'-' if stream not in self.added_us else f'{self.added_us[stream] / 1e6:.2f} s'} to"
            f" {normal / 1e6:.2f} s, {self.tentative[stream]} tentative, {self.undos[stream]} UNDOs,"
            f" {self.corrections[stream]} corrections"
            for stream, normal in self.normal_us.items()
        ]
        return f"{self.what}: {'; '.join(parts)}; {settled}; {self.suspicions} suspicions in the calm before"


class Trial:
    """A deployment that runs, and clients that listen. The first of them is the one that most failures are about."""

    def __init__(
        self, hosts: Hosts, node_hosts: tuple[str, ...], listen: Callable[[Hosts], dict[str, Client]],
        delay_us: int = X_US,
    ) -> None:  # fmt: skip
        self.hosts, self._node_hosts, self._delay_us = hosts, node_hosts, delay_us
        try:
            for feed in hosts.feeds.values():
                feed.start()
            hosts.start()
            hosts.wait_until("STABLE", *node_hosts, seconds=STARTED_S_MAX)
            self.clients = listen(hosts)
        except BaseException:
            hosts.end()
            raise
        pause(WARM_UP_US)

    @contextlib.contextmanager
    def failure(self, what: str, *, available: bool = True) -> Iterator[Outcome]:
        """Something fails in the block and is healed when it ends; then all is waited for until it is as before.

        `available`: there is an input and a replica left, so that new results have to be on time (D5)."""
        suspicions = self._suspicions()
        outcome = Outcome(what, self._calm_us())
        outcome.suspicions = self._suspicions() - suspicions
        before = {stream: client.recording.tentative for stream, client in self.clients.items()}
        outcome.cut_us = self._mark(f"cut {what}")
        yield outcome
        outcome.healed_us = self._mark("healed")
        found = wait_us(self._as_before, SETTLED_S_MAX)
        outcome.settled_us = now_us()
        for stream, client in self.clients.items():
            outcome.tentative[stream] = client.recording.tentative - before[stream]
            controls = [c for c in client.recording.controls if c.wall_us >= outcome.cut_us]
            outcome.undos[stream] = sum(c.type is TupleType.UNDO for c in controls)
            outcome.corrections[stream] = len(controls) - outcome.undos[stream]
            latency = client.recording.latency(outcome.cut_us, outcome.settled_us)
            if available and latency is not None:
                outcome.added_us[stream] = max(0, latency.us_max - outcome.normal_us[stream])
        print(outcome, flush=True)
        self._no_trouble()
        assert found is not None, f"after {SETTLED_S_MAX} s: {self._states()}"
        late = [added for added in outcome.added_us.values() if added >= self._delay_us]
        assert not late, f"D5: a failure adds less than X; {outcome}"

    def _calm_us(self) -> dict[str, int]:
        """The largest latency while nothing fails, now, for each client (rule 1)."""
        since = now_us()
        pause(max(CALM_US, *(3 * client.recording.bucket_us for client in self.clients.values())))
        self._no_trouble()
        calm = {stream: client.recording.latency(since) for stream, client in self.clients.items()}
        assert None not in calm.values(), f"nothing came although nothing had failed: {self._states()}"
        return {stream: latency.us_max for stream, latency in calm.items() if latency is not None}

    def _suspicions(self) -> int:
        """How often replicas went into UP_FAILURE so far, and how many forks were started."""
        count = 0
        for host in self._node_hosts:
            count += self.hosts.log(host).read_text().count("UP_FAILURE after")
            count += sum(int(replica.fork.id or 0) for replica in self.hosts.replicas(host) if replica.fork is not None)
        return count

    def _mark(self, text: str) -> int:
        now = now_us()
        for client in self.clients.values():
            client.recording.mark(now, text)
        return now

    def _as_before(self) -> bool:
        if any(client.trouble is not None for client in self.clients.values()):
            return True
        return all(state == "STABLE" for state in self._states().values())

    def _states(self) -> dict[str, str | None]:
        states: dict[str, str | None] = {}
        for host in self._node_hosts:
            replicas = self.hosts.replicas(host)
            states |= {replica.replica: replica.state for replica in replicas}
            if not replicas:
                states[host] = None
        return states | {f"client of {stream}": client.recording.state for stream, client in self.clients.items()}

    def _no_trouble(self) -> None:
        for client in self.clients.values():
            assert client.trouble is None, client.trouble

    def finish(self) -> None:
        """The sources end, and so does everything; what was written stays."""
        pause(2 * SECOND_US)
        for feed in self.hosts.feeds.values():
            feed.end()
        for client in self.clients.values():
            client.join(60)
            assert not client.is_alive(), f"the end of the sources did not reach the client: {self._states()}"
        self._no_trouble()
        self.hosts.end()

    def end(self) -> None:
        """Let it finish; what the clients got is compared with what they should have got."""
        self.finish()
        references = undisturbed(self.hosts, {stream: client.first_us for stream, client in self.clients.items()})
        for stream, client in self.clients.items():
            checks = [
                stable_equal(client.recording, references[stream]), all_corrected(client.recording),
                none_after_done(client.recording),
            ]  # fmt: skip
            for check in checks:
                said = "pass" if check.passed else "FAIL"
                print(f"{said} {stream}: {check.name} | {check.measured} | {check.required}", flush=True)
            assert all(check.passed for check in checks), [c for c in checks if not c.passed]


class Deployments:
    """The trial of a module: made when it is first asked for, and made anew after a test that failed (rule 3)."""

    def __init__(self, make: Callable[[], Trial]) -> None:
        self._make = make
        self._trial: Trial | None = None

    @contextlib.contextmanager
    def trial(self) -> Iterator[Trial]:
        """For one test."""
        if self._trial is None:
            self._trial = self._make()
        try:
            yield self._trial
        except BaseException:
            self.drop()
            raise

    def end(self) -> None:
        """Judge what all tests did to it."""
        try:
            if self._trial is not None:
                self._trial.end()
        finally:
            self.drop()

    def drop(self) -> None:
        """Nothing of it is left running."""
        if self._trial is not None:
            self._trial.hosts.end()
            self._trial = None
