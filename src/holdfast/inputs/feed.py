"""From lines to a producer: decoded, sent as one unit, poison refused or put aside.

Rules:
1. A line that cannot be decoded, or whose tuple comes too late or far too early, stops the input with one sentence
   that names it. With dead letters it is put aside, with its position and the reason, and the others go on.
2. Dead letters are durable before the unit behind them is sent. After a crash in between they are written once more; a
   tuple never is.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import msgspec

from holdfast.inputs.decode import Decoder
from holdfast.model.errors import EarlyTuple, LateTuple, SchemaError
from holdfast.stream.disk import Disk, storage_error
from holdfast.stream.striped_producer import AnyProducer, send_numbered, untimely_numbered

#: Lines sent as one unit: enough to make an fdatasync cheap per line, few enough to be acknowledged soon.
LINES_MAX = 1000
#: A longer line is no row of anybody's; without a bound it would be collected for ever (X4).
LINE_BYTES_MAX = 16 << 20


class Line(NamedTuple):
    text: bytes
    where: str
    seq: int | None
    """The sequence number once this line and all before it are in."""


class Sent(NamedTuple):
    """What an input did so far."""

    rows: int = 0
    duplicates: int = 0
    dead: int = 0
    late: int = 0

    def __add__(self, other: object) -> Sent:
        assert isinstance(other, Sent)
        return Sent(*(a + b for a, b in zip(self, other, strict=True)))


class DeadLetters:
    """A file of JSON lines with what could not be sent, where it came from and why."""

    def __init__(self, path: Path, disk: Disk | None = None) -> None:
        self.path, self._disk = path, disk or Disk()
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise storage_error("open", path, error) from error

    def put(self, lines: Sequence[tuple[Line, str]]) -> None:
        """One line for each; returns when they are durable."""
        entries = [{"where": line.where, "error": why, **letter_text(line.text)} for line, why in lines]
        self._append(letter_lines(entries))

    def complete(self, at: int, text: bytes) -> None:
        """Append lines that were to begin at `at`, or what a kill has left out of them; those that are there stay."""
        there = os.pread(self._fd, len(text), at)
        self._append(text[len(there) :] if text.startswith(there) else text)

    def _append(self, text: bytes) -> None:
        self._disk.write(self._fd, self.path, os.fstat(self._fd).st_size, [text])
        self._disk.sync(self._fd, self.path)

    def close(self) -> None:
        os.close(self._fd)

    def __enter__(self) -> DeadLetters:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def letter_lines(entries: Sequence[Mapping[str, Any]]) -> bytes:
    """As they stand in the file."""
    return b"".join(msgspec.json.encode(entry) + b"\n" for entry in entries)


def letter_text(value: bytes | None) -> dict[str, str]:
    """What was refused, as text; its bytes as well where they are none."""
    if value is None:
        return {}
    try:
        return {"text": value.decode()}
    except UnicodeDecodeError:
        return {"text": value.decode("utf-8", "replace"), "base64": base64.b64encode(value).decode()}


class Feed:
    """Sends decoded lines through one producer."""

    def __init__(self, producer: AnyProducer, decoder: Decoder, dead_letters: DeadLetters | None = None) -> None:
        self.producer, self.decoder, self._dead = producer, decoder, dead_letters
        self.total = Sent()

    def send(self, lines: Sequence[Line], producer_id: str | None = None) -> Sent:
        """Send the lines as one unit under the last one's sequence number; return when they are durable."""
        rows: list[dict[str, Any]] = []
        good: list[Line] = []
        poison: list[tuple[Line, str]] = []
        for line in lines:
            try:
                row = self.decoder.row(line.text, line.where)
            except SchemaError as error:
                if self._dead is None:
                    # What came before the poison is sound and must not be held back by it.
                    self._unit(good, rows, good[-1].seq if good else None, producer_id)
                    raise SchemaError(f"stream {self.decoder.stream}: {error}") from None
                poison.append((line, str(error)))
                continue
            if row is not None:
                rows.append(row)
                good.append(line)
        if poison and self._dead is not None:
            self._dead.put(poison)
        done = self._unit(good, rows, lines[-1].seq if lines else None, producer_id)
        done += Sent(dead=len(poison))
        self.total += Sent(dead=len(poison))
        return done

    def _unit(self, lines: list[Line], rows: list[dict[str, Any]], seq: int | None, producer_id: str | None) -> Sent:
        late = 0
        while rows or seq is not None:
            numbers = [line.seq for line in lines if line.seq is not None]
            try:
                if seq is None or len(numbers) < len(rows):
                    ack = self.producer.send_many(rows, seq=seq, producer_id=producer_id)
                else:
                    ack = send_numbered(self.producer, rows, numbers, seq, producer_id)
            except (LateTuple, EarlyTuple) as error:
                found = untimely_numbered(self.producer, rows, numbers, seq, producer_id)
                if not found:
                    continue  # What was early has become timely meanwhile.
                if self._dead is None:
                    first = found[0]
                    self._unit(lines[:first], rows[:first], lines[first - 1].seq if first else None, producer_id)
                    raise type(error)(f"{lines[first].where}: {error}") from None
                self._dead.put([(lines[i], str(error)) for i in found])
                late += len(found)
                lines = [line for i, line in enumerate(lines) if i not in found]
                rows = [row for i, row in enumerate(rows) if i not in found]
                continue
            done = Sent(ack.rows, len(rows) if ack.duplicate else 0, 0, late + ack.dropped)
            self.total += done
            return done
        return Sent()
