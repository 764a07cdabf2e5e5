"""The table of a `holdfast.inputs.postgres_changes` source on its server: what it is, its publication, its slot.

Everything that would let changes be missed is looked for before the first is read, and said with what to do.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from holdfast.inputs.pgoutput import Column, Relation, lsn_number, lsn_text
from holdfast.inputs.postgres_client import BEGIN_ANEW, Connection, ReplicationConnection, refusal
from holdfast.model.errors import UsageError

#: PostgreSQL cuts names to 63 bytes.
_NAME_BYTES_MAX = 63
#: Before it a partitioned table cannot be published as one.
_VERSION_MIN = 130_000
_END = "case when pg_is_in_recovery() then pg_last_wal_replay_lsn() else pg_current_wal_flush_lsn() end"


class Table(NamedTuple):
    """What the server says of it now."""

    relation: Relation
    system: str
    """The server's own number and the database: another server has other places under the same names."""
    timeline: int
    """Which history of its log the server has: a new one begins whenever a standby takes over."""
    partitioned: bool


class Slot(NamedTuple):
    """The place that the server keeps for us, and the log behind it."""

    confirmed: int
    lost: str | None
    """Why it can no longer be read from."""


class Seen(NamedTuple):
    """A look at the server while changes are read."""

    end: int
    clock_us: int
    """The server's, before that."""
    standby: bool
    published: str | None
    """What there is of the table in the publication; None: nothing."""


def describe(connection: ReplicationConnection, table: str) -> Table:
    """The table with its columns, `UsageError` if its changes cannot be had."""
    ((system, timeline, _, database),) = connection.run("IDENTIFY_SYSTEM")
    ((version, encoding),) = connection.run(
        "select current_setting('server_version_num'), current_setting('server_encoding')"
    )
    if int(version) < _VERSION_MIN:
        raise UsageError(f"{connection.where} must be PostgreSQL {_VERSION_MIN // 10_000} or newer; it is {version}")
    if encoding == "SQL_ASCII":
        raise UsageError(
            f"{connection.where} must say how its text is encoded, or nobody can tell what it means; its encoding is "
            "SQL_ASCII; copy the database into one with encoding UTF8"
        )
    found = connection.run(
        "select c.oid, n.nspname, c.relname, c.relkind, c.relpersistence, c.relreplident from pg_class c "
        f"join pg_namespace n on n.oid = c.relnamespace where c.oid = to_regclass({literal(quoted(table))})"
    )
    if not found:
        raise UsageError(
            f"{connection.where} must have a table {table}; there is none that our user can see; check the name and "
            "its schema"
        )
    ((oid, schema, name, kind, persistence, identity),) = found
    if kind not in "rp" or persistence != "p":
        raise UsageError(f"{table} of {connection.where} must be a plain table; views, temporary, unlogged and foreign "
                         "tables have no changes in the log")  # fmt: skip
    columns = tuple(
        Column(column, int(type), int(modifier), key == "t")
        for column, type, modifier, key in connection.run(
            "select a.attname, a.atttypid, a.atttypmod, c.relreplident = 'f' or exists(select from pg_index i "
            "where i.indrelid = c.oid and a.attnum = any(i.indkey) and case c.relreplident when 'd' then "
            "i.indisprimary when 'i' then i.indisreplident else false end) "
            "from pg_attribute a join pg_class c on c.oid = a.attrelid "
            f"where c.oid = {oid} and a.attnum > 0 and not a.attisdropped and a.attgenerated = '' order by a.attnum"
        )
    )
    if not any(column.key for column in columns):
        raise UsageError(
            f"table {table} of {connection.where} must have a primary key, or send old rows whole; without one nobody "
            f"can tell which row was changed, and PostgreSQL refuses to change rows that are published; say: alter "
            f"table {table} replica identity full"
        )
    return Table(
        Relation(int(oid), schema, name, identity, columns), f"{system} {database}", int(timeline), kind == "p"
    )


def publication_name(relation: Relation) -> str:
    """Of ours."""
    before = "" if relation.schema == "public" else f"{relation.schema}_"
    return _cut(f"holdfast_{before}{relation.name}")


def publish(connection: Connection, table: str, relation: Relation, name: str, *, ours: bool) -> None:
    """Look that the publication has the table's changes. Ours is made, or given the table, if need be: before the
    first change, never afterwards, as what happened without it is not told any more."""
    full = f"{identifier(relation.schema)}.{identifier(relation.name)}"
    kinds = _publication(connection, name)
    if kinds is None:
        making = f"create publication {identifier(name)} for table {full}"
        _make(connection, f"{making} with (publish_via_partition_root = true)", name, table, ours)
        kinds = _publication(connection, name)
    if kinds != "tttt":
        raise UsageError(
            f"publication {name} of {connection.where} must publish insert, update, delete and truncate, or changes "
            "would be missed; it does not publish all of them; alter publication … set (publish = 'insert, update, "
            "delete, truncate')"
        )
    member = _member(connection, name, relation)
    if not member:
        adding = f"alter publication {identifier(name)} add table {full}"
        _make(connection, adding, name, table, ours)
        member = _member(connection, name, relation)
    if not member:
        raise UsageError(
            f"publication {name} of {connection.where} must have the partitioned table {table} as one; let its owner "
            f"say: alter publication {identifier(name)} set (publish_via_partition_root = true)"
        )
    if member[0][0] is not None:
        raise UsageError(
            f"publication {name} of {connection.where} must have all rows of table {table}; it has those where "
            f"{member[0][0]}; make one without a condition"
        )


def _make(connection: Connection, sql: str, name: str, table: str, ours: bool) -> None:
    """Where it is ours, make it so; otherwise say how it must be made."""
    refused = "that is for its owner to do"
    if ours:
        try:
            connection.run(sql)
            return
        except UsageError as error:
            refused = str(error).partition("refuses: ")[2].partition(";")[0] or str(error)
            if "already" in refused:
                return  # Another of ours was quicker.
    raise UsageError(
        f"{connection.where} must have a publication {name} with table {table}, and has not ({refused}); let the "
        f"table's owner say: {sql}"
    )


def _member(connection: Connection, name: str, relation: Relation) -> list[tuple[str | None]]:
    return connection.run(
        f"select to_jsonb(t)->>'rowfilter' from pg_publication_tables t where pubname = {literal(name)} "
        f"and schemaname = {literal(relation.schema)} and tablename = {literal(relation.name)}"
    )  # type: ignore[return-value]


def _publication(connection: Connection, name: str) -> str | None:
    found = connection.run(
        "select concat(pubinsert::text::char, pubupdate::text::char, pubdelete::text::char, pubtruncate::text::char) "
        f"from pg_publication where pubname = {literal(name)}"
    )
    return found[0][0] if found else None


def slot_name(stream: str, number: int) -> str:
    """The slot of a stream; the number is the stream's own, so nobody else has it."""
    return f"holdfast_{re.sub(r'[^a-z0-9_]', '_', stream.lower())[:40]}_{number:08x}"


def find_slot(connection: Connection, name: str) -> Slot | None:
    found = connection.run(
        "select confirmed_flush_lsn, to_jsonb(s)->>'wal_status', to_jsonb(s)->>'invalidation_reason' "
        f"from pg_replication_slots s where slot_name = {literal(name)}"
    )
    if not found:
        return None
    ((confirmed, state, reason),) = found
    lost = reason or ("the log that it needs was removed (max_slot_wal_keep_size)" if state == "lost" else None)
    return Slot(lsn_number(confirmed or "0/0"), lost)


def check_slot(connection: Connection, name: str, table: str, done: int) -> None:
    """Whether every change behind `done`, which the log has, can still be had."""
    slot = find_slot(connection, name)
    if slot is None:
        raise UsageError(
            f"{connection.where} must still have the replication slot {name} of table {table}; it was dropped, and "
            f"with it the changes behind {lsn_text(done)}; {BEGIN_ANEW}"
        )
    if slot.lost is not None:
        raise UsageError(
            f"the replication slot {name} of {connection.where} must still have the changes behind {lsn_text(done)}; "
            f"it is lost: {slot.lost}; {BEGIN_ANEW}"
        )
    if slot.confirmed > done:
        raise UsageError(
            f"the replication slot {name} of {connection.where} must stand at {lsn_text(done)} or before, where the "
            f"stream is; it is at {lsn_text(slot.confirmed)}: somebody else has read from it, or the stream is an "
            f"older copy; {BEGIN_ANEW}"
        )
    end = end_of_log(connection)
    if end < done:
        raise UsageError(
            f"the log of {connection.where} must reach to {lsn_text(done)}, where the stream is; it ends at "
            f"{lsn_text(end)}: the server was set back to an earlier state; {BEGIN_ANEW}"
        )


def check_timeline(connection: ReplicationConnection, table: Table, known: int, reached: int) -> None:
    """Whether the server's history has everything before `reached`, which was read in the history `known`."""
    if table.timeline == known:
        return
    history = connection.run(f"TIMELINE_HISTORY {table.timeline}")[0][1] if table.timeline > known else ""
    left = left_at(history, known)
    if left is None or left < reached:
        where = "nobody knows where" if left is None else f"at {lsn_text(left)}"
        raise UsageError(
            f"{connection.where} must have all changes before {lsn_text(reached)}, where the stream is; its log left "
            f"the one that was read {where}, when a standby took over that had not all of it, or a backup; {BEGIN_ANEW}"
        )


def left_at(history: str, timeline: int) -> int | None:
    """Where a timeline was left, by the history of a later one; None if it is none of those before it.

    >>> left_at("1\\t0/16000060\\tno recovery target specified\\n", 1)
    369098848
    """
    for line in history.splitlines():
        words = line.split()
        if words[:1] == [str(timeline)]:
            return lsn_number(words[1])
    return None


def end_of_log(connection: Connection) -> int:
    """Up to where the log is durable on the server."""
    ((end,),) = connection.run(f"select {_END}")
    return lsn_number(end)


def look(connection: Connection, publication: str, table: int) -> Seen:
    """In one statement: what it says of the publication was so before the end that it says."""
    # Whoever drops the publication, or takes the table out, and puts it back leaves other numbers behind.
    published = (
        "select concat_ws(' ', p.oid, p.xmin, pubinsert, pubupdate, pubdelete, pubtruncate, "
        f"(select string_agg(r.oid::text, ',') from pg_publication_rel r where r.prpubid = p.oid and r.prrelid = "
        f"{table}), 'condition: ' || coalesce(to_jsonb(t)->>'rowfilter', 'none')) from pg_publication p "
        "join pg_publication_tables t using (pubname) join pg_namespace n on n.nspname = t.schemaname "
        "join pg_class c on c.relnamespace = n.oid and c.relname = t.tablename "
        f"where p.pubname = {literal(publication)} and c.oid = {table}"
    )
    ((clock, standby, found, end),) = connection.run(
        f"select (extract(epoch from clock_timestamp()) * 1000000)::bigint, pg_is_in_recovery(), ({published}), {_END}"
    )
    return Seen(lsn_number(end), int(clock), standby == "t", found)


def check_published(where: str, publication: str, table: str, now: str | None, *, same: bool) -> None:
    """Whether the table was published all the time, and is: what happened while it was not is in no log."""
    if now is None or not same:
        what = "it has not any more" if now is None else "it was altered, or dropped and made again"
        raise UsageError(
            f"publication {publication} of {where} must have table {table} as it had when the stream began; {what}, "
            f"and changes in between are not told; {BEGIN_ANEW}"
        )


def check_readable(connection: Connection, relation: Relation) -> None:
    """Whether our user may read the first rows."""
    refused = connection.run(
        f"select attname from pg_attribute where attrelid = {relation.id} and attnum > 0 and not attisdropped and "
        f"attgenerated = '' and not has_column_privilege({relation.id}, attnum, 'select')"
    )
    if refused:
        raise refusal(f"permission denied for table {relation.name}", "42501", connection.where)


def copy_text(table: Table, order: str | None) -> str:
    """The statement that gives all rows whose changes come as the table's: those of tables that inherit from it do not,
    those of its partitions do. In the `order` of a column where that says when they happened."""
    relation = table.relation
    names = ", ".join(identifier(column.name) for column in relation.columns)
    rows = f"{'' if table.partitioned else 'only '}{identifier(relation.schema)}.{identifier(relation.name)}"
    return f"copy (select {names} from {rows}{f' order by {identifier(order)}' if order else ''}) to stdout"


def identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def quoted(table: str) -> str:
    """A table as the user says it, perhaps with its schema."""
    return ".".join(identifier(part) for part in table.split("."))


def literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _cut(name: str) -> str:
    return name.encode()[:_NAME_BYTES_MAX].decode("utf-8", "ignore")
