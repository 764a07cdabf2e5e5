"""The numbers of a host sent to an OpenTelemetry collector, for whoever does not come to ask for them (extra `otlp`).

Rules:
1. OpenTelemetry's own variables say whether and how: OTEL_EXPORTER_OTLP_ENDPOINT (or …_METRICS_ENDPOINT) where to, over
   HTTP; OTEL_METRIC_EXPORT_INTERVAL how often; headers, timeout and certificates as its documentation has them.
2. They are the numbers of `/metrics`, with the same names and labels: a gauge is a gauge, a counter a sum that only
   grows, counted since the host began.
3. A collector that is away costs a warning. What was not sent is not sent later: the next time has newer numbers.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from typing import Any

from holdfast.clock import now_us
from holdfast.metrics.sheet import Sheet
from holdfast.model.errors import UsageError

log = logging.getLogger(__name__)

_WHERE = ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_INTERVAL = "OTEL_METRIC_EXPORT_INTERVAL"
#: OpenTelemetry's own default, in milliseconds.
_INTERVAL_MS = 60_000


def otlp_push(host: str, sheet: Callable[[], Awaitable[Sheet]]) -> OtlpPush | None:
    """What sends, if the environment names a collector."""
    if not any(os.environ.get(name) for name in _WHERE):
        return None
    given = os.environ.get(_INTERVAL, str(_INTERVAL_MS))
    if not given.isdigit() or int(given) == 0:
        raise UsageError(f"{_INTERVAL} must be a number of milliseconds; got {given!r}")
    return OtlpPush(host, sheet, int(given) / 1000)


class OtlpPush:
    """Sends the sheet of a host again and again."""

    def __init__(self, host: str, sheet: Callable[[], Awaitable[Sheet]], interval_s: float) -> None:
        try:
            from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        except ImportError:
            raise UsageError(
                "to send metrics to a collector the package needs its extra: pip install 'holdfast-streams[otlp]'; or "
                f"take {' and '.join(_WHERE)} out of the environment"
            ) from None
        self._host, self._sheet, self._interval_s = host, sheet, interval_s
        self._exporter = OTLPMetricExporter()
        self._began_ns = now_us() * 1000

    async def run(self) -> None:
        """Until cancelled."""
        try:
            while True:
                await asyncio.sleep(self._interval_s)
                await self._send()
        finally:
            self._exporter.shutdown()

    async def _send(self) -> None:
        from opentelemetry.sdk.metrics.export import MetricExportResult

        try:
            data = metrics_data(self._host, await self._sheet(), self._began_ns, now_us() * 1000)
            said = await asyncio.to_thread(self._exporter.export, data)
        except Exception as error:  # Of its transport's own kinds, or a disk's; a host does not end for a number.
            log.warning("metrics were not sent: %s", error)
        else:
            if said is not MetricExportResult.SUCCESS:
                log.warning("metrics were not sent: the collector did not take them")


def metrics_data(host: str, sheet: Sheet, began_ns: int, at_ns: int) -> Any:
    """One scrape in OpenTelemetry's words (rule 2)."""
    from opentelemetry.sdk.metrics import export
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    metrics = []
    for family in sheet.collect():
        points = [
            export.NumberDataPoint(dict(sample.labels), began_ns, at_ns, float(sample.value))
            for sample in family.samples
        ]
        if family.type == "counter":
            name = f"{family.name}_total"
            kind: Any = export.Sum(points, export.AggregationTemporality.CUMULATIVE, is_monotonic=True)
        else:
            name, kind = family.name, export.Gauge(points)
        metrics.append(export.Metric(name, family.documentation, "", kind))
    resource = Resource.create({"service.name": "holdfast", "service.instance.id": host})
    scope = export.ScopeMetrics(InstrumentationScope("holdfast"), metrics, "")
    return export.MetricsData([export.ResourceMetrics(resource, [scope], "")])
