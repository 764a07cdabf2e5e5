"""The folder of streams: names, definitions, branches (X2)."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.model.errors import CorruptLog, SchemaError, StreamBusy, UnknownStream, UsageError
from holdfast.stream.definition import Bound
from holdfast.stream.store import StreamStore
from tests.faults.units import QuietDisk


def store_of(root: Path) -> StreamStore:
    return StreamStore(root, disk=QuietDisk())


def test_a_stream_is_what_it_was_declared_to_be(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    store.create("s", "a int, b array<string>", bucket="2s", partitions=3, partition_by="a")
    d = store_of(tmp_path).open("s").definition
    assert (d.columns, d.bucket_us, d.partitions, d.partition_by) == ("a int, b array<string>", 2_000_000, 3, "a")
    assert d.schema.names == ["a", "b"]
    assert store.names() == ["s"]


def test_an_unknown_stream_is_named_together_with_those_that_exist(tmp_path: Path) -> None:
    store = store_of(tmp_path / "none")
    with pytest.raises(UnknownStream, match="there are: none"):
        store.open("s")
    store.create("known", "a int")
    with pytest.raises(UnknownStream, match="there are: known"):
        store.open("s")


@pytest.mark.parametrize("name", ["..", "../s", "a/b", "", "S", ".hidden"])
def test_a_name_that_leads_elsewhere_is_refused_everywhere(name: str, tmp_path: Path) -> None:
    """X2."""
    store = store_of(tmp_path / "root")
    for act in (lambda: store.open(name), lambda: store.create(name, "a int"), lambda: store.delete(name)):
        with pytest.raises(UsageError):
            act()
    assert sorted(p.name for p in tmp_path.iterdir()) in ([], ["root"])


@pytest.mark.parametrize(
    "options",
    [{"bucket": "1us"}, {"partitions": 0}, {"partitions": 5000}, {"partition_by": "z"}, {"segment_bytes": 1},
     {"bucket": "often"}],
)  # fmt: skip
def test_a_wrong_declaration_is_refused_and_leaves_nothing(options: dict[str, object], tmp_path: Path) -> None:
    store = store_of(tmp_path / "root")
    with pytest.raises(UsageError):
        store.create("s", "a int", **options)
    assert store.names() == []
    assert not (tmp_path / "root").exists()


def test_declaring_again_is_refused_unless_it_is_the_same_and_allowed(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    store.create("s", "a int")
    with pytest.raises(UsageError, match="exists already"):
        store.create("s", "a int")
    assert store.create("s", "a int", exist_ok=True).name == "s"
    with pytest.raises(UsageError, match="exists already"):
        store.create("s", "a bigint", exist_ok=True)
    with pytest.raises(SchemaError):
        store.create("s", "a nothing", exist_ok=True)


def test_a_small_bound_gets_segments_small_enough_to_be_given_up(tmp_path: Path) -> None:
    stream = store_of(tmp_path).create("s", "a int", bound=Bound(1 << 20))
    assert stream.definition.segment_bytes <= (1 << 20) // 4


def test_a_damaged_definition_is_reported(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    stream = store.create("s", "a int")
    path = stream.folder / "stream"
    path.write_bytes(path.read_bytes().replace(b"a int", b"b int"))
    with pytest.raises(CorruptLog, match="does not match its checksum"):
        store.open("s")


def test_deleting_is_refused_while_somebody_writes(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    stream = store.create("s", "a int")
    with stream.producer(), pytest.raises(StreamBusy):
        store.delete("s")
    store.delete("s")
    assert list(tmp_path.iterdir()) == []


def test_a_branch_begins_at_a_bucket_holds_its_own_tuples_and_vanishes_whole(tmp_path: Path) -> None:
    from tests.stream.test_subscriber import filled, tentative

    stream = filled(tmp_path, 3)
    assert stream.branch() is None
    assert not stream.drop_branch()
    with pytest.raises(UsageError, match="no tentative branch"):
        stream.branch_writer()
    with pytest.raises(UsageError, match="where a bucket begins"):
        stream.create_branch(1_500_000)
    root = stream.create_branch(3_000_000)
    assert stream.branch() == root
    with pytest.raises(UsageError, match="has a tentative branch already"):
        stream.create_branch(3_000_000)
    with pytest.raises(UsageError, match="comes after the boundary"):
        tentative(stream, range(1, 2))
    tentative(stream, range(3, 5))
    assert stream.drop_branch()
    assert stream.branch() is None
    assert stream.create_branch(0).id != root.id
    stream.drop_branch()
    assert sorted(p.name for p in stream.folder.iterdir()) == ["main", "stream"]
