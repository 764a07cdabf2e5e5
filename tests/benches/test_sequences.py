"""The client of `benches.dpc_sequences` writes down what comes, and counts what comes twice."""

from __future__ import annotations

from pathlib import Path

from benches.dpc_sequences import Client, scripts

import holdfast
from tests.metrics.served import until


def test_a_client_notes_stable_tuples_by_bucket_and_how_late_they_are(tmp_path: Path) -> None:
    stream = holdfast.open(tmp_path).create("union", "source string", bucket="250ms")
    producer = stream.producer()
    client = Client(stream)
    try:
        for n in range(20):
            producer.send({"source": f"s{n}"})
        until(lambda: len(client.stable) == 20, "what was sent")
    finally:
        client.end()
        producer.close()
    assert client.trouble is None
    assert set(client.stable.values()) == {1}
    assert (client.tentative_left, {kind for _, kind, _ in client.seen}) == (0, {"INSERTION"})
    assert client.lag_us > 0


def test_every_act_heals_what_it_cuts() -> None:
    for quick in (False, True):
        for script in scripts(quick).values():
            for name in {name for _, _, name in script}:
                times = {verb: at for at, verb, of in script if of == name}
                assert times["cut"] < times["heal"]
