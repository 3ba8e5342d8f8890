"""Schemas by header: which there are, what data says by them, and data that says nothing."""

from __future__ import annotations

import io
import json
import sqlite3
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final

import fastavro
import msgpack
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, timestamp_pb2
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from pyspark.sql import types as spark_types
from pyspark.sql.types import DataType, StructType

import waltz
from tests.clusters import running_cluster
from waltz.errors import ConfigurationError, CorruptionError
from waltz.spark.pipelines.definition import parse_definition
from waltz.spark.pipelines.derived import take_in
from waltz.spark.pipelines.proof import verify
from waltz.spark.pipelines.schemas import (
    BODY,
    CAUSE,
    JSON_ONLY,
    SCHEMA_BYTES_MAX,
    Decoded,
    Schema,
    decoder_of,
    parse_schemas,
    shaped,
)
from waltz.spark.pipelines.tables import TablesDefinition, parse_tables
from waltz.spark.tasks import LogAccess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ORDER: Final[dict[str, Any]] = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "account", "type": "long"},
        {"name": "amount", "type": ["null", "long"]},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 6}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
    ],
}
AVRO: Final = Schema("avro", json.dumps(ORDER).encode())
FIELDS: Final = (
    "account bigint, amount bigint, price decimal(6,0), at timestamp, tags array<string>"
)
TYPES: Final[dict[str, DataType]] = {
    "int": spark_types.IntegerType(),
    "bigint": spark_types.LongType(),
    "string": spark_types.StringType(),
    "timestamp": spark_types.TimestampType(),
    "decimal(6,0)": spark_types.DecimalType(6, 0),
    "array<string>": spark_types.ArrayType(spark_types.StringType()),
}
"""The type of each name, as Spark parses it, without a Spark."""

AT: Final = datetime(2026, 11, 26, 10, tzinfo=UTC)


def packed(values: dict[str, Any]) -> bytes:
    return bytes(msgpack.packb(values))


def avro_of(values: dict[str, Any]) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(ORDER), values)
    return stream.getvalue()


def an_order(account: int, amount: int | None) -> dict[str, Any]:
    return {
        "account": account,
        "amount": amount,
        "price": Decimal(-12),
        "at": AT,
        "tags": ["new", "ö"],
    }


def descriptors() -> bytes:
    """Return what protoc writes for a message with an enumeration, a map and a time."""
    found = descriptor_pb2.FileDescriptorSet()
    timestamp_pb2.DESCRIPTOR.CopyToProto(found.file.add())
    file = found.file.add(name="shop.proto", package="shop", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    state = file.enum_type.add(name="State")
    state.value.add(name="OPEN", number=0)
    state.value.add(name="PAID", number=1)
    order = file.message_type.add(name="Order")
    kinds = descriptor_pb2.FieldDescriptorProto
    for number, (name, kind, type_name) in enumerate(
        (
            ("account", kinds.TYPE_INT64, None),
            ("state", kinds.TYPE_ENUM, ".shop.State"),
            ("at", kinds.TYPE_MESSAGE, ".google.protobuf.Timestamp"),
            ("amount", kinds.TYPE_SINT64, None),
            ("tags", kinds.TYPE_STRING, None),
            ("big", kinds.TYPE_UINT64, None),
        ),
        1,
    ):
        field = order.field.add(name=name, number=number, type=kind)
        field.label = kinds.LABEL_REPEATED if name == "tags" else kinds.LABEL_OPTIONAL
        if type_name is not None:
            field.type_name = type_name
        if name == "amount":
            order.oneof_decl.add(name="_amount")
            field.proto3_optional, field.oneof_index = True, 0
    return bytes(found.SerializeToString())


PROTOBUF: Final = Schema("protobuf", descriptors(), "shop.Order")


def protobuf_of(**values: Any) -> bytes:
    pool = DescriptorPool()
    for each in descriptor_pb2.FileDescriptorSet.FromString(descriptors()).file:
        pool.AddSerializedFile(each.SerializeToString())
    message = GetMessageClass(pool.FindMessageTypeByName("shop.Order"))(**values)
    found = message.SerializeToString()
    assert isinstance(found, bytes)
    return found


def of(
    schema: Schema, data: bytes | None, fields: str = FIELDS
) -> tuple[dict[str, Any] | None, str]:
    """Return what a task makes of data of header 7: the values, or the cause."""
    kinds = StructType()
    for each in fields.split(", "):
        name, kind = each.split(" ")
        kinds.add(name, TYPES[kind])
    task = Decoded(((7, schema),), kinds, frozenset({0}))
    batch = pa.record_batch(
        {"header": pa.array([7], pa.int32()), "data": pa.array([data], pa.binary())}
    )
    (found,) = task([batch])
    return found.column(BODY)[0].as_py(), found.column(CAUSE)[0].as_py() or ""


def test_avro_is_decoded_into_the_fields() -> None:
    values, cause = of(AVRO, avro_of(an_order(5, None)))
    assert (values, cause) == (an_order(5, None), "")


def test_fields_that_nobody_wants_are_left_out() -> None:
    assert of(AVRO, avro_of(an_order(5, 3)), "amount int") == ({"amount": 3}, "")


def test_protobuf_is_decoded_into_the_fields() -> None:
    data = protobuf_of(account=5, state=1, at=datetime(1970, 1, 1, 0, 0, 7, tzinfo=UTC), tags=["a"])
    fields = "account bigint, state string, at timestamp, amount bigint, tags array<string>"
    expected = {
        "account": 5,
        "state": "PAID",
        "at": datetime(1970, 1, 1, 0, 0, 7, tzinfo=UTC),
        "amount": None,  # has presence, and is not there
        "tags": ["a"],
    }
    assert of(PROTOBUF, data, fields) == (expected, "")
    assert of(PROTOBUF, data, "state int") == ({"state": 1}, "")


def test_message_pack_is_decoded_into_the_fields() -> None:
    data = packed({"account": 5, "tags": ["a"], "more": {"x": 1}})
    values, cause = of(Schema("msgpack"), data)
    assert (values, cause) == (
        {"account": 5, "amount": None, "price": None, "at": None, "tags": ["a"]},
        "",
    )


def test_data_that_says_something_else_has_a_cause() -> None:
    order = avro_of(an_order(5, 3))
    for schema, data, fields, cause in (
        (AVRO, order[:-1], FIELDS, "not avro: the data ends within a value"),
        (AVRO, order + b"\0\0", FIELDS, "not avro: 2 bytes are left over"),
        (AVRO, None, FIELDS, "not avro: the data ends within a value"),
        (AVRO, order, "account string", "not avro: account is int 5; expected string"),
        (AVRO, order, "at bigint", "not avro: at is datetime; expected int64"),
        (PROTOBUF, b"\x08", "account bigint", "not protobuf: "),
        (PROTOBUF, protobuf_of(state=9), "state string", "not protobuf: state is 9, which State"),
        (PROTOBUF, protobuf_of(big=2**63), "big bigint", ""),
        (Schema("msgpack"), b"\xc1", FIELDS, "not msgpack: "),
        (Schema("msgpack"), b"\x01", FIELDS, "not msgpack: the data is int 1; expected named"),
        (Schema("msgpack"), packed({"at": 5}), FIELDS, "not msgpack: at is int 5; expected"),
        (Schema("msgpack"), packed({"account": 2**63}), FIELDS, ""),
    ):
        values, found = of(schema, data, fields)
        assert values is None
        assert found.startswith(cause)
        assert found


def test_a_header_without_a_schema_has_a_cause() -> None:
    task = Decoded(((7, AVRO),), StructType().add("account", "long"), frozenset({0}))
    batch = pa.record_batch(
        {"header": pa.array([0, 9], pa.int32()), "data": pa.array([b"{}", b"{}"], pa.binary())}
    )
    (found,) = task([batch])
    assert found.column(CAUSE).to_pylist() == [None, "no schema for header 9"]


def test_hostile_data_ends_with_values_or_a_cause() -> None:
    random = Random(7)
    order = avro_of(an_order(5, 3))
    lengths = [b"\xff\xff\xff\xff\xff\xff\xff\xff\x7f", b"\x80\x80\x80\x80\x80\x80\x80\x80\x01"]
    nested = [
        b"\x91" * 1_000_000,
        b"\x81\xa1a" * 300_000,
        b"\xdd\xff\xff\xff\xff",
        b"\xdf" + b"\xff" * 4,
    ]
    for data in (
        *nested,
        *(order[:cut] + each + order[cut:] for each in lengths for cut in range(len(order))),
        *(random.randbytes(random.randrange(60)) for _ in range(500)),
    ):
        for schema in (AVRO, PROTOBUF, Schema("msgpack")):
            fields = FIELDS if schema is not PROTOBUF else "account bigint, tags array<string>"
            values, cause = of(schema, data, fields)
            assert (values is None) == bool(cause)


def test_a_decimal_of_many_bytes_is_not_computed() -> None:
    order = avro_of(an_order(5, 3))
    at = order.index(b"\x02\xf4")
    length = b"\x80\x89\x7a"  # a million bytes
    values, cause = of(AVRO, order[:at] + length + b"\x7f" * 1_000_000 + order[at + 2 :])
    assert values is None
    assert cause == "not avro: a decimal of 6 digits has 1000000 bytes"


def test_a_type_that_contains_itself_or_items_without_bytes_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "list.avsc"
    tree = {
        "type": "record",
        "name": "Node",
        "namespace": "a",
        "fields": [{"name": "next", "type": ["null", "Node"]}],
    }
    nothing = {"type": "array", "items": {"type": "record", "name": "E", "fields": []}}
    zeros = {"type": "record", "name": "Z", "fields": [{"name": "all", "type": nothing}]}
    for schema, fault in (
        (tree, r"^WALTZ-1007 decode: schemas: 7: a.Node contains itself"),
        (zeros, r"^WALTZ-1007 decode: schemas: 7: an array has items of no bytes"),
        ({"type": "array", "items": "long"}, "schemas: 7: the Avro schema is no record"),
        ({"type": "row", "name": "A", "fields": []}, "schemas: 7: not an Avro schema: "),
    ):
        path.write_text(json.dumps(schema))
        with pytest.raises(ConfigurationError, match=fault):
            parse_schemas({7: {"avro": "list.avsc"}}, tmp_path)


def test_a_mistake_is_named(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b" " * (SCHEMA_BYTES_MAX + 1))
    (tmp_path / "order.desc").write_bytes(descriptors())
    (tmp_path / "bad.desc").write_bytes(b"\x08")
    given: dict[Any, Any]
    for given, fault in (
        ({}, "decode: schemas is empty"),
        ({"seven": "json"}, "the header 'seven'; expected a number of 32 bits, or others"),
        ({2**31: "json"}, "the header 2147483648; expected a number of 32 bits"),
        ({True: "json"}, "the header True"),
        ({7: "xml"}, "schemas: 7 is 'xml'; expected json, msgpack"),
        ({7: {"protobuf": "order.desc"}}, "schemas: 7 is "),
        ({7: {"avro": "none.avsc"}}, "cannot read .*none.avsc: No such file"),
        ({7: {"avro": "large"}}, "large has more than 4,194,304 bytes"),
        ({7: {"protobuf": "order.desc", "message": "shop.Odrer"}}, "no message 'shop.Odrer' in"),
        ({7: {"protobuf": "bad.desc", "message": "shop.Order"}}, "not a set of descriptors"),
    ):
        with pytest.raises(ConfigurationError, match=fault):
            parse_schemas(given, tmp_path)
    decode = {"schemas": {7: {"protobuf": "order.desc", "message": "shop.Order"}}}
    tables = {"t": {"keys": ["a"], "measures": {"n": "count(*)"}}}
    for more, fault in (
        ({"fields": {"payer": "bigint"}}, "field payer is in none of the schemas"),
        ({}, "schemas without fields"),
        ({"fields": {"a": "int"}, "schemas": "json"}, "schemas is 'json'; expected a format for"),
    ):
        with pytest.raises(ConfigurationError, match=fault):
            parse_tables(tables, {**decode, **more}, tmp_path)


def test_a_changed_file_is_a_changed_definition_and_no_schemas_are_what_was_before(
    tmp_path: Path,
) -> None:
    def defined(**decode: Any) -> TablesDefinition:
        tables = {"t": {"keys": ["account"], "measures": {"n": "count(*)"}}}
        return parse_tables(tables, {"fields": {"account": "bigint"}, **decode}, tmp_path)

    plain = json.loads(defined().fingerprint())
    assert plain["decoding"] == {"fields": [["account", "bigint"]], "quarantine": False}
    assert defined(schemas={"others": "json"}).decoding.schemas == JSON_ONLY
    path = tmp_path / "order.avsc"
    path.write_bytes(AVRO.content)
    before = defined(schemas={0: "json", 7: {"avro": "order.avsc"}}).fingerprint()
    assert before == defined(schemas={7: {"avro": "order.avsc"}, 0: "json"}).fingerprint()
    path.write_bytes(AVRO.content + b"\n")
    assert before != defined(schemas={0: "json", 7: {"avro": "order.avsc"}}).fingerprint()


def test_a_map_is_one_by_its_names() -> None:
    kind = pa.map_(pa.string(), pa.int64())
    assert pa.array([shaped({"a": 1}, kind, "")], kind).to_pylist() == [[("a", 1)]]
    with pytest.raises(ValueError, match=r"the data is bool; expected|bool True; expected int64"):
        shaped(True, pa.int64(), "")


def test_a_decoder_of_a_missing_library_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "fastavro", None)
    with pytest.raises(ConfigurationError, match=r"fastavro is missing: run `pip install '.\[avro"):
        decoder_of(AVRO)


FILE: Final = """\
pipeline: tables
cluster: {cluster}
target: tables.db
transactionsPerBatch: 9
decode:
  fields: {{account: bigint, amount: bigint}}
  schemas:
    0: json
    6: msgpack
    7: {{avro: order.avsc}}
    8: {{protobuf: order.desc, message: shop.Order}}
  undecodable: {undecodable}
tables:
  balances:
    keys: [account]
    measures: {{balance: sum(amount), moves: count(*)}}
  headers:
    keys: [header]
    measures: {{transactions: count(*)}}
"""


@pytest.mark.spark
@pytest.mark.processes
def test_tables_are_made_of_all_schemas_and_proven(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "order.avsc").write_bytes(AVRO.content)
    (tmp_path / "order.desc").write_bytes(descriptors())
    expected: dict[int, tuple[int, int]] = {}
    bad = [(0, b"{"), (6, b"\xc1"), (7, b"\x05"), (8, b"\x08"), (9, b"{}")]
    with running_cluster(tmp_path / "data", "--partitions", "1") as running:
        cluster = running.coordinator
        with waltz.open_client(cluster, waltz.NoCallbacks()) as client:
            for number in range(24):
                account, amount, header = number % 3, number * 7 - 50, (0, 6, 7, 8)[number % 4]
                values = {"account": account, "amount": amount}
                data = {
                    0: json.dumps(values).encode(),
                    6: packed(values),
                    7: avro_of(an_order(account, amount)),
                    8: protobuf_of(**values),
                }[header]
                client.append(0, data, header=header)
                balance, moves = expected.get(account, (0, 0))
                expected[account] = (balance + amount, moves + 1)
            for header, data in bad:
                client.append(0, data, header=header)
        text = FILE.format(cluster=cluster, undecodable="quarantine")
        definition = parse_definition(text, directory=tmp_path)
        assert take_in(spark, LogAccess(cluster), definition).undecodable == len(bad)
        proven = verify(spark, LogAccess(cluster), definition)
        assert (proven.transactions, proven.undecodable, proven.differences) == (29, 5, ())
        with sqlite3.connect(definition.target) as database:
            rows = database.execute("SELECT account, balance, moves FROM balances").fetchall()
            assert {row[0]: row[1:] for row in rows} == expected
            found = database.execute("SELECT header, transactions FROM headers ORDER BY 1")
            assert found.fetchall() == [(0, 6), (6, 6), (7, 6), (8, 6)]
            aside = database.execute("SELECT transaction_id, header, data FROM waltz_undecodable")
            assert aside.fetchall() == [(24 + at, *each) for at, each in enumerate(bad)]
        definition.target.unlink()
        text = FILE.format(cluster=cluster, undecodable="fail").replace("0: json", "0: msgpack")
        with pytest.raises(
            CorruptionError,
            match=r"^WALTZ-2014 partition 0, transaction 0, and \d more, header 0: the data is b'.*"
            r"not msgpack: ",
        ):
            take_in(spark, LogAccess(cluster), parse_definition(text, directory=tmp_path))
