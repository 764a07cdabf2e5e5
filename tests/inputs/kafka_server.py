"""A Kafka broker in KRaft mode, on loopback and gone when the tests are.

    python -m tests.inputs.kafka_server --fetch

brings the server from Maven's artifacts (`mvn` is needed) into the user's cache. Where it is there, the tests start it;
otherwise they say what they skip.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.spark.java import find_java
from tests.checkpoint.servers import free_port
from tests.maven import Artifact

SERVER = Artifact("kafka", "org.apache.kafka", "kafka_2.13", "4.3.1")
_CLUSTER = "aG9sZGZhc3QtdGVzdHMtMQ"
_LOGGING = """<Configuration><Appenders><Console name="out"><PatternLayout pattern="%d %p %c %m%n"/></Console>
</Appenders><Loggers><Root level="WARN"><AppenderRef ref="out"/></Root></Loggers></Configuration>"""


def _java() -> str:
    home = find_java()
    if home is None:
        pytest.skip("Kafka needs Java")
    return str(home / "bin" / "java")


def make_authority(folder: Path, name: str) -> Path:
    """NAME.pem and NAME.key: an authority that signs certificates."""
    openssl("req", "-x509", *_NEW_KEY, "-days", "2", "-subj", f"/CN={name}",
            "-keyout", folder / f"{name}.key", "-out", folder / f"{name}.pem")  # fmt: skip
    return folder / f"{name}.pem"


def make_server_keys(folder: Path, authority: Path) -> Path:
    """One file with a key and a certificate for 127.0.0.1, as a broker takes it."""
    request, signed, extra, key = (folder / f"server.{kind}" for kind in ("csr", "crt", "ext", "key"))
    extra.write_text("subjectAltName=IP:127.0.0.1\n")
    openssl("req", *_NEW_KEY, "-subj", "/CN=broker", "-keyout", key, "-out", request)
    openssl("x509", "-req", "-in", request, "-CA", authority, "-CAkey", authority.with_suffix(".key"),
            "-CAcreateserial", "-days", "2", "-extfile", extra, "-out", signed)  # fmt: skip
    both = folder / "server.pem"
    both.write_text(key.read_text() + signed.read_text())
    return both


_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def openssl(*words: str | Path) -> None:
    subprocess.run(["openssl", *words], check=True, capture_output=True)


class Kafka:
    """Broker and controller in one process that can be killed and started again over the same disk."""

    def __init__(self, lib: Path, folder: Path) -> None:
        self._lib, self._folder = lib, folder
        self.port, self.sasl_port, self.tls_port, self._controller = (free_port() for _ in range(4))
        listeners = f"PLAINTEXT://127.0.0.1:{self.port},SASL_PLAINTEXT://127.0.0.1:{self.sasl_port}"
        tls = {}
        if shutil.which("openssl") is not None:
            self.authority = make_authority(folder, "authority")
            listeners += f",SSL://127.0.0.1:{self.tls_port}"
            keys = make_server_keys(folder, self.authority)
            tls = {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(keys)}
        settings = {
            "process.roles": "broker,controller", "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{self._controller}", "controller.listener.names": "CONTROLLER",
            "listeners": f"{listeners},CONTROLLER://127.0.0.1:{self._controller}",
            "listener.security.protocol.map":
                "PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,SSL:SSL,CONTROLLER:PLAINTEXT",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl_plaintext.plain.sasl.jaas.config":
                'org.apache.kafka.common.security.plain.PlainLoginModule required user_reader="right";',
            "log.dirs": f"{folder}/data", "auto.create.topics.enable": "false",
            "offsets.topic.replication.factor": "1", "offsets.topic.num.partitions": "1",
            "transaction.state.log.replication.factor": "1", "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "1", "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.num.partitions": "1", "share.coordinator.state.topic.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0", "num.network.threads": "1", "num.io.threads": "2",
            "log.cleaner.dedupe.buffer.size": str(4 << 20), "log.cleaner.backoff.ms": "100",
            "log.retention.ms": "-1",  # Tests bring times of their own, which are long ago.
            # So that a broker that was killed may come back soon.
            "broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "300",
            **tls,
        }  # fmt: skip
        (folder / "server.properties").write_text("".join(f"{k}={v}\n" for k, v in settings.items()))
        (folder / "log4j2.xml").write_text(_LOGGING)
        self._log = (folder / "log").open("ab")
        self._make_disk()
        self.start()

    def _make_disk(self) -> None:
        """Once for all tests: it takes a JVM some seconds to write three small files."""
        made = SERVER.cache / "disk"
        if not made.exists():
            settings = f"{self._folder}/server.properties"
            format = self._command("kafka.tools.StorageTool", "format", "-t", _CLUSTER, "-c", settings)
            done = subprocess.run(format, stdout=self._log, stderr=self._log, check=False)
            assert done.returncode == 0, f"the broker's disk could not be made:\n{self.log()}"
            staged = made.with_name(f"disk-{os.getpid()}")
            shutil.copytree(self._folder / "data", staged)
            with contextlib.suppress(OSError):  # Somebody else was quicker.
                staged.rename(made)
            return
        shutil.copytree(made, self._folder / "data")

    def _command(self, main: str, *rest: str) -> list[str]:
        # Startup counts here, not throughput: one compiler, one collector thread.
        java = [_java(), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        return [*java, f"-Dlog4j2.configurationFile={self._folder}/log4j2.xml", "-cp", f"{self._lib}/*", main, *rest]

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def sasl_address(self) -> str:
        return f"127.0.0.1:{self.sasl_port}"

    @property
    def tls_address(self) -> str:
        if not hasattr(self, "authority"):
            pytest.skip("making the broker's certificate needs openssl")
        return f"127.0.0.1:{self.tls_port}"

    def other_authority(self) -> Path:
        """One that the broker has nothing to do with."""
        return make_authority(self._folder, "other")

    def log(self) -> str:
        return Path(self._folder, "log").read_text()[-3000:]

    def start(self) -> None:
        command = self._command("kafka.Kafka", f"{self._folder}/server.properties")
        self._process = subprocess.Popen(command, stdout=self._log, stderr=self._log)

    def ready(self, seconds: float) -> bool:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        until = time.monotonic() + seconds
        admin = AdminClient({"bootstrap.servers": self.address, "log_level": 0})
        while time.monotonic() < until and self._process.poll() is None:
            with contextlib.suppress(KafkaException):
                admin.list_topics(timeout=2)
                return True
        return False

    def create_topic(self, name: str, partitions: int = 1, **config: str) -> None:
        from confluent_kafka import KafkaError, KafkaException
        from confluent_kafka.admin import AdminClient, NewTopic

        admin = AdminClient({"bootstrap.servers": self.address, "log_level": 0})
        settings = {key.replace("_", "."): value for key, value in config.items()}
        until = time.monotonic() + 60
        while True:
            try:
                admin.create_topics([NewTopic(name, partitions, 1, config=settings)])[name].result(60)
                break
            except KafkaException as error:
                # A broker that has just come, or had no turn for too long, is fenced for a moment.
                fenced = error.args[0].code() == KafkaError.INVALID_REPLICATION_FACTOR
                if not fenced or time.monotonic() > until:
                    raise
            time.sleep(0.05)
        while not _is_led(admin.list_topics(timeout=10).topics.get(name), partitions):
            # The broker answers for what its controller has made a moment later.
            assert time.monotonic() < until, f"topic {name} was made, and nobody knows of it"
            time.sleep(0.02)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        self.kill()
        self._log.close()


def _is_led(topic: Any, partitions: int) -> bool:
    known = [] if topic is None or topic.error is not None else topic.partitions.values()
    return len(known) == partitions and all(partition.leader >= 0 for partition in known)


@contextlib.contextmanager
def kafka_broker() -> Iterator[Kafka]:
    """A broker of our own, as long as the machine has the programs."""
    pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed; the extra [kafka] brings it")
    lib = SERVER.jars()
    if lib is None:
        pytest.skip("no Kafka here; `python -m tests.inputs.kafka_server --fetch` brings it from Maven")
    with tempfile.TemporaryDirectory(prefix="holdfast-kafka-") as folder:
        server = Kafka(lib, Path(folder))
        try:
            assert server.ready(120), f"Kafka did not come up:\n{server.log()}"
            yield server
        finally:
            server.stop()


if __name__ == "__main__":
    if sys.argv[1:] != ["--fetch"]:
        sys.exit("usage: python -m tests.inputs.kafka_server --fetch")
    sys.exit(None if (why := SERVER.fetch()) is None else f"no Kafka: {why}")
