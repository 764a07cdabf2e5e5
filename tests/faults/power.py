"""A disk that remembers what is durable, and what a power cut may leave of the rest.

Rules of the model:
1. Bytes are durable once their file was synced; names once their folder was synced. Nothing else is.
2. At a cut, each 512-byte sector of each write since the last sync was written or not, on its own; a file that had
   grown has its old length, its new one, or one between, and what was not written is zeros.
3. Each change of a name since the folder's last sync happened or not, on its own; a rename is one change.
4. The tail is written behind the disk's back and never synced: any version it ever had may be there, or none.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from pathlib import Path

from holdfast.stream.disk import Disk

SECTOR = 512


class PowerCut(BaseException):
    """Not an Exception: no handler of the code under test may take it for an error of its own."""


class _File:
    def __init__(self, durable: bytes = b"") -> None:
        self.durable = durable
        self.pending: list[tuple[int, bytes | None]] = []
        """(offset, bytes written) or (length, None) for a cut."""

    def after_cut(self, chance: random.Random) -> bytes:
        data = bytearray(self.durable)
        for offset, raw in self.pending:
            if raw is None:
                if chance.random() < 0.5:
                    del data[offset:]
                continue
            luck = chance.choice((0.0, 0.3, 0.7, 1.0))
            end = offset + len(raw)
            at = offset
            while at < end:
                stop = min(end, (at // SECTOR + 1) * SECTOR)
                if chance.random() < luck:
                    if len(data) < stop:
                        data.extend(bytes(stop - len(data)))
                    data[at:stop] = raw[at - offset : stop - offset]
                at = stop
            if len(data) < end and chance.random() < 0.3:
                data.extend(bytes(chance.randint(1, end - len(data))))
        return bytes(data)


class _Dir:
    def __init__(self) -> None:
        self.durable: dict[str, _File | _Dir] = {}
        self.pending: list[dict[str, _File | _Dir | None]] = []

    def now(self) -> dict[str, _File | _Dir]:
        return _applied(self.durable, self.pending)

    def after_cut(self, chance: random.Random) -> dict[str, _File | _Dir]:
        luck = chance.choice((0.0, 0.5, 0.5, 1.0))
        return _applied(self.durable, [change for change in self.pending if chance.random() < luck])


def _applied(
    names: dict[str, _File | _Dir], changes: Sequence[dict[str, _File | _Dir | None]]
) -> dict[str, _File | _Dir]:
    found = dict(names)
    for change in changes:
        for name, target in change.items():
            if target is None:
                found.pop(name, None)
            else:
                found[name] = target
    return found


class PowerDisk(Disk):
    """Works on real files below `root`, all of which are durable at the beginning; the power goes at step `cut_at`."""

    def __init__(self, root: Path, cut_at: int | None = None) -> None:
        self.root, self.cut_at, self.steps, self.dead = root, cut_at, 0, False
        self._inodes: dict[int, _File] = {}
        self._tails: dict[Path, list[bytes]] = {}
        self._folders: set[Path] = set()
        self._top = self._load(root)

    def _load(self, folder: Path) -> _Dir:
        found = _Dir()
        self._folders |= {folder} if folder.name == "main" else set()
        for path in folder.iterdir():
            if path.is_dir():
                found.durable[path.name] = self._load(path)
            elif not path.name.startswith("tail-"):
                file = self._inodes.setdefault(path.stat().st_ino, _File(path.read_bytes()))
                found.durable[path.name] = file
        self._note_tails()
        return found

    def _note_tails(self) -> None:
        for path in [p for folder in self._folders for p in folder.glob("tail-*")]:
            versions = self._tails.setdefault(path, [])
            data = path.read_bytes()
            if not versions or versions[-1] != data:
                versions.append(data)

    def _dir(self, path: Path) -> _Dir:
        found = self._top
        for part in path.relative_to(self.root).parts:
            below = found.now()[part]
            assert isinstance(below, _Dir)
            found = below
        return found

    def _step(self) -> None:
        if not self.dead:
            self._note_tails()
            self.steps += 1
        if self.dead or self.steps == self.cut_at:
            self.dead = True
            raise PowerCut

    def write(self, fd: int, path: Path, offset: int, parts: Sequence[bytes]) -> int:
        file = self._inodes[os.fstat(fd).st_ino]
        file.pending.append((offset, b"".join(parts)))  # Before the step: the cut may come inside.
        self._step()
        return super().write(fd, path, offset, parts)

    def write_direct(self, fd: int, path: Path, offset: int, block: memoryview) -> int:
        self._inodes[os.fstat(fd).st_ino].pending.append((offset, bytes(block)))
        self._step()
        return super().write_direct(fd, path, offset, block)

    def sync(self, fd: int, path: Path) -> None:
        self._step()
        stat = os.fstat(fd)
        file = self._inodes[stat.st_ino]
        file.durable, file.pending = os.pread(fd, stat.st_size, 0), []

    def sync_dir(self, path: Path) -> None:
        self._step()
        folder = self._dir(path)
        folder.durable, folder.pending = folder.now(), []

    def create(self, path: Path) -> int:
        self._step()
        fd = super().create(path)
        file = self._inodes[os.fstat(fd).st_ino] = _File()
        self._dir(path.parent).pending.append({path.name: file})
        return fd

    def truncate(self, fd: int, path: Path, length: int) -> None:
        self._step()
        self._inodes[os.fstat(fd).st_ino].pending.append((length, None))
        super().truncate(fd, path, length)

    def link(self, old: Path, new: Path) -> bool:
        self._step()
        won = super().link(old, new)
        if won:
            self._dir(new.parent).pending.append({new.name: self._dir(old.parent).now()[old.name]})
        return won

    def rename(self, old: Path, new: Path) -> None:
        self._step()
        super().rename(old, new)
        moved = self._dir(old.parent).now()[old.name]
        if old.parent == new.parent:
            self._dir(old.parent).pending.append({old.name: None, new.name: moved})
        else:
            raise AssertionError("no rename crosses folders")

    def unlink(self, path: Path) -> None:
        self._step()
        super().unlink(path)
        self._dir(path.parent).pending.append({path.name: None})

    def make_dir(self, path: Path) -> None:
        if path.is_dir():
            return
        missing = [p for p in (path, *path.parents) if not p.exists()]
        self._step()
        for new in reversed(missing):
            self._dir(new.parent).pending.append({new.name: _Dir()})
            self._folders |= {new} if new.name == "main" else set()
        super().make_dir(path)

    def restart(self, into: Path, chance: random.Random) -> None:
        """Lay out below `into` what the machine finds when the power is back."""
        contents: dict[int, bytes] = {}

        def lay_out(folder: _Dir, path: Path, live: Path) -> None:
            path.mkdir(parents=True, exist_ok=True)
            for name, target in folder.after_cut(chance).items():
                if isinstance(target, _Dir):
                    lay_out(target, path / name, live / name)
                elif not name.startswith("tail-"):
                    if id(target) not in contents:
                        contents[id(target)] = target.after_cut(chance)
                    (path / name).write_bytes(contents[id(target)])
            for tail, versions in self._tails.items():
                if tail.parent == live and chance.random() < 0.7:
                    kept = chance.choice((versions[-1], chance.choice(versions)))
                    (path / tail.name).write_bytes(kept)

        lay_out(self._top, into, self.root)
