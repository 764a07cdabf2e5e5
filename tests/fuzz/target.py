"""A fuzz target: something from outside, tried again and again, each round from a seed."""

from __future__ import annotations

import random
import traceback
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from holdfast.model.errors import HoldfastError


class Wrong(Exception):
    """Something was taken and came back different."""


class Target(ABC):
    """Rules: a round depends on its seed alone, so it can be played again; it counts what it tries in `tried`, and it
    raises `Wrong`, or whatever Holdfast raised that it should not have."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tried: Counter[str] = Counter()

    @abstractmethod
    def round(self, chance: random.Random) -> None:
        """Some hundred tries at most: a round that takes ten seconds counts as a hang."""

    def refused_or(self, what: str, call: Callable[[], Any], about: Any) -> Any:
        """The result; None if it was refused with an error of ours. Any other error is wrong."""
        self.tried[what] += 1
        try:
            return call()
        except HoldfastError as error:
            if "\n" in str(error).strip() or len(str(error)) > 4000:
                raise Wrong(
                    f"{what}: refused with more than a sentence: {str(error)[:300]!r} for {about!r:.300}"
                ) from None
            return None
        except Exception as error:
            trace = traceback.format_exc().splitlines()
            raise Wrong(f"{what}: {type(error).__name__}: {error!s:.200} for {about!r:.300}; {trace[-3:-1]}") from None


def mutated(data: bytes, chance: random.Random, fragments: Iterable[bytes] = ()) -> bytes:
    """The bytes with some of them flipped, cut, doubled, moved or replaced."""
    out = bytearray(data)
    for _ in range(chance.choice([1, 1, 1, 2, 4, 16])):
        at = chance.randrange(len(out) + 1)
        length = chance.choice([1, 1, 2, 4, 8, 64, 1024])
        match chance.randrange(9):
            case 0 | 1 if at < len(out):
                out[at] ^= 1 << chance.randrange(8)
            case 2 if at < len(out):
                out[at] = chance.choice([0, 1, 0x7F, 0x80, 0xFF, ord("9"), ord('"'), ord("{"), ord("<")])
            case 3:
                del out[at : at + length]
            case 4:
                out[at:at] = out[at : at + length]
            case 5:
                out[at:at] = chance.randbytes(length)
            case 6:
                out[at : at + 8] = chance.choice([0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1]).to_bytes(
                    8, chance.choice(["little", "big"])
                )
            case 7 if fragments:
                out[at : at + chance.choice([0, length])] = chance.choice(list(fragments))
            case 8:
                del out[at:]
    return bytes(out)
