"""Parcels: what is packed comes out, in any portions; what is cut, flipped or crafted is refused (X2, X3, L4)."""

from __future__ import annotations

import io
import random
import zipfile
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import holdfast
from holdfast.host import parcel, parcel_files
from holdfast.host.parcel import File, Head, Unpacking, pack
from holdfast.load.partner import write_parcel
from holdfast.load.tasks import GuestNote, guests_on, install_guest
from holdfast.model.errors import PeerError
from holdfast.stream.disk import Disk
from holdfast.stream.frame import crc32c
from holdfast.stream.identity import Identity, changed
from holdfast.stream.sealed import seal
from holdfast.stream.waiting import Waiting

OFFSETS = b'v1\n{"batchWatermarkMs":0,"conf":{}}\n{"position":7}'


def _three_rows() -> bytes:
    schema = pa.schema([pa.field("stime", pa.timestamp("us", tz="UTC"), nullable=False), ("n", pa.int64())])
    rows = pa.table([pa.array([5_000_000 + i for i in range(3)], schema[0].type), pa.array([1, 2, 3])], schema=schema)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_table(rows)
    return bytes(sink.getvalue().to_pybytes())


WAITING = Waiting({}, 3, _three_rows(), 5_000_000)


@pytest.fixture
def packed(tmp_path: Path) -> bytes:
    checkpoint = tmp_path / "checkpoint"
    files = {"offsets/7": OFFSETS, "state/0/1/8.delta": b"LZ4Block" + b"x" * 300_000, "metadata": b'{"id": "q"}',
             "commits/7": b'v1\n{"nextBatchWatermarkMs":0}', ".metadata.crc": b""}  # fmt: skip
    for name, body in files.items():
        (checkpoint / name).parent.mkdir(parents=True, exist_ok=True)
        (checkpoint / name).write_bytes(body)
    stream = holdfast.open(tmp_path / "streams").create("counts", "n bigint", bucket="1s")
    return b"".join(pack("anna:1#0", "counts", stream.definition, WAITING, checkpoint))


@pytest.mark.parametrize("portion", [1 << 22, 70_001, 999])
def test_a_parcel_comes_out_as_it_was_packed_in_any_portions(tmp_path: Path, packed: bytes, portion: int) -> None:
    unpacking = Unpacking(tmp_path / "out")
    for at in range(0, len(packed), portion):
        unpacking.feed(packed[at : at + portion])
    head, output, waiting = unpacking.finish()
    assert (head.lease_id, head.definition, output.name) == ("anna:1#0", "counts", "counts")
    assert waiting == WAITING
    sent, came = tmp_path / "checkpoint", tmp_path / "out" / "checkpoint"
    for path in (p for p in sent.rglob("*") if p.is_file()):
        assert (came / path.relative_to(sent)).read_bytes() == path.read_bytes()


def test_a_parcel_that_ends_early_is_refused(tmp_path: Path, packed: bytes) -> None:
    for n, length in enumerate([0, 5, 19, 20, 100, 400, len(packed) // 2, len(packed) - 1]):
        unpacking = Unpacking(tmp_path / str(n))
        unpacking.feed(packed[:length])
        with pytest.raises(PeerError, match="did not come whole"):
            unpacking.finish()


def test_a_parcel_with_more_behind_it_is_refused(tmp_path: Path, packed: bytes) -> None:
    with pytest.raises(PeerError, match="more came"):
        Unpacking(tmp_path / "out").feed(packed + b"!")


def test_a_flipped_bit_anywhere_is_found(tmp_path: Path, packed: bytes) -> None:
    chance = random.Random(1)
    for n, at in enumerate([*range(20), *(chance.randrange(len(packed)) for _ in range(30))]):
        broken = bytearray(packed)
        broken[at] ^= 1 << chance.randrange(8)
        unpacking = Unpacking(tmp_path / str(n))
        with pytest.raises(PeerError):
            _whole(unpacking, bytes(broken))
        unpacking.close()


def _whole(unpacking: Unpacking, data: bytes) -> None:
    unpacking.feed(data)
    unpacking.finish()


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a/../../b", "a//b", ".", "a/.", "a\0b", "a b", "x" * 300])
def test_a_file_that_would_lie_elsewhere_is_refused_before_anything_is_written(
    tmp_path: Path, packed: bytes, path: str
) -> None:
    length = int.from_bytes(packed[12:16], "little")
    head = msgspec.msgpack.decode(packed[20 : 20 + length], type=Head)
    crafted = msgspec.msgpack.encode(msgspec.structs.replace(head, files=(File(path, 1, crc32c(b"x")),)))
    data = parcel._PREFIX.pack(b"HOLDPARC", 1, 0, len(crafted), crc32c(crafted)) + crafted + WAITING.body + b"x"
    with pytest.raises(PeerError, match="must name files below its checkpoint"):
        Unpacking(tmp_path / "out").feed(data)
    assert not (tmp_path / "out").exists()


def test_another_version_is_refused_instead_of_guessed(tmp_path: Path, packed: bytes) -> None:
    with pytest.raises(PeerError, match="version 2 or before; got 9"):
        Unpacking(tmp_path / "out").feed(packed[:8] + b"\x09\x00" + packed[10:])


def test_a_parcel_with_states_of_operators_is_not_for_hosts_that_would_go_on_without_them(
    tmp_path: Path, packed: bytes
) -> None:
    state = tmp_path / "checkpoint" / "arrived" / "0" / "7.state"
    state.parent.mkdir(parents=True)
    state.write_bytes(b"windows")
    definition = holdfast.open(tmp_path / "streams").open("counts").definition
    with_state = b"".join(pack("anna:1#0", "counts", definition, WAITING, tmp_path / "checkpoint"))
    assert [int.from_bytes(data[8:10], "little") for data in (packed, with_state)] == [1, 2]
    _whole(unpacking := Unpacking(tmp_path / "out"), with_state)
    assert (unpacking.folder / "checkpoint" / "arrived" / "0" / "7.state").read_bytes() == b"windows"


def test_a_host_finds_whole_guests_and_sweeps_what_crashes_have_left(tmp_path: Path, packed: bytes) -> None:
    """A host did not start again: a thread that was late had made the output of a guest anew that was just removed."""
    guests = tmp_path / ".holdfast" / "guests"
    unpacking = Unpacking(guests / ".coming")
    unpacking.feed(packed)
    _, output, waiting = unpacking.finish()
    note = GuestNote("anna:1#0", "counts", "anna")
    install_guest(guests / "anna.1.0", note, output, waiting, guests / ".coming")
    holdfast.open(guests / "anna.2.0" / "streams").create("counts", "n bigint", bucket="1s")
    (guests / ".gone-1").mkdir()
    assert guests_on(tmp_path) == [(guests / "anna.1.0", note)]
    assert [path.name for path in guests.iterdir()] == ["anna.1.0"]


def test_a_written_parcel_is_durable_with_its_name(tmp_path: Path) -> None:
    """A power cut after `write_parcel` could take the name: its folder was not synced."""
    done: list[str] = []

    class Noted(Disk):
        def sync(self, fd: int, path: Path) -> None:
            super().sync(fd, path)
            done.append("bytes")

        def rename(self, old: Path, new: Path) -> None:
            super().rename(old, new)
            done.append("rename")

        def sync_dir(self, path: Path) -> None:
            super().sync_dir(path)
            done.append(f"folder {path.name}")

    (tmp_path / "home").mkdir()
    (tmp_path / "home" / ".parcel.tmp").write_bytes(b"cut short")
    write_parcel(tmp_path / "home" / "parcel", [b"a", b"bc"], Noted())
    assert (tmp_path / "home" / "parcel").read_bytes() == b"abc"
    assert done == ["bytes", "rename", "folder home"]


@pytest.mark.parametrize(
    "path",
    ["evil.jar", "sources/0/0", "state/0/1/8.class", "offsets/7.ser", "state/x/1/8.delta", "__pycache__/a.pyc",
     "state/0/1/SSTs/1.exe"],
)  # fmt: skip
def test_a_file_that_no_checkpoint_has_is_refused_before_anything_is_written(
    tmp_path: Path, packed: bytes, path: str
) -> None:
    """X3: whatever a partner sent was laid into the checkpoint that Spark reads."""
    with pytest.raises(PeerError, match="must hold the files of a checkpoint"):
        _whole(Unpacking(tmp_path / "out"), _repacked(tmp_path, path, b"x"))
    assert not (tmp_path / "out").exists()


def _repacked(folder: Path, path: str, body: bytes) -> bytes:
    file = folder / "checkpoint" / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(body)
    definition = holdfast.open(folder / "streams").open("counts").definition
    return b"".join(pack("anna:1#0", "counts", definition, WAITING, folder / "checkpoint"))


class OneWay(io.RawIOBase):
    """What cannot go back: lengths then stand behind each file, as where Java writes."""

    def __init__(self) -> None:
        self.data = b""

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.data += bytes(data)
        return len(data)


def _zip(names: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED, *, one_way: bool = False) -> bytes:
    sink = OneWay() if one_way else io.BytesIO()
    with zipfile.ZipFile(sink, "w", method) as made:
        for name, body in names.items():
            made.writestr(name, body)
    return sink.data if isinstance(sink, OneWay) else sink.getvalue()


TWO = {"metadata": b"v1" * 900, "logs/7.log": bytes(range(256)) * 20}


def _other(honest: dict[str, bytes], streamed: bytes) -> bytes:
    """A list of harmless contents behind others, which are what Spark unpacks."""
    made = _zip(honest)
    at = made.index(b"PK\1\2")
    end = bytearray(made[at:])
    tail = end.rindex(b"PK\5\6")
    end[tail + 16 : tail + 20] = streamed.index(b"PK\1\2").to_bytes(4, "little")
    return streamed[: streamed.index(b"PK\1\2")] + bytes(end)


def _hidden(between: bytes) -> bytes:
    """Something between the files and their list, which says where it stands."""
    made = _zip({"metadata": b"v1"})
    at, tail = made.index(b"PK\1\2"), made.rindex(b"PK\5\6")
    where = (at + len(between)).to_bytes(4, "little")
    return made[:at] + between + made[at : tail + 16] + where + made[tail + 20 :]


LOCAL = _zip({"../../evil": b"x"})
LOCAL = LOCAL[: LOCAL.index(b"PK\1\2")]
ZIPS = {
    "deflated": (_zip(TWO), True),
    "stored": (_zip(TWO, zipfile.ZIP_STORED), True),
    "as Java writes it": (_zip(TWO, one_way=True), True),
    "empty": (_zip({}), True),
    "another name": (_other({"metadata": b"x"}, _zip({"../../xx": b"x"})), False),
    "another length": (_other({"metadata": b"x"}, _zip({"metadata": bytes(3 << 20)})), False),
    "another length behind": (_other({"metadata": b"x"}, _zip({"metadata": bytes(3 << 20)}, one_way=True)), False),
    "another length stored": (_other({"metadata": b"x"}, _zip({"metadata": b"xy"}, zipfile.ZIP_STORED)), False),
    "a file more": (_hidden(LOCAL), False),
    "a file less": (_other({"metadata": b"x", "more": b"x"}, _zip({"metadata": b"x"})), False),
    "bytes between": (_hidden(b"x"), False),
    "bytes before": (b"x" + _zip(TWO), False),
    "a name that ends twice": (_zip({"metadata": b"x"}).replace(b"metadata", b"ok\0/../x"), False),
    "encrypted": (_zip({"metadata": b"x"}).replace(b"PK\3\4\x14\0\0", b"PK\3\4\x14\0\1"), False),
    "cut": (_zip(TWO)[:-30], False),
}


@pytest.mark.parametrize("what", ZIPS)
def test_a_snapshot_is_judged_by_what_spark_unpacks_of_it_x5(tmp_path: Path, packed: bytes, what: str) -> None:
    """Java reads a zip from its beginning; names and lengths were taken from the list at its end."""
    body, good = ZIPS[what]
    sent = _repacked(tmp_path, "state/0/1/8.zip", body)
    if good:
        _whole(Unpacking(tmp_path / "out"), sent)
        return
    with pytest.raises(PeerError, match="does not look like what Spark writes"):
        _whole(Unpacking(tmp_path / "out"), sent)


def test_a_snapshot_with_any_byte_changed_never_says_something_else_than_spark_unpacks(tmp_path: Path) -> None:
    chance, path = random.Random(3), tmp_path / "8.zip"
    for body in (_zip(TWO), _zip(TWO, one_way=True)):
        for _ in range(300):
            changed_body = bytearray(body)
            changed_body[chance.randrange(len(body))] ^= 1 << chance.randrange(8)
            path.write_bytes(changed_body)
            try:
                right = parcel_files._snapshot(path)
            except parcel_files._UNREADABLE:
                continue
            with zipfile.ZipFile(path) as made:
                assert not right or [f.file_size for f in made.infolist()] == [1800, 5120]


_CONF = "spark.sql.streaming.stateStore."
SETTINGS = {
    "known ones": (
        {
            f"{_CONF}compression.codec": "ZSTD", "spark.sql.shuffle.partitions": "200",
            "spark.sql.streaming.join.stateFormatVersion": "2", "spark.sql.streaming.multipleWatermarkPolicy": "min",
        },
        True,
    ),
    "a class as codec": ({f"{_CONF}compression.codec": "evil.Codec"}, False),
    "a class without a package": ({f"{_CONF}compression.codec": "Codec"}, False),
    "a setting that offsets do not carry": ({"spark.sql.extensions": "evil.Extensions"}, False),
    "a million tasks": ({"spark.sql.shuffle.partitions": "1000000"}, False),
    "no task": ({"spark.sql.shuffle.partitions": "0"}, False),
    "no text": ({f"{_CONF}compression.codec": ["lz4"]}, False),
}  # fmt: skip


@pytest.mark.parametrize("what", SETTINGS)
def test_offsets_bring_no_setting_that_is_not_known_with_its_values_x3(
    tmp_path: Path, packed: bytes, what: str
) -> None:
    """Spark takes them over, and loads a codec by the name of its class."""
    settings, good = SETTINGS[what]
    sent = _repacked(tmp_path, "offsets/7", OFFSETS.replace(b"{}", msgspec.json.encode(settings)))
    if good:
        _whole(Unpacking(tmp_path / "out"), sent)
        return
    with pytest.raises(PeerError, match="does not look like what Spark writes"):
        _whole(Unpacking(tmp_path / "out"), sent)


@pytest.mark.parametrize(
    "body",
    [OFFSETS.replace(b'"conf":{}', b'"conf":{"%s":"evil.Codec"},"conf":{}' % f"{_CONF}compression.codec".encode()),
     OFFSETS.replace(b"v1\n", b'v1\x0b\n'), OFFSETS.replace(b'{"batch', b'{}\x0b{"batch'),
     OFFSETS.replace(b'"conf":{}', b'"conf":null'), b'v1\n[]\n{"position":7}'],
)  # fmt: skip
def test_offsets_that_spark_might_read_otherwise_are_refused_x3(tmp_path: Path, packed: bytes, body: bytes) -> None:
    """A key that comes twice; an end of a line that only Python knows."""
    with pytest.raises(PeerError, match="does not look like what Spark writes"):
        _whole(Unpacking(tmp_path / "out"), _repacked(tmp_path, "offsets/7", body))


OTHER_CLASS = OFFSETS.replace(b"{}", b'{"spark.sql.streaming.stateStore.providerClass":"evil.Provider"}')
ROCKS = OFFSETS.replace(
    b"{}",
    b'{"spark.sql.streaming.stateStore.providerClass":'
    b'"org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"}',
)


@pytest.mark.parametrize(
    ("path", "body", "good"),
    [("offsets/7", OFFSETS, True), ("offsets/7", ROCKS, True), ("offsets/7", OTHER_CLASS, False),
     ("offsets/7", b"v1", False), ("offsets/7", b"v1\n" + b"[" * 5000, False), ("commits/7", b"\xac\xed\0\5", False),
     ("metadata", b"[]", False), ("state/0/1/8.delta", b"\xac\xed\0\5sr", False),
     ("identity", seal(Identity(("a",))), True), ("identity", b"{}", False),
     ("state/0/1/8.zip", _zip({"metadata": b"v1", "CURRENT": b"x"}), True),
     ("state/0/1/8.zip", _zip({"../../x": b"v1"}), False), ("state/0/1/8.zip", b"PK", False),
     ("state/0/1/SSTs/0-a.sst", b"x" * 40, False), ("state/0/1/SSTs/0-a.sst", b"x" + parcel_files._TABLE, True)],
)  # fmt: skip
def test_a_file_that_does_not_look_like_what_spark_writes_is_refused(
    tmp_path: Path, packed: bytes, path: str, body: bytes, good: bool
) -> None:
    """X3: offsets name the class that keeps state; Spark loads it by that name."""
    sent = _repacked(tmp_path, path, body)
    if good:
        _whole(Unpacking(tmp_path / "out"), sent)
        return
    with pytest.raises(PeerError, match="does not look like what Spark writes"):
        _whole(Unpacking(tmp_path / "out"), sent)


def test_what_a_moved_query_computes_is_compared_where_it_arrives(tmp_path: Path, packed: bytes) -> None:
    """C12: the note travels with the checkpoint that it is of."""
    _whole(Unpacking(tmp_path / "out"), _repacked(tmp_path, "identity", seal(Identity(("a window of 10 s",)))))
    assert changed(tmp_path / "out" / "checkpoint", Identity(("a window of 20 s",)))


def test_a_snapshot_that_becomes_a_thousand_times_larger_is_refused(
    tmp_path: Path, packed: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X4"""
    monkeypatch.setattr(parcel_files, "_STATE_MAX", 1 << 20)
    sent = _repacked(tmp_path, "state/0/1/8.zip", _zip({"1.sst": bytes(2 << 20)}))
    with pytest.raises(PeerError, match="does not look like what Spark writes"):
        _whole(Unpacking(tmp_path / "out"), sent)
