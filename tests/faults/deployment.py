"""A deployment of real processes for fault tests: hosts, producers that can fall silent, and a client that records.

Rules:
1. Hosts are started as users start them (`holdfast host`), on free ports of loopback, each with a folder of its own.
   They are killed through the processes that we started, never by name.
2. Producers write to the folder of the host `src` from here, so that they outlive every host, as data sources do.
3. The client reads the output in the folder of its host, so that it too sees everything that a killed host left behind.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

import holdfast
from holdfast.cli.hosts import HostClient, HostStatus, ReplicaStatus
from holdfast.clock import now_us, pause
from holdfast.console.recording import Recording
from holdfast.host.client_subscriber import ClientSubscriber
from holdfast.host.connection import Connection
from holdfast.host.deployment import load_deployment
from holdfast.model.errors import PeerError
from holdfast.model.time import SECOND_US
from tests.spark.processes import REPOSITORY, environment, kill_tree

COLUMNS = "source string, bytes bigint"
_SEND_EVERY_US = 200_000
_ROWS = 20
_POLL_US = 20_000
#: Several JVMs share two cores here: none needs Java's second compiler, a collector with threads of its own, or to look
#: for new offsets a hundred times a second.
_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_SPARK = """
spark:
  spark.driver.extraJavaOptions: "{java}"
  spark.sql.shuffle.partitions: "1"
  spark.sql.streaming.pollingDelay: 50ms
  spark.driver.memory: 512m
"""


class Feed(threading.Thread):
    """A data source: sends a few tuples five times a second and promises, unless told not to, that none is late."""

    def __init__(self, stream: holdfast.Stream) -> None:
        super().__init__(name=stream.name, daemon=True)
        # The slack keeps the promises in our hands: none follows from the data.
        self._producer = stream.producer(id="feed", stime="stime", slack="1h")
        self._end = threading.Event()
        self.promising = True
        self.rows = _ROWS
        self.sent = 0
        self.sends: list[tuple[int, int, int]] = []
        """(stime, the first number, how many): row k has source k % 7 and k bytes."""

    def run(self) -> None:
        while not self._end.is_set():
            now, count = now_us(), self.rows
            stime = datetime.fromtimestamp(now / 1e6, UTC)
            numbers = range(self.sent, self.sent + count)
            self._producer.send_many([{"stime": stime, "source": f"s{k % 7}", "bytes": k} for k in numbers])
            self.sends.append((now, self.sent, count))
            self.sent += count
            if self.promising:
                self._producer.advance(now)
            pause(_SEND_EVERY_US)

    def end(self, *, stream: bool = True) -> None:
        """Send no more; end the stream as well, unless told not to."""
        self._end.set()
        if self.is_alive():
            self.join()
        self._producer.close(end=stream)


class Client(threading.Thread):
    """A subscriber who wants news and corrections, and writes down what comes when."""

    def __init__(self, subscriber: holdfast.Subscriber | ClientSubscriber, first_us: int) -> None:
        super().__init__(name="client", daemon=True)
        self._subscriber, self.first_us = subscriber, first_us
        self.recording = Recording(bucket_us=subscriber.definition.bucket_us)
        self.trouble: BaseException | None = None
        self._end = threading.Event()

    def run(self) -> None:
        try:
            while not self._subscriber.finished and not self._end.is_set():
                for batch in self._subscriber.poll():
                    self.recording.take(batch, now_us())
                pause(_POLL_US)
        except BaseException as error:
            self.trouble = error
        finally:
            self._subscriber.close()

    def reading(self) -> list[str]:
        """The hosts that are read, of a client over the network."""
        assert isinstance(self._subscriber, ClientSubscriber)
        return [source.partition("/")[0] for source in self._subscriber.reading()]

    def end(self) -> None:
        """Listen no more."""
        self._end.set()
        if self.is_alive():
            self.join()


class Hosts:
    """The processes of one deployment. `spark_hosts` run nodes; `src` holds the sources and runs none."""

    def __init__(
        self, folder: Path, app: str, bucket: str, sources: Sequence[str], nodes: dict[str, list[str]], *,
        plain: bool = False, java: str = "", **streams: Any,
    ) -> None:  # fmt: skip
        """`streams`: options of the source streams. `plain`: without Spark (`tests.load.plain_engine`). `java`: more
        options of the JVMs."""
        self.folder, self.bucket, self._plain = folder, bucket, plain
        names = list(dict.fromkeys(["src", *(host for hosts in nodes.values() for host in hosts)]))
        ports = free_ports(len(names))
        (folder / "app.py").write_text(app)
        lines = ["app: app.py", "hosts:"]
        lines += [f'  {n}: {{address: "127.0.0.1:{p}", root: {n}/}}' for n, p in zip(names, ports, strict=True)]
        lines += ["sources:", *(f"  {s}: src" for s in sources)]
        lines += ["nodes:", *(f"  {node}: [{', '.join(hosts)}]" for node, hosts in nodes.items())]
        self.file = folder / "net.yaml"
        self.file.write_text("\n".join(lines) + _SPARK.format(java=f"{_JAVA} {java}".strip()))
        self.deployment = load_deployment(self.file)
        self.deployment.make_token()
        self.names = tuple(names)
        self._processes: dict[str, subprocess.Popen[str]] = {}
        self._clients: list[Client] = []
        self._connections: list[Connection] = []
        self.feeds = {s: Feed(self.store("src").create(s, COLUMNS, bucket=bucket, **streams)) for s in sources}

    def store(self, host: str) -> holdfast.StreamStore:
        return holdfast.open(self.folder / host)

    def log(self, host: str) -> Path:
        return self.folder / f"{host}.log"

    # -- processes ---------------------------------------------------------------------------------------------------

    def start(self, *hosts: str, **variables: str) -> None:
        """Start these hosts, or all; as `holdfast up` does, without waiting."""
        for host in hosts or self.names:
            run = ["tests.load.plain_engine"] if self._plain else ["holdfast.cli.main", "host"]
            command = [sys.executable, "-m", *run, str(self.file), host]
            with self.log(host).open("a") as out:
                self._processes[host] = subprocess.Popen(
                    command, cwd=REPOSITORY, env={**environment(), "PYTHONUNBUFFERED": "1", **variables}, stdout=out,
                    stderr=out, text=True, start_new_session=True,
                )  # fmt: skip

    def kill(self, *hosts: str, with_java: bool = True) -> None:
        """SIGKILL for these hosts, or all: the process alone, or its JVM and workers as well."""
        for host in hosts or self.names:
            process = self._processes.pop(host)
            if with_java:
                kill_tree(process)
            else:
                process.kill()
                process.wait()

    def signal(self, host: str, number: int) -> None:
        """For the host's own process; its JVM does not notice."""
        self._processes[host].send_signal(number)

    def pid(self, host: str) -> int | None:
        """The host's own process, while there is one."""
        process = self._processes.get(host)
        return None if process is None else process.pid

    def died(self, host: str) -> None:
        """Wait until the host has died by itself."""
        self._processes.pop(host).wait(60)

    def end(self) -> None:
        """Nothing of it is left running, in whatever state it is."""
        for host in list(self._processes):
            self.kill(host)
        for client in self._clients:
            client.end()
        for connection in self._connections:
            connection.close()
        for feed in self.feeds.values():
            feed.end(stream=False)

    def listen(self, host: str, output: str) -> Client:
        """A client of a stream on that host, from now on."""
        subscriber = self.store(host).open(output).subscribe(start="live", tentative=True)
        return self._listen(Client(subscriber, subscriber.position_us))

    def listen_to_all(self, output: str, host: str) -> Client:
        """A client over the network, from what is complete on that host now; it reads from whomever it likes."""
        here = self.store(host).open(output)
        bucket = here.last(0)[0]
        hosts = holdfast.connect(self.file)
        self._connections.append(hosts)
        subscriber = hosts.subscribe(output, bucket=bucket, tentative=True)
        return self._listen(Client(subscriber, bucket * here.definition.bucket_us))

    def _listen(self, client: Client) -> Client:
        self._clients.append(client)
        client.start()
        return client

    # -- what they say -----------------------------------------------------------------------------------------------

    def client_of(self, host: str) -> HostClient:
        return HostClient(self.deployment.host(host), self.deployment.token())

    def status(self, host: str) -> HostStatus | None:
        """None while it does not answer."""
        try:
            return self.client_of(host).status()
        except PeerError:
            process = self._processes.get(host)
            assert process is None or process.poll() is None, f"{host} ended:\n{self.log(host).read_text()[-3000:]}"
            return None

    def replicas(self, host: str) -> tuple[ReplicaStatus, ...]:
        """Those that run there."""
        status = self.status(host)
        return () if status is None else status.replicas

    def replica(self, host: str) -> ReplicaStatus | None:
        """The one that runs there."""
        return next(iter(self.replicas(host)), None)

    def wait_until(self, state: str, *hosts: str, seconds: float = 120) -> None:
        def reached() -> bool:
            said = [self.replicas(host) for host in hosts]
            return all(said) and all(replica.state == state for replicas in said for replica in replicas)

        if wait_us(reached, seconds) is None:
            said = "\n".join(f"{host}: {self.replicas(host)}\n{self.log(host).read_text()[-1500:]}" for host in hosts)
            raise AssertionError(f"waited {seconds} s in vain for {hosts} to be {state}:\n{said}")

    # -- failures ----------------------------------------------------------------------------------------------------

    def cut(self, link: str, *told: str) -> None:
        """As `holdfast fail` does, without the time that a command takes to start."""
        for host in told:
            self.client_of(host).faults(cut=[link])

    def heal(self, link: str, *told: str) -> None:
        for host in told:
            self.client_of(host).faults(heal=[link])


def undisturbed(hosts: Hosts, outputs: dict[str, int]) -> dict[str, list[pa.RecordBatch]]:
    """The outputs of the same inputs without a failure, each from where a client began to listen."""
    root = hosts.folder / "undisturbed"
    command = [sys.executable, "-m", "tests.faults.undisturbed", str(hosts.file), str(root), hosts.bucket]
    log = hosts.folder / "undisturbed.log"
    with log.open("w") as out:
        done = subprocess.run(command, cwd=REPOSITORY, env=environment(), stdout=out, stderr=out, timeout=240)
    assert done.returncode == 0, log.read_text()[-3000:]
    found = {}
    for output, first_us in outputs.items():
        stream = holdfast.open(root).open(output)
        with stream.subscribe(bucket=first_us // stream.definition.bucket_us) as subscriber:
            found[output] = list(subscriber.poll())
    return found


def wait_us(condition: Callable[[], object], seconds: float, every_us: int = 500_000) -> int | None:
    """How long it took until the condition held; None if it never did. Asking a host costs it some milliseconds."""
    begun = now_us()
    while not condition():
        if now_us() - begun > seconds * SECOND_US:
            return None
        pause(every_us)
    return now_us() - begun


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for probe in sockets:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in sockets]
    finally:
        for probe in sockets:
            probe.close()
