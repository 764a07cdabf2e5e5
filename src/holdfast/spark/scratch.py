"""The state of operators on the machine they ran on: quick, never synced, and never relied upon.

Rules:
1. Scratch is of one boot. After a power failure, what was never synced may be anything; it counts as lost.
2. Scratch that is damaged counts as lost as well: it is removed, and the state comes from the store that outlives the
   machine, or the operator's policy says what is done without it.
3. One task at a time is in a partition's scratch; the next one waits for a while, for the one before it to let go.
4. What partition p of n has lies under "p-of-n". Earlier versions wrote "p". States that lie as another number of
   partitions left them are dealt out anew, if those of none are missing.
"""

from __future__ import annotations

import contextlib
import shutil
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from holdfast.checkpoint.slots import Slots
from holdfast.checkpoint.store import Saved
from holdfast.checkpoint.stores.log import LogStore
from holdfast.model.errors import CorruptLog, StorageError, StreamBusy
from holdfast.stream.disk import VolatileDisk

#: How long a task waits for the one before it, on another worker, to let go of the scratch.
_BUSY_S = 20.0
_BOOT, _OF = "boot-", "-of-"


class ScratchLost(CorruptLog):
    """Something in scratch is damaged; all of it was removed."""


def of_this_boot(folder: Path, prefix: str = _BOOT) -> Path:
    """Rule 1: the part of a scratch folder that was written since the machine started. Without a prefix, nothing else
    may lie there."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    name = prefix + (boot.read_text().strip() if boot.exists() else "unknown")
    for other in folder.glob(f"{prefix}*"):
        if other.name != name:
            shutil.rmtree(other, ignore_errors=True)  # Nobody is left who could want it.
    return folder / name


def partition_name(partition: int, partitions: int) -> str:
    """Rule 4."""
    return f"{partition}{_OF}{partitions}"


def is_of(name: str, partitions: int) -> bool:
    """Whether it is that of one of so many."""
    return name.endswith(f"{_OF}{partitions}")


def layouts(names: Iterable[str], unsaid: int | None = None, *, whole: bool = True) -> Iterator[list[str]]:
    """Rule 4: the names of all partitions in order, for each number of them of which none is missing; or, if not
    `whole`, of those that are there.

    `unsaid` is the number of those that do not say it; None: as many as there are.
    """
    found: dict[str, dict[int, str]] = {}
    for name in names:
        partition, _, of = name.partition(_OF)
        if partition.isdigit() and (of.isdigit() or name == partition):
            found.setdefault(of, {})[int(partition)] = name
    for of, named in sorted(found.items()):
        number = int(of) if of else unsaid or len(named)
        if not whole or set(named) == set(range(number)):
            yield [named[partition] for partition in sorted(named)]


@contextlib.contextmanager
def opened(folder: Path) -> Iterator[Slots]:
    """The states in a folder. Where they turn out to be damaged: none from the beginning, or `ScratchLost` later."""
    store = _opened(folder)
    try:
        with store:
            yield Slots(store)
    except ScratchLost as error:
        _remove(folder, error)
        raise


class _Scratch(LogStore):
    """Tells its own damage from that of other stores."""

    def _read(self, keys: Sequence[bytes]) -> list[Saved | None]:
        try:
            return super()._read(keys)
        except CorruptLog as error:
            raise ScratchLost(str(error)) from error

    def scan(self, prefix: bytes = b"") -> list[tuple[bytes, int]]:
        try:
            return super().scan(prefix)
        except CorruptLog as error:
            raise ScratchLost(str(error)) from error


def _opened(folder: Path) -> _Scratch:
    until, removed = time.monotonic() + _BUSY_S, False
    while True:
        try:
            return _Scratch(folder, background=False, disk=VolatileDisk())
        except StreamBusy:
            if time.monotonic() > until:
                raise
            time.sleep(0.01)
        except StorageError as error:
            if removed:  # Then it is the disk, not what was on it.
                raise
            _remove(folder, error)
            removed = True


def _remove(folder: Path, error: StorageError) -> None:
    warnings.warn(f"scratch is damaged and counts as lost: {error}", RuntimeWarning, stacklevel=2)
    shutil.rmtree(folder, ignore_errors=True)
