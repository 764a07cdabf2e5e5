"""kill -9 of real processes at random points (L1, L3, L6, L7)."""

from __future__ import annotations

import contextlib
import functools
import os
import random
import select
import signal
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.model.errors import Fenced, StreamBusy
from holdfast.stream.reader import LogReader
from holdfast.stream.store import Stream, StreamStore
from tests.faults.units import BUCKET_US, SCHEMA, flat, last_sent, open_log, rows_of, send

KILLS = 200
THREADS = 4
_PAIR = struct.Struct("<qq")


class Child:
    """A process that reports pairs of numbers through a pipe; killed on exit whatever happens."""

    def __init__(self, act: Callable[[Callable[[int, int], None]], None]) -> None:
        self.out, out = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            status = 1
            try:
                os.close(self.out)
                act(lambda a, b: os.write(out, _PAIR.pack(a, b)) and None)
                status = 0
            finally:
                os._exit(status)
        os.close(out)
        self._rest = b""

    def reports(self, timeout: float) -> list[tuple[int, int]]:
        """What came within `timeout`; as soon as something came."""
        poll = select.poll()
        poll.register(self.out)
        if poll.poll(timeout * 1000):
            data = self._rest + os.read(self.out, 1 << 16)
            whole = len(data) // _PAIR.size * _PAIR.size
            self._rest = data[whole:]
            return list(_PAIR.iter_unpack(data[:whole]))
        return []

    def kill(self) -> list[tuple[int, int]]:
        """Kill it, reap it, and return what it had reported."""
        os.kill(self.pid, signal.SIGKILL)
        return self.wait()

    def wait(self) -> list[tuple[int, int]]:
        last = []
        while more := self.reports(60):
            last += more
        os.waitpid(self.pid, 0)
        os.close(self.out)
        self.pid = 0
        return last

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        if self.pid:
            self.kill()


def produce(stream: Stream, done: list[int], report: Callable[[int, int], None]) -> None:
    """Several threads send their numbers through one producer until the end."""
    with stream.producer(boundary_every="5ms") as producer:
        report(-1, 0)

        def work(thread: int) -> None:
            n = done[thread]
            while True:
                n += 1
                producer.send({"thread": thread, "n": n, "text": "x" * (n % 300)})
                report(thread, n)

        threads = [threading.Thread(target=work, args=(t,)) for t in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def contents(reader: LogReader) -> list[list[int]]:
    """Per thread, its numbers in the order of the log; every tuple id once and in order of its bucket."""
    found: list[list[int]] = [[] for _ in range(THREADS)]
    ids: list[int] = []
    for fields, batch in reader.scan(-(2**62), 2**62):
        ids += range(fields.first_tuple_id, fields.first_tuple_id + batch.num_rows)
        for thread, n, text in zip(*(batch.column(c).to_pylist() for c in (1, 2, 3)), strict=True):
            assert text == "x" * (n % 300)
            found[thread].append(n)
    assert ids == list(range(1, len(ids) + 1))
    return found


@pytest.mark.slow
def test_nothing_acknowledged_is_lost_doubled_or_torn_by_200_kills(tmp_path: Path) -> None:
    """L1, L3: the same stream through all kills; one reader follows it from the first to the last."""
    chance = random.Random(7)
    stream = StreamStore(tmp_path).create(
        "s", "thread int, n bigint, text string", bucket="5ms", segment_bytes=16 << 10
    )
    follower = stream.reader()
    done = [0] * THREADS
    for kill in range(KILLS):
        acked = list(done)
        with Child(functools.partial(produce, stream, done)) as child:
            wanted, got = chance.choice((0, 1, 3, 10, 40)), 0
            while got < wanted:
                reports = child.reports(30)
                assert reports, "the child must get on"
                got += len(reports)
                for thread, n in reports:
                    if thread >= 0:
                        acked[thread] = n
            time.sleep(chance.random() * 0.004)  # Where in the commit it dies is what must be random.
            for thread, n in child.kill():
                if thread >= 0:
                    acked[thread] = n
        for reader in (follower, stream.reader()) if kill % 10 == 0 else (follower,):
            reader.refresh()
            seen = contents(reader)
            for thread in range(THREADS):
                last = len(seen[thread])
                assert seen[thread] == list(range(1, last + 1)), (
                    f"kill {kill}: a number is missing, doubled or out of order"
                )
                assert acked[thread] <= last <= acked[thread] + 1, f"kill {kill}, thread {thread}"
            done = [len(numbers) for numbers in seen]
            if reader is not follower:
                reader.close()
    follower.close()
    with stream.producer() as producer:
        producer.send({"thread": 0, "n": done[0] + 1, "text": "x" * ((done[0] + 1) % 300)})
    reader = stream.reader()
    assert [len(numbers) for numbers in contents(reader)] == [done[0] + 1, *done[1:]]
    assert sum(done) > KILLS
    reader.close()


def test_a_retry_with_the_same_number_after_a_kill_adds_nothing(tmp_path: Path) -> None:
    """Rule 4 of the producer: the sequence number survives with the data."""
    stream = StreamStore(tmp_path).create("s", "n bigint", bucket="1ms")

    def work(report: Callable[[int, int], None]) -> None:
        with stream.producer() as producer:
            n = producer.last_seq
            while True:
                n += 1
                producer.send({"n": n}, seq=n)
                report(0, n)

    chance, acked = random.Random(3), -1
    for _ in range(15):
        with Child(work) as child:
            for _ in range(chance.randint(1, 5)):
                acked = max([acked, *(n for _, n in child.reports(30))])
            acked = max([acked, *(n for _, n in child.kill())])
        with stream.producer() as producer:
            known = producer.last_seq
            assert acked <= known <= acked + 1
            for n in range(max(0, known - 2), known + 3):
                assert producer.send({"n": n}, seq=n).duplicate == (n <= known)
            acked = known + 2
            producer.close(end=False)
    stream.producer().close()
    assert [r.values["n"] for r in stream.subscribe().rows()] == list(range(acked + 1))


@contextlib.contextmanager
def stopped(child: Child) -> Iterator[None]:
    os.kill(child.pid, signal.SIGSTOP)
    os.waitpid(child.pid, os.WUNTRACED)
    try:
        yield
    finally:
        os.kill(child.pid, signal.SIGCONT)


def test_a_paused_writer_that_was_superseded_is_fenced_when_it_wakes_and_loses_nothing_acknowledged(
    tmp_path: Path,
) -> None:
    """L7: at many random points of its work."""
    chance = random.Random(5)
    for cycle in range(12):
        folder = tmp_path / str(cycle)

        def work(report: Callable[[int, int], None], folder: Path = folder) -> None:
            writer, k = open_log(folder), 0
            try:
                while True:
                    k += 1
                    send(writer, k)
                    report(0, k)
            except Fenced:
                report(1, k)

        with Child(work) as child:
            acked = 0
            while acked < chance.randint(1, 30):
                acked = max([acked, *(k for _, k in child.reports(30))])
            time.sleep(chance.random() * 0.003)
            with stopped(child):
                with pytest.raises(StreamBusy, match="one writer"):
                    open_log(folder)
                successor = open_log(folder, takeover=True)
                first = last_sent(successor)
                send(successor, first + 1)
            reports = child.wait()
        acked = max([acked, *(k for what, k in reports if what == 0)])
        assert [what for what, _ in reports][-1] == 1, "it must end with Fenced"
        assert acked <= first <= acked + 1
        send(successor, first + 2)
        successor.release(1)
        reader = LogReader(folder, SCHEMA, BUCKET_US)
        reader.refresh()
        expected = [100 * k for k in range(1, first + 3)]
        assert [row[1] for _, row in rows_of(reader) if row[1] % 100 == 0] == expected
        reader.close()


@pytest.mark.slow
def test_readers_in_other_processes_see_every_unit_once_and_in_order_while_writers_come_and_go(tmp_path: Path) -> None:
    """L2, L6, L7: rolls, releases, kills, takeovers of living writers; two followers and ever new readers."""
    folder, seconds = tmp_path / "main", 8.0
    open_log(folder).release(1)
    size = {1: 700, 2: 4096, 3: 1 << 20}

    def write(report: Callable[[int, int], None]) -> None:
        chance = random.Random(os.getpid())
        while True:
            try:
                writer = open_log(folder, takeover=chance.random() < 0.3, segment_bytes=size[chance.randint(1, 3)])
            except (StreamBusy, Fenced):
                continue
            try:
                for _ in range(chance.randint(1, 25)):
                    k = last_sent(writer) + 1
                    send(writer, k)
                    report(0, k)
            except Fenced:
                pass
            writer.release(1)

    def follow(report: Callable[[int, int], None], anew: bool) -> None:
        reader, seen = LogReader(folder, SCHEMA, BUCKET_US), 0
        while True:
            if anew:
                reader.close()
                reader = LogReader(folder, SCHEMA, BUCKET_US)
            reader.refresh()
            start, until = (0 if anew else seen) * BUCKET_US, reader.closed_until_us
            if until <= start:
                continue
            got = [n // 100 for _, batch in reader.scan(start, until) for n in batch.column(1).to_pylist()]
            last = until // BUCKET_US
            expected = [n // 100 for _, n, _ in flat(list(range(1 if anew else max(1, seen), last)))]
            # Only one that follows may not go back: a new one may come while a successor is still looking at the end.
            if got != expected or (last < seen and not anew):
                (tmp_path / "wrong").write_text(f"{anew=} {seen=} {last=} {got=} {expected=}")
                report(-1, last)
                return
            seen = last
            report(1, last - 1)

    ends = time.monotonic() + seconds
    with (
        Child(lambda r: follow(r, False)) as one,
        Child(lambda r: follow(r, True)) as two,
        contextlib.ExitStack() as stack,
    ):
        writers = [stack.enter_context(Child(write)) for _ in range(2)]
        chance, acked, kills = random.Random(1), 0, 0
        while time.monotonic() < ends:
            for writer in writers:
                acked = max([acked, *(k for _, k in writer.reports(0.02))])
            for reader in (one, two):
                assert all(what == 1 for what, _ in reader.reports(0)), "a reader saw a gap, a repeat or another order"
            if chance.random() < 0.2:
                victim = writers.pop(chance.randrange(2))
                acked = max([acked, *(k for _, k in victim.kill())])
                kills += 1
                writers.append(stack.enter_context(Child(write)))
        for writer in writers:
            acked = max([acked, *(k for _, k in writer.kill())])
        final = open_log(folder)
        assert last_sent(final) >= acked
        send(final, last_sent(final) + 1)
        last = last_sent(final)
        for reader in (one, two):
            caught_up = False
            while not caught_up:
                reports = reader.reports(30)
                assert reports
                assert all(what == 1 for what, _ in reports), "a reader saw a gap, a repeat or another order"
                caught_up = reports[-1][1] == last
        final.release(1)
    assert kills > 3
    assert acked > 50
