"""holdfast replay"""

from __future__ import annotations

from typing import Annotated, Any

import pyarrow as pa
import typer

from holdfast.cli.session import Json, Name, Root, Session
from holdfast.cli.tuples import Printer
from holdfast.cli.units import counted
from holdfast.clock import monotonic_us, pause
from holdfast.model.time import END_OF_TIME_US, instant_us
from holdfast.stream.producer import Producer
from holdfast.stream.subscriber import Subscriber

#: A pause is cut into pieces, so that Ctrl-C is heard soon.
_NAP_US_MAX = 100_000


def command(
    name: Name,
    start: Annotated[str, typer.Option("--from", help="beginning, or a time.")] = "beginning",
    end: Annotated[str | None, typer.Option("--to", help="A time; otherwise what is complete now.")] = None,
    speed: Annotated[str, typer.Option(help="1x as it was, 10x faster, or max.")] = "1x",
    into: Annotated[str | None, typer.Option(help="Send into this stream instead of printing.")] = None,
    keep_time: Annotated[bool, typer.Option("--keep-time", help="With --into: keep each tuple's stime.")] = False,
    root: Root = None,
    json: Json = False,
) -> None:
    """Play a part of a stream again, at its own pace or another.

    \b
    holdfast replay monitor1 --from 2026-03-01T12:00 --to 2026-03-01T12:05
    holdfast replay monitor1 --speed 10x
    holdfast replay monitor1 --speed max --into monitor1-copy --keep-time
    """
    session = Session(root, json)
    stream = session.store.open(name)
    pace = _Pace(_factor(speed))
    total = stream.reader().rows
    with stream.subscribe(start=start, end=None if end is None else instant_us(end) / 1e6) as subscriber:
        if into is None:
            _print(session, subscriber, pace)
            return
        target = session.store.open(into)
        options: dict[str, Any] = {"stime": "stime"} if keep_time else {}
        producer = target.producer(**options)
        try:
            with session.progress(f"replay {name}") as show:
                rows = _send(subscriber, producer, pace, keep_time, lambda done: show(done, total))
        finally:
            producer.close(end=False)
    session.say(f"{into}: {counted(rows, 'tuple')} of {name}", stream=into, source=name, tuples=rows)


def _print(session: Session, subscriber: Subscriber, pace: _Pace) -> None:
    printer = Printer(session)
    for batch in subscriber.poll():
        for row in subscriber.rows_of(batch):
            if row.stime is not None and pace.wait(instant_us(row.stime), printer.flush):
                printer.flush()
            printer.show(row)
    printer.flush()


def _send(subscriber: Subscriber, producer: Producer, pace: _Pace, keep_time: bool, show: Any) -> int:
    done = 0
    for batch in subscriber.poll():
        data = pa.Table.from_batches([batch]).drop_columns(["tuple_type", "tuple_id"])
        stimes = data.column("stime").cast(pa.int64()).to_pylist()
        if not keep_time:
            data = data.drop_columns(["stime"])
        pace.wait(stimes[0], lambda: None)
        producer.send_batch(data)
        done += len(stimes)
        show(done)
    if keep_time and subscriber.position_us < END_OF_TIME_US and done:
        producer.advance(subscriber.position_us)
    return done


class _Pace:
    """Waits until it is a tuple's turn."""

    def __init__(self, factor: float | None) -> None:
        self._factor = factor
        self._begun_us = 0
        self._first_us: int | None = None

    def wait(self, stime_us: int, before: Any) -> bool:
        """Pause as long as it takes; `before` is called if there is a pause. True if there was one."""
        if self._factor is None:
            return False
        if self._first_us is None:
            self._first_us, self._begun_us = stime_us, monotonic_us()
        due = self._begun_us + (stime_us - self._first_us) / self._factor
        if due <= monotonic_us():
            return False
        before()
        while (left := due - monotonic_us()) > 0:
            pause(min(int(left) + 1, _NAP_US_MAX))
        return True


def _factor(speed: str) -> float | None:
    if speed == "max":
        return None
    try:
        factor = float(speed.removesuffix("x"))
    except ValueError:
        factor = 0
    if not 0 < factor < float("inf"):
        raise typer.BadParameter(f"--speed must be max or a factor above 0 such as 1x, 10x or 0.5x; got {speed!r}")
    return factor
