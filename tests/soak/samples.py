"""How large the processes of a host are, what it has on disk and how long its batches take; and whether that grows.

Rules:
1. Processes are found below those that we started, never by name. They are of three kinds: the host itself, Spark's
   JVM, and Spark's Python workers.
2. A batch lasts from the file in which Spark notes its offsets to the one in which it notes its commit.
3. Growth is the lower quartile in the last quarter of the time beside that in the second: the first is for warming up.
   What something takes at rest grows with a leak, and does not hang on how many failures a quarter has happened to have
   (a fork has workers of its own while it runs).
4. A heap fills up to its limit with what is no longer used. So the JVM gets its heap at once (`WHOLE_HEAP`): what its
   memory grows by lies outside. What its heap still holds is counted now and then, which takes it a full collection;
   one that moves everything, for most leave up to a twentieth of the heap where it is, and what lies between counts.
5. Memory that several processes share, as forked workers do, is divided among them (the kernel's Pss).
6. Descriptors are counted by what they are as well. Those series are not judged; they say what has come where the sum
   has grown. The same holds for the number of processes: Spark keeps as many workers as it ever needed at once.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tests.spark.processes import descendants

#: More than this is no longer flat.
GROWTH_MAX = 0.05
Sample = dict[str, float]
#: Rule 4, for a heap of 512 MB.
WHOLE_HEAP = "-Xms512m -XX:+AlwaysPreTouch -XX:MarkSweepDeadRatio=0"
#: The heap is looked at with every so manieth sample: every five minutes.
HEAP_EVERY = 60
#: Of the series of rule 6.
_OF_WHICH = ": of which "
_PROCESSES = ": processes"
#: States of TCP that say something, as /proc/net/tcp has them.
_STATES = {"01": "established", "08": "closed by the other side", "0A": "listening"}


def process_sizes(name: str, pid: int) -> Sample:
    """Memory, threads and descriptors of a host's processes, by kind; what has just gone counts for nothing."""
    found: Sample = {}
    for number, command in [(pid, "host"), *descendants(pid, forked=True)]:
        kind = "host" if number == pid else "jvm" if "java" in command.partition(" ")[0] else "workers"
        with contextlib.suppress(OSError, KeyError, StopIteration):
            lines = (line.split(":", 1) for line in Path(f"/proc/{number}/status").read_text().splitlines())
            said = {key: value.strip() for key, value in lines}
            sizes = {
                f"{name} {kind}{_PROCESSES}": 1,
                f"{name} {kind}: memory, MB": _memory_mb(number),
                f"{name} {kind}: threads": int(said["Threads"]),
                f"{name} {kind}: descriptors": len(list(Path(f"/proc/{number}/fd").iterdir())),
            }
            for what, many in descriptors(number).items():
                sizes[f"{name} {kind}{_OF_WHICH}{what}"] = many
            for key, value in sizes.items():
                found[key] = found.get(key, 0) + value
    return found


def _memory_mb(pid: int) -> float:
    """Rule 5."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def live_heap(name: str, pid: int | None) -> Sample:
    """Rule 4, of the host with this process. Nothing where there is no JVM, or Java's tools are not installed."""
    found: Sample = {}
    for number, command in [] if pid is None else descendants(pid):
        if "java" in command.partition(" ")[0] and (jcmd := shutil.which("jcmd")) is not None:
            said = subprocess.run([jcmd, str(number), "GC.class_histogram"], capture_output=True, text=True, timeout=60)
            if said.returncode == 0:
                found[f"{name} jvm: heap in use, MB"] = int(said.stdout.split()[-1]) / (1 << 20)
    return found


def descriptors(pid: int) -> Counter[str]:
    """What a process has open. Files go by their path with numbers and ids left out, sockets by their state."""
    sockets, found = _sockets(pid), Counter[str]()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            kind, _, rest = os.readlink(descriptor).partition(":")
            if kind == "socket":
                found[sockets.get(rest.strip("[]"), "other sockets")] += 1
            elif kind.startswith("/"):
                found[re.sub(r"[0-9a-f]{8,}|\d+", "#", kind)] += 1
            else:
                found[rest if kind == "anon_inode" else kind] += 1
    return found


def _sockets(pid: int) -> dict[str, str]:
    """By inode."""
    found = {}
    for family, column in (("tcp", 9), ("tcp6", 9), ("unix", 6)):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/net/{family}").read_text(errors="replace").splitlines()[1:]:
                fields = line.split()
                state = "" if family == "unix" else " " + _STATES.get(fields[3], fields[3])
                found[fields[column]] = f"{family.rstrip('6')} sockets{state}"
    return found


def judged(key: str) -> bool:
    """Rule 6."""
    return _OF_WHICH not in key and not key.endswith(_PROCESSES)


def table(found: Mapping[str, tuple[float, float, float]], notes: Mapping[str, str]) -> str:
    """What is judged, and of the rest what has changed."""
    lines = [f"{'':60} {'second quarter':>14} {'last quarter':>14} {'growth':>8}"]
    for key, (before, after, more) in sorted(found.items()):
        if judged(key) or after != before:
            lines.append(f"{key:60} {before:14,.1f} {after:14,.1f} {more:8.1%}{notes.get(key, '')}")
    return "\n".join(lines)


def bytes_below(folder: Path, without: Iterable[Path] = ()) -> int:
    """What a folder takes on disk."""
    left_out, total = set(map(str, without)), 0
    for place, folders, files in os.walk(folder):  # Leaves out what goes meanwhile, as forks do.
        folders[:] = [name for name in folders if os.path.join(place, name) not in left_out]
        for name in (*folders, *files):
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(place, name)).st_blocks * 512
    return total


class BatchTimes:
    """How long the batches of one query took, each once."""

    def __init__(self, checkpoints: Path) -> None:
        self._checkpoints, self._seen = checkpoints, -1

    def new(self) -> list[float]:
        """Milliseconds of the batches that were committed since the last look."""
        times = []
        for commit in sorted(self._checkpoints.glob("checkpoint*/commits/[0-9]*"), key=lambda path: int(path.name)):
            number = int(commit.name)
            if number > self._seen:
                with contextlib.suppress(OSError):
                    begun = (commit.parent.parent / "offsets" / commit.name).stat().st_mtime
                    times.append(max(0.0, commit.stat().st_mtime - begun) * 1000)
                self._seen = number
        return times


def growth(samples: Sequence[Sample]) -> Mapping[str, tuple[float, float, float]]:
    """For everything that was sampled: its lower quartile in the second quarter, in the last, and how much more it is.

    >>> growth([{"x": 1}, {"x": 2}, {"x": 2}, {"x": 3}])
    {'x': (2, 3, 0.5)}
    """
    quarter = len(samples) // 4
    second, last = samples[quarter : 2 * quarter], samples[-quarter:]
    found = {}
    for key in dict.fromkeys(key for sample in samples for key in sample):
        a, b = ([_value(sample, key) for sample in part if key in sample or not judged(key)] for part in (second, last))
        if a and b:
            before, after = (sorted(part)[len(part) // 4] for part in (a, b))
            found[key] = (before, after, after / before - 1 if before else 0.0)
    return found


def _value(sample: Sample, key: str) -> float:
    """Of what a process can have open it often has none."""
    return sample[key] if judged(key) else sample.get(key, 0)
