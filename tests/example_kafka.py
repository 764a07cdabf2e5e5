"""Runs examples/kafka_to_postgres.py with a broker and a database of its own, in a folder that is gone afterwards:
`make example-kafka`."""

from __future__ import annotations

import subprocess
import sys
import tempfile

import pytest

from tests.inputs.kafka_server import SERVER, kafka_broker
from tests.postgres_server import postgres_server
from tests.spark.processes import REPOSITORY, environment


def main() -> int:
    if (why := SERVER.fetch()) is not None:
        sys.exit(f"no Kafka: {why}")
    folder = tempfile.TemporaryDirectory(prefix="holdfast-example-")
    with folder as home, postgres_server() as database, kafka_broker() as broker:
        for topic in ("north", "south", "west"):
            broker.create_topic(topic)
        example = [sys.executable, REPOSITORY / "examples" / "kafka_to_postgres.py", broker.address, database.url]
        return subprocess.run(example, cwd=home, env=environment(), check=False).returncode


if __name__ == "__main__":
    try:
        sys.exit(main())
    except pytest.skip.Exception as missing:  # What the tests skip for is an error here.
        sys.exit(str(missing))
