"""The manifest: which segments make up a branch, and who may write.

Rules:
1. A manifest is never changed, only followed: version v+1 is published with link(2), which fails if somebody else was
   first. That compare-and-set is how an epoch is granted (L7). On NFS the grant holds, but a writer
   notices it only as soon as its client looks again: mount with `noac` where writers on several machines may meet.
2. After v+1 is durable, v and whatever crashes left below it are unlinked, the oldest first; only then does a new owner
   look how far the log goes. So a writer that holds v open may speak as long as its file has that name: what it has
   made durable by then, a new owner finds. It is no longer the newest if v+1 exists *or* v does not, and looks in that
   order: v+1 cannot vanish before v has.
3. A segment that is not the last has a length; bytes beyond it were never accepted, whoever wrote them.
4. A segment that is kept in memory (`persist` of a stream) has a lease: its bytes are in the kernel's hands, not on
   stable storage. The lease is, and says what whoever read them may know at most, so that nothing is given out twice
   after the machine has lost them.
"""

from __future__ import annotations

import contextlib
import os
import re
import uuid
from functools import cache
from pathlib import Path

import msgspec

from holdfast.clock import pause
from holdfast.model.errors import CorruptLog, Fenced
from holdfast.stream.disk import Disk, storage_error
from holdfast.stream.frame import FORMAT_VERSION
from holdfast.stream.record import State
from holdfast.stream.resume import ResumePoint
from holdfast.stream.sealed import seal, unseal

_FILE = re.compile(r"manifest-(\d{10})")
SEGMENT_FILE = re.compile(r"\d{16}-\d{8}\.seg")
#: A listing made while one version follows another may miss both; it is repeated this often before they count as lost.
_LOOKS, _LOOK_US = 20, 5_000


class Lease(msgspec.Struct, frozen=True):
    """Rule 4: what a segment in memory may hold at most. Its writer renews it before it goes beyond."""

    boot: str
    """The machine and the time since it was started: in another one the bytes may be gone."""
    bucket_us: int
    state: State
    """Before the segment."""
    commit_seq: int
    next_tuple_id: int
    boundary_us: int


class SegmentEntry(msgspec.Struct, frozen=True):
    """One segment as the manifest lists it."""

    name: str
    base_seq: int
    """Commits of this segment have sequence numbers above this one."""
    epoch: int
    length: int | None = None
    """Bytes that count; None for the segment being written."""
    rows: int = 0
    stime_min_us: int | None = None
    stime_max_us: int | None = None
    wall_us: int = 0
    controls: tuple[int, ...] | None = None
    """Of checkpoints in a sealed segment: the highest position, and the oldest that the last of each operator and
    partition relies on. Empty if there are none; None if that was not noted, as before this field was."""
    lease: Lease | None = None
    """None: its bytes are on stable storage as far as they count."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    format: int = FORMAT_VERSION
    version: int
    epoch: int
    owner: str
    released: bool = False
    """The owner let go cleanly: no write of its own can still be on the way."""
    segments: tuple[SegmentEntry, ...] = ()
    resume: ResumePoint | None = None
    """A place in the last segment from which a walk over it may go on."""
    mends: int = 0
    """How often an operator took the boundary back (`mended`); of a mirror, how often at its origin."""

    def followed(
        self, segments: tuple[SegmentEntry, ...], *, released: bool = False, resume: ResumePoint | None = None
    ) -> Manifest:
        """The next version by the same owner."""
        return msgspec.structs.replace(
            self, version=self.version + 1, released=released, segments=segments, resume=resume
        )


@cache
def boot_id() -> str:
    """The same for all processes of a machine until it is started again. Where the system does not say: of this
    process alone, so that others look at what it left as at that of another machine."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        # Not its number: in a container that is the same one after every start.
        return f"process-{uuid.uuid4()}"


def unsettled(manifest: Manifest) -> bool:
    """Was something kept in the memory of a machine that has stopped since? The next writer finds out what is left."""
    return bool(_of_another_boot(manifest))


def kept_elsewhere(manifest: Manifest) -> bool:
    """Of what is unsettled: is some of it its owner's own? Then that is no successor about to settle it: if it lives,
    it lives on another machine, or in a container with a boot id of its own."""
    return any(s.epoch == manifest.epoch for s in _of_another_boot(manifest))


def _of_another_boot(manifest: Manifest) -> list[SegmentEntry]:
    return [s for s in manifest.segments if s.lease is not None and s.lease.boot != boot_id()]


def segment_name(base_seq: int, epoch: int) -> str:
    return f"{base_seq:016d}-{epoch:08d}.seg"


def manifest_path(folder: Path, version: int) -> Path:
    return folder / f"manifest-{version:010d}"


def manifest_versions(folder: Path) -> list[int]:
    return sorted(int(m[1]) for m in map(_FILE.fullmatch, os.listdir(folder)) if m)


def load_manifest(folder: Path) -> Manifest | None:
    """The newest manifest, or None where no writer ever came. A version unlinked under our eyes is looked up anew.

    Segments without a manifest are not an empty branch: whoever took them for one would write over them.
    """
    looks = 0
    while True:
        versions = manifest_versions(folder)
        if not versions:
            if not any(map(SEGMENT_FILE.fullmatch, os.listdir(folder))):
                return None
            looks += 1
            if looks == _LOOKS:
                raise CorruptLog(f"{folder}: the manifest is lost, the segments are there; run `holdfast repair`")
            pause(_LOOK_US)
            continue
        path = manifest_path(folder, versions[-1])
        with contextlib.suppress(FileNotFoundError):
            return unseal(path.read_bytes(), Manifest, str(path))


def unlink_older(folder: Path, version: int, disk: Disk) -> None:
    """Rule 2."""
    for older in manifest_versions(folder):
        if older < version:
            disk.unlink(manifest_path(folder, older))


class Tenure:
    """Holds the newest manifest open and notices when it is superseded."""

    def __init__(self, folder: Path, manifest: Manifest, disk: Disk) -> None:
        self.folder, self.manifest, self._disk, self._fd = folder, manifest, disk, -1
        self._hold(manifest)

    def _hold(self, manifest: Manifest) -> None:
        own, after = (manifest_path(self.folder, manifest.version + n) for n in range(2))
        try:
            fd = os.open(own, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise self.fenced() from None
        name, inode = str(own), os.fstat(fd).st_ino
        # One statement without a call: Ctrl-C comes before it or after it, never between.
        before, self._fd, self._next, self.manifest, self._own = self._fd, fd, after, manifest, (name, inode)
        if before >= 0:
            os.close(before)

    def valid(self) -> bool:
        """Is this manifest still the newest (rule 2)?"""
        try:
            os.stat(self._next)
        except FileNotFoundError:
            return self.may_speak()
        except OSError as error:  # Not knowing is not the same as being alone.
            raise storage_error("look at", self._next, error) from error
        return False

    def may_speak(self) -> bool:
        """Does what is durable now count (rule 2)? The quick half of `valid`, for every commit. The name says it, not
        the number of names: a copy made of links is one, and NFS gives another to an open file that is unlinked."""
        name, inode = self._own
        try:
            return os.stat(name).st_ino == inode
        except FileNotFoundError:
            return False
        except OSError as error:
            raise storage_error("look at", self._next, error) from error

    def fenced(self) -> Fenced:
        newest = load_manifest(self.folder)
        by = newest.owner if newest else "nobody"
        return Fenced(
            f"{self.folder}: epoch {self.manifest.epoch} of {self.manifest.owner} was superseded by {by}; "
            f"nothing sent after that was accepted; open the stream again to go on"
        )

    def follow(self, manifest: Manifest) -> None:
        """Publish the next version; raise `Fenced` if another writer was first."""
        assert manifest.version == self.manifest.version + 1
        if not self._disk.publish_file(self._next, seal(manifest)):
            raise self.fenced()
        if not self.may_speak():
            self._disk.unlink(self._next)  # Our version was long gone; what we published follows nothing.
            raise self.fenced()
        unlink_older(self.folder, manifest.version, self._disk)
        self._hold(manifest)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
