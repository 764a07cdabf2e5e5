"""What a replica takes over of its twin's output (D9). Real hosts, kills, lost disks: tests/faults/test_rebuild.py."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import holdfast
from holdfast.host.link import Link
from holdfast.host.parcel import Unpacking, pack
from holdfast.host.rebuild import Rebuilding
from holdfast.host.stream_server import StreamServer
from holdfast.host.wire import Portion
from holdfast.model.errors import PeerError
from holdfast.spark.query_start import load_beginning, take_up
from holdfast.stream.waiting import waiting_results
from tests.host.conftest import SECOND, Origin, tuples_of


class Twin(Link):
    """A twin whose query stands where its output does."""

    def __init__(self, origin: Origin, folder: Path, stands_at: int) -> None:
        self._serving = StreamServer(origin.store)
        checkpoint = folder / "twin"
        for kind, body in (("offsets", 'v1\n{"conf":{}}\n{"until_us":1}\n'), ("commits", "v1\n{}\n")):
            (checkpoint / kind).mkdir(parents=True)
            (checkpoint / kind / "4").write_text(body)
        waiting = waiting_results(origin.stream)
        assert waiting is not None
        waiting = waiting._replace(boundary_us=stands_at * SECOND)
        self._parcel = b"".join(pack("counts:a", "counts", origin.definition, waiting, checkpoint, ids=True))

    async def take_parcel(self, node: str, into: Unpacking) -> None:
        into.feed(self._parcel)

    async def pull(self, stream: str, lane: Any, position: Any, wait_s: float, bytes_max: int = 300) -> Portion:
        return self._serving.pull(stream, lane, position, 300)

    async def say(self, sender: str, to: str, message: Any) -> None:
        raise NotImplementedError

    async def definition(self, stream: str) -> Any:
        raise NotImplementedError


class TakesUp:
    """As much of an engine as this needs."""

    @staticmethod
    def take_up(home: Path, checkpoint: Path, right_from_us: int | None) -> None:
        take_up(home, checkpoint, right_from_us)


def rebuilt(tmp_path: Path, origin: Origin, stands_at: int, **options: Any) -> holdfast.Stream:
    ours = holdfast.open(tmp_path / "ours").create("s", "n bigint", bucket="1s", exist_ok=True, **options)
    home = tmp_path / "home"
    home.mkdir(exist_ok=True)
    site: Any = SimpleNamespace(home=home, replica="counts@b", node=SimpleNamespace(name="counts"))
    twin = Twin(origin, tmp_path, stands_at)
    engine: Any = TakesUp()
    assert asyncio.run(Rebuilding(site, engine, ours, {"counts@a": twin}).run()) == "counts@a"
    beginning = load_beginning(home)
    assert (beginning.checkpoint(home) / "commits" / "4").exists()
    assert beginning.right_from_us == stands_at * SECOND
    return ours


def test_all_that_the_twin_had_filed_comes_over_with_its_ids_and_nothing_behind_it(tmp_path: Path) -> None:
    origin = Origin(tmp_path / "theirs")
    origin.fill(0, 40)
    ours = rebuilt(tmp_path, origin, 30)
    expected = [t for t in origin.tuples() if t[0] < 30]
    assert tuples_of(ours.folder / "main", ours.definition) == expected
    assert ours.reader().boundary_us == 30 * SECOND


def test_ids_go_on_where_the_twin_has_nothing_left_of_its_output(tmp_path: Path) -> None:
    origin = Origin(tmp_path / "theirs")
    origin.fill(0, 20)
    origin.writer.roll(1)
    origin.add(boundary=21)
    assert origin.stream.retain(holdfast.Retention(size_bytes=1)).rows > 0
    assert origin.tuples() == []
    ours = rebuilt(tmp_path, origin, 21)
    writer = ours.writer(takeover=True)
    assert writer.state.next_tuple_id == origin.writer.state.next_tuple_id > 1
    writer.release(1)


def test_a_twin_with_other_columns_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    origin = Origin(tmp_path / "theirs")
    origin.fill(0, 5)
    ours = holdfast.open(tmp_path / "ours").create("s", "m string", bucket="1s")
    site: Any = SimpleNamespace(home=tmp_path / "home", replica="counts@b", node=SimpleNamespace(name="counts"))
    engine: Any = TakesUp()
    rebuilding = Rebuilding(site, engine, ours, {"counts@a": Twin(origin, tmp_path, 5)})
    assert asyncio.run(rebuilding.run()) is None
    with pytest.raises(PeerError, match="must run the same node with the same columns"):
        asyncio.run(rebuilding._from("counts@a", Twin(origin, tmp_path / "again", 5)))
    assert ours.reader().boundary_us < 0
    assert not (tmp_path / "home" / "rebuilding").exists()


def test_a_twin_that_has_added_columns_in_another_order_is_refused(tmp_path: Path) -> None:
    """Its values would come over in the wrong columns."""
    origin = Origin(tmp_path / "theirs")
    origin.fill(0, 5)
    origin.definition = origin.store.add_columns("s", "n bigint, a bigint, b bigint").definition
    store = holdfast.open(tmp_path / "ours")
    store.create("s", "n bigint", bucket="1s")
    ours = store.add_columns("s", "n bigint, b bigint, a bigint")
    site: Any = SimpleNamespace(home=tmp_path / "home", replica="counts@b", node=SimpleNamespace(name="counts"))
    engine: Any = TakesUp()
    twin = Twin(origin, tmp_path, 5)
    with pytest.raises(PeerError, match="with the same columns, in the same order"):
        asyncio.run(Rebuilding(site, engine, ours, {"counts@a": twin})._from("counts@a", twin))
