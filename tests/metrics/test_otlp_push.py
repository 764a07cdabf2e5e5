"""What a host sends to a collector, read back by OpenTelemetry's own messages."""

from __future__ import annotations

import asyncio
import gzip
import logging
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from holdfast.host.otlp_push import OtlpPush, otlp_push
from holdfast.metrics.sheet import Sheet
from holdfast.model.errors import UsageError
from tests.metrics.served import until
from tests.metrics.test_monitoring import Deployment


class Collector(ThreadingHTTPServer):
    """Takes what is sent, and can refuse."""

    def __init__(self) -> None:
        self.status, self.taken, self.came = 200, [], threading.Event()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                assert self.path == "/v1/metrics"
                collector.taken.append(ExportMetricsServiceRequest.FromString(body))
                self.send_response(collector.status)
                self.end_headers()
                collector.came.set()

            def log_message(self, *said: object) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    server = Collector()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "20")
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


async def sheet() -> Sheet:
    made = Sheet()
    made.put("holdfast_stream_bytes", 4096, stream="orders")
    made.put("holdfast_query_batches_total", 7, node="counts", replica="counts@a")
    return made


def push_until(push: OtlpPush, came: threading.Event) -> None:
    async def drive() -> None:
        task = asyncio.ensure_future(push.run())
        assert await asyncio.to_thread(came.wait, 30)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(drive())


def test_a_collector_gets_the_numbers_with_their_names_and_labels(collector: Collector) -> None:
    push = otlp_push("a", sheet)
    assert push is not None
    push_until(push, collector.came)
    (found,) = collector.taken[0].resource_metrics
    said = {attribute.key: attribute.value.string_value for attribute in found.resource.attributes}
    assert (said["service.name"], said["service.instance.id"]) == ("holdfast", "a")
    metrics = {metric.name: metric for metric in found.scope_metrics[0].metrics}
    assert set(metrics) == {"holdfast_stream_bytes", "holdfast_query_batches_total"}
    (point,) = metrics["holdfast_stream_bytes"].gauge.data_points
    assert (point.as_double, [(a.key, a.value.string_value) for a in point.attributes]) == (
        4096,
        [("stream", "orders")],
    )
    total = metrics["holdfast_query_batches_total"].sum
    assert total.is_monotonic
    assert total.aggregation_temporality == 2  # Cumulative.
    assert total.data_points[0].as_double == 7
    assert 0 < total.data_points[0].start_time_unix_nano <= total.data_points[0].time_unix_nano


def test_a_collector_that_refuses_costs_a_warning_and_is_asked_again(
    collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    collector.status = 400  # One that no retry of the exporter's own mends.
    again = threading.Event()

    async def watched() -> Sheet:
        if collector.taken:
            collector.status = 200
        if len(collector.taken) >= 2:
            again.set()
        return await sheet()

    push = otlp_push("a", watched)
    assert push is not None
    with caplog.at_level(logging.WARNING, logger="holdfast"):
        push_until(push, again)
    assert "the collector did not take them" in caplog.text


def test_numbers_that_cannot_be_had_cost_a_warning_and_not_the_host(
    collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[None] = []

    async def broken_at_first() -> Sheet:
        asked.append(None)
        if len(asked) == 1:
            raise OSError(5, "Input/output error")
        return await sheet()

    push = otlp_push("a", broken_at_first)
    assert push is not None
    with caplog.at_level(logging.WARNING, logger="holdfast"):
        push_until(push, collector.came)
    assert "metrics were not sent: [Errno 5]" in caplog.text


def test_nothing_is_sent_where_no_collector_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    assert otlp_push("a", sheet) is None


def test_an_interval_that_is_none_is_refused(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    for given in ("soon", "0", "-1"):
        monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", given)
        with pytest.raises(UsageError, match="number of milliseconds"):
            otlp_push("a", sheet)


def test_a_host_sends_what_it_serves(collector: Collector, tmp_path: Path) -> None:
    def named() -> set[str]:
        return {metric.name for request in list(collector.taken) for found in request.resource_metrics
                for scope in found.scope_metrics for metric in scope.metrics}  # fmt: skip

    with Deployment(tmp_path).running():
        until(lambda: "holdfast_replica_state" in named(), "the numbers of a replica")
    assert "holdfast_host_info" in named()
