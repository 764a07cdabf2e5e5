"""The live console of a host: one look at everything, again and again, made once for all pages that are open.

Rules:
1. Pages get the whole when they come, and merge patches from then on (`feed`, `merge_patch`). Looking costs the same
   for one page and for fifty; without a page, nothing is encoded.
2. It looks when nobody does as well: what happened (`event_log`) and the pictures of past failures are there for
   whoever comes later. All of it is bounded.
3. A console must never end its host. Whatever goes wrong in a look is said in the host's log, and the next one follows.
4. Streams that a page shows are looked at four times a second, the others with everything else, in slices, so that
   nodes are not held up.
5. Logs are opened in threads: one whose writer was killed is read from its last seal on, which may take long. Whoever
   asked for that picture waits for it, and nobody else.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import msgspec

from holdfast.clock import monotonic_us, now_us
from holdfast.console.event_log import EventLog, Happened
from holdfast.console.feed import Feed, framed
from holdfast.console.live_picture import LivePicture
from holdfast.console.merge_patch import patch_of
from holdfast.model.errors import HoldfastError, UnknownStream
from holdfast.model.time import BEGINNING_US, END_OF_TIME_US, SECOND_US
from holdfast.stream.acks import read_acks
from holdfast.stream.store import StreamStore

log = logging.getLogger(__name__)

#: A page is at most so old, and what it takes to be told: together less than a second. benches.console measures both,
#: and what it costs.
LOOK_US = 7 * SECOND_US // 10
_WATCH_S = 0.25
#: Pictures that are kept although nobody looks; each is a few open files and two system calls a look.
RECORDED_MAX = 256
#: What is said of the others while nobody looks at them.
NOT_WATCHED = "NOT WATCHED"
_SLICE = 16
#: A stream that is not there, or cannot be read, is tried again after this long.
_RETRY_US = SECOND_US
#: How long one that could not be read twice is left alone.
_DAMAGED_US = 60 * SECOND_US
#: Nearly every log is open by then; one that is not is in a later look.
_OPEN_S = 0.2
#: Threads are made when they are first needed. Two: a log that takes long leaves the other.
_openers = ThreadPoolExecutor(2, "console-open")

Status = Callable[[], Mapping[str, Any]]


class LiveConsole:
    """`facts` are what seldom changes: host, app, nodes, streams. `recorded` are the streams that lie here."""

    def __init__(self, facts: Mapping[str, Any], status: Status, store: StreamStore, recorded: Sequence[str]) -> None:
        self._facts, self._status, self._store = dict(facts), status, store
        self._recorded = tuple(recorded)
        self._pictures: dict[str, LivePicture] = {}
        self._opening: dict[str, asyncio.Task[LivePicture | None]] = {}
        self._retry_us: dict[str, int] = {}
        self._unreadable: dict[str, str] = {}
        self._there: set[str] = set()
        self._since: dict[str, tuple[str, int]] = {}
        self.log = EventLog()
        self._untold: list[Happened] = []
        self._document: dict[str, Any] = {}
        self.feed = Feed(self._whole)

    def adopt(self, facts: Mapping[str, Any], recorded: Sequence[str]) -> None:
        """The deployment was changed."""
        self._facts, self._recorded = dict(facts), tuple(recorded)

    # Life -----------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Look until cancelled."""
        due_us = 0
        try:
            while True:
                if (now := monotonic_us()) >= due_us:
                    due_us = now + LOOK_US
                    await self._guarded(self._look())
                else:
                    await self._guarded(self._watch())
                watched = any(picture.feed.listeners for picture in self._pictures.values())
                left_s = max(0.0, (due_us - monotonic_us()) / SECOND_US)
                await asyncio.sleep(min(left_s, _WATCH_S) if watched else left_s)
        finally:
            self.end()

    async def _guarded(self, look: Any) -> None:
        """Rule 3."""
        try:
            await look
        except Exception:
            log.exception("the console could not look; it tries again")

    def end(self) -> None:
        """Let every page go, and close the files."""
        self.feed.end()
        for picture in self._pictures.values():
            picture.close()
        self._pictures, self._opening = {}, {}

    # Looking --------------------------------------------------------------------------------------------------------

    async def _look(self) -> None:
        names = [*self._recorded[:RECORDED_MAX], *self._asked_for()]
        await self._open_all(names)
        for number, name in enumerate(names):
            self._look_at(name)
            if number % _SLICE == _SLICE - 1:
                await asyncio.sleep(0)
        await self._find_unwatched()
        before, self._document = self._document, self._described()
        if before:
            self._untold += self.log.compare(before, self._document)
        happened, self._untold = self._untold, []

        def change() -> bytes:
            patch = patch_of(before, self._document)
            return msgspec.json.encode({**patch, "happened": happened} if happened else patch)

        self.feed.publish("patch", change)

    async def _find_unwatched(self) -> None:
        """A page asks for the picture of what is told: a stream that is not there yet has none."""
        if missing := [name for name in self._recorded[RECORDED_MAX:] if name not in self._there]:
            self._there |= set(missing).intersection(await asyncio.to_thread(self._store.names))

    def _asked_for(self) -> list[str]:
        """Streams beyond those that are always looked at; let go of when the last page has gone."""
        always = set(self._recorded[:RECORDED_MAX])
        for name in [name for name in self._pictures if name not in always]:
            if not self._pictures[name].feed.listeners:
                self._pictures.pop(name).close()
        return [name for name in self._pictures if name not in always]

    async def _watch(self) -> None:
        for name in [name for name, picture in self._pictures.items() if picture.feed.listeners]:
            self._look_at(name)

    def _look_at(self, name: str) -> None:
        if (picture := self._pictures.get(name)) is None:
            return
        wall_us = now_us()
        try:
            told = picture.look(wall_us)
        except (HoldfastError, OSError) as error:
            log.warning("the console cannot read stream %s: %s", name, error)
            self._give_up(name, str(error))
            return
        picture.tell()
        self._untold += [self.log.control(wall_us // 1000, name, kind, episode) for kind, episode in told]

    async def _open_all(self, names: Iterable[str]) -> None:
        """Rule 5: those that are not open, and for a moment only."""
        begun = [opening for name in names if (opening := self._begin_to_open(name)) is not None]
        if begun:
            await asyncio.wait(begun, timeout=_OPEN_S)

    def _begin_to_open(self, name: str) -> asyncio.Task[LivePicture | None] | None:
        """None if the picture is there, is being opened, or must be left alone for now."""
        if name in self._pictures or name in self._opening or monotonic_us() < self._retry_us.get(name, 0):
            return None
        if not (self._store.root / name).exists():  # Opening it would look for all others, to name them.
            self._retry_us[name] = monotonic_us() + _RETRY_US
            return None
        self._opening[name] = asyncio.ensure_future(self._open(name))
        return self._opening[name]

    async def _open(self, name: str) -> LivePicture | None:
        mine = asyncio.current_task()
        opening = _openers.submit(lambda: LivePicture(self._store.open(name)))
        try:
            picture = await asyncio.wrap_future(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_close_unseen)
            raise
        except UnknownStream:
            self._retry_us[name] = monotonic_us() + _RETRY_US
            return None
        except (HoldfastError, OSError) as error:
            self._give_up(name, str(error))
            return None
        finally:
            if wanted := self._opening.get(name) is mine:
                del self._opening[name]
        if not wanted:  # The console has ended meanwhile.
            picture.close()
            return None
        self._pictures[name] = picture
        self._unreadable.pop(name, None)
        return picture

    def _give_up(self, name: str, why: str) -> None:
        """Reading a damaged log may take long, and where one that was open fails, the host's own loop waits."""
        self._retry_us[name] = monotonic_us() + (_DAMAGED_US if name in self._unreadable else _RETRY_US)
        self._unreadable[name] = why
        if (picture := self._pictures.pop(name, None)) is not None:
            picture.close()

    def _described(self) -> dict[str, Any]:
        status, at_us = self._status(), now_us()
        beyond = [name for name in self._recorded[RECORDED_MAX:] if name in self._there]
        live: dict[str, Any] = {name: {"state": NOT_WATCHED} for name in beyond}
        live |= {name: picture.facts() for name, picture in self._pictures.items()}
        live |= {name: {"state": "UNREADABLE", "why": why} for name, why in self._unreadable.items()}
        return {
            **self._facts,
            "at_ms": at_us // 1000,
            "live": live,
            "replicas": {r["replica"]: self._replica(r, at_us) for r in status.get("replicas", ())},
            "cuts": list(status.get("cuts", ())),
            "sources": {source["stream"]: source for source in status.get("sources", ())},
            "sinks": {sink["sink"]: sink for sink in status.get("sinks", ())},
            "stores": self._here(status.get("stores", {})),
            "deadlines": self._here(status.get("deadlines", {})),
            "readers": {name: self._readers(name) for name, shown in self._pictures.items() if shown.feed.listeners},
            "loads": {load["participant"]: load} if (load := status.get("load")) else {},
        }

    def _here(self, said: Mapping[str, Any]) -> dict[str, Any]:
        """Names that other hosts may have as well."""
        return {f"{name}@{self._facts['host']}": one for name, one in said.items()}

    def _readers(self, name: str) -> dict[str, int]:
        """Who has acknowledged how much of a stream that somebody looks at; 0: nothing yet."""
        return {reader: max(0, ack.until_us // 1000) for reader, ack in read_acks(self._store.root / name).items()}

    def _replica(self, said: Mapping[str, Any], at_us: int) -> dict[str, Any]:
        name, state = said["replica"], said["state"]
        known = self._since.get(name)
        if known is None or known[0] != state:
            known = self._since[name] = state, at_us
        output, fork = said.get("output"), said.get("fork")
        return {
            "node": said["node"], "state": state, "since_ms": known[1] // 1000, "why": said.get("why"),
            "waits_for": said.get("waits_for"), "stable_until_ms": _ms(said.get("stable_until_us")),
            "output": output and {**output, "boundary_us": None, "boundary_ms": _ms(output.get("boundary_us"))},
            "fork": fork, "recovery": said.get("checkpoints"),
            # Most nodes of a large application have no operator with state: nothing more is told of them.
            **({"operators": said["operators"], "batch": said.get("batch")} if said.get("operators") else {}),
            **({"saves": said["saves"]} if said.get("saves") else {}),
            "inputs": {
                source["stream"]: {"boundary_ms": _ms(source.get("boundary_us")), "failing": source.get("failing"),
                                   "reading": source.get("reading")}
                for source in said.get("inputs", ())
            },
        }  # fmt: skip

    # What pages ask for ---------------------------------------------------------------------------------------------

    @property
    def pages(self) -> int:
        """How many are open."""
        return self.feed.listeners

    def _whole(self) -> tuple[str, bytes]:
        return "whole", self.snapshot()

    def snapshot(self) -> bytes:
        """Everything, as JSON: as of now if nobody else looks, else as of the last look, which patches go on from."""
        if not self._document:
            self._document = self._described()
        return msgspec.json.encode({**self._document, "events": list(self.log.events)})

    def follow(self, you: Mapping[str, Any]) -> AsyncIterator[bytes]:
        """Server-sent events for one page; `you` is who asks."""
        return self.feed.follow(framed("you", msgspec.json.encode(you)))

    async def follow_stream(self, name: str) -> AsyncIterator[bytes]:
        """The same for the picture of one stream."""
        return (await self._wanted(name)).feed.follow()

    async def episode(self, name: str, number: int) -> bytes | None:
        """A failure of the past; None if it is not kept any more."""
        return (await self._wanted(name)).episode(number)

    async def _wanted(self, name: str) -> LivePicture:
        self._retry_us.pop(name, None)
        self._begin_to_open(name)
        opening = self._opening.get(name)
        # Who goes away does not end it: others may wait as well.
        picture = self._pictures.get(name) if opening is None else await asyncio.shield(opening)
        if picture is None:
            raise UnknownStream(f"stream {name} does not lie on this host; ask one that produces it")
        return picture


def _close_unseen(opening: Future[LivePicture]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()


def _ms(us: int | None) -> int | None:
    """A position for a page: milliseconds, none where a stream has not begun or has ended."""
    return None if us is None or not BEGINNING_US < us < END_OF_TIME_US else us // 1000
