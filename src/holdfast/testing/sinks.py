"""The conformance suite of sinks: subclass it, say how to make yours and how to look at its target, run it with pytest.

    class TestMine(SinkConformance):
        def start(self, folder): self.folder = folder
        def sink(self, key): return mine(self.folder, key=key, tentative=True)
        def select(self, key): return [(n, v, tentative), ...]      # a plain look at the target, by a reader of its own

A real stream is written to: stable buckets, failures with tentative ones, corrections, failures amid corrections. A
child process runs the sink and is killed with SIGKILL again and again: before, inside and after its transactions. What
each kill hit is counted and printed (`pytest -rP` shows it); eight kills or more must have hit each of the three.
Meanwhile the target is looked at all the time, and every look must be what the promise allows (T1, T2): the stable rows
of whole buckets from the first on, plus tentative rows beyond them that the stream really had, no row twice. In the end
it must be what a run without failures gives.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import signal
import sys
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from holdfast.clock import monotonic_us, pause
from holdfast.model.errors import UsageError
from holdfast.model.schema import stored_schema
from holdfast.model.time import END_OF_TIME_US
from holdfast.protocol.dpc.messages import StreamReport
from holdfast.protocol.dpc.states import StreamState
from holdfast.sinks.runner import LocalOrigin, SinkRunner
from holdfast.sinks.sink import Changes, Sink, Source
from holdfast.stream.disk import VolatileDisk
from holdfast.stream.pack import pack
from holdfast.stream.report import ReportWriter
from holdfast.stream.store import Stream, StreamStore

#: How often a child is killed, per test. Raise it for a long run: HOLDFAST_SINK_KILLS=200
KILLS = int(os.environ.get("HOLDFAST_SINK_KILLS", "8"))

STREAM = "results"
COLUMNS = "n bigint, k bigint, v bigint"
#: Tuples of a bucket: the rows of one come and go together.
EACH = 3
#: As many different keys, so that tentative rows cover stable ones.
KEYS = 7
SECOND = 1_000_000
_DEADLINE_US = 240 * SECOND
#: Where a kill may hit: before `apply`, between its beginning and its return, and behind that.
PLACES = ("before", "inside", "after")
#: As many kills must hit each of them.
_KILLS_ENOUGH = 8
#: How often the target is disturbed in one life of a sink.
_DISTURBED_MAX = 2
#: How many transactions a sink without statements must have done before it is known how long one takes.
_MEASURED = 3

Seen = tuple[int, int, bool]
"""A row of the target: n, v, whether it is tentative."""


class Doom(NamedTuple):
    """When a child kills itself: at the so-manieth transaction, and where in it."""

    transaction: int
    place: str
    statement: int
    """Behind which one, of a sink with statements. There may be fewer: then the kill comes after the commit."""
    share: float
    """Of the time that the sink took before, of one without."""


class Script:
    """Writes the stream, step by step, as a node would in random weather; knows what is stable and what was tentative.

    Tuple n has v = n when it is stable, and v = n + 1,000,000 · generation when it is tentative.
    """

    def __init__(self, root: Path, chance: random.Random) -> None:
        self.stream: Stream = StreamStore(root, disk=VolatileDisk()).create(STREAM, COLUMNS, bucket="1s")
        self._chance = chance
        self._report = ReportWriter(self.stream.folder, VolatileDisk())
        self._writer: Any = None
        self._generation = 0
        #: Buckets of main, and of the branch.
        self.stable, self._branch = 0, 0
        self.tentative: set[int] = set()
        self._correcting = False

    def renew(self) -> None:
        self._report.renew()

    def step(self) -> None:
        """Something happens."""
        if self._writer is None:
            self._chance.choice([self._advance, self._advance, self._fail])()
        elif self._correcting:
            self._chance.choice([self._correct, self._correct, self._news, self._fail_again, self._done])()
        else:
            self._chance.choice([self._news, self._news, self._correct])()

    def end(self) -> None:
        """All is healed, and the stream ends."""
        if self._writer is not None:
            self._done()
        self._main(self.stable, self.stable + 1, end=True)

    def _advance(self) -> None:
        self._main(self.stable, self.stable + self._chance.randint(1, 3))

    def _fail(self) -> None:
        self._say(StreamState.UP_FAILURE)
        self._generation += 1
        self.stream.create_branch(self.stable * SECOND)
        self._writer = self.stream.branch_writer()
        self._branch = self.stable
        self._news()

    def _news(self) -> None:
        for bucket in range(self._branch, self._branch + self._chance.randint(1, 2)):
            values = [n + 1_000_000 * self._generation for n in range(bucket * EACH, (bucket + 1) * EACH)]
            self.tentative.update(values)
            self._writer.commit(self._events(bucket, values), now_us=1, boundary_us=(bucket + 1) * SECOND)
            self._branch = bucket + 1

    def _correct(self) -> None:
        if self._branch > self.stable:
            self._say(StreamState.STABILIZATION)
            self._correcting = True
            self._main(self.stable, self._chance.randint(self.stable + 1, self._branch))

    def _fail_again(self) -> None:
        self._say(StreamState.UP_FAILURE)
        self._correcting = False
        self._branch = max(self._branch, self.stable)
        self._news()

    def _done(self) -> None:
        self._main(self.stable, max(self._branch, self.stable + 1))
        self._writer.release(1)
        self.stream.drop_branch()
        self._writer, self._correcting = None, False
        self._say(StreamState.STABLE)

    def _main(self, first: int, upto: int, end: bool = False) -> None:
        with self.stream.producer(stime="stime", boundary_every="1h") as producer:
            for n in range(first * EACH, upto * EACH):
                producer.send({"n": n, "k": n % KEYS, "v": n, "stime": stime_of(n)})
            producer.advance(upto * SECOND)
            self.stable = upto
            producer.close(end=end)

    def _events(self, bucket: int, values: Sequence[int]) -> Any:
        numbers = range(bucket * EACH, (bucket + 1) * EACH)
        arrays = [
            pa.array([stime_of(n) for n in numbers], pa.timestamp("us", tz="UTC")),
            pa.array(numbers, pa.int64()),
            pa.array([n % KEYS for n in numbers], pa.int64()),
            pa.array(values, pa.int64()),
        ]
        batch = pa.RecordBatch.from_arrays(arrays, schema=stored_schema(self.stream.definition.schema))
        return pack(batch, self.stream.definition)

    def _say(self, state: StreamState) -> None:
        self._report.publish(StreamReport(STREAM, state, 0, False))


def stime_of(n: int) -> int:
    return n // EACH * SECOND + n % EACH * 1000


class Watch:
    """Looks at the target all the time, from a thread of its own, and judges what it sees."""

    def __init__(self, select: Callable[[], list[Seen]], script: Script, keyed: bool) -> None:
        self._select, self._script, self._keyed = select, script, keyed
        self._over = threading.Event()
        self._buckets = 0
        self.looks = self.tentative_looks = 0
        self.wrong: str | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        before: list[Seen] | None = None
        while not self._over.is_set() and self.wrong is None:
            try:
                seen = self._select()
            except Exception as error:
                self.wrong = f"the target could not be looked at: {error!r}"
                return
            self.looks += 1
            if seen != before:
                before = seen
                self.tentative_looks += any(tentative for *_, tentative in seen)
                self.wrong = self._judge(seen)
            pause(1000)

    def _judge(self, seen: list[Seen]) -> str | None:
        stable = {n: v for n, v, tentative in seen if not tentative}
        tentative = {n: v for n, v, tentative in seen if tentative}
        shown = f"stable {sorted(stable)}, tentative {sorted(tentative.items())}"
        if len(stable) + len(tentative) != len(seen):
            return f"a row is there twice: {sorted(seen)}"
        if any(n != v for n, v in stable.items()):
            return f"a row that is not right is called stable: {shown}"
        if not set(tentative.values()) <= self._script.tentative:
            return f"a tentative row that the stream never had: {shown}"
        fits = self._fits_by_key if self._keyed else self._fits
        buckets = fits(set(stable), set(tentative))
        if buckets is None:
            return f"neither the stable rows of whole buckets, nor tentative ones beyond them: {shown}"
        if buckets < self._buckets:
            return f"stable rows have gone, from {self._buckets} buckets to {buckets}: {shown}"
        self._buckets = buckets
        return None

    def _fits(self, stable: set[int], tentative: set[int]) -> int | None:
        """How many buckets are stable; None if that is not what is there."""
        whole = len(stable) % EACH == 0 and stable == set(range(len(stable)))
        beyond = not tentative or (
            tentative == set(range(min(tentative), max(tentative) + 1)) and min(tentative) >= len(stable)
        )
        return len(stable) // EACH if whole and beyond and len(tentative) % EACH == 0 else None

    def _fits_by_key(self, stable: set[int], tentative: set[int]) -> int | None:
        """The same where of each key the last is left: the least that it could be."""
        covered = {n % KEYS for n in tentative}
        for buckets in range(self._buckets, max(stable | tentative, default=0) // EACH + 2):
            rows = buckets * EACH
            last = {n for n in range(max(0, rows - KEYS), rows) if n % KEYS not in covered}
            if stable == last and all(n >= rows for n in tentative):
                return buckets
        return None

    def close(self) -> None:
        self._over.set()
        self._thread.join()


class SinkConformance(ABC):
    """Random weather with kills, and what is to be refused. `select` is called from another thread."""

    kills = KILLS
    #: Whether the sink knows keys.
    keyed = True
    #: Whether it takes tentative rows.
    tentative = True
    #: Whether one that was replaced finds out at its next transaction. Otherwise the target has another rule.
    replaced = True

    @abstractmethod
    def start(self, folder: Path) -> None:
        """Called once per test with an empty folder of its own."""

    @abstractmethod
    def sink(self, key: Sequence[str]) -> Sink:
        """The sink, as a program makes it: with tentative rows, and by key if there is one. It travels to children."""

    @abstractmethod
    def select(self, key: Sequence[str]) -> list[Seen]:
        """What a plain reader sees now; nothing if the table is not there yet."""

    def disturb(self, chance: random.Random) -> None:  # noqa: B027 - most targets have nothing to break
        """Something else that may go wrong, such as a broken connection; called now and then."""

    def test_a_table_is_right_at_every_look_whoever_is_killed(self, tmp_path: Path) -> None:
        """T1, T2."""
        self._weather(tmp_path, (), 1)

    def test_a_table_by_key_is_right_at_every_look_whoever_is_killed(self, tmp_path: Path) -> None:
        """T1, T2: tentative rows cover stable ones, which come back."""
        if self.keyed:
            self._weather(tmp_path, ("k",), 2)

    def _weather(self, folder: Path, key: Sequence[str], seed: int) -> None:
        self.start(folder / "target")
        chance = random.Random(seed)
        script = Script(folder / "streams", chance)
        watch = Watch(lambda: self.select(key), script, bool(key))
        dooms = _dooms(chance)
        killed, deadline = 0, monotonic_us() + _DEADLINE_US * max(1, self.kills // 8)
        try:
            while self._wants_more(killed, watch) and watch.wrong is None:
                assert monotonic_us() < deadline, f"only {killed} of {self.kills} kills in time"
                with self._child(folder, key, next(dooms)) as child:
                    disturbed = 0
                    while child.is_alive() and watch.wrong is None:
                        script.step()
                        script.renew()
                        # Seldom enough that a crowded machine gets a transaction done between two of them.
                        if disturbed < _DISTURBED_MAX and chance.random() < 0.1:
                            self.disturb(chance)
                            disturbed += 1
                        child.join(chance.random() / 20)
                        assert monotonic_us() < deadline, f"only {killed} of {self.kills} kills in time"
                assert child.exitcode in (-signal.SIGKILL, None), f"a child ended by itself with {child.exitcode}"
                killed += 1
            assert watch.wrong is None, watch.wrong
            script.end()
            with self._child(folder, key, None) as child:
                while child.is_alive():
                    child.join(0.05)
                    assert monotonic_us() < deadline, "it did not come to an end"
            assert child.exitcode == 0
        finally:
            watch.close()
        assert watch.wrong is None, watch.wrong
        rows = script.stable * EACH
        expected = range(max(0, rows - KEYS), rows) if key else range(rows)
        assert sorted(self.select(key)) == [(n, n, False) for n in expected], "as if nothing had failed"
        self._tell(folder, killed)
        bad_enough = watch.tentative_looks > 0 or not self.tentative
        assert bad_enough, "the weather must have been bad enough to see tentative rows"

    def _wants_more(self, killed: int, watch: Watch) -> bool:
        """Of few kills all may come between two failures of the stream; then some more, within reason."""
        mild = self.tentative and not watch.tentative_looks
        return killed < self.kills or (mild and killed < self.kills + _KILLS_ENOUGH)

    def _tell(self, folder: Path, killed: int) -> None:
        path = folder / "kills"
        hits = Counter(path.read_text().split() if path.exists() else ())
        told = ", ".join(f"{hits[place]} {place}" for place in PLACES)
        print(f"{type(self).__name__}: killed {killed} times: {told} the transaction of the target")
        assert hits.total() == killed, f"of {killed} kills {hits.total()} were noted"
        missed = [place for place in PLACES if not hits[place]]
        assert not missed or killed < _KILLS_ENOUGH, f"no kill came {' or '.join(missed)} a transaction: {told}"

    @contextlib.contextmanager
    def _child(self, folder: Path, key: Sequence[str], doom: Doom | None) -> Iterator[Any]:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["__main__", __name__, type(self).__module__])
        child = context.Process(target=_run_child, args=(folder, self.sink(key), doom))
        child.start()
        try:
            yield child
        finally:
            if child.is_alive():
                child.kill()
            child.join()

    def test_a_sink_that_was_replaced_changes_nothing_any_more(self, tmp_path: Path) -> None:
        """T2: one that slept through the start of another."""
        if not self.replaced:
            return
        self.start(tmp_path)
        source = Source(STREAM, StreamStore(tmp_path / "s").create(STREAM, COLUMNS).definition.schema)
        old, new = self.sink(()), self.sink(())
        assert old.resume(source) is None
        assert new.resume(source) is None
        new.apply(_changes(0), "one")
        before = self.select(())
        refused = ""
        try:
            old.apply(_changes(3), "two")
        except UsageError as error:
            refused = str(error)
        assert "another" in refused, "a writer that was replaced must be refused"
        old.close()
        assert sorted(self.select(())) == sorted(before)
        assert new.resume(source) == "one"
        new.close()


def _changes(first: int) -> Changes:
    numbers = range(first, first + EACH)
    columns = {"n": numbers, "k": numbers, "v": numbers}
    rows = pa.table({
        "tuple_id": pa.array([n + 1 for n in numbers], pa.int64()),
        "stime": pa.array([stime_of(n) for n in numbers], pa.timestamp("us", tz="UTC")),
        **{name: pa.array(values, pa.int64()) for name, values in columns.items()},
    })  # fmt: skip
    return Changes(False, rows, rows.slice(0, 0))


def _dooms(chance: random.Random) -> Iterator[Doom]:
    """Dealt like cards: of each four one comes before, one after, and of the two inside one is early enough to be so
    even where there is little to be done."""
    while True:
        cards = [("before", 1, 1.0), ("inside", 1, 0.3), ("inside", 8, 1.0), ("after", 1, 1.0)]
        chance.shuffle(cards)
        for place, statements, share in cards:
            yield Doom(chance.randint(1, 4), place, chance.randint(1, statements), chance.uniform(0.05, share))


def _run_child(folder: Path, sink: Sink, doom: Doom | None) -> None:
    if doom is not None:
        _plant(sink, doom, folder / "kills")
    origin = LocalOrigin(StreamStore(folder / "streams"), STREAM)
    SinkRunner("conformance", STREAM, origin, sink, subscriber="conformance").run()


def _plant(sink: Any, doom: Doom, kills: Path) -> None:
    """Make the sink kill its process, which notes what the kill hit."""
    apply, left, statements = sink.apply, doom.transaction, doom.statement
    hooks = [name for name in ("run", "load") if hasattr(sink, name)]
    if doom.place == "inside" and not hooks:
        left = max(left, _MEASURED)
        sys.setswitchinterval(1e-4)  # A transaction takes less than the time for which threads are left alone.
    place, took_us, dying = "before", END_OF_TIME_US, threading.Lock()

    def die() -> None:
        dying.acquire()  # Once and for all: a timer may find the transaction ended, and its end about to kill as well.
        with kills.open("a") as file:
            file.write(f"{place}\n")
        os.kill(os.getpid(), signal.SIGKILL)

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def count(*args: Any) -> Any:
            nonlocal statements
            result = function(*args)
            if left <= 0:
                statements -= 1
                if statements <= 0:
                    die()
            return result

        return count

    def doomed(changes: Changes, position: str) -> None:
        nonlocal left, place, took_us
        left -= 1
        if left <= 0:
            if doom.place == "before":
                die()
            place = "inside"
            if doom.place == "inside":
                for name in hooks:
                    setattr(sink, name, counted(getattr(sink, name)))
                if not hooks:
                    threading.Timer(doom.share * took_us / SECOND, die).start()
        begun_us = monotonic_us()
        apply(changes, position)
        if left <= 0:  # Behind the commit: also where the transaction had fewer statements, or was quicker.
            place = "after"
            die()
        took_us = min(took_us, monotonic_us() - begun_us)

    sink.apply = doomed
