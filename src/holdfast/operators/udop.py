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
   passed since its last one, also where the key got no tuples.
4. An instance without tuples for `time_to_live` leaves memory. Its checkpoint stays, and a tuple that comes later finds
   it again (002 §3.1); with `forget` its state goes with it (002 §2.3), and a later tuple finds a new instance.
5. Time is that of the tuples, in the column `time`: a tuple's own, or that of an earlier one of any key if that was
   greater, so it never goes back. Without a column it is what the caller says it is, `now_us`.
6. Checkpoints are bytes that the operator makes itself; `encode` and `decode` give MessagePack. No pickle (X3).
7. On Spark, a large state may be saved in parts, only those that changed (`holdfast.operators.state_parts`).
"""

from __future__ import annotations

import warnings
from abc import ABC
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.checkpoint.safekeeper import Result, SafeKeeper, State
from holdfast.checkpoint.store import CheckpointStore, Entry, Saved
from holdfast.model.errors import CorruptLog, UsageError
from holdfast.operators.state_parts import Packed, Parted, follow, pack, sorted_out, unpack
from holdfast.stream.rows import Columns

#: The time of a tuple, in its header.
STIME = "stime"

Row = dict[str, Any]
#: Gives those of a key's parts that are there, by name.
LoadParts = Callable[[bytes, list[bytes]], dict[bytes, bytes]]


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
    #: Microseconds between two calls of `output`.
    output_after_us: ClassVar[int | None] = None
    #: Microseconds without a tuple after which the instance leaves memory, on Spark with its state.
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
    directory: dict[bytes, int] = field(default_factory=dict)
    """The parts of its state that are saved."""
    stale: tuple[bytes, ...] = ()
    """Those of a life of the key that is over."""


class _Envelope(msgspec.Struct, array_like=True, frozen=True):
    events: int
    since_output: int
    output_us: int
    last_us: int
    state: bytes
    saved: int | None = None
    """Of a state that no checkpoint was made of: the tuples that the last one had seen, 0 if there is none."""


_open_envelope = msgspec.msgpack.Decoder(_Envelope).decode


class Instances:
    """All instances of one operator in one partition."""

    def __init__(
        self, name: str, prototype: Callable[[], UserOperator], key: str | None, schema: pa.Schema, *,
        load: Callable[[bytes], bytes | None] | None = None, time: str | None = None, forget: bool = False,
        now_us: int = 0, load_parts: LoadParts | None = None, exact: bool = True, time_to_live_us: int | None = None,
    ) -> None:  # fmt: skip
        self._time_to_live_us = time_to_live_us
        self.name, self._prototype, self._key, self.schema, self._time = name, prototype, key, schema, time
        self._load, self._load_parts, self._forget, self._exact = load, load_parts, forget, exact
        self._columns = Columns(schema, f"operator {name}")
        self.now_us = now_us
        """How far time has come (rule 5)."""
        self._alive: dict[bytes, _Instance] = {}
        self.touched: dict[bytes, None] = {}
        """Keys whose state changed since `settle`, in order."""

    def __len__(self) -> int:
        return len(self._alive)

    def feed(self, batch: pa.RecordBatch) -> pa.Table:
        """Results of a batch, key by key in the order in which the keys first appear."""
        parts: list[pa.Table] = []
        fed: set[bytes] = set()
        for key, rows, times in self._by_key(batch, self._times(batch)):
            instance, begin = self._instance(key), 0
            for end in [*self._ends(instance, times), rows.num_rows]:
                if end > begin:
                    self._run(instance, rows.slice(begin, end - begin), int(times[end - 1]), parts)
                if end < rows.num_rows:
                    # Versions count on: a store would refuse those of a new beginning as older.
                    instance = self._alive[key] = _Instance(
                        self._prototype(),
                        instance.events,
                        instance.saved,
                        stale=(*instance.stale, *instance.directory),
                    )
                begin = end
            self.touched[key] = None
            fed.add(key)
        for key in [key for key in self._alive if key not in fed]:
            parts += self.wake(key)
        self._expire()
        return pa.concat_tables(parts) if parts else self.schema.empty_table()

    def _ends(self, instance: _Instance, times: npt.NDArray[np.int64]) -> list[int]:
        """Before which tuples the instance of a key is forgotten (rule 4)."""
        lasts = self._lasts_us(instance)
        if not self._forget or lasts is None:
            return []
        since = instance.last_us or int(times[0])
        return np.flatnonzero(np.diff(times, prepend=since) >= lasts).tolist()  # type: ignore[no-any-return]

    def wake(self, key: bytes) -> list[pa.Table]:
        """Rule 3, for a key that may have no tuples: its output, if it is due."""
        instance = self._instance(key)
        found = self._output_by_time(instance, self.now_us)
        if found is None:
            return []
        self.touched[key] = None
        return [self._table(found)] if found else []

    def _output_by_time(self, instance: _Instance, now_us: int) -> list[Row] | None:
        """None if it is not due."""
        after = instance.operator.output_after_us
        if after is None:
            return None
        instance.output_us = instance.output_us or now_us
        if now_us - instance.output_us < after:
            return None
        instance.output_us = now_us
        return list(instance.operator.output() or ())

    def _run(self, instance: _Instance, rows: pa.RecordBatch, last_us: int, parts: list[pa.Table]) -> None:
        operator = instance.operator
        found: list[Row] = []
        if isinstance(operator, VectorOperator):
            given = operator.process_batch(rows)
            if given is not None:
                table = pa.Table.from_batches([given]) if isinstance(given, pa.RecordBatch) else given
                parts.append(self._fitted(table))
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
        instance.last_us = last_us
        found += self._output_by_time(instance, last_us) or ()
        if found:
            parts.append(self._table(found))

    def _fitted(self, table: pa.Table) -> pa.Table:
        """The columns of the schema, in its order. A time that comes with results is left out if it is not named."""
        if table.column_names == self.schema.names:
            return table.cast(self.schema)
        if STIME not in self.schema.names and STIME in table.column_names:
            table = table.drop_columns([STIME])
        if set(table.column_names) != set(self.schema.names):
            raise UsageError(
                f"{self.name}: results must have the columns of schema=, {', '.join(self.schema.names)}; got "
                f"{', '.join(table.column_names)}; change one of the two"
            )
        return table.select(self.schema.names).cast(self.schema)

    def _table(self, found: list[Row]) -> pa.Table:
        """What an operator returned, checked as a producer's rows are: Arrow trusts what it is handed (X5)."""
        return pa.Table.from_batches([self._columns.batch(found)])

    def _times(self, batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
        """When each tuple counts as come (rule 5)."""
        if self._time is None or not batch.num_rows:
            return np.full(batch.num_rows, self.now_us, np.int64)
        given = batch.column(self._time)
        if pa.types.is_timestamp(given.type) or pa.types.is_date(given.type):
            given = given.cast(pa.timestamp("us", getattr(given.type, "tz", None)), safe=False)
        own = np.asarray(pc.fill_null(given.cast(pa.int64()), 0))
        times: npt.NDArray[np.int64] = np.maximum(np.maximum.accumulate(own), self.now_us)
        self.now_us = int(times[-1])
        return times

    def _by_key(
        self, batch: pa.RecordBatch, times: npt.NDArray[np.int64]
    ) -> Iterable[tuple[bytes, pa.RecordBatch, npt.NDArray[np.int64]]]:
        if not batch.num_rows:
            return
        if self._key is None:
            yield b"*", batch, times
            return
        coded = batch.column(self._key).dictionary_encode(null_encoding="encode")
        codes = coded.indices.to_numpy()
        order = codes.argsort(kind="stable")
        ends = codes[order].searchsorted(range(len(coded.dictionary)), side="right").tolist()
        rows, begin = batch.take(pa.array(order)), 0
        for value, end in zip(coded.dictionary.to_pylist(), ends, strict=True):
            yield encode(value), rows.slice(begin, end - begin), times[order[begin:end]]
            begin = end

    def _instance(self, key: bytes) -> _Instance:
        found = self._alive.get(key)
        if found is None:
            saved = self._load(key) if self._load is not None else None
            made = self._restored(key, saved) if saved is not None else _Instance(self._prototype())
            found = self._alive[key] = made
        return found

    def _restored(self, key: bytes, saved: bytes) -> _Instance:
        envelope = _opened(saved)
        operator = self._prototype()
        packed = unpack(envelope.state)
        if packed is None:
            operator.restore(envelope.state)
        else:
            self._put_together(operator, key, packed)
        saved_events = envelope.events if envelope.saved is None else envelope.saved
        return _Instance(operator, envelope.events, saved_events, envelope.since_output, envelope.output_us,
                         envelope.last_us, packed.directory if packed is not None else {})  # fmt: skip

    def _put_together(self, operator: UserOperator, key: bytes, packed: Packed) -> None:
        if not isinstance(operator, Parted) or self._load_parts is None:
            raise UsageError(
                f"{self.name}: the state of {key!r:.80} was saved in parts, which this operator does not have; keep "
                f"the policy that it was saved with, or start anew"
            )
        parts, lost = sorted_out(packed.directory, self._load_parts(key, list(packed.directory)))
        if lost and self._exact:
            raise CorruptLog(
                f"{self.name}: {len(lost)} of {len(packed.directory)} parts of the state of {key!r:.80} are not what "
                f"was saved; restore the store from a copy, or start the query anew"
            )
        operator.restore_parts(packed.head, parts, lost)

    def _expire(self) -> None:
        """Rule 4. Those that were touched since the last save stay until their state is safe."""
        for key in [key for key in self._alive if key not in self.touched and self.expired(key)]:
            del self._alive[key]

    def expired(self, key: bytes) -> bool:
        """Whether an instance had no tuples for its time to live."""
        instance = self._alive[key]
        lasts = self._lasts_us(instance)
        return lasts is not None and self.now_us - instance.last_us >= lasts

    def _lasts_us(self, instance: _Instance) -> int | None:
        return instance.operator.time_to_live_us if self._time_to_live_us is None else self._time_to_live_us

    def snapshot(self, key: bytes) -> tuple[int, bytes]:
        """Version and bytes of an instance's state."""
        return self._alive[key].events, self._enclosed(key, self._alive[key].operator.checkpoint(), settled=True)

    def changes(self, key: bytes) -> tuple[bytes, dict[bytes, bytes | None]]:
        """The bytes of an instance's state, and those of its parts that changed; None removes. A state that is not
        settled says so."""
        i, settled = self._alive[key], key not in self.touched
        if not isinstance(i.operator, Parted):
            return self._enclosed(key, i.operator.checkpoint(), settled), dict.fromkeys((*i.stale, *i.directory))
        head, parts = i.operator.changes()
        changed = {**dict.fromkeys(i.stale), **parts}
        i.directory, i.stale = follow(i.directory, parts), ()
        return self._enclosed(key, pack(head, i.directory), settled), changed

    def _enclosed(self, key: bytes, state: object, settled: bool) -> bytes:
        if not isinstance(state, bytes):
            raise UsageError(f"{self.name}: checkpoint() must give bytes; got {type(state).__name__}; use encode()")
        i = self._alive[key]
        return _bytes_of(_Envelope(i.events, i.since_output, i.output_us, i.last_us, state,
                                   None if settled else i.saved))  # fmt: skip

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

    def checkpoint(
        self, keeper: SafeKeeper, now_us: int, *, events: int = 0, told: Callable[[Result], None] | None = None
    ) -> int:
        """Hand the touched keys to the keeper, those with `events` tuples or more since their last save."""
        keys = self.due(events)
        states: list[State] = [(key, version, value or b"") for key, version, value in self.entries(keys)]
        self.settle(keys)
        keeper.save_many(states, told)
        return len(keys)

    def unsaved(self, result: Result) -> None:
        """What was dropped on its way must be saved again."""
        key = result.key[len(self.name) + 1 :]
        if key in self._alive:
            self.touched[key] = None
            self._alive[key].saved = 0

    def restore_all(self, store: CheckpointStore) -> int:
        """Eager restore in bulk (002 §6.2): every saved instance, before the first tuple comes."""
        prefix = self.name.encode() + b"/"
        saved = store.get_many(key for key, _ in store.scan(prefix))
        for key, found in saved.items():
            _tell_fallback(self.name, key, found)
            mine = key[len(prefix) :]
            self._alive[mine] = self._restored(mine, found.value)
        return len(saved)


def columns_text(schema: pa.Schema) -> str:
    """Columns of whatever type, for people and for comparison."""
    return ", ".join(f"{field.name} {field.type}" for field in schema)


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


class Times(NamedTuple):
    """When a key had its last tuple and its last output by time."""

    last_us: int
    output_us: int


def times_of(saved: bytes) -> Times:
    """Those of a saved instance, without making it."""
    envelope = _opened(saved)
    return Times(envelope.last_us, envelope.output_us)


def unsaved_since(saved: bytes) -> int | None:
    """Of a state that no checkpoint was made of, the tuples that the last one had seen; None if one was."""
    return _opened(saved).saved


def settled(saved: bytes) -> bytes:
    """The same state, of which a checkpoint is made now."""
    envelope = _opened(saved)
    return saved if envelope.saved is None else _bytes_of(msgspec.structs.replace(envelope, saved=None))


def _bytes_of(envelope: _Envelope) -> bytes:
    fields = msgspec.structs.astuple(envelope)
    return encode(fields if envelope.saved is not None else fields[:-1])  # As all were written once.


def directory_of(saved: bytes) -> dict[bytes, int]:
    """The parts of a saved instance, without making it."""
    packed = unpack(_opened(saved).state)
    return {} if packed is None else packed.directory


def _opened(saved: bytes) -> _Envelope:
    try:
        return _open_envelope(saved)
    except msgspec.MsgspecError as error:
        raise CorruptLog(f"a checkpoint cannot be read ({error}); restore an earlier one") from error
