"""The input of a `holdfast.inputs.postgres_changes` source at work: reads the log of a server and commits changes.

One thread: look what came, decode it, commit it with its place, tell the server. Changes go into the log as they come,
also those of a transaction that is still coming: readers see whole buckets, and the boundary stays at or before a
transaction's stime until it is whole. So no transaction is too large.
"""

from __future__ import annotations

import contextlib
import random
import re
import threading
from collections import deque
from collections.abc import Collection
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.clock import ArrivalClock, monotonic_us
from holdfast.inputs.change_position import SNAPSHOT, ChangePosition
from holdfast.inputs.change_rows import ChangeRows, Placed, Refused
from holdfast.inputs.feed import Sent
from holdfast.inputs.first_rows import FirstRows, Head
from holdfast.inputs.pgoutput import Alive, Begin, Change, Commit, Relation, Truncate, decode, lsn_text, unwrap
from holdfast.inputs.postgres_changes import PostgresChanges
from holdfast.inputs.postgres_client import Connection, ReplicationConnection, Stopped
from holdfast.inputs.postgres_table import (
    Seen,
    Table,
    check_published,
    check_readable,
    check_slot,
    check_timeline,
    copy_text,
    describe,
    find_slot,
    literal,
    look,
    publication_name,
    publish,
    slot_name,
)
from holdfast.inputs.postgres_types import copied_row
from holdfast.inputs.unit_letters import UnitLetters
from holdfast.model.errors import EarlyTuple, LateTuple, PeerError, UsageError
from holdfast.model.names import check_name
from holdfast.model.time import BEGINNING_US, closed_until, duration_text, instant_text
from holdfast.stream.frame import crc32c
from holdfast.stream.store import Stream

#: How long one look waits for changes: what it adds to nothing, since they wake it, but to a stop.
_LOOK_S = 0.05
#: How often the server is asked where its log ends. A silent table is known to be silent up to then.
_END_US = 200_000
#: How long the server may take to get to the end of its log before its log is given a push; see `_push`.
_PUSH_US = 1_000_000
#: How often a place is committed where nothing else is, so that the server can let go of its log.
_PLACES_US = 5_000_000
#: A commit that lies further ahead of the server's own clock was stamped by a clock that was wrong: what came behind it
#: would have to wait for so long (D19).
_AHEAD_US_MAX = 10_000_000
#: Rows of the first ones that are sent at once.
_ROWS = 20_000
#: Over how many seconds the rate is taken.
_RATE_S = 5


class PostgresInput:
    """Feeds one stream from one table."""

    def __init__(self, source: PostgresChanges, stream: Stream, home: Path, dead_letters: Path | None) -> None:
        self._source, self._stream, self._dead_path = source, stream, dead_letters
        # The server is told to forget what was read: places lost with their rows are lost for good.
        stream.definition.require_replay("a table of PostgreSQL that fills it")
        self._rows = ChangeRows(
            stream.definition.schema, stream.name, source.table, columns=source.columns_of, stime=source.stime,
            stime_unit=source.stime_unit,
        )  # fmt: skip
        self._first = FirstRows(home / f"{stream.name}.first-rows")
        self._letters = UnitLetters(home / f"{stream.name}.postgres-put-aside", dead_letters)
        self._stop = threading.Event()
        self.total = Sent()
        self._read = 0
        self._rate: deque[tuple[int, int]] = deque()
        self._status: dict[str, Any] = {}

    def stop(self) -> None:
        self._stop.set()

    def status(self) -> dict[str, Any]:
        return self._status

    # -- life --------------------------------------------------------------------------------------------------------

    def run(self) -> Sent:
        """Read until `stop`."""
        with contextlib.ExitStack() as stack, contextlib.suppress(Stopped):
            self._client = ReplicationConnection(self._source.url, self._stop)
            stack.callback(self._client.close)
            table = describe(self._client, self._source.table)
            self._table = table.relation.id
            self._publication = self._source.publication or publication_name(table.relation)
            self._asking = Connection(self._source.url, self._stop)
            stack.callback(self._asking.close)
            slack = "0s" if self._source.stime is None else duration_text(self._source.slack_us)
            self._producer = self._stream.producer(stime="stime", slack=slack, max_ahead=None)
            stack.callback(lambda: self._producer.close(end=False))
            self._letters.begin(self._producer.writer.state.tokens)
            self._begin(table)
            self._loop()
        return self.total

    def _begin(self, table: Table) -> None:
        self._pending: list[Placed] = []
        self._xid = 0
        self._top_us = self._producer.boundary_us
        self._tx_us = self._last_us = self._producer.boundary_us
        seen = self._look()
        self._server_us, self._server_steady_us, self._standby = seen.clock_us, monotonic_us(), seen.standby
        self._clock = ArrivalClock(lambda: self._server_us + monotonic_us() - self._server_steady_us, monotonic_us)
        self._clock.not_before(self._producer.boundary_us)
        self._seen = self._end = 0
        self._end_clock_us = self._complete_us = self._producer.boundary_us
        self._ask_us = self._stuck_at = self._stuck_us = 0
        self._data_us = monotonic_us()
        id = self._id(table)
        self._position = ChangePosition(id, self._producer.writer.state.tokens)
        self._slot = self._own_slot(id)
        head = self._first.head() if self._position.done is None else None
        begun = self._position.done is not None or (head is not None and head.slot == self._slot)
        self._own_timeline(id, table, max(self._position.reached, head.lsn if head is not None else 0), begun=begun)
        self._published = self._own_publication(id, table, begun=begun)
        if self._position.done is None:
            self._begin_table(table, head if begun else None)
        else:
            check_slot(self._client, self._slot, self._source.table, self._position.done)
        self._first.remove()
        assert self._position.done is not None
        self._client.start(self._slot, self._position.done, self._publication)

    def _id(self, table: Table) -> str:
        """The source among the stream's producers; rule 4 of `postgres_changes`."""
        source, tokens = self._source, self._producer.writer.state.tokens
        name = re.sub(r"[^a-z0-9_.-]|\.(?=\.)", "-", source.id.lower())[:60]
        stem = f"postgres-{name}-{crc32c(source.id.encode()):08x}"
        what = f"{table.system} {table.relation.id} {source.stime} {source.stime_unit}"
        id = check_name(f"{stem}-{crc32c(what.encode()):08x}")
        if any(i.startswith(f"{stem}-") and not i.startswith(f"{id}-") for i in tokens):
            raise UsageError(
                f"stream {self._stream.name}: table {source.table} must be the one that was read before, with the same "
                "stime; it was dropped and made again, lies on another server, or stime was changed; choose a new id "
                "to begin with the rows that it has now"
            )
        return id

    def _own_slot(self, id: str) -> str:
        """Its name is in the log before it is made: one that is found is ours, or somebody else's for certain."""
        key, tokens = f"{id}-slot", self._producer.writer.state.tokens
        if key not in tokens:
            self._producer.send_unit(self._no_rows(), numbers={key: random.SystemRandom().getrandbits(31)})
        return slot_name(self._stream.name, self._producer.last_seq_of(key))

    def _own_timeline(self, id: str, table: Table, reached: int, *, begun: bool) -> None:
        """Places mean something in one history of the server's log only, so it is in ours with them."""
        key, tokens = f"{id}-timeline", self._producer.writer.state.tokens
        known = self._producer.last_seq_of(key) if key in tokens else None
        if begun and known is not None:
            check_timeline(self._client, table, known, reached)
        if known != table.timeline:
            self._producer.send_unit(self._no_rows(), numbers={key: table.timeline})

    def _own_publication(self, id: str, table: Table, *, begun: bool) -> str | None:
        """What there is of the table in the publication. Its mark is in the log before the slot is made."""
        name, ours = self._publication, self._source.publication is None
        if not begun:
            publish(self._client, self._source.table, table.relation, name, ours=ours)
        key, tokens = f"{id}-publication", self._producer.writer.state.tokens
        published = self._look().published
        mark = crc32c((published or "").encode())
        known = self._producer.last_seq_of(key) if key in tokens else None
        same = not begun or known in (None, mark)
        check_published(self._client.where, name, self._source.table, published, same=same)
        if known != mark:
            self._producer.send_unit(self._no_rows(), numbers={key: mark})
        return published

    def _look(self) -> Seen:
        return look(self._asking, self._publication, self._table)

    def _no_rows(self) -> pa.Table:
        return self._rows.schema.empty_table()

    # -- the first rows ----------------------------------------------------------------------------------------------

    def _begin_table(self, table: Table, head: Head | None) -> None:
        if head is None:
            head = self._new_slot(table)
        else:
            check_slot(self._client, self._slot, self._source.table, head.lsn)
        if self._source.snapshot:
            self._rows.use(head.relation)
            self._begin_transaction(SNAPSHOT, head.time_us, 0)
            for line in self._first.lines():
                if self._position.take():
                    self._put(Change("snapshot", self._table, copied_row(line)))
                if len(self._pending) >= _ROWS:
                    self._commit()
                    self._tell(monotonic_us(), "takes the first rows")
                    if self._stop.is_set():
                        raise Stopped
        self._position.end(head.lsn)
        self._commit(places=True)

    def _new_slot(self, table: Table) -> Head:
        """A slot that was made and never begun with has no use: its snapshot is gone."""
        if find_slot(self._client, self._slot) is not None:
            self._client.run(f"select pg_drop_replication_slot({literal(self._slot)})")
        # Before the server keeps anything for us.
        self._rows.use(table.relation)
        if self._source.snapshot:
            check_readable(self._client, table.relation)
        try:
            return self._first_rows()
        except Exception:
            with contextlib.suppress(UsageError, PeerError, Stopped):  # The first reason is the one that counts.
                self._asking.run(f"select pg_drop_replication_slot({literal(self._slot)})")
            raise

    def _first_rows(self) -> Head:
        lsn = self._client.create_slot(self._slot, self._wait_for_slot)
        table = describe(self._client, self._source.table)
        head = Head(self._slot, lsn, self._clock(), table.relation)
        if self._source.snapshot:
            self._tell(monotonic_us(), "copies the first rows from the server")
            self._first.write(head, self._client.copy(copy_text(table, self._source.stime_of)))
        self._client.run("commit")
        return head

    def _wait_for_slot(self) -> None:
        self._tell(monotonic_us(), "waits for transactions that were open on the server when it came")
        self._push()

    # -- reading -----------------------------------------------------------------------------------------------------

    def _loop(self) -> None:
        places_us = tell_us = monotonic_us()
        while not self._stop.is_set():
            for message in self._client.read(_LOOK_S):
                self._hear(message)
            steady_us = monotonic_us()
            self._ask(steady_us)
            if self._commit(places=steady_us >= places_us):
                places_us = steady_us + _PLACES_US
            if steady_us >= tell_us:
                tell_us = steady_us + _END_US
                self._tell(steady_us)
        self._commit(places=True)
        self._confirm(answer=False)
        self._tell(monotonic_us())

    def _hear(self, message: bytes) -> None:
        outer = unwrap(message)
        if isinstance(outer, Alive):
            if self._position.open is None:
                self._seen = max(self._seen, outer.end)
                self._position.pass_to(outer.end)
            if outer.answer:
                self._confirm(answer=False)
            return
        inner = decode(outer.message)
        if isinstance(inner, Change):
            if inner.relation == self._table and self._position.take():
                self._put(inner)
        elif isinstance(inner, Begin):
            self._begin_transaction(inner.lsn, inner.time_us, inner.xid)
        elif isinstance(inner, Commit):
            self._position.end(inner.end)
            self._seen = max(self._seen, inner.end)
        elif isinstance(inner, Truncate):
            if self._table in inner.relations and self._position.take():
                self._put(Change("truncate", self._table))
        elif isinstance(inner, Relation) and inner.id == self._table:
            self._commit()
            self._rows.use(inner)

    def _begin_transaction(self, commit: int, time_us: int, xid: int) -> None:
        """Rule 2 of `postgres_changes`: when it happened."""
        self._position.begin(commit)
        self._xid = xid
        floor_us = max(self._last_us, self._producer.boundary_us)
        if self._position.begun_before:
            self._tx_us = floor_us  # Where its first changes are.
            return
        believed = time_us <= self._clock() + _AHEAD_US_MAX
        self._tx_us = max(time_us if believed else self._clock(), floor_us)

    def _put(self, change: Change) -> None:
        self._pending.append(Placed(change, self._position.place, self._xid, self._tx_us))
        self._last_us = self._tx_us
        self._read += 1

    def _ask(self, steady_us: int) -> None:
        """Rule 3 of `postgres_changes`: find out up to when everything was read. One question at a time: it counts when
        the server has sent all that its log had when it was asked."""
        arrived = self._seen >= self._end and self._position.open is None
        if arrived:
            self._complete_us = max(self._complete_us, self._end_clock_us)
        if steady_us < self._ask_us:
            return
        self._ask_us = steady_us + _END_US
        if arrived:
            self._end_clock_us = self._clock()
            seen = self._look()
            same = seen.published == self._published
            check_published(self._client.where, self._publication, self._source.table, seen.published, same=same)
            self._end, self._server_us, self._standby = seen.end, seen.clock_us, seen.standby
            self._server_steady_us = monotonic_us()
        if arrived or self._seen != self._stuck_at or self._position.open is not None:
            self._stuck_at, self._stuck_us = self._seen, steady_us
        elif steady_us - self._stuck_us >= _PUSH_US:
            self._stuck_us = steady_us
            self._push()
        self._confirm(answer=True)

    def _push(self) -> None:
        """What was written last may wait for the next commit before it is durable and can be read; this commits. A
        standby cannot."""
        if self._standby:
            return
        with contextlib.suppress(UsageError):
            self._asking.run("select pg_logical_emit_message(true, 'holdfast', '')")

    def _confirm(self, *, answer: bool) -> None:
        """Rule 1 of `postgres_changes`: only what the log has."""
        self._client.confirm(self._position.logged or 0, answer=answer)

    # -- committing --------------------------------------------------------------------------------------------------

    def _commit(self, *, places: bool = False) -> bool:
        """What is pending, with its place and the boundary; with `places` also where only a place has changed."""
        boundary_us = self._boundary()
        moved = boundary_us > self._producer.boundary_us
        if not self._pending and not moved and not places:
            return False
        batch = self._fitting() if self._pending else self._no_rows()
        self._send(batch, self._position.numbers(), boundary_us if moved else None)
        self._pending = []
        return True

    def _send(self, rows: pa.RecordBatch | pa.Table, numbers: dict[str, int], boundary_us: int | None) -> None:
        if numbers:
            self._letters.before_unit(numbers)
            ack = self._producer.send_unit(rows, numbers=numbers, boundary=boundary_us)
            self._position.committed(numbers)
            self._letters.behind_unit()
            self.total += Sent(rows=ack.rows)
            if ack.rows:
                self._data_us = monotonic_us()
                self._top_us = max(self._top_us, pc.max(rows.column("stime")).cast(pa.int64()).as_py())
        elif boundary_us is not None:
            self._producer.advance(boundary_us)

    def _boundary(self) -> int:
        """Up to where everything is in the log or pending."""
        idle_us = 0 if self._source.stime is None else self._source.idle_us
        if idle_us is None or monotonic_us() - self._data_us < idle_us:
            return self._producer.boundary_us
        until_us = self._complete_us - self._source.slack_us
        if self._position.open is not None:
            until_us = min(until_us, self._tx_us)
        return closed_until(until_us, self._stream.definition.bucket_us)

    def _fitting(self) -> pa.RecordBatch:
        """The rows of what is pending; those that do not fit are put aside, or stop the input."""
        batch, placed, refused = self._rows.batch(self._pending, self._after_us())
        untimely = self._untimely(batch, placed)
        batch = _without(batch, untimely)
        refused += [one for one in untimely.values() if one is not None]
        self.total += Sent(late=sum(one is None or one.kind is LateTuple for one in untimely.values()))
        if not refused:
            return batch
        if not self._letters.is_wanted:
            self._stop_before(min(refused, key=lambda one: one.placed.place[1:]))
        self._put_aside(refused)
        self.total += Sent(dead=sum(one.kind not in (LateTuple, EarlyTuple) for one in refused))
        return batch

    def _after_us(self) -> int:
        """Where a column says the time: no row in the log lies behind it, as the boundary trails them by the slack."""
        known_us = self._producer.boundary_us
        return max(self._top_us, known_us + self._source.slack_us) if known_us > BEGINNING_US else 0

    def _untimely(self, batch: pa.RecordBatch, placed: list[Placed]) -> dict[int, Refused | None]:
        """Rows whose column says a time that cannot be, by their number; None: dropped, as was asked for."""
        found: dict[int, Refused | None] = {}
        if self._source.stime is None:
            return found
        boundary_us, ahead = self._producer.boundary_us, self._source.max_ahead_us
        stimes = np.asarray(batch.column(0).cast(pa.int64()))
        late = np.flatnonzero(stimes < boundary_us).tolist()
        why = f"it comes after the boundary {instant_text(boundary_us)}; declare more slack, or let it be dropped "
        for n in late:
            found[n] = None if self._source.late == "drop" else Refused(placed[n], why + "(late='drop')", LateTuple)
        if ahead is not None:
            why = (
                "its stime lies too far ahead of the clock: what follows would be late; correct it, or raise max_ahead"
            )
            for n in np.flatnonzero(stimes > self._clock() + ahead).tolist():
                found[n] = Refused(placed[n], why, EarlyTuple)
        return found

    def _stop_before(self, refused: Refused) -> None:
        """What came before the poison is sound and must not be held back by it."""
        before = self._pending[: next(n for n, one in enumerate(self._pending) if one is refused.placed)]
        if before:
            batch, placed, _ = self._rows.batch(before, self._after_us())
            batch = _without(batch, self._untimely(batch, placed))  # Those that are dropped.
            self._send(batch, self._position.numbers(before[-1].place), None)
        raise refused.kind(
            f"stream {self._stream.name}: {self._where(refused.placed)}: {refused.why}; a change that is left out "
            "makes all behind it wrong, so nothing behind it was taken; or put such changes aside (dead_letters=…)"
        )

    def _put_aside(self, refused: list[Refused]) -> None:
        self._letters.put([
            {
                "where": self._where(one.placed), "table": self._source.table, "change": one.placed.change.kind,
                "commit": lsn_text(one.placed.place.commit), "transaction": one.placed.xid, "error": one.why,
                "text": msgspec.json.encode([one.placed.change.new, one.placed.change.old], enc_hook=repr).decode(),
            }
            for one in refused
        ])  # fmt: skip

    def _where(self, placed: Placed) -> str:
        if placed.place.commit == SNAPSHOT:
            return f"table {self._source.table} row {placed.place.number} of the snapshot"
        at = f"change {placed.place.number} of the transaction that was committed at {lsn_text(placed.place.commit)}"
        return f"table {self._source.table} {placed.change.kind}, {at}"

    # -- for people --------------------------------------------------------------------------------------------------

    def _tell(self, steady_us: int, why: str | None = None) -> None:
        self._rate.append((steady_us, self._read))
        while steady_us - self._rate[0][0] > _RATE_S * 1_000_000:
            self._rate.popleft()
        since_us, before = self._rate[0]
        done = self._position.logged
        lag = max(0, self._end - self._seen) if self._end else None
        boundary_us = self._producer.boundary_us
        if self._source.stime is None:
            settled = not self._read or closed_until(boundary_us, self._stream.definition.bucket_us) > self._last_us
        else:  # The boundary waits for rows that say a later time.
            settled = self._position.open is None
        self._status = {
            "table": self._source.table, "slot": self._slot, "publication": self._publication,
            "position": None if done is None else lsn_text(done), "lag_bytes": lag,
            "settled": lag == 0 and not self._pending and settled,
            "rate": (self._read - before) / max((steady_us - since_us) / 1e6, 0.2),
            "rows": self.total.rows, "late": self.total.late, "dead": self.total.dead,
            "dead_letters": None if self._dead_path is None else str(self._dead_path),
            "boundary": instant_text(boundary_us), **({} if why is None else {"why": why}),
        }  # fmt: skip


def _without(batch: pa.RecordBatch, rows: Collection[int]) -> pa.RecordBatch:
    keep = np.ones(batch.num_rows, np.bool_)
    keep[list(rows)] = False
    return batch.filter(pa.array(keep)) if rows else batch
