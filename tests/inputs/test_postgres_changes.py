"""Changes of a table of a real PostgreSQL become a stream: once, in the order of commits, on time, whoever is killed
(K1, K2)."""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import holdfast
from holdfast.cli.main import app as cli
from holdfast.inputs import postgres_client, postgres_input
from holdfast.inputs.postgres_changes import PostgresChanges, postgres_changes
from holdfast.inputs.postgres_input import PostgresInput
from holdfast.model.errors import PeerError, UnknownStream, UsageError
from holdfast.stream.producer import Producer
from tests.inputs import conftest
from tests.inputs.postgres_bridge import bridged
from tests.postgres_server import Postgres, postgres_server

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with postgres_server(wal_level="logical", max_replication_slots="40", max_wal_senders="20", fsync="off") as one:
        yield one


def until(condition: Callable[[], object], seconds: float = 120) -> None:
    conftest.until(condition, seconds)


class Database:
    """A connection that the test changes its table with."""

    def __init__(self, server: Postgres) -> None:
        import psycopg

        self.server = server
        self.connection = psycopg.connect(server.url, autocommit=True)

    def run(self, sql: str) -> list[tuple[Any, ...]]:
        cursor = self.connection.execute(sql)
        return cursor.fetchall() if cursor.description is not None else []

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        with self.connection.transaction():
            yield


@pytest.fixture
def database(server: Postgres) -> Iterator[Database]:
    one = Database(server)
    yield one
    one.connection.close()
    with contextlib.closing(Database(server).connection) as cleaning:  # The server may have been another meanwhile.
        slots = "from pg_replication_slots"
        conftest.until(lambda: not cleaning.execute(f"select {slots} where active").fetchall(), 60)
        cleaning.execute(f"select pg_drop_replication_slot(slot_name) {slots}")


class Filled:
    """A stream that is filled from a table, by inputs that come and go."""

    def __init__(self, root: Path, name: str = "s") -> None:
        self.root, self.name = root, name
        self.store = holdfast.open(root / "streams")
        self.raised: list[BaseException] = []

    def made(self, source: PostgresChanges, bucket: str = "100ms") -> holdfast.Stream:
        try:
            return self.store.open(self.name)
        except UnknownStream:
            return self.store.create(self.name, source.columns(), bucket=bucket)

    @contextlib.contextmanager
    def run(self, source: PostgresChanges) -> Iterator[PostgresInput]:
        one = source.open(self.made(source), self.root / "home")
        raised = self.raised = []

        def guarded() -> None:
            while True:
                try:
                    one.run()
                except PeerError:
                    time.sleep(0.05)
                    continue  # As a host would.
                except BaseException as error:
                    raised.append(error)
                return

        thread = threading.Thread(target=guarded)
        thread.start()
        try:
            yield one
        finally:
            one.stop()
            thread.join(60)
        assert not thread.is_alive()
        if raised:
            raise raised[0]

    def fails(self, source: PostgresChanges, why: str) -> None:
        with pytest.raises(UsageError, match=why):
            self.run_to_its_end(source)

    def run_to_its_end(self, source: PostgresChanges) -> None:
        """As a host would: what may pass is tried again."""
        while True:
            with contextlib.suppress(PeerError):
                source.open(self.made(source), self.root / "home").run()
                return

    def read(self, source: PostgresChanges) -> None:
        """All that is there now, until readers can see it."""
        with self.run(source) as one:
            settle(one)

    def rows(self) -> list[Any]:
        with contextlib.closing(self.store.open(self.name).subscribe()) as subscriber:
            return list(subscriber.rows(timeout=0))

    def changes(self, *columns: str) -> list[tuple[Any, ...]]:
        return [tuple(row.values[c] for c in ("change", *columns)) for row in self.rows()]

    def table(self) -> dict[int, dict[str, Any]]:
        """The table that the changes give, by its key `id`."""
        found: dict[int, dict[str, Any]] = {}
        for row in self.rows():
            values = dict(row.values)
            change, old = values.pop("change"), values.pop("old")
            if change == "truncate":
                found.clear()
                continue
            if change in ("update", "delete"):
                del found[old["id"]]
            if change != "delete":
                assert values["id"] not in found
                found[values["id"]] = values
        return found


def settle(one: PostgresInput) -> None:
    """Until all that was committed before now can be read."""
    before = datetime.now(UTC).isoformat()
    until(lambda: one.status().get("settled") and before < one.status()["boundary"] != "beginning")


@pytest.fixture
def filled(tmp_path: Path) -> Filled:
    return Filled(tmp_path)


def test_a_stream_begins_with_the_rows_of_its_table_and_goes_on_with_its_changes_k1(
    database: Database, filled: Filled
) -> None:
    database.run("create table begins (id int primary key, word text)")
    database.run("insert into begins values (1, 'a'), (2, 'b')")
    source = bridged(database.server.url, "begins")
    with filled.run(source) as one:
        settle(one)
        database.run("insert into begins values (3, 'c')")
        database.run("update begins set word = 'B' where id = 2")
        database.run("update begins set id = 4 where id = 3")
        database.run("delete from begins where id = 1")
        settle(one)
        database.run("truncate begins")
        database.run("insert into begins values (5, null)")
        settle(one)
    assert filled.changes("id", "word", "old") == [
        ("snapshot", 1, "a", None),
        ("snapshot", 2, "b", None),
        ("insert", 3, "c", None),
        ("update", 2, "B", {"id": 2}),
        ("update", 4, "c", {"id": 3}),
        ("delete", 1, None, {"id": 1}),
        ("truncate", None, None, None),
        ("insert", 5, None, None),
    ]
    assert list(filled.table()) == [5]


def test_a_second_start_goes_on_behind_what_the_log_has_k1(database: Database, filled: Filled) -> None:
    database.run("create table again (id int primary key)")
    source = bridged(database.server.url, "again")
    for n in range(4):
        database.run(f"insert into again values ({n})")
        filled.read(source)
    filled.read(source)
    assert filled.changes("id") == [("snapshot", 0), ("insert", 1), ("insert", 2), ("insert", 3)]


def test_a_transaction_has_one_stime_and_transactions_come_in_the_order_of_their_commits(
    database: Database, filled: Filled
) -> None:
    database.run("create table whole (id int primary key)")
    other = Database(database.server)
    with filled.run(bridged(database.server.url, "whole")) as one:
        settle(one)
        with database.transaction():
            database.run("insert into whole values (1)")
            with other.transaction():
                other.run("insert into whole values (10), (11)")
            database.run("insert into whole values (2)")
        with contextlib.suppress(RuntimeError), database.transaction():
            database.run("insert into whole values (3)")
            raise RuntimeError
        settle(one)
    other.connection.close()
    assert filled.changes("id") == [("insert", 10), ("insert", 11), ("insert", 1), ("insert", 2)]
    stimes = [row.stime for row in filled.rows()]
    assert stimes[0] == stimes[1] < stimes[2] == stimes[3]


def test_a_silent_table_holds_nothing_back_and_the_server_may_forget_what_is_read_k2(
    database: Database, filled: Filled
) -> None:
    database.run("create table silent (id int primary key)")
    database.run("create table loud (id int, word text)")

    def confirmed() -> bool:
        ((done,),) = database.run(f"select confirmed_flush_lsn > '{before}' from pg_replication_slots")
        return bool(done)

    with filled.run(bridged(database.server.url, "silent")) as one:
        settle(one)
        settle(one)
        database.run("insert into loud select n, repeat('x', 1000) from generate_series(1, 1000) n")
        ((before,),) = database.run("select pg_current_wal_lsn()")
        settle(one)
        assert one.status()["lag_bytes"] == 0
        until(confirmed)


def test_a_transaction_that_stays_open_elsewhere_holds_nothing_back_k2(database: Database, filled: Filled) -> None:
    database.run("create table beside (id int primary key, word text)")
    with filled.run(bridged(database.server.url, "beside")) as one:
        settle(one)
        with database.transaction():
            database.run("insert into beside select n, repeat('x', 1000) from generate_series(1, 100) n")
            settle(one)
            settle(one)
            assert filled.rows() == []
        settle(one)
    assert len(filled.rows()) == 100


def test_a_large_transaction_comes_in_pieces_and_is_seen_whole(database: Database, filled: Filled) -> None:
    database.run("create table large (id int primary key, word text)")
    with filled.run(bridged(database.server.url, "large")) as one:
        settle(one)
        database.run("insert into large select n, repeat('x', 1500) from generate_series(1, 8000) n")
        seen = {0}
        for _ in range(600):
            time.sleep(0.2)  # Looking takes long, and the input needs its turn.
            seen.add(len(filled.rows()))
            if max(seen) == 8000:
                break
    assert seen == {0, 8000}
    assert len({row.stime for row in filled.rows()}) == 1


def test_types_of_postgresql_become_those_of_a_stream(database: Database, filled: Filled) -> None:
    database.run("create type mood as enum ('sad', 'fine')")
    database.run(
        "create table typed (id bigint primary key, yes boolean, small smallint, middle integer, price numeric(12, 3), "
        "exact numeric, half real, whole double precision, word varchar(9), fixed char(3), raw bytea, day date, "
        "plain timestamp, at timestamptz, tree jsonb, who uuid, how mood, span interval, numbers int[], words text[], "
        "prices numeric(4, 1)[], twice int generated always as (middle * 2) stored)"
    )
    values = (
        "true, 7, -8, 1.25, 123456789012345678901234567890.5, 1.5, 0.1, E'a\\tb\\n\\\\', 'x', '\\x00ff', '2026-02-03', "
        "'2026-02-03 04:05:06.7', '2026-02-03 04:05:06.7+02', '{\"a\": [1]}', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', "
        "'fine', '1 day 2 hours', '{1,null,3}', '{\"a \\\"b\\\"\",\"null\",null}', '{1.5}'"
    )
    database.run(f"insert into typed values (1, {values})")
    source = bridged(database.server.url, "typed")
    with filled.run(source) as one:
        settle(one)
        database.run(f"insert into typed values (2, {values})")
        database.run("insert into typed (id, whole) values (3, 'infinity')")
        settle(one)
    assert filled.store.open("s").definition.columns == (
        "change string, id bigint, yes boolean, small smallint, middle int, price decimal(12,3), exact string, "
        "half float, whole double, word string, fixed string, raw binary, day date, plain timestamp_ntz, at timestamp, "
        "tree string, who string, how string, span string, numbers array<int>, words array<string>, "
        "prices array<decimal(4,1)>, old struct<id:bigint>"
    )
    first, second, third = (dict(row.values) for row in filled.rows())
    assert (first.pop("change"), first.pop("id"), second.pop("change"), second.pop("id")) == (
        "snapshot",
        1,
        "insert",
        2,
    )
    first["at"], second["at"] = (one["at"].astimezone(UTC) for one in (first, second))
    assert first == second == {
        "yes": True, "small": 7, "middle": -8, "price": Decimal("1.250"), "exact": "123456789012345678901234567890.5",
        "half": 1.5, "whole": 0.1, "word": "a\tb\n\\", "fixed": "x  ", "raw": b"\x00\xff", "day": date(2026, 2, 3),
        "plain": datetime(2026, 2, 3, 4, 5, 6, 700_000), "at": datetime(2026, 2, 3, 2, 5, 6, 700_000, UTC),
        "tree": '{"a": [1]}', "who": "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "how": "fine", "span": "P1DT2H",
        "numbers": [1, None, 3], "words": ['a "b"', "null", None], "prices": [Decimal("1.5")], "old": None,
    }  # fmt: skip
    assert third["whole"] == float("inf")


class Killed(BaseException):
    pass


def test_a_value_that_does_not_fit_stops_the_input_behind_what_came_before(
    database: Database, filled: Filled, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.run("create table misfit (id int primary key, day date)")
    source = bridged(database.server.url, "misfit")
    filled.read(source)
    with database.transaction():
        database.run("insert into misfit values (1, '2026-01-01')")
        database.run("insert into misfit values (2, 'infinity')")
        database.run("insert into misfit values (3, null)")
    why = r"table misfit insert, change 2 of the transaction .*: column day must be date; got .infinity"
    for _ in range(2):
        filled.fails(source, why)
    aside = postgres_changes(database.server.url, table="misfit", slack="0s", dead_letters=True)
    send_unit = Producer.send_unit

    def killed(producer: Producer, data: Any, **options: Any) -> Any:
        if data.num_rows:  # As if the process were killed in front of the unit, which settles the letter.
            raise Killed
        return send_unit(producer, data, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Producer, "send_unit", killed)
        with pytest.raises(Killed):
            filled.run_to_its_end(aside)
    filled.read(aside)
    filled.read(aside)
    assert filled.changes("id") == [("insert", 1), ("insert", 3)]
    (letter,) = map(json.loads, (filled.root / "home" / "s.dead-letters.jsonl").read_text().splitlines())
    assert (letter["table"], letter["change"], json.loads(letter["text"])) == (
        "misfit", "insert", [["2", "infinity"], None],
    )  # fmt: skip


def test_old_rows_come_whole_with_replica_identity_full_and_large_values_with_them(
    database: Database, filled: Filled
) -> None:
    database.run("create table entire (id int, n int, large text)")
    database.run("alter table entire replica identity full")
    database.run("alter table entire alter large set storage external")
    database.run("insert into entire values (1, 1, repeat('x', 100000))")
    with filled.run(bridged(database.server.url, "entire")) as one:
        settle(one)
        database.run("update entire set n = 2")
        database.run("delete from entire")
        settle(one)
    large = "x" * 100_000
    assert filled.changes("id", "n", "large", "old") == [
        ("snapshot", 1, 1, large, None),
        ("update", 1, 2, large, {"id": 1, "n": 1, "large": large}),
        ("delete", 1, 2, large, {"id": 1, "n": 2, "large": large}),
    ]


def test_a_large_value_that_was_not_sent_is_never_taken_for_null(database: Database, filled: Filled) -> None:
    database.run("create table toasted (id int primary key, n int, large text)")
    database.run("alter table toasted alter large set storage external")
    database.run("insert into toasted values (1, 1, repeat('x', 100000))")
    source = bridged(database.server.url, "toasted")
    filled.read(source)
    database.run("update toasted set n = 2")
    filled.fails(source, "column large must come with every change; .* replica identity full")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("add column more int", "now it has also more"),
        ("drop column word", "now it has no word"),
        ("alter column n type bigint", "now it has n as bigint"),
        ("rename column word to text", "now it has also text; no word"),
    ],
)
def test_a_table_that_was_altered_stops_the_input_where_it_was(
    database: Database, filled: Filled, change: str, why: str
) -> None:
    database.run("drop table if exists altered")
    database.run("create table altered (id int primary key, n int, word text)")
    source = bridged(database.server.url, "altered")
    filled.read(source)
    database.run("insert into altered values (1, 1, 'a')")
    database.run(f"alter table altered {change}")
    database.run("update altered set n = 2")
    for _ in range(2):
        filled.fails(source, f"table altered must have the columns of the stream .*{why}.*name the columns")
    if change.startswith("add"):
        filled.read(postgres_changes(database.server.url, table="altered", slack="0s", columns=["id", "n", "word"]))
        assert filled.changes("id", "n") == [("insert", 1, 1), ("update", 1, 2)]


def test_chosen_columns_may_have_other_names(database: Database, filled: Filled) -> None:
    database.run("create table chosen (id int primary key, change text, stime text, secret text)")
    database.run("insert into chosen values (1, 'c', 's', 'hush')")
    url = database.server.url
    filled.fails(postgres_changes(url, table="chosen"), "has a column 'change', which the stream needs for itself")
    filled.fails(postgres_changes(url, table="chosen", columns=["secret"]), "must hold its key.*add id")
    filled.fails(postgres_changes(url, table="chosen", columns=["id", "nix"]), "it has no nix")
    filled.read(
        postgres_changes(url, table="chosen", slack="0s", columns={"id": "id", "change": "what", "stime": "said"})
    )
    assert [row.values for row in filled.rows()] == [
        {"change": "snapshot", "id": 1, "what": "c", "said": "s", "old": None}
    ]


def test_a_column_may_say_when_and_late_rows_are_put_aside(database: Database, filled: Filled) -> None:
    database.run("create table events (id int primary key, at timestamptz)")
    database.run("alter table events replica identity full")
    t0 = datetime(2026, 1, 1, tzinfo=UTC)

    def happen(id: int, seconds: float) -> None:
        database.run(f"insert into events values ({id}, '{(t0 + timedelta(seconds=seconds)).isoformat()}')")

    source = postgres_changes(database.server.url, table="events", stime="at", slack="1s", dead_letters=True)
    with filled.run(source) as one:
        until(lambda: one.status().get("lag_bytes") == 0)
        for id, seconds in ((1, 0), (2, 5), (3, 4.5), (4, 1), (5, 20)):
            happen(id, seconds)
            until(lambda id=id: one.total.rows + one.total.late == id)
        database.run("truncate events")
        happen(6, 40)
        until(lambda: one.total.rows == 6)
    assert one.total.late == 1
    assert [(row.values["change"], row.values["id"], (row.stime - t0).total_seconds()) for row in filled.rows()] == [
        ("insert", 1, 0), ("insert", 3, 4.5), ("insert", 2, 5), ("insert", 5, 20), ("truncate", None, 20),
    ]  # fmt: skip
    (letter,) = map(json.loads, (filled.root / "home" / "s.dead-letters.jsonl").read_text().splitlines())
    assert "comes after the boundary" in letter["error"]
    database.run("alter table events replica identity default")
    filled.fails(
        postgres_changes(database.server.url, table="events", stime="at", id="anew"), "in its replica identity any more"
    )


def test_first_rows_with_a_column_that_says_when_come_in_its_order(
    database: Database, filled: Filled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_input, "_ROWS", 4)
    database.run("create table unordered (id int primary key, happened timestamptz)")
    database.run("alter table unordered replica identity full")
    database.run("insert into unordered select n, timestamptz '2026-01-01' - n * interval '1 minute' "
                 "from generate_series(1, 20) n")  # fmt: skip
    columns = {"id": "id", "happened": "at"}
    source = postgres_changes(database.server.url, table="unordered", stime="at", columns=columns)
    with filled.run(source) as one:
        until(lambda: one.status().get("settled"))
    assert one.total.late == 0
    assert everything(filled) == [*range(20, 0, -1)]


def test_what_is_dropped_as_late_does_not_hide_the_misfit_behind_it(database: Database, filled: Filled) -> None:
    database.run("create table hidden (id int primary key, at timestamptz, day date)")
    database.run("alter table hidden replica identity full")
    source = postgres_changes(database.server.url, table="hidden", stime="at", late="drop")
    with filled.run(source) as one:
        until(lambda: one.status().get("settled"))
        database.run("insert into hidden values (1, '2026-01-01 01:00', null)")
        until(lambda: one.total.rows == 1)
    with database.transaction():
        database.run("insert into hidden values (2, '2026-01-01 00:00', null), (3, '2026-01-01 01:01', null)")
        database.run("insert into hidden values (4, '2026-01-01 01:02', 'infinity')")
    filled.fails(source, "column day must be date; got .infinity")
    assert everything(filled) == [1, 3]


def test_text_of_any_encoding_comes_as_it_is_and_text_of_none_is_refused(database: Database, filled: Filled) -> None:
    for name, encoding in (("latin", "LATIN1"), ("none", "SQL_ASCII")):
        database.run(f"create database {name} template template0 encoding '{encoding}' locale 'C'")
    import psycopg

    url = database.server.url.removesuffix("postgres") + "latin"
    with psycopg.connect(url, autocommit=True) as latin:
        latin.execute("create table words (id int primary key, größe text)")
        latin.execute("insert into words values (1, 'Ägypten')")
        with filled.run(bridged(url, "words")) as one:
            settle(one)
            latin.execute("insert into words values (2, 'Ã¤')")
            settle(one)
    assert filled.changes("id", "größe") == [("snapshot", 1, "Ägypten"), ("insert", 2, "Ã¤")]
    with pytest.raises(UsageError, match="its encoding is SQL_ASCII"):
        postgres_changes(url.replace("latin", "none"), table="words").columns()


def test_rows_of_tables_that_inherit_are_neither_first_rows_nor_changes(database: Database, filled: Filled) -> None:
    database.run("create table parent (id int primary key)")
    database.run("create table child (primary key (id)) inherits (parent)")
    database.run("insert into parent values (1)")
    database.run("insert into child values (2)")
    source = bridged(database.server.url, "parent")
    filled.read(source)
    database.run("delete from parent")
    filled.read(source)
    assert filled.changes("id", "old") == [("snapshot", 1, None), ("delete", 1, {"id": 1})]


def test_rows_that_a_policy_hides_are_not_left_out_in_silence(database: Database, filled: Filled) -> None:
    database.run("create table secret (id int primary key)")
    database.run("create role reader login replication")
    database.run("create publication holdfast_secret for table secret")
    database.run("grant select on secret to reader")
    database.run("alter table secret enable row level security")
    url = database.server.url.replace("test@", "reader@")
    filled.fails(postgres_changes(url, table="secret"), "row-level security policy for table")
    assert database.run("select slot_name from pg_replication_slots") == []


def test_what_would_miss_changes_is_refused_before_the_first(database: Database, filled: Filled) -> None:
    url = database.server.url
    database.run("create table keyless (id int)")
    filled.fails(postgres_changes(url, table="keyless"), "must have a primary key, or send old rows whole")
    filled.fails(postgres_changes(url, table="nowhere"), "must have a table nowhere; there is none")
    database.run("create unlogged table unlogged (id int primary key)")
    filled.fails(postgres_changes(url, table="unlogged"), "must be a plain table")
    database.run("create table partly (id int primary key)")
    database.run("create publication narrow for table partly where (id > 3)")
    filled.fails(
        postgres_changes(url, table="partly", publication="narrow"), "must have all rows of table partly; it has"
    )
    database.run("alter publication narrow set (publish = 'insert')")
    filled.fails(postgres_changes(url, table="partly", publication="narrow"), "must publish insert, update, delete and")
    database.run("create publication others for table keyless")
    filled.fails(
        postgres_changes(url, table="partly", publication="others"),
        'must have a publication others with table partly.*alter publication "others" add table',
    )
    filled.fails(
        postgres_changes(url, table="partly", publication="none"), "must have a publication none with table partly"
    )
    assert database.run("select slot_name from pg_replication_slots") == []


def test_a_slot_that_is_gone_or_was_read_by_another_is_said(database: Database, filled: Filled) -> None:
    database.run("create table slots (id int primary key)")
    source = bridged(database.server.url, "slots")
    filled.read(source)
    ((slot,),) = database.run("select slot_name from pg_replication_slots")
    free = f"select 1 from pg_replication_slots where slot_name = '{slot}' and not active"
    until(lambda: database.run(free))  # The server notices a little later that its reader has gone.
    database.run("insert into slots values (1)")
    database.run(f"select pg_replication_slot_advance('{slot}', pg_current_wal_lsn())")
    filled.fails(source, rf"the replication slot {slot} of .* must stand at .*: somebody else has read from it")
    until(lambda: database.run(free))
    database.run(f"select pg_drop_replication_slot('{slot}')")
    filled.fails(source, rf"must still have the replication slot {slot} .*it was dropped.*a new id begins anew")
    filled.read(postgres_changes(database.server.url, table="slots", slack="0s", id="anew"))
    assert filled.changes("id") == [("snapshot", 1)]


@pytest.mark.parametrize(
    "change",
    [
        "alter publication holdfast_taken drop table taken",
        "drop publication holdfast_taken",
        "alter publication holdfast_taken drop table taken; alter publication holdfast_taken add table taken",
        "alter publication holdfast_taken set (publish = 'insert'); alter publication holdfast_taken set "
        "(publish = 'insert, update, delete, truncate')",
        "drop publication holdfast_taken; create publication holdfast_taken for table taken",
        "alter publication holdfast_taken set table taken where (id > 1)",
    ],
)
def test_a_table_that_was_not_published_all_the_time_is_refused_stopped_or_running(
    database: Database, filled: Filled, change: str
) -> None:
    database.run("drop table if exists taken")
    database.run("drop publication if exists holdfast_taken")
    database.run("create table taken (id int primary key)")
    source, another = (bridged(database.server.url, "taken"), Filled(filled.root / "another"))
    filled.read(source)
    why = "publication holdfast_taken of .* must have table taken as it had when the stream began.*a new id begins anew"

    def change_while_it_runs() -> None:
        with another.run(source) as one:
            settle(one)
            database.run(change)
            until(lambda: another.raised)

    with pytest.raises(UsageError, match=why):
        change_while_it_runs()
    for _ in range(2):
        filled.fails(source, why)


def test_a_stream_that_may_lose_what_it_had_is_refused(database: Database, filled: Filled) -> None:
    database.run("create table kept (id int primary key)")
    source = bridged(database.server.url, "kept")
    filled.store.create("s", source.columns(), persist="on_demand")
    filled.fails(source, "a table of PostgreSQL that fills it must find every tuple of stream s again")
    assert database.run("select slot_name from pg_replication_slots") == []


def test_a_table_that_was_made_again_is_another(database: Database, filled: Filled) -> None:
    database.run("create table twice (id int primary key)")
    source = bridged(database.server.url, "twice")
    filled.read(source)
    database.run("drop table twice")
    database.run("create table twice (id int primary key)")
    filled.fails(source, "table twice must be the one that was read before.*choose a new id")


def test_a_partitioned_table_is_one_stream(database: Database, filled: Filled) -> None:
    database.run("create table parts (id int primary key, word text) partition by range (id)")
    database.run("create table parts_low partition of parts for values from (0) to (10)")
    database.run("create table parts_high partition of parts for values from (10) to (20)")
    database.run("insert into parts values (1, 'a')")
    with filled.run(bridged(database.server.url, "parts")) as one:
        settle(one)
        database.run("insert into parts values (11, 'b')")
        database.run("update parts set id = 12 where id = 1")
        settle(one)
    assert sorted(filled.table()) == [11, 12]


def test_a_user_without_rights_is_told_which(database: Database, filled: Filled) -> None:
    database.run("create table rights (id int primary key)")
    database.run("create role plain login")
    database.run("create role copier login replication")
    plain = database.server.url.replace("test@", "plain@")
    copier = database.server.url.replace("test@", "copier@")
    filled.fails(
        postgres_changes(plain, table="rights"), "must let our user read its changes.*alter role … replication"
    )
    filled.fails(
        postgres_changes(copier, table="rights"),
        r"must have a publication holdfast_rights with table rights, and has not \(permission denied.*let the table's "
        r'owner say: create publication "holdfast_rights" for table "public"."rights"',
    )
    database.run("create publication holdfast_rights for table rights")
    filled.fails(postgres_changes(copier, table="rights"), "permission denied for table rights.*grant select")
    assert database.run("select slot_name from pg_replication_slots") == []
    database.run("grant select on rights to copier")
    filled.read(postgres_changes(copier, table="rights", slack="0s"))


def test_a_wrong_password_and_a_missing_database_are_said_at_once(database: Database, filled: Filled) -> None:
    database.run("create role locked login replication password 'right'")
    database.server.ask_password("locked")
    url = database.server.url
    wrong = postgres_changes(url.replace("test@", "locked:wrong@"), table="t")
    with pytest.raises(UsageError, match=r"must accept our name, password and address.*password authentication failed"):
        wrong.columns()
    assert "wrong" not in repr(wrong)
    assert "wrong" not in wrong.text()
    with pytest.raises(UsageError, match='database "nix" does not exist'):
        postgres_changes(url.removesuffix("postgres") + "nix", table="t").columns()


def test_a_server_that_does_not_log_for_replication_is_told_what_to_set(tmp_path: Path) -> None:
    import psycopg

    with postgres_server(wal_level="replica") as other:
        with psycopg.connect(other.url, autocommit=True) as connection:
            connection.execute("create table t (id int primary key)")
        Filled(tmp_path).fails(
            postgres_changes(other.url, table="t"), "must have wal_level = logical.*restart the server"
        )


def test_a_slot_whose_log_was_removed_is_said(tmp_path: Path) -> None:
    with postgres_server(wal_level="logical", max_slot_wal_keep_size="1MB", min_wal_size="32MB", max_wal_size="32MB",
                         wal_keep_size="0") as other:  # fmt: skip
        filled, database = Filled(tmp_path), Database(other)
        database.run("create table t (id int primary key, word text)")
        source = bridged(other.url, "t")
        filled.read(source)
        state = "select wal_status from pg_replication_slots"
        for _ in range(20):
            if database.run(state) == [("lost",)]:
                break
            database.run(
                "insert into t select n, repeat('x', 1000) from generate_series(1, 5000) n on conflict do nothing"
            )
            database.run("select pg_switch_wal()")
            database.run("checkpoint")
        assert database.run(state) == [("lost",)]
        filled.fails(source, "must still have the changes behind .* it is lost: .*max_slot_wal_keep_size.*a new id")
        database.connection.close()


def test_a_standby_that_takes_over_must_have_all_that_was_read(tmp_path: Path) -> None:
    with postgres_server(wal_level="logical", restore_command="false", fsync="off") as other:
        filled, source = Filled(tmp_path), bridged(other.url, "t")

        def run(sql: str) -> None:
            with contextlib.closing(Database(other).connection) as connection:
                until(lambda: not connection.execute("select pg_is_in_recovery()").fetchall()[0][0])
                connection.execute(sql)

        run("create table t (id int primary key)")
        filled.read(source)
        run("insert into t values (1)")
        other.stop()
        other.take_over()
        run("insert into t values (2)")
        filled.read(source)
        assert filled.changes("id") == [("insert", 1), ("insert", 2)]
        other.stop()
        backup = other.copy_disk()
        other.start()
        run("insert into t values (3)")
        filled.read(source)
        other.stop()
        other.take_over(backup)
        run("insert into t select generate_series(4, 10000)")
        filled.fails(source, "must have all changes before .* its log left the one that was read at .*a new id begins")


class Cut(Exception):
    """A life ends here."""


def test_cut_short_before_and_behind_every_unit_nothing_is_missing_or_twice_k1(
    database: Database, filled: Filled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_client, "READ_BYTES_MAX", 400)
    monkeypatch.setattr(postgres_input, "_ROWS", 4)
    database.run("create table cut (id int primary key)")
    database.run("insert into cut select generate_series(0, 9)")
    source = bridged(database.server.url, "cut")
    send, lives = PostgresInput._send, 0
    left = wanted = 0

    def cutting(self: PostgresInput, *unit: Any) -> None:
        nonlocal left
        left -= unit[0].num_rows > 0
        if left == 0 and lives % 2:
            raise Cut
        send(self, *unit)
        if unit[0].num_rows and (left == 0 or len(everything(filled)) == wanted):
            raise Cut

    monkeypatch.setattr(PostgresInput, "_send", cutting)

    def live(rows: int) -> None:
        """Lives of a unit or two, until so many rows are there."""
        nonlocal left, lives, wanted
        wanted = rows
        while len(everything(filled)) < wanted:
            lives += 1
            left = 1 + lives % 2
            with contextlib.suppress(Cut, PeerError):
                source.open(filled.made(source), filled.root / "home").run()

    live(10)
    database.run("insert into cut select generate_series(10, 29)")
    database.run("delete from cut where id < 10")
    live(40)
    monkeypatch.setattr(PostgresInput, "_send", send)
    filled.read(source)
    assert filled.changes("id") == [
        *(("snapshot", n) for n in range(10)), *(("insert", n) for n in range(10, 30)),
        *(("delete", n) for n in range(10)),
    ]  # fmt: skip
    assert len({row.stime for row in filled.rows()}) == 3
    assert lives > 5


def everything(filled: Filled) -> list[Any]:
    """Also what lies in a bucket that is not complete."""
    with contextlib.suppress(UnknownStream), contextlib.closing(filled.store.open("s").reader()) as reader:
        return [n for e in reader.extents(-(2**62), 2**62) for n in reader.read(e).column("id").to_pylist()]
    return []


class Writer(threading.Thread):
    """Changes a table at random, through anything that happens to its server."""

    def __init__(self, server: Postgres, table: str, seed: int) -> None:
        super().__init__()
        self._server, self._table, self._chance = server, table, random.Random(seed)
        self.ended = threading.Event()
        self.transactions = 0
        self._next = 1_000_000

    def run(self) -> None:
        import psycopg

        while not self.ended.is_set():
            with contextlib.suppress(psycopg.Error), psycopg.connect(self._server.url, autocommit=True) as connection:
                while not self.ended.is_set():
                    with connection.transaction():
                        for _ in range(self._chance.randrange(1, 6)):
                            connection.execute(self._statement())
                    self.transactions += 1
                    self.ended.wait(0.01)
            self.ended.wait(0.05)

    def _statement(self) -> str:
        kind, n = self._chance.random(), self._chance.randrange(2000)
        if kind < 0.02:
            return f"truncate {self._table}"
        if kind < 0.5:
            self._next += 50
            return (
                f"insert into {self._table} select n, 'w' || n from generate_series({self._next}, {self._next + 20}) n"
            )
        if kind < 0.7:
            return f"update {self._table} set word = word || '!' where id % 2000 = {n}"
        if kind < 0.8:
            self._next += 50
            return f"update {self._table} set id = {self._next} where id = (select max(id) from {self._table})"
        return f"delete from {self._table} where id % 100 = {n % 100}"


def test_killed_bridges_and_servers_leave_a_stream_that_equals_the_table_k1(
    database: Database, filled: Filled, server: Postgres
) -> None:
    """`HOLDFAST_POSTGRES_KILLS=100` at length."""
    kills = int(os.environ.get("HOLDFAST_POSTGRES_KILLS", "4"))
    database.run("create table killed (id int primary key, word text)")
    database.run("insert into killed select n, repeat('x', n % 50) from generate_series(1, 5000) n")
    source = bridged(server.url, "killed")
    filled.made(source)
    chance = random.Random(kills)
    writer = Writer(server, "killed", kills)
    writer.start()
    for turn in range(kills):
        program = [sys.executable, "-m", "tests.inputs.postgres_bridge", str(filled.root), server.url, "killed"]
        bridge = subprocess.Popen(program, stdout=subprocess.PIPE)
        try:
            assert bridge.stdout is not None
            bridge.stdout.readline()
            if turn % 2:  # At work; the others are killed somewhere on the way to it.
                before = len(everything(filled))
                until(lambda before=before: len(everything(filled)) > before)
            threading.Event().wait(chance.random() / 2)
            if turn % 3 == 2:  # The bridge lives through it.
                server.kill()
                server.start()
                threading.Event().wait(chance.random())
        finally:
            bridge.kill()
            bridge.wait()
            bridge.stdout.close()
    writer.ended.set()
    writer.join(120)
    assert not writer.is_alive()
    assert writer.transactions > 0
    filled.read(source)
    with contextlib.closing(Database(server).connection) as now:
        there = dict(now.execute("select id, word from killed").fetchall())
    assert {id: row["word"] for id, row in filled.table().items()} == there


def test_an_application_shows_how_its_source_does(database: Database, tmp_path: Path) -> None:
    database.run("create table shown (id int primary key)")
    app = holdfast.App("shop", root=tmp_path / "streams")
    app.source("orders", postgres_changes(database.server.url, table="shown", slack="0s"), bucket="100ms")
    with app.start() as running:
        database.run("insert into shown values (1)")
        until(lambda: running.status()["sources"][0].get("rows") == 1)
        until(lambda: running.status()["sources"][0]["settled"])
        (source,) = running.status()["sources"]
    assert (source["stream"], source["state"], source["lag_bytes"], source["table"]) == (
        "orders",
        "RUNNING",
        0,
        "shown",
    )
    assert source["from"].startswith("changes of table shown of PostgreSQL at 127.0.0.1:")
    assert [row.values["id"] for row in running.streams.open("orders").subscribe().rows(timeout=0)] == [1]
    app = holdfast.App("shop", root=tmp_path / "streams")
    app.source("others", postgres_changes(database.server.url, table="nowhere"))
    with pytest.raises(UsageError, match=r"the source of stream others does not run: .* must have a table nowhere"):
        app.start()


def test_an_application_is_set_up_while_its_source_waits_for_others_and_can_be_stopped(
    database: Database, tmp_path: Path
) -> None:
    database.run("create table waited (id int primary key)")
    other = Database(database.server)
    for _ in range(2):
        app = holdfast.App("shop", root=tmp_path / "streams")
        app.source("orders", postgres_changes(database.server.url, table="waited", slack="0s"), bucket="100ms")
        with other.transaction():
            other.run("insert into waited select coalesce(max(id), 0) + 1 from waited")
            with app.start() as running:
                (source,) = running.status()["sources"]
                assert (source["state"], source["settled"]) == ("RUNNING", False)
                assert source["why"].startswith("waits for transactions that were open")
    with app.start() as running:
        until(lambda: running.status()["sources"][0].get("rows") == 2)
    other.connection.close()


def test_the_command_reads_a_table_and_says_what_it_sent(database: Database, tmp_path: Path) -> None:
    database.run("create table orders (id int primary key, amount int)")
    database.run("insert into orders select n, n from generate_series(1, 3) n")

    def run(*words: str) -> Any:
        return CliRunner().invoke(cli, words, env={"HOLDFAST_ROOT": str(tmp_path)}, prog_name="holdfast")

    words = ("send", "orders", "--postgres", database.server.url, "--slack", "0s", "--until-read")
    assert run(*words).stdout == "orders: 3 tuples sent\n"
    database.run("delete from orders where id = 2")
    assert run(*words).stdout == "orders: 1 tuple sent\n"
    assert run(*words).stdout == "orders: 0 tuples sent\n"
    shown = run("tail", "orders", "-n", "1", "--json").stdout
    assert json.loads(shown)["values"] == {"change": "delete", "id": 2, "amount": None, "old": {"id": 2}}
    database.run("create table times (id int primary key, at timestamptz)")
    database.run("alter table times replica identity full")
    database.run("insert into times values (1, '2026-01-01')")
    timed = ("send", "times", "--postgres", database.server.url, "--stime", "at", "--until-read")
    assert run(*timed).stdout == "times: 1 tuple sent\n"
    refused = run("send", "others", "--postgres", database.server.url, "--table", "nowhere", "--until-read")
    assert "must have a table nowhere; there is none" in str(refused.exception) + refused.output
    assert run(*words, "--kafka", "b:9092").exit_code == 2
