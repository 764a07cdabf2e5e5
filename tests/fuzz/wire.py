"""Bytes that claim to come from another host: messages, portions, definitions, cursors, contracts' messages."""

from __future__ import annotations

import json
import random
import struct
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_args

import msgspec

import holdfast
from holdfast.clock import now_us
from holdfast.host import wire
from holdfast.load import message_codec as load_wire
from holdfast.load.remote_task import Tributary
from holdfast.protocol.dpc import messages
from holdfast.protocol.dpc.signals import Lane
from holdfast.protocol.dpc.states import StreamState
from holdfast.protocol.load.ledger import Entry
from holdfast.protocol.load.messages import Message as LoadMessage
from holdfast.protocol.load.usage import Task, Usage
from holdfast.stream.definition import define
from holdfast.stream.frame import crc32c
from holdfast.stream.writer import Event
from tests.faults.units import QuietDisk
from tests.fuzz.target import Target, Wrong, mutated

_ODD: list[Any] = [
    None,
    True,
    -1,
    0,
    2**31,
    2**63,
    -(2**63) - 1,
    2**64,
    10**400,
    0.5,
    1e308,
    "",
    "a",
    "../x",
    "\0",
    "x" * 300,
    [],
    {},
    [1] * 300,
    {"kind": "ack"},
]
_ROUND = 100


class Wire(Target):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._definition = define("s", "n bigint, l array<decimal(10,2)>", id="ab" * 16, now_us=0, bucket="1s")
        self._filled = holdfast.StreamStore(folder / "streams", disk=QuietDisk()).create("s", "n bigint", exist_ok=True)
        self._tributary = Tributary(self._filled, "fuzz")

    def round(self, chance: random.Random) -> None:
        for _ in range(_ROUND):
            data = wire.encode_message("a", "b", _message(chance))
            self._changed("message", data, chance, wire.decode_message)
            data = load_wire.encode_message("anna", "ben", _load_message(chance))
            self._changed("contract message", data, chance, load_wire.decode_message)
            data = wire.encode_definition(self._definition)
            self._changed("definition", data, chance, wire.decode_definition)
            report = messages.StreamReport("s", chance.choice(list(StreamState)), chance.getrandbits(60), True)
            self._changed("report", wire.encode_report(report), chance, wire.decode_report)
            self._changed("last", wire.encode_last(chance.getrandbits(60), 3), chance, wire.decode_last)
            cursor = wire.Cursor("ab", chance.getrandbits(60), 5, 7).text.encode()
            raw = mutated(cursor, chance).decode("utf-8", "replace")
            self.refused_or("cursor", lambda raw=raw: wire.parse_cursor(raw), raw)
            self._portion(chance)
            self._promise(chance)

    def _changed(self, what: str, data: bytes, chance: random.Random, decode: Any) -> None:
        raw = (
            mutated(data, chance, [b"[" * 2000, b'{"a":' * 2000, b"9" * 5000, b"\\ud800"])
            if chance.random() < 0.5
            else _twisted(data, chance)
        )
        found = self.refused_or(what, lambda: decode(raw), raw)
        if found is not None:
            repr(found)

    def _portion(self, chance: random.Random) -> None:
        portion = _some_portion(chance)
        data = b"".join(wire.encode_portion(portion, wire.INPUTS_VERSION))
        raw = mutated(data, chance)
        found = self.refused_or("portion", lambda: wire.decode_portion(raw), raw)
        if found is not None and found != portion:
            raise Wrong(f"portion: {raw!r:.300} was taken for {found!r:.300}")
        # A liar computes its checksums as well.
        prefix = struct.Struct("<8sHHII")
        magic, version, reserved, length, _ = prefix.unpack_from(data)
        head = mutated(data[prefix.size : prefix.size + length], chance)
        if chance.random() < 0.5:
            values = msgspec.msgpack.decode(data[prefix.size : prefix.size + length])
            values[chance.randrange(len(values))] = chance.choice(
                [v for v in _ODD if v != 10**400 and v not in (2**64, -(2**63) - 1)]
            )
            head = msgspec.msgpack.encode(values)
        crafted = prefix.pack(magic, version, reserved, len(head), crc32c(head)) + head + data[prefix.size + length :]
        self.refused_or("crafted portion", lambda: wire.decode_portion(crafted), crafted)

    def _promise(self, chance: random.Random) -> None:
        """A partner's boundary, and its end: what no input has promised neither freezes nor ends our stream (D10)."""
        boundary_us = chance.choice([0, now_us(), 2**62, 2**63 - 1])
        boundary_us += chance.getrandbits(chance.choice([1, 20, 35, 61]))
        shape, closed = wire.shape_of(self._filled.definition), chance.random() < 0.2
        portion = replace(
            _some_portion(chance), shape=shape, events=(), closed=closed, boundary_us=min(boundary_us, 2**63 - 1)
        )
        inputs_us = chance.choice([-(2**62), 0, now_us()])
        self.refused_or("promise", lambda: self._tributary.take(portion, inputs_us), portion)
        if self._tributary.closed or self._tributary.boundary_us > now_us() + 3_600_000_000:
            raise Wrong(f"promise: {portion!r:.300} was believed, though the inputs are at {inputs_us}")


def _twisted(data: bytes, chance: random.Random) -> bytes:
    """JSON of the same form with one value replaced."""
    value = json.loads(data)
    place: Any = value
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            return json.dumps(value).encode()
        key = chance.choice(keys)
        if isinstance(place[key], dict | list) and place[key] and chance.random() < 0.7:
            place = place[key]
            continue
        place[key] = chance.choice(_ODD)
        if isinstance(place, dict) and chance.random() < 0.1:
            place["more"] = 1
        return json.dumps(value).encode()


def _message(chance: random.Random) -> Any:
    reports = tuple(messages.StreamReport("s", state, chance.getrandbits(40), True) for state in StreamState)
    return chance.choice(
        [
            messages.KeepaliveRequest(),
            messages.KeepaliveReply(reports),
            messages.AuthorisationRequest(chance.getrandbits(50)),
            messages.AuthorisationReply(True, 5),
            messages.AuthorisationDone(7),
            messages.Ack("s", chance.getrandbits(60)),
        ]
    )


def _load_message(chance: random.Random) -> Any:
    kind = chance.choice(get_args(LoadMessage))
    entry = Entry("l1", 0, "c1", "anna", "ben", 1.0, 2.0, 7)
    known: dict[str, Any] = {
        "price": 1.5,
        "units": 2.0,
        "period": 3,
        "have": -1,
        "void": True,
        "hold_us": 5,
        "task_ids": ("a", "b"),
        "tasks": (Task("t", Usage(1.0, 2.0, 3.0), "counts", 0.5),),
        "leases": (("a", "b"),),
        "entries": (entry,),
    }
    return kind(**{field.name: known.get(field.name, "x:1") for field in fields(kind)})


def _some_portion(chance: random.Random) -> wire.Portion:
    events = tuple(
        Event(n, n % 3, 5, n * 10, n * 10 + 5, chance.randbytes(chance.choice([0, 1, 100])), n * 5)
        for n in range(chance.randrange(4))
    )
    return wire.Portion(
        "s",
        chance.choice(list(Lane)),
        "ab" * 8,
        7,
        "1.ab.0.0.0",
        chance.getrandbits(60),
        False,
        chance.getrandbits(50),
        events,
        None,
        None,
        0,
        ((1, 0.5),),
        tuple(wire.Span(n, 0.25, ("a",), ("b", "c")) for n in range(chance.randrange(3))),
    )
