"""Rows of a sink: what columns it takes, and how what is wrong is named."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from waltz import PartitionLocalLock
from waltz.errors import ConfigurationError
from waltz.spark.sink_rows import SinkRow, check_sink_schema, content_digest, sink_rows

LOCKS = pa.list_(pa.struct([("name", pa.string()), ("id", pa.int64())]))


TYPES: dict[str, DataType] = {
    "int": IntegerType(),
    "bigint": LongType(),
    "string": StringType(),
    "binary": BinaryType(),
    "locks": ArrayType(
        StructType([StructField("name", StringType(), False), StructField("id", LongType())])
    ),
    "turned": ArrayType(
        StructType([StructField("id", LongType()), StructField("name", StringType())])
    ),
}


def check(columns: str) -> None:
    named = [column.split() for column in columns.split(", ")]
    check_sink_schema(StructType([StructField(name, TYPES[kind]) for name, kind in named]))


def rows(**columns: Any) -> list[SinkRow]:
    batch = pa.RecordBatch.from_pydict(columns)
    return list(sink_rows(batch, partition_count=4, first_row=10))


def test_two_columns_are_enough_and_all_may_come_in_any_order() -> None:
    """PS-07."""
    check("partition int, data binary")
    check("read_locks locks, data string, header int, write_locks locks, partition int")


@pytest.mark.parametrize(
    ("columns", "fault"),
    [
        ("partition int", "column data is missing"),
        ("data binary", "column partition is missing"),
        ("partition bigint, data binary", "column partition is bigint"),
        ("partition int, data int", "column data is int"),
        ("partition int, data binary, header string", "column header is string"),
        ("partition int, data binary, transaction_id bigint", "column transaction_id is bigint"),
        ("partition int, data binary, write_locks string", "column write_locks is string"),
        (
            "partition int, data binary, read_locks turned",
            "column read_locks is array<struct<id:bigint,name:string>>",
        ),
    ],
)
def test_a_wrong_column_is_named_with_what_is_taken(columns: str, fault: str) -> None:
    """PS-07."""
    with pytest.raises(ConfigurationError, match=f"^WALTZ-1004 {fault}; the sink takes partition"):
        check(columns)


def test_what_is_not_given_has_a_default() -> None:
    assert rows(partition=pa.array([3], pa.int32()), data=pa.array(["ä"])) == [
        SinkRow(3, 0, "ä".encode())
    ]
    assert rows(
        partition=pa.array([0], pa.int32()),
        header=pa.array([None], pa.int32()),
        data=pa.array([b"x"]),
        write_locks=pa.array([None], LOCKS),
        read_locks=pa.array([[{"name": "a", "id": -5}, {"name": "b", "id": 6}]], LOCKS),
    ) == [SinkRow(0, 0, b"x", read_locks=(PartitionLocalLock("a", -5), PartitionLocalLock("b", 6)))]


@pytest.mark.parametrize("lock", [None, {"name": None, "id": 1}, {"name": "a", "id": None}])
def test_a_lock_without_a_name_or_an_id_is_none(lock: Any) -> None:
    fault = r"^WALTZ-1008 row 10 of the task: append_locks is .*expected locks with a name and an"
    with pytest.raises(ConfigurationError, match=fault):
        rows(
            partition=pa.array([0], pa.int32()),
            data=pa.array([b""]),
            append_locks=pa.array([[lock]], LOCKS),
        )


def test_content_is_told_apart() -> None:
    contents = [(0, b""), (1, b""), (-1, b""), (0, b"\0"), (0, b"a"), (2**31 - 1, b"a")]
    assert len({content_digest(*each) for each in contents}) == len(contents)
