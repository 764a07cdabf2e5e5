"""A conformance suite for states of operators (C1, C13, C14, L8, S1).

Whatever happens to them, results are those of a run to which nothing happened. Tasks are run by hand, so that a case
takes a moment.

Of user-defined operators, at random: operators with whole states and with states in parts, joins with their windows
whole or in groups, barriers; exact in a log or on a server, best effort, unprotected; batches on either of two
machines, executed again, killed while they save; scratch lost or damaged; another number of partitions; forks;
movements to another host; states that leave scratch and come back, and lazy restores. What only exact can bear (a
second machine, kills and losses) happens to exact only.

Of operators of a flow with `every`, exact or not: windows by count and by time, and sorts; scratch or the newest
version in the store lost or damaged; a save that is cut short; a server that is away; retention that lets go of what is
not needed; and the rest as above. With `continuous` this is `tests/operators/test_crashes.py`.

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

from holdfast.checkpoint.policy import Guarantee, every, groups, upstream
from holdfast.checkpoint.store import Entry
from holdfast.checkpoint.stores.memory import MemoryStore
from holdfast.model.errors import UsageError
from holdfast.operators.keyed_barrier import paired
from holdfast.operators.keyed_join import keyed_join
from holdfast.operators.numbering import hash_of
from holdfast.operators.state_parts import Changed, Parted
from holdfast.operators.udop import Row, UserOperator, decode, encode
from holdfast.operators.window_join import Input
from holdfast.operators.windows import count_window, time_window
from holdfast.spark import durable_state
from holdfast.spark.arrivals import operators_in, pack_operators
from holdfast.spark.keyed import ForkOf, Keyed, udop
from holdfast.spark.keyed_task import Task
from holdfast.spark.version_store import VersionStore
from tests.spark import stage_runs
from tests.spark.summing import Summing

CASES = int(os.environ.get("HOLDFAST_STATES", "12"))
KEYS = tuple("abcdefghijkl")
SCHEMA = StructType().add("key", StringType()).add("sum", LongType())
EXACT = every("1ms", exact=True)
#: Of an operator to which nothing happens; a value is never changed.
States = dict[str, Any]


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


WINDOW = 4


class Kind:
    """An operator, and what comes out of it where nothing happens. A tuple is its key and a value."""

    key: str | None = "key"
    schema = SCHEMA

    def __init__(self, prototype: Any) -> None:
        self.prototype = prototype

    def policies(self) -> list[Any]:
        return [EXACT, EXACT, EXACT, every(events=3), None]

    def take(self, states: States, key: str, value: int) -> list[tuple[Any, ...]]:
        states[key] = states.get(key, 0) + value
        return [(key, states[key])]


class Join(Kind):
    """Every third value meets the last others of its key."""

    schema = StructType().add("key", StringType()).add("a", LongType()).add("b", LongType())

    def __init__(self) -> None:
        left, right = (pa.schema([("key", pa.string()), (side, pa.int64())]) for side in "ab")
        super().__init__(keyed_join(Input(left, WINDOW), Input(right, 0), on="key"))

    def policies(self) -> list[Any]:
        exact = groups(2, every="1ms", exact=True)
        return [exact, exact, EXACT, groups(2, every="1h"), every(events=3), None]

    def take(self, states: States, key: str, value: int) -> list[tuple[Any, ...]]:
        window = states.get(key, [])
        if value % 3 == 0:
            return [(key, a, value) for a in window]
        states[key] = [*window, value][-WINDOW:]
        return []


class Gate(Kind):
    """The k-th even value goes with the k-th odd one."""

    key = None
    schema = StructType().add("x", LongType()).add("y", LongType())

    def __init__(self) -> None:
        super().__init__(paired("sums", {"even": pa.schema([("x", pa.int64())]), "odd": pa.schema([("y", pa.int64())])},
                                side="parity"))  # fmt: skip

    def policies(self) -> list[Any]:
        return [upstream()]

    def take(self, states: States, key: str, value: int) -> list[tuple[Any, ...]]:
        mine, other = ("odd", "even") if value % 2 else ("even", "odd")
        waiting = states.get(other, [])
        if not waiting:
            states[mine] = [*states.get(mine, []), value]
            return []
        states[other] = waiting[1:]
        return [tuple(sorted((value, waiting[0]), key=lambda v: v % 2))]


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
        self.kind = chance.choice([Kind(Summing), Kind(Paged), Join(), Gate()])
        self.policy = chance.choice(self.kind.policies())
        self.exact = self.policy is not None and self.policy.guarantee is Guarantee.EXACT
        self.store = None if self.policy is None else chance.choice([f"log:{folder}/far", "redis://somewhere"])
        self.options: dict[str, Any] = {}
        if self.store is not None:
            self.options["restore"] = chance.choice(["all", "lazily", "beside"])
            if chance.random() < 0.5:  # Each state leaves scratch with the next batch.
                self.options |= {"forget": False, "ttl": 1e-6}
        self.partitions, self.batch, self.moves, self.forks = 1, 0, 0, 0
        self.other_partitions()
        self.checkpoint: Path | None = None
        self.sums: States = {}
        self.last: list[tuple[str, int]] = []
        self.before = dict(self.sums)

    @property
    def query(self) -> str:
        return f"q{self.moves}"

    def task(self, machine: str, fork: ForkOf | None = None) -> Task:
        plan: Keyed = udop("sums", self.kind.prototype, key=self.kind.key, schema=self.kind.schema,
                           checkpoint=self.policy, store=self.store,
                           scratch=str(self.folder / f"host{self.moves}" / machine), **self.options)  # fmt: skip
        came = "" if self.checkpoint is None else operators_in(self.checkpoint)
        key_type = "" if self.kind.key is None else "string"
        return Task(plan, to_arrow_schema(self.kind.schema), self.partitions, fork, came, key_type)

    def machine(self) -> str:
        return self.chance.choice("AB") if self.exact else "A"

    def rows(self) -> list[tuple[str, int]]:
        keys = self.chance.choices(KEYS, k=self.chance.randint(0, 8))
        return [(key, self.chance.randint(1, 9)) for key in keys]

    def run(self, query: str, rows: list[tuple[str, int]], sums: States, fork: ForkOf | None = None,
            kill: bool = False) -> None:  # fmt: skip
        """One batch of all partitions; what comes out is compared with what `sums` give as they become."""
        expected: dict[Any, list[tuple[Any, ...]]] = {}
        for key, value in rows:
            for result in self.kind.take(sums, key, value):
                expected.setdefault(key if self.kind.key else None, []).append(result)
        found: dict[Any, list[tuple[Any, ...]]] = {}
        for partition in self.chance.sample(range(self.partitions), self.partitions):
            mine = [(k, v) for k, v in rows if hash_of(encode(k), "string") % self.partitions == partition]
            values = pa.array([v for _, v in mine], pa.int64())
            given = pa.record_batch({
                "key": pa.array([k for k, _ in mine], pa.string()),
                **dict.fromkeys(("value", "a", "b", "x", "y"), values),
                "side": pa.array(["left" if v % 3 else "right" for _, v in mine], pa.string()),
                "parity": pa.array(["odd" if v % 2 else "even" for _, v in mine], pa.string()),
            })  # fmt: skip
            if kill and self.exact:
                self.server.left = self.chance.randint(0, 12)
            try:
                results = list(self.task(self.machine(), fork).run([given], query, self.batch, partition))
            except Killed:
                self.server.left = 1 << 30
                results = list(self.task(self.machine(), fork).run([given], query, self.batch, partition))
            self.server.left = 1 << 30
            for row in pa.Table.from_batches(results, to_arrow_schema(self.kind.schema)).to_pylist():
                found.setdefault(row.get("key"), []).append(tuple(row.values()))
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
        if self.kind.key is not None:
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
        what_it_is = f"{life.policy}, {life.store}, {life.kind.prototype}, {life.options}"
        raise AssertionError(f"seed {seed}: {what_it_is}: {told}") from error
    shutil.rmtree(tmp_path)


class FlowLife:
    """One query over an operator of a flow with `every`."""

    def __init__(self, folder: Path, chance: random.Random, server: stage_runs.Server, clock: stage_runs.Clock) -> None:
        self.folder, self.chance, self.server = folder, chance, server
        self.address = chance.choice(["redis://somewhere", "redis://somewhere", f"log:{folder}/far"])
        self.window = chance.choice(
            [count_window(5), count_window(6, 3), time_window("2s"), time_window("3s", "1s"), 4]
        )
        every_s, self.always = chance.choice([(1e-6, False), (2, False), (5, False), (1, True)])
        self.given = {"window": self.window, "every_s": every_s, "address": self.address, "always": self.always}
        rows = stage_runs.rows_of(60, keys=12, seed=chance.randrange(1000))
        self.run = stage_runs.StageRun(folder, rows, clock, **self.given, partitions=chance.randint(1, 4))  # type: ignore[arg-type]
        self.clock, self.number, self.moves, self.forks, self.whole_from = clock, 0, 0, 0, 0

    @property
    def position_us(self) -> int:
        return self.run.at(self.number)

    @property
    def can_be_lost(self) -> bool:
        return VersionStore(self.run.durable).needed_us(self.position_us) is not None

    def go_on(self) -> None:
        self.run.batch(self.number, self.position_us, self.run.at(self.number + 1), chance=self.chance)
        self.number += 1

    def again(self) -> None:
        """Spark did not hear that the batch was done."""
        if self.number:
            self.number -= 1
            results = len(self.run.results)
            self.go_on()
            repeated = sorted(self.run.results[results:])
            del self.run.results[results:]
            assert repeated == sorted(self.run.results[len(self.run.results) - len(repeated) :])

    def other_partitions(self) -> None:
        self.run.in_partitions(self.chance.randint(1, 5))

    def kill(self) -> None:
        self.run.kill()

    def lose(self) -> None:
        if self.can_be_lost:
            self.run.lose()

    def damage(self) -> None:
        """A version on scratch, or the newest ones in the store."""
        if self.chance.random() < 0.5:
            for path in Path(self.run.spec.scratch).rglob(f"{self.position_us}.state"):
                if self.can_be_lost:
                    path.unlink()
            self.run.kill()
        elif self.number >= self.whole_from:
            self.server.damage_newest(b"", self.chance)
            self.whole_from = self.number + 12

    def cut_short(self) -> None:
        """Whoever saves is gone in the middle of it, and with him the batch."""
        if self.number < self.whole_from or not self.can_be_lost:
            return
        self.server.left = self.chance.randint(0, 3)
        results = len(self.run.results)
        try:
            self.go_on()
        except (UsageError, stage_runs.Killed):
            del self.run.results[results:]
            self.run.kill()
        self.server.left = 1 << 30
        self.whole_from = self.number + 12

    def away(self) -> None:
        if not self.always:
            self.server.away = True
            for _ in range(self.chance.randint(1, 4)):
                self.go_on()
            self.server.away = False

    def fork(self) -> None:
        """A node's, which has other input for some batches and leaves no trace."""
        if not self.number or not self.can_be_lost:
            return
        self.forks += 1
        root, kept = self.position_us, dict(self.server._kept)
        rows = [row for row in self.run.given if row[0] < root or self.chance.random() < 0.7]
        own = self.run.durable.own
        forked = stage_runs.StageRun(
            self.folder, rows, self.clock, **self.given, lineage=f"fork-{self.forks}", parents=(self.run.spec.lineage,),
            partitions=self.run.spec.partitions, own=None, before=((own, root),), operator=self.run.spec.operator,
            scratch=Path(self.run.spec.scratch).name, arrived=self.run.spec.arrived,
            arrived_of=self.run.spec.arrived_of,
        )  # fmt: skip  # type: ignore[arg-type]
        if self.chance.random() < 0.5:
            forked.spec.versions.pin(root)
        forked.run(self.number, self.number + self.chance.randint(1, 3))
        until = forked.at(self.number + len(forked.again_s))
        before = stage_runs.expected(self.run.given, self.window, root)
        assert sorted(before + forked.results) == stage_runs.expected(rows, self.window, until)
        assert self.server._kept == kept

    def move(self) -> None:
        """To another owner, whose store is the same and knows nothing of it."""
        if not self.number:
            return
        parcel = self.folder / f"parcel{self.moves}"
        if not self.run.spec.versions.pack(self.position_us, parcel):
            return
        if self.chance.random() < 0.5:
            VersionStore(self.run.durable).forget(self.run.durable.own or "")
        self.moves += 1
        there = stage_runs.StageRun(
            self.folder, self.run.given, self.clock, **self.given, partitions=self.chance.randint(1, 4),
            operator=f"life{self.moves}.op", scratch=f"scratch{self.moves}", arrived=str(parcel),
            arrived_of=self.run.spec.partitions,
        )  # fmt: skip  # type: ignore[arg-type]
        there.results, there.removed_us = self.run.results, self.position_us
        self.run = there


FLOW_WHAT = (FlowLife.go_on, FlowLife.again, FlowLife.other_partitions, FlowLife.kill, FlowLife.lose, FlowLife.lose,
             FlowLife.damage, FlowLife.cut_short, FlowLife.away, FlowLife.fork, FlowLife.move)  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*damaged:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:.*deadlines missed:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:.*checkpoints dropped:RuntimeWarning")
@pytest.mark.parametrize("seed", range(max(4, CASES - 8)))
def test_whatever_happens_to_a_flow_with_a_store_results_are_those_of_a_run_to_which_nothing_happened(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPARK_REUSE_WORKER", raising=False)
    chance, server, clock = random.Random(seed), stage_runs.one_server(monkeypatch), stage_runs.told_time(monkeypatch)
    life = FlowLife(tmp_path, chance, server, clock)
    told: list[str] = []
    try:
        for _ in range(14):
            life.go_on()
            what = chance.choice(FLOW_WHAT)
            told.append(what.__name__)
            what(life)
        life.lose()
        life.go_on()
        until = life.position_us
        assert sorted(life.run.results) == stage_runs.expected(life.run.given, life.window, until)
    except BaseException as error:
        raise AssertionError(f"seed {seed}: {life.given}: {told}") from error
    shutil.rmtree(tmp_path)
