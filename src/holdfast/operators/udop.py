"""User-defined operators with an instance per key: SPADE's UDOP (004 §4.3) and S4's processing element (002 §2.3).

    class Mean(UserOperator):
        def __init__(self):
            self.total, self.count = 0.0, 0
        def process(self, row):
            self.total += row["x"]; self.count += 1
        def output(self):
            return [{"mean": self.total / self.count}]
        def checkpoint(self):
            return encode([self.total, self.count])
        def restore(self, saved):
            self.total, self.count = decode(saved)

Rules:
1. An instance is made from the prototype when the first tuple of its key comes; if there is a checkpoint of the key, it
   is restored from that first (lazy), unless all were brought in beforehand (eager).
2. An instance sees the tuples of its key in order. `VectorOperator` gets those of one batch together, as columns.
3. `output` is called after every `output_every` tuples of the key, or at the end of a batch once `output_after` has
   passed since its last one, measured in the tuples' own time.
4. An instance without tuples for `time_to_live` leaves memory; its checkpoint stays, and a tuple that comes later finds
   it again (002 §3.1).
5. Checkpoints are bytes that the operator makes itself; `encode` and `decode` give MessagePack. No pickle (X3).
"""

from __future__ import annotations

import warnings
from abc import ABC
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import msgspec
import pyarrow as pa

from holdfast.checkpoint.store import CheckpointStore, Entry, Saved
from holdfast.model.errors import CorruptLog, UsageError

Row = dict[str, Any]


def encode(value: Any) -> bytes:
    """Numbers, text, bytes, lists and maps as MessagePack: what a `checkpoint` may return."""
    return msgspec.msgpack.encode(value)


def decode(saved: bytes) -> Any:
    """What `encode` was given."""
    return msgspec.msgpack.decode(saved)


class UserOperator(ABC):  # noqa: B024 - which methods are needed depends on the policy
    """What a user subclasses. One instance holds the state of one key."""

    #: Tuples of a key between two calls of `output`; None for none.
    output_every: ClassVar[int | None] = None
    #: Microseconds of the tuples' time between two calls of `output`.
    output_after_us: ClassVar[int | None] = None
    #: Microseconds of the tuples' time without a tuple after which the instance leaves memory.
    time_to_live_us: ClassVar[int | None] = None

    def process(self, row: Row) -> Iterable[Row] | None:
        """Take in one tuple; what is returned goes out at once."""
        raise NotImplementedError(f"{type(self).__name__} must define process(row)")

    def output(self) -> Iterable[Row] | None:
        """What to send after `output_every` tuples or `output_after_us`."""
        return None

    def checkpoint(self) -> bytes:
        """All of the state that matters, as bytes."""
        raise UsageError(f"{type(self).__name__} must define checkpoint() to be checkpointed; or annotate it with none")

    def restore(self, saved: bytes) -> None:
        """Become what `checkpoint` saw."""
        raise UsageError(f"{type(self).__name__} must define restore(saved) to be restored")


class VectorOperator(UserOperator):
    """Takes the tuples of its key in one batch together."""

    def process_batch(self, rows: pa.RecordBatch) -> pa.RecordBatch | pa.Table | None:
        raise NotImplementedError(f"{type(self).__name__} must define process_batch(rows)")


@dataclass
class _Instance:
    operator: UserOperator
    events: int = 0
    """Tuples taken in since the key's beginning: the version of its checkpoints."""
    saved: int = 0
    since_output: int = 0
    output_us: int = 0
    last_us: int = 0


class _Envelope(msgspec.Struct, array_like=True, frozen=True):
    events: int
    since_output: int
    output_us: int
    last_us: int
    state: bytes


_open_envelope = msgspec.msgpack.Decoder(_Envelope).decode


class Instances:
    """All instances of one operator in one partition."""

    def __init__(
        self, name: str, prototype: Callable[[], UserOperator], key: str | None, schema: pa.Schema, *,
        load: Callable[[bytes], bytes | None] | None = None, time: str | None = None,
    ) -> None:  # fmt: skip
        self.name, self._prototype, self._key, self.schema, self._time = name, prototype, key, schema, time
        self._load = load
        self._alive: dict[bytes, _Instance] = {}
        self.touched: dict[bytes, None] = {}
        """Keys whose state changed since `settle`, in order."""

    def __len__(self) -> int:
        return len(self._alive)

    def feed(self, batch: pa.RecordBatch) -> pa.Table:
        """Results of a batch, key by key in the order in which the keys first appear."""
        parts: list[pa.Table] = []
        now_us = 0
        for key, rows in self._by_key(batch):
            instance = self._instance(key)
            last = _last_us(rows, self._time)
            now_us = max(now_us, last)
            self._run(instance, rows, last, parts)
            instance.last_us = max(instance.last_us, last)
            self.touched[key] = None
        self._expire(now_us)
        return pa.concat_tables(parts) if parts else self.schema.empty_table()

    def _run(self, instance: _Instance, rows: pa.RecordBatch, last_us: int, parts: list[pa.Table]) -> None:
        operator = instance.operator
        found: list[Row] = []
        if isinstance(operator, VectorOperator):
            given = operator.process_batch(rows)
            if given is not None:
                table = pa.Table.from_batches([given]) if isinstance(given, pa.RecordBatch) else given
                parts.append(table.cast(self.schema))
            instance.events += rows.num_rows
            instance.since_output += rows.num_rows
            if operator.output_every is not None and instance.since_output >= operator.output_every:
                found += operator.output() or ()
                instance.since_output = 0
        else:
            for row in rows.to_pylist():
                found += operator.process(row) or ()
                instance.events += 1
                instance.since_output += 1
                if instance.since_output == operator.output_every:
                    found += operator.output() or ()
                    instance.since_output = 0
        if operator.output_after_us is not None:
            instance.output_us = instance.output_us or last_us
            if last_us - instance.output_us >= operator.output_after_us:
                found += operator.output() or ()
                instance.output_us = last_us
        if found:
            parts.append(pa.Table.from_pylist(found, schema=self.schema))

    def _by_key(self, batch: pa.RecordBatch) -> Iterable[tuple[bytes, pa.RecordBatch]]:
        if not batch.num_rows:
            return
        if self._key is None:
            yield b"*", batch
            return
        coded = batch.column(self._key).dictionary_encode(null_encoding="encode")
        codes = coded.indices.to_numpy()
        order = codes.argsort(kind="stable")
        ends = codes[order].searchsorted(range(len(coded.dictionary)), side="right").tolist()
        rows, begin = batch.take(pa.array(order)), 0
        for value, end in zip(coded.dictionary.to_pylist(), ends, strict=True):
            yield encode(value), rows.slice(begin, end - begin)
            begin = end

    def _instance(self, key: bytes) -> _Instance:
        found = self._alive.get(key)
        if found is None:
            saved = self._load(key) if self._load is not None else None
            found = self._alive[key] = self._restored(saved) if saved is not None else _Instance(self._prototype())
        return found

    def _restored(self, saved: bytes) -> _Instance:
        try:
            envelope = _open_envelope(saved)
        except msgspec.MsgspecError as error:
            raise CorruptLog(f"{self.name}: a checkpoint cannot be read ({error}); restore an earlier one") from error
        operator = self._prototype()
        operator.restore(envelope.state)
        return _Instance(operator, envelope.events, envelope.events, envelope.since_output, envelope.output_us,
                         envelope.last_us)  # fmt: skip

    def _expire(self, now_us: int) -> None:
        """Rule 4. Those that were touched since the last save stay until their state is safe."""
        for key, instance in list(self._alive.items()):
            ttl = instance.operator.time_to_live_us
            if ttl is not None and now_us - instance.last_us >= ttl and key not in self.touched:
                del self._alive[key]

    def snapshot(self, key: bytes) -> tuple[int, bytes]:
        """Version and bytes of an instance's state."""
        i = self._alive[key]
        state = i.operator.checkpoint()
        if not isinstance(state, bytes):
            raise UsageError(f"{self.name}: checkpoint() must give bytes; got {type(state).__name__}; use encode()")
        return i.events, encode(_Envelope(i.events, i.since_output, i.output_us, i.last_us, state))

    def due(self, events: int) -> list[bytes]:
        """Touched keys with that many tuples since their last save (`every(events=…)`)."""
        return [key for key in self.touched if self._alive[key].events - self._alive[key].saved >= events]

    def settle(self, keys: Iterable[bytes]) -> None:
        """These were saved as they are now."""
        for key in list(keys):
            self.touched.pop(key, None)
            self._alive[key].saved = self._alive[key].events

    def entries(self, keys: Iterable[bytes]) -> list[Entry]:
        """What to store for these instances."""
        prefix = self.name.encode() + b"/"
        found = []
        for key in keys:
            version, value = self.snapshot(key)
            found.append(Entry(prefix + key, version, value))
        return found

    def restore_all(self, store: CheckpointStore) -> int:
        """Eager restore in bulk (002 §6.2): every saved instance, before the first tuple comes."""
        prefix = self.name.encode() + b"/"
        saved = store.get_many(key for key, _ in store.scan(prefix))
        for key, found in saved.items():
            _tell_fallback(self.name, key, found)
            self._alive[key[len(prefix) :]] = self._restored(found.value)
        return len(saved)


def lazily(name: str, store: CheckpointStore) -> Callable[[bytes], bytes | None]:
    """A `load` that asks the store at the first tuple of a key."""
    prefix = name.encode() + b"/"

    def load(key: bytes) -> bytes | None:
        saved = store.get(prefix + key)
        if saved is None:
            return None
        _tell_fallback(name, key, saved)
        return saved.value

    return load


def _tell_fallback(name: str, key: bytes, saved: Saved) -> None:
    """C11: what goes on from less than was saved says so."""
    if saved.passed_over:
        warnings.warn(
            f"{name}: the newest checkpoint of {key!r:.80} is damaged; goes on from an earlier one, of {saved.version} "
            f"tuples", RuntimeWarning, stacklevel=3,
        )  # fmt: skip


def _last_us(rows: pa.RecordBatch, column: str | None) -> int:
    if column is None:
        return 0
    values = rows.column(column)
    return int(values.cast(pa.int64())[len(values) - 1].as_py() or 0)
