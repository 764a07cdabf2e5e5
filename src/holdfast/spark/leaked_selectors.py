"""Closes what Spark leaves open in its JVM for every query over a source in Python that it starts.

`PythonWorkerFactory.createSimpleWorker` listens on a Unix socket for the reader that it starts, waits for it with a
selector of its own, and then closes the socket, but never the selector. A socket that a selector knows stays open until
the selector looks again, so three descriptors are left: the socket, the selector's epoll and its eventfd. A node starts
a query for every failure, and its host runs for years.

1. Nothing in the JVM refers to the selector any more; so it is closed by its descriptors, which nobody else closes:
   neither class has a cleaner. A version of Java in which one has is left alone.
2. What is closed is beyond doubt: a listening socket that was called as Spark calls it and whose file is gone, as Spark
   removes it after its last use of the three; an epoll that watches this socket and one eventfd and nothing else; and
   that eventfd.
3. Just before each is closed, the JVM itself says that it is still what it was. One thread does it at a time.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

_closing = threading.Lock()
_ACCEPTS = 0x10000
"""Of a socket's flags: it listens."""
_NAME = re.compile(r"/\.[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\.sock$")
_TARGET = re.compile(r"^tfd:\s*(\d+) .*\bino:([0-9a-f]+)\b", re.MULTILINE)
#: The classes of rule 1, and the type that a field of theirs must not have.
_CLASSES, _CLEANER = ("sun.nio.ch.EPollSelectorImpl", "sun.nio.ch.ServerSocketChannelImpl"), "java.lang.ref.Cleaner"


class Leaked(NamedTuple):
    """Descriptors of one query's start, and what they are."""

    epoll: int
    eventfd: int
    socket: int
    inode: int

    def targets(self) -> tuple[tuple[int, str], ...]:
        """Each with its link below /proc."""
        socket = f"socket:[{self.inode}]"
        return (self.epoll, "anon_inode:[eventpoll]"), (self.eventfd, "anon_inode:[eventfd]"), (self.socket, socket)


def close_leaked(spark: SparkSession) -> int:
    """Close what the queries that were started so far have left, and say how many those were."""
    jvm = spark._jvm
    assert jvm is not None
    with _closing:
        found = list(find_leaked(int(jvm.java.lang.ProcessHandle.current().pid())))
        if not found or _closes_itself(jvm):
            return 0
        for leaked in found:
            for number, target in leaked.targets():
                _close(jvm, number, target)
    log.debug("closed the selectors of %d queries that had started", len(found))
    return len(found)


def find_leaked(pid: int) -> Iterator[Leaked]:
    """Rule 2."""
    sockets = _abandoned_sockets()
    folder = Path(f"/proc/{pid}")
    for number, target in _descriptors(folder):
        if not target.endswith("[eventpoll]"):
            continue
        watched = [(int(fd), int(inode, 16)) for fd, inode in _TARGET.findall(_text(folder / "fdinfo" / str(number)))]
        listening = [(fd, inode) for fd, inode in watched if inode in sockets]
        others = [fd for fd, inode in watched if inode not in sockets]
        if len(listening) == len(others) == 1:
            (socket, inode), eventfd = listening[0], others[0]
            leaked = Leaked(number, eventfd, socket, inode)
            if all(_target(folder, fd) == target for fd, target in leaked.targets()):
                yield leaked


def _abandoned_sockets() -> set[int]:
    """The inodes of those listening sockets of this machine."""
    found = set()
    for line in _text(Path("/proc/net/unix")).splitlines()[1:]:
        fields = line.split(maxsplit=7)
        listening = len(fields) == 8 and int(fields[3], 16) & _ACCEPTS and _NAME.search(fields[7])
        if listening and not os.path.lexists(fields[7]):
            found.add(int(fields[6]))
    return found


def _descriptors(folder: Path) -> list[tuple[int, str]]:
    try:
        numbers = [int(name) for name in os.listdir(folder / "fd")]
    except OSError:  # Not a system with /proc, or a JVM that is not seen from here.
        return []
    return [(number, _target(folder, number)) for number in numbers]


def _target(folder: Path, number: int) -> str:
    try:
        return os.readlink(folder / "fd" / str(number))
    except OSError:  # Closed meanwhile.
        return ""


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _closes_itself(jvm: Any) -> bool:
    """Rule 1."""
    fields = [field for name in _CLASSES for field in jvm.java.lang.Class.forName(name).getDeclaredFields()]
    return any(str(field.getType().getName()).startswith(_CLEANER) for field in fields)


def _close(jvm: Any, number: int, target: str) -> None:
    """Rule 3. Spark opens `java.io` to reflection, for reasons of its own."""
    link = jvm.java.nio.file.Files.readSymbolicLink(jvm.java.io.File(f"/proc/self/fd/{number}").toPath())
    if jvm.java.util.Objects.toString(link) != target:
        return
    descriptor = jvm.java.io.FileDescriptor()
    field = descriptor.getClass().getDeclaredField("fd")
    field.setAccessible(True)
    field.setInt(descriptor, number)
    jvm.java.io.FileOutputStream(descriptor).close()
