"""User-defined operators, functors and barriers (002 §3.1, 004 §4, §4.3)."""

from __future__ import annotations

import pickle
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.checkpoint.policy import Guarantee, every
from holdfast.checkpoint.stores.files import FilesStore
from holdfast.checkpoint.stores.memory import MemoryStore
from holdfast.model.errors import CorruptLog, SchemaError, UsageError
from holdfast.operators.barrier import Barrier
from holdfast.operators.functor import functor
from holdfast.operators.keyed_barrier import paired
from holdfast.operators.udop import Instances, UserOperator, VectorOperator, decode, encode, lazily

IN = pa.schema([("k", pa.string()), ("x", pa.int64()), ("t", pa.int64())])
OUT = pa.schema([("k", pa.string()), ("sum", pa.int64())])


class Total(UserOperator):
    """Sends the sum of its key after every third tuple."""

    output_every = 3
    time_to_live_us = 100

    def __init__(self) -> None:
        self.key, self.sum = "", 0

    def process(self, row: dict[str, Any]) -> None:
        self.key, self.sum = row["k"], self.sum + row["x"]

    def output(self) -> list[dict[str, Any]]:
        return [{"k": self.key, "sum": self.sum}]

    def checkpoint(self) -> bytes:
        return encode([self.key, self.sum])

    def restore(self, saved: bytes) -> None:
        self.key, self.sum = decode(saved)


class Columns(VectorOperator):
    """The running sum by column."""

    def __init__(self) -> None:
        self.sum = 0

    def process_batch(self, rows: pa.RecordBatch) -> pa.Table:
        found = []
        for value in rows.column("x").to_pylist():
            self.sum += value
            found.append(self.sum)
        return pa.table([rows.column("k"), pa.array(found, pa.int64())], schema=OUT)

    def checkpoint(self) -> bytes:
        return encode(self.sum)

    def restore(self, saved: bytes) -> None:
        self.sum = decode(saved)


def _batch(rows: list[tuple[str, int, int]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"k": k, "x": x, "t": t} for k, x, t in rows], schema=IN)


def _rows(seed: int, count: int) -> list[tuple[str, int, int]]:
    chance = random.Random(seed)
    return [(chance.choice("abcdef"), chance.randint(-9, 9), i) for i in range(count)]


def _expected(rows: list[tuple[str, int, int]], every: int) -> dict[str, list[int]]:
    sums: dict[str, int] = {}
    seen: dict[str, int] = {}
    out: dict[str, list[int]] = {}
    for k, x, _ in rows:
        sums[k], seen[k] = sums.get(k, 0) + x, seen.get(k, 0) + 1
        if seen[k] % every == 0:
            out.setdefault(k, []).append(sums[k])
    return out


def _gathered(tables: list[pa.Table]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for table in tables:
        for row in table.to_pylist():
            found.setdefault(row["k"], []).append(row["sum"])
    return found


@pytest.mark.parametrize(("prototype", "every"), [(Total, 3), (Columns, 1)])
@pytest.mark.parametrize("eager", [False, True])
def test_instances_restored_at_any_point_go_on_as_if_nothing_had_happened(
    prototype: type[UserOperator], every: int, eager: bool
) -> None:
    """C7 at its best: saved after every batch, restored lazily at the first tuple of a key, or all in bulk."""
    rows, store, tables = _rows(7, 400), MemoryStore(), []
    instances = Instances("op", prototype, "k", OUT)
    for at in range(0, len(rows), 20):
        tables.append(instances.feed(_batch(rows[at : at + 20])))
        store.put_many(instances.entries(instances.touched))
        instances.settle(instances.touched)
        instances = Instances("op", prototype, "k", OUT, load=None if eager else lazily("op", store))
        if eager:
            assert instances.restore_all(store) == len({k for k, _, _ in rows[: at + 20]})
        else:
            assert len(instances) == 0
    assert _gathered(tables) == _expected(rows, every)


def test_an_instance_without_tuples_leaves_memory_and_comes_back_from_its_checkpoint() -> None:
    """002 §3.1: time to live."""
    store = MemoryStore()
    instances = Instances("op", Total, "k", OUT, load=lazily("op", store), time="t")
    instances.feed(_batch([("a", 5, 0), ("a", 6, 1)]))
    instances.feed(_batch([("b", 1, 500)]))
    assert len(instances) == 2, "a state that was not saved must not be forgotten"
    store.put_many(instances.entries(instances.touched))
    instances.settle(instances.touched)
    instances.feed(_batch([("b", 1, 501)]))
    assert len(instances) == 1
    assert instances.feed(_batch([("a", 1, 502)])).to_pylist() == [{"k": "a", "sum": 12}]


@pytest.mark.parametrize("unit", [pa.timestamp("us", "UTC"), pa.timestamp("ns"), pa.timestamp("s"), pa.int64()])
def test_with_forget_a_key_begins_anew_after_its_time_to_live_whatever_its_time_is_written_in(
    unit: pa.DataType,
) -> None:
    class Lasting(Total):
        output_every, time_to_live_us = 1, 3_000_000

    instances = Instances("op", Lasting, "k", OUT, time="t", forget=True)
    found = []
    for events in (
        [("a", 1, 10), ("b", 1, 12), ("a", 1, 12)],
        [("b", 1, 11), ("a", 1, 15), ("b", 1, 15), ("b", 1, 17)],
    ):
        seconds = pa.array([t for _, _, t in events], pa.timestamp("s"))
        times = seconds.cast(pa.timestamp("us")).cast(unit) if unit == pa.int64() else seconds.cast(unit)
        batch = pa.record_batch({"k": [k for k, _, _ in events], "x": [x for _, x, _ in events], "t": times})
        found.append(instances.feed(batch))
    # b's tuple of 11 comes after one of 12 and counts as come then.
    assert _gathered(found) == {"a": [1, 2, 1], "b": [1, 2, 1, 2]}


@pytest.mark.parametrize("eager", [False, True])
def test_who_goes_on_from_an_earlier_checkpoint_than_the_last_says_so(tmp_path: Path, eager: bool) -> None:
    """C11."""
    with FilesStore(tmp_path) as store:
        first = Instances("op", Total, "k", OUT, load=lazily("op", store))
        for _ in range(2):
            first.feed(_batch([("a", 5, 0)]))
            store.put_many(first.entries(first.touched))
        (newest,) = (path for path in tmp_path.iterdir() if len(path.name) == 32)
        raw = bytearray(newest.read_bytes())
        raw[-1] ^= 1
        newest.write_bytes(raw)
        again = Instances("op", Total, "k", OUT, load=lazily("op", store))
        with pytest.warns(RuntimeWarning, match="goes on from an earlier one, of 1 tuples"):
            again.restore_all(store) if eager else again.feed(_batch([("a", 1, 0)]))


def test_only_keys_with_enough_tuples_since_their_last_save_are_due() -> None:
    """every(events=…)."""
    instances = Instances("op", Total, "k", OUT)
    instances.feed(_batch([("a", 1, 0)] * 5 + [("b", 1, 0)] * 2))
    assert instances.due(5) == [encode("a")]
    instances.settle(instances.due(5))
    instances.feed(_batch([("b", 1, 0)] * 3 + [("a", 1, 0)] * 4))
    assert instances.due(5) == [encode("b")]


def test_nothing_from_a_store_is_unpickled() -> None:
    """X3: a pickle that would run code is refused as unreadable."""

    class Bomb:
        def __reduce__(self) -> Any:
            raise AssertionError

    store = MemoryStore()
    store.put(b"op/" + encode("a"), 1, pickle.dumps([1, 2]))
    with pytest.raises(CorruptLog, match="cannot be read"):
        Instances("op", Total, "k", OUT, load=lazily("op", store)).feed(_batch([("a", 1, 0)]))


def test_an_operator_without_checkpoint_says_what_to_define() -> None:
    class Plain(UserOperator):
        def process(self, row: dict[str, Any]) -> None:
            pass

    instances = Instances("op", Plain, "k", OUT)
    instances.feed(_batch([("a", 1, 0)]))
    with pytest.raises(UsageError, match=r"define checkpoint\(\)"):
        instances.entries(instances.touched)


def test_a_functor_keeps_its_variables_and_a_stateless_one_nothing() -> None:
    """004 §4."""

    def count(row: dict[str, Any], v: dict[str, Any]) -> dict[str, Any] | None:
        v["n"] += row["x"]
        return {"k": row["k"], "sum": v["n"]} if row["x"] > 0 else None

    running = functor("running", count, variables={"n": 0}, checkpoint=every("10s"))
    assert running.protection.saves == "its variables"
    first, store = Instances("running", running.build, None, OUT), MemoryStore()
    first.feed(_batch([("a", 5, 0), ("b", -2, 0)]))
    store.put_many(first.entries(first.touched))
    again = Instances("running", running.build, None, OUT, load=lazily("running", store))
    assert again.feed(_batch([("c", 4, 0)])).to_pylist() == [{"k": "c", "sum": 7}]
    plain = functor("plain", lambda row, v: row, checkpoint=every("10s"))
    assert (plain.protection.saves, plain.protection.guarantee) == ("nothing: it has no state", Guarantee.EXACT)
    with pytest.raises(UsageError, match="must be numbers"):
        functor("bad", count, variables={"n": object()})
    with pytest.raises(UsageError, match="one of both"):
        functor("bad")


def test_a_barrier_fed_again_from_upstream_pairs_as_before() -> None:
    """004 §4: with every cut of the run, resumed from what is consumed, the pairs equal those without a failure."""
    a, b = pa.schema([("a", pa.int64())]), pa.schema([("b", pa.int64())])
    chance = random.Random(2)
    expected = [(i, 100 + i) for i in range(30)]
    for _ in range(40):
        barrier, sent, got = Barrier("b", [a, b]), [0, 0], []
        while len(got) < 30:
            if chance.random() < 0.15:
                barrier = Barrier("b", [a, b], resume_at=barrier.consumed)
                sent = [max(0, barrier.consumed - chance.randint(0, 3))] * 2  # Upstream may give more than needed.
            which = chance.randint(0, 1)
            first, end = sent[which], min(30, sent[which] + chance.randint(0, 4))
            values = [i + 100 * which for i in range(first, end)]
            rows = pa.record_batch([pa.array(values, pa.int64())], schema=(a, b)[which])
            got += [tuple(r.values()) for r in barrier.feed(which, first, rows).to_pylist()]
            sent[which] = end
        assert got == expected
    with pytest.raises(UsageError, match="replay the tuples"):
        Barrier("b", [a, b]).feed(0, 3, rows)


def test_a_barrier_restored_between_batches_pairs_the_kth_with_the_kth() -> None:
    """As it runs on Spark: every batch from the tuples in flight that the one before left in a store."""
    schema = pa.schema([("x", pa.int64()), ("y", pa.string()), ("side", pa.string())])
    inputs = {"a": pa.schema([("x", pa.int64())]), "b": pa.schema([("y", pa.string())])}
    chance, store = random.Random(4), MemoryStore()
    given: dict[str, list[Any]] = {"a": [], "b": []}
    found = []
    for batch in range(30):
        instances = Instances("gate", paired("gate", inputs), None, pa.schema([*inputs["a"], *inputs["b"]]),
                              load=lazily("gate", store))  # fmt: skip
        rows = []
        for i in range(chance.randint(1, 9)):
            side = "a" if chance.random() < 0.3 + 0.4 * (batch % 2) else "b"
            rows.append({"x": batch * 10 + i, "y": f"{batch}.{i}", "side": side})
            given[side].append(rows[-1]["x" if side == "a" else "y"])
        found += [
            tuple(r.values()) for r in instances.feed(pa.RecordBatch.from_pylist(rows, schema=schema)).to_pylist()
        ]
        store.put_many(instances.entries(instances.touched))
        assert found == list(zip(given["a"], given["b"], strict=False))
    assert len(given["a"]) != len(given["b"])


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"k": "a", "sum": Decimal("1e-10000000")}, "column 'sum' must be decimal128(10, 2); got 1E-10000000"),
        ({"k": "a", "sum": Decimal("0.125")}, "column 'sum' must be decimal128(10, 2); got 0.125"),
        ({"k": "a", "sum": 1, "more": 2}, "a row must have the columns"),
    ],
)  # fmt: skip
def test_a_result_that_its_column_cannot_hold_is_refused_and_ends_no_worker(row: dict[str, Any], told: str) -> None:
    """X5: Arrow dies of the first, rounds the second and drops what it does not know of the third."""

    class Odd(UserOperator):
        def process(self, _row: dict[str, Any]) -> list[dict[str, Any]]:
            return [row]

    schema = pa.schema([("k", pa.string()), ("sum", pa.decimal128(10, 2))])
    instances = Instances("odd", Odd, "k", schema, time="t")
    with pytest.raises(SchemaError, match="operator odd: ") as refused:
        instances.feed(pa.RecordBatch.from_pylist([{"k": "a", "x": 1, "t": 1}], schema=IN))
    assert told in str(refused.value)
