"""A conformance suite for states of user-defined operators (C1, C13, C14, S1).

Whatever happens to them, results are those of a run to which nothing happened. Tasks are run by hand, so that a case
takes a moment. At random: operators with whole states and with states in parts; exact in a log or on a server, best
effort, unprotected; batches on either of two machines, executed again, killed while they save; scratch lost or damaged;
another number of partitions; forks; movements to another host; states that leave scratch and come back, and lazy
restores. What only exact can bear (a second machine, kills and
losses) happens to exact only. For flows this is `tests/operators/test_crashes.py`.

HOLDFAST_STATES=1000 for the full number.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import LongType, StringType, StructType

from holdfast.checkpoint.policy import every
from holdfast.checkpoint.store import Entry
from holdfast.checkpoint.stores.memory import MemoryStore
from holdfast.operators.numbering import hash_of
from holdfast.operators.state_parts import Changed, Parted
from holdfast.operators.udop import Row, UserOperator, decode, encode
from holdfast.spark import durable_state
from holdfast.spark.arrivals import operators_in, pack_operators
from holdfast.spark.keyed import ForkOf, Keyed, udop
from holdfast.spark.keyed_task import Task
from tests.spark.summing import Summing

CASES = int(os.environ.get("HOLDFAST_STATES", "12"))
KEYS = tuple("abcdefghijkl")
SCHEMA = StructType().add("key", StringType()).add("sum", LongType())
EXACT = every("1ms", exact=True)


class Paged(UserOperator, Parted):
    """The same sums, of pages of three values each: a state in parts, of which old ones are removed now and then."""

    def __init__(self) -> None:
        self.before, self.first, self.pages = 0, 0, [[]]  # type: tuple[int, int, list[list[int]]]
        self.fresh: set[int] = set()
        self.gone: list[int] = []

    def process(self, row: Row) -> list[Row]:
        self.pages[-1].append(row["value"])
        self.fresh.add(self.first + len(self.pages) - 1)
        if len(self.pages[-1]) == 3:
            self.pages.append([])
        if len(self.pages) > 4:
            self.before += sum(self.pages.pop(0))
            self.gone.append(self.first)
            self.first += 1
        return [{"key": row["key"], "sum": self.before + sum(map(sum, self.pages))}]

    def changes(self) -> Changed:
        parts: dict[bytes, bytes | None] = {b"%d" % n: None for n in self.gone}
        parts |= {b"%d" % n: encode(self.pages[n - self.first]) for n in self.fresh if n >= self.first}
        self.gone, self.fresh = [], set()
        return Changed(encode([self.before, self.first, len(self.pages)]), parts)

    def restore_parts(self, head: bytes, parts: dict[bytes, bytes], lost: list[bytes]) -> None:
        self.before, self.first, pages = decode(head)
        found = (parts.get(b"%d" % (self.first + n)) for n in range(pages))
        self.pages = [[] if page is None else decode(page) for page in found]


class Killed(RuntimeError):
    pass


class Server(MemoryStore):
    """Takes so many more writes; then the machine that wrote is gone."""

    left = 1 << 30

    def _write(self, entries: Sequence[Entry]) -> list[bool]:
        taken = super()._write(entries[: self.left])
        self.left -= len(taken)
        if len(taken) < len(entries):
            raise Killed
        return taken

    def close(self) -> None:
        """It stays."""


class Life:
    """One query through everything that happens to it."""

    def __init__(self, folder: Path, chance: random.Random, server: Server) -> None:
        self.folder, self.chance, self.server = folder, chance, server
        self.policy = chance.choice([EXACT, EXACT, EXACT, every(events=3), None])
        self.exact = self.policy is EXACT
        self.store = None if self.policy is None else chance.choice([f"log:{folder}/far", "redis://somewhere"])
        self.prototype = chance.choice([Summing, Paged])
        self.options: dict[str, Any] = {}
        if self.store is not None:
            self.options["restore"] = chance.choice(["all", "lazily", "beside"])
            if chance.random() < 0.5:  # Each state leaves scratch with the next batch.
                self.options |= {"forget": False, "ttl": 1e-6}
        self.partitions, self.batch, self.moves, self.forks = chance.randint(1, 5), 0, 0, 0
        self.checkpoint: Path | None = None
        self.sums = dict.fromkeys(KEYS, 0)
        self.last: list[tuple[str, int]] = []
        self.before = dict(self.sums)

    @property
    def query(self) -> str:
        return f"q{self.moves}"

    def task(self, machine: str, fork: ForkOf | None = None) -> Task:
        plan: Keyed = udop("sums", self.prototype, key="key", schema=SCHEMA, checkpoint=self.policy, store=self.store,
                           scratch=str(self.folder / f"host{self.moves}" / machine), **self.options)  # fmt: skip
        came = "" if self.checkpoint is None else operators_in(self.checkpoint)
        return Task(plan, to_arrow_schema(SCHEMA), self.partitions, fork, came, "string")

    def machine(self) -> str:
        return self.chance.choice("AB") if self.exact else "A"

    def rows(self) -> list[tuple[str, int]]:
        keys = self.chance.choices(KEYS, k=self.chance.randint(0, 8))
        return [(key, self.chance.randint(1, 9)) for key in keys]

    def run(self, query: str, rows: list[tuple[str, int]], sums: dict[str, int], fork: ForkOf | None = None,
            kill: bool = False) -> None:  # fmt: skip
        """One batch of all partitions; what comes out is compared with `sums` as they become."""
        expected: dict[str, list[int]] = {}
        for key, value in rows:
            sums[key] += value
            expected.setdefault(key, []).append(sums[key])
        found: dict[str, list[int]] = {}
        for partition in self.chance.sample(range(self.partitions), self.partitions):
            mine = [(k, v) for k, v in rows if hash_of(encode(k), "string") % self.partitions == partition]
            given = pa.record_batch({"key": pa.array([k for k, _ in mine], pa.string()),
                                     "value": pa.array([v for _, v in mine], pa.int64())})  # fmt: skip
            if kill and self.exact:
                self.server.left = self.chance.randint(0, 12)
            try:
                results = list(self.task(self.machine(), fork).run([given], query, self.batch, partition))
            except Killed:
                self.server.left = 1 << 30
                results = list(self.task(self.machine(), fork).run([given], query, self.batch, partition))
            self.server.left = 1 << 30
            for row in pa.Table.from_batches(results, to_arrow_schema(SCHEMA)).to_pylist():
                found.setdefault(row["key"], []).append(row["sum"])
        assert found == expected

    # -- what happens ------------------------------------------------------------------------------------------------

    def go_on(self) -> None:
        self.before, self.last = dict(self.sums), self.rows()
        self.run(self.query, self.last, self.sums, kill=self.chance.random() < 0.3)
        self.batch += 1

    def again(self) -> None:
        """Spark did not hear that the batch was done."""
        if self.batch:
            self.batch -= 1
            self.run(self.query, self.last, dict(self.before))
            self.batch += 1

    def other_partitions(self) -> None:
        self.partitions = self.chance.randint(1, 5)

    def lose(self) -> None:
        if self.exact:
            shutil.rmtree(self.folder / f"host{self.moves}" / self.chance.choice("AB"), ignore_errors=True)

    def damage(self) -> None:
        found = (self.folder / f"host{self.moves}").rglob("*")
        files = sorted(path for path in found if path.is_file() and path.stat().st_size > 40)
        if self.exact and files:
            path = self.chance.choice(files)
            raw = bytearray(path.read_bytes())
            raw[self.chance.randrange(len(raw))] ^= 1 << self.chance.randrange(8)
            path.write_bytes(raw)

    def fork(self) -> None:
        """It goes another way for some batches, and leaves no trace."""
        if not self.batch:
            return
        self.forks += 1
        own = self.folder / f"fork{self.forks}"
        fork, batch, sums = ForkOf(self.query, str(own), self.batch), self.batch, dict(self.sums)
        if self.chance.random() < 0.5:
            assert self.task("A").pack(self.query, self.batch, own)
        for _ in range(self.chance.randint(1, 3)):
            machine, self.machine = self.machine, lambda: "A"  # type: ignore[method-assign]
            self.run(f"f{self.forks}", self.rows(), sums, fork)
            self.machine = machine  # type: ignore[method-assign]
            self.batch += 1
        self.batch = batch

    def move(self) -> None:
        if not self.batch:
            return
        checkpoint = self.folder / f"parcel{self.moves}"
        task = self.task("A")
        assert pack_operators([task], self.query, self.batch, checkpoint)
        if self.chance.random() < 0.5:
            task.forget(self.query)
        self.moves += 1
        self.checkpoint = checkpoint


WHAT = (Life.go_on, Life.again, Life.other_partitions, Life.lose, Life.damage, Life.fork, Life.move)


@pytest.mark.filterwarnings("ignore:.*scratch is damaged:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:.*deadlines missed:RuntimeWarning")
@pytest.mark.parametrize("seed", range(CASES))
def test_whatever_happens_to_states_results_are_those_of_a_run_to_which_nothing_happened(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance, server = random.Random(seed), Server()
    opened = durable_state.open_store
    monkeypatch.setattr(durable_state, "open_store", lambda a: server if a.startswith("redis") else opened(a))
    life = Life(tmp_path, chance, server)
    told: list[Any] = []
    try:
        for _ in range(12):
            life.go_on()
            what = chance.choice(WHAT)
            told.append(what.__name__)
            what(life)
        life.run(life.query, [(key, 0) for key in KEYS], life.sums)
    except BaseException as error:
        what_it_is = f"{life.policy}, {life.store}, {life.prototype.__name__}, {life.options}"
        raise AssertionError(f"seed {seed}: {what_it_is}: {told}") from error
    shutil.rmtree(tmp_path)
