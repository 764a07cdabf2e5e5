"""The sources of an application at work: each in a thread of its own, beside the nodes of its host.

Rules:
1. A source whose stream is not there makes it, if the application says its columns, or the source knows them.
2. A mistake that no retry can mend ends the source, and its status says why. So does a batch that dies again and again
   of its rows, as it would fail a node. After anything else (a broker, a disk, a stream that somebody else writes) it
   is made anew, with pauses that grow, and goes on from what the log has.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from holdfast.diagram import Application
from holdfast.engine import Engine
from holdfast.host.deployment import Deployment
from holdfast.host.fork_runner import CAUSE_DEATHS_MAX
from holdfast.inputs.kafka import KafkaSource
from holdfast.inputs.source import DiedOfRows, EngineSource, KnowsColumns, SourceInput, SourceSpec
from holdfast.model.errors import UnknownStream, UsageError
from holdfast.model.time import duration_text
from holdfast.stream.definition import BUCKET_DEFAULT
from holdfast.stream.store import Stream, StreamStore

log = logging.getLogger(__name__)

#: Pauses before a source is tried again: at first what passes soon, then what takes somebody's hand.
_PAUSE_S, _PAUSE_S_MAX = 0.2, 10.0


def sources_on(name: str, app: Application, deployment: Deployment) -> dict[str, SourceSpec]:
    """What fills the source streams that this host holds."""
    specs = source_specs(app, deployment)
    if unread := specs.keys() - deployment.sources.keys():
        log.warning("no node reads %s: what fills it does not run here", ", ".join(sorted(unread)))
    found = {stream: spec for stream, spec in specs.items() if name in deployment.sources.get(stream, ())}
    for stream, spec in found.items():
        if isinstance(spec.source, KafkaSource):
            try:
                spec.source.check()
            except UsageError as error:
                raise UsageError(f"source {stream!r} in {deployment.file}: {error}") from error
    return found


def source_specs(app: Application, deployment: Deployment) -> dict[str, SourceSpec]:
    """What fills the source streams of an application, checked against who holds them."""
    # Brokers differ between deployments: the file's word counts before the application's.
    specs: dict[str, SourceSpec] = {**app.sources, **deployment.fed}
    for stream, homes in deployment.sources.items():
        if len(homes) > 1:
            specs[stream] = _shared(stream, specs.get(stream), deployment)
    return specs


def _shared(stream: str, spec: SourceSpec | None, deployment: Deployment) -> SourceSpec:
    if spec is None or not isinstance(spec.source, KafkaSource):
        came = "nothing is said to fill it" if spec is None else f"it is filled by {spec.source.text()}"
        raise UsageError(
            f"source {stream!r} in {deployment.file} must be a topic of Kafka to be held by several hosts, or "
            f"their copies would differ; {came}; name one host"
        )
    return replace(spec, source=spec.source.shared())


class Sources:
    """Runs the sources of one host."""

    def __init__(self, specs: Mapping[str, SourceSpec], store: StreamStore, home: Path) -> None:
        self._running = [_Running(spec, store, home) for spec in specs.values()]

    def start(self, engine: Callable[[], Engine] | None = None) -> None:
        """`engine` gives the engine, started, to those who need it."""
        for one in self._running:
            one.engine = engine
            one.start()

    def stop(self) -> None:
        """Returns when all have let go of their streams."""
        for one in self._running:
            one.stop()
        for one in self._running:
            one.join()

    def status(self) -> list[dict[str, Any]]:
        return [one.status() for one in self._running]

    def failures(self) -> dict[str, str]:
        """Those that will not come back by themselves, and why."""
        return {one["stream"]: one["why"] for one in self.status() if one["state"] == "FAILED"}

    @property
    def starting(self) -> bool:
        """Whether one was not heard of yet, so that a mistake in it may still come to light."""
        return any(one["state"] == "STARTING" for one in self.status())


class _Running(threading.Thread):
    def __init__(self, spec: SourceSpec, store: StreamStore, home: Path) -> None:
        super().__init__(name=f"source-{spec.stream}", daemon=True)
        self._spec, self._store, self._home = spec, store, home
        self._ended = threading.Event()
        self.engine: Callable[[], Engine] | None = None
        self._input: SourceInput | None = None
        self._state, self._why = "STARTING", ""
        self._failures = 0
        self._died_in = -1
        self._causes: Counter[str] = Counter()

    def run(self) -> None:
        pause_s = _PAUSE_S
        while not self._ended.is_set():
            try:
                self._input = self._open()
                if self._ended.is_set():
                    return
                self._state, self._why = "STARTING", ""
                self._input.run()
                self._state = "STOPPED" if self._ended.is_set() else "ENDED"
                return
            except UsageError as error:
                self._fail(str(error))
                return
            except Exception as error:
                if self._ended.is_set():
                    self._state = "STOPPED"
                    return
                if isinstance(error, DiedOfRows) and (why := self._same_batch(error)) is not None:
                    self._fail(why)
                    return
                self._failures += 1
                self._state, self._why = "WAITING", str(error) or repr(error)
                log.warning("source %s: %s; tried again in %.1f s (%d times so far)",
                            self._spec.stream, self._why, pause_s, self._failures)  # fmt: skip
            if self._rows_came():
                pause_s = _PAUSE_S
            self._ended.wait(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_S_MAX)

    def _fail(self, why: str) -> None:
        self._state, self._why = "FAILED", why
        log.error("source %s does not run: %s", self._spec.stream, why)

    def _same_batch(self, error: DiedOfRows) -> str | None:
        """Rule 2: why it is not started again."""
        if error.batch != self._died_in:
            self._died_in, self._causes = error.batch, Counter()
        self._causes[error.cause] += 1
        if self._causes[error.cause] < CAUSE_DEATHS_MAX:
            return None
        return (
            f"{error}; the query has died of this {CAUSE_DEATHS_MAX} times in the same batch ({error.batch}) and would "
            f"do so at every start: correct the source so that it takes such rows, and start again"
        )

    def _rows_came(self) -> bool:
        return self._input is not None and bool(self._input.status().get("rows"))

    def _open(self) -> SourceInput:
        spec = self._spec
        if not isinstance(spec.source, EngineSource):
            return spec.source.open(self._stream(), self._home)
        assert self.engine is not None, f"the source of {spec.stream} needs an engine"
        if spec.schema is not None:
            self._stream()
        return self.engine().ingest(spec.source, spec.stream, self._store, self._home, spec.bucket_us)

    def _stream(self) -> Stream:
        spec = self._spec
        try:
            found = self._store.open(spec.stream)
        except UnknownStream as error:
            schema = self._columns()
            if schema is None:
                raise UsageError(f"{error}; or say its columns: app.source({spec.stream!r}, …, schema=…)") from None
            bucket = BUCKET_DEFAULT if spec.bucket_us is None else duration_text(spec.bucket_us)
            return self._store.create(spec.stream, schema, exist_ok=True, bucket=bucket)
        if spec.schema is not None and not found.definition.schema.equals(spec.schema):
            raise UsageError(
                f"stream {spec.stream} must have the columns that its source says; it has "
                f"({found.definition.columns}); change one of the two"
            )
        return found

    def _columns(self) -> pa.Schema | None:
        spec = self._spec
        if spec.schema is None and isinstance(spec.source, KnowsColumns):
            return spec.source.columns(self._ended)
        return spec.schema

    def stop(self) -> None:
        self._ended.set()
        if self._input is not None:
            self._input.stop()

    def status(self) -> dict[str, Any]:
        now = {} if self._input is None else self._input.status()
        state = "RUNNING" if self._state == "STARTING" and now else self._state
        return {
            "stream": self._spec.stream, "from": self._spec.source.text(), "state": state, "why": self._why,
            "failures": self._failures, **now,
        }  # fmt: skip
