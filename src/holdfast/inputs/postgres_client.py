"""A replication connection to PostgreSQL as the input needs it, over psycopg's libpq.

The streaming protocol and not the SQL functions (`pg_logical_slot_peek_changes`): those decode the log again from the
slot's restart point at every look, on a busy server many times over, and cannot give a slot with the snapshot that its
first rows come from.

Rules:
1. An error that no retry can mend (a password, a right, a setting, a slot that is lost) is raised as `UsageError` with
   what to do; all others as `PeerError`.
2. No call here waits longer than its caller says, or than the server takes for one statement.
"""

from __future__ import annotations

import contextlib
import select
import threading
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

from holdfast.clock import now_us
from holdfast.inputs.pgoutput import lsn_number, lsn_text, status
from holdfast.model.errors import PeerError, UsageError

try:
    import psycopg
    from psycopg import pq
    from psycopg.conninfo import make_conninfo
except ImportError:  # The extra is optional; whoever opens a table is told.
    psycopg = None

#: A server that cannot be reached is given up after this long, and tried again.
_CONNECT_S = 10
#: Bytes taken at once: enough to make a unit worth its sync, few enough to fit beside everything else.
READ_BYTES_MAX = 8 << 20
#: How often a long statement looks whether somebody said stop.
_STOP_MS = 100
_WAITING_LOOKS = 10
#: How values are written as text, whatever the server's settings are. Without `row_security` a policy that would hide
#: first rows, whose changes come all the same, is an error.
_SETTINGS = (
    "set datestyle = 'ISO, YMD'; set timezone = 'UTC'; set intervalstyle = 'iso_8601'; set bytea_output = 'hex'; "
    "set extra_float_digits = 1; set statement_timeout = 0; set idle_in_transaction_session_timeout = 0; "
    "set row_security = off"
)
#: Classes of SQLSTATE that may pass, as for the sink: connections, rollbacks, no room, locks, shutdown, system errors.
_PASSES = ("08", "40", "53", "55", "57", "58", "XX")
#: What a server says before there is a SQLSTATE that libpq would pass on.
REFUSALS = ("password authentication failed", "no password supplied", "does not exist", "no pg_hba.conf entry",
            "certificate verify failed", "is not permitted to log in", "authentication failed")  # fmt: skip
#: How it says that a slot, or the log that it needs, is gone for good.
_LOST = ("can no longer", "has been invalidated", "cannot read from logical replication slot", "requested WAL segment")


class Stopped(Exception):
    """Somebody said stop while a statement ran."""


class Connection:
    """One connection for statements. `url` may hold a password; it is never shown."""

    def __init__(self, url: str, stop: threading.Event, **options: str) -> None:
        if psycopg is None:
            raise UsageError("reading PostgreSQL needs the package psycopg; install holdfast-streams[postgres]")
        self.where, self._stop = place_of(url), stop
        try:
            info = make_conninfo(
                url, application_name="holdfast-source", connect_timeout=_CONNECT_S, keepalives_idle=10,
                keepalives_interval=5, keepalives_count=3, tcp_user_timeout=30_000, client_encoding="UTF8", **options,
            )  # fmt: skip
        except psycopg.Error:  # Its words may hold a password.
            raise UsageError(
                "the address must be one that libpq takes, such as postgresql://user@host/database; it cannot be read"
            ) from None
        self._libpq = pq.PGconn.connect(info.encode())
        if self._libpq.status != pq.ConnStatus.OK:
            said = _words(self._libpq.error_message.decode("utf-8", "replace"))
            self._libpq.finish()
            raise refusal(said, "", self.where)
        self._reading = select.poll()
        self._reading.register(self._libpq.socket, select.POLLIN)
        self.run(_SETTINGS)

    def run(self, sql: str, waiting: Callable[[], None] | None = None) -> list[tuple[Any, ...]]:
        """A statement, or several without results; values come as text. `waiting` is called every second until then."""
        with self._lost():
            self._libpq.send_query(sql.encode())
            self._libpq.flush()
            found: Any = None
            while (result := self._result(waiting)) is not None:
                if result.status not in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK):
                    raise self._refused(result)
                found = result
        return [
            tuple(_text(found.get_value(row, column)) for column in range(found.nfields))
            for row in range(found.ntuples)
        ]

    def _result(self, waiting: Callable[[], None] | None = None) -> Any:
        """Looks up while it waits: a new slot waits for all transactions that write, however long they take."""
        looks = 0
        while self._libpq.is_busy():
            self._look()
            looks += 1
            if waiting is not None and looks % _WAITING_LOOKS == 0:
                waiting()
        return self._libpq.get_result()

    def _look(self) -> None:
        if self._stop.is_set():
            raise Stopped
        if self._reading.poll(_STOP_MS):
            self._libpq.consume_input()

    def close(self) -> None:
        self._libpq.finish()

    @contextlib.contextmanager
    def _lost(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            raise PeerError(f"{self.where}: {_words(str(error))}; trying again") from None

    def _refused(self, result: Any) -> UsageError | PeerError:
        state = _text(result.error_field(pq.DiagnosticField.SQLSTATE)) or ""
        said = _text(result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY)) or _words(
            self._libpq.error_message.decode("utf-8", "replace")
        )
        return refusal(said, state, self.where)


class ReplicationConnection(Connection):
    """Statements at first, then a stream of messages."""

    def __init__(self, url: str, stop: threading.Event) -> None:
        super().__init__(url, stop, replication="database")

    # -- slots and first rows ----------------------------------------------------------------------------------------

    def create_slot(self, name: str, waiting: Callable[[], None]) -> int:
        """Where the changes begin. Until `commit`, statements see the table as it was there."""
        self.run("begin isolation level repeatable read read only")
        ((_, point, *_),) = self.run(f'CREATE_REPLICATION_SLOT "{name}" LOGICAL pgoutput USE_SNAPSHOT', waiting)
        return lsn_number(point)

    def copy(self, sql: str) -> Iterator[bytes]:
        """The lines of a COPY … TO STDOUT."""
        with self._lost():
            self._libpq.send_query(sql.encode())
            self._libpq.flush()
            result = self._result()
            if result.status != pq.ExecStatus.COPY_OUT:
                raise self._refused(result)
        while True:
            with self._lost():
                size, line = self._libpq.get_copy_data(1)
                if size == 0:
                    self._look()
                    continue
            if size < 0:
                break
            yield bytes(line)
        with self._lost():
            while (result := self._result()) is not None:
                if result.status != pq.ExecStatus.COMMAND_OK:
                    raise self._refused(result)

    # -- changes -----------------------------------------------------------------------------------------------------

    def start(self, slot: str, lsn: int, publication: str) -> None:
        name = publication.replace('"', '""').replace("'", "''")
        with self._lost():
            self._libpq.send_query(
                f'START_REPLICATION SLOT "{slot}" LOGICAL {lsn_text(lsn)} '
                f"(proto_version '1', publication_names '\"{name}\"')".encode()
            )
            self._libpq.flush()
            result = self._result()
        if result.status != pq.ExecStatus.COPY_BOTH:
            raise self._refused(result)

    def read(self, wait_s: float) -> list[bytes]:
        """The messages that have come within `wait_s`, or sooner if there are some."""
        found: list[bytes] = []
        size = 0
        with self._lost():
            while size < READ_BYTES_MAX:
                length, message = self._libpq.get_copy_data(1)
                if length > 0:
                    found.append(bytes(message))
                    size += length
                elif length < 0:
                    self._ended()
                elif found or not self._reading.poll(wait_s * 1000):
                    break
                else:
                    self._libpq.consume_input()
                    wait_s = 0
        return found

    def confirm(self, lsn: int, *, answer: bool) -> None:
        """Everything before `lsn` is durable here; the server is asked to `answer` how far it is."""
        with self._lost():
            self._libpq.put_copy_data(status(lsn, now_us(), answer=answer))
            self._libpq.flush()

    def _ended(self) -> None:
        """The server has ended the stream: it says why."""
        while (result := self._libpq.get_result()) is not None:
            if result.status == pq.ExecStatus.FATAL_ERROR:
                raise self._refused(result)
        raise PeerError(f"{self.where} has ended the stream of changes; trying again")


def refusal(said: str, state: str, where: str) -> UsageError | PeerError:
    """Rule 1."""
    if "wal_level" in said:
        return UsageError(
            f"{where} must have wal_level = logical to tell its changes; it refuses: {said}; set it (alter system set "
            "wal_level = logical) and restart the server"
        )
    if "replication slots are in use" in said:
        return UsageError(f"{where} must have a replication slot free; {said}; raise max_replication_slots")
    if state == "42501" or "must be superuser or replication role" in said:
        return UsageError(
            f"{where} must let our user read its changes; it refuses: {said}; let an administrator say: alter role … "
            "replication; grant select on the table to it"
        )
    if any(words in said for words in _LOST):
        return UsageError(f"{where} must still have the changes that were not read; it says: {said}; {BEGIN_ANEW}")
    if "publication" in said and "does not exist" in said:
        return UsageError(
            f"{where} must have the publication from before our slot was made until it is gone; {said}; {BEGIN_ANEW}"
        )
    refused = any(word in said for word in REFUSALS) and not state
    if state[:2] == "28" or refused:
        return UsageError(f"{where} must accept our name, password and address; it refuses: {said}")
    if not state or state[:2] in _PASSES:
        return PeerError(f"{where}: {said}; trying again")
    return UsageError(f"{where} refuses: {said}")


BEGIN_ANEW = "a new id begins anew, with the rows that the table has then"


def place_of(url: str) -> str:
    """The database, without what is secret in its address."""
    if "://" not in url:
        return "PostgreSQL"
    parts = urlsplit(url)
    with contextlib.suppress(ValueError):
        port = f":{parts.port}" if parts.port else ""
        return f"PostgreSQL at {parts.hostname or 'this machine'}{port}{parts.path}"
    return "PostgreSQL"


def _text(value: bytes | None) -> Any:
    return None if value is None else value.decode()


def _words(text: str) -> str:
    """The last line of libpq's, which is the server's own word."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    return lines[0].removeprefix("connection failed: ") if lines else "the connection was lost"
