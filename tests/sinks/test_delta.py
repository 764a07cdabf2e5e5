"""A Delta table holds what a stream says, whoever is killed (T1, T2)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from holdfast.model.errors import SchemaError, UsageError
from holdfast.model.schema import parse_schema
from holdfast.sinks import Sink, Source, delta
from holdfast.testing.sinks import Seen, SinkConformance

deltalake = pytest.importorskip("deltalake", reason="needs the extra delta")
pytestmark = pytest.mark.slow


class TestDelta(SinkConformance):
    keyed = False

    def start(self, folder: Path) -> None:
        self.path = folder / "results"

    def sink(self, key: Sequence[str]) -> Sink:
        return delta(self.path, tentative=True, every=0)

    def select(self, key: Sequence[str]) -> list[Seen]:
        if not deltalake.DeltaTable.is_deltatable(str(self.path)):
            return []
        rows = deltalake.DeltaTable(str(self.path)).to_pyarrow_table(columns=["n", "v", "tentative"])
        return [(row["n"], row["v"], row["tentative"]) for row in rows.to_pylist()]


def test_a_table_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t"
    first = delta(path)
    assert first.resume(Source("s", parse_schema("n bigint, many array<struct<a:bigint>>"))) is None
    first.close()
    with pytest.raises(UsageError, match="holds another stream"):
        delta(path).resume(Source("other", parse_schema("n bigint")))
    with pytest.raises(SchemaError, match="must have the columns v string"):
        delta(path).resume(Source("s", parse_schema("n bigint, v string")))
    with pytest.raises(SchemaError, match="must have the columns tentative boolean"):
        delta(path, tentative=True).resume(Source("s", parse_schema("n bigint")))
