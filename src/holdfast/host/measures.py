"""Everything that a host can be measured by, read when somebody asks.

Rules:
1. What the host's own objects know is read in its event loop, in one go: some microseconds for each replica.
2. What takes the disk or the engine a moment (sizes of logs, the last batch of a query) is looked at on a thread of its
   own, one look at a time. Who asks waits for it, but not for long: then the values of the look before are served.
3. What cannot be measured is left out, and costs nobody the rest.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.checkpoint.store_measures import measure as measure_stores
from holdfast.clock import monotonic_us, now_us
from holdfast.engine import Query, Reading, Recovery, Saves
from holdfast.host.controller import Controller
from holdfast.host.host import Host, Replica
from holdfast.metrics.families import FORK_STATES, REPLICA_STATES, SINK_STATES, SOURCE_STATES
from holdfast.metrics.sheet import Sheet
from holdfast.model.errors import HoldfastError
from holdfast.model.time import BEGINNING_US, END_OF_TIME_US, SECOND_US
from holdfast.stream.archive.archiver import ArchiveState, Lag, archive_lag, archive_state
from holdfast.stream.archive.catalog import Catalog, read_note
from holdfast.stream.head import Head, read_head
from holdfast.stream.merge import FOREVER_US
from holdfast.stream.reader import LogReader
from holdfast.stream.retention import waits_for
from holdfast.stream.store import StreamStore

log = logging.getLogger(__name__)

#: Prometheus gives up after ten seconds by default; a query that hangs in the engine must not cost the rest.
_LOOK_S = 3.0


class LogSize(NamedTuple):
    """One stream of the host, as its log says."""

    bytes: int
    tuples: int
    boundary_us: int
    closed: bool
    head: Head
    waits: bool
    bound_bytes: int | None
    archive: tuple[Catalog | None, Lag, ArchiveState] | None
    """What it has, what waits, and how the last attempt ended; None without an archive."""


class _Look(NamedTuple):
    """What was found on the disk and at the engine."""

    logs: dict[str, LogSize | None]
    disk: tuple[int, int] | None
    readings: dict[str, Reading]


class Measures:
    """Measures one host. `sinks` gives the status of those that run beside it, `more` fills in what else there is."""

    def __init__(
        self,
        host: Host,
        sinks: Callable[[], Sequence[dict[str, Any]]] = tuple,
        more: Callable[[Sheet], None] = lambda sheet: None,
    ) -> None:
        self._host, self._sinks, self._more = host, sinks, more
        self._logs = _Logs(host.store)
        self._disk_thread = ThreadPoolExecutor(1, thread_name_prefix="metrics-disk")
        self._engine_thread = ThreadPoolExecutor(1, thread_name_prefix="metrics-engine")
        self._at_disk: asyncio.Future[tuple[dict[str, LogSize | None], tuple[int, int] | None]] | None = None
        self._at_engine: asyncio.Future[dict[str, Reading]] | None = None
        self._seen = _Look({}, None, {})
        #: What a second of input takes each replica, by the last batch that told how much it read.
        self._pace: dict[str, float] = {}

    async def sheet(self) -> Sheet:
        """Everything, as of now. Call it in the host's loop."""
        await self._look()
        sheet = Sheet()
        _host(sheet, self._host, self._seen)
        for replica, state in self._host.states().items():
            reading = self._seen.readings.get(replica)
            if reading is not None and reading.span_us:
                self._pace[replica] = reading.busy_ms * 1000 / reading.span_us
            controller = self._host.controllers.get(replica)
            _replica(sheet, replica, state, controller, reading, self._pace.get(replica))
        for stream, size in self._seen.logs.items():
            _stream(sheet, stream, size)
        for sink in self._sinks():
            _sink(sheet, sink)
        for source in self._host.sources.status():
            _source(sheet, source)
        measure_stores(sheet)
        self._more(sheet)
        return sheet

    async def _look(self) -> None:
        """Rule 2. An engine that hangs must not hide that the disk gets full."""
        loop = asyncio.get_running_loop()
        if self._at_disk is None:
            self._at_disk = loop.run_in_executor(self._disk_thread, self._look_at_disk)
        if self._at_engine is None:
            queries = {
                replica: query
                for replica, stand in self._host.controllers.items()
                if isinstance(stand, Controller) and (query := stand.query) is not None
            }
            self._at_engine = loop.run_in_executor(self._engine_thread, _readings, queries)
        at_disk, at_engine = self._at_disk, self._at_engine
        looks: set[asyncio.Future[Any]] = {at_disk, at_engine}
        await asyncio.wait(looks, timeout=_LOOK_S)
        if at_disk.done() and self._at_disk is at_disk:
            self._at_disk = None
            if _told(at_disk, "logs"):
                logs, disk = at_disk.result()
                self._seen = self._seen._replace(logs=logs, disk=disk)
        if at_engine.done() and self._at_engine is at_engine:
            self._at_engine = None
            if _told(at_engine, "queries"):
                self._seen = self._seen._replace(readings=at_engine.result())

    def _look_at_disk(self) -> tuple[dict[str, LogSize | None], tuple[int, int] | None]:
        return self._logs.look(), _disk(self._host.root)

    def close(self) -> None:
        """Let go of the logs. A look that hangs in the engine is left there."""
        self._disk_thread.submit(self._logs.close)
        self._disk_thread.shutdown(wait=False)
        self._engine_thread.shutdown(wait=False)


def _told(look: asyncio.Future[Any], what: str) -> bool:
    """Whether it found something; if not, that is said."""
    if (error := look.exception()) is not None:
        log.warning("%s could not be measured: %s", what, error)
    return error is None


def _readings(queries: dict[str, Query]) -> dict[str, Reading]:
    return {replica: found for replica, query in queries.items() if (found := _reading(query)) is not None}


class _Logs:
    """The logs of a host's streams, followed from look to look: what came since is all that is read."""

    def __init__(self, store: StreamStore) -> None:
        self._store = store
        self._readers: dict[str, LogReader] = {}

    def look(self) -> dict[str, LogSize | None]:
        """Every stream; None for one that cannot be read."""
        try:
            names = self._store.names()
        except OSError:
            return {}
        for gone in self._readers.keys() - set(names):
            self._readers.pop(gone).close()
        return {name: self._size(name) for name in names}

    def _size(self, name: str) -> LogSize | None:
        try:
            stream = self._store.open(name)
            reader = self._readers.get(name)
            if reader is None:
                reader = self._readers[name] = stream.reader()
            reader.refresh()
            main, bound, url = stream.folder / "main", stream.definition.bound, stream.definition.archive
            return LogSize(
                reader.size_bytes, reader.rows, reader.boundary_us, reader.closed, read_head(main),
                waits_for(main) is not None, None if bound is None else bound.bytes,
                None if url is None else (read_note(main), archive_lag(main), archive_state(main)),
            )  # fmt: skip
        except (HoldfastError, OSError) as error:
            log.debug("stream %s cannot be measured: %s", name, error)
            if (broken := self._readers.pop(name, None)) is not None:
                broken.close()
            return None

    def close(self) -> None:
        for reader in self._readers.values():
            reader.close()
        self._readers.clear()


def _reading(query: Query) -> Reading | None:
    """A query that is just being stopped has no progress."""
    try:
        return query.reading()
    except Exception as error:
        log.debug("no progress: %s", error)
        return None


def _disk(root: Path) -> tuple[int, int] | None:
    try:
        usage = shutil.disk_usage(root)
    except OSError:
        return None
    return usage.total, usage.free


def _host(sheet: Sheet, host: Host, seen: _Look) -> None:
    sheet.put("holdfast_host_info", 1, host=host.name, version=_version())
    sheet.put("holdfast_host_ready", not host.not_ready())
    sheet.put("holdfast_host_links_cut", len(host.cuts.names))
    if seen.disk is not None:
        sheet.put("holdfast_host_disk_bytes", seen.disk[0])
        sheet.put("holdfast_host_disk_free_bytes", seen.disk[1])


def _replica(
    sheet: Sheet, replica: str, state: str, controller: Replica | None, reading: Reading | None, pace: float | None
) -> None:
    labels = {"node": replica.partition("@")[0], "replica": replica}
    sheet.put_state("holdfast_replica_state", REPLICA_STATES, state, **labels)
    if not isinstance(controller, Controller):
        return
    now = monotonic_us()
    _promise(sheet, controller, now, labels)
    _fork(sheet, controller, now, labels)
    if controller.query is not None:
        _saves(sheet, controller.query.saves(), labels)
    if controller.core is not None and controller.trouble is None:
        _position(sheet, controller, now, pace, reading, labels)
    if reading is not None:
        sheet.put("holdfast_query_batch_seconds", reading.busy_ms / 1000, **labels)
        sheet.put("holdfast_query_batch_tuples", reading.rows, **labels)
        sheet.put("holdfast_query_state_bytes", reading.state_bytes, **labels)
        for part, took_ms in reading.parts_ms.items():
            sheet.put("holdfast_query_batch_part_seconds", took_ms / 1000, part=part, **labels)
        if (work := reading.work) is not None:
            sheet.put("holdfast_query_seen_batches_total", work.batches, **labels)
            sheet.put("holdfast_query_seconds_total", work.busy_ms / 1000, **labels)
            sheet.put("holdfast_query_tuples_total", work.rows, **labels)
            for part, took_ms in work.parts_ms.items():
                sheet.put("holdfast_query_part_seconds_total", took_ms / 1000, part=part, **labels)


def _promise(sheet: Sheet, controller: Controller, now: int, labels: dict[str, str]) -> None:
    counts = controller.counts
    sheet.put("holdfast_replica_state_age_seconds", _s(now - counts.since_us), **labels)
    for state, spent_us in counts.state_us(now).items():
        sheet.put("holdfast_replica_state_seconds_total", _s(spent_us), state=state, **labels)
    sheet.put("holdfast_replica_max_delay_seconds", _s(controller.plan.delay_us), **labels)
    for kind in ("stable", "tentative"):
        for in_time in (True, False):
            count = counts.results[kind, in_time]
            sheet.put("holdfast_replica_results_total", count, kind=kind, in_time="yes" if in_time else "no", **labels)
    if counts.wait_us is not None:
        sheet.put("holdfast_replica_result_wait_seconds", _s(counts.wait_us), **labels)
    if counts.usual_us is not None:
        sheet.put("holdfast_replica_usual_wait_seconds", _s(counts.usual_us), **labels)
    sheet.put("holdfast_replica_corrections_total", counts.corrections, **labels)
    sheet.put("holdfast_replica_correction_seconds_total", _s(counts.corrected_us), **labels)
    sheet.put("holdfast_replica_dropped_seconds_total", _s(counts.dropped_us), **labels)
    sheet.put("holdfast_replica_gaps_total", counts.gaps, **labels)
    sheet.put("holdfast_query_batches_total", controller.batches, **labels)
    sheet.put("holdfast_query_restarts_total", counts.deaths, **labels)


def _fork(sheet: Sheet, controller: Controller, now: int, labels: dict[str, str]) -> None:
    fork = controller.forking
    counts = fork.counts
    sheet.put_state("holdfast_fork_state", FORK_STATES, fork.state, **labels)
    sheet.put("holdfast_fork_started_total", counts.started, **labels)
    sheet.put("holdfast_fork_failed_total", counts.failed, **labels)
    sheet.put("holdfast_fork_ready_total", counts.ready, **labels)
    sheet.put("holdfast_fork_start_seconds_total", _s(counts.start_us), **labels)
    sheet.put("holdfast_fork_seconds_total", _s(fork.kept_us(now)), **labels)
    out = counts.standing_tuples + counts.undone_tuples
    sheet.put("holdfast_replica_tentative_tuples_total", out, **labels)
    sheet.put("holdfast_replica_tentative_tuples", counts.standing_tuples, **labels)
    sheet.put("holdfast_replica_corrected_tuples_total", counts.undone_tuples, **labels)


def _position(
    sheet: Sheet, controller: Controller, now: int, pace: float | None, reading: Reading | None, labels: dict[str, str]
) -> None:
    core = controller.core
    assert core is not None
    size, sunion = core.plan.bucket_us, core.inputs.sunion
    stable_us = core.stable * size
    sheet.put("holdfast_replica_delay_used_ratio", controller.counts.delay_used(core, now), **labels)
    sheet.put("holdfast_replica_blocked", core.blocked, **labels)
    sheet.put_known("holdfast_replica_stable_timestamp_seconds", _instant(stable_us), **labels)
    sheet.put_known("holdfast_replica_lag_seconds", _span(stable_us, sunion.frontier * size), **labels)
    if controller.relied_us is not None:
        extent = _span(controller.relied_us, stable_us)
        sheet.put_known("holdfast_replica_checkpoint_extent_seconds", extent, **labels)
        recovery = None if reading is None else reading.recovery
        if recovery is not None:
            _recovery(sheet, recovery, labels)
        elif extent is not None and pace is not None:
            sheet.put("holdfast_replica_recovery_estimate_seconds", extent * pace, **labels)
    for stream, upstream in core.inputs.upstreams.items():
        boundary_us, of = sunion.inputs[stream].main_us, {**labels, "stream": stream}
        sheet.put("holdfast_input_failing", upstream.failing, **of)
        sheet.put_known("holdfast_input_boundary_timestamp_seconds", _instant(boundary_us), **of)
        sheet.put_known("holdfast_input_behind_seconds", _span(boundary_us, now_us()), **of)
        sheet.put_known("holdfast_input_lag_seconds", _span(stable_us, boundary_us), **of)
        moved_us = controller.counts.moved_us.get(stream)
        if moved_us is not None and boundary_us < END_OF_TIME_US:
            sheet.put("holdfast_input_boundary_age_seconds", _s(now - moved_us), **of)


def _recovery(sheet: Sheet, recovery: Recovery, labels: dict[str, str]) -> None:
    """By the operator's own measure."""
    sheet.put("holdfast_replica_recovery_estimate_seconds", recovery.recovery_estimate_s, **labels)
    sheet.put_known("holdfast_replica_recovery_goal_seconds", recovery.recover_within_s, **labels)
    sheet.put_known("holdfast_replica_recovery_last_seconds", recovery.last_recovery_s, **labels)
    sheet.put("holdfast_replica_checkpoint_windows", recovery.windows, **labels)
    sheet.put("holdfast_replica_checkpoint_period_seconds", recovery.period_s, **labels)
    sheet.put("holdfast_replica_checkpoint_bytes", recovery.bytes, **labels)
    for kind, records in (("gopen", recovery.opened), ("gcheck", recovery.checked), ("r", recovery.closed)):
        sheet.put("holdfast_replica_checkpoint_records", records, kind=kind, **labels)


def _saves(sheet: Sheet, saves: tuple[Saves, ...], labels: dict[str, str]) -> None:
    """Of operators in the engine's workers, which keep their own counts."""
    for saved in saves:
        of = {**labels, "operator": saved.operator}
        for outcome, count in (("durable", saved.durable), ("dropped", saved.dropped)):
            sheet.put("holdfast_operator_checkpoints_total", count, outcome=outcome, **of)
        sheet.put("holdfast_operator_checkpoints_waiting", saved.waiting, **of)
        sheet.put("holdfast_operator_checkpoint_bytes", saved.bytes, **of)
        for kept, count in (("met", saved.met), ("missed", saved.missed)):
            sheet.put("holdfast_operator_deadlines_total", count, kept=kept, **of)
        sheet.put("holdfast_operator_deadline_late_seconds", saved.late_s, **of)
        sheet.put_known("holdfast_operator_restore_seconds", saved.last_restore_s, **of)


def _stream(sheet: Sheet, stream: str, size: LogSize | None) -> None:
    sheet.put("holdfast_stream_unreadable", size is None, stream=stream)
    if size is None:
        return
    sheet.put("holdfast_stream_bytes", size.bytes, stream=stream)
    sheet.put("holdfast_stream_tuples", size.tuples, stream=stream)
    sheet.put("holdfast_stream_closed", size.closed, stream=stream)
    sheet.put_known("holdfast_stream_boundary_timestamp_seconds", _instant(size.boundary_us), stream=stream)
    sheet.put_known("holdfast_stream_bound_bytes", size.bound_bytes, stream=stream)
    sheet.put("holdfast_stream_removed_tuples_total", size.head.removed_rows, stream=stream)
    sheet.put("holdfast_stream_removed_bytes_total", size.head.removed_bytes, stream=stream)
    sheet.put("holdfast_stream_retention_waiting", size.waits, stream=stream)
    if size.archive is not None:
        note, lag, state = size.archive
        lag_us = 0 if lag.since_us is None else max(0, now_us() - lag.since_us)
        sheet.put("holdfast_stream_archived_bytes", 0 if note is None else note.bytes, stream=stream)
        sheet.put("holdfast_stream_archived_tuples", 0 if note is None else note.rows, stream=stream)
        sheet.put("holdfast_stream_archive_waiting_bytes", lag.bytes, stream=stream)
        sheet.put("holdfast_stream_archive_lag_seconds", _s(lag_us), stream=stream)
        sheet.put("holdfast_stream_archive_failing", state.error is not None, stream=stream)
        sheet.put("holdfast_stream_archive_errors_total", state.errors_total, stream=stream)


def _sink(sheet: Sheet, said: dict[str, Any]) -> None:
    labels = {"sink": said["sink"], "stream": said["stream"]}
    sheet.put_state("holdfast_sink_state", SINK_STATES, said["state"], **labels)
    sheet.put("holdfast_sink_rows_total", said["rows"], **labels)
    sheet.put("holdfast_sink_errors_total", said["errors"], **labels)
    sheet.put_known("holdfast_sink_lag_seconds", said["lag_s"], **labels)


def _source(sheet: Sheet, said: dict[str, Any]) -> None:
    stream = said["stream"]
    sheet.put_state("holdfast_source_state", SOURCE_STATES, said["state"], stream=stream)
    sheet.put("holdfast_source_errors_total", said["failures"] + said.get("errors", 0), stream=stream)
    for name, word in (
        ("holdfast_source_rows_total", "rows"), ("holdfast_source_late_rows_total", "late"),
        ("holdfast_source_dead_rows_total", "dead"), ("holdfast_source_lag_records", "lag"),
        ("holdfast_source_lag_bytes", "lag_bytes"),
    ):  # fmt: skip
        sheet.put_known(name, said.get(word), stream=stream)


@cache
def _version() -> str:
    try:
        return metadata.version("holdfast-streams")
    except metadata.PackageNotFoundError:  # Run from a checkout.
        return "unknown"


def _s(us: int) -> float:
    return us / SECOND_US


def _instant(us: int) -> float | None:
    """A time of the stream; None before its beginning and after its end."""
    return us / SECOND_US if BEGINNING_US < us < FOREVER_US else None


def _span(since_us: int, until_us: int) -> float | None:
    """How much lies between two times of the stream, at least 0."""
    if _instant(since_us) is None or _instant(until_us) is None:
        return None
    return max(0, until_us - since_us) / SECOND_US
