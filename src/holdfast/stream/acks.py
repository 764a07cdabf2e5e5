"""Acknowledgements: how far each named subscriber has come (003 §4.9.3).

One small file per subscriber. Retention removes nothing that one of them has not acknowledged (L8, D14).
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec

from holdfast.model.errors import UsageError
from holdfast.model.names import check_name
from holdfast.stream.disk import Disk
from holdfast.stream.frame import FORMAT_VERSION
from holdfast.stream.sealed import seal, unseal

#: Under this name a host notes what all replicas that read the stream have acknowledged.
REPLICAS = "replicas"


def check_subscriber(name: str) -> str:
    """Return `name` if a subscriber may have it."""
    if name == REPLICAS:
        raise UsageError(f"a subscriber must not be called {REPLICAS!r}: the nodes that read the stream stand under it")
    return check_name(name)


class Acknowledged(msgspec.Struct, frozen=True):
    format: int = FORMAT_VERSION
    until_us: int = 0
    """The subscriber needs nothing before this stime any more."""
    wall_us: int = 0
    position: str | None = None
    """Where it goes on (see `position`); None: by whoever does not resume, or written before there were any."""
    taken_back: bool = False
    """By an operator, with the boundary: the next word counts, of a reader that was started anew, whatever it says."""


def _folder(stream_folder: Path) -> Path:
    return stream_folder / "acks"


def acknowledge(
    stream_folder: Path, subscriber: str, until_us: int, now_us: int, disk: Disk, position: str | None = None
) -> None:
    """Note durably that `subscriber` needs nothing before `until_us`. It never goes back, unless an operator took it
    back; within the same bucket the last word counts."""
    folder = _folder(stream_folder)
    path = folder / check_name(subscriber)
    known = read_acks(stream_folder).get(subscriber)
    if known is not None and known.taken_back:
        known = None
    if known is not None and (
        known.until_us > until_us or (known.until_us == until_us and position in (None, known.position))
    ):
        return
    disk.make_dir(folder)
    disk.replace_file(path, seal(Acknowledged(until_us=until_us, wall_us=now_us, position=position)))


def forget(stream_folder: Path, subscriber: str, disk: Disk) -> None:
    """The subscriber is gone for good; retention need not wait for it."""
    disk.unlink(_folder(stream_folder) / check_name(subscriber))


def read_acks(stream_folder: Path) -> dict[str, Acknowledged]:
    folder = _folder(stream_folder)
    if not folder.is_dir():
        return {}
    found = {}
    for path in sorted(folder.iterdir()):
        if not path.name.startswith("."):
            with contextlib.suppress(FileNotFoundError):  # Forgotten since we looked.
                found[path.name] = unseal(path.read_bytes(), Acknowledged, str(path))
    return found
