"""Generated rows: the same for the same seed, at the rate asked for, resumed without a gap."""

from __future__ import annotations

import itertools
import time

import pytest

from holdfast.inputs.generator import NETWORK_COLUMNS, Generator, GeneratorInput
from holdfast.model.errors import UsageError
from holdfast.model.schema import parse_schema
from holdfast.stream.rows import Columns
from tests.inputs.conftest import Target, running, until


@pytest.mark.parametrize(
    "columns",
    [
        NETWORK_COLUMNS,
        "b boolean, t tinyint, h smallint, f float, x binary, d date, at timestamp, loc timestamp_ntz, m decimal(9,2), "
        "a array<string>, r struct<p:int,q:string>, k map<string,double>",
    ],
)
def test_rows_fit_the_schema_and_depend_on_seed_and_number_only(columns: str) -> None:
    schema = parse_schema(columns)
    rows = [Generator(schema, seed=7).row(n) for n in range(200)]
    assert rows == [Generator(schema, seed=7).row(n) for n in range(200)]
    assert rows != [Generator(schema, seed=8).row(n) for n in range(200)]
    Columns(schema, "s").batch(rows)


def test_connections_look_like_connections() -> None:
    rows = [Generator(parse_schema(NETWORK_COLUMNS)).row(n) for n in range(2000)]
    by_source = sorted((len(list(g)) for _, g in itertools.groupby(sorted(r["source"] for r in rows))), reverse=True)
    assert len(by_source) > 30
    assert by_source[0] > 5 * by_source[-1]
    assert {r["protocol"] for r in rows} == {"tcp", "udp"}


def test_it_goes_on_where_it_was(target: Target) -> None:
    for count in (1500, 4000):
        with target.producer() as producer:
            GeneratorInput(producer, rate=0, seed=3, count=count).run()
    make = Generator(target.stream.definition.schema, seed=3)
    assert target.numbers() == [make.row(n)["n"] for n in range(4000)]


def test_the_rate_is_kept(target: Target) -> None:
    with target.producer() as producer:
        source = GeneratorInput(producer, rate=2000)
        begun = time.monotonic()
        with running(source.run, source.stop):
            until(lambda: producer.last_seq_of("generator-0") >= 999)
        assert 0.3 < time.monotonic() - begun < 5


def test_a_rate_is_bounded(target: Target) -> None:
    with target.producer() as producer, pytest.raises(UsageError, match="a rate must be"):
        GeneratorInput(producer, rate=-1)
