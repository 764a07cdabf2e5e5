"""A process that does nothing but fill a stream from a topic, to be killed.

python -m tests.inputs.kafka_bridge ROOT BROKER TOPIC
"""

from __future__ import annotations

import sys
from pathlib import Path

import holdfast
from holdfast.inputs.kafka import KafkaSource, kafka
from holdfast.model.errors import PeerError


def bridged(broker: str, topic: str) -> KafkaSource:
    return kafka(broker, topic=topic, slack="1s", idle="advance", columns={"partition": "part", "offset": "at"})


if __name__ == "__main__":
    root, broker, topic = sys.argv[1:]
    source = bridged(broker, topic)
    while True:
        try:
            source.open(holdfast.open(root).open("s"), Path(root) / "home").run()
        except PeerError as error:
            print(error, file=sys.stderr)
