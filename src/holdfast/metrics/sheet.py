"""One scrape: the values that there are now, and the text that Prometheus reads.

Whoever knows something puts it on the sheet; a name or a label that stands in no table is our own fault.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from holdfast.metrics.families import FAMILIES, Family


class Sheet(Collector):
    """Values by metric and labels.

    >>> sheet = Sheet()
    >>> sheet.put("holdfast_stream_bytes", 4096, stream="orders")
    >>> print(render(sheet)[0].decode().splitlines()[-1])
    holdfast_stream_bytes{stream="orders"} 4096.0
    """

    def __init__(self) -> None:
        self._values: dict[str, dict[tuple[str, ...], float]] = {}

    def put(self, name: str, value: float, **labels: str) -> None:
        family = FAMILIES[name]
        assert set(labels) == set(family.labels), f"{name} has the labels {family.labels}; got {tuple(labels)}"
        self._values.setdefault(name, {})[tuple(labels[label] for label in family.labels)] = value

    def put_known(self, name: str, value: float | None, **labels: str) -> None:
        """The same of what may not be known."""
        if value is not None:
            self.put(name, value, **labels)

    def put_state(self, name: str, states: Iterable[str], now: str, **labels: str) -> None:
        """One series for each state."""
        for state in states:
            self.put(name, state == now, state=state, **labels)

    def collect(self) -> Iterator[Metric]:
        for name, values in self._values.items():
            metric = _metric(FAMILIES[name])
            for labels, value in values.items():
                metric.add_metric(labels, value)
            yield metric


def _metric(family: Family) -> CounterMetricFamily | GaugeMetricFamily:
    kind = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
    return kind(family.name.removesuffix("_total"), family.help, labels=family.labels)


#: What every process says of itself: CPU, memory, open files.
_PROCESS = ProcessCollector(registry=None)


def render(sheet: Sheet, accept: str = "") -> tuple[bytes, str]:
    """The text, in the format that whoever asks accepts, and what it is called."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_PROCESS)
    registry.register(sheet)
    encode, kind = choose_encoder(accept)
    return encode(registry), kind
