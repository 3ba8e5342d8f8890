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
from waltz.spark.sink_rows import (
    SinkRow,
    check_sink_schema,
    content_digest,
    has_locks,
    locked_rows,
    sink_columns,
)

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
    found = sink_columns(batch, partition_count=4, first_row=10)
    return list(locked_rows(batch, found, first_row=10))


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


LOCK = {"name": "a", "id": 1}


@pytest.mark.parametrize(
    ("locks", "has"),
    [([None, None], False), ([[], None], False), ([None, [LOCK]], True), ([[None], []], True)],
)
def test_a_batch_has_locks_if_a_row_of_it_has(locks: Any, has: bool) -> None:
    plain = {"partition": pa.array([0, 0], pa.int32()), "data": pa.array([b"", b""])}
    assert not has_locks(pa.RecordBatch.from_pydict(plain))
    for name in ("write_locks", "read_locks", "append_locks"):
        batch = pa.RecordBatch.from_pydict({**plain, name: pa.array(locks, LOCKS)})
        assert has_locks(batch) == has


def test_columns_are_taken_apart_by_partition_in_their_order() -> None:
    batch = pa.RecordBatch.from_pydict(
        {
            "partition": pa.array([2, 0, 2, 0, 2], pa.int32()),
            "header": pa.array([1, None, 3, 4, 5], pa.int32()),
            "data": pa.array(["a", "b", "c", "d", "\u00e4"]),
        }
    )
    parts = sink_columns(batch, partition_count=4).of_each_partition()
    assert [
        (each.partition_ids.tolist(), each.headers.tolist(), each.data, len(each)) for each in parts
    ] == [([0, 0], [0, 4], [b"b", b"d"], 2), ([2, 2, 2], [1, 3, 5], [b"a", b"c", b"\xc3\xa4"], 3)]


def test_the_first_row_that_cannot_be_written_is_named() -> None:
    good = {"partition": pa.array([0] * 4, pa.int32()), "data": pa.array([b""] * 4)}
    for column, value, fault in (
        ("partition", pa.array([0, 1, 4, -1], pa.int32()), "row 12 .*: partition is 4; .* 0 to 3"),
        ("partition", pa.array([0, None, 9, None], pa.int32()), "row 11 .*: partition is null"),
        ("data", pa.array([b"", b"", b"", None]), "row 13 .*: data is null"),
    ):
        with pytest.raises(ConfigurationError, match=f"^WALTZ-1008 {fault}"):
            rows(**{**good, column: value})
