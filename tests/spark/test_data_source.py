"""The data source as Spark uses it: by value, and once with Spark on a real cluster."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql.functions import count as count_of
from pyspark.sql.functions import sum as sum_of
from pyspark.sql.types import LongType, StructField, StructType

import waltz
from pyspark_waltz import DefaultSource
from tests.clusters import RunningCluster, run_waltz
from waltz.client.transaction import PlainAppend
from waltz.errors import ConfigurationError
from waltz.spark.data_source import WaltzDataSource
from waltz.spark.log_columns import log_schema
from waltz.spark.reader import WaltzReader

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


@pytest.mark.spark
@pytest.mark.processes
def test_what_one_use_of_a_frame_leaves_out_another_one_has(
    spark: SparkSession, cluster: str, written: dict[tuple[int, int], bytes]
) -> None:
    """Spark 4.3 keeps filters that a source takes over for every later use of the same frame."""
    assert written
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        log = spark.read.format("waltz").option("cluster", cluster).load()
        count = len(log.collect())
        firsts = log.where("transaction_id = 0")
        assert firsts.count() == 2
        assert log.count() == count
        assert firsts.union(log).count() == log.union(firsts).count() == count + 2
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


LARGE_BYTES = 20_000
LARGE_COUNT = 200


def bytes_written(running: RunningCluster) -> int:
    """What the server process has written, to clients nearly all of it while nobody appends."""
    names = [each["name"] for each in running.state["processes"] if "server" in each["name"]]
    fields = [Path(f"/proc/{running.pid(name)}/io").read_text().split() for name in names]
    return sum(int(each[each.index("wchar:") + 1]) for each in fields)


@pytest.mark.spark
@pytest.mark.processes
@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="the kernel counts what was written")
def test_data_that_is_not_wanted_does_not_leave_the_server(
    spark: SparkSession, cluster: str, running: RunningCluster, tmp_path: Path
) -> None:
    """PS-06. By the schema and by options, in batches and in a stream."""
    with waltz.open_client(cluster, waltz.NoCallbacks(), max_concurrent_transactions=50) as client:
        first = client.append(0, b"")
        for number in range(LARGE_COUNT):
            data = b"%d " % number + bytes(LARGE_BYTES)
            client.submit(PlainAppend(0, data, header=1000 + number % 50))
        client.flush()
    starting = json.dumps({"0": first + 1, "1": "latest"})

    def opened(**options: str) -> DataFrame:
        source = spark.read.format("waltz").option("cluster", cluster)
        return source.options(**{"startingOffsets": starting, **options}).load()

    def cost(frame: DataFrame) -> tuple[int, int]:
        before = bytes_written(running)
        count = frame.agg(count_of("*"), sum_of("header")).collect()[0][0]
        return count, bytes_written(running) - before

    wanted = LARGE_COUNT // 50
    everything, cost_of_all = cost(opened())
    assert everything == LARGE_COUNT
    assert cost_of_all > LARGE_COUNT * LARGE_BYTES
    for frame, count in (
        (opened(headers="1007..1008"), 2 * wanted),
        (
            opened(
                partitions="0",
                startingOffsets=json.dumps({"0": first + 1}),
                endingOffsets=json.dumps({"0": first + 4}),
            ),
            3,
        ),
        (opened(data="false"), LARGE_COUNT),
    ):
        found, spent = cost(frame)
        assert found == count
        assert spent < cost_of_all / 4
    before = bytes_written(running)
    query = (
        spark.readStream.format("waltz")
        .options(cluster=cluster, startingOffsets=starting, headers="1007")
        .load()
        .writeStream.format("parquet")
        .option("path", str(tmp_path / "rows"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert bytes_written(running) - before < cost_of_all / 4
    rows = spark.read.parquet(str(tmp_path / "rows")).collect()
    assert [bytes(row.data) for row in rows] == [
        b"%d " % number + bytes(LARGE_BYTES) for number in range(7, LARGE_COUNT, 50)
    ]


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
    assert {each: found[each] for each in written} == written
