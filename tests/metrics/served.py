"""What a test needs of a host that is scraped: data that flows, and the answer by Prometheus' own parser."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import httpx
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

import holdfast

SECOND = 1_000_000
COLUMNS = "source string, bytes bigint"


class Scrape:
    """One answer."""

    def __init__(self, text: str) -> None:
        self.families: dict[str, Metric] = {}
        for family in text_string_to_metric_families(text):
            name = f"{family.name}_total" if family.type == "counter" else family.name
            assert name not in self.families, f"{name} is there twice"
            self.families[name] = family

    def __call__(self, name: str, **labels: str) -> float | None:
        """The value of the one series with these labels, and perhaps more; None if there is none."""
        found = [
            sample.value
            for family in self.families.values()
            for sample in family.samples
            if sample.name == f"holdfast_{name}" and labels.items() <= sample.labels.items()
        ]
        assert len(found) <= 1, f"{name} {labels}: {len(found)} series"
        return found[0] if found else None

    def states(self, name: str, **labels: str) -> list[str]:
        """Those of which the series is 1."""
        samples = [s for s in self.families[f"holdfast_{name}"].samples if labels.items() <= s.labels.items()]
        assert {sample.value for sample in samples} <= {0.0, 1.0}
        return [sample.labels["state"] for sample in samples if sample.value]


def scrape(port: int, path: str = "/metrics", **headers: str) -> Scrape:
    answer = httpx.get(f"http://127.0.0.1:{port}{path}", headers=headers, timeout=20)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    return Scrape(answer.text)


def until(condition: Callable[[], object], what: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s in vain for {what}"
        time.sleep(0.05)


class Flow(threading.Thread):
    """Streams by the clock: some tuples five times a second, and the boundary behind them."""

    def __init__(self, *streams: holdfast.Stream) -> None:
        super().__init__(name="flow", daemon=True)
        self._producers = [stream.producer(id="flow", stime="stime", slack="1h") for stream in streams]
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(0.2):
            now = datetime.now(UTC)
            for producer in self._producers:
                producer.send_many([{"stime": now, "source": f"s{k}", "bytes": k} for k in range(5)])
                producer.advance(int(now.timestamp() * SECOND))

    def close(self, *, end: bool = False) -> None:
        self._over.set()
        self.join()
        for producer in self._producers:
            producer.close(end=end)


@contextmanager
def flowing(*streams: holdfast.Stream) -> Iterator[Flow]:
    flow = Flow(*streams)
    flow.start()
    try:
        yield flow
    finally:
        flow.close()
