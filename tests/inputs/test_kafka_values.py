"""Records of a topic into rows, without a broker: encodings, parts of a record, what does not fit."""

from __future__ import annotations

import io
import json
import shutil
import ssl
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

import holdfast
from holdfast.inputs.kafka import KafkaSource, kafka
from holdfast.inputs.kafka_records import Records
from holdfast.inputs.typed_json import Misread, typed_json
from holdfast.model.errors import PeerError, UsageError
from holdfast.model.schema import parse_schema
from tests.inputs.kafka_server import make_authority, make_server_keys

fastavro = pytest.importorskip("fastavro", reason="fastavro is not installed; the extra [kafka] brings it")


class Record(NamedTuple):
    """What the client library gives, as far as it is asked for."""

    body: bytes | None
    at: int = 0
    name: bytes | None = None
    notes: Any = None
    ms: int = 1000

    def key(self) -> bytes | None:
        return self.name

    def value(self) -> bytes | None:
        return self.body

    def partition(self) -> int:
        return 3

    def offset(self) -> int:
        return self.at

    def timestamp(self) -> tuple[int, int]:
        return (1, self.ms)

    def headers(self) -> Any:
        return self.notes


def records(source: KafkaSource, columns: str) -> Records:
    return Records(parse_schema(columns), "s", source.topic, values=source.decoder(), parts=source.parts,
                   stime=source.stime, stime_unit=source.stime_unit, tombstones=source.tombstones)  # fmt: skip


def read(source: KafkaSource, columns: str, *given: Record) -> tuple[list[dict[str, Any]], list[str]]:
    chunk, refused = records(source, columns).chunk(given)
    return chunk.rows.drop_columns(["stime"]).to_pylist(), [r.why for r in refused]


def test_json_and_the_parts_of_a_record_become_columns() -> None:
    source = kafka("b:1", topic="t", columns={"key": "who", "headers": "notes", "partition": "p", "offset": "o",
                                              "topic": "from", "timestamp": "ts"})  # fmt: skip
    rows, refused = read(source, "n bigint, who string, notes map<string, binary>, p int, o bigint, from string, "
                         "ts timestamp", Record(b'{"n": 1}', 7, b"ann", [("trace", b"\x01")]))  # fmt: skip
    assert refused == []
    at = datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
    assert rows == [{"n": 1, "who": "ann", "notes": [("trace", b"\x01")], "p": 3, "o": 7, "from": "t", "ts": at}]


def test_what_does_not_fit_is_given_back_and_the_others_go_on() -> None:
    given = (
        Record(b'{"n": 1}', 0),
        Record(b'{"n": 1.5}', 1),
        Record(b'{"m": 1}', 2),
        Record(b"", 3),
        Record(b'{"n": 2}', 4),
    )
    rows, refused = read(kafka("b:1", topic="t"), "n bigint", *given)
    assert rows == [{"n": 1}, {"n": 2}]
    assert [why.partition(":")[0] for why in refused] == [f"topic t partition 3 offset {n}" for n in (1, 2, 3)]
    rows, refused = read(kafka("b:1", topic="t", extra="ignore"), "n bigint", *given)
    assert rows == [{"n": 1}, {"n": None}, {"n": 2}]
    assert len(refused) == 2


def test_a_key_that_is_no_text_is_refused_by_a_column_of_text() -> None:
    source = kafka("b:1", topic="t", columns={"key": "who"})
    rows, refused = read(source, "n bigint, who string", Record(b"{}", 0, b"\xff"), Record(b"{}", 1, b"ann"))
    assert rows == [{"n": None, "who": "ann"}]
    assert "its key must be text" in refused[0]


def test_with_columns_nothing_is_decoded() -> None:
    source = kafka("b:1", topic="t", value="columns")
    rows, _ = read(
        source, "key binary, value binary, offset bigint", Record(b"\x00\xff", 5, None), Record(None, 6, b"k")
    )
    assert rows == [{"key": None, "value": b"\x00\xff", "offset": 5}, {"key": b"k", "value": None, "offset": 6}]
    with pytest.raises(UsageError, match="its columns must be parts of a record"):
        records(source, "n bigint")


@pytest.mark.parametrize(("kind", "first", "last"), [("binary", b"a", b"b"), ("string", "a", "b")])
def test_headers_that_repeat_a_name_are_all_in_an_array_and_the_last_in_a_map(kind: str, first: Any, last: Any) -> None:
    source = kafka("b:1", topic="t", columns={"headers": "notes"})
    given = Record(b'{"n": 1}', notes=[("trace", b"a"), ("tag", None), ("trace", b"b")])
    rows, refused = read(source, f"n bigint, notes array<struct<key: string, value: {kind}>>", given, Record(b"{}", 1))
    pairs = [("trace", first), ("tag", None), ("trace", last)]
    assert refused == []
    assert rows == [{"n": 1, "notes": [{"key": k, "value": v} for k, v in pairs]}, {"n": None, "notes": []}]
    rows, _ = read(source, f"n bigint, notes map<string, {kind}>", given)
    assert rows == [{"n": 1, "notes": [("trace", last), ("tag", None)]}]
    for other in ("array<string>", "array<struct<value: binary, key: string>>", "array<struct<key: string>>"):
        with pytest.raises(UsageError, match="use array<struct<key: string, value: binary>>"):
            records(source, f"n bigint, notes {other}")


def test_a_record_without_a_timestamp_has_null_for_it_and_cannot_be_filed_by_it() -> None:
    """It was the last millisecond of 1969."""
    source = kafka("b:1", topic="t", stime="n", stime_unit="s", columns={"timestamp": "ts"})
    rows, refused = read(source, "n bigint, ts timestamp", Record(b'{"n": 1}', ms=-1), Record(b'{"n": 2}', 1, ms=0))
    assert refused == []
    assert rows == [{"n": 1, "ts": None}, {"n": 2, "ts": datetime(1970, 1, 1, tzinfo=UTC)}]
    rows, refused = read(kafka("b:1", topic="t"), "n bigint", Record(b'{"n": 1}', ms=-1), Record(b'{"n": 2}', 1))
    assert rows == [{"n": 2}]
    assert ["must have a timestamp" in why and "got none" in why for why in refused] == [True]


def test_stime_is_the_timestamp_or_a_column() -> None:
    chunk, _ = records(kafka("b:1", topic="t"), "n bigint").chunk([Record(b"{}", ms=1234)])
    assert chunk.stimes.tolist() == [1_234_000]
    source = kafka("b:1", topic="t", stime="n", stime_unit="s")
    chunk, refused = records(source, "n bigint").chunk([Record(b'{"n": 9}'), Record(b"{}", 1), Record(None, 2)])
    assert chunk.stimes.tolist() == [9_000_000]
    assert len(refused) == 2
    with pytest.raises(UsageError, match="stime must be 'timestamp' or one of"):
        records(kafka("b:1", topic="t", stime="m"), "n bigint")


SCHEMA = {
    "type": "record", "name": "Order",
    "fields": [
        {"name": "n", "type": ["null", "long"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
    ],
}  # fmt: skip
ORDER = {"n": 7, "at": datetime(2026, 3, 1, tzinfo=UTC), "price": Decimal("1.25")}
ORDERS = "n bigint, at timestamp, price decimal(9,2)"


def avro(value: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(SCHEMA), value)
    return out.getvalue()


def test_avro_with_a_schema_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "order.avsc").write_text(json.dumps(SCHEMA))
    for schema in (SCHEMA, json.dumps(SCHEMA), tmp_path / "order.avsc"):
        source = kafka("b:1", topic="t", value="avro", avro_schema=schema)
        rows, refused = read(
            source, ORDERS, Record(avro(ORDER)), Record(avro(ORDER)[:-1], 1), Record(avro(ORDER) + b"x", 2)
        )
        assert rows == [ORDER]
        assert ["must be Avro" in why for why in refused] == [True, True]
    (tmp_path / "binary.avsc").write_bytes(b"\xff\x00")
    for wrong in ("none.avsc", "no\0name", tmp_path / "binary.avsc"):
        with pytest.raises(UsageError, match="must be a file or JSON"):
            read(kafka("b:1", topic="t", value="avro", avro_schema=wrong), ORDERS)
    with pytest.raises(UsageError, match="needs avro_schema= or registry="):
        kafka("b:1", topic="t", value="avro")


def row(field: Any) -> dict[str, Any]:
    return {"type": "record", "name": "Row", "fields": [{"name": "v", "type": field}]}


def test_an_avro_schema_by_which_a_short_record_could_end_the_process_is_refused() -> None:
    """Followed as deep as a record says, the first one was a segmentation fault; the second an array without an end."""
    twice: list[Any] = [{"name": "v0", "type": {"type": "record", "name": "R0", "fields": []}}]
    for n in range(1, 40):
        fields = [{"name": name, "type": f"R{n - 1}"} for name in "ab"]
        twice.append({"name": f"v{n}", "type": {"type": "record", "name": f"R{n}", "fields": fields}})
    inner = {"type": "record", "name": "In", "fields": [{"name": "w", "type": "Row"}]}
    for schema, why in (
        (row(["null", "Row"]), "must not hold itself"),
        (row({"type": "map", "values": inner}), "must not hold itself"),
        (row({"type": "array", "items": "null"}), "must take a byte each"),
        ({"type": "record", "name": "Row", "fields": twice}, "parts at most"),
        (row({"type": "bytes", "logicalType": "decimal", "precision": 10**6}), "precision from 1 to 1000"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=why):
            read(kafka("b:1", topic="t", value="avro", avro_schema=schema), "v string", Record(b""))


def test_an_avro_decimal_with_more_digits_than_declared_is_refused_at_once_and_not_rounded() -> None:
    """The library rounds it, and took minutes over one of a megabyte, which is a record that Kafka lets pass."""
    schema = row({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2})
    source = kafka("b:1", topic="t", value="avro", avro_schema=schema)

    def unscaled(number: int) -> bytes:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, "bytes", number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True))
        return out.getvalue()

    numbers = (9999, -9999, 10_000, 12_345, 1 << 8_000_000)
    rows, refused = read(source, "v decimal(10,2)", *(Record(unscaled(n), i) for i, n in enumerate(numbers)))
    assert rows == [{"v": Decimal("99.99")}, {"v": Decimal("-99.99")}]
    assert ["4 digits at most" in why for why in refused] == [True, True, True]


class SchemaServer(HTTPServer):
    """A registry that has what it was given, for those who know the word."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answers: dict[str, Any] = {"/schemas/ids/5": {"schema": json.dumps(SCHEMA)}}
        self.word: str | None = None
        super().__init__(("127.0.0.1", 0), _Answers)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def has(self, path: str, schema: Any, *references: str) -> None:
        """`references`: subjects, each in its version 1."""
        named = [{"name": subject, "subject": subject, "version": 1} for subject in references]
        self.answers[path] = {"schema": json.dumps(schema), "references": named}


class _Answers(BaseHTTPRequestHandler):
    server: SchemaServer

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        answer = self.server.answers.get(self.path)
        refused = self.server.word not in (None, self.headers.get("Authorization"))
        self.send_response(401 if refused else 404 if answer is None else 200)
        self.end_headers()
        self.wfile.write(answer if isinstance(answer, bytes) else json.dumps(answer or {}).encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def registry() -> Iterator[SchemaServer]:
    server = SchemaServer()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


CUSTOMER = {"type": "record", "name": "Customer", "namespace": "shop", "fields": [{"name": "who", "type": "string"}]}
SALE = {"type": "record", "name": "Sale", "namespace": "shop",
        "fields": [{"name": "n", "type": "long"}, {"name": "buyer", "type": "Customer"}]}  # fmt: skip


def test_a_schema_of_a_registry_may_take_types_from_others_and_they_from_others(registry: SchemaServer) -> None:
    registry.has("/schemas/ids/5", SALE, "shop.Customer")
    registry.has("/schemas/ids/6", ["shop.Customer", "shop.Sale"], "shop.Sale", "shop.Customer")
    registry.has("/schemas/ids/7", SALE, "shop/Nobody")
    registry.has("/schemas/ids/8", SALE, "shop.Round")
    registry.has("/subjects/shop.Customer/versions/1", CUSTOMER)
    registry.has("/subjects/shop.Sale/versions/1", SALE, "shop.Customer")
    registry.has("/subjects/shop.Round/versions/1", SALE, "shop.Round")
    source = kafka("b:1", topic="t", value="avro", registry=registry.url)
    given = [b"\x00\x00\x00\x00" + rest for rest in
             (b"\x05\x0e\x06ann", b"\x06\x02\x0e\x06ann", b"\x07\x0e\x06ann", b"\x08\x0e\x06ann")]  # fmt: skip
    rows, refused = read(
        source, "n bigint, buyer struct<who: string>", *(Record(value, at) for at, value in enumerate(given))
    )
    assert rows == [{"n": 7, "buyer": {"who": "ann"}}] * 2
    assert "offset 2: schema 7 of the registry must be Avro; it refers to version 1 of shop/Nobody" in refused[0]
    assert "/subjects/shop%2FNobody/versions/1" in registry.asked
    assert "offset 3: schema 8 of the registry must be Avro; shop.Customer" in refused[1]


@pytest.mark.parametrize(
    ("setting", "word"),
    [("basic.auth.user.info=ann:a:b", "Basic YW5uOmE6Yg=="), ("bearer.auth.token=a:b", "Bearer a:b")],
)
def test_a_registry_that_wants_a_password_gets_it_from_the_settings_alone(
    setting: str, word: str, registry: SchemaServer, tmp_path: Path
) -> None:
    registry.word, (name, _, secret) = word, setting.partition("=")
    (tmp_path / "client.properties").write_text(f"client.id=shop\nschema.registry.{setting}\n")
    source = kafka("b:1", topic="t", value="avro", registry=registry.url, config_file=tmp_path / "client.properties")
    assert source.settings() == {"client.id": "shop"}
    assert read(source, ORDERS, Record(b"\x00\x00\x00\x00\x05" + avro(ORDER)))[0] == [ORDER]
    wrong = replace(source, config={f"schema.registry.{name}": "ann:wrong"})
    with pytest.raises(UsageError, match=f"must let us in; it answers 401; .*schema.registry.{name}") as refused:
        read(wrong, ORDERS, Record(b"\x00\x00\x00\x00\x05"))
    assert not any(text in str(refused.value) + repr(source) for text in ("wrong", secret))
    with pytest.raises(UsageError, match=r"must be of schema.registry.basic.* got schema.registry.password"):
        read(replace(source, config={"schema.registry.password": "x"}), ORDERS)


def test_a_registry_that_answers_something_else_is_no_fault_of_the_record(registry: SchemaServer) -> None:
    registry.answers["/schemas/ids/5"] = b"<html>"
    source = kafka("b:1", topic="t", value="avro", registry=registry.url)
    with pytest.raises(PeerError, match="must answer with a JSON object; it answers otherwise"):
        read(source, ORDERS, Record(b"\x00\x00\x00\x00\x05"))


def test_a_registry_needs_a_certificate_that_we_trust(registry: SchemaServer, tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("making certificates needs openssl")
    ours, other = make_authority(tmp_path, "ours"), make_authority(tmp_path, "other")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(make_server_keys(tmp_path, ours))
    registry.socket = context.wrap_socket(registry.socket, server_side=True)

    def trusting(authority: Path) -> KafkaSource:
        return kafka("b:1", topic="t", value="avro", registry=registry.url.replace("http:", "https:"),
                     config={"schema.registry.ssl.ca.location": str(authority)})  # fmt: skip

    given = Record(b"\x00\x00\x00\x00\x05" + avro(ORDER))
    assert read(trusting(ours), ORDERS, given)[0] == [ORDER]
    with pytest.raises(UsageError, match=r"must have a certificate that we trust \(schema.registry.ssl.ca.location"):
        read(trusting(other), ORDERS, given)
    for wrong in (tmp_path / "none.pem", tmp_path / "ours.key"):
        with pytest.raises(UsageError, match="must be files in PEM"):
            read(trusting(wrong), ORDERS, given)


def test_avro_with_a_registry_that_is_asked_once_for_each_schema(registry: SchemaServer) -> None:
    url, asked = registry.url, registry.asked
    source = kafka("b:1", topic="t", value="avro", registry=url)
    good = b"\x00\x00\x00\x00\x05" + avro(ORDER)
    rows, refused = read(source, ORDERS, Record(good), Record(good, 1), Record(avro(ORDER), 2),
                         Record(b"\x00\x00\x00\x00\x06" + avro(ORDER), 3))  # fmt: skip
    assert rows == [ORDER, ORDER]
    assert asked == ["/schemas/ids/5", "/schemas/ids/6"]
    assert "must begin with a zero byte" in refused[0]
    assert "it has none with number 6" in refused[1]


def test_a_registry_that_is_away_is_no_fault_of_the_record() -> None:
    source = kafka("b:1", topic="t", value="avro", registry="http://127.0.0.1:1")
    with pytest.raises(PeerError, match="does not answer"):
        read(source, ORDERS, Record(b"\x00\x00\x00\x00\x05"))


def test_protocol_buffers() -> None:
    pytest.importorskip("google.protobuf")
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="order.proto", package="shop", syntax="proto3")
    message = file.message_type.add(name="Order")
    kinds = descriptor_pb2.FieldDescriptorProto
    fields = [("n", kinds.TYPE_INT64, 1), ("who", kinds.TYPE_STRING, 1), ("tags", kinds.TYPE_STRING, 3)]
    for number, (name, kind, label) in enumerate(fields, 1):
        message.field.add(name=name, number=number, type=kind, label=label)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    order = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))
    value = order(n=7, who="ann", tags=["a", "b"]).SerializeToString()
    source = kafka("b:1", topic="t", value=order)
    rows, refused = read(source, "n bigint, who string, tags array<string>", Record(value), Record(b"\xff", 1))
    assert rows == [{"n": 7, "who": "ann", "tags": ["a", "b"]}]
    assert "must be a message shop.Order" in refused[0]


@pytest.mark.parametrize("value", ["json", "columns"])
def test_a_record_whose_time_is_beyond_all_years_is_put_aside(value: Any) -> None:
    """X5: producers may write any number of 64 bits; one of these times a thousand was the year 1970."""
    source = kafka("b:1", topic="t", value=value, columns={"timestamp": "timestamp"} if value == "json" else None)
    given = [Record(b"{}", 0), Record(b"{}", 1, ms=2**62), Record(b"{}", 2, ms=2**63 - 1), Record(b"{}", 3, ms=10**15)]
    rows, refused = read(source, "timestamp timestamp", *given)
    assert rows == [{"timestamp": datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)}]
    assert len(refused) == 3
    assert all("must lie in the years 1 to 9999" in why for why in refused)
    rows, refused = read(kafka("b:1", topic="t"), "n bigint", Record(b'{"n": 1}', 1, ms=2**62))
    assert rows == []
    assert "must lie in the years 1 to 9999" in refused[0]


def test_a_time_of_protocol_buffers_beyond_all_years_is_a_bad_record() -> None:
    timestamp = pytest.importorskip("google.protobuf.timestamp_pb2")
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="at.proto", package="shop", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    file.message_type.add(name="At").field.add(name="at", number=1, type=11, type_name=".google.protobuf.Timestamp")
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    message = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.At"))
    bad, good = message(), message()
    bad.at.seconds, good.at.seconds = 2**62, 1
    given = Record(good.SerializeToString()), Record(bad.SerializeToString(), 1)
    rows, refused = read(kafka("b:1", topic="t", value=message), "at timestamp", *given)
    assert rows == [{"at": datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)}]
    assert "topic t partition 3 offset 1" in refused[0]


def test_settings_that_could_lose_records_are_refused_and_a_file_may_have_the_others(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"sets enable.auto.commit itself"):
        kafka("b:1", topic="t", config={"enable.auto.commit": "true"}).settings()
    (tmp_path / "client.properties").write_text("# of the shop\nsasl.password = a=b\n\n")
    source = kafka("b:1", topic="t", config_file=tmp_path / "client.properties")
    assert source.settings() == {"sasl.password": "a=b"}
    assert "a=b" not in repr(source)
    (tmp_path / "client.properties").write_text("oops")
    with pytest.raises(UsageError, match="line 1 must be name=value"):
        source.settings()


def test_the_quick_way_of_json_leaves_what_it_does_not_take() -> None:
    assert typed_json(parse_schema("at timestamp")) is None
    quick = typed_json(parse_schema("n tinyint, f double, s string, b boolean"))
    assert quick is not None
    arrays = quick.arrays([b'{"n": 127, "f": 1, "s": "\\u00e9", "b": true}', b"{}"])
    assert [array.to_pylist() for array in arrays] == [[127, None], [1.0, None], ["é", None], [True, None]]
    for text in (
        b'{"n": 128}',
        b'{"n": 1.0}',
        b'{"n": true}',
        b'{"f": "1"}',
        b'{"x": 1}',
        b"[1]",
        b"\xff",
        b'{"f": 1e999}',
    ):
        with pytest.raises(Misread):
            quick.arrays([text])
    strict = typed_json(pa.schema([pa.field("n", pa.int64(), nullable=False)]))
    assert strict is not None
    with pytest.raises(Misread):
        strict.arrays([b"{}"])


def test_a_topic_fills_no_stream_that_loses_offsets_with_its_machine(tmp_path: Path) -> None:
    stream = holdfast.open(tmp_path).create("s", "n bigint", persist="on_demand")
    with pytest.raises(UsageError, match="a topic of Kafka that fills it must find every tuple of stream s again"):
        kafka("broker:9092", topic="t").open(stream, tmp_path)
