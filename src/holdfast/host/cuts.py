"""Links that are cut on purpose: how they are written, and which hosts have to know.

    a-b           everything between the hosts a and b, both ways; both are told
    monitor3>a    the stream monitor3 no longer reaches host a; a is told
    monitor3      the same for every host that reads it; becomes monitor3>HOST for each of them

Rules:
1. A host is told links in the first two forms only, and only those that concern it.
2. If a text could mean a pair of hosts and a stream, it means the hosts; `stream>host` always means the stream.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from holdfast.host.catalog import Catalog
from holdfast.model.errors import UsageError


@dataclass(frozen=True, slots=True)
class Cut:
    """One link, in its one spelling."""

    hosts: tuple[str, ...]
    """Who has to know: both ends, or the reader."""
    stream: str | None = None
    """The stream that no longer arrives; None: nothing does."""

    @property
    def text(self) -> str:
        return "-".join(self.hosts) if self.stream is None else f"{self.stream}>{self.hosts[0]}"


def cuts_meant(text: str, hosts: tuple[str, ...], catalog: Callable[[], Catalog]) -> tuple[Cut, ...]:
    """The links that a text names. The catalog is asked for only if it names a stream: that runs the application."""
    pairs = [Cut((a, b)) for i, a in enumerate(hosts) for b in hosts[i + 1 :] if text in (f"{a}-{b}", f"{b}-{a}")]
    if len(pairs) == 1:
        return tuple(pairs)
    if pairs:
        raise UsageError(
            f"the link {text!r} must name two hosts; it can be read as {' or as '.join(str(p.hosts) for p in pairs)}; "
            "rename a host"
        )
    stream, arrow, host = text.partition(">")
    known = catalog()
    if stream not in known.diagram.streams or (arrow and host not in hosts):
        raise UsageError(
            f"a link must be HOST-HOST, STREAM>HOST or STREAM; got {text!r}; hosts are {', '.join(hosts)}, streams are "
            f"{', '.join(known.diagram.streams)}"
        )
    readers = known.reading_hosts(stream)
    if arrow and host not in readers:
        raise UsageError(
            f"the link {text!r} is not there: nobody on {host!r} reads {stream!r}; it is read on "
            f"{', '.join(readers) or 'no host'}"
        )
    if not readers:
        raise UsageError(f"the link {text!r} is not there: no host reads {stream!r}; name a stream that a node reads")
    return tuple(Cut((reader,), stream) for reader in ((host,) if arrow else readers))
