"""How fast a stream goes into a PostgreSQL table, beside COPY alone, and how soon a table is right after a failure.

`copy`: the same rows, encoded beforehand, by COPY into a table with the same columns and the same unique index, in
transactions of the same size: what PostgreSQL can take at most from one connection.
`sink`: everything: the log is read and checked, rows are encoded, loaded and committed with the reader's position.
`by key`: the same with a key, through a stage and an upsert, all keys new.
`delta`: into a Delta table, beside `deltalake.write_deltalake` alone with the same rows in commits of the same size.

The correction: so many tentative rows lie in the table; main gets all of them right and its producer says STABLE. The
time from that word to the look at which the table holds the right rows and nothing tentative.

    python -m benches.sinks [--rows 1000000] [--rounds 3] [--corrected 20000]
"""

from __future__ import annotations

import argparse
import io
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import deltalake
import psycopg
import pyarrow as pa
import pyarrow.csv
from tests.postgres_server import postgres_server

import holdfast
from benches.report import finish, table
from holdfast.protocol.dpc.messages import StreamReport
from holdfast.protocol.dpc.states import StreamState
from holdfast.sinks import delta, postgres
from holdfast.sinks.runner import LocalOrigin, SinkRunner
from holdfast.stream.pack import pack
from holdfast.stream.report import ReportWriter

COLUMNS = "source string, bytes bigint, ms double, at timestamp"
DDL = "source text, bytes bigint, ms double precision, at timestamp with time zone"
#: Of a batch that is sent, and of a bucket.
ROWS = 10_000
SECOND = 1_000_000
#: One transaction of the sink's, and of COPY alone.
TRANSACTION = 200_000


def rows_of(first: int, count: int) -> pa.RecordBatch:
    numbers = range(first, first + count)
    stimes = pa.array([n * (SECOND // ROWS) for n in numbers], pa.timestamp("us", "UTC"))
    return pa.RecordBatch.from_arrays(
        [stimes, pa.array([f"10.0.{n // 250 % 250}.{n % 250}" for n in numbers]), pa.array(numbers, pa.int64()),
         pa.array([n / 7 for n in numbers]), stimes],
        names=["stime", "source", "bytes", "ms", "at"],
    )  # fmt: skip


def filled(root: Path, rows: int) -> holdfast.Stream:
    stream = holdfast.open(root).create("flows", COLUMNS, bucket="1s")
    with stream.producer(stime="stime", boundary_every="1h") as producer:
        for first in range(0, rows, ROWS):
            producer.send_batch(rows_of(first, ROWS))
    return stream


def copy_alone(url: str, rows: int) -> float:
    """Rows per second."""
    encoded = []
    for first in range(0, rows, TRANSACTION):
        count = min(TRANSACTION, rows - first)
        batch = rows_of(first, count)
        ids = pa.array(range(first + 1, first + count + 1), pa.int64())
        whole = pa.Table.from_batches([batch]).add_column(0, "holdfast_id", ids)
        buffer = io.BytesIO()
        pa.csv.write_csv(whole, buffer, pa.csv.WriteOptions(include_header=False, quoting_style="needed"))
        encoded.append(buffer.getbuffer())
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("drop table if exists alone")
        connection.execute(f"create table alone (holdfast_id bigint primary key, stime timestamptz, {DDL})")
        began = time.perf_counter()
        for piece in encoded:
            with connection.transaction(), connection.cursor().copy("copy alone from stdin (format csv)") as copy:
                copy.write(piece)
        took = time.perf_counter() - began
    return rows / took


def through_sink(url: str, root: Path, rows: int, **options: Any) -> float:
    with psycopg.connect(url, autocommit=True) as connection:
        for name in ("flows", "holdfast_sinks", "flows_holdfast"):
            connection.execute(f"drop table if exists {name}")
    runner = SinkRunner("bench", "flows", LocalOrigin(holdfast.open(root), "flows"), postgres(url, "flows", **options))
    began = time.perf_counter()
    runner.run()
    took = time.perf_counter() - began
    with psycopg.connect(url) as connection:
        found = connection.execute("select count(*) from flows").fetchone()
        assert found == (rows,), found
    return rows / took


def delta_alone(folder: Path, rows: int) -> float:
    pieces = []
    for first in range(0, rows, TRANSACTION):
        batch = rows_of(first, min(TRANSACTION, rows - first))
        ids = pa.array(range(first + 1, first + 1 + batch.num_rows), pa.int64())
        commits = pa.array([1] * batch.num_rows, pa.int64())
        whole = pa.Table.from_batches([batch]).add_column(0, "holdfast_commit", commits)
        pieces.append(whole.add_column(0, "holdfast_id", ids))
    began = time.perf_counter()
    for piece in pieces:
        deltalake.write_deltalake(str(folder), piece, mode="append")
    return rows / (time.perf_counter() - began)


def delta_sink(root: Path, folder: Path, rows: int) -> float:
    runner = SinkRunner("bench", "flows", LocalOrigin(holdfast.open(root), "flows"), delta(folder, every=0))
    began = time.perf_counter()
    runner.run()
    took = time.perf_counter() - began
    assert deltalake.DeltaTable(str(folder)).to_pyarrow_table(columns=["holdfast_id"]).num_rows == rows
    return rows / took


def correction(url: str, root: Path, rows: int) -> float:
    """Seconds from the producer's word that all is right to a table that is."""
    stream = holdfast.open(root).create("results", COLUMNS, bucket="1s")
    report = ReportWriter(stream.folder)
    report.publish(StreamReport("results", StreamState.UP_FAILURE, 0, False))
    stream.create_branch(0)
    writer = stream.branch_writer()
    for first in range(0, rows, ROWS):
        batch = pa.RecordBatch.from_arrays(rows_of(first, ROWS).columns, schema=stream.definition.stored)
        end_us = (first + ROWS) // ROWS * SECOND
        writer.commit(pack(batch, stream.definition), now_us=1, boundary_us=end_us)
    runner = SinkRunner("bench", "results", LocalOrigin(holdfast.open(root), "results"),
                        postgres(url, "results", tentative=True)).start()  # fmt: skip
    with psycopg.connect(url, autocommit=True) as connection:

        def until(stable: int, tentative: int) -> None:
            while True:
                report.renew()
                try:
                    found = connection.execute(
                        "select count(*) filter (where not tentative), count(*) filter (where tentative) from results"
                    ).fetchone()
                except psycopg.errors.UndefinedTable:
                    found = None
                if found == (stable, tentative):
                    return
                time.sleep(0.002)

        until(0, rows)
        with stream.producer(stime="stime", boundary_every="1h") as producer:
            for first in range(0, rows, ROWS):
                producer.send_batch(rows_of(first, ROWS))
            producer.advance(rows // ROWS * SECOND)
            writer.release(1)
            stream.drop_branch()
            report.publish(StreamReport("results", StreamState.STABLE, 0, False))
            began = time.perf_counter()
            until(rows, 0)
            took = time.perf_counter() - began
    runner.stop()
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--corrected", type=int, default=20_000)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder, postgres_server() as server:
        url = server.url
        filled(Path(folder), asked.rows)
        rounds = []
        for _ in range(asked.rounds):  # In turn, so that whatever the machine does strikes both alike.
            alone = copy_alone(url, asked.rows)
            sink = through_sink(url, Path(folder), asked.rows)
            keyed = through_sink(url, Path(folder), asked.rows, key=["bytes"])
            lake = Path(folder) / f"lake{len(rounds)}"
            lakes = (delta_alone(lake / "alone", asked.rows), delta_sink(Path(folder), lake / "sink", asked.rows))
            rounds.append((alone, sink, keyed, *lakes))
        corrected_s = correction(url, Path(folder), asked.corrected)
    alone, sink, keyed, lake_alone, lake_sink = (statistics.median(column) for column in zip(*rounds, strict=True))
    ratio = statistics.median(row[1] / row[0] for row in rounds)
    keyed_ratio = statistics.median(row[2] / row[0] for row in rounds)
    delta_ratio = statistics.median(row[4] / row[3] for row in rounds)
    table(
        f"{asked.rows:,} rows into PostgreSQL, median of {asked.rounds}",
        ["", "rows/s", "of COPY alone"],
        [["COPY alone", round(alone), 1.0], ["sink", round(sink), ratio], ["sink by key", round(keyed), keyed_ratio]],
    )
    table(
        "the same into Delta",
        ["", "rows/s", "of write_deltalake alone"],
        [["write_deltalake alone", round(lake_alone), 1.0], ["sink", round(lake_sink), delta_ratio]],
    )
    table("a correction", ["tentative rows", "seconds from REC_DONE"], [[asked.corrected, corrected_s]])
    finish("sinks", postgres_ratio=round(ratio, 3), postgres_keyed_ratio=round(keyed_ratio, 3),
           delta_ratio=round(delta_ratio, 3),
           rows_per_s=round(sink), corrected_rows=asked.corrected, corrected_s=round(corrected_s, 3))  # fmt: skip


if __name__ == "__main__":
    main()
