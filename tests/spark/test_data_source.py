"""The data source as Spark uses it: by value, and once with Spark on a real cluster."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql.types import LongType, StructField, StructType

import waltz
from pyspark_waltz import DefaultSource
from tests.clusters import run_waltz
from waltz.errors import ConfigurationError
from waltz.spark.data_source import WaltzDataSource
from waltz.spark.reader import WaltzReader
from waltz.spark.schema import log_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TRANSACTIONS = 300


def test_spark_finds_the_source_by_its_name() -> None:
    assert DefaultSource.name() == "waltz"
    assert DefaultSource({}).schema() == log_schema()


def test_a_reader_is_made_of_options_and_schema() -> None:
    source = WaltzDataSource({"cluster": "127.0.0.1:7100"})
    schema = StructType([StructField("transaction_id", LongType())])
    assert isinstance(source.reader(schema), WaltzReader)
    with pytest.raises(ConfigurationError, match=r"^WALTZ-1001 unknown option 'servers'"):
        WaltzDataSource({"servers": "x"}).reader(schema)


@pytest.fixture(scope="module")
def written(cluster: str) -> dict[tuple[int, int], bytes]:
    """Transactions in the log: partition and ID to data, which is their number."""
    found: dict[tuple[int, int], bytes] = {}
    with waltz.open_client(cluster, waltz.NoCallbacks()) as client:
        for number in range(TRANSACTIONS):
            data = b"%d" % number * (number % 7)
            transaction_id = client.append(number % 2, data, header=number)
            found[number % 2, transaction_id] = data
    return found


@pytest.fixture
def log(spark: SparkSession, cluster: str, written: dict[tuple[int, int], bytes]) -> DataFrame:
    """From the first transaction of `written` on: other tests write before and after."""
    starting = {each: min(n for partition, n in written if partition == each) for each in (0, 1)}
    source = spark.read.format("waltz").option("cluster", cluster)
    ending = {each: first + TRANSACTIONS // 2 for each, first in starting.items()}
    source = source.option("startingOffsets", json.dumps(starting))
    return source.option("endingOffsets", json.dumps(ending)).load()


@pytest.mark.spark
@pytest.mark.processes
def test_a_data_frame_has_the_whole_log(
    log: DataFrame, written: dict[tuple[int, int], bytes]
) -> None:
    """PS-01."""
    rows = log.collect()
    assert {(row.partition, row.transaction_id): bytes(row.data) for row in rows} == written
    assert Counter(row.header for row in rows) == Counter(range(TRANSACTIONS))
    assert len({bytes(row.request_id) for row in rows}) == TRANSACTIONS
    assert all(len(row.request_id) == 16 for row in rows)


@pytest.mark.spark
@pytest.mark.processes
def test_a_range_is_read_by_as_many_tasks_as_asked_for(
    spark: SparkSession, cluster: str, written: dict[tuple[int, int], bytes]
) -> None:
    """PS-04; and a schema without data, which needs no body."""
    first = min(number for partition, number in written if partition == 1)
    part = (
        spark.read.format("waltz")
        .schema("header int, transaction_id bigint")
        .option("cluster", cluster)
        .option("partitions", "1")
        .option("startingOffsets", json.dumps({1: first + 10}))
        .option("endingOffsets", json.dumps({1: first + 50}))
        .option("minPartitions", 8)
        .load()
    )
    assert part.rdd.getNumPartitions() == 8
    assert [tuple(row) for row in part.collect()] == [(2 * n + 1, first + n) for n in range(10, 50)]


@pytest.mark.spark
@pytest.mark.processes
def test_the_code_of_an_error_reaches_the_user(
    spark: SparkSession, cluster: str, written: dict[tuple[int, int], bytes]
) -> None:
    source = spark.read.format("waltz").option("cluster", cluster)
    with pytest.raises(AnalysisException, match="WALTZ-1001 unknown option 'servers'"):
        source.option("servers", "x").load().count()
    source = spark.read.format("waltz").option("cluster", cluster)
    with pytest.raises(AnalysisException, match=r"WALTZ-2001 .*partition 0 at 99999"):
        source.option("startingOffsets", '{"0": 99999}').load().count()


@pytest.mark.processes
def test_a_read_needs_no_coordinator(cluster: str, written: dict[tuple[int, int], bytes]) -> None:
    """LC-60: planned and carried out by the address of a server alone."""
    status = json.loads(run_waltz("status", "--cluster", cluster, "--json").stdout)
    servers = f"waltz://{status['partitions'][0]['server']}"
    source = WaltzDataSource({"cluster": servers, "minPartitions": "4"})
    reader = source.reader(log_schema())
    found = {
        (row["partition"], row["transaction_id"]): row["data"]
        for task in reader.partitions()
        for batch in reader.read(task)
        for row in batch.to_pylist()  # type: ignore[union-attr]
    }
    assert found == written
