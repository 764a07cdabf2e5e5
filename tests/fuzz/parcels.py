"""Parcels of a partner: cut, flipped and crafted ones. Nothing is written outside their folder."""

from __future__ import annotations

import random
import shutil
import struct
from pathlib import Path
from typing import Any

import msgspec

from holdfast.host.parcel import Unpacking, pack
from holdfast.stream.definition import define
from holdfast.stream.frame import crc32c
from holdfast.stream.waiting import Waiting
from tests.fuzz.target import Target, Wrong, mutated

_PATHS = [
    "../x",
    "/etc/x",
    "a/../../x",
    "a//b",
    "",
    ".",
    "..",
    "a\0b",
    "x" * 300,
    "a/" * 40 + "b",
    "é",
    "a\\b",
    "offsets/7",
    "offsets",
    "offsets/7/8",
    "CON",
    "a\n",
]
_PREFIX = struct.Struct("<8sHHII")
_ROUND = 10


class Parcels(Target):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        checkpoint = folder / "checkpoint"
        for name, body in {
            "offsets/7": b"v1",
            "state/0/1/8.delta": b"x" * 3000,
            "metadata": b"",
            "commits/7": b"c",
        }.items():
            (checkpoint / name).parent.mkdir(parents=True, exist_ok=True)
            (checkpoint / name).write_bytes(body)
        definition = define("counts", "n bigint", id="ab" * 16, now_us=0)
        self._packed = b"".join(pack("anna:1#0", "counts", definition, Waiting({}, 3, b"three rows", 5), checkpoint))

    def round(self, chance: random.Random) -> None:
        for _ in range(_ROUND):
            raw = mutated(self._packed, chance)
            self._take("parcel", raw, chance, honest=True)
            self._take("crafted parcel", self._crafted(chance), chance, honest=False)

    def _crafted(self, chance: random.Random) -> bytes:
        """A liar's: other paths, lengths and fields, with the right checksums."""
        magic, version, reserved, length, _ = _PREFIX.unpack_from(self._packed)
        head = msgspec.msgpack.decode(self._packed[_PREFIX.size : _PREFIX.size + length])
        file = chance.choice(head["files"])
        match chance.randrange(4):
            case 0 | 1:
                file[0] = chance.choice(_PATHS)
            case 2:
                file[chance.choice([1, 2])] = chance.choice([0, 1, 2**31, 2**32, 2**62, -1, "a", None])
            case 3:
                head[chance.choice(list(head))] = chance.choice(
                    [None, 0, -1, 2**62, "../x", b"", b"{}", [], [["a", 1]], 0.5]
                )
        raw = msgspec.msgpack.encode(head)
        return (
            _PREFIX.pack(magic, version, reserved, len(raw), crc32c(raw)) + raw + self._packed[_PREFIX.size + length :]
        )

    def _take(self, what: str, raw: bytes, chance: random.Random, *, honest: bool) -> None:
        outside = self.folder / "outside"
        inside = outside / "in" / "parcel"
        shutil.rmtree(outside, ignore_errors=True)
        inside.mkdir(parents=True)
        unpacking = Unpacking(inside)
        portion = chance.choice([7, 100, 1 << 20])

        def through() -> Any:
            for at in range(0, len(raw), portion):
                unpacking.feed(raw[at : at + portion])
            return unpacking.finish()

        try:
            found = self.refused_or(what, through, raw)
        finally:
            unpacking.close()
        strays = [p for p in outside.rglob("*") if p.is_file() and inside not in p.parents]
        if strays:
            raise Wrong(f"{what}: wrote {strays} outside its folder")
        if honest and found is not None and raw != self._packed:
            raise Wrong(f"{what}: a changed parcel was taken: {raw!r:.300}")
