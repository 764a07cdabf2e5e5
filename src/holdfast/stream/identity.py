"""What a query computes, noted beside its checkpoint: a state is used only by the definition that made it (C12).

Rules:
1. The note is a sealed file in the checkpoint's folder: it goes where the checkpoint goes, and with it.
2. It is made before the query first runs, and compared before each later start. A checkpoint from before there were
   notes gets one at its next start.
3. Texts of plans and of Python's instructions are compared only between equal versions of Spark and Python, and of
   Holdfast's rules; what was noted by others is noted anew.
4. Inputs that are read where they are written count by the id of their stream: one that was deleted and made anew under
   its name holds nothing of what the state has counted. Mirrors do not: replicas of a stream have ids of their own.
5. A start that was refused leaves what it would have computed beside the node. An operator's answer to it (`Upgrade`)
   holds for exactly that definition: another change is refused again.
"""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta

from holdfast.stream.disk import Disk
from holdfast.stream.frame import FORMAT_VERSION, crc32c
from holdfast.stream.sealed import seal, unseal

T = TypeVar("T", bound=msgspec.Struct)
NOTE = "identity"
#: Longer ones are cut when they are shown; what differs stands in the middle.
_SHOWN_MAX, _AROUND, _LINES_MAX = 160, 40, 4
_CODE = re.compile(r"code [0-9a-f]+$")
_TOKEN = re.compile(r"\w+|\W")
_LINES = Annotated[tuple[Annotated[str, Meta(max_length=1 << 20)], ...], Meta(max_length=100_000)]


class Identity(msgspec.Struct, frozen=True):
    """What is computed, line by line."""

    lines: _LINES
    spark: Annotated[str, Meta(max_length=64)] = ""
    """Whose text of plans this is, and by which rules of ours (rule 3)."""
    python: Annotated[str, Meta(max_length=64)] = ""
    """Whose instructions the fingerprints of functions are of."""
    inputs: Annotated[dict[str, str], Meta(max_length=10_000)] = {}
    """Ids of the streams that are read where they are written, by name (rule 4)."""
    format: int = FORMAT_VERSION

    @property
    def number(self) -> str:
        return f"{crc32c(seal(self)):08x}"


class Upgrade(msgspec.Struct, frozen=True):
    """What an operator says of a refused start."""

    identity: str
    """The number of the definition that it is said of."""
    what: Literal["compatible", "anew"]
    from_us: int | None = None
    """First result of the new definition; None: where the output ends."""
    replay_us: int | None = None
    """How much input before it makes a fresh state; None: all there is."""
    format: int = FORMAT_VERSION


class Refused(msgspec.Struct, frozen=True):
    """A start that was refused: what it would have computed, and the stream it writes."""

    identity: Identity
    output: str
    bucket_us: int
    differences: _LINES
    misfits: _LINES = ()
    """Those of them by which the state cannot be carried over: operators with state, their keys and windows."""
    format: int = FORMAT_VERSION


def read_identity(checkpoint: Path) -> Identity | None:
    return _read(checkpoint / NOTE, Identity)


def note_identity(checkpoint: Path, identity: Identity, disk: Disk | None = None) -> None:
    """Rule 2. The folder is made if need be."""
    disk = disk or Disk()
    disk.make_dir(checkpoint)
    disk.replace_file(checkpoint / NOTE, seal(identity))


def has_begun(checkpoint: Path) -> bool:
    """Whether the query of that checkpoint has read anything: else there is no state that might not fit."""
    offsets = checkpoint / "offsets"
    return offsets.is_dir() and any(path.name.isdigit() for path in offsets.iterdir())


def read_refused(home: Path) -> Refused | None:
    return _read(home / "refused", Refused)


def read_upgrade(home: Path) -> Upgrade | None:
    return _read(home / "upgrade", Upgrade)


def write_refused(home: Path, refused: Refused) -> None:
    Disk().replace_file(home / "refused", seal(refused))


def write_upgrade(home: Path, upgrade: Upgrade) -> None:
    Disk().replace_file(home / "upgrade", seal(upgrade))


def settle(home: Path) -> None:
    """Nothing is refused any more."""
    for name in ("upgrade", "refused"):
        Disk().unlink(home / name)


def _read(path: Path, kind: type[T]) -> T | None:
    try:
        return unseal(path.read_bytes(), kind, str(path))
    except FileNotFoundError:
        return None


def differences(before: Identity, now: Identity) -> list[str]:
    """What changed, as lines that begin with - and +, long ones cut down to where they differ (rules 3 and 4)."""
    found: list[str] = []
    for name, id in now.inputs.items():
        if before.inputs.get(name, id) != id:
            found += [f"- input {name}: stream {before.inputs[name]}", f"+ input {name}: stream {id}, made anew since"]
    return found if before.spark != now.spark else found + _changed_lines(before, now)


def _changed_lines(before: Identity, now: Identity) -> list[str]:
    olds, news = before.lines, now.lines
    if before.python != now.python:
        olds, news = (tuple(_CODE.sub("code", line) for line in lines) for lines in (olds, news))
    found: list[str] = []
    for kind, a, b, c, d in difflib.SequenceMatcher(a=olds, b=news, autojunk=False).get_opcodes():
        if kind == "equal":
            continue
        for old, new in zip(olds[a:b], news[c:d], strict=False):
            found += [f"- {old}", f"+ {new}"] if len(old) + len(new) < _SHOWN_MAX else _cut(old, new)
        paired = min(b - a, d - c)
        found += [f"- {_short(line)}" for line in olds[a + paired : b]]
        found += [f"+ {_short(line)}" for line in news[c + paired : d]]
    return found


def _cut(old: str, new: str) -> list[str]:
    """The first place where two long lines differ, with its surroundings."""
    a, b = _TOKEN.findall(old), _TOKEN.findall(new)
    same = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    at = len("".join(a[:same]))
    shown = []
    for sign, line in (("-", old), ("+", new)):
        first, last = max(0, at - _AROUND), at + 2 * _AROUND
        text = f"{'…' if first else ''}{line[first:last].strip()}{'…' if last < len(line) else ''}"
        shown.append(f"{sign} {text}")
    return shown


def _short(line: str) -> str:
    return line if len(line) <= _SHOWN_MAX else f"{line[:_SHOWN_MAX]}…"


def told(lines: list[str]) -> str:
    """Differences in a sentence."""
    shown = " | ".join(line.replace("  ", "") for line in lines[:_LINES_MAX])
    return f"{shown} | and {len(lines) - _LINES_MAX} lines more" if len(lines) > _LINES_MAX else shown


def changed(checkpoint: Path, identity: Identity, state: Path | None = None) -> list[str]:
    """What of the definition is not as it was when the state in the checkpoint was made; empty: the state fits.
    `state`: where that lies, if not beside the note."""
    before = read_identity(checkpoint)
    return differences(before, identity) if before is not None and has_begun(state or checkpoint) else []
