"""How two outputs differ (`holdfast try`): only here, only there, changed by key."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

import holdfast
from holdfast.model.errors import UsageError
from holdfast.stream.difference import Difference

SECOND = 1_000_000
T0 = 1_700_000_000


def filled(store: holdfast.StreamStore, name: str, columns: str, *seconds: list[dict[str, object]]) -> holdfast.Stream:
    stream = store.create(name, columns, bucket="1s")
    producer = stream.producer(id=name, stime="stime", slack="1h")
    for second, rows in enumerate(seconds):
        at = datetime.fromtimestamp(T0 + second, UTC)
        producer.send_many([{"stime": at, **row} for row in rows])
        producer.advance((T0 + second + 1) * SECOND)
    producer.close(end=False)
    return stream


def test_rows_are_equal_changed_by_key_or_only_on_one_side(tmp_path: Path) -> None:
    store = holdfast.open(tmp_path)
    live = filled(store, "live", "source string, n bigint, worth double",
                  [{"source": "a", "n": 1, "worth": float("nan")}, {"source": "b", "n": 2, "worth": None}],
                  [{"source": "a", "n": 3, "worth": 1.0}, {"source": "b", "n": 4, "worth": 1.0},
                   {"source": "c", "n": 5, "worth": 1.0}, {"source": "c", "n": 5, "worth": 1.0}])  # fmt: skip
    trial = filled(store, "trial", "worth double, source string, n bigint, rate double",
                   [{"source": "b", "n": 2, "worth": None}, {"source": "a", "n": 1, "worth": float("nan")}],
                   [{"source": "a", "n": 30, "worth": 1.0}, {"source": "b", "n": 4, "worth": 1.0},
                    {"source": "c", "n": 5, "worth": 1.0}, {"source": "d", "n": 6, "worth": 1.0}],
                   [{"source": "z", "n": 0, "worth": 0.0}])  # fmt: skip
    difference = Difference(live, trial, T0 * SECOND)
    assert difference.advance()
    assert not difference.advance(), "the third second is not complete in both"
    found = difference.counts
    assert (found.buckets, found.differing, found.live, found.trial) == (2, 1, 6, 6)
    assert (found.equal, found.changed, found.only_live, found.only_trial) == (4, 1, 1, 1)
    assert (difference.key, difference.added) == (["source"], "rate double")
    assert found.shown["changed"] == [{"stime": "2023-11-14T22:13:21Z", "source": "a", "n": [3, 30]}]
    assert [row["source"] for row in found.shown["only_live"]] == ["c"]
    assert [row["source"] for row in found.shown["only_trial"]] == ["d"]
    assert dict(found.changed_columns) == {"n": 1}
    difference.close()


def test_structs_lists_and_maps_are_compared_and_shown(tmp_path: Path) -> None:
    store, columns = holdfast.open(tmp_path), "part struct<a:int,b:array<int>>, tags map<string,int>, n bigint"
    row = {"part": {"a": 1, "b": [1, None]}, "tags": {"x": 1}, "n": 1}
    live = filled(store, "live", columns, [row, {**row, "tags": {"x": 2}}])
    trial = filled(store, "trial", columns, [{**row, "n": 2}, {**row, "tags": {"x": 2}}])
    difference = Difference(live, trial, T0 * SECOND)
    difference.advance()
    assert (difference.counts.equal, difference.counts.changed) == (1, 1)
    (shown,) = difference.counts.shown["changed"]
    assert (shown["part"], shown["tags"], shown["n"]) == ("{a: 1, b: [1, None]}", "{x: 1}", [1, 2])
    difference.close()


def test_a_key_that_is_named_decides_what_is_one_row(tmp_path: Path) -> None:
    store = holdfast.open(tmp_path)
    rows = [{"id": 1, "name": "x"}, {"id": 2, "name": "y"}]
    live = filled(store, "live", "id bigint, name string", rows)
    trial = filled(store, "trial", "id bigint, name string", [{"id": 1, "name": "X"}, {"id": 2, "name": "y"}])
    for key, expected in ((["id"], (1, 0, 0)), ([], (0, 1, 1))):
        difference = Difference(live, trial, T0 * SECOND, key)
        difference.advance()
        found = difference.counts
        assert (found.changed, found.only_live, found.only_trial) == expected
        difference.close()
    with pytest.raises(UsageError, match="made of columns"):
        Difference(live, trial, T0 * SECOND, ["nobody"])
