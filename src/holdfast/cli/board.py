"""All replicas of a deployment at a glance: what `holdfast status` shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from holdfast.cli.hosts import (
    CheckpointStatus,
    HostClient,
    HostStatus,
    ReplicaStatus,
    SavesStatus,
    SinkStatus,
    SourceStatus,
)
from holdfast.cli.session import Session
from holdfast.cli.units import age_text
from holdfast.clock import monotonic_us, now_us
from holdfast.host.catalog import Catalog
from holdfast.host.deployment import Deployment
from holdfast.model.errors import PeerError
from holdfast.model.time import BEGINNING_US, END_OF_TIME_US, instant_text
from holdfast.stream.report import ReportReader

if TYPE_CHECKING:
    from rich.text import Text

_COLUMNS = ("host", "replica", "state", "stable until", "lag", "output", "fork", "reads")
#: Stable is certain, a failure brings guesses, stabilisation takes them back, recovery says nothing yet.
_COLOURS = {"STABLE": "green", "UP_FAILURE": "yellow", "STABILIZATION": "cyan", "RECOVERING": "magenta",
            "FAILURE": "red", "FAILED": "bold red", "down": "bold red", "AWAY": "blue"}  # fmt: skip


def draw(session: Session, deployment: Deployment) -> None:
    catalog = Catalog(deployment.load_app().diagram(), deployment)
    drawn = catalog.diagram
    if session.json:
        session.emit(
            app=drawn.app, mermaid=drawn.to_mermaid(), producers={s: catalog.producers(s) for s in drawn.streams}
        )
        return
    print(drawn.to_text())
    for stream in drawn.streams:
        print(f"{stream}: {', '.join(catalog.producers(stream))}")


def below(session: Session) -> None:
    """What replicas in a process of this machine have left beside the streams that they write."""
    rows = []
    for name in session.store.names():
        look = ReportReader(session.store.open(name).folder)
        look.refresh()
        if look.report is None:
            continue
        age_us, alive = monotonic_us() - look.renewed_us, look.lives
        state, until = look.report.state.name if alive else "down", instant_text(look.report.main_us)
        if session.json:
            session.emit(stream=name, up=alive, state=look.report.state.name, stable_until=until, said_us_ago=age_us)
        rows.append((name, state, until.partition(".")[0], f"{age_text(age_us)} ago"))
    if session.json:
        return
    if rows:
        session.table(("stream", "state", "stable until", "said so"), rows)
    else:
        print(
            f"no node writes below {session.store.root}; name the file of a deployment: `holdfast status netmon.yaml`"
        )


def show(session: Session, asked: list[HostClient], answers: list[HostStatus | PeerError]) -> None:
    if session.json:
        for client, answer in zip(asked, answers, strict=True):
            if isinstance(answer, PeerError):
                session.emit(host=client.spec.name, up=False, error=str(answer))
            else:
                session.emit(up=True, **msgspec.to_builtins(answer))
        return
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for name in _COLUMNS:
        table.add_column(name, overflow="fold")
    for client, answer in zip(asked, answers, strict=True):
        for row in _rows(client, answer, now_us()):
            table.add_row(*row)
    session.out.print(table)
    cuts = {cut: None for answer in answers if isinstance(answer, HostStatus) for cut in answer.cuts}
    if cuts:
        print(f"cut on purpose: {', '.join(_plain(cut) for cut in cuts)}")
    for answer in answers:
        if isinstance(answer, PeerError):
            print(answer)
            continue
        for source in answer.sources:
            print(_plain(_source_text(source)))
        for sink in answer.sinks:
            print(_plain(f"sink {sink.sink} on {answer.host}: {sink_text(sink)}"))
        for replica in answer.replicas:
            if replica.why is not None:
                print(_plain(f"{replica.replica} ({replica.state}): {replica.why}"))
            if replica.checkpoints is not None:
                print(_plain(f"{replica.replica}: {checkpoints_text(replica.checkpoints)}"))
            for saved in replica.saves:
                print(_plain(f"{replica.replica}: {saved.operator}: {saves_text(saved)}"))
            if replica.output is not None and ";" in (replica.output.retention or ""):  # It did something, or waits.
                print(_plain(f"{replica.output.stream} of {replica.replica} keeps: {replica.output.retention}"))


def _source_text(source: SourceStatus) -> str:
    text = f"{source.stream} from {source.origin}: {source.state}"
    if source.lag is not None:
        text += f", {source.lag} records behind, {source.rate or 0:.0f} a second"
    if source.lag_bytes is not None:
        text += f", {source.lag_bytes} bytes behind, {source.rate or 0:.0f} rows a second"
    if source.dead or source.late:
        text += f", {source.dead} did not fit, {source.late} too late or early"
    return f"{text}: {source.why}" if source.why else text


def sink_text(sink: SinkStatus) -> str:
    """How a sink does, in a line."""
    lag = "lag unknown" if sink.lag_s is None else f"lag {sink.lag_s:g} s"
    if sink.removed_before is not None:
        lag += f", without what was removed before {sink.removed_before}"
    why = "" if sink.why is None else f": {sink.why}"
    return f"{sink.state}, {sink.stream} into {sink.target}, {sink.rows} rows, {sink.rows_per_s:g} rows/s, {lag}{why}"


def checkpoints_text(c: CheckpointStatus) -> str:
    """What checkpoints cost and are worth, in a line."""
    text = (
        f"{c.windows} open windows, checkpoints reach back {c.extent_s:g} s (T = {c.period_s:g} s), "
        f"{c.opened + c.checked + c.closed} records in {c.bytes} bytes with the last batch; a recovery would take some "
        f"{c.recovery_estimate_s:.3g} s"
    )
    if c.last_recovery_s is not None:
        text += f", the last one took {c.last_recovery_s:.3g} s"
    return text if c.broken_goal is None else f"{text}; {c.broken_goal}"


def saves_text(s: SavesStatus) -> str:
    """What the checkpoints of an operator in Spark's workers have come to, in a line."""
    text = f"{s.durable} checkpoints in its store, {s.waiting} on their way, {s.dropped} dropped, {s.bytes} bytes"
    if s.met or s.missed:
        text += f"; {s.met} deadlines met, {s.missed} missed"
    if s.missed:
        text += f", by {s.late_s:.3g} s at most"
    return text if s.last_restore_s is None else f"{text}; its state last came back in {s.last_restore_s:.3g} s"


def _rows(client: HostClient, answer: HostStatus | PeerError, now: int) -> list[list[Text]]:
    name = client.spec.name
    if isinstance(answer, PeerError):
        return [_cells([name, "", "down"])]
    if not answer.replicas:
        return [_cells([name, "", "up"])]
    return [_cells(_row(name, replica, now), replica) for replica in answer.replicas]


def _row(host: str, r: ReplicaStatus, now: int) -> list[str]:
    until = r.stable_until_us
    known = until is not None and BEGINNING_US < until < END_OF_TIME_US
    position = "-" if until is None or until <= BEGINNING_US else instant_text(until).partition(".")[0]
    output = "-" if r.output is None else f"{r.output.stream} {r.output.state}{' +branch' if r.output.fresh else ''}"
    fork = "-" if r.fork is None or r.fork.state.upper() == "NONE" else r.fork.state.lower()
    reads = "\n".join(
        f"{i.stream}: {', '.join(i.reading) or 'nobody'}{' (failing)' if i.failing else ''}" for i in r.inputs
    )
    lag = age_text(now - until) if known and until is not None else "-"
    return [host, r.replica, r.state, position, lag, output, fork, reads]


def _cells(row: list[str], replica: ReplicaStatus | None = None) -> list[Text]:
    from rich.text import Text

    cells = [Text("\n".join(map(_plain, cell.split("\n")))) for cell in row]
    cells[2].stylize(_COLOURS.get(row[2], ""))
    if replica is not None and replica.output is not None:
        cells[5].stylize(_COLOURS.get(replica.output.state, ""))
    if replica is not None and any(i.failing for i in replica.inputs):
        cells[7].highlight_regex(r".*\(failing\)", "red")
    return cells


def _plain(text: str) -> str:
    """A control character in an answer must not move the cursor of whoever looks at it."""
    return "".join(char if char.isprintable() else "�" for char in text)
