"""Rows that Spark groups, and their values as SQLite has them."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any

import msgpack
import pytest

from waltz.envelope import enclosed, payload
from waltz.errors import CorruptionError
from waltz.spark.pipelines.frames import (
    PRUNING,
    WITHOUT_ENVELOPE,
    collected,
    decoded,
    grouped,
    kept,
)
from waltz.spark.pipelines.tables import TableDefinition, parse_tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def table(**found: Any) -> TableDefinition:
    (only,) = parse_tables({"t": {"keys": {"k": "1"}, **found}}, None).tables
    return only


def test_elements_of_one_transaction_have_an_order(spark: SparkSession) -> None:
    """F-3: the first element is the first one, in whatever order Spark brings them."""
    wanted = table(each="xs", measures={"f": "first(element)", "l": "last(element)"})
    frame = spark.sql(
        "SELECT 0 partition, cast(id as bigint) transaction_id, transform(sequence(0, 99),"
        " n -> n + 100 * id) xs FROM range(3)"
    )
    for parts in (1, 3):
        (row,) = grouped(frame.repartition(parts), wanted).collect()
        assert (row.f, row.l) == (0, 299)


def test_floats_have_no_nan_and_no_signed_zero(spark: SparkSession) -> None:
    frame = spark.sql(
        "SELECT 0 partition, cast(id as bigint) transaction_id,"
        " element_at(array(double('NaN'), -0.0d, 0.0d), cast(id + 1 as int)) x FROM range(3)"
    )
    measures = {"low": "min(x)", "high": "max(x)", "f": "first(x)"}
    (row,) = collected(grouped(frame, table(measures=measures), ["low", "high", "f"]))
    assert [str(each) for each in row[1:4]] == ["0.0", "0.0", "None"]


def test_times_are_texts_of_utc_in_the_order_of_the_times(spark: SparkSession) -> None:
    """The hour that comes twice when clocks are set back is two hours, wherever Spark is."""
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        frame = spark.sql(
            "SELECT timestamp_micros(1761438600000000 + id * 1800500000) at,"
            " date '0999-12-31' day FROM range(4) ORDER BY id"
        )
        rows = collected(frame)
    finally:
        spark.conf.unset("spark.sql.session.timeZone")
    assert [row[0] for row in rows] == [
        "2025-10-26 00:30:00",
        "2025-10-26 01:00:00.5",
        "2025-10-26 01:30:01",
        "2025-10-26 02:00:01.5",
    ]
    assert rows[0][1] == "0999-12-31"
    with sqlite3.connect(":memory:") as database:
        database.execute("CREATE TABLE t (at TEXT) STRICT")
        database.executemany("INSERT INTO t VALUES (?)", [row[:1] for row in rows])
        assert [row for (row,) in database.execute("SELECT at FROM t ORDER BY at")] == [
            row[0] for row in rows
        ]


def test_data_is_decoded_without_its_envelope(spark: SparkSession) -> None:
    whole = enclosed({"idempotency-key": "7f" * 32}, b'{"x": 1}')
    odd = [
        *(whole[:length] for length in (0, 1, 3, 4, 6, 7, 9, 50, len(whole) - 9, len(whole) - 8)),
        *(whole[:place] + b"\x00" + whole[place + 1 :] for place in (0, 4, 5, 6, 40, 90, 95)),
        whole[:5] + b"\xff\xff" + whole[7:],
        enclosed({}, b""), enclosed({"a": "b" * 1000}, b"x" * 70_000), enclosed({}, whole),
        b'{"x": 1}', b"\xc1WZT", b"\x00" * 20,
    ]  # fmt: skip
    rows = spark.createDataFrame(
        [(number, each) for number, each in enumerate(odd)], "n int, data binary"
    )
    found = rows.selectExpr("n", f"{WITHOUT_ENVELOPE} AS data").orderBy("n").collect()
    assert [bytes(row.data) for row in found] == [payload(each) for each in odd]
    decode = {"fields": {"x": "bigint"}, "schemas": {0: "json", 6: "msgpack"}}
    packed = enclosed({"a": "b"}, msgpack.packb({"x": 2}))
    log = spark.createDataFrame(
        [(0, 0, "r", 0, whole), (0, 1, "r", 6, packed)],
        "partition int, transaction_id bigint, request_id string, header int, data binary",
    )
    tables = parse_tables({"t": {"keys": {"k": "x"}, "measures": {"n": "count(*)"}}}, decode)
    assert [row.x for row in decoded(log, tables).orderBy("transaction_id").collect()] == [1, 2]


def test_what_has_no_such_text_is_named(spark: SparkSession) -> None:
    for text in ("date '12000-01-01' AS x", "cast(x'ff' as string) AS x"):
        with pytest.raises(CorruptionError, match=r"^WALTZ-2015 column x: .*texts in UTF-8"):
            collected(spark.sql(f"SELECT {text}"))


def test_a_frame_that_is_kept_has_all_its_rows(spark: SparkSession) -> None:
    """Spark 4.3 by itself leaves out what has NaN and no number that is large enough."""
    frame = spark.sql("SELECT double('NaN') d FROM range(1)")
    with kept(spark, frame) as whole:
        assert whole.where("d > 1.5").count() == 1
    assert spark.conf.get(PRUNING) == "true"
