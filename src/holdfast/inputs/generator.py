"""Synthetic rows at a steady rate, the same for the same seed.

Row `i` depends on the seed and on `i` alone, and its number is its sequence number: a generator that is killed and
started again goes on with the row after the last one that is durable. Columns with names from network monitoring
(source, destination, port, protocol, bytes, …) get values that look like connections; every other column gets values
by its type. `NETWORK_COLUMNS` declares a stream of such connections.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa

from holdfast.clock import monotonic_us
from holdfast.inputs.feed import Sent
from holdfast.model.errors import SchemaError, UsageError
from holdfast.stream.striped_producer import AnyProducer, send_numbered

NETWORK_COLUMNS = "source string, destination string, port int, protocol string, bytes bigint, duration_ms int"

#: How often a unit goes out: an fdatasync per row would limit the rate, a long wait would make it jerky.
_UNIT_US = 20_000
_UNIT_ROWS_MAX = 10_000
_HOSTS = 64
_PORTS = (443, 443, 443, 80, 80, 53, 22, 25, 3306, 8080)
_WORDS = ("amber", "basalt", "cedar", "delta", "ember", "fjord", "granite", "harbour")
_MASK = (1 << 64) - 1
_EPOCH = datetime(2026, 1, 1, tzinfo=UTC)

Maker = Callable[[int, int], Any]
"""From 64 random bits and the number of the row to a value."""


def mix(seed: int, row: int, column: int) -> int:
    """64 bits from three numbers (splitmix64): cheap, and the same on every machine and version."""
    z = (
        seed * 0x9E3779B97F4A7C15 + row * 0xBF58476D1CE4E5B9 + column * 0x94D049BB133111EB + 0x632BE59BD9B4E019
    ) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


class Generator:
    """Makes rows for a schema.

    >>> make = Generator(pa.schema([("source", pa.string()), ("bytes", pa.int64())]), seed=7)
    >>> make.row(0) == make.row(0)
    True
    """

    def __init__(self, schema: pa.Schema, *, seed: int = 0) -> None:
        self._seed = seed
        self._makers = [(f.name, _NETWORK.get((f.name, f.type)) or _by_type(f.name, f.type)) for f in schema]

    def row(self, number: int) -> dict[str, Any]:
        return {name: make(mix(self._seed, number, i), number) for i, (name, make) in enumerate(self._makers)}


class GeneratorInput:
    """Feeds generated rows, `rate` per second (0: as fast as they are taken), `count` of them or until `stop`."""

    def __init__(
        self, producer: AnyProducer, *, rate: float, seed: int = 0, count: int | None = None, id: str = "generator"
    ) -> None:
        if rate < 0 or rate > 1e7:
            raise UsageError(f"a rate must be 0 (as fast as possible) to 10000000 rows per second; got {rate}")
        self._producer, self._rate, self._count, self._id = producer, rate, count, f"{id}-{seed}"
        self._generator = Generator(producer.row_schema, seed=seed)
        self._stop = threading.Event()

    def stop(self) -> None:
        self._stop.set()

    def run(self, progress: Callable[[int, int], None] | None = None) -> Sent:
        first = number = self._producer.last_seq_of(self._id) + 1
        end = None if self._count is None else self._count
        begun_us = monotonic_us()
        while not self._stop.is_set() and (end is None or number < end):
            due = self._due(monotonic_us() - begun_us)
            upto = min(first + due, number + _UNIT_ROWS_MAX, end if end is not None else first + due)
            if upto > number:
                rows = [self._generator.row(i) for i in range(number, upto)]
                send_numbered(self._producer, rows, range(number, upto), upto - 1, self._id)
                number = upto
                if progress is not None and end is not None:
                    progress(number, end)
            if self._rate:
                # Until the next row is due, at least a unit's time.
                wait_us = max(_UNIT_US, (number - first + 1) / self._rate * 1e6 - (monotonic_us() - begun_us))
                self._stop.wait(min(wait_us, 1e6) / 1e6 if end is None or number < end else 0)
        return Sent(max(0, number - first))

    def _due(self, elapsed_us: int) -> int:
        return int(self._rate * (elapsed_us + _UNIT_US) / 1e6) if self._rate else 1 << 62


def _by_type(name: str, kind: pa.DataType) -> Maker:
    t = pa.types
    if t.is_integer(kind):
        top = 1 << (kind.bit_width - 1)
        return lambda r, i: r % min(top, 1_000_000)
    if t.is_list(kind):
        inner = _by_type(name, kind.value_type)
        return lambda r, i: [inner(mix(r, n, 0), i) for n in range(r % 4)]
    if t.is_struct(kind):
        fields = {f.name: _by_type(f.name, f.type) for f in kind}
        return lambda r, i: {k: make(mix(r, n, 1), i) for n, (k, make) in enumerate(fields.items())}
    if t.is_map(kind):
        key, item = _by_type(name, kind.key_type), _by_type(name, kind.item_type)
        return lambda r, i: list({key(mix(r, n, 2), i): item(mix(r, n, 3), i) for n in range(r % 3)}.items())
    if t.is_decimal(kind):
        places = 10 ** min(kind.precision, 6)
        return lambda r, i: Decimal(r % places).scaleb(-kind.scale)
    if t.is_timestamp(kind):
        # Ten a second, in order, so that it can serve as stime.
        zone = UTC if kind.tz else None
        return lambda r, i: (_EPOCH + timedelta(milliseconds=100 * i)).astimezone(UTC).replace(tzinfo=zone)
    simple: list[tuple[Callable[[pa.DataType], bool], Maker]] = [
        (t.is_boolean, lambda r, i: r % 2 == 0),
        (t.is_floating, lambda r, i: (r >> 11) / (1 << 53)),
        (t.is_string, lambda r, i: f"{_WORDS[r % len(_WORDS)]}-{(r >> 8) % 100}"),
        (t.is_binary, lambda r, i: r.to_bytes(8, "little")),
        (t.is_date, lambda r, i: date(2026, 1, 1) + timedelta(days=r % 365)),
    ]
    for test, make in simple:
        if test(kind):
            return make
    raise SchemaError(f"column {name!r} cannot be generated: no values of type {kind} are known")


def _host(prefix: str) -> Maker:
    # The product of two draws is skewed: a few hosts talk most, as on a real network.
    return lambda r, i: f"{prefix}{(r % _HOSTS) * ((r >> 16) % _HOSTS) // _HOSTS + 1}"


_NETWORK: dict[tuple[str, pa.DataType], Maker] = {
    ("source", pa.string()): _host("10.0.0."),
    ("destination", pa.string()): _host("192.168.1."),
    ("protocol", pa.string()): lambda r, i: ("tcp", "tcp", "tcp", "udp")[r % 4],
    **{("port", kind): (lambda r, i: _PORTS[r % len(_PORTS)]) for kind in (pa.int32(), pa.int64())},
    **{("duration_ms", kind): (lambda r, i: 1 + r % 30_000) for kind in (pa.int32(), pa.int64())},
    # Heavy-tailed: most connections are short, some carry nearly everything.
    ("bytes", pa.int64()): lambda r, i: 40 + (r % 1000) * (1 << (r >> 20) % 12),
    ("bytes", pa.int32()): lambda r, i: 40 + (r % 1000) * (1 << (r >> 20) % 12),
}  # fmt: skip
