"""Participants as real processes that share no folder: each with its own deployment, contracts and streams.

Rules:
1. Hosts are started as users start them (`holdfast host`), on free ports of loopback, and killed through the processes
   that we started.
2. Data sources write to the folder of their host from here, so that they outlive every host.
3. What is expected comes from the inputs by plain Python: windows of a second, counted by hand.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import holdfast
from holdfast.cli.hosts import HostClient
from holdfast.clock import now_us, pause
from holdfast.host.deployment import load_deployment
from holdfast.load.contract_file import load_terms
from holdfast.model.errors import PeerError
from holdfast.stream.reader import LogReader
from tests.spark.processes import REPOSITORY, environment, kill_tree

COLUMNS = "source string, bytes bigint"
SECOND = 1_000_000

COUNTS = """
import holdfast
from pyspark.sql import functions as F

app = holdfast.App("{name}")

def counting(stream, output):
    @app.node(inputs=[stream], name=output, max_delay="{delay}", keepalive="{keepalive}")
    def counts(c):
        window = F.window("stime", "1 second")
        return c.groupBy(window, "source").agg(F.count("*").alias("n"), F.sum("bytes").alias("bytes"))

for stream in {streams!r}:
    counting(stream, "counts-" + stream)
"""
#: With an operator of Holdfast's own. Count windows: what one holds follows from all tuples before it.
TALLIES = """
import holdfast
from holdfast.operators import count, count_window, sum_
from holdfast.spark import flow_of

app = holdfast.App("{name}")

def tallying(stream, output):
    @app.node(inputs=[stream], name=output, max_delay="{delay}", keepalive="{keepalive}")
    def tallies(c):
        return flow_of(c, partitions=2).aggregate(count(), sum_("bytes"), window=count_window(20), by="source")

for stream in {streams!r}:
    tallying(stream, "tallies-" + stream)
"""
#: With an operator of the user's.
SUMS = """
import holdfast
from holdfast.operators.udop import UserOperator, decode, encode
from holdfast.spark.keyed import udop

app = holdfast.App("{name}")

def summing(stream, output):
    class Running(UserOperator):
        def __init__(self):
            self.total = 0

        def process(self, row):
            self.total += row["bytes"]
            return [{{"stime": row["stime"], "source": row["source"], "total": self.total}}]

        def checkpoint(self):
            return encode(self.total)

        def restore(self, saved):
            self.total = decode(saved)

    running = udop("running", Running, key="source", schema="stime timestamp, source string, total bigint")

    @app.node(inputs=[stream], name=output, max_delay="{delay}", keepalive="{keepalive}")
    def sums(c):
        return c.transform(running)

for stream in {streams!r}:
    summing(stream, "sums-" + stream)
"""
_APPLICATIONS = {"counts": COUNTS, "tallies": TALLIES, "sums": SUMS}
_SPARK = """
spark:
  spark.driver.extraJavaOptions: "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xss512k"
  spark.sql.shuffle.partitions: "1"
  spark.sql.streaming.pollingDelay: 50ms
  spark.driver.memory: 512m
  spark.ui.enabled: "false"
"""


@dataclass
class Owner:
    """One participant: what it runs, and what it has agreed to."""

    name: str
    streams: Sequence[str] = ()
    """Its sources; each has a node `counts-STREAM`."""
    contracts: Sequence[str] = ()
    """Lines of YAML under contracts."""
    settings: str = ""
    """More lines of its file."""
    twin: bool = False
    """Its nodes have a second replica, on a host NAME2 that shares no load."""
    port: int = 0
    port2: int = 0
    environment: dict[str, str] = field(default_factory=dict)


class Federation:
    """Owners on this machine. Every owner knows the definitions of all, and nothing else of them."""

    def __init__(
        self,
        folder: Path,
        owners: Sequence[Owner],
        bucket: str = "1s",
        meet: Callable[[str, str], bool] = lambda a, b: True,
        plain: bool = False,
        kind: str = "counts",
        tls: bool = False,
        delay: str = "20s",
    ) -> None:
        """`plain`: without Spark (`plain_engine`), where hosts are killed too often to wait for JVMs. `kind` says what
        the nodes do, which are called KIND-STREAM. `tls`: each host
        has a certificate of its own making (`certificate`), which its partners are given. `delay`: how long the nodes
        may wait for an input that fails."""
        self._delay = delay
        self._meet, self.plain, self.kind, self.tls = meet, plain, kind, tls
        self.folder, self.owners, self.bucket = folder, {o.name: o for o in owners}, bucket
        everything = [stream for owner in owners for stream in owner.streams]
        (folder / "definitions.py").write_text(self._application("definitions", everything))
        ports = _free_ports(2 * len(owners))
        for owner in owners:
            owner.port, owner.port2 = ports.pop(), ports.pop()
        for owner in owners:
            self._write(owner)
        for owner in owners:
            for partner in load_terms(self.folder / owner.name / "terms.yaml").partners.values():
                partner.make_token()
            load_deployment(self.file(owner.name)).make_token()
        self._processes: dict[str, subprocess.Popen[str]] = {}
        self._fed = threading.Event()
        self._feeder = threading.Thread(target=self._feed, name="sources", daemon=True)
        self.sources = {
            s: Source(self.store(o.name).create(s, COLUMNS, bucket=bucket)) for o in owners for s in o.streams
        }

    def _application(self, name: str, streams: list[str]) -> str:
        keepalive = "500ms" if self._delay == "20s" else "100ms"
        return _APPLICATIONS[self.kind].format(name=name, streams=streams, delay=self._delay, keepalive=keepalive)

    def _write(self, owner: Owner) -> None:
        home = self.folder / owner.name
        home.mkdir()
        (home / "app.py").write_text(self._application(owner.name, list(owner.streams)))
        tls = ", tls: {cert: ../NAME.pem, key: ../NAME.key, ca: ../NAME.pem}".replace("NAME", owner.name)
        if self.tls:
            certificate(self.folder, owner.name)
        lines = ["app: app.py", "hosts:",
                 f'  {owner.name}: {{address: "127.0.0.1:{owner.port}", root: data/, load: terms.yaml'
                 f'{tls if self.tls else ""}}}']  # fmt: skip
        if owner.twin:
            lines.append(f'  {owner.name}2: {{address: "127.0.0.1:{owner.port2}", root: data2/}}')
            lines += ["nodes:", *(f"  {self.kind}-{s}: [{owner.name}, {owner.name}2]" for s in owner.streams)]
        lines += ["sources:", *(f"  {s}: {owner.name}" for s in owner.streams)] if owner.streams else []
        self.file(owner.name).write_text("\n".join(lines) + _SPARK)
        partners = [o for o in self.owners.values() if o is not owner and self._meet(owner.name, o.name)]
        lines = [f"participant: {owner.name}", "definitions: ../definitions.py", "partners:"]
        for other in partners:
            token = "-".join(sorted((owner.name, other.name)))
            scheme, ca = ("https", f", ca: ../{other.name}.pem") if self.tls else ("http", "")
            lines.append(
                f'  {other.name}: {{address: "{scheme}://127.0.0.1:{other.port}", token: ../{token}.token{ca}}}'
            )
        lines += ["contracts:", *(f"  - {{{line}}}" for line in owner.contracts)] if owner.contracts else []
        if "capacity" not in owner.settings:
            lines.append("capacity: {cpu: 1.0}")
        if "measure" not in owner.settings:
            lines.append("measure: rows\nus_per_row: 1000")  # So that a busy machine decides nothing.
        (home / "terms.yaml").write_text("\n".join([*lines, owner.settings, ""]))

    def _home(self, name: str) -> Path:
        """The folder of the owner of a host."""
        return self.folder / (name if name in self.owners else name.removesuffix("2"))

    def file(self, name: str) -> Path:
        return self._home(name) / "net.yaml"

    def store(self, name: str) -> holdfast.StreamStore:
        return holdfast.open(self._home(name) / ("data" if name in self.owners else "data2"))

    def log(self, name: str) -> str:
        path = self.folder / f"{name}.log"
        return path.read_text() if path.exists() else ""

    # Processes --------------------------------------------------------------------------------------------------

    def start(self, *names: str) -> None:
        """Start these owners' hosts, or all; data comes from the first start on."""
        if not self._feeder.is_alive():
            self._feeder.start()
        for name in names or self.owners:
            run = ["tests.load.plain_engine"] if self.plain else ["holdfast.cli.main", "host"]
            command = [sys.executable, "-m", *run, str(self.file(name)), name]
            extra = {"PYTHONUNBUFFERED": "1", **(self.owners[name].environment if name in self.owners else {})}
            with (self.folder / f"{name}.log").open("a") as out:
                self._processes[name] = subprocess.Popen(
                    command, cwd=REPOSITORY, env={**environment(), **extra}, stdout=out, stderr=out, text=True,
                    start_new_session=True,
                )  # fmt: skip

    def kill(self, *names: str) -> None:
        """SIGKILL for the process, its JVM and its workers."""
        for name in names or list(self._processes):
            kill_tree(self._processes.pop(name))

    def dead(self, name: str) -> bool:
        return self._processes[name].poll() is not None

    def end(self) -> None:
        for name in list(self._processes):
            self.kill(name)
        self._stop_feeding()
        for source in self.sources.values():
            source.close()

    # What they say ----------------------------------------------------------------------------------------------

    def client(self, name: str) -> HostClient:
        deployment = load_deployment(self.file(name))
        return HostClient(deployment.host(name), deployment.token())

    def ask(self, name: str, path: str = "/v1/load") -> dict[str, Any] | None:
        """None while it does not answer."""
        try:
            answer: dict[str, Any] = msgspec.json.decode(self.client(name).call("GET", path))
            return answer
        except PeerError:
            return None

    def place(self, name: str, node: str, to: str) -> str:
        """Order a movement; a host that is too busy to answer is told again."""
        said: list[bytes] = []

        def told() -> bool:
            try:
                said.append(self.client(name).call("POST", "/v1/move", {"node": node, "to": to}))
            except PeerError as error:
                if "refused" in str(error) and "503" not in str(error):
                    raise
            return bool(said)

        self.wait(told, f"{name} to be told")
        return str(msgspec.json.decode(said[0])["said"])

    def runs_at(self, owner: str, node: str) -> str | None:
        """Who runs a node, by its owner's word; None while it is on its way or its host is down."""
        said = self.ask(owner)
        task = next((t for t in said["tasks"] if t["task"] == node), None) if said else None
        if task is None or (task["at"] == owner and not task["movable"]):
            return None
        return str(task["at"])

    def wait(self, condition: Any, what: str, seconds: float = 240) -> None:
        """Wait for a condition."""
        begun = now_us()
        while not condition():
            if now_us() - begun > seconds * SECOND:
                logs = "\n".join(f"--- {name}\n{self.log(name)[-1500:]}" for name in self.owners)
                raise AssertionError(f"waited {seconds} s in vain for {what}\n{logs}")
            pause(100_000)

    def _feed(self) -> None:
        while not self._fed.is_set():
            for source in self.sources.values():
                source.send()
            pause(50_000)

    def _stop_feeding(self) -> None:
        self._fed.set()
        if self._feeder.is_alive():
            self._feeder.join()

    # What came out ----------------------------------------------------------------------------------------------

    def finish(self, owner: str, node: str) -> None:
        """No more data; wait until the node has said so as well."""
        self._stop_feeding()
        for source in self.sources.values():
            source.finish()
        self.wait(lambda: self._ended(owner, node), f"the end of {node}")

    def _ended(self, owner: str, node: str) -> bool:
        reader = self.reader(owner, node)
        reader.close()
        return reader.closed

    def reader(self, owner: str, node: str) -> LogReader:
        return self.store(owner).open(node).reader()

    def results(self, owner: str, node: str) -> list[tuple[Any, ...]]:
        """Every tuple of a node's output: (id, stime, columns…), in the order of the log."""
        reader, found = self.reader(owner, node), []
        for extent in reader.extents(-(2**62), 2**62, strict=False):
            batch, first = reader.read(extent), extent.fields.first_tuple_id
            stimes = batch.column(0).cast(pa.int64()).to_pylist()
            rows = [list(row.values())[1:] for row in batch.to_pylist()]
            found += [(first + i, stimes[i], *rows[i]) for i in range(batch.num_rows)]
        reader.close()
        return found

    def check(self, owner: str, stream: str) -> None:
        """The nodes over this stream have said all that they had to say, once and in the one order."""
        source, found = self.sources[stream], lambda kind: self.results(owner, f"{kind}-{stream}")
        if self.kind == "counts":
            assert plainly(found("counts")) == source.expected(), "nothing lost, nothing twice"
        if self.kind == "tallies":
            assert found("tallies") == source.tallies(), "nothing lost, nothing twice"
        if self.kind == "sums":
            assert found("sums") == source.sums(), "nothing lost, nothing twice"


class Source:
    """A data source in the hands of the test. Remembers all that it has sent."""

    def __init__(self, stream: holdfast.Stream) -> None:
        # The slack keeps the promises in our hands: none follows from the data.
        self._producer = stream.producer(id="source", stime="stime", slack="1h")
        self.sent: list[tuple[int, str, int]] = []
        self.rate = 100.0
        """Rows a second."""
        self._last_us = now_us()
        self._open = True

    def send(self, every_us: int = 200_000) -> None:
        """A few tuples, at most five times a second."""
        now = now_us()
        if not self._open or now - self._last_us < every_us:
            return
        rows = round(self.rate * min(now - self._last_us, SECOND) / SECOND)
        self._last_us = now
        new = [(now, f"s{(len(self.sent) + k) % 7}", len(self.sent) + k) for k in range(rows)]
        self._producer.send_many(
            [{"stime": datetime.fromtimestamp(t / 1e6, UTC), "source": s, "bytes": b} for t, s, b in new]
        )
        self.sent += new
        self._producer.advance(now)

    def finish(self) -> None:
        if self._open:
            self._open = False
            self._producer.close(end=True)

    def close(self) -> None:
        if self._open:
            self._open = False
            self._producer.close(end=False)

    def expected(self) -> list[tuple[Any, ...]]:
        """Rule 3, in the order in which a stream holds them: by time, then by the columns."""
        counts: dict[tuple[int, str], list[int]] = {}
        for at, source, size in self.sent:
            both = counts.setdefault((at // SECOND * SECOND, source), [0, 0])
            both[0] += 1
            both[1] += size
        rows = sorted((start + SECOND, source, n, total) for (start, source), (n, total) in counts.items())
        return [(i + 1, *row) for i, row in enumerate(rows)]

    def tallies(self, size: int = 20) -> list[tuple[Any, ...]]:
        """Rule 3 for windows of so many tuples of a source: (id, stime of the last, source, count, sum)."""
        open_windows: dict[str, list[int]] = {}
        rows: list[tuple[Any, ...]] = []
        for at, source, bytes_ in self.sent:
            window = open_windows.setdefault(source, [])
            window.append(bytes_)
            if len(window) == size:
                rows.append((at, source, size, sum(window)))
                del open_windows[source]
        return [(i + 1, *row) for i, row in enumerate(sorted(rows))]

    def sums(self) -> list[tuple[Any, ...]]:
        """Rule 3 for running sums: (id, stime, source, total)."""
        totals: dict[str, int] = {}
        rows = []
        for at, source, bytes_ in self.sent:
            totals[source] = totals.get(source, 0) + bytes_
            rows.append((at, source, totals[source]))
        return [(i + 1, *row) for i, row in enumerate(sorted(rows))]


def plainly(results: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Results of `counts` as `Source.expected` has them: the window is told by its end."""
    return [(id, stime, *columns[1:]) for id, stime, *columns in results]


def certificate(folder: Path, name: str, address: str = "127.0.0.1") -> None:
    """NAME.pem and NAME.key: a host's own word that it is at this address."""
    if shutil.which("openssl") is None:
        pytest.skip("making a certificate needs openssl")
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
               "-days", "2", "-subj", f"/CN={name}", "-addext", f"subjectAltName=IP:{address}",
               "-keyout", str(folder / f"{name}.key"), "-out", str(folder / f"{name}.pem")]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for probe in sockets:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in sockets]
    finally:
        for probe in sockets:
            probe.close()


MOVES = int(os.environ.get("HOLDFAST_MOVES", "0"))
