"""Archives or restores a stream in a process of its own, and is killed at a given step.

python -m tests.stream.archive_process archive|restore ROOT URL STEP

A step is one operation on the disk or on the object store that changes something, or half of an upload. Without being
killed it prints how many there were.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from holdfast.stream.archive import ranges
from holdfast.stream.archive.archiver import archive_once
from holdfast.stream.archive.expiry import expire
from holdfast.stream.archive.object_stores import open_objects
from holdfast.stream.archive.objects import ObjectStore
from holdfast.stream.archive.restore import restore_stream
from holdfast.stream.definition import Retention
from holdfast.stream.disk import Disk
from holdfast.stream.store import StreamStore

#: What is kept in the archive, so that something is removed from it as well.
KEPT = Retention(size_bytes=20_000)
LATE_US = 2_000_000_000


class Steps:
    """Counts, and ends the process at one of them."""

    def __init__(self, at: int) -> None:
        self.at, self.count = at, 0

    def step(self) -> None:
        if self.count == self.at:
            os.kill(os.getpid(), signal.SIGKILL)
        self.count += 1


class KilledDisk(Disk):
    def __init__(self, steps: Steps) -> None:
        self.steps = steps


def _killed(name: str):  # type: ignore[no-untyped-def]
    plain = getattr(Disk, name)

    def step(self: KilledDisk, *args: object) -> object:
        self.steps.step()
        return plain(self, *args)

    return step


for _name in ("write", "create", "truncate", "link", "rename", "unlink", "make_dir"):
    setattr(KilledDisk, _name, _killed(_name))


class KilledStore(ObjectStore):
    def __init__(self, inner: ObjectStore, steps: Steps) -> None:
        super().__init__(inner.url)
        self._inner, self._steps = inner, steps

    def put(self, key: str, parts: Iterable[bytes]) -> None:
        self._steps.step()
        self._inner.put(key, self._halved(parts))
        self._steps.step()

    def _halved(self, parts: Iterable[bytes]) -> Iterator[bytes]:
        for part in parts:
            yield part[: len(part) // 2]
            self._steps.step()
            yield part[len(part) // 2 :]

    def create(self, key: str, data: bytes) -> bool:
        self._steps.step()
        made = self._inner.create(key, data)
        self._steps.step()
        return made

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes:
        return self._inner.get(key, start, end)

    def sizes(self, prefix: str) -> dict[str, int]:
        return self._inner.sizes(prefix)

    def folders(self, prefix: str) -> list[str]:
        return self._inner.folders(prefix)

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._steps.step()
            self._inner.delete([key])


def archive(root: Path, steps: Steps) -> None:
    """All that happens to the tiers of a stream: archived, taken from the disk, removed from the archive."""
    disk = KilledDisk(steps)
    stream = StreamStore(root, disk=disk, clock=lambda: LATE_US).open("s")
    url = stream.definition.archive
    assert url is not None
    ranges.process().stores[url] = objects = KilledStore(open_objects(url), steps)
    archive_once(stream.folder / "main", stream.definition, disk=disk, clock=lambda: LATE_US)
    stream.retain(Retention(size_bytes=1))
    expire(stream.folder / "main", stream.definition, objects, disk, LATE_US, KEPT)


def restore(root: Path, url: str, steps: Steps) -> None:
    root.mkdir(exist_ok=True)
    objects = KilledStore(open_objects(url), steps)
    restore_stream(root, "s", url, now_us=LATE_US, disk=KilledDisk(steps), objects=objects)


def main(what: str, root: Path, url: str, at: int) -> int:
    steps = Steps(at)
    if what == "archive":
        archive(root, steps)
    else:
        restore(root, url, steps)
    return steps.count


if __name__ == "__main__":
    print(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])))
