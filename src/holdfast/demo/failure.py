"""A failure from beginning to end: one of three inputs is cut off, and comes back.

What a client receives meanwhile is recorded and drawn as it comes. At the end the same inputs go through the same query
once more, undisturbed and on a plain Spark checkpoint of its own: that is what the stable output is compared with.
"""

from __future__ import annotations

import os
import sys
import threading
import webbrowser
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from rich.console import Console
from rich.live import Live

import holdfast
from holdfast.clock import monotonic_us, now_us, pause
from holdfast.console.picture import Picture
from holdfast.console.recording import Recording
from holdfast.console.report import write_report
from holdfast.console.verdict import Verdict, added_delay, all_corrected, none_after_done, stable_equal, time_to_correct
from holdfast.demo.application import OUTPUT, active_sources, build
from holdfast.demo.monitors import COLUMNS, MONITORS, Monitor
from holdfast.host.embedded import Running
from holdfast.model.time import SECOND_US, duration_us
from holdfast.spark import read_stream
from holdfast.spark.engine import node_session

BUCKET = "500ms"
#: The first batches of a new JVM are several times slower than the rest and would be counted as normal.
WARM_UP_US = 8 * SECOND_US
#: A short run is over before Java's second compiler has earned what it costs: on two cores, the query's own time.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
#: The failure waits until no tuple has come later than X for so long; on a machine where that never happens, at most
#: so long. Otherwise what the start left behind would count as normal, and every delay would look small beside it.
CALM_US, _CALM_US_MAX = 5 * SECOND_US, 60 * SECOND_US
_POLL_US = 20_000
_CORRECTED_US_MAX = 120 * SECOND_US


class Client(threading.Thread):
    """A subscriber who wants news and corrections, and writes down what comes when."""

    def __init__(self, stream: holdfast.Stream, recording: Recording) -> None:
        super().__init__(name="client", daemon=True)
        self._subscriber = stream.subscribe(start="live", tentative=True)
        self.first_us = self._subscriber.position_us
        self.recording = recording
        self.trouble: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._subscriber.finished:
                for batch in self._subscriber.poll():
                    self.recording.take(batch, now_us())
                pause(_POLL_US)
        except BaseException as error:
            self.trouble = error
        finally:
            self._subscriber.close()


def demonstrate(console: Console, root: Path, max_delay: str, cut_s: float, report: Path, live: bool = False) -> bool:
    """Run it; whether every claim held. With `live`, a page in the browser shows it as it happens."""
    store = holdfast.open(root)
    monitors = [Monitor(store.create(name, COLUMNS, bucket=BUCKET), seed) for seed, name in enumerate(MONITORS)]
    with ExitStack() as stack:
        spark = _started(console, stack)
        for monitor in monitors:
            monitor.start()
        running: Running = build(root, max_delay).start(spark=spark, console=live)
        stack.callback(running.stop)
        if running.console is not None and show_page(running.console.url):
            console.print("the page is open in your browser; give it the token")
        with console.status("the node reads what has come already, and becomes STABLE …"):
            running.wait_until_stable("120s")
        stream = store.open(OUTPUT)
        client = Client(stream, Recording(bucket_us=stream.definition.bucket_us))
        client.start()
        normal_us, began_us = _fail_and_heal(console, running, client, duration_us(max_delay), cut_s)
        with console.status("the monitors end their streams …"):
            for monitor in monitors:
                monitor.end()
            client.join()
        if client.trouble is not None:
            raise client.trouble
        console.print("the same inputs once more, undisturbed, through the same query on plain Spark …")
        reference = _undisturbed(spark, root, client.first_us)
    recording, delay_us = client.recording, duration_us(max_delay)
    verdict = Verdict([
        stable_equal(recording, reference), added_delay(recording, delay_us, normal_us, began_us),
        all_corrected(recording), none_after_done(recording), time_to_correct(recording),
    ])  # fmt: skip
    console.print(verdict)
    settings = {"max_delay (X)": max_delay, "cut": f"{MONITORS[-1]} for {cut_s:g} s", "bucket": BUCKET,
                "tuples sent": f"{sum(m.sent for m in monitors):,}"}  # fmt: skip
    write_report(report, recording, verdict, delay_us=delay_us, normal_us=normal_us, since_us=began_us,
                 title="One of three inputs is cut off, and comes back", settings=settings)  # fmt: skip
    console.print(f"the same as a page: {report}")
    return verdict.passed


def show_page(
    url: str,
    *,
    at_terminal: bool | None = None,
    environment: Mapping[str, str] = os.environ,
    open_page: Callable[[str], bool] = webbrowser.open,
) -> bool:
    """Open the live page in the browser of whoever sits there; whether it was. The token is not part of the address: a
    URL is kept in histories and logs."""
    if not (sys.stdin.isatty() if at_terminal is None else at_terminal):
        return False
    if sys.platform.startswith("linux") and not (environment.get("DISPLAY") or environment.get("WAYLAND_DISPLAY")):
        return False  # A browser without a display would be one in this terminal, over the picture.
    try:
        return open_page(url)
    except (OSError, webbrowser.Error):
        return False


def _started(console: Console, stack: ExitStack) -> Any:
    with console.status("starting Spark …"):
        began = monotonic_us()
        nodes = [active_sources.__name__]
        spark = node_session("holdfast-demo", nodes, spark_driver_extraJavaOptions=JAVA_OPTIONS)
        stack.callback(spark.stop)
        spark.sparkContext.setLogLevel("OFF")
    console.print(f"Spark {spark.version} is up after {(monotonic_us() - began) / 1e6:.1f} s")
    return spark


def _fail_and_heal(console: Console, running: Running, client: Client, delay_us: int, cut_s: float) -> tuple[int, int]:
    """The failure itself; the normal latency, and since when it counts."""
    recording, normal_us = client.recording, 0
    pause(WARM_UP_US)
    _wait_until_calm(recording, delay_us)
    began_us = now_us()
    with _drawn(console, recording, delay_us, lambda: normal_us):
        pause(WARM_UP_US)
        normal = recording.latency(began_us, now_us())
        normal_us = normal.us_max if normal is not None else 0
        running.fail(MONITORS[-1])
        recording.mark(now_us(), f"cut {MONITORS[-1]}")
        pause(round(cut_s * SECOND_US))
        running.heal(MONITORS[-1])
        recording.mark(now_us(), f"healed {MONITORS[-1]}")
        deadline = monotonic_us() + _CORRECTED_US_MAX
        while client.trouble is None and recording.standing and monotonic_us() < deadline:
            pause(_POLL_US)
        pause(WARM_UP_US)
    return normal_us, began_us


def _wait_until_calm(recording: Recording, delay_us: int) -> None:
    deadline = monotonic_us() + _CALM_US_MAX
    while monotonic_us() < deadline:
        latest = recording.latency(now_us() - CALM_US)
        if latest is not None and latest.us_max < delay_us:
            return
        pause(_POLL_US)


@contextmanager
def _drawn(console: Console, recording: Recording, delay_us: int, normal_us: Any) -> Iterator[None]:
    def picture() -> Picture:
        return Picture(recording, delay_us, now_us(), normal_us=normal_us())

    with Live(get_renderable=picture, console=console, refresh_per_second=4):
        yield
    console.print()


def _undisturbed(spark: Any, root: Path, first_us: int) -> list[pa.RecordBatch]:
    """What the query gives without a failure, from where the client began to listen."""
    results = active_sources(read_stream(spark, *MONITORS, root=root, boundaries="exact"))
    writer = results.writeStream.format("holdfast").option("root", str(root)).option("create", "true")
    writer = writer.option("bucket", BUCKET).option("checkpointLocation", str(root / ".reference"))
    writer.trigger(availableNow=True).start("undisturbed").awaitTermination()
    stream = holdfast.open(root).open("undisturbed")
    with stream.subscribe(bucket=first_us // stream.definition.bucket_us) as subscriber:
        return list(subscriber.poll())
