"""Decoded data: values where it is what was said, and a choice where it is not."""

from __future__ import annotations

import json
from typing import Any

import msgpack
import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from tests.spark.listed_log import ListedLog
from tests.spark.test_schema import columns
from waltz.errors import ConfigurationError, CorruptionError
from waltz.spark.data_source import WaltzDataSource
from waltz.spark.decoding import RowDecoding
from waltz.spark.reader import WaltzReader
from waltz.spark.schema import record_batch
from waltz.spark.spark_options import parse_options
from waltz.types import PartitionId

ACCOUNT = StructType([StructField("account", LongType()), StructField("amount", DoubleType())])


def schema_of(data: DataType, *more: StructField) -> StructType:
    return StructType([StructField("header", IntegerType()), StructField("data", data), *more])


def decoded(
    schema: StructType, serializer: str, data: list[bytes], undecodable: str = "fail"
) -> list[dict[str, Any]]:
    decoding = RowDecoding.of(schema, serializer, undecodable)
    batch = record_batch(PartitionId(3), columns(7, data), decoding.raw)
    (found,) = decoding.apply([batch])
    assert found.schema == decoding.schema
    rows: list[dict[str, Any]] = found.to_pylist()
    return rows


GOOD = [{"account": 1, "amount": 2.5}, {"account": 2, "amount": 3}, {"account": None}, None]


@pytest.mark.parametrize(("serializer", "dump"), [("json", json.dumps), ("msgpack", msgpack.packb)])
def test_structures_are_read_by_the_schema(serializer: str, dump: Any) -> None:
    data = [each if isinstance(each := dump(one), bytes) else each.encode() for one in GOOD]
    found = decoded(schema_of(ACCOUNT), serializer, data)
    assert [row["data"] for row in found] == [
        {"account": 1, "amount": 2.5},
        {"account": 2, "amount": 3.0},
        {"account": None, "amount": None},
        None,
    ]
    assert [row["header"] for row in found] == [-7, -8, -9, -10]


def test_other_types_than_structures_are_read_too() -> None:
    data = [b"[1,2]", b"[]"]
    assert decoded(schema_of(ArrayType(LongType())), "json", data)[0]["data"] == [1, 2]
    counts = schema_of(MapType(StringType(), LongType()))
    assert decoded(counts, "json", [b'{"a":1}'])[0]["data"] == [("a", 1)]
    assert decoded(schema_of(StringType()), "string", ["ä".encode()])[0]["data"] == "ä"


BAD = [
    ("json", ACCOUNT, b"{"),
    ("json", ACCOUNT, b"\xff"),
    ("json", ACCOUNT, b'{"account": "x"}'),
    ("json", ACCOUNT, b"[1]"),
    ("msgpack", ACCOUNT, b"\xc1"),
    ("string", StringType(), b"\xff\xfe"),
]


@pytest.mark.parametrize(("serializer", "kind", "bad"), BAD)
def test_what_cannot_be_decoded_names_partition_and_transaction(
    serializer: str, kind: DataType, bad: bytes
) -> None:
    good = {"json": b"{}", "msgpack": b"\x80", "string": b"a"}[serializer]
    with pytest.raises(
        CorruptionError,
        match=f"^WALTZ-2014 partition 3, transaction 8: data is not {serializer} of ",
    ):
        decoded(schema_of(kind), serializer, [good, bad, good])


@pytest.mark.parametrize(("serializer", "kind", "bad"), BAD)
def test_or_becomes_null_or_is_set_apart(serializer: str, kind: DataType, bad: bytes) -> None:
    good = {"json": b"{}", "msgpack": b"\x80", "string": b"a"}[serializer]
    found = decoded(schema_of(kind), serializer, [good, bad], "null")
    assert [row["data"] is None for row in found] == [False, True]
    apart = schema_of(kind, StructField("undecodable", BinaryType()))
    found = decoded(apart, serializer, [good, bad], "quarantine")
    assert [row["data"] is None for row in found] == [False, True]
    assert [row["undecodable"] for row in found] == [None, bad]


def test_a_schema_that_does_not_go_with_the_options_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"^WALTZ-1004 undecodable=quarantine needs a col"):
        RowDecoding.of(schema_of(ACCOUNT), "json", "quarantine")
    with pytest.raises(ConfigurationError, match=r"^WALTZ-1004 column data is bigint; serializer="):
        RowDecoding.of(schema_of(LongType()), "string", "fail")
    with pytest.raises(ConfigurationError, match=r"^WALTZ-1004 the schema asks for undecodable"):
        RowDecoding.of(schema_of(ACCOUNT, StructField("undecodable", BinaryType())), "json", "null")


def test_a_read_without_a_schema_knows_strings_only() -> None:
    source = WaltzDataSource({"serializer": "string", "undecodable": "quarantine"})
    assert source.schema().simpleString() == (
        "struct<partition:int,transaction_id:bigint,request_id:binary,header:int,data:string,"
        "undecodable:binary>"
    )
    with pytest.raises(ConfigurationError, match=r"^WALTZ-1003 option serializer is 'json': the"):
        WaltzDataSource({"serializer": "json"}).schema()
    with pytest.raises(ConfigurationError, match=r"^WALTZ-1003 option serializer is 'xml'; "):
        parse_options({"cluster": "127.0.0.1:7100", "serializer": "xml"})


def test_a_reader_decodes_what_it_reads() -> None:
    schema = StructType([StructField("data", ACCOUNT)])
    options = parse_options({"cluster": "127.0.0.1:7100", "serializer": "json"})
    decoding = RowDecoding.of(schema, options.serializer, options.undecodable)
    log = ListedLog([b'{"account":1}', b'{"account":2}'])
    source = WaltzReader(options, decoding.raw, log.open, decoding=decoding)
    found = pa.Table.from_batches(
        [batch for task in source.partitions() for batch in source.read(task)]
    )
    assert found.column("data").to_pylist() == [
        {"account": 1, "amount": None},
        {"account": 2, "amount": None},
    ]
